//! Cancellation: requested, dispatched, acknowledged, stopped; and nothing claimed that is not known.

use mainspring_core::{Body, CancelReason, MessageStatus, Policy, Position, RunId, RunState, RunStatus};
use mainspring_kernel::Options;
use mainspring_kernel::adapter::{Death, Dispatch, End, HandleError, Record};
use mainspring_kernel::kernel::{CancelOutcome, RunRequest};

use crate::puppet::{Hands, Manners, pull, puppet};
use crate::world::{Disk, World, count, every_store, kinds, read_until, settle, soon};

async fn stage(disk: Disk, manners: Manners, options: Options) -> (World, Hands) {
    let (adapter, hands) = puppet(&disk.store, manners);
    (World::with(disk, options, vec![adapter]).await, hands)
}

async fn cancel(world: &World, run: RunId) -> CancelOutcome {
    soon(world.kernel.run_cancel(&world.me, run)).await.unwrap()
}

fn with_policy(key: &str, script: &str, policy: Policy) -> RunRequest {
    RunRequest { policy, ..RunRequest::text(key, script) }
}

#[tokio::test]
async fn a_queued_run_ends_at_once_though_every_worker_is_busy() {
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
async fn a_wish_to_stop_is_stored_before_the_agent_hears_of_it_and_its_stages_are_told_apart() {
    for disk in every_store() {
        let manners =
            Manners { dispatch: Dispatch { dispatched: true, acknowledged: true }, ..Manners::default() };
        let (world, mut hands) = stage(disk, manners, Options::default()).await;
        let run = world.send(pull("a", "go")).await.unwrap().run;
        let strings = hands.next().await;
        strings.handle.delta(0, "half a ").unwrap();
        let outcome = cancel(&world, run.id).await;
        assert_eq!(outcome.status, RunStatus::Cancelling, "told to stop is not stopped");
        assert!(outcome.dispatch_attempted && outcome.adapter_acknowledged);
        assert_eq!(hands.log(), ["execute while running", "cancel while cancelling"]);
        assert!(strings.handle.is_cancelled());
        // It may still say something while it stops.
        strings.handle.delta(0, "word").unwrap();
        strings.handle.record(vec![Record::Progress { text: "stopping".into() }]).await.unwrap();
        strings.end(End::stopped());
        let run = world.ended(run.id).await;
        assert_eq!(run.state, RunState::Cancelled { reason: CancelReason::Requested });
        let attempt = world.kernel.run_attempts(&world.me, run.id).await.unwrap().remove(0);
        assert_eq!(attempt.status, RunStatus::Cancelled);
        assert!(
            attempt.cancellation.requested_at.is_some() && attempt.cancellation.acknowledged_at.is_some()
        );
        let last = world.path("a").await.pop().unwrap();
        assert_eq!((last.status, last.text().as_str()), (MessageStatus::Cancelled, "half a word"));
    }
}

#[tokio::test]
async fn an_agent_that_says_it_succeeded_after_it_was_told_to_stop_was_cancelled() {
    for end in [0, 1, 2] {
        let (world, mut hands) = stage(Disk::memory(), Manners::default(), Options::default()).await;
        let run = world.send(pull("a", "go")).await.unwrap().run;
        let strings = hands.next().await;
        strings.handle.delta(0, "partial").unwrap();
        cancel(&world, run.id).await;
        strings.end(match end {
            0 => End::succeeded(),
            1 => End::failed(mainspring_core::Failure::new("x", "y"), true),
            _ => End::stopped(),
        });
        assert_eq!(world.ended(run.id).await.state.status(), RunStatus::Cancelled);
        let last = world.path("a").await.pop().unwrap();
        assert_eq!((last.status, last.text().as_str()), (MessageStatus::Cancelled, "partial"));
        settle().await;
        assert!(hands.is_idle(), "what was cancelled is not tried again");
    }
}

#[tokio::test]
async fn an_agent_that_ignores_it_is_killed_after_the_grace_and_the_next_prompt_runs() {
    let world = World::on(Disk::memory()).await;
    let run = world.prompt("a", "say partial; ignore-cancel; hang").await;
    let next = world.prompt("a", "say next").await;
    let outcome = cancel(&world, run.id).await;
    assert_eq!((outcome.status, outcome.dispatch_attempted), (RunStatus::Cancelling, true));
    world.clock.advance(4_999);
    settle().await;
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
    insta::assert_snapshot!(world.path_shown("a").await, @r#"
    user completed "say partial; ignore-cancel; hang"
    assistant cancelled "partial\n" + error cancelled
    user completed "say next"
    assistant completed "next\n"
    "#);
}

#[tokio::test]
async fn what_cannot_be_proven_to_have_stopped_is_orphaned_and_not_called_cancelled() {
    // Unproven, and an adapter that never comes back from killing.
    for death in [Some(Death::Unproven), None] {
        let manners = Manners { death, ..Manners::default() };
        let (world, mut hands) = stage(Disk::memory(), manners, Options::default()).await;
        let run = world.send(pull("a", "go")).await.unwrap().run;
        let strings = hands.next().await;
        let tool = Record::ToolStarted { tool_use_id: "t1".into(), name: "deploy".into(), input: None };
        strings.handle.record(vec![tool]).await.unwrap();
        cancel(&world, run.id).await;
        let run = world.turning(1_000, world.ended(run.id)).await;
        assert_eq!(run.state.status(), RunStatus::Orphaned);
        assert_eq!(run.state.error().unwrap().code, "cancel_unproven");
        assert_eq!(hands.log().last().unwrap(), "kill while cancelling");
        let events = world.events("a").await;
        assert!(events.iter().any(|event| matches!(
            &event.body,
            Body::ToolFailed { outcome: mainspring_core::ToolOutcome::Unknown, .. }
        )));
        world.send(pull("a", "next")).await.unwrap();
        hands.next().await;
    }
}

#[tokio::test]
async fn an_adapter_that_never_answers_the_wish_is_not_said_to_have_been_told() {
    let manners = Manners { answers_cancel: false, ..Manners::default() };
    let (world, mut hands) = stage(Disk::memory(), manners, Options::default()).await;
    let run = world.send(pull("a", "go")).await.unwrap().run;
    let _strings = hands.next().await;
    let outcome = world.turning(500, world.kernel.run_cancel(&world.me, run.id)).await.unwrap();
    assert!(outcome.accepted && !outcome.dispatch_attempted && !outcome.adapter_acknowledged);
    let run = world.turning(500, world.ended(run.id)).await;
    assert_eq!(run.state.status(), RunStatus::Cancelled, "it was killed");
    let events = world.events("a").await;
    let told: Vec<bool> = events
        .iter()
        .filter_map(|event| match event.body {
            Body::AttemptCancelDispatch { dispatched, .. } => Some(dispatched),
            _ => None,
        })
        .collect();
    assert_eq!(told, [false]);
}

#[tokio::test]
async fn cancelling_twice_asks_once() {
    let (world, mut hands) = stage(Disk::memory(), Manners::default(), Options::default()).await;
    let run = world.send(pull("a", "go")).await.unwrap().run;
    let strings = hands.next().await;
    let both = async { tokio::join!(cancel(&world, run.id), cancel(&world, run.id)) };
    let (first, second) = soon(both).await;
    assert_eq!(first, second);
    assert_eq!(cancel(&world, run.id).await, first);
    strings.end(End::stopped());
    world.ended(run.id).await;
    assert_eq!(count(&world.events("a").await, "run.cancellation_requested"), 1);
    assert_eq!(hands.log().len(), 2);
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
async fn what_comes_after_the_end_is_refused_and_counted_and_changes_nothing() {
    for disk in every_store() {
        let (world, mut hands) = stage(disk, Manners::default(), Options::default()).await;
        let run = world.send(pull("a", "go")).await.unwrap().run;
        let late = hands.next().await.end(End::succeeded());
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
        // Nor has it a say in the next run of its session.
        world.send(pull("a", "next")).await.unwrap();
        let next = hands.next().await;
        assert_eq!(late.delta(0, "late").unwrap_err(), HandleError::Revoked);
        assert_eq!(late.record(record).await.unwrap_err(), HandleError::Revoked);
        let run = next.handle.assignment().run.id;
        next.end(End::succeeded());
        world.ended(run).await;
        assert!(!world.path_shown("a").await.contains("late"));
        assert_eq!(world.events("a").await[..before.len()], before, "{}", world.disk.name);
        assert_eq!(events.late_calls() - counted, 7);
    }
}

#[tokio::test]
async fn a_busy_session_rejects_where_that_is_wanted() {
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
async fn a_prompt_that_replaces_ends_what_waits_and_leaves_what_works() {
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
async fn a_prompt_that_interrupts_stops_what_works_and_runs_next() {
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
        let path = world.path_shown("a").await;
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
async fn a_prompt_that_interrupts_does_not_wait_for_a_run_that_pauses_before_its_next_attempt() {
    let world = World::on(Disk::memory()).await;
    let fails = world.prompt("a", "say partial; fail retry").await;
    world.reaches(fails.id, |run| run.attempts == 1 && run.state.holder().is_none()).await;
    let accepted = world.send(with_policy("a", "say now", Policy::Interrupt)).await.unwrap();
    assert_eq!(world.ended(accepted.run.id).await.state.status(), RunStatus::Succeeded);
    assert_eq!(world.get(fails.id).await.state.status(), RunStatus::Cancelled);
}
