//! The test fixture: a kernel with the native adapter, a scripted model server over HTTP, and a manual clock.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mainspring_agent::hooks::Hooks;
use mainspring_agent::tool::{ToolError, Toolbox, function};
use mainspring_agent::{Definition, Definitions, Models, NativeAdapter, NativeCatalog};
use mainspring_core::{
    Answer, Approval, Block, Body, Cursor, Event, Message, Run, RunId, RunStatus, Step, Time,
};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::ids::Ids;
use mainspring_kernel::kernel::{Caller, NewSession, OnOrphan, RunRequest, SessionTarget};
use mainspring_kernel::store::{SessionRef, Store};
use mainspring_kernel::{Kernel, Options};
use mainspring_model_server::{Gate, ModelServer, Protocol};
use mainspring_reference_store::MemoryStore;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

pub(crate) const NOW: Time = Time(1_800_000_000_000);

#[derive(Deserialize, JsonSchema)]
struct Numbers {
    a: f64,
    b: f64,
}

#[derive(Deserialize, JsonSchema)]
struct Anything {}

/// Fails the test instead of hanging. No test depends on durations.
pub(crate) async fn within_timeout<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), Box::pin(future)).await.expect("timed out")
}

/// Simulates a process: tasks that still run when `process` returns are dropped at once, as by `kill -9`.
pub(crate) fn run_until_crash<T>(process: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let result = runtime.block_on(process);
    drop(runtime);
    result
}

/// The configuration of a [`World`].
pub(crate) struct Setup {
    pub(crate) protocol: Protocol,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) tools: Toolbox,
    pub(crate) agents: Vec<&'static str>,
    pub(crate) hooks: Option<Box<dyn FnOnce(NativeAdapter) -> NativeAdapter>>,
    pub(crate) profile: &'static str,
    pub(crate) seed: u64,
    pub(crate) on_orphan: OnOrphan,
    /// Generates titles for sessions without one.
    pub(crate) titles: bool,
    /// The folder of artifacts.
    pub(crate) artifacts: Option<PathBuf>,
    /// The most runs of the native adapter at once.
    pub(crate) native_workers: Option<usize>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            protocol: Protocol::Anthropic,
            store: Arc::new(MemoryStore::default()),
            tools: tools(),
            agents: vec![],
            hooks: None,
            profile: "",
            seed: 1,
            on_orphan: OnOrphan::Leave,
            titles: false,
            artifacts: None,
            native_workers: None,
        }
    }
}

impl Setup {
    pub(crate) fn protocol(protocol: Protocol) -> Self {
        Self { protocol, ..Self::default() }
    }

    pub(crate) fn hooks(mut self, hooks: impl Hooks) -> Self {
        self.hooks = Some(Box::new(|adapter| adapter.with_hooks(Arc::new(hooks))));
        self
    }

    pub(crate) fn agent(mut self, definition: &'static str) -> Self {
        self.agents.push(definition);
        self
    }

    pub(crate) async fn start(self) -> World {
        let server = ModelServer::start().await.expect("a server");
        self.start_on(server).await
    }

    pub(crate) async fn start_on(self, server: ModelServer) -> World {
        let kind = match self.protocol {
            Protocol::Anthropic => "anthropic",
            Protocol::Chat => "openai",
            Protocol::Responses => "openai-responses",
            Protocol::Gemini => "gemini",
        };
        let config = format!(
            "[providers.acme]\nkind = \"{kind}\"\nbase_url = \"{}\"\n\
             [prices.\"m-1\"]\ninput = 1.0\noutput = 10.0\ncache_read = 0.5\n\
             [models.main_reasoner]\nprovider = \"acme\"\nmodel = \"m-1\"\n{}",
            server.base_url(self.protocol),
            self.profile
        );
        let models = Models::new(&toml::from_str(&config).expect("a configuration")).expect("models");
        let definitions = self.agents.iter().fold(Definitions::new(None), |all, text| {
            all.with(Definition::parse(text).expect("a definition"))
        });
        let definitions = Arc::new(definitions);
        let catalog = NativeCatalog::new(definitions.clone(), models.clone());
        let adapter = NativeAdapter::new(models, self.tools, definitions);
        let adapter = match self.hooks {
            Some(hooks) => hooks(adapter),
            None => adapter,
        };
        let catalog = catalog.describing(adapter.clone());
        let clock = Clock::manual(NOW);
        let options = Options {
            adapter: "native".into(),
            on_orphan: self.on_orphan,
            auto_title: self.titles,
            artifacts: self.artifacts,
            agents: Arc::new(catalog),
            adapter_workers: self.native_workers.map(|cap| ("native".to_owned(), cap)).into_iter().collect(),
            ..Options::default()
        };
        let ids = Ids::seeded(self.seed);
        let kernel =
            Kernel::start(self.store.clone(), vec![Arc::new(adapter)], options, clock.clone(), ids).await;
        World { kernel: kernel.expect("a kernel"), clock, server, store: self.store, me: Caller::new("ada") }
    }
}

/// The tools `add`, `fail`, `panic`, `hang`, and `long`, which returns a long text.
pub(crate) fn tools() -> Toolbox {
    let add = function("add", "Adds.", |_, n: Numbers| async move { Ok((n.a + n.b).to_string()) });
    let fail = function("fail", "Fails.", |_, _: Anything| async { Err(ToolError::new("no luck")) });
    let panic = function("panic", "Panics.", |_, _: Anything| async { panic!("by design") });
    let hang = function("hang", "Hangs.", |_, _: Anything| async { std::future::pending().await });
    let long = function("long", "Returns a long text.", |_, _: Anything| async { Ok("ä".repeat(40_000)) });
    let all = Toolbox::new().with(add).and_then(|all| all.with(fail)).and_then(|all| all.with(panic));
    all.and_then(|all| all.with(hang)).and_then(|all| all.with(long)).expect("tools")
}

/// A tool that waits at a gate and then returns its name.
pub(crate) fn gated(name: &'static str, gate: &Gate) -> impl mainspring_agent::tool::Tool {
    let gate = gate.clone();
    function(name, "Waits.", move |_, _: Anything| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            Ok(format!("{name} is done"))
        }
    })
}

pub(crate) struct World {
    pub(crate) kernel: Kernel,
    pub(crate) clock: Clock,
    pub(crate) server: ModelServer,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) me: Caller,
}

impl World {
    pub(crate) async fn send(&self, request: RunRequest) -> Run {
        within_timeout(self.kernel.run_create(&self.me, request)).await.expect("accepted").run
    }

    pub(crate) async fn send_prompt(&self, text: &str) -> Run {
        self.send(RunRequest::text("s", text)).await
    }

    /// Sends a prompt and waits for the end of its run.
    pub(crate) async fn run_prompt(&self, text: &str) -> Run {
        let run = self.send_prompt(text).await;
        self.wait_ended(run.id).await
    }

    /// Sends a prompt to a session with the agent definition `agent`, and waits until the run ends or waits.
    pub(crate) async fn run_prompt_as(&self, agent: &str, text: &str) -> Run {
        let new = NewSession { agent_definition: Some(agent.into()), ..NewSession::default() };
        let session = SessionTarget { key: Some(agent.replace('@', "-")), new, ..SessionTarget::default() };
        let prompt = vec![Block::text(text)];
        let run = self.send(RunRequest { session, prompt, ..RunRequest::default() }).await;
        self.wait_status(run.id, is_paused_or_ended).await
    }

    pub(crate) async fn get(&self, run: RunId) -> Run {
        self.kernel.run_get(&self.me, run).await.expect("a run")
    }

    pub(crate) async fn wait_ended(&self, run: RunId) -> Run {
        self.wait_status(run, RunStatus::is_ended).await
    }

    /// Waits until the run has ended or waits for a person.
    pub(crate) async fn wait_paused(&self, run: RunId) -> Run {
        self.wait_status(run, is_paused_or_ended).await
    }

    pub(crate) async fn wait_status(&self, run: RunId, condition: impl Fn(RunStatus) -> bool) -> Run {
        let session = SessionRef::Id(self.get(run).await.session);
        let reached = async {
            let mut events = self.kernel.session_subscribe(&self.me, &session, None).await.expect("a feed");
            loop {
                let current = self.get(run).await;
                if condition(current.state.status()) {
                    return current;
                }
                events.next().await.expect("the session goes on").expect("an event");
            }
        };
        within_timeout(reached).await
    }

    /// Waits until the run has `count` events of this type.
    pub(crate) async fn wait_event(&self, run: RunId, kind: &str, count: usize) {
        let session = SessionRef::Id(self.get(run).await.session);
        let happened = async {
            let mut events = self.kernel.session_subscribe(&self.me, &session, None).await.expect("a feed");
            while self.event_kinds(run).await.iter().filter(|known| **known == kind).count() < count {
                events.next().await.expect("the session goes on").expect("an event");
            }
        };
        within_timeout(happened).await;
    }

    pub(crate) async fn answer(&self, run: RunId, answer: Answer) {
        let wait = self.get(run).await.state.wait().expect("the run waits").id;
        within_timeout(self.kernel.run_answer(&self.me, run, wait, answer)).await.expect("answered");
    }

    pub(crate) async fn allow(&self, run: RunId) {
        self.answer(run, Approval::Allowed.into()).await;
    }

    pub(crate) async fn deny(&self, run: RunId) {
        self.answer(run, Approval::Denied.into()).await;
    }

    pub(crate) async fn events(&self, run: RunId) -> Vec<Event> {
        self.kernel.run_events(&self.me, run, Cursor::START, None).await.expect("events")
    }

    pub(crate) async fn event_kinds(&self, run: RunId) -> Vec<&'static str> {
        self.events(run).await.iter().map(|event| event.body.kind()).collect()
    }

    pub(crate) async fn event_bodies(&self, run: RunId) -> Vec<Body> {
        self.events(run).await.into_iter().map(|event| event.body).collect()
    }

    pub(crate) async fn steps(&self, run: RunId) -> Vec<Step> {
        self.kernel.run_steps(&self.me, run).await.expect("steps").items
    }

    /// Exports the session, imports it into another world, and returns the run's steps there.
    pub(crate) async fn steps_after_import(&self, run: &Run) -> Vec<Step> {
        let other = Setup::protocol(Protocol::Anthropic).start().await;
        let mut export =
            self.kernel.session_export(&self.me, &SessionRef::Id(run.session)).await.expect("a file");
        let mut import = other.kernel.session_import(&other.me).expect("an import");
        while let Some(lines) = export.next().await.expect("lines") {
            import.push(lines.as_bytes()).await.expect("valid lines");
        }
        import.finish().await.expect("a session");
        other.steps(run.id).await
    }

    /// Returns the messages of the run, in order.
    pub(crate) async fn messages(&self, run: RunId) -> Vec<Arc<Message>> {
        let bodies = self.event_bodies(run).await;
        bodies
            .into_iter()
            .filter_map(|body| match body {
                Body::MessageCompleted { message, .. } => Some(message),
                _ => None,
            })
            .collect()
    }

    /// Returns the text of the run's last message.
    pub(crate) async fn answer_text(&self, run: RunId) -> String {
        self.messages(run).await.last().map(|message| message.text()).unwrap_or_default()
    }

    /// Returns the tool results of the run: text and `is_error`.
    pub(crate) async fn tool_results(&self, run: RunId) -> Vec<(String, bool)> {
        let messages = self.messages(run).await;
        let blocks = messages.iter().flat_map(|message| &message.content);
        blocks
            .filter_map(|block| match block {
                Block::ToolResult { content, is_error, .. } => {
                    Some((mainspring_core::message::text_of(content), *is_error))
                }
                _ => None,
            })
            .collect()
    }

    /// Returns the content of the run's first tool result.
    pub(crate) async fn result_content(&self, run: RunId) -> Vec<Block> {
        let messages = self.messages(run).await;
        let mut blocks = messages.iter().flat_map(|message| &message.content);
        let result = blocks.find_map(|block| match block {
            Block::ToolResult { content, .. } => Some(content.clone()),
            _ => None,
        });
        result.unwrap()
    }

    /// Returns the body of request `n` to the model server, counted from 0.
    pub(crate) fn request_body(&self, n: usize) -> Value {
        self.server.requests().remove(n).body
    }
}

fn is_paused_or_ended(status: RunStatus) -> bool {
    status.is_ended() || matches!(status, RunStatus::WaitingApproval | RunStatus::WaitingInput)
}
