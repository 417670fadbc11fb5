//! What embedders and callers rely on, each in one test: options, hooks, pauses, what a step saw, budgets.

use std::sync::Arc;

use async_trait::async_trait;
use mainspring_agent::Models;
use mainspring_agent::hooks::{Decision, Hooks, Next, Occasion, OnError};
use mainspring_agent::native::Plan;
use mainspring_agent::provider::{Call, ModelError};
use mainspring_core::{
    Block, Body, Budget, Cost, Failure, RunLimits, RunOptions, RunStatus, StopReason, WaitRequest,
};
use mainspring_kernel::kernel::RunRequest;
use mainspring_model_server::{Action, Fault, Gate, Protocol, Reply, Tokens};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::world::{NOW, Setup, gated, soon, tools};

fn with(options: RunOptions, text: &str) -> RunRequest {
    RunRequest { options, ..RunRequest::text("s", text) }
}

/// The temperature and the longest answer that a request asks for.
fn wishes(protocol: Protocol, body: &Value) -> (Value, Value) {
    match protocol {
        Protocol::Anthropic => (body["temperature"].clone(), body["max_tokens"].clone()),
        Protocol::Chat => (body["temperature"].clone(), body["max_tokens"].clone()),
        Protocol::Responses => (body["temperature"].clone(), body["max_output_tokens"].clone()),
        Protocol::Gemini => {
            let config = &body["generationConfig"];
            (config["temperature"].clone(), config["maxOutputTokens"].clone())
        }
    }
}

#[tokio::test]
async fn the_options_of_a_prompt_are_gone_with_the_next() {
    for protocol in Protocol::ALL {
        let world = Setup { profile: "temperature = 0.25\nmax_tokens = 300", ..Setup::protocol(protocol) }
            .start()
            .await;
        let options = RunOptions {
            system_prompt: Some("Speak like a pirate.".into()),
            model: Some("m-2".into()),
            model_options: json!({"temperature": 0.75, "maxTokens": 100}).as_object().cloned(),
            ..RunOptions::default()
        };
        world.server.enqueue(Reply::text("arr")).enqueue(Reply::text("hello"));
        let run = world.send(with(options, "hi")).await;
        assert_eq!(world.ended(run.id).await.state.status(), RunStatus::Succeeded, "{protocol:?}");
        world.play("hi again").await;
        let (first, second) = (world.asked(0), world.asked(1));
        assert_eq!(wishes(protocol, &first), (json!(0.75), json!(100)), "{protocol:?}: {first}");
        assert_eq!(wishes(protocol, &second), (json!(0.25), json!(300)), "{protocol:?}: {second}");
        assert!(
            first.to_string().contains("pirate") && !second.to_string().contains("pirate"),
            "{protocol:?}"
        );
        assert_eq!(world.steps(run.id).await[0].model, "m-2", "{protocol:?}");
        assert!(second.to_string().contains("arr"), "{protocol:?}: the conversation is the same");
    }
    let world = Setup::default().start().await;
    let model_options = json!({"temprature": 1}).as_object().cloned();
    let run = world.send(with(RunOptions { model_options, ..RunOptions::default() }, "hi")).await;
    let error = world.ended(run.id).await.state.error().unwrap().clone();
    assert_eq!(error.code, "invalid_model_options");
    assert!(error.message.contains("temprature") && error.message.contains("temperature"), "{error:?}");
    assert_eq!(world.server.counts().received, 0);
}

#[tokio::test]
async fn a_step_is_shown_the_results_that_came_before_it() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        world.server.enqueue(Reply::tool("add", json!({"a": 1, "b": 2})).and_tool("fail", json!({})));
        world.server.enqueue(Reply::text("three"));
        let run = world.play("add").await;
        let messages = world.messages(run.id).await;
        assert_eq!(messages.len(), 4, "{protocol:?}");
        let steps = world.steps(run.id).await;
        assert_eq!(steps[0].prompt.last, Some(messages[0].id), "{protocol:?}");
        assert_eq!(
            (steps[1].prompt.last, steps[1].prompt.messages),
            (Some(messages[2].id), 3),
            "{protocol:?}"
        );
        assert_eq!(steps[0].stop_reason, StopReason::ToolUse, "{protocol:?}");
        let asked: Vec<&str> = steps[0].tool_calls.iter().map(String::as_str).collect();
        let answered: Vec<&str> = messages[2]
            .content
            .iter()
            .filter_map(|block| match block {
                Block::ToolResult { tool_use_id, .. } => Some(tool_use_id.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(asked, answered, "{protocol:?}");
        assert_eq!(world.steps_elsewhere(&run).await, steps, "{protocol:?}: they are in the session's file");
        // What became of each call is told before the message that holds it all.
        let bodies = world.bodies(run.id).await;
        let results = bodies.iter().position(
            |body| matches!(body, Body::MessageCompleted { message, .. } if message.id == messages[2].id),
        );
        let told: Vec<usize> = bodies
            .iter()
            .enumerate()
            .filter_map(|(at, body)| {
                matches!(body, Body::ToolCompleted { .. } | Body::ToolFailed { .. }).then_some(at)
            })
            .collect();
        assert_eq!(told.len(), 2, "{protocol:?}");
        assert!(told.iter().all(|at| *at < results.unwrap()), "{protocol:?}");
    }
}

struct Twice(Mutex<u32>);

#[async_trait]
impl Hooks for Twice {
    async fn on_turn(&self, _of: Occasion, _text: &str) -> Next {
        let mut more = self.0.lock();
        *more = more.saturating_sub(1);
        if *more > 0 { Next::Continue("go on".into()) } else { Next::Stop }
    }
}

#[tokio::test]
async fn turns_of_one_run_have_their_own_messages_and_usage() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).hooks(Twice(Mutex::new(3))).start().await;
        for n in 1..=3 {
            let tokens = Tokens { input: n * 10, output: n, ..Tokens::default() };
            world.server.enqueue(Reply::text(&format!("part {n}")).with_tokens(tokens));
        }
        let run = world.play("tell").await;
        let steps = world.steps(run.id).await;
        let mut outputs: Vec<_> = steps.iter().map(|step| step.output.unwrap()).collect();
        outputs.dedup();
        assert_eq!(outputs.len(), 3, "{protocol:?}");
        let used: Vec<u64> = steps.iter().map(|step| step.usage.input_tokens).collect();
        assert_eq!((used, run.usage.input_tokens), (vec![10, 20, 30], 60), "{protocol:?}");
        let shown = world.asked(2).to_string();
        assert!(shown.contains("part 1") && shown.contains("part 2"), "{protocol:?}: history grows");
    }
}

/// Pauses the first call it sees, and notes each call.
#[derive(Clone, Default)]
struct First(Arc<Mutex<Vec<i64>>>);

#[async_trait]
impl Hooks for First {
    async fn on_tool_use(&self, _of: Occasion, call: &Call) -> Decision {
        let mut seen = self.0.lock();
        seen.push(call.input["a"].as_i64().unwrap_or_default());
        match seen.len() {
            1 => Decision::Pause { question: "The first?".into(), request: WaitRequest::Approval },
            _ => Decision::Execute,
        }
    }
}

#[tokio::test]
async fn the_calls_after_a_pause_are_decided_once_it_is_over() {
    for protocol in Protocol::ALL {
        let hooks = First::default();
        let world = Setup::protocol(protocol).hooks(hooks.clone()).start().await;
        let reply = Reply::tool("add", json!({"a": 1, "b": 0})).and_tool("add", json!({"a": 2, "b": 0}));
        world.server.enqueue(reply).enqueue(Reply::text("done"));
        let run = world.prompt("go").await;
        world.rested(run.id).await;
        assert_eq!(*hooks.0.lock(), [1], "{protocol:?}: nothing is decided behind a pause");
        world.allow(run.id).await;
        assert_eq!(world.ended(run.id).await.state.status(), RunStatus::Succeeded, "{protocol:?}");
        assert_eq!(*hooks.0.lock(), [1, 2], "{protocol:?}");
        let results = world.results(run.id).await;
        assert_eq!(results, [("1".to_owned(), false), ("2".to_owned(), false)], "{protocol:?}");
    }
}

#[tokio::test]
async fn a_paused_run_that_is_cancelled_is_over_and_the_session_goes_on() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).hooks(First::default()).start().await;
        world.server.enqueue(Reply::tool("add", json!({"a": 1, "b": 0})));
        let run = world.prompt("go").await;
        let waiting = world.rested(run.id).await;
        let wait = waiting.state.wait().unwrap().id;
        soon(world.kernel.run_cancel(&world.me, run.id)).await.unwrap();
        assert_eq!(world.ended(run.id).await.state.status(), RunStatus::Cancelled, "{protocol:?}");
        assert!(!world.kinds(run.id).await.contains(&"tool.started"), "{protocol:?}: it never ran");
        let yes = mainspring_core::Answer::Approval { decision: mainspring_core::Approval::Allowed };
        let late = soon(world.kernel.run_answer(&world.me, run.id, wait, yes)).await.unwrap_err();
        assert!(late.to_string().contains("cancelled"), "{protocol:?}: {late}");
        // The call that nobody answered is answered before the model sees it again.
        world.server.enqueue(Reply::text("fine"));
        let next = world.play("never mind").await;
        assert_eq!(next.state.status(), RunStatus::Succeeded, "{protocol:?}: {:?}", next.state);
        let shown = world.asked(1).to_string();
        assert!(shown.contains("never mind"), "{protocol:?}: {shown}");
    }
}

#[tokio::test]
async fn to_answer_a_run_that_works_names_its_status() {
    let gate = Gate::default();
    let world =
        Setup { tools: tools().with(gated("slow", &gate)).unwrap(), ..Setup::default() }.start().await;
    world.server.enqueue(Reply::tool("ask_person", json!({"question": "Well?"})));
    world.server.enqueue(Reply::tool("slow", json!({}))).enqueue(Reply::text("done"));
    let run = world.prompt("go").await;
    let wait = world.rested(run.id).await.state.wait().unwrap().id;
    let well = || mainspring_core::Answer::Input { input: json!("well") };
    soon(world.kernel.run_answer(&world.me, run.id, wait, well())).await.unwrap();
    soon(gate.reached()).await;
    let busy = soon(world.kernel.run_answer(&world.me, run.id, wait, well())).await.unwrap_err();
    assert!(busy.to_string().contains("running"), "{busy}");
    gate.open();
    world.ended(run.id).await;
    let idle = soon(world.kernel.run_answer(&world.me, run.id, wait, well())).await.unwrap_err();
    assert!(idle.to_string().contains("succeeded"), "{idle}");
}

/// Refuses prompts of one session, and gives the others another system prompt.
struct Starting;

#[async_trait]
impl Hooks for Starting {
    async fn on_start(&self, _of: Occasion, plan: &mut Plan) -> Result<(), Failure> {
        if plan.system.as_deref() == Some("forbidden") {
            return Err(Failure::new("not_here", "nobody works like that here"));
        }
        plan.system = Some("You are changed.".into());
        plan.tools = plan.tools.only(&["add".into()]);
        Ok(())
    }
}

#[tokio::test]
async fn a_hook_may_change_what_a_run_follows_or_refuse_it() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).hooks(Starting).start().await;
        let options = RunOptions { system_prompt: Some("forbidden".into()), ..RunOptions::default() };
        let run = world.send(with(options, "hi")).await;
        assert_eq!(world.ended(run.id).await.state.error().unwrap().code, "not_here", "{protocol:?}");
        assert_eq!(world.server.counts().received, 0, "{protocol:?}");
        world.server.enqueue(Reply::text("ok"));
        world.play("hi").await;
        let asked = world.asked(0).to_string();
        assert!(asked.contains("You are changed.") && !asked.contains("Hangs."), "{protocol:?}: {asked}");
    }
}

/// Swaps the model after a failure, or gives up what would be tried again.
struct Failing {
    models: Models,
    stop: bool,
    heard: Arc<Mutex<Vec<&'static str>>>,
}

#[async_trait]
impl Hooks for Failing {
    async fn on_error(&self, _of: Occasion, error: &ModelError, plan: &mut Plan) -> OnError {
        self.heard.lock().push(error.kind.code());
        if self.stop {
            return OnError::Stop;
        }
        plan.model.model = "m-backup".into();
        plan.model.profile = self.models.profiles().next().map(|(name, _)| name.to_owned());
        OnError::Retry
    }
}

#[tokio::test]
async fn a_hook_may_have_another_model_asked_or_nobody() {
    for protocol in Protocol::ALL {
        let heard = Arc::new(Mutex::new(vec![]));
        let hooks = |stop| Failing { models: Models::default(), stop, heard: heard.clone() };
        let world = Setup::protocol(protocol).hooks(hooks(false)).start().await;
        world.server.enqueue(Reply::fail(Fault::Invalid)).enqueue(Reply::text("from the backup"));
        let run = world.prompt("hi").await;
        world.happens(run.id, "progress.updated", 1).await;
        world.clock.advance(1_000);
        let run = world.ended(run.id).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}: {:?}", run.state);
        let models: Vec<_> = world.steps(run.id).await.into_iter().map(|step| step.model).collect();
        assert_eq!(models.last().map(String::as_str), Some("m-backup"), "{protocol:?}");

        let world = Setup::protocol(protocol).hooks(hooks(true)).start().await;
        world.server.enqueue(Reply::fail(Fault::Overloaded));
        let run = world.play("hi").await;
        assert_eq!(run.state.error().unwrap().code, "model_overloaded", "{protocol:?}");
        assert_eq!((run.attempts, world.server.counts().received), (1, 1), "{protocol:?}");
        assert_eq!(*heard.lock(), ["model_invalid_request", "model_overloaded"], "{protocol:?}");
    }
}

#[tokio::test]
async fn a_run_says_what_it_may_still_use() {
    for protocol in Protocol::ALL {
        let gate = Gate::default();
        let world = Setup { tools: tools().with(gated("slow", &gate)).unwrap(), ..Setup::protocol(protocol) }
            .start()
            .await;
        let tokens = Tokens { input: 100, output: 10, ..Tokens::default() };
        world
            .server
            .enqueue(Reply::tool("slow", json!({})).with_tokens(tokens))
            .enqueue(Reply::text("done").with_tokens(tokens));
        let limits = RunLimits {
            max_steps: Some(5),
            max_tokens: Some(1_000),
            max_cost: Some(Cost::from(0.001)),
            max_time: Some(60_000),
            ask: None,
        };
        let run = world.send(with(RunOptions { limits, ..RunOptions::default() }, "hi")).await;
        assert_eq!(run.budget, None, "{protocol:?}: no model was called yet");
        soon(gate.reached()).await;
        let working = world.get(run.id).await.budget.unwrap();
        let wanted = Budget {
            max_steps: Some(5),
            steps_left: Some(4),
            max_tokens: Some(1_000),
            tokens_left: Some(890),
            max_cost: Some(Cost::from(0.001)),
            cost_left: Some(Cost::from(0.001 - 0.0001 - 0.0001)),
            ends_at: Some(NOW.plus(60_000)),
        };
        assert_eq!(working, wanted, "{protocol:?}");
        gate.open();
        let left = world.ended(run.id).await.budget.unwrap();
        assert_eq!((left.steps_left, left.tokens_left), (Some(3), Some(780)), "{protocol:?}");
        let told = world.bodies(run.id).await.into_iter().rev().find_map(|body| match body {
            Body::StepCompleted { budget, .. } => budget,
            _ => None,
        });
        assert_eq!(told, Some(left), "{protocol:?}");
    }
}

#[tokio::test]
async fn what_was_granted_is_part_of_what_is_left() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        let limits = RunLimits { max_steps: Some(1), ask: Some(true), ..RunLimits::default() };
        let add = || Reply::tool("add", json!({"a": 1, "b": 1}));
        world.server.enqueue(add()).enqueue(Reply::text("done"));
        let run = world.send(with(RunOptions { limits, ..RunOptions::default() }, "hi")).await;
        let waiting = world.rested(run.id).await;
        assert_eq!(waiting.budget.unwrap().steps_left, Some(0));
        world.allow(run.id).await;
        let run = world.ended(run.id).await;
        assert_eq!((run.budget.unwrap().max_steps, run.budget.unwrap().steps_left), (Some(2), Some(0)));
    }
}

#[tokio::test]
async fn what_was_said_before_a_break_is_kept_when_the_run_is_cancelled_in_a_later_step() {
    for protocol in Protocol::ALL {
        let gate = Gate::default();
        let world = Setup::protocol(protocol).start().await;
        world.server.enqueue(Reply::tool("add", json!({"a": 1, "b": 2})));
        world.server.enqueue(Reply::text("half of it").and(Action::Hold(gate.clone())));
        let run = world.prompt("go").await;
        soon(gate.reached()).await;
        soon(world.kernel.run_cancel(&world.me, run.id)).await.unwrap();
        let run = world.ended(run.id).await;
        assert_eq!(run.state.status(), RunStatus::Cancelled);
        let messages = world.messages(run.id).await;
        assert_eq!(messages.len(), 4, "the prompt, the call, its result, and what was said");
        assert!(run.usage.input_tokens > 0, "what was used stays");
        let status = messages[3].status;
        assert_eq!(status, mainspring_core::MessageStatus::Cancelled);
        gate.open();
    }
}
