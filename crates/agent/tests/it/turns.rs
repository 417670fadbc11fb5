//! Turns: what a run records, streams, asks again and stops at.

use std::sync::Arc;

use async_trait::async_trait;
use mainspring_agent::hooks::{Hooks, Next, Occasion};
use mainspring_core::{
    Block, Body, Cost, MessageStatus, RunLimits, RunOptions, RunStatus, StopReason, Usage,
};
use mainspring_kernel::kernel::RunRequest;
use mainspring_model_server::{Action, Fault, Gate, Protocol, Reply, Tokens};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::world::{Setup, soon};

#[tokio::test]
async fn a_text_turn_in_every_protocol() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        let tokens = Tokens { input: 1000, output: 100, cache_read: 200, cache_write: 0 };
        world.server.enqueue(Reply::text("hello there").with_tokens(tokens));
        let run = world.play("hi").await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}: {:?}", run.state);
        assert_eq!(world.said(run.id).await, "hello there");
        let usage = Usage {
            input_tokens: 1000,
            output_tokens: 100,
            cache_read_tokens: 200,
            cache_write_tokens: 0,
            cost: Cost::from(0.001 + 0.001 + 0.0001),
        };
        assert_eq!(run.usage, usage, "{protocol:?}");
        let kinds = world.kinds(run.id).await;
        let wanted = [
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
        assert_eq!(kinds, wanted, "{protocol:?}");
        let steps = world.steps(run.id).await;
        let messages = world.messages(run.id).await;
        assert_eq!(steps.len(), 1);
        let step = &steps[0];
        assert_eq!((step.no, step.stop_reason, step.usage), (1, StopReason::Stop, usage));
        assert_eq!((step.provider.as_str(), step.model.as_str()), ("acme", "m-1"));
        assert_eq!(
            (step.agent.as_str(), step.profile.as_deref()),
            ("mainspring.generalist@1", Some("main_reasoner"))
        );
        assert_eq!((step.prompt.last, step.prompt.messages), (Some(messages[0].id), 1));
        assert_eq!(step.output, Some(messages[1].id));
        assert!(step.raw_usage.is_object(), "{protocol:?}");

        // The next run shows the model what was said.
        world.server.enqueue(Reply::text("again"));
        world.play("and now?").await;
        let asked = world.asked(1).to_string();
        let at =
            |text: &str| asked.find(text).unwrap_or_else(|| panic!("{protocol:?}: {text} is not in {asked}"));
        assert!(at("\"hi\"") < at("hello there") && at("hello there") < at("and now?"), "{protocol:?}");
    }
}

#[tokio::test]
async fn an_answer_costs_one_commit() {
    let world = Setup::default().start().await;
    let run = world.play("say hello").await;
    let events = world.events(run.id).await;
    let last: Vec<_> = events.iter().rev().take_while(|event| event.body.kind() != "run.running").collect();
    // What one commit holds has one position in the stream of bytes, and nothing was streamed after it.
    assert_eq!(last.len(), 4);
    assert!(last.iter().all(|event| event.pos == last[0].pos && event.at == last[0].at));
}

#[tokio::test]
async fn thoughts_are_shown_and_kept_nowhere_but_where_the_provider_demands_them() {
    for protocol in Protocol::ALL {
        let profile = "reasoning = \"low\"";
        let world = Setup { profile, ..Setup::protocol(protocol) }.start().await;
        world
            .server
            .enqueue(Reply::think("a secret thought", "c2lnbmVk").and_tool("add", json!({"a": 1, "b": 2})));
        world.server.enqueue(Reply::think("another one", "bW9yZQ==").and_text("3"));
        let run = world.play("add").await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}: {:?}", run.state);
        let second = world.asked(1).to_string();
        let back = if protocol == Protocol::Chat { "a secret thought" } else { "c2lnbmVk" };
        assert!(second.contains(back), "{protocol:?}: {second}");
        let messages = world.messages(run.id).await;
        assert!(messages[1].content.contains(&Block::Thinking {}), "{protocol:?}");
        // Once the run has ended nothing of it is left.
        let left = format!("{:?} {:?}", world.store.steps(run.id).await.unwrap(), world.events(run.id).await);
        assert!(!left.contains("secret") && !left.contains("c2lnbmVk"), "{protocol:?}: {left}");
    }
}

#[tokio::test]
async fn a_rate_limit_is_waited_for_as_long_as_the_provider_asks() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        world
            .server
            .enqueue(Reply::fail(Fault::RateLimited { retry_after: Some(20) }))
            .enqueue(Reply::text("ok"));
        let run = world.prompt("hi").await;
        world.happens(run.id, "progress.updated", 1).await;
        world.clock.advance(19_999);
        assert_eq!(world.server.counts().received, 1, "{protocol:?}");
        world.clock.advance(1);
        let run = world.ended(run.id).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}");
        assert_eq!(run.attempts, 1);
        let steps = world.steps(run.id).await;
        let shown: Vec<_> = steps.iter().map(|step| (step.no, step.stop_reason)).collect();
        assert_eq!(shown, [(1, StopReason::Error), (1, StopReason::Stop)], "{protocol:?}");
        assert_eq!(steps[0].error.as_ref().unwrap().code, "model_rate_limited");
        let told = world.bodies(run.id).await.into_iter().find_map(|body| match body {
            Body::ProgressUpdated { text } => Some(text),
            _ => None,
        });
        assert!(told.unwrap().contains("asked again in 20 s (try 2 of 3)"));
    }
}

#[tokio::test]
async fn nobody_waits_a_day_for_a_provider() {
    let world = Setup::default().start().await;
    world.server.enqueue(Reply::fail(Fault::RateLimited { retry_after: Some(86_400) }));
    let run = world.play("hi").await;
    assert_eq!(run.state.error().unwrap().code, "model_rate_limited");
    assert_eq!(world.server.counts().received, 1);
}

#[tokio::test]
async fn what_is_final_is_not_tried_again_and_the_session_goes_on() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        for (fault, code) in
            [(Fault::Unauthorized, "model_unauthorized"), (Fault::Invalid, "model_invalid_request")]
        {
            let before = world.server.counts().received;
            world.server.enqueue(Reply::fail(fault));
            let run = world.play("what is it").await;
            assert_eq!(run.state.error().unwrap().code, code, "{protocol:?}");
            assert_eq!((run.attempts, world.server.counts().received), (1, before + 1), "{protocol:?}");
            let messages = world.messages(run.id).await;
            assert_eq!(messages[1].status, MessageStatus::Failed);
        }
        world.server.enqueue(Reply::refuse());
        assert_eq!(world.play("no").await.state.error().unwrap().code, "model_refused", "{protocol:?}");
        world.server.enqueue(Reply::text("fine"));
        let run = world.play("last").await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}: {:?}", run.state);
        // The prompts stay; what failed is not shown.
        let asked = world.asked(3).to_string();
        assert_eq!(asked.matches("what is it").count(), 2, "{protocol:?}: {asked}");
    }
}

#[tokio::test]
async fn what_breaks_off_is_set_aside_and_tried_again_from_the_last_message() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        world
            .server
            .enqueue(Reply::text("half an").and(Action::Disconnect))
            .enqueue(Reply::text("a whole answer"));
        let run = world.prompt("hi").await;
        world.happens(run.id, "attempt.failed", 1).await;
        world.clock.advance(500);
        let run = world.ended(run.id).await;
        assert_eq!(
            (run.state.status(), run.attempts),
            (RunStatus::Succeeded, 2),
            "{protocol:?}: {:?}",
            run.state
        );
        let shown: Vec<_> =
            world.messages(run.id).await.iter().map(|message| (message.text(), message.status)).collect();
        let wanted = [
            ("hi".to_owned(), MessageStatus::Completed),
            ("half an".to_owned(), MessageStatus::Failed),
            ("a whole answer".to_owned(), MessageStatus::Completed),
        ];
        assert_eq!(shown, wanted, "{protocol:?}");
        assert!(!world.asked(1).to_string().contains("half an"), "{protocol:?}");
    }
}

#[tokio::test]
async fn a_bounded_number_of_tries_then_the_run_fails() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        for _ in 0..9 {
            world.server.enqueue(Reply::fail(Fault::Overloaded));
        }
        let run = world.prompt("hi").await;
        let turning = async {
            loop {
                world.clock.advance(1_000);
                if world.get(run.id).await.state.status().is_ended() {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        soon(turning).await;
        let run = world.get(run.id).await;
        assert_eq!(run.state.error().unwrap().code, "model_overloaded");
        assert_eq!((run.attempts, world.server.counts().received), (3, 9));
    }
}

#[tokio::test]
async fn a_cancelled_run_closes_its_connection_and_keeps_what_was_said() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        let gate = Gate::default();
        world.server.enqueue(Reply::text("so far").and(Action::Hold(gate.clone())).and_text("more"));
        let run = world.prompt("hi").await;
        soon(gate.reached()).await;
        let streamed = async {
            let by = mainspring_kernel::store::SessionRef::Id(run.session);
            let start = Some(mainspring_core::Position::default());
            let mut items = world.kernel.session_subscribe(&world.me, &by, start).await.unwrap();
            let mut text = String::new();
            while text != "so far" {
                if let mainspring_kernel::feed::Item::Delta(delta) = items.next().await.unwrap().unwrap() {
                    text += &delta.text;
                }
            }
        };
        soon(streamed).await;
        soon(world.kernel.run_cancel(&world.me, run.id)).await.unwrap();
        let run = world.ended(run.id).await;
        assert_eq!(run.state.status(), RunStatus::Cancelled, "{protocol:?}");
        soon(world.server.wait(|counts| counts.aborted == 1)).await;
        let messages = world.messages(run.id).await;
        assert_eq!((messages[1].text().as_str(), messages[1].status), ("so far", MessageStatus::Cancelled));
        assert_eq!(world.steps(run.id).await[0].stop_reason, StopReason::Cancelled);
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
        for (limits, named) in cases {
            let world = Setup::protocol(protocol).start().await;
            let run = world.send(limited(limits, &endless)).await;
            let run = world.ended(run.id).await;
            let error = run.state.error().unwrap().clone();
            assert_eq!(error.code, "limit_reached");
            assert!(error.message.contains(named), "{}", error.message);
            assert_eq!(world.server.counts().received, 1, "{named}");
            // What was done before stays, and its calls are answered.
            assert_eq!(world.results(run.id).await.len(), 2);
        }
        let world = Setup::protocol(protocol).start().await;
        let limits = RunLimits { max_time: Some(60_000), ..RunLimits::default() };
        let gate = Gate::default();
        world.server.enqueue(Reply::tool("add", json!({"a": 1, "b": 2})).and(Action::Hold(gate.clone())));
        let run = world.send(limited(limits, "x")).await;
        soon(gate.reached()).await;
        world.clock.advance(60_000);
        gate.open();
        assert_eq!(world.ended(run.id).await.state.error().unwrap().code, "limit_reached");
    }
}

#[tokio::test]
async fn at_a_limit_somebody_may_grant_as_much_again() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        let limits = RunLimits { max_steps: Some(1), ask: Some(true), ..RunLimits::default() };
        let script = "tool add {\"a\":1,\"b\":1}\nsay one\ntool add {\"a\":2,\"b\":2}\nsay done";
        let run = world.send(limited(limits, script)).await;
        let waiting = world.rested(run.id).await;
        assert_eq!(waiting.state.status(), RunStatus::WaitingApproval);
        assert!(waiting.state.wait().unwrap().question.contains("limit of 1 model calls"));
        world.allow(run.id).await;
        world.reaches(run.id, |status| status == RunStatus::Running || status.is_ended()).await;
        let waiting = world.rested(run.id).await;
        assert!(waiting.state.wait().unwrap().question.contains("limit of 2 model calls"));
        world.deny(run.id).await;
        let run = world.ended(run.id).await;
        assert_eq!(run.state.error().unwrap().code, "limit_reached");
        assert_eq!(world.server.counts().received, 2);
    }
}

#[tokio::test]
async fn a_cost_nobody_knows_cannot_be_limited() {
    let world = Setup::default().start().await;
    let limits = RunLimits { max_cost: Some(Cost::from(1.0)), ..RunLimits::default() };
    let options = RunOptions { limits, model: Some("unheard-of".into()), ..RunOptions::default() };
    let run = world.send(RunRequest { options, ..RunRequest::text("s", "hi") }).await;
    let run = world.ended(run.id).await;
    assert_eq!(run.state.error().unwrap().code, "model_price_unknown");
    assert_eq!(world.server.counts().received, 0);
}

fn formed(text: &str) -> RunRequest {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let options = RunOptions { output_schema: Some(schema), ..RunOptions::default() };
    RunRequest { options, ..RunRequest::text("s", text) }
}

async fn output(world: &crate::world::World, run: mainspring_core::RunId) -> (Value, Option<String>) {
    let bodies = world.bodies(run).await;
    let found = bodies.into_iter().find_map(|body| match body {
        Body::OutputCompleted { output, error } => Some((output, error.map(|error| error.code))),
        _ => None,
    });
    found.unwrap()
}

#[tokio::test]
async fn an_answer_has_its_form_or_is_asked_for_again_also_with_tools() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        world.server.enqueue(Reply::tool("add", json!({"a": 1, "b": 2})));
        world
            .server
            .enqueue(Reply::text("it is three"))
            .enqueue(Reply::text("{\"n\": \"3\"}"))
            .enqueue(Reply::text("{\"n\": 3}"));
        let run = world.send(formed("add")).await;
        let run = world.ended(run.id).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}");
        assert_eq!(output(&world, run.id).await, (json!({"n": 3}), None), "{protocol:?}");
        assert!(world.asked(0).to_string().contains("JSON Schema"), "{protocol:?}");
        assert!(world.asked(2).to_string().contains("it is not JSON"), "{protocol:?}");
        assert!(world.asked(3).to_string().contains("/n: "), "{protocol:?}");

        for _ in 0..4 {
            world.server.enqueue(Reply::text("no"));
        }
        let run = world.send(formed("again")).await;
        let run = world.ended(run.id).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?}");
        assert_eq!(
            output(&world, run.id).await,
            (Value::Null, Some("output_invalid".into())),
            "{protocol:?}"
        );
        assert_eq!(world.server.counts().received, 8, "{protocol:?}: asked three times more");
    }
}

/// Goes on until it has been asked `more` times.
struct Continuing {
    more: Mutex<u32>,
    heard: Arc<Mutex<Vec<String>>>,
}

#[async_trait]
impl Hooks for Continuing {
    async fn on_turn(&self, _of: Occasion, text: &str) -> Next {
        self.heard.lock().push(text.to_owned());
        let mut more = self.more.lock();
        if *more == 0 {
            return Next::Stop;
        }
        *more -= 1;
        Next::Continue(format!("say turn {more}"))
    }
}

#[tokio::test]
async fn a_continued_run_has_several_turns_and_its_steps_are_counted_together() {
    for protocol in Protocol::ALL {
        let heard = Arc::new(Mutex::new(vec![]));
        let world = Setup::protocol(protocol)
            .hooks(Continuing { more: Mutex::new(2), heard: heard.clone() })
            .start()
            .await;
        let run = world.play("say first").await;
        assert_eq!(run.state.status(), RunStatus::Succeeded);
        assert_eq!(*heard.lock(), ["first\n", "turn 1\n", "turn 0\n"]);
        let steps = world.steps(run.id).await;
        assert_eq!(steps.iter().map(|step| step.no).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(steps.iter().map(|step| step.prompt.messages).collect::<Vec<_>>(), [1, 3, 5]);
        assert_eq!(run.usage.input_tokens, 30, "a run's usage is the sum of its steps'");
        assert_eq!(steps[2].usage.input_tokens, 10, "a step's is its own");

        let more = Continuing { more: Mutex::new(9), heard };
        let world = Setup::protocol(protocol).hooks(more).start().await;
        let limits = RunLimits { max_steps: Some(3), ..RunLimits::default() };
        let run = world.send(limited(limits, "say first")).await;
        assert_eq!(world.ended(run.id).await.state.error().unwrap().code, "limit_reached");
        assert_eq!(world.server.counts().received, 3);
    }
}

#[tokio::test]
async fn what_is_not_configured_is_named() {
    let world = Setup::default().start().await;
    let options = RunOptions { model_profile: Some("poet".into()), ..RunOptions::default() };
    let run = world.send(RunRequest { options, ..RunRequest::text("s", "hi") }).await;
    let error = world.ended(run.id).await.state.error().unwrap().clone();
    assert_eq!(error.code, "model_not_configured");
    assert!(error.message.contains("main_reasoner"));
    let run = world.play_as("nobody@1", "hi").await;
    assert_eq!(run.state.error().unwrap().code, "agent_not_found");
}
