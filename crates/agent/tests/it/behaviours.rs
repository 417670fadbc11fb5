//! Guarantees for embedders and callers: options, hooks, pauses, prompts of steps, budgets.

use std::sync::Arc;

use async_trait::async_trait;
use mainspring_agent::Models;
use mainspring_agent::hooks::{AfterError, AfterTurn, HookContext, Hooks, ToolDecision};
use mainspring_agent::native::Plan;
use mainspring_agent::provider::{ModelError, ToolUse};
use mainspring_core::{
    Block, Body, Budget, Cost, Failure, RunLimits, RunOptions, RunStatus, StopReason, WaitRequest,
};
use mainspring_kernel::kernel::RunRequest;
use mainspring_model_server::{Action, Fault, Gate, Protocol, Reply, Tokens};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::world::{NOW, Setup, World, gated, tools, within_timeout};

fn request_with(options: RunOptions, text: &str) -> RunRequest {
    RunRequest { options, ..RunRequest::text("s", text) }
}

/// Returns the temperature and the maximum answer length of a request.
fn options_of(protocol: Protocol, body: &Value) -> (Value, Value) {
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
async fn options_of_a_prompt_do_not_apply_to_the_next() {
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
        let run = world.send(request_with(options, "hi")).await;
        assert_eq!(world.wait_ended(run.id).await.state.status(), RunStatus::Succeeded, "{protocol:?}");
        world.run_prompt("hi again").await;
        let (first, second) = (world.request_body(0), world.request_body(1));
        assert_eq!(options_of(protocol, &first), (json!(0.75), json!(100)), "{protocol:?}: {first}");
        assert_eq!(options_of(protocol, &second), (json!(0.25), json!(300)), "{protocol:?}: {second}");
        assert!(
            first.to_string().contains("pirate") && !second.to_string().contains("pirate"),
            "{protocol:?}"
        );
        assert_eq!(world.steps(run.id).await[0].model, "m-2", "{protocol:?}");
        assert!(second.to_string().contains("arr"), "{protocol:?}: the conversation is the same");
    }
    let world = Setup::default().start().await;
    let model_options = json!({"temprature": 1}).as_object().cloned();
    let refused = refusal(&world, RunOptions { model_options, ..RunOptions::default() }).await;
    assert!(refused.contains("temprature") && refused.contains("temperature"), "{refused}");
    assert_eq!(world.server.counts().received, 0);
}

/// Sends a prompt with options that must be refused when they are sent. Returns the message.
async fn refusal(world: &World, options: RunOptions) -> String {
    let error = world.kernel.run_create(&world.me, request_with(options, "hi")).await.unwrap_err();
    assert_eq!(error.code(), "invalid_request", "{error}");
    error.to_string()
}

#[tokio::test]
async fn options_that_would_make_a_run_fail_are_refused() {
    let world = Setup::default().start().await;
    let schema = |schema| RunOptions { output_schema: Some(schema), ..RunOptions::default() };
    let refused = refusal(&world, schema(json!({"type": "nonsense"}))).await;
    assert!(refused.starts_with("outputSchema: "), "{refused}");
    let refused = refusal(&world, schema(json!({"$ref": "http://127.0.0.1:1/s.json"}))).await;
    assert!(refused.contains("nothing is fetched") && !refused.contains("feature"), "{refused}");
    for name in ["a b", "coder@", "coder@0", "@1", ""] {
        let mut request = request_with(RunOptions::default(), "hi");
        request.session.key = Some("named".into());
        request.session.new.agent_definition = Some(name.into());
        let error = world.kernel.run_create(&world.me, request).await.unwrap_err();
        assert_eq!(error.code(), "invalid_request", "{name:?}: {error}");
    }
    assert_eq!(world.server.counts().received, 0);
}

#[tokio::test]
async fn a_model_call_gets_the_tool_results_of_the_previous_one() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        world.server.enqueue(Reply::tool("add", json!({"a": 1, "b": 2})).and_tool("fail", json!({})));
        world.server.enqueue(Reply::text("three"));
        let run = world.run_prompt("add").await;
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
        let called: Vec<&str> = steps[0].tool_calls.iter().map(String::as_str).collect();
        let answered: Vec<&str> = messages[2]
            .content
            .iter()
            .filter_map(|block| match block {
                Block::ToolResult { tool_use_id, .. } => Some(tool_use_id.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(called, answered, "{protocol:?}");
        assert_eq!(world.steps_after_import(&run).await, steps, "{protocol:?}: exports contain the steps");
        // The outcome of each call is recorded before the message with all results.
        let bodies = world.event_bodies(run.id).await;
        let results = bodies.iter().position(
            |body| matches!(body, Body::MessageCompleted { message, .. } if message.id == messages[2].id),
        );
        let outcomes: Vec<usize> = bodies
            .iter()
            .enumerate()
            .filter_map(|(at, body)| {
                matches!(body, Body::ToolCompleted { .. } | Body::ToolFailed { .. }).then_some(at)
            })
            .collect();
        assert_eq!(outcomes.len(), 2, "{protocol:?}");
        assert!(outcomes.iter().all(|at| *at < results.unwrap()), "{protocol:?}");
    }
}

struct ContinueUntilZero(Mutex<u32>);

#[async_trait]
impl Hooks for ContinueUntilZero {
    async fn on_turn(&self, _context: HookContext, _text: &str) -> AfterTurn {
        let mut more = self.0.lock();
        *more = more.saturating_sub(1);
        if *more > 0 { AfterTurn::Continue("go on".into()) } else { AfterTurn::Stop }
    }
}

#[tokio::test]
async fn turns_of_one_run_have_their_own_messages_and_usage() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).hooks(ContinueUntilZero(Mutex::new(3))).start().await;
        for n in 1..=3 {
            let tokens = Tokens { input: n * 10, output: n, ..Tokens::default() };
            world.server.enqueue(Reply::text(&format!("part {n}")).with_tokens(tokens));
        }
        let run = world.run_prompt("tell").await;
        let steps = world.steps(run.id).await;
        let mut outputs: Vec<_> = steps.iter().map(|step| step.output.unwrap()).collect();
        outputs.dedup();
        assert_eq!(outputs.len(), 3, "{protocol:?}");
        let used: Vec<u64> = steps.iter().map(|step| step.usage.unwrap().input_tokens).collect();
        assert_eq!((used, run.usage.input_tokens), (vec![10, 20, 30], 60), "{protocol:?}");
        let completed = |body: &Body| match body {
            Body::TurnCompleted { message_id } => Some(*message_id),
            _ => None,
        };
        let turns: Vec<_> = world.event_bodies(run.id).await.iter().filter_map(completed).collect();
        assert_eq!(turns, outputs[..2], "{protocol:?}: the run's end completes the last turn");
        let request = world.request_body(2).to_string();
        assert!(
            request.contains("part 1") && request.contains("part 2"),
            "{protocol:?}: later requests contain earlier turns"
        );
    }
}

/// Pauses the first call and records every call.
#[derive(Clone, Default)]
struct PauseFirst(Arc<Mutex<Vec<i64>>>);

#[async_trait]
impl Hooks for PauseFirst {
    async fn on_tool_use(&self, _context: HookContext, call: &ToolUse) -> ToolDecision {
        let mut calls = self.0.lock();
        calls.push(call.input["a"].as_i64().unwrap_or_default());
        match calls.len() {
            1 => ToolDecision::Pause { question: "The first?".into(), request: WaitRequest::Approval },
            _ => ToolDecision::Execute,
        }
    }
}

#[tokio::test]
async fn calls_after_a_paused_one_are_decided_after_the_pause() {
    for protocol in Protocol::ALL {
        let hooks = PauseFirst::default();
        let world = Setup::protocol(protocol).hooks(hooks.clone()).start().await;
        let reply = Reply::tool("add", json!({"a": 1, "b": 0})).and_tool("add", json!({"a": 2, "b": 0}));
        world.server.enqueue(reply).enqueue(Reply::text("done"));
        let run = world.send_prompt("go").await;
        world.wait_paused(run.id).await;
        assert_eq!(*hooks.0.lock(), [1], "{protocol:?}: calls after a paused one are not decided yet");
        world.allow(run.id).await;
        assert_eq!(world.wait_ended(run.id).await.state.status(), RunStatus::Succeeded, "{protocol:?}");
        assert_eq!(*hooks.0.lock(), [1, 2], "{protocol:?}");
        let results = world.tool_results(run.id).await;
        assert_eq!(results, [("1".to_owned(), false), ("2".to_owned(), false)], "{protocol:?}");
    }
}

#[tokio::test]
async fn a_paused_run_can_be_cancelled_and_the_session_continues() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).hooks(PauseFirst::default()).start().await;
        world.server.enqueue(Reply::tool("add", json!({"a": 1, "b": 0})));
        let run = world.send_prompt("go").await;
        let waiting = world.wait_paused(run.id).await;
        let wait = waiting.state.wait().unwrap().id;
        within_timeout(world.kernel.run_cancel(&world.me, run.id)).await.unwrap();
        assert_eq!(world.wait_ended(run.id).await.state.status(), RunStatus::Cancelled, "{protocol:?}");
        assert!(
            !world.event_kinds(run.id).await.contains(&"tool.started"),
            "{protocol:?}: the tool never ran"
        );
        let yes = mainspring_core::Answer::from(mainspring_core::Approval::Allowed);
        let late = within_timeout(world.kernel.run_answer(&world.me, run.id, wait, yes)).await.unwrap_err();
        assert!(late.to_string().contains("cancelled"), "{protocol:?}: {late}");
        // The call without a result gets a result before the next model call.
        world.server.enqueue(Reply::text("fine"));
        let next = world.run_prompt("never mind").await;
        assert_eq!(next.state.status(), RunStatus::Succeeded, "{protocol:?}: {:?}", next.state);
        let request = world.request_body(1).to_string();
        assert!(request.contains("never mind"), "{protocol:?}: {request}");
    }
}

#[tokio::test]
async fn a_second_answer_is_refused_and_names_the_first() {
    let gate = Gate::default();
    let world =
        Setup { tools: tools().with(gated("slow", &gate)).unwrap(), ..Setup::default() }.start().await;
    world.server.enqueue(Reply::tool("ask_person", json!({"question": "Well?"})));
    world.server.enqueue(Reply::tool("slow", json!({}))).enqueue(Reply::text("done"));
    let run = world.send_prompt("go").await;
    let wait = world.wait_paused(run.id).await.state.wait().unwrap().id;
    let well = || mainspring_core::Answer::Input { input: json!("well") };
    within_timeout(world.kernel.run_answer(&world.me, run.id, wait, well())).await.unwrap();
    within_timeout(gate.reached()).await;
    let busy = within_timeout(world.kernel.run_answer(&world.me, run.id, wait, well())).await.unwrap_err();
    assert!(busy.to_string().contains("answered by ada at "), "{busy}");
    gate.open();
    world.wait_ended(run.id).await;
    let idle = within_timeout(world.kernel.run_answer(&world.me, run.id, wait, well())).await.unwrap_err();
    assert_eq!((idle.code(), idle.to_string()), ("already_answered", busy.to_string()));
}

/// Refuses runs with a forbidden system prompt, and replaces the system prompt of other runs.
struct StartHook;

#[async_trait]
impl Hooks for StartHook {
    async fn on_start(&self, _context: HookContext, plan: &mut Plan) -> Result<(), Failure> {
        if plan.system.as_deref() == Some("forbidden") {
            return Err(Failure::new("not_here", "this system prompt is forbidden"));
        }
        plan.system = Some("You are changed.".into());
        plan.tools = plan.tools.filter(&["add".into()]);
        Ok(())
    }
}

#[tokio::test]
async fn a_start_hook_may_change_the_plan_or_refuse_the_run() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).hooks(StartHook).start().await;
        let options = RunOptions { system_prompt: Some("forbidden".into()), ..RunOptions::default() };
        let run = world.send(request_with(options, "hi")).await;
        assert_eq!(
            world.wait_ended(run.id).await.state.error().unwrap().code.as_str(),
            "not_here",
            "{protocol:?}"
        );
        assert_eq!(world.server.counts().received, 0, "{protocol:?}");
        world.server.enqueue(Reply::text("ok"));
        world.run_prompt("hi").await;
        let request = world.request_body(0).to_string();
        assert!(
            request.contains("You are changed.") && !request.contains("Hangs."),
            "{protocol:?}: {request}"
        );
    }
}

/// Switches the model after a failure, or stops.
struct ErrorHook {
    models: Models,
    stop: bool,
    received: Arc<Mutex<Vec<String>>>,
}

#[async_trait]
impl Hooks for ErrorHook {
    async fn on_error(&self, _context: HookContext, error: &ModelError, plan: &mut Plan) -> AfterError {
        self.received.lock().push(error.kind.code().to_string());
        if self.stop {
            return AfterError::Stop;
        }
        plan.model.model = "m-backup".into();
        plan.model.profile = self.models.profiles().next().map(|(name, _)| name.to_owned());
        AfterError::Retry
    }
}

#[tokio::test]
async fn an_error_hook_may_switch_the_model_or_stop() {
    for protocol in Protocol::ALL {
        let received = Arc::new(Mutex::new(vec![]));
        let hooks = |stop| ErrorHook { models: Models::default(), stop, received: received.clone() };
        let world = Setup::protocol(protocol).hooks(hooks(false)).start().await;
        world.server.enqueue(Reply::fail(Fault::Invalid)).enqueue(Reply::text("from the backup"));
        let run = world.send_prompt("hi").await;
        world.wait_event(run.id, "progress.updated", 1).await;
        world.clock.advance(1_000);
        let run = world.wait_ended(run.id).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}: {:?}", run.state);
        let models: Vec<_> = world.steps(run.id).await.into_iter().map(|step| step.model).collect();
        assert_eq!(models.last().map(String::as_str), Some("m-backup"), "{protocol:?}");

        let world = Setup::protocol(protocol).hooks(hooks(true)).start().await;
        world.server.enqueue(Reply::fail(Fault::Overloaded));
        let run = world.run_prompt("hi").await;
        assert_eq!(run.state.error().unwrap().code.as_str(), "model_overloaded", "{protocol:?}");
        assert_eq!((run.attempts, world.server.counts().received), (1, 1), "{protocol:?}");
        assert_eq!(*received.lock(), ["model_invalid_request", "model_overloaded"], "{protocol:?}");
    }
}

#[tokio::test]
async fn a_run_reports_its_remaining_budget() {
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
            ..RunLimits::default()
        };
        let run = world.send(request_with(RunOptions { limits, ..RunOptions::default() }, "hi")).await;
        assert_eq!(run.budget, None, "{protocol:?}: no model was called yet");
        within_timeout(gate.reached()).await;
        let working = world.get(run.id).await.budget.unwrap();
        let expected = Budget {
            max_steps: Some(5),
            steps_left: Some(4),
            max_tokens: Some(1_000),
            tokens_left: Some(890),
            max_cost: Some(Cost::from(0.001)),
            cost_left: Some(Cost::from(0.001 - 0.0001 - 0.0001)),
            ends_at: Some(NOW.plus(60_000)),
            exceeded: false,
        };
        assert_eq!(*working, expected, "{protocol:?}");
        gate.open();
        let left = world.wait_ended(run.id).await.budget.unwrap();
        assert_eq!((left.steps_left, left.tokens_left), (Some(3), Some(780)), "{protocol:?}");
        let reported = world.event_bodies(run.id).await.into_iter().rev().find_map(|body| match body {
            Body::StepCompleted { budget, .. } => budget,
            _ => None,
        });
        assert_eq!(reported, Some(*left), "{protocol:?}");
    }
}

#[tokio::test]
async fn a_granted_limit_is_part_of_the_budget() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        let limits = RunLimits { max_steps: Some(1), ask: Some(true), ..RunLimits::default() };
        let add = || Reply::tool("add", json!({"a": 1, "b": 1}));
        world.server.enqueue(add()).enqueue(Reply::text("done"));
        let run = world.send(request_with(RunOptions { limits, ..RunOptions::default() }, "hi")).await;
        let waiting = world.wait_paused(run.id).await;
        assert_eq!(waiting.budget.unwrap().steps_left, Some(0));
        world.allow(run.id).await;
        let run = world.wait_ended(run.id).await;
        let budget = run.budget.unwrap();
        assert_eq!((budget.max_steps, budget.steps_left), (Some(2), Some(0)));
    }
}

#[tokio::test]
async fn partial_text_is_kept_when_a_run_is_cancelled_in_a_later_step() {
    for protocol in Protocol::ALL {
        let gate = Gate::default();
        let world = Setup::protocol(protocol).start().await;
        world.server.enqueue(Reply::tool("add", json!({"a": 1, "b": 2})));
        world.server.enqueue(Reply::text("half of it").and(Action::Hold(gate.clone())));
        let run = world.send_prompt("go").await;
        within_timeout(gate.reached()).await;
        within_timeout(world.kernel.run_cancel(&world.me, run.id)).await.unwrap();
        let run = world.wait_ended(run.id).await;
        assert_eq!(run.state.status(), RunStatus::Cancelled);
        let messages = world.messages(run.id).await;
        assert_eq!(messages.len(), 4, "the prompt, the call, its result, and the partial text");
        assert!(run.usage.input_tokens > 0, "the usage is kept");
        let status = messages[3].status;
        assert_eq!(status, mainspring_core::MessageStatus::Cancelled);
        gate.open();
    }
}
