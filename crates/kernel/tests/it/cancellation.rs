//! Cancellation: requested, dispatched, acknowledged, stopped. Only known stages are recorded.

use mainspring_core::{Body, CancelReason, MessageStatus, Policy, Position, RunId, RunState, RunStatus};
use mainspring_kernel::Options;
use mainspring_kernel::adapter::{Death, Dispatch, End, HandleError, Record};
use mainspring_kernel::kernel::{CancelOutcome, RunRequest};

use crate::puppet::{PuppetBehavior, PuppetControl, puppet, puppet_request};
use crate::world::{Disk, World, count, every_store, kinds, read_until, run_ready_tasks, with_timeout};

async fn stage(disk: Disk, behavior: PuppetBehavior, options: Options) -> (World, PuppetControl) {
    let (adapter, control) = puppet(&disk.store, behavior);
    (World::with(disk, options, vec![adapter]).await, control)
}

async fn cancel(world: &World, run: RunId) -> CancelOutcome {
    with_timeout(world.kernel.run_cancel(&world.me, run)).await.unwrap()
}

fn with_policy(key: &str, script: &str, policy: Policy) -> RunRequest {
    RunRequest { policy, ..RunRequest::text(key, script) }
}

#[tokio::test]
async fn a_queued_run_is_cancelled_at_once_even_if_every_worker_is_busy() {
    for disk in every_store() {
        let options = Options { max_workers: 1, ..Options::default() };
        let world = World::with(disk, options, vec![]).await;
        world.prompt("a", "ignore-cancel; hang").await;
        let queued = [world.prompt("a", "say hi").await, world.prompt("b", "say hi").await];
        for run in queued {
            let outcome = cancel(&world, run.id).await;
            assert_eq!(outcome.status, RunStatus::Cancelled);
            assert!(outcome.accepted && !outcome.dispatch_attempted && outcome.attempt_id.is_none());
            assert_eq!(world.get(run.id).await.attempts, 0);
        }
        assert!(world.path("b").await.is_empty(), "a prompt that never ran is not on the path");
        assert_eq!(
            kinds(&world.events("b").await),
            ["session.created", "run.queued", "run.cancellation_requested", "run.cancelled"]
        );
    }
}

#[tokio::test]
async fn a_cancellation_is_stored_before_it_is_dispatched_and_its_stages_are_recorded() {
    for disk in every_store() {
        let behavior = PuppetBehavior {
            dispatch: Dispatch { dispatched: true, acknowledged: true },
            ..PuppetBehavior::default()
        };
        let (world, mut control) = stage(disk, behavior, Options::default()).await;
        let run = world.send(puppet_request("a", "go")).await.unwrap().run;
        let execution = control.next().await;
        execution.handle.delta(0, "half a ").unwrap();
        let outcome = cancel(&world, run.id).await;
        assert_eq!(outcome.status, RunStatus::Cancelling, "a dispatched cancellation is not the end");
        assert!(outcome.dispatch_attempted && outcome.adapter_acknowledged);
        assert_eq!(control.log(), ["execute while running", "cancel while cancelling"]);
        assert!(execution.handle.is_cancelled());
        // The agent may still record text while it stops.
        execution.handle.delta(0, "word").unwrap();
        execution.handle.record(vec![Record::Progress { text: "stopping".into() }]).await.unwrap();
        execution.end(End::stopped());
        let run = world.ended(run.id).await;
        assert_eq!(run.state, RunState::Cancelled { reason: CancelReason::Requested });
        let attempt = world.kernel.run_attempts(&world.me, run.id).await.unwrap().items.remove(0);
        assert_eq!(attempt.status, RunStatus::Cancelled);
        assert!(
            attempt.cancellation.requested_at.is_some() && attempt.cancellation.acknowledged_at.is_some()
        );
        let last = world.path("a").await.pop().unwrap();
        assert_eq!((last.status, last.text().as_str()), (MessageStatus::Cancelled, "half a word"));
    }
}

#[tokio::test]
async fn a_success_reported_after_a_cancellation_counts_as_cancelled() {
    for end in [0, 1, 2] {
        let (world, mut control) = stage(Disk::memory(), PuppetBehavior::default(), Options::default()).await;
        let run = world.send(puppet_request("a", "go")).await.unwrap().run;
        let execution = control.next().await;
        execution.handle.delta(0, "partial").unwrap();
        cancel(&world, run.id).await;
        execution.end(match end {
            0 => End::succeeded(),
            1 => End::failed(mainspring_core::Failure::new("x", "y"), true),
            _ => End::stopped(),
        });
        assert_eq!(world.ended(run.id).await.state.status(), RunStatus::Cancelled);
        let last = world.path("a").await.pop().unwrap();
        assert_eq!((last.status, last.text().as_str()), (MessageStatus::Cancelled, "partial"));
        run_ready_tasks().await;
        assert!(control.is_idle(), "a cancelled run is not retried");
    }
}

#[tokio::test]
async fn an_agent_that_ignores_a_cancellation_is_killed_after_the_grace_period() {
    let world = World::on(Disk::memory()).await;
    let run = world.prompt("a", "say partial; ignore-cancel; hang").await;
    let next = world.prompt("a", "say next").await;
    let outcome = cancel(&world, run.id).await;
    assert_eq!((outcome.status, outcome.dispatch_attempted), (RunStatus::Cancelling, true));
    // A change of the system time does not count as elapsed time.
    world.clock.set_system_time(3_600_000);
    run_ready_tasks().await;
    world.clock.advance(4_999);
    run_ready_tasks().await;
    assert_eq!(world.get(run.id).await.state.status(), RunStatus::Cancelling);
    world.clock.advance(1);
    assert_eq!(world.ended(run.id).await.state.status(), RunStatus::Cancelled);
    assert_eq!(world.ended(next.id).await.state.status(), RunStatus::Succeeded);
    let events = world.events("a").await;
    let proof = events.iter().find_map(|event| match event.body {
        Body::AttemptCancelled { proof } => Some(proof),
        _ => None,
    });
    assert_eq!(proof, Some(mainspring_core::Proof::Killed));
    insta::assert_snapshot!(world.path_text("a").await, @r#"
    user completed "say partial; ignore-cancel; hang"
    assistant cancelled "partial\n" + error cancelled
    user completed "say next"
    assistant completed "next\n"
    "#);
}

#[tokio::test]
async fn an_attempt_without_proof_that_it_stopped_is_orphaned() {
    // A kill without proof, and a kill that never returns.
    for death in [Some(Death::Unproven), None] {
        let behavior = PuppetBehavior { death, ..PuppetBehavior::default() };
        let (world, mut control) = stage(Disk::memory(), behavior, Options::default()).await;
        let run = world.send(puppet_request("a", "go")).await.unwrap().run;
        let execution = control.next().await;
        let tool = Record::ToolStarted {
            tool_use_id: "t1".into(),
            name: "deploy".into(),
            input: None,
            decided_by: None,
        };
        execution.handle.record(vec![tool]).await.unwrap();
        cancel(&world, run.id).await;
        let run = world.advance_until(1_000, world.ended(run.id)).await;
        assert_eq!(run.state.status(), RunStatus::Orphaned);
        assert_eq!(run.state.error().unwrap().code.as_str(), "cancel_unproven");
        assert_eq!(control.log().last().unwrap(), "kill while cancelling");
        let events = world.events("a").await;
        assert!(events.iter().any(|event| matches!(
            &event.body,
            Body::ToolFailed { outcome: mainspring_core::ToolOutcome::Unknown, .. }
        )));
        world.send(puppet_request("a", "next")).await.unwrap();
        control.next().await;
    }
}

#[tokio::test]
async fn a_cancellation_without_an_answer_is_not_recorded_as_dispatched() {
    let behavior = PuppetBehavior { answers_cancel: false, ..PuppetBehavior::default() };
    let (world, mut control) = stage(Disk::memory(), behavior, Options::default()).await;
    let run = world.send(puppet_request("a", "go")).await.unwrap().run;
    let _execution = control.next().await;
    let outcome = world.advance_until(500, world.kernel.run_cancel(&world.me, run.id)).await.unwrap();
    assert!(outcome.accepted && !outcome.dispatch_attempted && !outcome.adapter_acknowledged);
    let run = world.advance_until(500, world.ended(run.id)).await;
    assert_eq!(run.state.status(), RunStatus::Cancelled, "it was killed");
    let events = world.events("a").await;
    let dispatched: Vec<bool> = events
        .iter()
        .filter_map(|event| match event.body {
            Body::AttemptCancelDispatch { dispatched, .. } => Some(dispatched),
            _ => None,
        })
        .collect();
    assert_eq!(dispatched, [false]);
}

#[tokio::test]
async fn cancelling_twice_dispatches_once() {
    let (world, mut control) = stage(Disk::memory(), PuppetBehavior::default(), Options::default()).await;
    let run = world.send(puppet_request("a", "go")).await.unwrap().run;
    let execution = control.next().await;
    let both = async { tokio::join!(cancel(&world, run.id), cancel(&world, run.id)) };
    let (first, second) = with_timeout(both).await;
    assert_eq!(first, second);
    assert_eq!(cancel(&world, run.id).await, first);
    execution.end(End::stopped());
    world.ended(run.id).await;
    assert_eq!(count(&world.events("a").await, "run.cancellation_requested"), 1);
    assert_eq!(control.log().len(), 2);
}

#[tokio::test]
async fn an_ended_run_cannot_be_cancelled() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let run = world.play("a", "say hi").await;
        let before = world.events("a").await;
        let error = world.kernel.run_cancel(&world.me, run.id).await.unwrap_err();
        assert_eq!((error.code(), error.is_retryable()), ("run_ended", false));
        assert_eq!(world.events("a").await, before);
    }
}

#[tokio::test]
async fn records_after_the_end_of_a_run_are_refused_and_counted() {
    for disk in every_store() {
        let (world, mut control) = stage(disk, PuppetBehavior::default(), Options::default()).await;
        let run = world.send(puppet_request("a", "go")).await.unwrap().run;
        let late = control.next().await.end(End::succeeded());
        world.ended(run.id).await;
        let (_, events) = world.subscribe("a", None).await;
        let before = world.events("a").await;
        let counted = events.late_calls();
        assert_eq!(late.delta(0, "late").unwrap_err(), HandleError::Revoked);
        assert_eq!(late.thought("late").unwrap_err(), HandleError::Revoked);
        let record = vec![Record::Progress { text: "late".into() }];
        assert_eq!(late.record(record.clone()).await.unwrap_err(), HandleError::Revoked);
        assert_eq!(late.path(1).await.unwrap_err(), HandleError::Revoked);
        let ask = crate::puppet::question(mainspring_core::WaitRequest::Input, None);
        assert_eq!(late.ask(ask).await.unwrap_err(), HandleError::Revoked);
        assert_eq!(events.late_calls() - counted, 5);
        // The ended attempt cannot affect the next run of its session.
        world.send(puppet_request("a", "next")).await.unwrap();
        let next = control.next().await;
        assert_eq!(late.delta(0, "late").unwrap_err(), HandleError::Revoked);
        assert_eq!(late.record(record).await.unwrap_err(), HandleError::Revoked);
        let run = next.handle.assignment().run.id;
        next.end(End::succeeded());
        world.ended(run).await;
        assert!(!world.path_text("a").await.contains("late"));
        assert_eq!(world.events("a").await[..before.len()], before, "{}", world.disk.name);
        assert_eq!(events.late_calls() - counted, 7);
    }
}

#[tokio::test]
async fn a_busy_session_rejects_a_prompt_with_the_reject_policy() {
    let world = World::on(Disk::memory()).await;
    let run = world.prompt("a", "hang").await;
    let before = world.events("a").await;
    let error = world.send(with_policy("a", "say no", Policy::Reject)).await.unwrap_err();
    assert_eq!(error.code(), "session_busy");
    assert_eq!(world.events("a").await, before);
    cancel(&world, run.id).await;
    world.ended(run.id).await;
    let accepted = world.send(with_policy("a", "say yes", Policy::Reject)).await.unwrap();
    assert_eq!(world.ended(accepted.run.id).await.state.status(), RunStatus::Succeeded);
}

#[tokio::test]
async fn a_replacing_prompt_cancels_queued_runs_but_not_the_active_one() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let works = world.prompt("a", "hang").await;
        let waits = [world.prompt("a", "say 1").await, world.prompt("a", "say 2").await];
        let accepted = world.send(with_policy("a", "say 3", Policy::Replace)).await.unwrap();
        for run in waits {
            let run = world.ended(run.id).await;
            assert_eq!(run.state, RunState::Cancelled { reason: CancelReason::Superseded });
        }
        assert_eq!(world.get(works.id).await.state.status(), RunStatus::Running);
        cancel(&world, works.id).await;
        assert_eq!(world.ended(accepted.run.id).await.state.status(), RunStatus::Succeeded);
    }
}

#[tokio::test]
async fn an_interrupting_prompt_cancels_the_active_run_and_runs_next() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let works = world.prompt("a", "say partial; progress x; hang").await;
        let (_, mut events) = world.subscribe("a", Some(Position::START)).await;
        read_until(&mut events, "progress.updated").await;
        let waits = world.prompt("a", "say 1").await;
        let accepted = world.send(with_policy("a", "say 2", Policy::Interrupt)).await.unwrap();
        assert_eq!(world.ended(accepted.run.id).await.state.status(), RunStatus::Succeeded);
        for run in [works, waits] {
            let superseded = RunState::Cancelled { reason: CancelReason::Superseded };
            assert_eq!(world.get(run.id).await.state, superseded);
        }
        let path = world.path_text("a").await;
        insta::allow_duplicates! {
            insta::assert_snapshot!(path, @r#"
            user completed "say partial; progress x; hang"
            assistant cancelled "partial\n" + error cancelled
            user completed "say 2"
            assistant completed "2\n"
            "#);
        }
    }
}

#[tokio::test]
async fn an_interrupting_prompt_does_not_wait_for_a_run_that_pauses_before_a_retry() {
    let world = World::on(Disk::memory()).await;
    let fails = world.prompt("a", "say partial; fail retry").await;
    world.wait_until(fails.id, |run| run.attempts == 1 && run.state.holder().is_none()).await;
    let accepted = world.send(with_policy("a", "say now", Policy::Interrupt)).await.unwrap();
    assert_eq!(world.ended(accepted.run.id).await.state.status(), RunStatus::Succeeded);
    assert_eq!(world.get(fails.id).await.state.status(), RunStatus::Cancelled);
}
