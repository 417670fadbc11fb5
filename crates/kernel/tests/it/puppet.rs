//! An agent that the test controls: the test receives each execution, acts for the agent, and ends it.

use std::sync::Arc;

use async_trait::async_trait;
use mainspring_core::{
    AttemptId, AuthMethod, Failure, FailureCode, RunOption, Time, UsageReports, WaitRequest,
};
use mainspring_kernel::adapter::{
    Adapter, Ask, AttemptHandle, Capabilities, Death, Dispatch, Executed, Login, RestartBehavior,
};
use mainspring_kernel::kernel::RunRequest;
use mainspring_kernel::policy::Rule;
use mainspring_kernel::store::Store;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use crate::world::with_timeout;

/// The behaviour of a puppet where the test does not act itself.
#[derive(Clone)]
pub(crate) struct PuppetBehavior {
    pub(crate) name: &'static str,
    pub(crate) uses_bindings: bool,
    pub(crate) steers: bool,
    pub(crate) client_tools: bool,
    pub(crate) has_login: bool,
    pub(crate) usage_reports: UsageReports,
    pub(crate) restart_behavior: RestartBehavior,
    pub(crate) dispatch: Dispatch,
    /// `None` if killing it never returns.
    pub(crate) death: Option<Death>,
    pub(crate) answers_cancel: bool,
    /// Returns from `execute` when it is cancelled.
    pub(crate) obeys: bool,
    pub(crate) rules: Vec<Rule>,
    /// The decisions on actions that no rule matches.
    pub(crate) otherwise: Vec<Rule>,
}

impl Default for PuppetBehavior {
    fn default() -> Self {
        Self {
            name: "puppet",
            uses_bindings: false,
            steers: false,
            client_tools: true,
            has_login: false,
            usage_reports: UsageReports::Live,
            restart_behavior: RestartBehavior::AttemptsOrphaned,
            dispatch: Dispatch { dispatched: true, acknowledged: false },
            death: Some(Death::Proven),
            answers_cancel: true,
            obeys: false,
            rules: vec![],
            otherwise: vec![],
        }
    }
}

/// One execution, controlled by the test.
pub(crate) struct Execution {
    pub(crate) handle: AttemptHandle,
    pub(crate) end: oneshot::Sender<Executed>,
}

impl Execution {
    pub(crate) fn end(self, executed: Executed) -> AttemptHandle {
        let _ = self.end.send(executed);
        self.handle
    }
}

/// Receives the executions of a puppet.
pub(crate) struct PuppetControl {
    executions: mpsc::UnboundedReceiver<Execution>,
    log: Arc<Mutex<Vec<String>>>,
}

impl PuppetControl {
    /// Waits for the next execution.
    pub(crate) async fn next(&mut self) -> Execution {
        with_timeout(self.executions.recv()).await.unwrap()
    }

    /// Returns true if there is no further execution.
    pub(crate) fn is_idle(&mut self) -> bool {
        self.executions.try_recv().is_err()
    }

    /// The calls the puppet received, each with the stored status of its run at that time.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().clone()
    }
}

struct Puppet {
    behavior: PuppetBehavior,
    store: Arc<dyn Store>,
    executions: mpsc::UnboundedSender<Execution>,
    log: Arc<Mutex<Vec<String>>>,
    runs: Mutex<Vec<(AttemptId, mainspring_core::RunId)>>,
}

/// Creates a puppet and its control.
pub(crate) fn puppet(store: &Arc<dyn Store>, behavior: PuppetBehavior) -> (Arc<dyn Adapter>, PuppetControl) {
    let (executions, received) = mpsc::unbounded_channel();
    let log = Arc::<Mutex<Vec<String>>>::default();
    let puppet =
        Puppet { behavior, store: store.clone(), executions, log: log.clone(), runs: Mutex::default() };
    let control = PuppetControl { executions: received, log };
    (Arc::new(puppet), control)
}

/// Builds a request for the puppet.
pub(crate) fn puppet_request(key: &str, text: &str) -> RunRequest {
    RunRequest { adapter: Some("puppet".into()), ..RunRequest::text(key, text) }
}

/// Builds a question that may expire.
pub(crate) fn question(request: WaitRequest, expires_at: Option<Time>) -> Ask {
    Ask { expires_at, ..Ask::new(request, "may I?") }
}

impl Puppet {
    async fn note(&self, what: &str, attempt: AttemptId) {
        let known = self.runs.lock().iter().find(|(by, _)| *by == attempt).map(|(_, run)| *run);
        let status = match known {
            Some(run) => self.store.run_get(run).await.unwrap().map(|run| run.state.status()),
            None => None,
        };
        let status = status.map_or("unknown", |status| status.name());
        self.log.lock().push(format!("{what} while {status}"));
    }
}

#[async_trait]
impl Adapter for Puppet {
    fn rules(&self) -> &[Rule] {
        &self.behavior.rules
    }

    fn otherwise(&self) -> Vec<Rule> {
        self.behavior.otherwise.clone()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            supports_cancellation: true,
            acknowledges_cancellation: self.behavior.dispatch.acknowledged,
            supports_tools: true,
            supports_client_tools: self.behavior.client_tools,
            supports_steering: self.behavior.steers,
            uses_bindings: self.behavior.uses_bindings,
            options: RunOption::ALL.to_vec(),
            usage_reports: self.behavior.usage_reports,
            restart_behavior: self.behavior.restart_behavior,
            ..Capabilities::minimal(self.behavior.name)
        }
    }

    async fn execute(&self, handle: AttemptHandle) -> Executed {
        self.runs.lock().push((handle.id(), handle.assignment().run.id));
        self.note("execute", handle.id()).await;
        let (end, ended) = oneshot::channel();
        let _ = self.executions.send(Execution { handle: handle.clone(), end });
        let ended = async {
            match ended.await {
                Ok(executed) => executed,
                Err(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            executed = ended => executed,
            () = handle.cancelled(), if self.behavior.obeys => mainspring_kernel::adapter::End::stopped(),
        }
    }

    async fn cancel(&self, attempt: AttemptId) -> Dispatch {
        self.note("cancel", attempt).await;
        if !self.behavior.answers_cancel {
            std::future::pending::<()>().await;
        }
        self.behavior.dispatch
    }

    async fn kill(&self, attempt: AttemptId) -> Death {
        self.note("kill", attempt).await;
        match self.behavior.death {
            Some(death) => death,
            None => std::future::pending().await,
        }
    }

    fn login(&self) -> Option<&dyn Login> {
        self.behavior.has_login.then_some(self)
    }

    fn forget(&self, native: &str) {
        self.log.lock().push(format!("forget {native}"));
    }
}

#[async_trait]
impl Login for Puppet {
    fn methods(&self) -> Vec<AuthMethod> {
        vec![]
    }

    /// Succeeds with the method `token`.
    async fn authenticate(&self, method: &str) -> Result<(), Failure> {
        if method == "token" {
            Ok(())
        } else {
            Err(Failure::new(FailureCode::Authentication, "unknown method"))
        }
    }
}
