//! One kernel with the script agent, reached in two ways: directly, and through the real router over TCP.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use mainspring_adapters::ScriptAdapter;
use mainspring_api::control::ControlPlane;
use mainspring_client::Client;
use mainspring_control::ControlTools;
use mainspring_core::{Run, RunStatus, SessionId, Time};
use mainspring_host::{Keeper, Link, LinkPlane, Successor};
use mainspring_http::{Access, Http, HttpLimits};
use mainspring_kernel::adapter::Adapter;
use mainspring_kernel::clock::Clock;
use mainspring_kernel::feed::Item;
use mainspring_kernel::ids::Ids;
use mainspring_kernel::kernel::{Caller, KernelPlane, RunRequest};
use mainspring_kernel::store::SessionRef;
use mainspring_kernel::tasks::Tasks;
use mainspring_kernel::{Kernel, Options};
use mainspring_reference_store::MemoryStore;
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::profiled::ProfiledAdapter;

pub(crate) const OWNER: &str = "ada";

/// A kernel and the two planes on it.
pub(crate) struct World {
    pub(crate) kernel: Kernel,
    pub(crate) clock: Clock,
    pub(crate) me: Caller,
    link: Link,
    _keeper: Keeper,
    _server: Tasks,
    _artifacts: TempDir,
}

impl World {
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    /// Starts a kernel whose options `change` has changed.
    pub(crate) async fn start_with(change: impl FnOnce(&mut Options)) -> Self {
        let (artifacts, clock) = (tempfile::tempdir().unwrap(), Clock::manual(Time(1_800_000_000_000)));
        let mut options = Options {
            adapter: "script".into(),
            artifacts: Some(artifacts.path().into()),
            ..Options::default()
        };
        change(&mut options);
        let store = Arc::new(MemoryStore::default());
        let adapters: Vec<Arc<dyn Adapter>> = vec![Arc::new(ScriptAdapter), Arc::new(ProfiledAdapter)];
        let kernel = Kernel::start(store, adapters, options, clock.clone(), Ids::seeded(1)).await;
        let (kernel, server) = (kernel.unwrap(), Tasks::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (limits, stop) = (HttpLimits::default(), CancellationToken::new());
        let http = Http::new(kernel.clone(), Access::new("token", OWNER), limits, stop.clone());
        server.spawn(mainspring_http::serve(listener, http.router(), limits, stop));
        let (link, keeper) = Link::new(Client::over_tcp(&address, "token").unwrap(), Successor::None);
        let me = Caller::new(OWNER);
        Self { kernel, clock, me, link, _keeper: keeper, _server: server, _artifacts: artifacts }
    }

    /// Returns the planes by name.
    pub(crate) fn planes(&self) -> [(&'static str, Box<dyn ControlPlane + '_>); 2] {
        [
            ("kernel", Box::new(KernelPlane::new(self.kernel.clone(), self.me.clone()))),
            ("client", Box::new(LinkPlane::new(&self.link, OWNER))),
        ]
    }

    /// Calls a tool through both planes, one after the other. Their answers must be equal; returns one of them.
    pub(crate) async fn call(&self, name: &str, input: Value) -> Value {
        self.call_from(None, name, input).await
    }

    /// Calls a tool as [`World::call`] does, with `session` as the session of the caller.
    pub(crate) async fn call_from(&self, session: Option<SessionId>, name: &str, input: Value) -> Value {
        let mut answers = vec![];
        for (plane_name, plane) in self.planes() {
            let answer = call(&*plane, session, name, input.clone()).await;
            answers.push((plane_name, answer));
        }
        let (_, first) = answers.remove(0);
        for (plane_name, answer) in answers {
            assert_eq!(answer, first, "{name} of the {plane_name}");
        }
        first
    }

    /// Sends a script to the session of this key.
    pub(crate) async fn send(&self, key: &str, script: &str) -> Run {
        within_timeout(self.kernel.run_create(&self.me, RunRequest::text(key, script))).await.unwrap().run
    }

    /// Sends a script and waits for the end of its run.
    pub(crate) async fn run(&self, key: &str, script: &str) -> Run {
        let run = self.send(key, script).await;
        within_timeout(self.kernel.run_wait_ended(&self.me, run.id)).await.unwrap()
    }

    /// Waits until a session has a run in execution, and returns it.
    pub(crate) async fn executing(&self, session: SessionId) -> Run {
        let by = SessionRef::Id(session);
        within_timeout(async {
            let mut events = self.kernel.session_subscribe(&self.me, &by, None).await.unwrap();
            loop {
                let active = self.kernel.session_snapshot(&self.me, &by).await.unwrap().active_run;
                if let Some(run) = active.filter(|run| run.state.status() == RunStatus::Running) {
                    return run;
                }
                let _: Item = events.next().await.unwrap().unwrap();
            }
        })
        .await
    }
}

/// Calls a tool. Checks that `ok` says whether the call succeeded, and that an answer matches its schema.
pub(crate) async fn call(
    plane: &dyn ControlPlane,
    session: Option<SessionId>,
    name: &str,
    input: Value,
) -> Value {
    let tools = ControlTools {
        plane,
        session,
        run: None,
        aliases: &HashMap::from([("scripted".to_owned(), "script".to_owned())]),
        client_id: mainspring_control::DEFAULT_CLIENT_ID,
        // The second plane repeats the request of the first, so a message or a delegation takes effect only once.
        request_id: "same",
        default_budget_usd: Some(mainspring_control::DEFAULT_BUDGET_USD),
    };
    let answer = within_timeout(tools.call(name, input)).await;
    let ok = answer.is_ok();
    let answer: Value = serde_json::from_str(&answer.unwrap_or_else(|failed| failed)).unwrap();
    assert_eq!(answer["ok"], ok, "{name}: {answer}");
    if let Some(tool) = mainspring_control::tools().iter().find(|tool| ok && tool.name == name) {
        let schema = jsonschema::validator_for(&Value::Object(tool.output_schema.clone())).unwrap();
        let errors: Vec<String> = schema.iter_errors(&answer).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{name}: {errors:?} in {answer}");
    }
    answer
}

/// Fails the test instead of hanging. No test depends on durations.
pub(crate) async fn within_timeout<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), Box::pin(future)).await.expect("timed out")
}
