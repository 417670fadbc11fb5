//! The agent of a session: its description, the definition of a run, the context of hooks and their changes, and the
//! results of steps.

use std::sync::Arc;

use async_trait::async_trait;
use mainspring_agent::hooks::{AfterTurn, HookContext, Hooks, ToolDecision, ToolResult};
use mainspring_agent::provider::ToolUse;
use mainspring_api::{AgentChange, AgentSource, StepResult};
use mainspring_core::{
    Block, ClientTool, Expect, MessageStatus, Role, RunLimits, RunOptions, RunStatus, StateScope, StopReason,
};
use mainspring_kernel::kernel::{RunRequest, SessionPatch};
use mainspring_kernel::store::SessionRef;
use mainspring_model_server::{Fault, Protocol, Reply};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::world::{Setup, World, within_timeout};

const CODER: &str = "id = \"coder\"\nversion = 2\nmodel = \"acme/m-2\"\nsystem = \"You code for {{ session.owner }}.\"\n\
                     tools = [\"add\"]\n[limits]\nmax_steps = 7\n";
const CRITIC: &str = "id = \"critic\"\nsystem = \"You criticize.\"\n";

fn by_key(key: &str) -> SessionRef {
    SessionRef::Key(key.into())
}

async fn step(world: &World, run: mainspring_core::RunId, no: u32) -> StepResult {
    world.kernel.run_step(&world.me, run, no).await.unwrap()
}

#[tokio::test]
async fn the_agent_of_the_next_run_is_described_with_the_source_of_each_part() {
    let world = Setup { profile: "temperature = 0.25\n", ..Setup::default() }.agent(CODER).start().await;
    world.server.enqueue(Reply::text("hi"));
    let run = world.run_prompt("hi").await;
    let agent = world.kernel.session_agent(&world.me, &SessionRef::Id(run.session)).await.unwrap();
    let model = agent.model.clone().unwrap();
    assert_eq!((model.value.as_str(), model.from), ("acme/m-1", AgentSource::ModelProfile));
    assert_eq!(agent.model_options["temperature"].value, json!(0.25));
    assert_eq!((agent.system_prompt.clone(), agent.problems.clone()), (None, vec![]));
    let limit = &agent.limits["maxSteps"];
    assert_eq!((&limit.value, limit.from), (&json!(100), AgentSource::Server));
    let names = |agent: &mainspring_api::SessionAgent| {
        agent.tools.iter().map(|tool| tool.tool.name.clone()).collect::<Vec<_>>()
    };
    assert!(names(&agent).contains(&"fail".to_owned()), "{:?}", names(&agent));

    let patch = SessionPatch {
        agent_definition: Some("coder".into()),
        model_options: Some(json!({"temperature": 0.5}).as_object().cloned()),
        ..SessionPatch::default()
    };
    world.kernel.session_patch(&world.me, &by_key("s"), patch).await.unwrap();
    let rain = ClientTool {
        name: "rain".into(),
        description: "Says whether it rains.".into(),
        input_schema: json!({"type": "object"}),
        ..ClientTool::default()
    };
    world.kernel.session_tool_put(&world.me, &by_key("s"), rain).await.unwrap();
    let agent = world.kernel.session_agent(&world.me, &by_key("s")).await.unwrap();
    assert_eq!(agent.agent_definition.value, "coder@2");
    let model = agent.model.clone().unwrap();
    assert_eq!((model.value.as_str(), model.from), ("acme/m-2", AgentSource::AgentDefinition));
    let system = agent.system_prompt.clone().unwrap();
    assert_eq!(
        (system.value.as_str(), system.from),
        ("You code for {{ session.owner }}.", AgentSource::AgentDefinition)
    );
    assert_eq!(agent.model_options["temperature"].from, AgentSource::Session);
    assert_eq!(names(&agent), ["add", "rain"]);
    assert_eq!(agent.tools[1].from, AgentSource::Session);
    assert_eq!(agent.limits["maxSteps"].from, AgentSource::AgentDefinition);

    // The next run uses exactly that.
    world.server.enqueue(Reply::text("done"));
    let run = world.run_prompt("code").await;
    let made = step(&world, run.id, 1).await;
    assert_eq!((made.step.model.as_str(), made.step.agent.as_str()), ("m-2", "coder@2"));
    let input = made.input.unwrap();
    assert_eq!(input.system_prompt.as_deref(), Some("You code for ada."));
    let offered: Vec<_> = agent.tools.into_iter().map(|tool| tool.tool).collect();
    assert_eq!(input.tools, offered);
    assert_eq!(input.model_options["temperature"], json!(0.5));

    let gone = SessionPatch { model: Some(Some("acme/m-3".into())), ..SessionPatch::default() };
    world.kernel.session_patch(&world.me, &by_key("s"), gone).await.unwrap();
    let model = world.kernel.session_agent(&world.me, &by_key("s")).await.unwrap().model.unwrap();
    assert_eq!((model.value.as_str(), model.from), ("acme/m-3", AgentSource::Session));
}

#[tokio::test]
async fn a_run_follows_its_own_definition_and_its_messages_name_their_agent() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).agent(CODER).agent(CRITIC).start().await;
        world.server.enqueue(Reply::tool("add", json!({"a": 1, "b": 2}))).enqueue(Reply::text("three"));
        world.server.enqueue(Reply::text("meh")).enqueue(Reply::fail(Fault::Invalid));
        let as_agent = |name: &str, text: &str| {
            let options = RunOptions { agent_definition: Some(name.into()), ..RunOptions::default() };
            RunRequest { options, ..RunRequest::text("s", text) }
        };
        let first = world.send(as_agent("coder", "add")).await;
        world.wait_ended(first.id).await;
        let second = world.send(as_agent("critic@1", "well?")).await;
        world.wait_ended(second.id).await;
        let failed = world.send(as_agent("critic@1", "again")).await;
        assert_eq!(world.wait_ended(failed.id).await.state.status(), RunStatus::Failed, "{protocol:?}");
        let path = world.kernel.session_path(&world.me, &by_key("s"), None, None).await.unwrap();
        let agents: Vec<_> = path.iter().map(|message| message.agent.as_deref()).collect();
        let (coder, critic) = (Some("coder@2"), Some("critic@1"));
        assert_eq!(agents, [None, coder, None, coder, None, critic, None, critic], "{protocol:?}");
        assert_eq!(path[7].status, MessageStatus::Failed);
        let steps = world.steps(first.id).await;
        assert!(steps.iter().all(|step| step.agent == "coder@2"), "{protocol:?}");
        assert!(world.request_body(2).to_string().contains("You criticize."), "{protocol:?}");
    }
}

#[tokio::test]
async fn a_step_keeps_its_input_its_output_and_the_results_of_its_calls() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).agent(CODER).start().await;
        world.server.enqueue(Reply::tool("add", json!({"a": 1, "b": 2})).and_tool("fail", json!({})));
        world.server.enqueue(Reply::text("three"));
        let run = world.run_prompt_as("coder@2", "add").await;
        let messages = world.messages(run.id).await;
        let first = step(&world, run.id, 1).await;
        assert_eq!(first.output.as_ref().map(|output| output.id), Some(messages[1].id), "{protocol:?}");
        let calls: Vec<_> =
            first.answered_calls.iter().map(|call| (call.name.as_str(), call.is_error)).collect();
        // `fail` is not a tool of the agent.
        assert_eq!(calls, [("add", false), ("fail", true)], "{protocol:?}");
        assert_eq!(first.answered_calls[0].result, Some(vec![Block::text("3")]), "{protocol:?}");
        assert!(first.step.raw.is_object(), "{protocol:?}: {}", first.step.raw);
        let second = step(&world, run.id, 2).await;
        assert_eq!(second.step.prompt.last, Some(messages[2].id), "{protocol:?}");
        assert_eq!(second.input, first.input, "{protocol:?}");
        assert_eq!(second.step.input_hash, first.step.input_hash, "{protocol:?}: it is stored once");
        let sums = [first.checksum.clone().unwrap(), second.checksum.clone().unwrap()];
        assert!(sums[0] != sums[1] && sums.iter().all(|sum| sum.len() == 64), "{protocol:?}: {sums:?}");
        let unknown = world.kernel.run_step(&world.me, run.id, 3).await.unwrap_err();
        assert_eq!(unknown.code(), "not_found");

        // An import gives exactly the same.
        let other = Setup::protocol(protocol).start().await;
        let session = SessionRef::Id(run.session);
        let mut export = world.kernel.session_export(&world.me, &session).await.unwrap();
        let mut import = other.kernel.session_import(&other.me).unwrap();
        while let Some(lines) = export.next().await.unwrap() {
            import.push(lines.as_bytes()).await.unwrap();
        }
        import.finish().await.unwrap();
        for (no, original) in [(1, first), (2, second)] {
            assert_eq!(step(&other, run.id, no).await, original, "{protocol:?}");
        }
    }
}

#[tokio::test]
async fn a_step_limit_rejects_the_calls_of_the_last_step() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        let limits = RunLimits { max_steps: Some(2), ..RunLimits::default() };
        let add = || Reply::tool("add", json!({"a": 1, "b": 2}));
        world.server.enqueue(add()).enqueue(add().and_tool("hang", json!({})));
        let options = RunOptions { limits, ..RunOptions::default() };
        let run = world.send(RunRequest { options, ..RunRequest::text("s", "add") }).await;
        let run = world.wait_ended(run.id).await;
        assert_eq!(run.state.error().unwrap().code.as_str(), "limit_reached", "{protocol:?}");
        let steps = world.steps(run.id).await;
        assert_eq!(steps.last().unwrap().stop_reason, StopReason::ToolUse, "{protocol:?}");
        let results = world.tool_results(run.id).await;
        assert_eq!(results.len(), 3, "{protocol:?}: every call has a result");
        assert_eq!(results[0], ("3".to_owned(), false), "{protocol:?}");
        for (text, is_error) in &results[1..] {
            assert!(*is_error && text.starts_with("not executed"), "{protocol:?}: {text}");
        }
        let started = world.event_kinds(run.id).await.iter().filter(|kind| **kind == "tool.started").count();
        assert_eq!(started, 1, "{protocol:?}: the calls of the last step did not run");
        world.server.enqueue(Reply::text("on we go"));
        assert_eq!(world.run_prompt("and?").await.state.status(), RunStatus::Succeeded, "{protocol:?}");
    }
}

/// The private data of an embedder for a session.
#[derive(Default)]
struct Visits(Mutex<u32>);

/// Records the context of each hook, and changes state and plan.
#[derive(Clone, Default)]
struct Observer(Arc<Mutex<Vec<String>>>);

impl Observer {
    async fn note(&self, hook: &str, context: &HookContext) {
        let path = context.messages(100).await.unwrap();
        let last =
            path.last().map_or("none", |message| if message.role == Role::User { "user" } else { "agent" });
        let line = format!(
            "{hook} step {} messages {} last {last} {} {}",
            context.step,
            path.len(),
            context.status(),
            context.plan.as_ref().map_or("no plan", |plan| plan.model.model.as_str()),
        );
        self.0.lock().push(line);
    }
}

#[async_trait]
impl Hooks for Observer {
    async fn on_tool_use(&self, context: HookContext, _: &ToolUse) -> ToolDecision {
        self.note("tool_use", &context).await;
        assert_eq!((context.session().id, context.run().id), (context.session, context.run));
        let seen = context.state_get(StateScope::Session, "seen").await.unwrap();
        let count = seen.map_or(0, |entry| entry.value.as_u64().unwrap()) + 1;
        context.state_set(StateScope::Session, "seen", Some(json!(count)), Expect::Any).await.unwrap();
        // From the next model call on.
        context.change_plan(|plan| {
            plan.model.model = "m-9".into();
            plan.system = Some("Now be brief.".into());
        });
        *context.memory().get_or_insert_with(Visits::default).0.lock() += 1;
        ToolDecision::Execute
    }

    async fn on_tool_result(&self, context: HookContext, _: &ToolUse, result: ToolResult) -> ToolResult {
        self.note("tool_result", &context).await;
        result
    }

    async fn on_turn(&self, context: HookContext, _: &str) -> AfterTurn {
        self.note("turn", &context).await;
        let visits = context.memory().get::<Visits>().map_or(0, |visits| *visits.0.lock());
        self.0.lock().push(format!("visits {visits}"));
        AfterTurn::Stop
    }
}

#[tokio::test]
async fn hooks_see_the_session_the_step_and_the_messages_and_change_state_and_plan() {
    for protocol in Protocol::ALL {
        let observer = Observer::default();
        let world = Setup::protocol(protocol).hooks(observer.clone()).start().await;
        world.server.enqueue(Reply::tool("add", json!({"a": 1, "b": 2}))).enqueue(Reply::text("three"));
        let run = world.run_prompt("add").await;
        assert_eq!(
            *observer.0.lock(),
            [
                "tool_use step 1 messages 1 last user running m-1",
                "tool_result step 1 messages 2 last agent running m-1",
                "turn step 2 messages 3 last user running m-9",
                "visits 1",
            ],
            "{protocol:?}"
        );
        let models: Vec<_> = world.steps(run.id).await.into_iter().map(|step| step.model).collect();
        assert_eq!(models, ["m-1", "m-9"], "{protocol:?}");
        assert!(world.request_body(1).to_string().contains("Now be brief."), "{protocol:?}");
        let of = mainspring_kernel::kernel::StateOf::Session(by_key("s"), None);
        let seen = within_timeout(world.kernel.state_get(&world.me, &of, "seen")).await.unwrap();
        assert_eq!(seen.value, json!(1), "{protocol:?}");

        // The embedder's data outlives the run, and is gone once the session has left memory.
        world.server.enqueue(Reply::text("again"));
        world.run_prompt("again").await;
        assert_eq!(observer.0.lock().last().unwrap(), "visits 1", "{protocol:?}");
        world.kernel.session_close(&world.me, &by_key("s")).await.unwrap();
        world.server.enqueue(Reply::text("again"));
        world.run_prompt("again").await;
        assert_eq!(observer.0.lock().last().unwrap(), "visits 0", "{protocol:?}");
    }
}

#[tokio::test]
async fn a_digest_in_place_of_older_messages_is_named_by_the_step() {
    let world = Setup { profile: "context_tokens = 2000\n", ..Setup::default() }.start().await;
    for _ in 0..6 {
        world.server.enqueue(Reply::text(&"long ".repeat(300)));
        world.run_prompt("tell me more").await;
    }
    world.server.enqueue(Reply::text("short"));
    let run = world.run_prompt("and now?").await;
    let last = step(&world, run.id, 1).await.step;
    let path = world.kernel.session_path(&world.me, &by_key("s"), None, None).await.unwrap();
    let digest = last.prompt.digest.expect("older messages were replaced");
    let at = path.iter().position(|message| message.id == digest).unwrap();
    // The messages after the digest, without the answer.
    assert_eq!(usize::try_from(last.prompt.messages).unwrap(), path.len() - 1 - (at + 1));
}

#[tokio::test]
async fn an_unknown_model_or_option_is_named_and_changes_nothing() {
    let world = Setup::default().agent(CODER).start().await;
    world.server.enqueue(Reply::text("hi"));
    world.run_prompt("hi").await;
    let before = world.kernel.session_get(&world.me, &by_key("s")).await.unwrap();
    let change = |key: &str, value: Value| -> AgentChange {
        let mut change = json!({"systemPrompt": "Be brief.", "agentDefinition": "coder"});
        change[key] = value;
        serde_json::from_value(change).unwrap()
    };
    for (key, value, part) in [
        ("model", json!("nobody/m"), "\"nobody\""),
        ("modelProfile", json!("poet"), "\"poet\""),
        ("modelOptions", json!({"temprature": 1}), "temprature"),
        ("agentDefinition", json!("coder@9"), "\"coder@9\""),
    ] {
        let error = world
            .kernel
            .session_agent_set(&world.me, &by_key("s"), change(key, value), None)
            .await
            .unwrap_err();
        assert_eq!(error.code(), "invalid_request", "{key}: {error}");
        let text = error.to_string();
        assert!(text.contains(&format!("`{key}`")) && text.contains(part), "{text}");
    }
    assert_eq!(world.kernel.session_get(&world.me, &by_key("s")).await.unwrap(), before);
    let good = change("model", json!("acme/m-2"));
    let after = world.kernel.session_agent_set(&world.me, &by_key("s"), good, None).await.unwrap();
    assert_eq!((after.model.as_deref(), after.agent_definition.as_str()), (Some("acme/m-2"), "coder"));
}
