//! Tools that the caller executes, called by a model.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use mainspring_agent::hooks::{Hooks, Occasion, ToolResult};
use mainspring_agent::provider::Call;
use mainspring_agent::tool::function;
use mainspring_core::{Answer, ClientResult, ClientTool, Run, RunOptions, RunStatus, WaitRequest};
use mainspring_kernel::kernel::{OnOrphan, RunRequest};
use mainspring_kernel::store::{ArtifactPage, Store};
use mainspring_model_server::{Gate, ModelServer, Protocol, Reply};
use mainspring_store::{MemoryStore, SqliteOptions, SqliteStore};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::world::{NOW, Setup, World, gated, live, soon, tools};

fn weather(name: &str) -> ClientTool {
    ClientTool {
        name: name.into(),
        description: "Says what the weather is.".into(),
        input_schema: json!({
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
        }),
    }
}

/// A prompt that declares tools.
fn declaring(tools: Vec<ClientTool>) -> RunRequest {
    let options = RunOptions { tools, ..RunOptions::default() };
    RunRequest { options, ..RunRequest::text("s", "what is the weather?") }
}

fn results(run: &Run, content: impl Fn(&str) -> Value) -> Vec<ClientResult> {
    let calls = &run.state.wait().unwrap().calls;
    let result = |call: &mainspring_core::ClientCall| ClientResult {
        tool_use_id: call.tool_use_id.clone(),
        content: content(call.input["city"].as_str().unwrap()),
        is_error: false,
    };
    calls.iter().map(result).collect()
}

/// Calls a tool of the caller's, one of the agent's, one of the caller's with arguments that do not fit, and another.
fn mixed() -> Reply {
    Reply::tool("weather", json!({"city": "Oslo"}))
        .and_tool("add", json!({"a": 1, "b": 2}))
        .and_tool("weather", json!({"town": "Rome"}))
        .and_tool("weather", json!({"city": "Bonn"}))
}

#[tokio::test]
async fn a_model_calls_what_the_caller_executes_in_every_protocol() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        world.server.enqueue(mixed()).enqueue(Reply::text("dry everywhere"));
        let run = world.send(declaring(vec![weather("weather")])).await;
        let waiting = world.rested(run.id).await;
        assert_eq!(waiting.state.status(), RunStatus::WaitingInput, "{protocol:?}: {:?}", waiting.state);
        let wait = waiting.state.wait().unwrap();
        assert_eq!(wait.request, WaitRequest::Tools, "{protocol:?}");
        let asked: Vec<_> = wait.calls.iter().map(|call| (call.name.as_str(), call.input.clone())).collect();
        let wanted = [("weather", json!({"city": "Oslo"})), ("weather", json!({"city": "Bonn"}))];
        assert_eq!(asked, wanted, "{protocol:?}: what does not fit is the model's to mend");
        assert!(world.asked(0).to_string().contains("Says what the weather is."), "{protocol:?}");
        let kinds = world.kinds(run.id).await;
        assert_eq!(
            kinds[kinds.len() - 4..],
            ["tool.started", "tool.completed", "tools.requested", "run.waiting_input"],
            "{protocol:?}: the agent's own tools run as usual"
        );
        let results = results(&waiting, |city| json!({"city": city, "rain": false}));
        for result in results.iter().rev() {
            world.answer(run.id, Answer::Tools { results: vec![result.clone()] }).await;
        }
        let run = world.ended(run.id).await;
        assert_eq!(
            (run.state.status(), run.attempts),
            (RunStatus::Succeeded, 1),
            "{protocol:?}: {:?}",
            run.state
        );
        let told = world.results(run.id).await;
        assert_eq!(told[0], (r#"{"city":"Oslo","rain":false}"#.to_owned(), false), "{protocol:?}");
        assert_eq!(told[1], ("3".to_owned(), false), "{protocol:?}");
        assert!(told[2].0.contains("do not fit the tool weather") && told[2].1, "{protocol:?}: {told:?}");
        assert_eq!(told[3], (r#"{"city":"Bonn","rain":false}"#.to_owned(), false), "{protocol:?}");
        let shown = world.asked(1).to_string();
        assert!(shown.find("Oslo").unwrap() < shown.rfind("Bonn").unwrap(), "{protocol:?}: {shown}");
        assert_eq!(world.messages(run.id).await.len(), 4, "{protocol:?}: all results are one message");
    }
}

/// Puts what tools said into brackets.
struct Brackets;

#[async_trait]
impl Hooks for Brackets {
    async fn on_tool_result(&self, _of: Occasion, _call: &Call, result: ToolResult) -> ToolResult {
        ToolResult { text: format!("<{}>", result.text), ..result }
    }
}

#[tokio::test]
async fn what_a_client_tool_says_goes_the_way_of_every_result() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup { artifacts: Some(folder.path().to_owned()), ..Setup::default() };
    let world = setup.hooks(Brackets).start().await;
    world.server.enqueue(mixed()).enqueue(Reply::text("ok"));
    let run = world.send(declaring(vec![weather("weather")])).await;
    let waiting = world.rested(run.id).await;
    let mut results = results(&waiting, |_| json!("x".repeat(100_000)));
    results[1] = ClientResult { content: json!("no luck"), is_error: true, ..results[1].clone() };
    world.answer(run.id, Answer::Tools { results }).await;
    let run = world.ended(run.id).await;
    let told = world.results(run.id).await;
    assert!(told[0].0.len() < 66_000 && told[0].0.contains("all 100002 are kept as the artifact art_"));
    assert_eq!(told[1], ("<3>".to_owned(), false), "a hook sees each result once");
    assert_eq!(told[3], ("<no luck>".to_owned(), true));
    let page = ArtifactPage { session: run.session, run: Some(run.id), before: None, limit: 9 };
    let kept = world.store.artifact_page(&page).await.unwrap();
    assert_eq!(kept[0].size_bytes, Some(100_002));
}

#[tokio::test]
async fn a_name_of_the_agents_own_and_a_schema_that_is_none_are_refused() {
    let world = Setup::default().start().await;
    let wrong = ClientTool { input_schema: json!({"type": "object", "required": 7}), ..weather("weather") };
    for (tool, code, part) in [
        (weather("add"), "tool_name_taken", "mainspring.generalist@1 has a tool of its own called \"add\""),
        (wrong, "invalid_tool", "weather"),
    ] {
        let run = world.send(declaring(vec![tool])).await;
        let error = world.ended(run.id).await.state.error().unwrap().clone();
        assert_eq!(error.code, code);
        assert!(error.message.contains(part), "{error:?}");
    }
    assert_eq!(world.server.counts().received, 0, "no model was asked");
    // The tools of a prompt are gone with the next.
    world.server.enqueue(Reply::text("hi"));
    world.play("hi").await;
    assert!(!world.asked(0).to_string().contains("Says what the weather is."));
}

#[tokio::test]
async fn a_client_tool_waits_across_a_restart_with_what_its_neighbours_said() {
    for protocol in Protocol::ALL {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let world = Setup { store: store.clone(), ..Setup::protocol(protocol) }.start().await;
        world.server.enqueue(mixed());
        let run = world.send(declaring(vec![weather("weather")])).await;
        let waiting = world.rested(run.id).await;
        let given = results(&waiting, |city| json!(city));
        world.answer(run.id, Answer::Tools { results: given[1..].to_vec() }).await;
        let World { kernel, server, .. } = world;
        kernel.shutdown().await;

        let world = Setup { store, seed: 2, ..Setup::protocol(protocol) }.start_on(server).await;
        world.server.enqueue(Reply::text("fine"));
        world.answer(run.id, Answer::Tools { results: given }).await;
        let run = world.ended(run.id).await;
        assert_eq!(
            (run.state.status(), run.attempts),
            (RunStatus::Succeeded, 1),
            "{protocol:?}: {:?}",
            run.state
        );
        let told: Vec<String> = world.results(run.id).await.into_iter().map(|(text, _)| text).collect();
        assert_eq!([&told[0], &told[1], &told[3]], ["Oslo", "3", "Bonn"], "{protocol:?}");
        let started = world.kinds(run.id).await.into_iter().filter(|kind| *kind == "tool.started");
        assert_eq!(started.count(), 1, "{protocol:?}: what has run does not run again");
    }
}

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

#[test]
fn after_a_crash_a_tool_that_had_answered_is_not_called_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("test.sqlite3");
    let open = || Arc::new(SqliteStore::open(&file, SqliteOptions::default(), NOW).unwrap());
    let (gate, count) = (Gate::default(), Arc::new(AtomicU32::new(0)));
    let counted = count.clone();
    let quick = function("quick", "Counts.", move |_, _: Nothing| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok("done".to_owned()) }
    });
    let all = tools().with(quick).unwrap().with(gated("slow", &gate)).unwrap();
    let run = live(async {
        let world = Setup { store: open(), tools: all.clone(), ..Setup::default() }.start().await;
        world.server.enqueue(Reply::tool("quick", json!({})).and_tool("slow", json!({})));
        let run = world.prompt("go").await;
        soon(gate.reached()).await;
        world.happens(run.id, "tool.completed", 1).await;
        run.id
    });
    live(async {
        let server = ModelServer::start().await.unwrap();
        server.enqueue(Reply::text("ok"));
        let setup =
            Setup { store: open(), tools: all, seed: 2, on_orphan: OnOrphan::Retry, ..Setup::default() };
        let world = setup.start_on(server).await;
        let run = world.ended(run).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
        let told = world.results(run.id).await;
        assert!(told[0].0.contains("a crash lost its answer") && told[0].1, "{told:?}");
        assert!(told[1].0.starts_with("outcome unknown"), "{told:?}");
    });
    assert_eq!(count.load(Ordering::SeqCst), 1, "never a silent repeat");
}

/// Dies when the model is to be told what the caller said: the answer was taken, and no message holds it yet.
struct Dying(Gate);

#[async_trait]
impl Hooks for Dying {
    async fn on_tool_result(&self, _of: Occasion, _call: &Call, result: ToolResult) -> ToolResult {
        self.0.pass().await;
        result
    }
}

#[test]
fn after_a_crash_what_the_caller_said_is_not_asked_for_again() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let gate = Gate::default();
    let run = live(async {
        let world =
            Setup { store: store.clone(), ..Setup::default() }.hooks(Dying(gate.clone())).start().await;
        world.server.enqueue(Reply::tool("weather", json!({"city": "Oslo"})));
        let run = world.send(declaring(vec![weather("weather")])).await;
        let waiting = world.rested(run.id).await;
        world.answer(run.id, Answer::Tools { results: results(&waiting, |city| json!(city)) }).await;
        soon(gate.reached()).await;
        run.id
    });
    live(async {
        let server = ModelServer::start().await.unwrap();
        server.enqueue(Reply::text("ok"));
        let setup = Setup { store: store.clone(), seed: 2, on_orphan: OnOrphan::Retry, ..Setup::default() };
        let world = setup.start_on(server).await;
        let run = world.rested(run).await;
        assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 2), "{:?}", run.state);
        assert_eq!(world.results(run.id).await, [("Oslo".to_owned(), false)]);
    });
}
