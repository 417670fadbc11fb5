//! What the contract says of turns, in every protocol: order, usage, staging, ends.

use std::sync::Arc;

use async_trait::async_trait;
use mainspring_agent::hooks::{Hooks, Next, Occasion};
use mainspring_core::{
    Approval, Body, Cost, Cursor, MessageStatus, Policy, Role, RunId, RunLimits, RunOptions, RunStatus,
    StopReason,
};
use mainspring_kernel::adapter::End;
use mainspring_kernel::kernel::{RunRequest, SessionPatch};
use mainspring_kernel::store::{SessionRef, Store};
use mainspring_model_server::{Fault, Gate, Protocol, Reply, Tokens};
use mainspring_store::MemoryStore;
use parking_lot::Mutex;
use serde_json::json;

use crate::world::{Setup, World, gated, soon, tools};

const CAREFUL: &str = "id = \"careful\"\napprove = [\"add\"]";

#[tokio::test]
async fn the_events_of_a_tool_turn_that_pauses_have_one_order() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).agent(CAREFUL).start().await;
        world.server.enqueue(Reply::tool("add", json!({"a": 1, "b": 2}))).enqueue(Reply::text("three"));
        let run = world.play_as("careful@1", "add").await;
        world.allow(run.id).await;
        let run = world.ended(run.id).await;
        let kinds = world.kinds(run.id).await;
        let wanted = [
            "run.running",
            "message.completed",
            "usage.updated",
            "step.completed",
            "approval.requested",
            "run.waiting_approval",
            "approval.resolved",
            "run.running",
            "tool.started",
            "tool.completed",
            "message.completed",
            "message.completed",
            "usage.updated",
            "step.completed",
            "run.succeeded",
        ];
        assert_eq!(kinds[5..], wanted, "{protocol:?}");
        let allowed =
            |body: &Body| matches!(body, Body::ApprovalResolved { decision: Approval::Allowed, .. });
        assert!(world.bodies(run.id).await.iter().any(allowed), "{protocol:?}");
    }
}

/// Goes on once, then stops.
struct Once(Mutex<bool>);

#[async_trait]
impl Hooks for Once {
    async fn on_turn(&self, _of: Occasion, _text: &str) -> Next {
        match std::mem::replace(&mut *self.0.lock(), true) {
            false => Next::Continue("go on".into()),
            true => Next::Stop,
        }
    }
}

fn tokens(input: u64) -> Tokens {
    Tokens { input, output: 1, ..Tokens::default() }
}

/// What each assistant message of the run says that was read.
async fn read(world: &World, run: RunId) -> Vec<Option<u64>> {
    let messages = world.messages(run).await;
    let answers = messages.iter().filter(|message| message.role == Role::Assistant);
    answers.map(|message| message.usage.map(|usage| usage.input_tokens)).collect()
}

#[tokio::test]
async fn usage_stands_on_the_last_answer_of_each_turn() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).hooks(Once(Mutex::new(false))).start().await;
        let add = || Reply::tool("add", json!({"a": 1, "b": 2}));
        world.server.enqueue(add().with_tokens(tokens(10))).enqueue(add().with_tokens(tokens(20)));
        world.server.enqueue(Reply::text("three").with_tokens(tokens(40)));
        world
            .server
            .enqueue(add().with_tokens(tokens(100)))
            .enqueue(Reply::text("six").with_tokens(tokens(200)));
        let run = world.play("add").await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}: {:?}", run.state);
        assert_eq!(read(&world, run.id).await, [None, None, Some(70), None, Some(300)], "{protocol:?}");
        assert_eq!((run.usage.input_tokens, run.usage.output_tokens), (370, 5), "{protocol:?}");
        let steps: Vec<u64> = world.steps(run.id).await.iter().map(|step| step.usage.input_tokens).collect();
        assert_eq!(steps, [10, 20, 40, 100, 200], "{protocol:?}: each step has its own");
    }
}

#[tokio::test]
async fn usage_of_a_turn_that_waits_or_fails_is_not_lost() {
    for protocol in Protocol::ALL {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let world = Setup { store: store.clone(), ..Setup::protocol(protocol) }.start().await;
        world.server.enqueue(Reply::tool("add", json!({"a": 1, "b": 2})).with_tokens(tokens(10)));
        world.server.enqueue(Reply::tool("ask_person", json!({"question": "Well?"})).with_tokens(tokens(20)));
        let run = world.prompt("ask").await;
        world.rested(run.id).await;
        let World { kernel, server, .. } = world;
        kernel.shutdown().await;

        let world = Setup { store, seed: 2, ..Setup::protocol(protocol) }.start_on(server).await;
        world.server.enqueue(Reply::text("well").with_tokens(tokens(40)));
        world.answer(run.id, mainspring_core::Answer::Input { input: json!("well") }).await;
        let run = world.ended(run.id).await;
        assert_eq!(read(&world, run.id).await, [None, None, Some(70)], "{protocol:?}");
        assert_eq!(run.usage.input_tokens, 70, "{protocol:?}");

        world.server.enqueue(Reply::tool("add", json!({"a": 1, "b": 2})).with_tokens(tokens(10)));
        world.server.enqueue(Reply::fail(Fault::Unauthorized));
        let failed = world.play("again").await;
        assert_eq!(failed.state.status(), RunStatus::Failed, "{protocol:?}");
        assert_eq!(
            read(&world, failed.id).await,
            [None, Some(10)],
            "{protocol:?}: with what closes the turn"
        );
        let messages = world.messages(failed.id).await;
        assert_eq!(messages.last().unwrap().status, MessageStatus::Failed, "{protocol:?}");
    }
}

#[tokio::test]
async fn what_a_model_without_a_price_costs_is_unknown_and_never_nothing() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        let unpriced = RunOptions { model: Some("unheard-of".into()), ..RunOptions::default() };
        world.server.enqueue(Reply::text("hi")).enqueue(Reply::text("hi"));
        let run = world.send(RunRequest { options: unpriced, ..RunRequest::text("s", "hi") }).await;
        let run = world.ended(run.id).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}: {:?}", run.state);
        assert!(run.usage.input_tokens > 0, "{protocol:?}");
        let shown = serde_json::to_value(run.usage).unwrap();
        assert_eq!((run.usage.cost, &shown["costUsd"]), (Cost::UNKNOWN, &json!(null)), "{protocol:?}");
        let message = world.messages(run.id).await.pop().unwrap();
        assert_eq!(message.usage.unwrap().cost, Cost::UNKNOWN, "{protocol:?}");
        assert_eq!(world.steps(run.id).await[0].usage.cost, Cost::UNKNOWN, "{protocol:?}");
        let priced = world.play("hi").await;
        assert!(priced.usage.cost.usd().unwrap() > 0.0, "{protocol:?}");
    }
}

#[tokio::test]
async fn a_limit_of_steps_stops_a_run_at_its_tools_and_the_session_goes_on() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        let limits = RunLimits { max_steps: Some(1), ..RunLimits::default() };
        let options = RunOptions { limits, ..RunOptions::default() };
        world.server.enqueue(Reply::tool("add", json!({"a": 1, "b": 2})));
        let run = world.send(RunRequest { options, ..RunRequest::text("s", "add") }).await;
        let run = world.ended(run.id).await;
        assert_eq!(run.state.error().unwrap().code, "limit_reached", "{protocol:?}");
        let steps = world.steps(run.id).await;
        assert_eq!((steps.len(), steps[0].stop_reason), (1, StopReason::ToolUse), "{protocol:?}");
        world.server.enqueue(Reply::text("three"));
        let next = world.play("and?").await;
        assert_eq!(next.state.status(), RunStatus::Succeeded, "{protocol:?}: {:?}", next.state);
        let shown = world.asked(1).to_string();
        assert!(shown.contains("and?") && shown.contains('3'), "{protocol:?}: {shown}");
    }
}

#[tokio::test]
async fn prompts_wait_while_a_run_works_and_the_last_that_replaces_wins() {
    for protocol in Protocol::ALL {
        let gate = Gate::default();
        let world = Setup { tools: tools().with(gated("slow", &gate)).unwrap(), ..Setup::protocol(protocol) }
            .start()
            .await;
        world
            .server
            .enqueue(Reply::tool("slow", json!({})))
            .enqueue(Reply::text("done"))
            .enqueue(Reply::text("third"));
        let first = world.prompt("go").await;
        soon(gate.reached()).await;
        let mut staged = vec![];
        for text in ["one", "two", "three"] {
            let request = RunRequest { policy: Policy::Replace, ..RunRequest::text("s", text) };
            staged.push(world.send(request).await);
        }
        gate.open();
        assert_eq!(world.ended(first.id).await.state.status(), RunStatus::Succeeded, "{protocol:?}");
        let mut ended = vec![];
        for run in staged {
            ended.push(world.ended(run.id).await.state.status());
        }
        assert_eq!(ended, [RunStatus::Cancelled, RunStatus::Cancelled, RunStatus::Succeeded], "{protocol:?}");
        let shown = world.asked(2).to_string();
        assert!(shown.contains("three") && !shown.contains("\"two\""), "{protocol:?}: {shown}");
    }
}

/// Notes how executions end.
#[derive(Clone, Default)]
struct Ending(Arc<Mutex<Vec<&'static str>>>);

#[async_trait]
impl Hooks for Ending {
    async fn on_end(&self, _of: Occasion, end: &End) {
        self.0.lock().push(match end {
            End::Succeeded { .. } => "succeeded",
            End::Stopped { .. } => "stopped",
            End::Failed { .. } => "failed",
            End::Stale { .. } => "stale",
        });
    }
}

#[tokio::test]
async fn a_hook_hears_how_each_run_ended_and_of_no_pause() {
    for protocol in Protocol::ALL {
        let (ending, gate) = (Ending::default(), Gate::default());
        let setup = Setup { tools: tools().with(gated("slow", &gate)).unwrap(), ..Setup::protocol(protocol) };
        let world = setup.hooks(ending.clone()).start().await;
        world
            .server
            .enqueue(Reply::tool("ask_person", json!({"question": "Well?"})))
            .enqueue(Reply::text("fine"));
        let run = world.prompt("ask").await;
        world.rested(run.id).await;
        assert_eq!(*ending.0.lock(), [""; 0], "{protocol:?}");
        world.answer(run.id, mainspring_core::Answer::Input { input: json!("well") }).await;
        world.ended(run.id).await;
        world.server.enqueue(Reply::fail(Fault::Invalid)).enqueue(Reply::tool("slow", json!({})));
        world.play("fail").await;
        let run = world.prompt("slow").await;
        soon(gate.reached()).await;
        soon(world.kernel.run_cancel(&world.me, run.id)).await.unwrap();
        world.ended(run.id).await;
        assert_eq!(*ending.0.lock(), ["succeeded", "failed", "stopped"], "{protocol:?}");
    }
}

#[tokio::test]
async fn settings_of_a_session_that_make_no_sense_change_nothing_and_are_named() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        world.server.enqueue(Reply::text("hi")).enqueue(Reply::text("hi"));
        let run = world.play("hi").await;
        let by = SessionRef::Id(run.session);
        let before = world.kernel.session_get(&world.me, &by).await.unwrap();
        let heard = world.kernel.session_events(&world.me, &by, Cursor::START, None).await.unwrap();
        let title = Some(Some("changed".to_owned()));
        for (patch, part) in [
            (
                SessionPatch { model_profile: Some(Some("poet".into())), ..SessionPatch::default() },
                "\"poet\"",
            ),
            (
                SessionPatch {
                    model_options: Some(json!({"temprature": 1}).as_object().cloned()),
                    ..SessionPatch::default()
                },
                "temprature",
            ),
        ] {
            let patch = SessionPatch { title: title.clone(), ..patch };
            let error = world.kernel.session_patch(&world.me, &by, patch).await.unwrap_err();
            assert_eq!(error.code(), "invalid_request", "{protocol:?}");
            assert!(error.to_string().contains(part), "{protocol:?}: {error}");
        }
        assert_eq!(world.kernel.session_get(&world.me, &by).await.unwrap(), before, "{protocol:?}");
        let after = world.kernel.session_events(&world.me, &by, Cursor::START, None).await.unwrap();
        assert_eq!(after, heard, "{protocol:?}: nothing is said of what did not happen");
        // What makes sense replaces what there was, for the runs that come.
        let patch = SessionPatch {
            system_prompt: Some(Some("Be brief.".into())),
            model_options: Some(json!({"temperature": 0.5}).as_object().cloned()),
            ..SessionPatch::default()
        };
        world.kernel.session_patch(&world.me, &by, patch).await.unwrap();
        world.play("and now?").await;
        let asked = world.asked(1).to_string();
        assert!(asked.contains("Be brief.") && asked.contains("0.5"), "{protocol:?}: {asked}");
    }
}
