//! Turns: records, streaming, retries, limits, structured output.

use std::sync::Arc;

use async_trait::async_trait;
use mainspring_agent::Definition;
use mainspring_agent::hooks::{AfterTurn, HookContext, Hooks};
use mainspring_core::{
    AgentDefinition, Block, Body, Cost, MessageStatus, RunChange, RunLimits, RunOptions, RunOutput,
    RunStatus, StopReason, Usage,
};
use mainspring_kernel::kernel::{NewSession, RunRequest, SessionPatch, SessionStart};
use mainspring_kernel::store::{SessionRef, Store};
use mainspring_model_server::{Action, Fault, Gate, Protocol, Reply, Tokens};
use mainspring_reference_store::MemoryStore;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::world::{Setup, within_timeout};

#[tokio::test]
async fn a_text_turn_in_every_protocol() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        let tokens = Tokens { input: 1000, output: 100, cache_read: 200, cache_write: 0 };
        world.server.enqueue(Reply::text("hello there").with_tokens(tokens));
        let run = world.run_prompt("hi").await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}: {:?}", run.state);
        assert_eq!(world.answer_text(run.id).await, "hello there");
        let usage = Usage {
            input_tokens: 1000,
            output_tokens: 100,
            cache_read_tokens: 200,
            cache_write_tokens: 0,
            cost: Cost::from(0.001 + 0.001 + 0.0001),
            at_least: false,
        };
        assert_eq!(run.usage, usage, "{protocol:?}");
        let kinds = world.event_kinds(run.id).await;
        let expected = [
            "run.queued",
            "attempt.created",
            "run.starting",
            "message.completed",
            "attempt.started",
            "run.running",
            "message.completed",
            "usage.updated",
            "step.completed",
            "run.succeeded",
        ];
        assert_eq!(kinds, expected, "{protocol:?}");
        let steps = world.steps(run.id).await;
        let messages = world.messages(run.id).await;
        assert_eq!(steps.len(), 1);
        let step = &steps[0];
        assert_eq!((step.no, step.stop_reason, step.usage), (1, StopReason::Stop, Some(usage)));
        assert_eq!((step.provider.as_str(), step.model.as_str()), ("acme", "m-1"));
        assert_eq!(
            (step.agent.as_str(), step.profile.as_deref()),
            ("mainspring.generalist@1", Some("main_reasoner"))
        );
        assert_eq!((step.prompt.last, step.prompt.messages), (Some(messages[0].id), 1));
        assert_eq!(step.output, Some(messages[1].id));
        assert!(step.raw_usage.is_object(), "{protocol:?}");

        // The next request contains the conversation so far.
        world.server.enqueue(Reply::text("again"));
        world.run_prompt("and now?").await;
        let request = world.request_body(1).to_string();
        let at = |text: &str| {
            request.find(text).unwrap_or_else(|| panic!("{protocol:?}: {text} is not in {request}"))
        };
        assert!(at("\"hi\"") < at("hello there") && at("hello there") < at("and now?"), "{protocol:?}");
    }
}

#[tokio::test]
async fn an_answer_costs_one_commit() {
    let world = Setup::default().start().await;
    let run = world.run_prompt("say hello").await;
    let events = world.events(run.id).await;
    let last: Vec<_> = events.iter().rev().take_while(|event| event.body.kind() != "run.running").collect();
    // All events of one commit have the same position, since nothing is streamed in between.
    assert_eq!(last.len(), 4);
    assert!(last.iter().all(|event| event.pos == last[0].pos && event.at == last[0].at));
}

#[tokio::test]
async fn thinking_is_streamed_and_stored_only_while_the_provider_requires_it() {
    for protocol in Protocol::ALL {
        let profile = "reasoning = \"low\"";
        let world = Setup { profile, ..Setup::protocol(protocol) }.start().await;
        world
            .server
            .enqueue(Reply::think("a secret thought", "c2lnbmVk").and_tool("add", json!({"a": 1, "b": 2})));
        world.server.enqueue(Reply::think("another one", "bW9yZQ==").and_text("3"));
        let run = world.run_prompt("add").await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}: {:?}", run.state);
        let second = world.request_body(1).to_string();
        let back = if protocol == Protocol::Chat { "a secret thought" } else { "c2lnbmVk" };
        assert!(second.contains(back), "{protocol:?}: {second}");
        let messages = world.messages(run.id).await;
        assert!(messages[1].content.contains(&Block::Thinking {}), "{protocol:?}");
        // Nothing of it is stored once the run has ended.
        let left =
            format!("{:?} {:?}", world.store.steps(run.id).await.unwrap().items, world.events(run.id).await);
        assert!(!left.contains("secret") && !left.contains("c2lnbmVk"), "{protocol:?}: {left}");
    }
}

#[tokio::test]
async fn a_rate_limited_call_is_retried_after_the_providers_delay() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        world
            .server
            .enqueue(Reply::fail(Fault::RateLimited { retry_after: Some(20) }))
            .enqueue(Reply::text("ok"));
        let run = world.send_prompt("hi").await;
        world.wait_event(run.id, "progress.updated", 1).await;
        world.clock.advance(19_999);
        assert_eq!(world.server.counts().received, 1, "{protocol:?}");
        world.clock.advance(1);
        let run = world.wait_ended(run.id).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}");
        assert_eq!(run.attempts, 1);
        let steps = world.steps(run.id).await;
        let stops: Vec<_> = steps.iter().map(|step| (step.no, step.stop_reason)).collect();
        assert_eq!(stops, [(1, StopReason::Error), (1, StopReason::Stop)], "{protocol:?}");
        assert_eq!(steps[0].error.as_ref().unwrap().code.as_str(), "model_rate_limited");
        let progress = world.event_bodies(run.id).await.into_iter().find_map(|body| match body {
            Body::ProgressUpdated { text } => Some(text),
            _ => None,
        });
        assert!(progress.unwrap().contains("retrying in 20 s (try 2 of 3)"));
    }
}

#[tokio::test]
async fn a_provider_that_asks_to_wait_for_a_day_fails_the_run() {
    let world = Setup::default().start().await;
    world.server.enqueue(Reply::fail(Fault::RateLimited { retry_after: Some(86_400) }));
    let run = world.run_prompt("hi").await;
    assert_eq!(run.state.error().unwrap().code.as_str(), "model_rate_limited");
    assert_eq!(world.server.counts().received, 1);
}

#[tokio::test]
async fn permanent_errors_are_not_retried_and_the_session_continues() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        for (fault, code) in
            [(Fault::Unauthorized, "model_unauthorized"), (Fault::Invalid, "model_invalid_request")]
        {
            let before = world.server.counts().received;
            world.server.enqueue(Reply::fail(fault));
            let run = world.run_prompt("what is it").await;
            assert_eq!(run.state.error().unwrap().code.as_str(), code, "{protocol:?}");
            assert_eq!((run.attempts, world.server.counts().received), (1, before + 1), "{protocol:?}");
            let messages = world.messages(run.id).await;
            assert_eq!(messages[1].status, MessageStatus::Failed);
        }
        world.server.enqueue(Reply::refuse());
        assert_eq!(
            world.run_prompt("no").await.state.error().unwrap().code.as_str(),
            "model_refused",
            "{protocol:?}"
        );
        world.server.enqueue(Reply::text("fine"));
        let run = world.run_prompt("last").await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}: {:?}", run.state);
        // The prompts stay in later requests; failed answers do not.
        let request = world.request_body(3).to_string();
        assert_eq!(request.matches("what is it").count(), 2, "{protocol:?}: {request}");
    }
}

#[tokio::test]
async fn a_broken_stream_is_discarded_and_retried_from_the_last_message() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        world
            .server
            .enqueue(Reply::text("half an").and(Action::Disconnect))
            .enqueue(Reply::text("a whole answer"));
        let run = world.send_prompt("hi").await;
        world.wait_event(run.id, "attempt.failed", 1).await;
        world.clock.advance(500);
        let run = world.wait_ended(run.id).await;
        assert_eq!(
            (run.state.status(), run.attempts),
            (RunStatus::Succeeded, 2),
            "{protocol:?}: {:?}",
            run.state
        );
        let messages: Vec<_> =
            world.messages(run.id).await.iter().map(|message| (message.text(), message.status)).collect();
        let expected = [
            ("hi".to_owned(), MessageStatus::Completed),
            ("half an".to_owned(), MessageStatus::Failed),
            ("a whole answer".to_owned(), MessageStatus::Completed),
        ];
        assert_eq!(messages, expected, "{protocol:?}");
        assert!(!world.request_body(1).to_string().contains("half an"), "{protocol:?}");
        let known: Vec<_> = world.steps(run.id).await.iter().map(|step| step.usage.is_some()).collect();
        assert_eq!(known, [false, true], "{protocol:?}: the usage of the broken call is unknown");
        assert!(run.usage.at_least && run.usage.output_tokens > 0, "{protocol:?}: {:?}", run.usage);
        let answer = world.messages(run.id).await.pop().unwrap();
        assert!(answer.usage.unwrap().output_tokens > 0, "{protocol:?}");
    }
}

#[tokio::test]
async fn a_run_fails_after_a_bounded_number_of_tries() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        for _ in 0..9 {
            world.server.enqueue(Reply::fail(Fault::Overloaded));
        }
        let run = world.send_prompt("hi").await;
        let advancing = async {
            loop {
                world.clock.advance(1_000);
                if world.get(run.id).await.state.status().is_ended() {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        within_timeout(advancing).await;
        let run = world.get(run.id).await;
        assert_eq!(run.state.error().unwrap().code.as_str(), "model_overloaded");
        assert_eq!((run.attempts, world.server.counts().received), (3, 9));
        assert!(run.usage.is_zero(), "a rejected call uses nothing: {:?}", run.usage);
    }
}

#[tokio::test]
async fn a_call_that_failed_inside_the_provider_may_have_cost_something() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        world.server.enqueue(Reply::fail(Fault::Internal));
        world.server.enqueue(Reply::text("hello"));
        let run = world.send_prompt("hi").await;
        let run = within_timeout(async {
            loop {
                world.clock.advance(1_000);
                let run = world.get(run.id).await;
                if run.state.status().is_ended() {
                    return run;
                }
                tokio::task::yield_now().await;
            }
        });
        let run = run.await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}");
        let steps = world.steps(run.id).await;
        assert_eq!(steps.iter().map(|step| step.usage.is_some()).collect::<Vec<_>>(), [false, true]);
        let has_first_piece = |step: &mainspring_core::Step| step.first_piece_at.is_some();
        assert_eq!(steps.iter().map(has_first_piece).collect::<Vec<_>>(), [false, true], "{protocol:?}");
        assert!(run.usage.at_least, "{protocol:?}: {:?}", run.usage);
    }
}

#[tokio::test]
async fn a_reply_without_a_usage_report_has_an_unknown_usage() {
    let chunk = |choice: Value| format!("data: {}\n\n", json!({"model": "m-1", "choices": [choice]}));
    let text = chunk(json!({"index": 0, "delta": {"content": "hello"}, "finish_reason": null}));
    let last = chunk(json!({"index": 0, "delta": {}, "finish_reason": "stop"}));
    let reply = format!("{text}{last}data: [DONE]\n\n");
    let answer = || async move { ([("content-type", "text/event-stream")], reply) };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let router = axum::Router::new().route("/v1/chat/completions", axum::routing::post(answer));
    let tasks = mainspring_kernel::tasks::Tasks::default();
    tasks.spawn(async move { axum::serve(listener, router).await });
    let profile = format!("[providers.silent]\nkind = \"openai\"\nbase_url = \"{url}\"");
    let world = Setup { profile: profile.leak(), ..Setup::default() }.start().await;
    let options = RunOptions { model: Some("silent/m-1".into()), ..RunOptions::default() };
    let run = world.send(RunRequest { options, ..RunRequest::text("s", "hi") }).await;
    let run = world.wait_ended(run.id).await;
    assert_eq!(world.answer_text(run.id).await, "hello", "{:?}", run.state);
    assert_eq!(world.steps(run.id).await.remove(0).usage, None);
    assert_eq!(run.usage, Usage::UNKNOWN);
}

#[tokio::test]
async fn a_cancelled_run_closes_its_connection_and_keeps_partial_text() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        let gate = Gate::default();
        world.server.enqueue(Reply::text("so far").and(Action::Hold(gate.clone())).and_text("more"));
        let run = world.send_prompt("hi").await;
        within_timeout(gate.reached()).await;
        let streamed = async {
            let by = SessionRef::Id(run.session);
            let start = Some(mainspring_core::Position::default());
            let mut items = world.kernel.session_subscribe(&world.me, &by, start).await.unwrap();
            let mut text = String::new();
            while text != "so far" {
                if let mainspring_kernel::feed::Item::Delta(delta) = items.next().await.unwrap().unwrap() {
                    text += &delta.text;
                }
            }
        };
        within_timeout(streamed).await;
        within_timeout(world.kernel.run_cancel(&world.me, run.id)).await.unwrap();
        let run = world.wait_ended(run.id).await;
        assert_eq!(run.state.status(), RunStatus::Cancelled, "{protocol:?}");
        within_timeout(world.server.wait(|counts| counts.aborted == 1)).await;
        let messages = world.messages(run.id).await;
        assert_eq!((messages[1].text().as_str(), messages[1].status), ("so far", MessageStatus::Cancelled));
        let step = world.steps(run.id).await.remove(0);
        assert_eq!((step.stop_reason, step.usage), (StopReason::Cancelled, None));
        assert_eq!(run.usage, Usage::UNKNOWN, "{protocol:?}");
    }
}

fn limited(limits: RunLimits, text: &str) -> RunRequest {
    RunRequest { options: RunOptions { limits, ..RunOptions::default() }, ..RunRequest::text("s", text) }
}

#[tokio::test]
async fn limits_are_checked_before_each_model_call() {
    for protocol in Protocol::ALL {
        let endless = "tool add {\"a\":1,\"b\":1}\n".repeat(2) + "say hm\n";
        let cases = [
            (RunLimits { max_steps: Some(1), ..RunLimits::default() }, "1 model calls"),
            (RunLimits { max_tokens: Some(10), ..RunLimits::default() }, "10 tokens"),
            (RunLimits { max_cost: Some(Cost::from(0.00001)), ..RunLimits::default() }, "US dollars"),
        ];
        for (limits, limit) in cases {
            let world = Setup::protocol(protocol).start().await;
            let run = world.send(limited(limits, &endless)).await;
            let run = world.wait_ended(run.id).await;
            let error = run.state.error().unwrap().clone();
            assert_eq!(error.code.as_str(), "limit_reached");
            assert!(error.message.contains(limit), "{}", error.message);
            assert_eq!(world.server.counts().received, 1, "{limit}");
            // Earlier work is kept, and its calls have results.
            assert_eq!(world.tool_results(run.id).await.len(), 2);
        }
        let world = Setup::protocol(protocol).start().await;
        let limits = RunLimits { max_time: Some(60_000), ..RunLimits::default() };
        let gate = Gate::default();
        world.server.enqueue(Reply::tool("add", json!({"a": 1, "b": 2})).and(Action::Hold(gate.clone())));
        let run = world.send(limited(limits, "x")).await;
        within_timeout(gate.reached()).await;
        world.clock.advance(60_000);
        gate.open();
        assert_eq!(world.wait_ended(run.id).await.state.error().unwrap().code.as_str(), "limit_reached");
    }
}

#[tokio::test]
async fn a_person_may_grant_a_used_up_limit_again() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        let limits = RunLimits { max_steps: Some(1), ask: Some(true), ..RunLimits::default() };
        let script = "tool add {\"a\":1,\"b\":1}\nsay one\ntool add {\"a\":2,\"b\":2}\nsay done";
        let run = world.send(limited(limits, script)).await;
        let waiting = world.wait_paused(run.id).await;
        assert_eq!(waiting.state.status(), RunStatus::WaitingApproval);
        assert!(waiting.state.wait().unwrap().question.contains("limit of 1 model calls"));
        world.allow(run.id).await;
        world.wait_status(run.id, |status| status == RunStatus::Running || status.is_ended()).await;
        let waiting = world.wait_paused(run.id).await;
        assert!(waiting.state.wait().unwrap().question.contains("limit of 2 model calls"));
        world.deny(run.id).await;
        let run = world.wait_ended(run.id).await;
        assert_eq!(run.state.error().unwrap().code.as_str(), "limit_reached");
        assert_eq!(world.server.counts().received, 2);
    }
}

#[tokio::test]
async fn a_cost_limit_needs_a_known_price() {
    let world = Setup::default().start().await;
    let limits = RunLimits { max_cost: Some(Cost::from(1.0)), ..RunLimits::default() };
    let options = RunOptions { limits, model: Some("unpriced".into()), ..RunOptions::default() };
    let run = world.send(RunRequest { options, ..RunRequest::text("s", "hi") }).await;
    let run = world.wait_ended(run.id).await;
    assert_eq!(run.state.error().unwrap().code.as_str(), "model_price_unknown");
    assert_eq!(world.server.counts().received, 0);
}

fn with_schema(text: &str) -> RunRequest {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let options = RunOptions { output_schema: Some(schema), ..RunOptions::default() };
    RunRequest { options, ..RunRequest::text("s", text) }
}

async fn output(world: &crate::world::World, run: mainspring_core::RunId) -> (Value, Option<String>) {
    let bodies = world.event_bodies(run).await;
    let found = bodies.into_iter().find_map(|body| match body {
        Body::OutputCompleted { output, error } => Some((output, error.map(|error| error.code.to_string()))),
        _ => None,
    });
    found.unwrap()
}

#[tokio::test]
async fn an_answer_that_violates_the_schema_is_requested_again() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        world.server.enqueue(Reply::tool("add", json!({"a": 1, "b": 2})));
        world
            .server
            .enqueue(Reply::text("it is three"))
            .enqueue(Reply::text("{\"n\": \"3\"}"))
            .enqueue(Reply::text("{\"n\": 3}"));
        let run = world.send(with_schema("add")).await;
        let run = world.wait_ended(run.id).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}");
        assert_eq!(output(&world, run.id).await, (json!({"n": 3}), None), "{protocol:?}");
        assert_eq!(run.output, Some(Box::new(RunOutput::new(json!({"n": 3}), None))), "{protocol:?}");
        assert!(world.request_body(0).to_string().contains("JSON Schema"), "{protocol:?}");
        assert!(world.request_body(2).to_string().contains("it is not JSON"), "{protocol:?}");
        assert!(world.request_body(3).to_string().contains("/n: "), "{protocol:?}");

        for _ in 0..4 {
            world.server.enqueue(Reply::text("no"));
        }
        let run = world.send(with_schema("again")).await;
        let run = world.wait_ended(run.id).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}");
        assert_eq!(
            output(&world, run.id).await,
            (Value::Null, Some("output_invalid".into())),
            "{protocol:?}"
        );
        let output = run.output.unwrap();
        assert_eq!((output.value, output.fits), (Value::Null, false), "{protocol:?}");
        assert_eq!(output.error.unwrap().code.as_str(), "output_invalid", "{protocol:?}");
        assert_eq!(world.server.counts().received, 8, "{protocol:?}: three more requests");
    }
}

/// Continues the run `more` times.
struct ContinueTimes {
    more: Mutex<u32>,
    received: Arc<Mutex<Vec<String>>>,
}

#[async_trait]
impl Hooks for ContinueTimes {
    async fn on_turn(&self, _context: HookContext, text: &str) -> AfterTurn {
        self.received.lock().push(text.to_owned());
        let mut more = self.more.lock();
        if *more == 0 {
            return AfterTurn::Stop;
        }
        *more -= 1;
        AfterTurn::Continue(format!("say turn {more}"))
    }
}

#[tokio::test]
async fn a_continued_run_has_several_turns_and_its_steps_are_counted_together() {
    for protocol in Protocol::ALL {
        let received = Arc::new(Mutex::new(vec![]));
        let world = Setup::protocol(protocol)
            .hooks(ContinueTimes { more: Mutex::new(2), received: received.clone() })
            .start()
            .await;
        let run = world.run_prompt("say first").await;
        assert_eq!(run.state.status(), RunStatus::Succeeded);
        assert_eq!(*received.lock(), ["first\n", "turn 1\n", "turn 0\n"]);
        let steps = world.steps(run.id).await;
        assert_eq!(steps.iter().map(|step| step.no).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(steps.iter().map(|step| step.prompt.messages).collect::<Vec<_>>(), [1, 3, 5]);
        assert_eq!(run.usage.input_tokens, 30, "the usage of a run is the sum of its steps");
        assert_eq!(steps[2].usage.unwrap().input_tokens, 10, "the usage of a step is its own");

        let more = ContinueTimes { more: Mutex::new(9), received };
        let world = Setup::protocol(protocol).hooks(more).start().await;
        let limits = RunLimits { max_steps: Some(3), ..RunLimits::default() };
        let run = world.send(limited(limits, "say first")).await;
        assert_eq!(world.wait_ended(run.id).await.state.error().unwrap().code.as_str(), "limit_reached");
        assert_eq!(world.server.counts().received, 3);
    }
}

#[tokio::test]
async fn a_session_whose_profile_was_removed_uses_the_default_model_and_reports_it() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let with_poet = "[models.poet]\nprovider = \"acme\"\nmodel = \"m-poet\"\n";
    let world = Setup { store: store.clone(), profile: with_poet, ..Setup::default() }.start().await;
    world.server.enqueue(Reply::text("a rhyme"));
    let run = world.run_prompt("hi").await;
    let by = SessionRef::Id(run.session);
    let patch = SessionPatch { model_profile: Some(Some("poet".into())), ..SessionPatch::default() };
    world.kernel.session_patch(&world.me, &by, patch).await.unwrap();
    world.kernel.shutdown().await;
    let world = Setup { store, seed: 2, ..Setup::default() }.start().await;
    world.server.enqueue(Reply::text("prose"));
    let run = world.run_prompt("again").await;
    assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
    let is_notice = |body: &Body| matches!(body, Body::ProgressUpdated { text } if text.contains("\"poet\" is not configured"));
    assert!(world.event_bodies(run.id).await.iter().any(is_notice));
    let start = SessionStart {
        load: Some(by),
        like: NewSession { model: Some("acme/m-2".into()), ..NewSession::default() },
        ..SessionStart::default()
    };
    let started = world.kernel.session_start(&world.me, start, None).await.unwrap();
    assert_eq!((started.options.model.as_deref(), started.options.model_profile), (Some("acme/m-2"), None));
}

#[tokio::test]
async fn a_missing_profile_or_agent_is_named() {
    let world = Setup::default().start().await;
    let options = RunOptions { model_profile: Some("poet".into()), ..RunOptions::default() };
    let run = world.send(RunRequest { options, ..RunRequest::text("s", "hi") }).await;
    let error = world.wait_ended(run.id).await.state.error().unwrap().clone();
    assert_eq!(error.code.as_str(), "model_not_configured");
    assert!(error.message.contains("main_reasoner"));
    let run = world.run_prompt_as("nobody@1", "hi").await;
    assert_eq!(run.state.error().unwrap().code.as_str(), "agent_not_found");
}

#[tokio::test]
async fn the_limits_of_a_shared_agent_are_ceilings_for_runs_and_retries() {
    let shared = "id = \"tight\"\n[limits]\nmax_steps = 1";
    let world = Setup::default().agent(shared).start().await;
    let script = "tool add {\"a\":1,\"b\":1}\nsay one\ntool add {\"a\":2,\"b\":2}\nsay done";
    let wanted = RunLimits { max_steps: Some(50), ask: Some(true), ..RunLimits::default() };
    let request = |key: &str, agent: &str| {
        let mut request = limited(wanted, script);
        request.session.key = Some(key.into());
        request.session.new.agent_definition = Some(agent.into());
        request
    };
    let run = world.send(request("shared", "tight")).await;
    let run = world.wait_paused(run.id).await;
    assert_eq!(run.state.error().unwrap().code.as_str(), "limit_reached", "it may not even ask for more");
    assert_eq!(world.server.counts().received, 1);
    assert_eq!(run.budget.as_ref().unwrap().max_steps, Some(1));
    let change = RunChange { limits: wanted, ..RunChange::default() };
    world.kernel.run_retry(&world.me, run.id, change).await.unwrap();
    let run = world.wait_ended(run.id).await;
    assert_eq!((run.attempts, run.state.error().unwrap().code.as_str()), (2, "limit_reached"));
    // The owner may change its own definition, so its limits are defaults.
    let own = AgentDefinition { id: "loose".into(), ..Definition::parse(shared).unwrap().to_record() };
    world.kernel.agent_create(&world.me, own).await.unwrap();
    let run = world.send(request("own", "loose")).await;
    assert_eq!(world.wait_ended(run.id).await.state.status(), RunStatus::Succeeded);
}

#[tokio::test]
async fn a_run_with_a_hostile_template_fails_and_names_the_agent() {
    let world = Setup::default().start().await;
    let doubling = "{% set x = 'aaaaaaaa' %}".to_owned() + &"{% set x = x ~ x %}".repeat(40) + "{{ x }}";
    let mut hostile = Definition::parse("id = \"doubling\"").unwrap().to_record();
    hostile.system = Some(doubling);
    world.kernel.agent_create(&world.me, hostile).await.unwrap();
    let run = world.run_prompt_as("doubling", "say hi").await;
    let error = run.state.error().unwrap();
    assert_eq!(error.code.as_str(), "agent_template_failed");
    assert!(error.message.contains("doubling@1") && error.message.contains("8388608 bytes"), "{error:?}");
    assert_eq!(world.server.counts().received, 0);
}
