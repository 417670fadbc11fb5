//! Tools that the client executes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use mainspring_agent::hooks::{HookContext, Hooks, ToolResult};
use mainspring_agent::provider::ToolUse;
use mainspring_agent::tool::function;
use mainspring_core::message::text_of;
use mainspring_core::{Answer, Body, ClientResult, ClientTool, Run, RunOptions, RunStatus, WaitRequest};
use mainspring_kernel::kernel::{OnOrphan, RunRequest};
use mainspring_kernel::store::{ArtifactPage, Store};
use mainspring_model_server::{Gate, ModelServer, Protocol, Reply};
use mainspring_reference_store::MemoryStore;
use mainspring_store::{SqliteOptions, SqliteStore};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::world::{NOW, Setup, World, gated, run_until_crash, tools, within_timeout};

fn weather(name: &str) -> ClientTool {
    ClientTool {
        name: name.into(),
        description: "Tells the weather.".into(),
        input_schema: json!({
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
        }),
        ..ClientTool::default()
    }
}

/// Returns a prompt that declares `tools`.
fn declaring(tools: Vec<ClientTool>) -> RunRequest {
    let options = RunOptions { tools, ..RunOptions::default() };
    RunRequest { options, ..RunRequest::text("s", "what is the weather?") }
}

fn results(run: &Run, content: impl Fn(&str) -> Value) -> Vec<ClientResult> {
    let calls = &run.state.wait().unwrap().calls;
    let result = |call: &mainspring_core::ClientCall| ClientResult {
        tool_use_id: call.tool_use_id.clone(),
        content: content(call.input["city"].as_str().unwrap()),
        ..ClientResult::default()
    };
    calls.iter().map(result).collect()
}

/// Calls a client tool, an agent tool, a client tool with invalid arguments, and a client tool again.
fn mixed() -> Reply {
    Reply::tool("weather", json!({"city": "Oslo"}))
        .and_tool("add", json!({"a": 1, "b": 2}))
        .and_tool("weather", json!({"town": "Rome"}))
        .and_tool("weather", json!({"city": "Bonn"}))
}

#[tokio::test]
async fn a_model_calls_client_tools_in_every_protocol() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        world.server.enqueue(mixed()).enqueue(Reply::text("dry everywhere"));
        let run = world.send(declaring(vec![weather("weather")])).await;
        let waiting = world.wait_paused(run.id).await;
        assert_eq!(waiting.state.status(), RunStatus::WaitingInput, "{protocol:?}: {:?}", waiting.state);
        let wait = waiting.state.wait().unwrap();
        assert_eq!(wait.request, WaitRequest::Tools, "{protocol:?}");
        let requested: Vec<_> =
            wait.calls.iter().map(|call| (call.name.as_str(), call.input.clone())).collect();
        let expected = [("weather", json!({"city": "Oslo"})), ("weather", json!({"city": "Bonn"}))];
        assert_eq!(requested, expected, "{protocol:?}: invalid calls are returned to the model");
        assert!(world.request_body(0).to_string().contains("Tells the weather."), "{protocol:?}");
        let kinds = world.event_kinds(run.id).await;
        assert_eq!(
            kinds[kinds.len() - 5..],
            ["tool.started", "tool.failed", "tool.completed", "tools.requested", "run.waiting_input"],
            "{protocol:?}: the agent's own tools have run, and the invalid call has ended"
        );
        let given = results(&waiting, |city| json!({"city": city, "rain": false}));
        for result in given.iter().rev() {
            world.answer(run.id, Answer::Tools { results: vec![result.clone()] }).await;
        }
        let run = world.wait_ended(run.id).await;
        assert_eq!(
            (run.state.status(), run.attempts),
            (RunStatus::Succeeded, 1),
            "{protocol:?}: {:?}",
            run.state
        );
        let results = world.tool_results(run.id).await;
        assert_eq!(results[0], (r#"{"city":"Oslo","rain":false}"#.to_owned(), false), "{protocol:?}");
        assert_eq!(results[1], ("3".to_owned(), false), "{protocol:?}");
        assert!(
            results[2].0.contains("do not match the schema of the tool weather") && results[2].1,
            "{protocol:?}: {results:?}"
        );
        assert_eq!(results[3], (r#"{"city":"Bonn","rain":false}"#.to_owned(), false), "{protocol:?}");
        let request = world.request_body(1).to_string();
        assert!(request.find("Oslo").unwrap() < request.rfind("Bonn").unwrap(), "{protocol:?}: {request}");
        assert_eq!(world.messages(run.id).await.len(), 4, "{protocol:?}: all results are one message");
    }
}

/// Puts tool results in angle brackets.
struct Brackets;

#[async_trait]
impl Hooks for Brackets {
    async fn on_tool_result(&self, _context: HookContext, _call: &ToolUse, result: ToolResult) -> ToolResult {
        ToolResult { text: format!("<{}>", result.text), ..result }
    }
}

#[tokio::test]
async fn client_results_pass_hooks_and_size_limits_like_other_results() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup { artifacts: Some(folder.path().to_owned()), ..Setup::default() };
    let world = setup.hooks(Brackets).start().await;
    world.server.enqueue(mixed()).enqueue(Reply::text("ok"));
    let run = world.send(declaring(vec![weather("weather")])).await;
    let waiting = world.wait_paused(run.id).await;
    let mut results = results(&waiting, |_| json!("x".repeat(100_000)));
    results[1] = ClientResult { content: json!("no luck"), is_error: true, ..results[1].clone() };
    world.answer(run.id, Answer::Tools { results }).await;
    let run = world.wait_ended(run.id).await;
    let results = world.tool_results(run.id).await;
    assert!(
        results[0].0.len() < 66_000 && results[0].0.contains("all 100002 are stored as the artifact art_")
    );
    assert_eq!(results[1], ("<3>".to_owned(), false), "a hook sees each result once");
    assert_eq!(results[3], ("<no luck>".to_owned(), true));
    let page = ArtifactPage { session: run.session, run: Some(run.id), before: None, limit: 9 };
    let stored = world.store.artifact_page(&page).await.unwrap().items;
    assert_eq!(stored[0].size_bytes, Some(100_002));
}

#[tokio::test]
async fn a_client_tool_with_a_taken_name_or_an_invalid_schema_is_rejected() {
    let world = Setup::default().start().await;
    let invalid = ClientTool { input_schema: json!({"type": "object", "required": 7}), ..weather("weather") };
    for (tool, code, part) in [
        (weather("add"), "tool_name_taken", "mainspring.generalist@1 already has a tool named \"add\""),
        (invalid, "invalid_tool", "weather"),
    ] {
        let run = world.send(declaring(vec![tool])).await;
        let error = world.wait_ended(run.id).await.state.error().unwrap().clone();
        assert_eq!(error.code.as_str(), code);
        assert!(error.message.contains(part), "{error:?}");
    }
    assert_eq!(world.server.counts().received, 0, "no model was called");
    // The tools of a prompt do not apply to the next.
    world.server.enqueue(Reply::text("hi"));
    world.run_prompt("hi").await;
    assert!(!world.request_body(0).to_string().contains("Tells the weather."));
}

#[tokio::test]
async fn a_client_tool_waits_across_a_restart_with_the_other_results() {
    for protocol in Protocol::ALL {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let world = Setup { store: store.clone(), ..Setup::protocol(protocol) }.start().await;
        world.server.enqueue(mixed());
        let run = world.send(declaring(vec![weather("weather")])).await;
        let waiting = world.wait_paused(run.id).await;
        let given = results(&waiting, |city| json!(city));
        world.answer(run.id, Answer::Tools { results: given[1..].to_vec() }).await;
        let World { kernel, server, .. } = world;
        kernel.shutdown().await;

        let world = Setup { store, seed: 2, ..Setup::protocol(protocol) }.start_on(server).await;
        world.server.enqueue(Reply::text("fine"));
        world.answer(run.id, Answer::Tools { results: given }).await;
        let run = world.wait_ended(run.id).await;
        assert_eq!(
            (run.state.status(), run.attempts),
            (RunStatus::Succeeded, 1),
            "{protocol:?}: {:?}",
            run.state
        );
        let results: Vec<String> =
            world.tool_results(run.id).await.into_iter().map(|(text, _)| text).collect();
        assert_eq!([&results[0], &results[1], &results[3]], ["Oslo", "3", "Bonn"], "{protocol:?}");
        let started = world.event_kinds(run.id).await.into_iter().filter(|kind| *kind == "tool.started");
        assert_eq!(started.count(), 1, "{protocol:?}: the finished tool does not run again");
    }
}

#[derive(Deserialize, JsonSchema)]
struct EmptyInput {}

#[test]
fn after_a_crash_the_model_gets_the_result_of_a_finished_tool() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("test.sqlite3");
    let open = || Arc::new(SqliteStore::open(&file, SqliteOptions::default(), NOW).unwrap());
    let (gate, count) = (Gate::default(), Arc::new(AtomicU32::new(0)));
    let counted = count.clone();
    let quick = function("quick", "Counts.", move |_, _: EmptyInput| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok("done".to_owned()) }
    });
    let all = tools().with(quick).unwrap().with(gated("slow", &gate)).unwrap();
    let run = run_until_crash(async {
        let world = Setup { store: open(), tools: all.clone(), ..Setup::default() }.start().await;
        world.server.enqueue(Reply::tool("quick", json!({})).and_tool("slow", json!({})));
        let run = world.send_prompt("go").await;
        within_timeout(gate.reached()).await;
        world.wait_event(run.id, "tool.completed", 1).await;
        run.id
    });
    run_until_crash(async {
        let server = ModelServer::start().await.unwrap();
        server.enqueue(Reply::text("ok"));
        let setup =
            Setup { store: open(), tools: all, seed: 2, on_orphan: OnOrphan::Retry, ..Setup::default() };
        let world = setup.start_on(server).await;
        let run = world.wait_ended(run).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
        let results = world.tool_results(run.id).await;
        assert_eq!(results[0], ("done".to_owned(), false));
        assert!(results[1].0.starts_with("outcome unknown"), "{results:?}");
        assert!(world.request_body(0).to_string().contains("done"), "the model sees the result");
        let completed =
            |body: &Body| matches!(body, Body::ToolCompleted { end, .. } if text_of(&end.content) == "done");
        let bodies = world.event_bodies(run.id).await;
        assert_eq!(bodies.iter().filter(|body| completed(body)).count(), 1, "{bodies:?}");
    });
    assert_eq!(count.load(Ordering::SeqCst), 1, "the call was not repeated");
}

/// Blocks at a gate when the client's result was accepted but no message holds it yet.
struct BlockResults(Gate);

#[async_trait]
impl Hooks for BlockResults {
    async fn on_tool_result(&self, _context: HookContext, _call: &ToolUse, result: ToolResult) -> ToolResult {
        self.0.pass().await;
        result
    }
}

#[test]
fn after_a_crash_a_received_client_result_is_not_requested_again() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let gate = Gate::default();
    let run = run_until_crash(async {
        let world = Setup { store: store.clone(), ..Setup::default() }
            .hooks(BlockResults(gate.clone()))
            .start()
            .await;
        world.server.enqueue(Reply::tool("weather", json!({"city": "Oslo"})));
        let run = world.send(declaring(vec![weather("weather")])).await;
        let waiting = world.wait_paused(run.id).await;
        world.answer(run.id, Answer::Tools { results: results(&waiting, |city| json!(city)) }).await;
        within_timeout(gate.reached()).await;
        run.id
    });
    run_until_crash(async {
        let server = ModelServer::start().await.unwrap();
        server.enqueue(Reply::text("ok"));
        let setup = Setup { store: store.clone(), seed: 2, on_orphan: OnOrphan::Retry, ..Setup::default() };
        let world = setup.start_on(server).await;
        let run = world.wait_paused(run).await;
        assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 2), "{:?}", run.state);
        assert_eq!(world.tool_results(run.id).await, [("Oslo".to_owned(), false)]);
    });
}
