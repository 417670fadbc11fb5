//! An agent whose strings the test pulls: each execution is handed to the test, which acts for it and ends it.

use std::sync::Arc;

use async_trait::async_trait;
use mainspring_core::{AttemptId, Fidelity, Time, WaitRequest};
use mainspring_kernel::adapter::{
    Adapter, Ask, AttemptHandle, Capabilities, Death, Dispatch, Executed, RestartBehavior,
};
use mainspring_kernel::kernel::RunRequest;
use mainspring_kernel::store::Store;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use crate::world::soon;

/// How a puppet behaves where the test does not decide.
#[derive(Clone)]
pub(crate) struct Manners {
    pub(crate) name: &'static str,
    pub(crate) uses_bindings: bool,
    pub(crate) steers: bool,
    pub(crate) client_tools: bool,
    pub(crate) dispatch: Dispatch,
    /// None: telling it to stop, or killing it, never returns.
    pub(crate) death: Option<Death>,
    pub(crate) answers_cancel: bool,
    /// It returns when it is told to stop.
    pub(crate) obeys: bool,
}

impl Default for Manners {
    fn default() -> Self {
        Self {
            name: "puppet",
            uses_bindings: false,
            steers: false,
            client_tools: true,
            dispatch: Dispatch { dispatched: true, acknowledged: false },
            death: Some(Death::Proven),
            answers_cancel: true,
            obeys: false,
        }
    }
}

/// One execution in the test's hands.
pub(crate) struct Strings {
    pub(crate) handle: AttemptHandle,
    pub(crate) end: oneshot::Sender<Executed>,
}

impl Strings {
    pub(crate) fn end(self, executed: Executed) -> AttemptHandle {
        let _ = self.end.send(executed);
        self.handle
    }
}

/// The test's side.
pub(crate) struct Hands {
    executions: mpsc::UnboundedReceiver<Strings>,
    log: Arc<Mutex<Vec<String>>>,
}

impl Hands {
    /// The next execution.
    pub(crate) async fn next(&mut self) -> Strings {
        soon(self.executions.recv()).await.unwrap()
    }

    /// True when nothing else was executed.
    pub(crate) fn is_idle(&mut self) -> bool {
        self.executions.try_recv().is_err()
    }

    /// What it was told, and the stored status of its run at that moment.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().clone()
    }
}

struct Puppet {
    manners: Manners,
    store: Arc<dyn Store>,
    executions: mpsc::UnboundedSender<Strings>,
    log: Arc<Mutex<Vec<String>>>,
    runs: Mutex<Vec<(AttemptId, mainspring_core::RunId)>>,
}

/// A puppet, and its strings.
pub(crate) fn puppet(store: &Arc<dyn Store>, manners: Manners) -> (Arc<dyn Adapter>, Hands) {
    let (executions, received) = mpsc::unbounded_channel();
    let log = Arc::<Mutex<Vec<String>>>::default();
    let puppet =
        Puppet { manners, store: store.clone(), executions, log: log.clone(), runs: Mutex::default() };
    let hands = Hands { executions: received, log };
    (Arc::new(puppet), hands)
}

/// A prompt for the puppet.
pub(crate) fn pull(key: &str, text: &str) -> RunRequest {
    RunRequest { adapter: Some("puppet".into()), ..RunRequest::text(key, text) }
}

/// A question that expires, if it does, at a time.
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
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            adapter: self.manners.name.into(),
            resume_fidelity: Fidelity::None,
            supports_native_resume: false,
            supports_cancellation: true,
            acknowledges_cancellation: self.manners.dispatch.acknowledged,
            requires_pinned_worker: false,
            supports_model_switching: false,
            supports_artifact_emission: false,
            supports_tools: true,
            supports_client_tools: self.manners.client_tools,
            supports_steering: self.manners.steers,
            restart_behavior: RestartBehavior::AttemptsOrphaned,
            uses_bindings: self.manners.uses_bindings,
            supports_authentication: false,
            keeps_limits: false,
        }
    }

    async fn execute(&self, handle: AttemptHandle) -> Executed {
        self.runs.lock().push((handle.id(), handle.assignment().run.id));
        self.note("execute", handle.id()).await;
        let (end, ended) = oneshot::channel();
        let _ = self.executions.send(Strings { handle: handle.clone(), end });
        let ended = async {
            match ended.await {
                Ok(executed) => executed,
                Err(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            executed = ended => executed,
            () = handle.cancelled(), if self.manners.obeys => mainspring_kernel::adapter::End::stopped(),
        }
    }

    async fn cancel(&self, attempt: AttemptId) -> Dispatch {
        self.note("cancel", attempt).await;
        if !self.manners.answers_cancel {
            std::future::pending::<()>().await;
        }
        self.manners.dispatch
    }

    async fn kill(&self, attempt: AttemptId) -> Death {
        self.note("kill", attempt).await;
        match self.manners.death {
            Some(death) => death,
            None => std::future::pending().await,
        }
    }

    fn forget(&self, native: &str) {
        self.log.lock().push(format!("forget {native}"));
    }
}
