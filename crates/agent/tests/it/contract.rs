//! The contract of turns, in every protocol: order of events, usage, queued prompts, ends.

use std::sync::Arc;

use async_trait::async_trait;
use mainspring_agent::hooks::{AfterTurn, HookContext, Hooks};
use mainspring_core::{
    Approval, Body, Cost, Cursor, MessageStatus, Policy, Role, RunId, RunLimits, RunOptions, RunStatus,
    StopReason,
};
use mainspring_kernel::adapter::End;
use mainspring_kernel::kernel::{RunRequest, SessionPatch};
use mainspring_kernel::store::{SessionRef, Store};
use mainspring_model_server::{Fault, Gate, Protocol, Reply, Tokens};
use mainspring_reference_store::MemoryStore;
use parking_lot::Mutex;
use serde_json::json;

use crate::world::{Setup, World, gated, tools, within_timeout};

const CAREFUL: &str = "id = \"careful\"\napprove = [\"add\"]";

#[tokio::test]
async fn the_events_of_a_tool_turn_that_pauses_have_a_fixed_order() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).agent(CAREFUL).start().await;
        world.server.enqueue(Reply::tool("add", json!({"a": 1, "b": 2}))).enqueue(Reply::text("three"));
        let run = world.run_prompt_as("careful@1", "add").await;
        world.allow(run.id).await;
        let run = world.wait_ended(run.id).await;
        let kinds = world.event_kinds(run.id).await;
        let expected = [
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
        assert_eq!(kinds[5..], expected, "{protocol:?}");
        let allowed =
            |body: &Body| matches!(body, Body::ApprovalResolved { decision: Approval::Allowed, .. });
        assert!(world.event_bodies(run.id).await.iter().any(allowed), "{protocol:?}");
    }
}

/// Continues once, then stops.
struct ContinueOnce(Mutex<bool>);

#[async_trait]
impl Hooks for ContinueOnce {
    async fn on_turn(&self, _context: HookContext, _text: &str) -> AfterTurn {
        match std::mem::replace(&mut *self.0.lock(), true) {
            false => AfterTurn::Continue("go on".into()),
            true => AfterTurn::Stop,
        }
    }
}

fn tokens(input: u64) -> Tokens {
    Tokens { input, output: 1, ..Tokens::default() }
}

/// Returns the input tokens of each assistant message of the run.
async fn input_tokens(world: &World, run: RunId) -> Vec<Option<u64>> {
    let messages = world.messages(run).await;
    let answers = messages.iter().filter(|message| message.role == Role::Assistant);
    answers.map(|message| message.usage.map(|usage| usage.input_tokens)).collect()
}

#[tokio::test]
async fn the_last_answer_of_each_turn_has_the_usage_of_the_turn() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).hooks(ContinueOnce(Mutex::new(false))).start().await;
        let add = || Reply::tool("add", json!({"a": 1, "b": 2}));
        world.server.enqueue(add().with_tokens(tokens(10))).enqueue(add().with_tokens(tokens(20)));
        world.server.enqueue(Reply::text("three").with_tokens(tokens(40)));
        world
            .server
            .enqueue(add().with_tokens(tokens(100)))
            .enqueue(Reply::text("six").with_tokens(tokens(200)));
        let run = world.run_prompt("add").await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}: {:?}", run.state);
        assert_eq!(
            input_tokens(&world, run.id).await,
            [None, None, Some(70), None, Some(300)],
            "{protocol:?}"
        );
        assert_eq!((run.usage.input_tokens, run.usage.output_tokens), (370, 5), "{protocol:?}");
        let steps: Vec<u64> =
            world.steps(run.id).await.iter().map(|step| step.usage.unwrap().input_tokens).collect();
        assert_eq!(steps, [10, 20, 40, 100, 200], "{protocol:?}: each step has its own usage");
    }
}

#[tokio::test]
async fn usage_of_a_turn_that_waits_or_fails_is_not_lost() {
    for protocol in Protocol::ALL {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let world = Setup { store: store.clone(), ..Setup::protocol(protocol) }.start().await;
        world.server.enqueue(Reply::tool("add", json!({"a": 1, "b": 2})).with_tokens(tokens(10)));
        world.server.enqueue(Reply::tool("ask_person", json!({"question": "Well?"})).with_tokens(tokens(20)));
        let run = world.send_prompt("ask").await;
        world.wait_paused(run.id).await;
        let World { kernel, server, .. } = world;
        kernel.shutdown().await;

        let world = Setup { store, seed: 2, ..Setup::protocol(protocol) }.start_on(server).await;
        world.server.enqueue(Reply::text("well").with_tokens(tokens(40)));
        world.answer(run.id, mainspring_core::Answer::Input { input: json!("well") }).await;
        let run = world.wait_ended(run.id).await;
        assert_eq!(input_tokens(&world, run.id).await, [None, None, Some(70)], "{protocol:?}");
        assert_eq!(run.usage.input_tokens, 70, "{protocol:?}");

        world.server.enqueue(Reply::tool("add", json!({"a": 1, "b": 2})).with_tokens(tokens(10)));
        world.server.enqueue(Reply::fail(Fault::Unauthorized));
        let failed = world.run_prompt("again").await;
        assert_eq!(failed.state.status(), RunStatus::Failed, "{protocol:?}");
        assert_eq!(
            input_tokens(&world, failed.id).await,
            [None, Some(10)],
            "{protocol:?}: the message that closes the turn has the usage"
        );
        let messages = world.messages(failed.id).await;
        assert_eq!(messages.last().unwrap().status, MessageStatus::Failed, "{protocol:?}");
    }
}

#[tokio::test]
async fn the_cost_of_a_model_without_a_price_is_unknown_not_zero() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        let unpriced = RunOptions { model: Some("unpriced".into()), ..RunOptions::default() };
        world.server.enqueue(Reply::text("hi")).enqueue(Reply::text("hi"));
        let run = world.send(RunRequest { options: unpriced, ..RunRequest::text("s", "hi") }).await;
        let run = world.wait_ended(run.id).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}: {:?}", run.state);
        assert!(run.usage.input_tokens > 0, "{protocol:?}");
        let json = serde_json::to_value(run.usage).unwrap();
        assert_eq!((run.usage.cost, &json["costUsd"]), (Cost::UNKNOWN, &json!(null)), "{protocol:?}");
        let message = world.messages(run.id).await.pop().unwrap();
        assert_eq!(message.usage.unwrap().cost, Cost::UNKNOWN, "{protocol:?}");
        assert_eq!(world.steps(run.id).await[0].usage.unwrap().cost, Cost::UNKNOWN, "{protocol:?}");
        let priced = world.run_prompt("hi").await;
        assert!(priced.usage.cost.usd().unwrap() > 0.0, "{protocol:?}");
    }
}

#[tokio::test]
async fn a_step_limit_ends_a_run_before_its_tools_and_the_session_continues() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        let limits = RunLimits { max_steps: Some(1), ..RunLimits::default() };
        let options = RunOptions { limits, ..RunOptions::default() };
        world.server.enqueue(Reply::tool("add", json!({"a": 1, "b": 2})));
        let run = world.send(RunRequest { options, ..RunRequest::text("s", "add") }).await;
        let run = world.wait_ended(run.id).await;
        assert_eq!(run.state.error().unwrap().code.as_str(), "limit_reached", "{protocol:?}");
        let steps = world.steps(run.id).await;
        assert_eq!((steps.len(), steps[0].stop_reason), (1, StopReason::ToolUse), "{protocol:?}");
        world.server.enqueue(Reply::text("three"));
        let next = world.run_prompt("and?").await;
        assert_eq!(next.state.status(), RunStatus::Succeeded, "{protocol:?}: {:?}", next.state);
        let request = world.request_body(1).to_string();
        assert!(request.contains("and?") && request.contains("not executed"), "{protocol:?}: {request}");
    }
}

#[tokio::test]
async fn prompts_queue_behind_a_run_and_the_last_replacing_prompt_runs() {
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
        let first = world.send_prompt("go").await;
        within_timeout(gate.reached()).await;
        let mut replacing = vec![];
        for text in ["one", "two", "three"] {
            let request = RunRequest { policy: Policy::Replace, ..RunRequest::text("s", text) };
            replacing.push(world.send(request).await);
        }
        gate.open();
        assert_eq!(world.wait_ended(first.id).await.state.status(), RunStatus::Succeeded, "{protocol:?}");
        let mut ended = vec![];
        for run in replacing {
            ended.push(world.wait_ended(run.id).await.state.status());
        }
        assert_eq!(ended, [RunStatus::Cancelled, RunStatus::Cancelled, RunStatus::Succeeded], "{protocol:?}");
        let request = world.request_body(2).to_string();
        assert!(request.contains("three") && !request.contains("\"two\""), "{protocol:?}: {request}");
    }
}

/// Records how executions end.
#[derive(Clone, Default)]
struct EndHook(Arc<Mutex<Vec<&'static str>>>);

#[async_trait]
impl Hooks for EndHook {
    async fn on_end(&self, _context: HookContext, end: &End) {
        self.0.lock().push(match end {
            End::Succeeded { .. } => "succeeded",
            End::Stopped { .. } => "stopped",
            End::Failed { .. } => "failed",
            End::Stale { .. } => "stale",
        });
    }
}

#[tokio::test]
async fn the_end_hook_is_called_for_each_end_but_not_for_a_pause() {
    for protocol in Protocol::ALL {
        let (ending, gate) = (EndHook::default(), Gate::default());
        let setup = Setup { tools: tools().with(gated("slow", &gate)).unwrap(), ..Setup::protocol(protocol) };
        let world = setup.hooks(ending.clone()).start().await;
        world
            .server
            .enqueue(Reply::tool("ask_person", json!({"question": "Well?"})))
            .enqueue(Reply::text("fine"));
        let run = world.send_prompt("ask").await;
        world.wait_paused(run.id).await;
        assert_eq!(*ending.0.lock(), [""; 0], "{protocol:?}");
        world.answer(run.id, mainspring_core::Answer::Input { input: json!("well") }).await;
        world.wait_ended(run.id).await;
        world.server.enqueue(Reply::fail(Fault::Invalid)).enqueue(Reply::tool("slow", json!({})));
        world.run_prompt("fail").await;
        let run = world.send_prompt("slow").await;
        within_timeout(gate.reached()).await;
        within_timeout(world.kernel.run_cancel(&world.me, run.id)).await.unwrap();
        world.wait_ended(run.id).await;
        assert_eq!(*ending.0.lock(), ["succeeded", "failed", "stopped"], "{protocol:?}");
    }
}

#[tokio::test]
async fn invalid_session_settings_are_named_and_change_nothing() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        world.server.enqueue(Reply::text("hi")).enqueue(Reply::text("hi"));
        let run = world.run_prompt("hi").await;
        let by = SessionRef::Id(run.session);
        let before = world.kernel.session_get(&world.me, &by).await.unwrap();
        let events_before = world.kernel.session_events(&world.me, &by, Cursor::START, None).await.unwrap();
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
        assert_eq!(after, events_before, "{protocol:?}: a rejected change emits no event");
        // Valid settings apply to later runs.
        let patch = SessionPatch {
            system_prompt: Some(Some("Be brief.".into())),
            model_options: Some(json!({"temperature": 0.5}).as_object().cloned()),
            ..SessionPatch::default()
        };
        world.kernel.session_patch(&world.me, &by, patch).await.unwrap();
        world.run_prompt("and now?").await;
        let request = world.request_body(1).to_string();
        assert!(request.contains("Be brief.") && request.contains("0.5"), "{protocol:?}: {request}");
    }
}
