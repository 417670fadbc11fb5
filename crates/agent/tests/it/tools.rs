//! Tools: order, failures, decisions, people, crashes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use mainspring_agent::hooks::{Decision, Hooks, Occasion, ToolResult};
use mainspring_agent::provider::Call;
use mainspring_agent::tool::{Toolbox, function};
use mainspring_core::{Answer, Body, MessageStatus, Mode, Role, RunStatus, ToolOutcome, WaitRequest};
use mainspring_kernel::kernel::{OnOrphan, RunRequest};
use mainspring_kernel::store::Store;
use mainspring_model_server::{Gate, ModelServer, Protocol, Reply};
use mainspring_store::{MemoryStore, SqliteOptions, SqliteStore};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::world::{NOW, Setup, World, gated, live, soon, tools};

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

#[tokio::test]
async fn a_tool_turn_in_every_protocol() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        let run = world.play("say let me see; tool add {\"a\":1,\"b\":2}; say it is three").await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}: {:?}", run.state);
        assert_eq!(world.said(run.id).await, "it is three\n");
        assert_eq!(world.results(run.id).await, [("3".to_owned(), false)], "{protocol:?}");
        let kinds = world.kinds(run.id).await;
        let wanted = [
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
        assert_eq!(kinds[5..], wanted, "{protocol:?}");
        let (steps, messages) = (world.steps(run.id).await, world.messages(run.id).await);
        let shown: Vec<_> = messages.iter().map(|message| message.role).collect();
        assert_eq!(shown, [Role::User, Role::Assistant, Role::User, Role::Assistant]);
        // The step after the tools was shown their results.
        assert_eq!(steps[1].prompt.last, Some(messages[2].id), "{protocol:?}");
        assert_eq!(steps[0].tool_calls.len(), 1);
        assert_eq!(run.usage.output_tokens, 10);
    }
}

#[tokio::test]
async fn what_goes_wrong_is_told_to_the_model_and_harms_no_other_call() {
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
        let run = world.play("go").await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}");
        let results = world.results(run.id).await;
        let wanted = [
            ("do not fit the tool add", true),
            ("no tool \"nobody\"; there is add", true),
            ("no luck", true),
            ("it panicked", true),
            ("3", false),
        ];
        assert_eq!(results.len(), wanted.len(), "{protocol:?}");
        for ((text, is_error), (part, wrong)) in results.iter().zip(wanted) {
            assert!(text.contains(part) && *is_error == wrong, "{protocol:?}: {text}");
        }
        let asked = world.asked(1).to_string();
        assert!(asked.find("no luck").unwrap() < asked.find("it panicked").unwrap(), "{protocol:?}: {asked}");
    }
}

#[tokio::test]
async fn results_keep_the_order_of_the_calls_whoever_is_done_first() {
    for protocol in Protocol::ALL {
        let (first, second) = (Gate::default(), Gate::default());
        let all = tools().with(gated("first", &first)).unwrap().with(gated("second", &second)).unwrap();
        let world = Setup { tools: all, ..Setup::protocol(protocol) }.start().await;
        world
            .server
            .enqueue(Reply::tool("first", json!({})).and_tool("second", json!({})))
            .enqueue(Reply::text("ok"));
        let run = world.prompt("go").await;
        soon(first.reached()).await;
        soon(second.reached()).await;
        second.open();
        world.happens(run.id, "tool.completed", 1).await;
        assert_eq!(world.results(run.id).await, []);
        first.open();
        let run = world.ended(run.id).await;
        let texts: Vec<String> = world.results(run.id).await.into_iter().map(|(text, _)| text).collect();
        assert_eq!(texts, ["first is done", "second is done"]);
        let ended: Vec<_> =
            world.kinds(run.id).await.into_iter().filter(|kind| kind.starts_with("tool.")).collect();
        assert_eq!(ended, ["tool.started", "tool.started", "tool.completed", "tool.completed"]);
    }
}

#[tokio::test]
async fn a_tool_has_its_time_and_what_became_of_it_is_not_known_then() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        world.server.enqueue(Reply::tool("hang", json!({})).and_tool("add", json!({"a": 1, "b": 2})));
        world.server.enqueue(Reply::text("ok"));
        let run = world.prompt("go").await;
        world.happens(run.id, "tool.completed", 1).await;
        world.clock.advance(5_000);
        let run = world.ended(run.id).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded);
        assert!(world.results(run.id).await[0].0.contains("took longer than 5000 ms"));
        let unknown = |body: &Body| matches!(body, Body::ToolFailed { outcome: ToolOutcome::Unknown, .. });
        assert!(world.bodies(run.id).await.iter().any(unknown));
    }
}

#[tokio::test]
async fn to_cancel_a_run_stops_its_tools() {
    for protocol in Protocol::ALL {
        let gate = Gate::default();
        let world = Setup { tools: tools().with(gated("slow", &gate)).unwrap(), ..Setup::protocol(protocol) }
            .start()
            .await;
        let run = world.prompt("tool slow; tool add {\"a\":1,\"b\":2}; say ok").await;
        soon(gate.reached()).await;
        world.happens(run.id, "tool.completed", 1).await;
        soon(world.kernel.run_cancel(&world.me, run.id)).await.unwrap();
        let run = world.ended(run.id).await;
        assert_eq!(run.state.status(), RunStatus::Cancelled);
        assert_eq!(world.server.counts().received, 1);
        let messages = world.messages(run.id).await;
        assert_eq!(messages.last().unwrap().status, MessageStatus::Cancelled);
        // The next prompt is answered: every call has a result.
        let next = world.play("say hello").await;
        assert_eq!(next.state.status(), RunStatus::Succeeded);
        assert!(world.asked(1).to_string().contains("outcome unknown"));
    }
}

#[tokio::test]
async fn a_run_that_may_only_answer_has_no_tools() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        let run = world.send(RunRequest { mode: Mode::Ask, ..RunRequest::text("s", "say hi") }).await;
        world.ended(run.id).await;
        assert!(world.asked(0).get("tools").is_none());
    }
}

/// Decides by the name of the tool.
struct Deciding;

#[async_trait]
impl Hooks for Deciding {
    async fn on_tool_use(&self, _of: Occasion, call: &Call) -> Decision {
        let result = ToolResult { text: "given".into(), is_error: false };
        match call.input["a"].as_f64().unwrap_or_default() as i64 {
            1 => Decision::Reject { reason: "not today".into() },
            2 => Decision::Result { result },
            3 => Decision::Pause { question: "Three?".into(), request: WaitRequest::Approval },
            _ => Decision::Execute,
        }
    }

    async fn on_tool_result(&self, _of: Occasion, _call: &Call, result: ToolResult) -> ToolResult {
        ToolResult { text: format!("<{}>", result.text), ..result }
    }
}

fn adding(numbers: &[i64]) -> Reply {
    numbers.iter().fold(Reply::default(), |reply, n| reply.and_tool("add", json!({"a": n, "b": 0})))
}

#[tokio::test]
async fn calls_are_executed_refused_answered_for_or_paused_and_keep_their_order() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).hooks(Deciding).start().await;
        world.server.enqueue(adding(&[7, 1, 3, 2, 8])).enqueue(Reply::text("ok"));
        let run = world.prompt("go").await;
        let waiting = world.rested(run.id).await;
        assert_eq!(waiting.state.wait().unwrap().question, "Three?", "{protocol:?}");
        let kinds = world.kinds(run.id).await;
        assert!(!kinds.contains(&"tool.started"), "{protocol:?}: nothing runs before all is decided");
        world.allow(run.id).await;
        let run = world.ended(run.id).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}");
        let results = world.results(run.id).await;
        let wanted =
            [("<7>", false), ("<not today>", true), ("<3>", false), ("<given>", false), ("<8>", false)];
        assert_eq!(results, wanted.map(|(text, wrong)| (text.to_owned(), wrong)), "{protocol:?}");
        let told = world.asked(1).to_string();
        let at = |text: &str| told.find(text).unwrap_or_else(|| panic!("{protocol:?}: no {text} in {told}"));
        assert!(
            at("<7>") < at("<not today>") && at("<given>") < at("<8>"),
            "{protocol:?}: what the model is told"
        );
    }
}

#[tokio::test]
async fn when_all_calls_are_refused_nothing_runs_and_the_loop_goes_on() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).hooks(Deciding).start().await;
        world.server.enqueue(adding(&[1, 1])).enqueue(adding(&[3])).enqueue(Reply::text("ok"));
        let run = world.prompt("go").await;
        world.rested(run.id).await;
        world.deny(run.id).await;
        let run = world.ended(run.id).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}");
        assert!(!world.kinds(run.id).await.contains(&"tool.started"), "{protocol:?}: all were refused");
        let denied = ("<the person you work for said no>".to_owned(), true);
        assert_eq!(world.results(run.id).await[2], denied, "{protocol:?}");
        assert!(world.asked(2).to_string().contains("said no"), "{protocol:?}");
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
async fn a_definition_says_which_tools_and_who_must_allow_them() {
    let world = Setup::default().agent(CAREFUL).start().await;
    world.server.enqueue(
        Reply::tool("fail", json!({})).and_tool("hang", json!({})).and_tool("add", json!({"a": 1, "b": 2})),
    );
    world.server.enqueue(Reply::text("ok"));
    let run = world.play_as("careful@1", "go").await;
    assert_eq!(run.state.status(), RunStatus::WaitingApproval);
    assert_eq!(run.state.wait().unwrap().question, r#"May the agent call add with {"a":1,"b":2}?"#);
    world.allow(run.id).await;
    let run = world.ended(run.id).await;
    let results = world.results(run.id).await;
    assert_eq!(results[0], ("you may not call fail".to_owned(), true));
    assert!(results[1].0.starts_with("no tool \"hang\"; there is add, ask_person, fail"));
    assert_eq!(results[2], ("3".to_owned(), false));
    let asked = world.asked(0);
    assert_eq!(asked["system"], "You are ada's careful helper.");
    assert_eq!(asked["tools"].as_array().unwrap().len(), 3);
    assert_eq!(world.steps(run.id).await[0].agent, "careful@1");
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
        let run = world.prompt("paint").await;
        let waiting = world.rested(run.id).await;
        assert_eq!(waiting.state.status(), RunStatus::WaitingInput, "{protocol:?}");
        assert_eq!(waiting.state.wait().unwrap().question, "Which colour?");
        let World { kernel, server, .. } = world;
        kernel.shutdown().await;

        let setup = Setup { store, profile, seed: 2, ..Setup::protocol(protocol) };
        let world = setup.start_on(server).await;
        assert_eq!(world.rested(run.id).await.state.status(), RunStatus::WaitingInput, "{protocol:?}");
        world.server.enqueue(Reply::text("blue it is"));
        world.answer(run.id, Answer::Input { input: json!("blue") }).await;
        let run = world.ended(run.id).await;
        assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 1), "{protocol:?}");
        assert_eq!(world.results(run.id).await, [("blue".to_owned(), false)]);
        // What the provider demands back was kept meanwhile.
        let asked = world.asked(1).to_string();
        assert!(
            asked.contains(if protocol == Protocol::Chat { "\"hm\"" } else { "c2lnbmVk" }),
            "{protocol:?}: {asked}"
        );
    }
}

/// The ids of the calls, in the order they came.
type Ids = Arc<parking_lot::Mutex<Vec<String>>>;

/// `careless` may not be called twice, `safe` may; both count, and stand at a gate the first time.
fn counted(gate: &Gate) -> (Toolbox, Arc<[AtomicU32; 2]>, Ids) {
    let counts = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
    let ids = Ids::default();
    let make = |name: &'static str, at: usize| {
        let (gate, counts, ids) = (gate.clone(), counts.clone(), ids.clone());
        function(name, "Counts.", move |call, _: Nothing| {
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
fn after_a_crash_what_is_idempotent_runs_again_and_nothing_else_does() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("test.sqlite3");
    let gate = Gate::default();
    let (all, counts, ids) = counted(&gate);
    let run = live(async {
        let store = Arc::new(SqliteStore::open(&file, SqliteOptions::default(), NOW).unwrap());
        let world = Setup { store, tools: all.clone(), ..Setup::default() }.start().await;
        let calls =
            Reply::tool("careless", json!({})).and_tool("safe", json!({})).and_tool("nobody", json!({}));
        world.server.enqueue(calls);
        let run = world.prompt("go").await;
        soon(gate.reached()).await;
        // Both have begun once both are counted.
        while counts.iter().any(|count| count.load(Ordering::SeqCst) == 0) {
            tokio::task::yield_now().await;
        }
        run.id
    });
    let store = Arc::new(SqliteStore::open(&file, SqliteOptions::default(), NOW).unwrap());
    live(async {
        let server = ModelServer::start().await.unwrap();
        server.enqueue(Reply::text("ok"));
        let setup = Setup { store, tools: all, seed: 2, on_orphan: OnOrphan::Retry, ..Setup::default() };
        let world = setup.start_on(server).await;
        let run = world.ended(run).await;
        assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 2), "{:?}", run.state);
        let results = world.results(run.id).await;
        assert!(results[0].0.starts_with("outcome unknown") && results[0].1, "{results:?}");
        assert_eq!(results[1], ("safe did it".to_owned(), false));
        assert!(results[2].1);
        let unknown = |body: &Body| matches!(body, Body::ToolFailed { outcome: ToolOutcome::Unknown, name, .. } if name == "careless");
        assert_eq!(world.bodies(run.id).await.iter().filter(|body| unknown(body)).count(), 1);
        assert_eq!(
            world.messages(run.id).await.iter().filter(|message| message.role == Role::User).count(),
            2
        );
    });
    assert_eq!([counts[0].load(Ordering::SeqCst), counts[1].load(Ordering::SeqCst)], [1, 2]);
    // The same call has the same id.
    let ids = ids.lock();
    assert_eq!(ids.len(), 3);
    assert!(ids[..2].contains(&ids[2]));
}
