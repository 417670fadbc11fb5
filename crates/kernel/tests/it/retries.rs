//! Retries: more attempts of one run, never a second run.

use mainspring_core::{
    Body, Failure, Fallback, Limits, MessageStatus, RetryReason, RunChange, RunId, RunLimits, RunStatus,
    Usage, WaitRequest,
};
use mainspring_kernel::Options;
use mainspring_kernel::adapter::{End, Executed, Record};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::kernel::RunRequest;

use crate::puppet::{PuppetBehavior, puppet, puppet_request, question};
use crate::world::{Disk, NOW, World, count, every_store, input, run_process, run_ready_tasks};

#[tokio::test]
async fn a_run_that_fails_once_succeeds_in_its_second_attempt() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let run = world.prompt("a", "usage 10 5; say partial; fail once; say whole").await;
        let run = world.advance_until(100, world.ended(run.id)).await;
        assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 2));
        let attempts = world.kernel.run_attempts(&world.me, run.id).await.unwrap().items;
        let states: Vec<_> = attempts.iter().map(|attempt| (attempt.no, attempt.status)).collect();
        assert_eq!(states, [(1, RunStatus::Failed), (2, RunStatus::Succeeded)]);
        assert_eq!(attempts[1].resume_from, Some(attempts[0].id));
        let sum = attempts.iter().fold(Usage::default(), |sum, attempt| sum + attempt.usage);
        assert_eq!((run.usage, run.usage.input_tokens), (sum, 20), "usage is that of all attempts");
        let tree = world.tree("a").await;
        let aside: Vec<_> = tree.nodes.iter().filter(|node| node.abandoned).collect();
        assert_eq!(aside.len(), 1);
        assert_eq!((aside[0].message.status, aside[0].active), (MessageStatus::Failed, false));
        assert_eq!(aside[0].message.text(), "partial\n");
        assert_eq!(world.path("a").await.len(), 2, "{}", world.disk.name);
    }
}

#[tokio::test]
async fn the_pause_before_the_next_attempt_is_respected() {
    let world = World::on(Disk::memory()).await;
    let run = world.prompt("a", "fail retry").await;
    for pause in [500, 1_000] {
        world.wait_until(run.id, |run| run.state.status() == RunStatus::Queued).await;
        let before = world.get(run.id).await.attempts;
        world.clock.advance(pause - 1);
        run_ready_tasks().await;
        assert_eq!(world.get(run.id).await.attempts, before);
        world.clock.advance(1);
        world.wait_until(run.id, |run| run.attempts == before + 1).await;
    }
}

#[tokio::test]
async fn a_run_without_attempts_left_has_failed() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let run = world.prompt("a", "say partial; fail retry no luck").await;
        let run = world.advance_until(500, world.ended(run.id)).await;
        assert_eq!((run.state.status(), run.attempts), (RunStatus::Failed, 3));
        assert_eq!(run.state.error().unwrap().code.as_str(), "script_failed");
        assert_eq!(count(&world.events("a").await, "attempt.failed"), 3);
        let last = world.path("a").await.pop().unwrap();
        assert_eq!((last.status, last.text().as_str()), (MessageStatus::Failed, "partial\n"));
        let next = world.play("a", "say next").await;
        assert_eq!(next.state.status(), RunStatus::Succeeded);
    }
}

#[tokio::test]
async fn a_failure_that_is_not_retryable_is_not_retried() {
    let world = World::on(Disk::memory()).await;
    let run = world.play("a", "say partial; fail for good").await;
    assert_eq!((run.state.status(), run.attempts), (RunStatus::Failed, 1));
}

#[tokio::test]
async fn a_crash_of_the_agent_is_retried() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let run = world.prompt("a", "say partial; crash once; say alive").await;
        let run = world.advance_until(100, world.ended(run.id)).await;
        assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 2));
        let attempts = world.kernel.run_attempts(&world.me, run.id).await.unwrap().items;
        let error = attempts[0].error.as_ref().unwrap();
        assert_eq!(error.code.as_str(), "adapter_crashed");
        assert!(error.message.contains("the script said crash"));
        let run = world.prompt("a", "crash").await;
        let run = world.advance_until(500, world.ended(run.id)).await;
        assert_eq!(run.state.error().unwrap().code.as_str(), "adapter_crashed");
        assert_eq!(run.attempts, 3);
    }
}

#[tokio::test]
async fn a_failed_run_can_be_retried_and_continues_after_its_messages() {
    for disk in every_store() {
        let options = Options { limits: Limits { attempts: 1, ..Limits::default() }, ..Options::default() };
        let world = World::with(disk, options, vec![]).await;
        let run = world.play("a", r#"tool add {"a": 1, "b": 1}; say half; fail once; say rest"#).await;
        assert_eq!(run.state.status(), RunStatus::Failed);
        assert!(world.path_text("a").await.contains("error script_failed"));
        let queued = world.kernel.run_retry(&world.me, run.id, RunChange::default()).await.unwrap();
        assert_eq!(queued.state.status(), RunStatus::Queued);
        let run = world.ended(run.id).await;
        assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 2));
        let path = world.path_text("a").await;
        insta::allow_duplicates! {
            insta::assert_snapshot!(path, @r#"
            user completed "tool add {\"a\": 1, \"b\": 1}; say half; fail once; say rest"
            assistant completed call add
            user completed result "2" error=false
            assistant completed call add
            user completed result "2" error=false
            assistant completed "half\nrest\n"
            "#);
        }
        let next = world.play("a", "say next").await;
        assert_eq!(next.state.status(), RunStatus::Succeeded);
        let error = world.kernel.run_retry(&world.me, run.id, RunChange::default()).await.unwrap_err();
        assert_eq!(error.code(), "not_latest_run");
    }
}

#[tokio::test]
async fn only_the_latest_run_can_be_retried_and_only_after_its_end() {
    let world = World::on(Disk::memory()).await;
    let first = world.play("a", "fail for good").await;
    let retry = |run| world.kernel.run_retry(&world.me, run, RunChange::default());
    let second = world.play("a", "say hi").await;
    assert_eq!(retry(first.id).await.unwrap_err().code(), "not_latest_run");
    assert_eq!(retry(second.id).await.unwrap_err().code(), "wrong_state", "it succeeded");
    let third = world.prompt("a", "say partial; hang").await;
    assert_eq!(retry(third.id).await.unwrap_err().code(), "session_busy");
    world.kernel.run_cancel(&world.me, third.id).await.unwrap();
    world.ended(third.id).await;
    assert_eq!(retry(third.id).await.unwrap_err().code(), "wrong_state", "it was cancelled");
    let before = world.events("a").await.len();
    retry(third.id).await.unwrap_err();
    assert_eq!(world.events("a").await.len(), before);
}

#[tokio::test]
async fn a_retry_continues_below_all_failed_attempts() {
    let disk = Disk::memory();
    let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
    let world = World::with(disk, Options::default(), vec![adapter]).await;
    let run = world.send(puppet_request("a", "go")).await.unwrap().run;
    let execution = control.next().await;
    execution.handle.delta(0, "one").unwrap();
    execution.end(Executed::Waiting(question(WaitRequest::Input, None)));
    let wait = world.wait_for_question(run.id).await;
    world.kernel.run_answer(&world.me, run.id, wait, input("x")).await.unwrap();
    let execution = control.next().await;
    execution.handle.delta(0, "two").unwrap();
    execution.end(End::failed(Failure::new("x", "y"), false));
    world.ended(run.id).await;
    assert_eq!(world.path("a").await.len(), 3);
    world.kernel.run_retry(&world.me, run.id, RunChange::default()).await.unwrap();
    let execution = control.next().await;
    let path = execution.handle.path(10).await.unwrap();
    assert_eq!(path.iter().map(|message| message.text()).collect::<Vec<_>>(), ["go"]);
    let done = Record::Message { blocks: vec![mainspring_core::Block::text("done")], usage: None };
    execution.handle.record(vec![done]).await.unwrap();
    execution.end(End::succeeded());
    world.ended(run.id).await;
    let texts: Vec<String> = world.path("a").await.iter().map(|message| message.text()).collect();
    assert_eq!(texts, ["go", "done"]);
}

async fn reasons(world: &World, run: RunId) -> Vec<(String, Option<RetryReason>)> {
    let attempts = world.kernel.run_attempts(&world.me, run).await.unwrap().items;
    attempts.into_iter().map(|attempt| (attempt.adapter, attempt.retry_reason)).collect()
}

#[tokio::test]
async fn a_run_that_reached_its_limit_succeeds_with_higher_limits() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let mut request = RunRequest::text("a", "usage 10 5; usage 1 1; say done");
        request.options.limits = RunLimits { max_tokens: Some(12), ask: Some(false), ..RunLimits::default() };
        let run = world.send(request).await.unwrap().run;
        let run = world.ended(run.id).await;
        assert_eq!(run.state.error().unwrap().code.as_str(), "limit_reached");
        let raised = RunLimits { max_tokens: Some(1_000), max_time: Some(60_000), ..RunLimits::default() };
        world.clock.advance(120_000);
        let change = RunChange { limits: raised, ..RunChange::default() };
        let queued = world.kernel.run_retry(&world.me, run.id, change).await.unwrap();
        assert_eq!(queued.options.limits, RunLimits { ask: Some(false), ..raised }, "other limits stay");
        let run = world.ended(run.id).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "the time limit counts from the retry");
        let script = |reason| ("script".to_owned(), reason);
        assert_eq!(reasons(&world, run.id).await, [script(None), script(Some(RetryReason::User))]);
        let stored = world.disk.store.run_get(run.id).await.unwrap().unwrap();
        assert_eq!((stored.options.limits, stored.retried_at.is_some()), (queued.options.limits, true));
    }
}

#[tokio::test]
async fn a_retry_can_change_the_adapter_and_the_model() {
    for disk in every_store() {
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let first = PuppetBehavior { name: "first", ..PuppetBehavior::default() };
        let (first, mut first_control) = puppet(&disk.store, first);
        let world = World::with(disk, Options::default(), vec![adapter, first]).await;
        let mut request = RunRequest { adapter: Some("first".into()), ..RunRequest::text("a", "go") };
        request.options.model = Some("m1".into());
        let run = world.send(request).await.unwrap().run;
        first_control.next().await.end(End::failed(Failure::new("x", "y"), false));
        world.ended(run.id).await;
        let retry = |change| world.kernel.run_retry(&world.me, run.id, change);
        let to = |adapter: &str| RunChange { adapter: Some(adapter.into()), ..RunChange::default() };
        assert_eq!(retry(to("pupet")).await.unwrap_err().code(), "adapter_not_registered");
        assert_eq!(
            world.get(run.id).await.state.status(),
            RunStatus::Failed,
            "a refused retry changes nothing"
        );
        let queued = retry(to("puppet")).await.unwrap();
        assert_eq!(
            (queued.adapter.as_str(), &queued.options.model),
            ("puppet", &None),
            "m1 is another's model"
        );
        control.next().await.end(End::failed(Failure::new("x", "y"), false));
        world.ended(run.id).await;
        retry(RunChange { model: Some("m2".into()), ..RunChange::default() }).await.unwrap();
        let handle = control.next().await.end(End::succeeded());
        assert_eq!(handle.assignment().run.options.model.as_deref(), Some("m2"));
        world.ended(run.id).await;
        let events = world.events("a").await;
        let created: Vec<_> = events
            .iter()
            .filter_map(|event| match &event.body {
                Body::AttemptCreated { adapter, retry_reason, .. } => Some((adapter.clone(), *retry_reason)),
                _ => None,
            })
            .collect();
        assert_eq!(created, reasons(&world, run.id).await);
        assert_eq!(created[2], ("puppet".into(), Some(RetryReason::User)));
    }
}

#[tokio::test]
async fn a_retry_cannot_use_an_adapter_that_lacks_what_the_run_needs() {
    let disk = Disk::memory();
    let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
    let poor = PuppetBehavior { name: "poor", client_tools: false, ..PuppetBehavior::default() };
    let (poor, _) = puppet(&disk.store, poor);
    let world = World::with(disk, Options::default(), vec![adapter, poor]).await;
    let mut request = puppet_request("a", "go");
    request.options.tools = vec![mainspring_core::ClientTool {
        name: "rain".into(),
        description: "Tells the rain".into(),
        input_schema: serde_json::json!({"type": "object"}),
        ..mainspring_core::ClientTool::default()
    }];
    let run = world.send(request).await.unwrap().run;
    control.next().await.end(End::failed(Failure::new("x", "y"), false));
    world.ended(run.id).await;
    let change = RunChange { adapter: Some("poor".into()), ..RunChange::default() };
    let error = world.kernel.run_retry(&world.me, run.id, change).await.unwrap_err();
    assert_eq!(error.code(), "adapter_incompatible");
}

fn with_fallbacks(of: &str, fallbacks: &[&str]) -> Options {
    // The script agent has no model.
    let model = |adapter: &str| (adapter != "script").then(|| "spare".to_owned());
    let fallback = |adapter: &&str| Fallback { adapter: (*adapter).into(), model: model(adapter) };
    let fallbacks = fallbacks.iter().map(fallback).collect();
    Options { fallbacks: [(of.to_owned(), fallbacks)].into(), ..Options::default() }
}

#[tokio::test]
async fn another_adapter_takes_over_when_one_fails_before_any_output() {
    for disk in every_store() {
        let (first, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let second = PuppetBehavior { name: "second", ..PuppetBehavior::default() };
        let (second, mut other) = puppet(&disk.store, second);
        let options = with_fallbacks("puppet", &["missing", "second", "script"]);
        let world = World::with(disk, options, vec![first, second]).await;
        let mut request = puppet_request("a", "say hello");
        request.options.model = Some("m1".into());
        let run = world.send(request).await.unwrap().run;
        control.next().await.end(End::failed(Failure::new("authentication", "log in"), false));
        let execution = other.next().await;
        assert_eq!(execution.handle.assignment().run.options.model.as_deref(), Some("spare"));
        execution.end(End::failed(Failure::new("model_quota_exhausted", "pay"), false));
        let run = world.ended(run.id).await;
        assert_eq!((run.state.status(), run.adapter.as_str()), (RunStatus::Succeeded, "script"));
        let failover = Some(RetryReason::Failover);
        let expected = [("puppet", None), ("second", failover), ("script", failover)];
        assert_eq!(reasons(&world, run.id).await, expected.map(|(name, reason)| (name.to_owned(), reason)));
        assert_eq!(world.path("a").await.last().unwrap().text(), "hello\n");
    }
}

#[tokio::test]
async fn no_other_adapter_takes_over_after_output_or_for_a_failure_of_the_request() {
    let disk = Disk::memory();
    let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
    let world = World::with(disk, with_fallbacks("puppet", &["script"]), vec![adapter]).await;
    let unavailable = || End::failed(Failure::new("adapter_unavailable", "gone"), false);
    let tool =
        Record::ToolStarted { tool_use_id: "t".into(), name: "write".into(), input: None, decided_by: None };
    for what in ["text", "tool", "request"] {
        let run = world.send(puppet_request("a", "say hello")).await.unwrap().run;
        let execution = control.next().await;
        match what {
            "text" => execution.handle.delta(0, "half").unwrap(),
            "tool" => execution.handle.record(vec![tool.clone()]).await.unwrap(),
            _ => {}
        }
        execution.end(match what {
            "request" => End::failed(Failure::new("limit_reached", "spent"), false),
            _ => unavailable(),
        });
        let run = world.ended(run.id).await;
        assert_eq!((run.state.status(), run.adapter.as_str()), (RunStatus::Failed, "puppet"), "{what}");
    }
}

#[test]
fn the_order_of_runs_does_not_depend_on_the_clock() {
    for disk in every_store() {
        let first = run_process(async {
            let clock = Clock::manual(NOW.plus(3_600_000));
            let world = World::boot(disk.clone(), Options::default(), vec![], clock, 1).await;
            world.play("a", "fail now").await.id
        });
        run_process(async {
            let world = World::reboot(&disk).await;
            for _ in 0..25 {
                world.play("a", "say hi").await;
            }
            let error = world.kernel.run_retry(&world.me, first, RunChange::default()).await.unwrap_err();
            assert_eq!(error.code(), "not_latest_run", "{}", disk.name);
        });
    }
}
