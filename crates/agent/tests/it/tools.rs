//! Tools: order, failures, decisions, questions to people, crashes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use mainspring_agent::hooks::{HookContext, Hooks, ToolDecision, ToolResult};
use mainspring_agent::provider::ToolUse;
use mainspring_agent::tool::{Toolbox, function};
use mainspring_core::{
    Answer, Approval, Body, Decider, KeyId, KeyLists, MessageStatus, Mode, Role, RunId, RunStatus,
    ToolOutcome, WaitRequest,
};
use mainspring_kernel::kernel::{Caller, OnOrphan, RunRequest};
use mainspring_kernel::store::Store;
use mainspring_model_server::{Gate, ModelServer, Protocol, Reply};
use mainspring_reference_store::MemoryStore;
use mainspring_store::{SqliteOptions, SqliteStore};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::world::{NOW, Setup, World, gated, run_until_crash, tools, within_timeout};

#[derive(Deserialize, JsonSchema)]
struct EmptyInput {}

#[tokio::test]
async fn a_tool_turn_in_every_protocol() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        let run = world.run_prompt("say let me see; tool add {\"a\":1,\"b\":2}; say it is three").await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}: {:?}", run.state);
        assert_eq!(world.answer_text(run.id).await, "it is three\n");
        assert_eq!(world.tool_results(run.id).await, [("3".to_owned(), false)], "{protocol:?}");
        let kinds = world.event_kinds(run.id).await;
        let expected = [
            "run.running",
            "message.completed",
            "usage.updated",
            "step.completed",
            "tool.started",
            "tool.completed",
            "message.completed",
            "message.completed",
            "usage.updated",
            "step.completed",
            "run.succeeded",
        ];
        assert_eq!(kinds[5..], expected, "{protocol:?}");
        let (steps, messages) = (world.steps(run.id).await, world.messages(run.id).await);
        let roles: Vec<_> = messages.iter().map(|message| message.role).collect();
        assert_eq!(roles, [Role::User, Role::Assistant, Role::User, Role::Assistant]);
        // The prompt of the second step ends with the tool results.
        assert_eq!(steps[1].prompt.last, Some(messages[2].id), "{protocol:?}");
        assert_eq!(steps[0].tool_calls.len(), 1);
        assert_eq!(run.usage.output_tokens, 10);
    }
}

#[tokio::test]
async fn a_failed_call_is_an_error_result_and_does_not_affect_others() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        world.server.enqueue(
            Reply::tool("add", json!({"a": "x"}))
                .and_tool("nobody", json!({}))
                .and_tool("fail", json!({}))
                .and_tool("panic", json!({}))
                .and_tool("add", json!({"a": 1, "b": 2})),
        );
        world.server.enqueue(Reply::text("well"));
        let run = world.run_prompt("go").await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}");
        let results = world.tool_results(run.id).await;
        let expected = [
            ("do not match the schema of the tool add", true),
            ("no tool \"nobody\"; the tools are add", true),
            ("no luck", true),
            ("panicked", true),
            ("3", false),
        ];
        assert_eq!(results.len(), expected.len(), "{protocol:?}");
        for ((text, is_error), (part, failed)) in results.iter().zip(expected) {
            assert!(text.contains(part) && *is_error == failed, "{protocol:?}: {text}");
        }
        let request = world.request_body(1).to_string();
        assert!(
            request.find("no luck").unwrap() < request.find("panicked").unwrap(),
            "{protocol:?}: {request}"
        );
    }
}

#[tokio::test]
async fn results_keep_the_order_of_the_calls() {
    for protocol in Protocol::ALL {
        let (first, second) = (Gate::default(), Gate::default());
        let all = tools().with(gated("first", &first)).unwrap().with(gated("second", &second)).unwrap();
        let world = Setup { tools: all, ..Setup::protocol(protocol) }.start().await;
        world
            .server
            .enqueue(Reply::tool("first", json!({})).and_tool("second", json!({})))
            .enqueue(Reply::text("ok"));
        let run = world.send_prompt("go").await;
        within_timeout(first.reached()).await;
        within_timeout(second.reached()).await;
        second.open();
        world.wait_event(run.id, "tool.completed", 1).await;
        assert_eq!(world.tool_results(run.id).await, []);
        first.open();
        let run = world.wait_ended(run.id).await;
        let texts: Vec<String> = world.tool_results(run.id).await.into_iter().map(|(text, _)| text).collect();
        assert_eq!(texts, ["first is done", "second is done"]);
        let ended: Vec<_> =
            world.event_kinds(run.id).await.into_iter().filter(|kind| kind.starts_with("tool.")).collect();
        assert_eq!(ended, ["tool.started", "tool.started", "tool.completed", "tool.completed"]);
    }
}

#[tokio::test]
async fn a_tool_that_times_out_has_an_unknown_outcome() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        world.server.enqueue(Reply::tool("hang", json!({})).and_tool("add", json!({"a": 1, "b": 2})));
        world.server.enqueue(Reply::text("ok"));
        let run = world.send_prompt("go").await;
        world.wait_event(run.id, "tool.completed", 1).await;
        world.clock.advance(5_000);
        let run = world.wait_ended(run.id).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded);
        assert!(world.tool_results(run.id).await[0].0.contains("took longer than 5000 ms"));
        let unknown = |body: &Body| matches!(body, Body::ToolFailed { outcome: ToolOutcome::Unknown, .. });
        assert!(world.event_bodies(run.id).await.iter().any(unknown));
    }
}

#[tokio::test]
async fn cancelling_a_run_stops_its_tools() {
    for protocol in Protocol::ALL {
        let gate = Gate::default();
        let world = Setup { tools: tools().with(gated("slow", &gate)).unwrap(), ..Setup::protocol(protocol) }
            .start()
            .await;
        let run = world.send_prompt("tool slow; tool add {\"a\":1,\"b\":2}; say ok").await;
        within_timeout(gate.reached()).await;
        world.wait_event(run.id, "tool.completed", 1).await;
        within_timeout(world.kernel.run_cancel(&world.me, run.id)).await.unwrap();
        let run = world.wait_ended(run.id).await;
        assert_eq!(run.state.status(), RunStatus::Cancelled);
        assert_eq!(world.server.counts().received, 1);
        let messages = world.messages(run.id).await;
        assert_eq!(messages.last().unwrap().status, MessageStatus::Cancelled);
        // The next prompt works: every call has a result, and the finished one its own.
        let results = world.tool_results(run.id).await;
        assert!(results[0].0.starts_with("outcome unknown"), "{results:?}");
        assert_eq!(results[1], ("3".to_owned(), false));
        let next = world.run_prompt("say hello").await;
        assert_eq!(next.state.status(), RunStatus::Succeeded);
        assert!(world.request_body(1).to_string().contains("outcome unknown"));
    }
}

#[tokio::test]
async fn a_run_in_ask_mode_has_no_tools() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        let run = world.send(RunRequest { mode: Mode::Ask, ..RunRequest::text("s", "say hi") }).await;
        world.wait_ended(run.id).await;
        assert!(world.request_body(0).get("tools").is_none());
    }
}

/// Decides by the argument `a`.
struct DecideByArgument;

#[async_trait]
impl Hooks for DecideByArgument {
    async fn on_tool_use(&self, _context: HookContext, call: &ToolUse) -> ToolDecision {
        let result = ToolResult { text: "given".into(), is_error: false };
        match call.input["a"].as_f64().unwrap_or_default() as i64 {
            1 => ToolDecision::Reject { reason: "not today".into() },
            2 => ToolDecision::Result { result },
            3 => ToolDecision::Pause { question: "Three?".into(), request: WaitRequest::Approval },
            _ => ToolDecision::Execute,
        }
    }

    async fn on_tool_result(&self, _context: HookContext, _call: &ToolUse, result: ToolResult) -> ToolResult {
        ToolResult { text: format!("<{}>", result.text), ..result }
    }
}

fn adding(numbers: &[i64]) -> Reply {
    numbers.iter().fold(Reply::default(), |reply, n| reply.and_tool("add", json!({"a": n, "b": 0})))
}

#[tokio::test]
async fn calls_are_executed_rejected_answered_or_paused_in_order() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).hooks(DecideByArgument).start().await;
        world.server.enqueue(adding(&[7, 1, 3, 2, 8])).enqueue(Reply::text("ok"));
        let run = world.send_prompt("go").await;
        let waiting = world.wait_paused(run.id).await;
        assert_eq!(waiting.state.wait().unwrap().question, "Three?", "{protocol:?}");
        let kinds = world.event_kinds(run.id).await;
        assert!(!kinds.contains(&"tool.started"), "{protocol:?}: nothing runs before all calls are decided");
        world.allow(run.id).await;
        let run = world.wait_ended(run.id).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}");
        let results = world.tool_results(run.id).await;
        let expected =
            [("<7>", false), ("<not today>", true), ("<3>", false), ("<given>", false), ("<8>", false)];
        assert_eq!(results, expected.map(|(text, failed)| (text.to_owned(), failed)), "{protocol:?}");
        let request = world.request_body(1).to_string();
        let at =
            |text: &str| request.find(text).unwrap_or_else(|| panic!("{protocol:?}: no {text} in {request}"));
        assert!(
            at("<7>") < at("<not today>") && at("<given>") < at("<8>"),
            "{protocol:?}: the request keeps the order"
        );
    }
}

#[tokio::test]
async fn when_all_calls_are_rejected_no_tool_runs_and_the_loop_continues() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).hooks(DecideByArgument).start().await;
        world.server.enqueue(adding(&[1, 1])).enqueue(adding(&[3])).enqueue(Reply::text("ok"));
        let run = world.send_prompt("go").await;
        world.wait_paused(run.id).await;
        world.deny(run.id).await;
        let run = world.wait_ended(run.id).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}");
        let kinds = world.event_kinds(run.id).await;
        assert!(!kinds.contains(&"tool.started"), "{protocol:?}: all were rejected");
        let rejected = |body: &Body| matches!(body, Body::ToolFailed { outcome: ToolOutcome::Rejected, .. });
        let bodies = world.event_bodies(run.id).await;
        assert_eq!(bodies.iter().filter(|body| rejected(body)).count(), 3, "{protocol:?}: {bodies:?}");
        let denied = ("<the person you work for said no>".to_owned(), true);
        assert_eq!(world.tool_results(run.id).await[2], denied, "{protocol:?}");
        assert!(world.request_body(2).to_string().contains("said no"), "{protocol:?}");
    }
}

const CAREFUL: &str = r#"
id = "careful"
system = "You are {{ session.owner }}'s careful helper."
tools = ["add", "fail", "ask_person"]
approve = ["ad*"]
deny = ["fail"]
"#;

#[tokio::test]
async fn a_definition_selects_tools_and_approvals() {
    let world = Setup::default().agent(CAREFUL).start().await;
    world.server.enqueue(
        Reply::tool("fail", json!({})).and_tool("hang", json!({})).and_tool("add", json!({"a": 1, "b": 2})),
    );
    world.server.enqueue(Reply::text("ok"));
    let run = world.run_prompt_as("careful@1", "go").await;
    assert_eq!(run.state.status(), RunStatus::WaitingApproval);
    assert_eq!(run.state.wait().unwrap().question, r#"May the agent call add with {"a":1,"b":2}?"#);
    world.allow(run.id).await;
    let run = world.wait_ended(run.id).await;
    let results = world.tool_results(run.id).await;
    assert_eq!(results[0], ("you may not call fail".to_owned(), true));
    assert!(results[1].0.starts_with("no tool \"hang\"; the tools are add, ask_person, fail"));
    assert_eq!(results[2], ("3".to_owned(), false));
    let request = world.request_body(0);
    assert_eq!(request["system"], "You are ada's careful helper.");
    assert_eq!(request["tools"].as_array().unwrap().len(), 3);
    assert_eq!(world.steps(run.id).await[0].agent, "careful@1");
    // Both decisions are recorded: the rule's with its grant, and the person's.
    let bodies = world.event_bodies(run.id).await;
    let resolved: Vec<_> = bodies
        .iter()
        .filter_map(|body| match body {
            Body::ApprovalResolved { decision, grant_id, decided_by, told, .. } => {
                Some((*decision, grant_id.is_some(), decided_by.as_deref().cloned(), told.as_deref()))
            }
            _ => None,
        })
        .collect();
    let rule = Decider::Rule { rule: "deny tool call fail".into() };
    let person = Decider::Person { owner_id: "ada".into() };
    assert_eq!(
        resolved,
        [
            (Approval::Denied, true, Some(rule), Some("error")),
            (Approval::Allowed, false, Some(person), Some("result"))
        ]
    );
}

#[tokio::test]
async fn an_approval_can_be_given_for_the_session_denied_with_a_reason_or_replaced_by_a_result() {
    let world = Setup::default().agent(CAREFUL).start().await;
    let answer = async |run: RunId, answer: Value| {
        let wait = world.wait_paused(run).await.state.wait().unwrap().clone();
        let call = wait.approval.as_ref().unwrap().call.as_ref().unwrap();
        assert_eq!((call.name.as_str(), &call.input), ("add", &json!({"a": 1, "b": 2})));
        let answer: Answer = serde_json::from_value(answer).unwrap();
        within_timeout(world.kernel.run_answer(&world.me, run, wait.id, answer)).await.unwrap();
        world.wait_ended(run).await;
        world.tool_results(run).await
    };
    let enqueue = || {
        world.server.enqueue(Reply::tool("add", json!({"a": 1, "b": 2}))).enqueue(Reply::text("ok"));
    };
    for (given, result, is_error) in [
        (
            json!({"kind": "approval", "decision": "denied", "reason": "not today"}),
            "the person you work for said no: not today",
            true,
        ),
        (
            json!({"kind": "approval", "decision": "supplied", "result": {"text": "42", "isError": false}}),
            "42",
            false,
        ),
        (json!({"kind": "approval", "decision": "allowed", "scope": "session"}), "3", false),
    ] {
        enqueue();
        let run = world.run_prompt_as("careful@1", "go").await;
        assert_eq!(answer(run.id, given).await, [(result.to_owned(), is_error)]);
    }
    // The same call is not asked for again.
    enqueue();
    let run = world.run_prompt_as("careful@1", "go").await;
    assert_eq!(run.state.status(), RunStatus::Succeeded);
    assert_eq!(world.tool_results(run.id).await, [("3".to_owned(), false)]);
}

#[tokio::test]
async fn a_person_is_asked_and_the_answer_survives_a_restart() {
    for protocol in Protocol::ALL {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let profile = "reasoning = \"low\"";
        let world = Setup { store: store.clone(), profile, ..Setup::protocol(protocol) }.start().await;
        let reply =
            Reply::think("hm", "c2lnbmVk").and_tool("ask_person", json!({"question": "Which colour?"}));
        world.server.enqueue(reply);
        let run = world.send_prompt("paint").await;
        let waiting = world.wait_paused(run.id).await;
        assert_eq!(waiting.state.status(), RunStatus::WaitingInput, "{protocol:?}");
        assert_eq!(waiting.state.wait().unwrap().question, "Which colour?");
        let World { kernel, server, .. } = world;
        kernel.shutdown().await;

        let setup = Setup { store, profile, seed: 2, ..Setup::protocol(protocol) };
        let world = setup.start_on(server).await;
        assert_eq!(world.wait_paused(run.id).await.state.status(), RunStatus::WaitingInput, "{protocol:?}");
        world.server.enqueue(Reply::text("blue it is"));
        world.answer(run.id, Answer::Input { input: json!("blue") }).await;
        let run = world.wait_ended(run.id).await;
        assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 1), "{protocol:?}");
        assert_eq!(world.tool_results(run.id).await, [("blue".to_owned(), false)]);
        // The provider's private data survived the restart.
        let request = world.request_body(1).to_string();
        assert!(
            request.contains(if protocol == Protocol::Chat { "\"hm\"" } else { "c2lnbmVk" }),
            "{protocol:?}: {request}"
        );
    }
}

/// The ids of the calls, in order.
type CallIds = Arc<parking_lot::Mutex<Vec<String>>>;

/// Creates the tools `careless`, which is not idempotent, and `safe`, which is. Both count their calls, and the first
/// call of each waits at the gate.
fn counting_tools(gate: &Gate) -> (Toolbox, Arc<[AtomicU32; 2]>, CallIds) {
    let counts = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
    let ids = CallIds::default();
    let make = |name: &'static str, at: usize| {
        let (gate, counts, ids) = (gate.clone(), counts.clone(), ids.clone());
        function(name, "Counts.", move |call, _: EmptyInput| {
            let (gate, counts, ids) = (gate.clone(), counts.clone(), ids.clone());
            async move {
                ids.lock().push(call.id);
                if counts[at].fetch_add(1, Ordering::SeqCst) == 0 {
                    gate.pass().await;
                }
                Ok(format!("{name} did it"))
            }
        })
    };
    let all = tools().with(make("careless", 0)).unwrap().with(make("safe", 1).idempotent()).unwrap();
    (all, counts, ids)
}

#[test]
fn after_a_crash_only_idempotent_calls_are_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("test.sqlite3");
    let gate = Gate::default();
    let (all, counts, ids) = counting_tools(&gate);
    let run = run_until_crash(async {
        let store = Arc::new(SqliteStore::open(&file, SqliteOptions::default(), NOW).unwrap());
        let world = Setup { store, tools: all.clone(), ..Setup::default() }.start().await;
        let calls =
            Reply::tool("careless", json!({})).and_tool("safe", json!({})).and_tool("nobody", json!({}));
        world.server.enqueue(calls);
        let run = world.send_prompt("go").await;
        within_timeout(gate.reached()).await;
        // Waits until both calls have begun.
        while counts.iter().any(|count| count.load(Ordering::SeqCst) == 0) {
            tokio::task::yield_now().await;
        }
        run.id
    });
    let store = Arc::new(SqliteStore::open(&file, SqliteOptions::default(), NOW).unwrap());
    run_until_crash(async {
        let server = ModelServer::start().await.unwrap();
        server.enqueue(Reply::text("ok"));
        let setup = Setup { store, tools: all, seed: 2, on_orphan: OnOrphan::Retry, ..Setup::default() };
        let world = setup.start_on(server).await;
        let run = world.wait_ended(run).await;
        assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 2), "{:?}", run.state);
        let results = world.tool_results(run.id).await;
        assert!(results[0].0.starts_with("outcome unknown") && results[0].1, "{results:?}");
        assert_eq!(results[1], ("safe did it".to_owned(), false));
        assert!(results[2].1);
        let unknown = |body: &Body| matches!(body, Body::ToolFailed { outcome: ToolOutcome::Unknown, name, .. } if name == "careless");
        assert_eq!(world.event_bodies(run.id).await.iter().filter(|body| unknown(body)).count(), 1);
        assert_eq!(
            world.messages(run.id).await.iter().filter(|message| message.role == Role::User).count(),
            2
        );
    });
    assert_eq!([counts[0].load(Ordering::SeqCst), counts[1].load(Ordering::SeqCst)], [1, 2]);
    // The repeated call has the same id.
    let ids = ids.lock();
    assert_eq!(ids.len(), 3);
    assert!(ids[..2].contains(&ids[2]));
}

#[tokio::test]
async fn a_key_that_lists_tools_gets_no_others() {
    let world = Setup::protocol(Protocol::ALL[0]).start().await;
    let reply = Reply::tool("add", json!({"a": 1, "b": 2})).and_tool("fail", json!({}));
    world.server.enqueue(reply);
    world.server.enqueue(Reply::text("well"));
    let lists = KeyLists {
        key_id: KeyId::from_random([1; 16]),
        adapters: None,
        models: None,
        tools: Some(vec!["add".into()]),
        spend_per_day: None,
    };
    let limited = Caller { lists: Some(Box::new(lists)), ..world.me.clone() };
    let run = world.kernel.run_create(&limited, RunRequest::text("s", "go")).await.unwrap().run;
    world.wait_ended(run.id).await;
    let results = world.tool_results(run.id).await;
    assert_eq!(results[0], ("3".to_owned(), false));
    assert!(results[1].1 && !results[1].0.contains("no luck"), "{results:?}");
    let request = world.request_body(0).to_string();
    assert!(request.contains("Adds.") && !request.contains("Fails."), "{request}");
}
