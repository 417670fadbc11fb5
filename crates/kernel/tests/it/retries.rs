//! Retries: more attempts of one run, never a second run.

use mainspring_core::{Limits, MessageStatus, RunStatus, Usage, WaitRequest};
use mainspring_kernel::Options;
use mainspring_kernel::adapter::{End, Executed, Record};

use crate::puppet::{PuppetBehavior, puppet, puppet_request, question};
use crate::world::{Disk, World, count, every_store, input, run_ready_tasks};

#[tokio::test]
async fn a_run_that_fails_once_succeeds_in_its_second_attempt() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let run = world.prompt("a", "usage 10 5; say partial; fail once; say whole").await;
        let run = world.advance_until(100, world.ended(run.id)).await;
        assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 2));
        let attempts = world.kernel.run_attempts(&world.me, run.id).await.unwrap();
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
        assert_eq!(run.state.error().unwrap().code, "script_failed");
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
        let attempts = world.kernel.run_attempts(&world.me, run.id).await.unwrap();
        let error = attempts[0].error.as_ref().unwrap();
        assert_eq!(error.code, "adapter_crashed");
        assert!(error.message.contains("the script said crash"));
        let run = world.prompt("a", "crash").await;
        let run = world.advance_until(500, world.ended(run.id)).await;
        assert_eq!(run.state.error().unwrap().code, "adapter_crashed");
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
        let queued = world.kernel.run_retry(&world.me, run.id).await.unwrap();
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
        let error = world.kernel.run_retry(&world.me, run.id).await.unwrap_err();
        assert_eq!(error.code(), "not_latest_run");
    }
}

#[tokio::test]
async fn only_the_latest_run_can_be_retried_and_only_after_its_end() {
    let world = World::on(Disk::memory()).await;
    let first = world.play("a", "fail for good").await;
    let retry = |run| world.kernel.run_retry(&world.me, run);
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
    execution.end(End::failed(mainspring_core::Failure::new("x", "y"), false));
    world.ended(run.id).await;
    assert_eq!(world.path("a").await.len(), 3);
    world.kernel.run_retry(&world.me, run.id).await.unwrap();
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
