//! A kernel with the native adapter, a scripted model server it asks over HTTP, and a clock that a test turns.

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
use mainspring_store::MemoryStore;
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

/// Fails instead of hanging. No test depends on how long anything takes.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), Box::pin(what))
        .await
        .expect("what was awaited did not happen")
}

/// One life of a process: what still runs when `life` returns is dropped where it stands, as by `kill -9`.
pub(crate) fn live<T>(life: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let lived = runtime.block_on(life);
    drop(runtime);
    lived
}

/// What a world is made of.
pub(crate) struct Setup {
    pub(crate) protocol: Protocol,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) tools: Toolbox,
    pub(crate) agents: Vec<&'static str>,
    pub(crate) hooks: Option<Box<dyn FnOnce(NativeAdapter) -> NativeAdapter>>,
    pub(crate) profile: &'static str,
    pub(crate) seed: u64,
    pub(crate) on_orphan: OnOrphan,
    /// Whether sessions that nobody has named get a title.
    pub(crate) titles: bool,
    /// Where artifacts are kept.
    pub(crate) artifacts: Option<PathBuf>,
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
        }
    }
}

impl Setup {
    pub(crate) fn protocol(protocol: Protocol) -> Self {
        Self { protocol, ..Self::default() }
    }

    pub(crate) fn hooks(mut self, hooks: impl Hooks) -> Self {
        self.hooks = Some(Box::new(|adapter| adapter.with_hooks(hooks)));
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
        let clock = Clock::manual(NOW);
        let options = Options {
            adapter: "native".into(),
            on_orphan: self.on_orphan,
            auto_title: self.titles,
            artifacts: self.artifacts,
            agents: Arc::new(catalog),
            ..Options::default()
        };
        let ids = Ids::seeded(self.seed);
        let kernel =
            Kernel::start(self.store.clone(), vec![Arc::new(adapter)], options, clock.clone(), ids).await;
        World { kernel: kernel.expect("a kernel"), clock, server, store: self.store, me: Caller::new("ada") }
    }
}

/// `add`, `fail`, `panic`, `hang`, and one that takes its time, by the clock.
pub(crate) fn tools() -> Toolbox {
    let add = function("add", "Adds.", |_, n: Numbers| async move { Ok((n.a + n.b).to_string()) });
    let fail = function("fail", "Fails.", |_, _: Anything| async { Err(ToolError::new("no luck")) });
    let panic = function("panic", "Panics.", |_, _: Anything| async { panic!("as told") });
    let hang = function("hang", "Hangs.", |_, _: Anything| async { std::future::pending().await });
    let long = function("long", "Says much.", |_, _: Anything| async { Ok("ä".repeat(40_000)) });
    let all = Toolbox::new().with(add).and_then(|all| all.with(fail)).and_then(|all| all.with(panic));
    all.and_then(|all| all.with(hang)).and_then(|all| all.with(long)).expect("tools")
}

/// A tool that stands at a gate, and then says its name.
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
        soon(self.kernel.run_create(&self.me, request)).await.expect("accepted").run
    }

    pub(crate) async fn prompt(&self, text: &str) -> Run {
        self.send(RunRequest::text("s", text)).await
    }

    /// Sends a prompt and waits for the end of its run.
    pub(crate) async fn play(&self, text: &str) -> Run {
        let run = self.prompt(text).await;
        self.ended(run.id).await
    }

    /// The same, for a session that follows `agent`.
    pub(crate) async fn play_as(&self, agent: &str, text: &str) -> Run {
        let new = NewSession { agent_definition: Some(agent.into()), ..NewSession::default() };
        let session = SessionTarget { key: Some(agent.replace('@', "-")), new, ..SessionTarget::default() };
        let prompt = vec![Block::text(text)];
        let run = self.send(RunRequest { session, prompt, ..RunRequest::default() }).await;
        self.reaches(run.id, rests).await
    }

    pub(crate) async fn get(&self, run: RunId) -> Run {
        self.kernel.run_get(&self.me, run).await.expect("a run")
    }

    pub(crate) async fn ended(&self, run: RunId) -> Run {
        self.reaches(run, RunStatus::is_ended).await
    }

    /// Waits until the run has ended or waits for a person.
    pub(crate) async fn rested(&self, run: RunId) -> Run {
        self.reaches(run, rests).await
    }

    pub(crate) async fn reaches(&self, run: RunId, is: impl Fn(RunStatus) -> bool) -> Run {
        let session = SessionRef::Id(self.get(run).await.session);
        let reach = async {
            let mut events = self.kernel.session_subscribe(&self.me, &session, None).await.expect("a feed");
            loop {
                let now = self.get(run).await;
                if is(now.state.status()) {
                    return now;
                }
                events.next().await.expect("the session goes on").expect("an event");
            }
        };
        soon(reach).await
    }

    /// Waits until an event of this type has happened `count` times in the run.
    pub(crate) async fn happens(&self, run: RunId, kind: &str, count: usize) {
        let session = SessionRef::Id(self.get(run).await.session);
        let happen = async {
            let mut events = self.kernel.session_subscribe(&self.me, &session, None).await.expect("a feed");
            while self.kinds(run).await.iter().filter(|known| **known == kind).count() < count {
                events.next().await.expect("the session goes on").expect("an event");
            }
        };
        soon(happen).await;
    }

    pub(crate) async fn answer(&self, run: RunId, answer: Answer) {
        let wait = self.get(run).await.state.wait().expect("it waits").id;
        soon(self.kernel.run_answer(&self.me, run, wait, answer)).await.expect("answered");
    }

    pub(crate) async fn allow(&self, run: RunId) {
        self.answer(run, Answer::Approval { decision: Approval::Allowed }).await;
    }

    pub(crate) async fn deny(&self, run: RunId) {
        self.answer(run, Answer::Approval { decision: Approval::Denied }).await;
    }

    pub(crate) async fn events(&self, run: RunId) -> Vec<Event> {
        self.kernel.run_events(&self.me, run, Cursor::START, None).await.expect("events")
    }

    pub(crate) async fn kinds(&self, run: RunId) -> Vec<&'static str> {
        self.events(run).await.iter().map(|event| event.body.kind()).collect()
    }

    pub(crate) async fn bodies(&self, run: RunId) -> Vec<Body> {
        self.events(run).await.into_iter().map(|event| event.body).collect()
    }

    pub(crate) async fn steps(&self, run: RunId) -> Vec<Step> {
        self.kernel.run_steps(&self.me, run).await.expect("steps")
    }

    /// The same, of the session's file, imported elsewhere.
    pub(crate) async fn steps_elsewhere(&self, run: &Run) -> Vec<Step> {
        let there = Setup::protocol(Protocol::Anthropic).start().await;
        let mut export =
            self.kernel.session_export(&self.me, &SessionRef::Id(run.session)).await.expect("a file");
        let mut import = there.kernel.session_import(&there.me).expect("an import");
        while let Some(lines) = export.next().await.expect("lines") {
            import.push(lines.as_bytes()).await.expect("taken in");
        }
        import.finish().await.expect("a session");
        there.steps(run.id).await
    }

    /// The messages that the run wrote, first to last.
    pub(crate) async fn messages(&self, run: RunId) -> Vec<Arc<Message>> {
        let bodies = self.bodies(run).await;
        bodies
            .into_iter()
            .filter_map(|body| match body {
                Body::MessageCompleted { message, .. } => Some(message),
                _ => None,
            })
            .collect()
    }

    /// The last message of the run, as text.
    pub(crate) async fn said(&self, run: RunId) -> String {
        self.messages(run).await.last().map(|message| message.text()).unwrap_or_default()
    }

    /// Every tool result of the run: text, and whether it went wrong.
    pub(crate) async fn results(&self, run: RunId) -> Vec<(String, bool)> {
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

    /// The body of the model's request `n`, from 0.
    pub(crate) fn asked(&self, n: usize) -> Value {
        self.server.requests().remove(n).body
    }
}

fn rests(status: RunStatus) -> bool {
    status.is_ended() || matches!(status, RunStatus::WaitingApproval | RunStatus::WaitingInput)
}
