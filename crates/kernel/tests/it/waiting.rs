//! Waiting: a run asks a question durably and continues with the one answer it gets.

use insta::assert_snapshot;
use mainspring_core::{Answer, Approval, Body, Event, RunStatus, WaitId, WaitRequest};
use mainspring_kernel::Options;
use mainspring_kernel::adapter::{End, Executed, HandleError};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::policy;
use tokio_util::sync::CancellationToken;

use crate::puppet::{PuppetBehavior, puppet, puppet_request, question};
use crate::world::{
    Disk, NOW, World, allowed, count, events_text, every_store, input, read_until, run_process,
    run_ready_tasks, with_timeout,
};

const DAY_MS: u64 = 24 * 3_600_000;

#[tokio::test]
async fn a_denied_approval_is_reported_to_the_agent() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let run = world.prompt("a", "approve Really?; say on").await;
        let wait = world.wait_for_question(run.id).await;
        let denied = Answer::from(Approval::Denied);
        let answered = world.kernel.run_answer(&world.me, run.id, wait, denied.clone()).await.unwrap();
        assert_eq!(answered.state.wait().unwrap().answer, Some(denied));
        world.ended(run.id).await;
        assert!(world.path_text("a").await.contains(r"Denied.\non\n"));
    }
}

#[tokio::test]
async fn an_answer_of_the_wrong_kind_or_to_another_wait_is_refused() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let run = world.prompt("a", "ask Which?").await;
        let wait = world.wait_for_question(run.id).await;
        let other = world.play("b", "say hi").await;
        let before = world.events("a").await;
        let answer = |run, wait, answer| world.kernel.run_answer(&world.me, run, wait, answer);
        let expired = Approval::Expired.into();
        for (error, code) in [
            (answer(run.id, wait, allowed()).await.unwrap_err(), "wrong_answer"),
            (answer(run.id, wait, expired).await.unwrap_err(), "wrong_answer"),
            (answer(run.id, WaitId::from_random([1; 16]), input("x")).await.unwrap_err(), "not_waiting"),
            (answer(other.id, wait, input("x")).await.unwrap_err(), "not_waiting"),
        ] {
            assert_eq!(error.code(), code);
        }
        assert_eq!(world.events("a").await, before);
        answer(run.id, wait, input("x")).await.unwrap();
        assert_eq!(world.ended(run.id).await.state.status(), RunStatus::Succeeded);
        assert_eq!(answer(run.id, wait, input("x")).await.unwrap_err().code(), "already_answered");
    }
}

#[tokio::test]
async fn only_the_first_answer_counts() {
    let options = Options { max_workers: 1, ..Options::default() };
    let world = World::with(Disk::memory(), options, vec![]).await;
    let run = world.prompt("a", "ask Which?").await;
    let wait = world.wait_for_question(run.id).await;
    let busy = world.prompt("b", "hang").await;
    world.kernel.run_answer(&world.me, run.id, wait, input("first")).await.unwrap();
    let second = world.kernel.run_answer(&world.me, run.id, wait, input("second")).await;
    assert_eq!(second.unwrap_err().code(), "already_answered");
    world.kernel.run_cancel(&world.me, busy.id).await.unwrap();
    world.ended(run.id).await;
    assert_eq!(count(&world.events("a").await, "input.provided"), 1);
    assert!(world.path_text("a").await.contains("You answered: first"));
}

#[tokio::test]
async fn an_unanswered_question_times_out() {
    let world = World::on(Disk::memory()).await;
    let run = world.prompt("a", "say thinking; ask Which?").await;
    world.wait_for_question(run.id).await;
    world.clock.advance(24 * 3_600_000 - 1);
    run_ready_tasks().await;
    assert_eq!(world.get(run.id).await.state.status(), RunStatus::WaitingInput);
    world.clock.advance(1);
    let run = world.ended(run.id).await;
    assert_eq!(run.state.status(), RunStatus::TimedOut);
    assert_eq!(run.state.error().unwrap().code.as_str(), "wait_expired");
    let events = world.events("a").await;
    let from = events.iter().position(|event| event.body.kind() == "input.requested").unwrap();
    assert_snapshot!(events_text(&events[from..]), @r#"
    input.requested Which?
    run.waiting_input
    input.provided nothing
    attempt.failed timed_out wait_expired retryable=true
    message.completed assistant failed error wait_expired
    run.timed_out wait_expired
    "#);
    assert_eq!(world.play("a", "say next").await.state.status(), RunStatus::Succeeded);
}

#[tokio::test]
async fn an_unanswered_held_question_stops_the_agent_before_the_run_ends() {
    let disk = Disk::memory();
    let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
    let world = World::with(disk, Options::default(), vec![adapter]).await;
    let run = world.send(puppet_request("a", "go")).await.unwrap().run;
    let execution = control.next().await;
    let ask = question(WaitRequest::Approval, Some(NOW.plus(1_000)));
    let (refused, ended) = world
        .advance_until(100, Box::pin(async { tokio::join!(execution.handle.ask(ask), world.ended(run.id)) }))
        .await;
    assert_eq!(refused.unwrap_err(), HandleError::Revoked);
    assert_eq!(ended.state.status(), RunStatus::TimedOut);
    assert_eq!(control.log(), ["execute while running", "kill while waiting_approval"]);
    let events = world.events("a").await;
    let from = events.iter().position(|event| event.body.kind() == "approval.requested").unwrap();
    assert_snapshot!(events_text(&events[from..]), @r#"
    approval.requested may I?
    run.waiting_approval
    usage.updated 0 in, 0 out
    approval.resolved Expired
    attempt.failed timed_out wait_expired retryable=true
    message.completed assistant failed error wait_expired
    run.timed_out wait_expired
    "#);
}

#[tokio::test]
async fn a_lapsed_question_is_withdrawn_and_the_agent_continues() {
    for request in [WaitRequest::Approval, WaitRequest::Input] {
        let disk = Disk::memory();
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let world = World::with(disk, Options::default(), vec![adapter]).await;
        let run = world.send(puppet_request("a", "go")).await.unwrap().run;
        let execution = control.next().await;
        let ask = question(request, Some(NOW.plus(1_000)));
        let answer = world.advance_until(100, execution.handle.ask_until(ask)).await;
        assert_eq!(answer, Ok(None));
        assert_eq!(world.get(run.id).await.state.status(), RunStatus::Running);
        // A question answered in time is not withdrawn.
        let ask = question(request, Some(world.clock.now().plus(1_000)));
        let given = if request == WaitRequest::Approval { allowed() } else { input("blue") };
        let (answer, ()) = tokio::join!(execution.handle.ask_until(ask), async {
            let wait = world.wait_for_question(run.id).await;
            world.kernel.run_answer(&world.me, run.id, wait, given.clone()).await.unwrap();
        });
        assert_eq!(answer, Ok(Some(given)));
        execution.end(End::succeeded());
        assert_eq!(world.ended(run.id).await.state.status(), RunStatus::Succeeded);
    }
}

#[tokio::test]
async fn a_run_is_cancelled_whether_the_store_or_an_execution_holds_its_wait() {
    for held in [false, true] {
        let disk = Disk::memory();
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let world = World::with(disk, Options::default(), vec![adapter]).await;
        let run = world.send(puppet_request("a", "go")).await.unwrap().run;
        let execution = control.next().await;
        let ask = question(WaitRequest::Input, None);
        let cancel = async {
            let wait = world.wait_for_question(run.id).await;
            let outcome = world.kernel.run_cancel(&world.me, run.id).await.unwrap();
            (wait, outcome)
        };
        let (wait, outcome) = match held {
            false => {
                execution.end(Executed::Waiting(ask));
                with_timeout(cancel).await
            }
            true => {
                let handle = execution.handle.clone();
                let (refused, done) = with_timeout(async { tokio::join!(handle.ask(ask), cancel) }).await;
                assert_eq!(refused.unwrap_err(), HandleError::Revoked);
                execution.end(End::stopped());
                done
            }
        };
        let status = if held { RunStatus::Cancelling } else { RunStatus::Cancelled };
        assert_eq!(outcome.status, status);
        assert_eq!(world.ended(run.id).await.state.status(), RunStatus::Cancelled);
        let refused = world.kernel.run_answer(&world.me, run.id, wait, input("x")).await;
        assert_eq!(refused.unwrap_err().code(), "not_waiting");
        let events = world.events("a").await;
        assert_eq!(count(&events, "input.provided"), 1, "the question is closed");
    }
}

#[tokio::test]
async fn an_agent_that_ends_with_an_open_question_has_not_succeeded() {
    let disk = Disk::memory();
    let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
    let world = World::with(disk, Options::default(), vec![adapter]).await;
    let run = world.send(puppet_request("a", "go")).await.unwrap().run;
    let execution = control.next().await;
    tokio::select! {
        biased;
        _ = execution.handle.ask(question(WaitRequest::Input, None)) => panic!("nobody answered"),
        _ = world.wait_for_question(run.id) => {}
    }
    execution.end(End::succeeded());
    let run = world.ended(run.id).await;
    assert_eq!(run.state.status(), RunStatus::Failed);
    assert_eq!(run.state.error().unwrap().code.as_str(), "wait_abandoned");
    world.send(puppet_request("a", "next")).await.unwrap();
    control.next().await;
}

#[tokio::test]
async fn an_agent_that_stops_asking_continues_without_a_worker_and_keeps_a_given_answer() {
    for (disk, is_answered) in
        every_store().into_iter().map(|disk| (disk, false)).chain([(Disk::memory(), true)])
    {
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let options = Options { max_workers: 1, ..Options::default() };
        let world = World::with(disk, options, vec![adapter]).await;
        let run = world.send(puppet_request("a", "go")).await.unwrap().run;
        let execution = control.next().await;
        let end = CancellationToken::new();
        let asker = execution.handle.asking_until(end.clone());
        let withdraw = async {
            let wait = world.wait_for_question(run.id).await;
            // No worker is free to continue the run.
            world.send(puppet_request("b", "go")).await.unwrap();
            let other = control.next().await;
            if is_answered {
                world.kernel.run_answer(&world.me, run.id, wait, allowed()).await.unwrap();
            }
            end.cancel();
            other
        };
        let ask = policy::request_permission(&asker, None, "Allow it?".to_owned().into());
        let (answer, other) = tokio::join!(ask, withdraw);
        let expected = if is_answered { Approval::Allowed } else { Approval::Expired };
        assert_eq!(answer.unwrap().decision, expected);
        let later = policy::request_permission(&asker, None, "And this?".to_owned().into()).await;
        assert_eq!(later.unwrap().decision, Approval::Expired);
        execution.end(End::succeeded());
        let run = world.ended(run.id).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
        let events = world.events("a").await;
        let closed =
            |event: &&Event| matches!(event.body, Body::ApprovalResolved { decision: Approval::Expired, .. });
        let expired = if is_answered { 1 } else { 2 };
        assert_eq!(events.iter().filter(closed).count(), expired, "{events:?}");
        other.end(End::succeeded());
        world.send(puppet_request("a", "next")).await.unwrap();
        control.next().await;
    }
}

#[test]
fn a_question_survives_a_crash() {
    for disk in every_store() {
        let (run, wait) = run_process(async {
            let world = World::on(disk.clone()).await;
            let run = world.prompt("a", "say before; ask Which?; say after").await;
            (run.id, world.wait_for_question(run.id).await)
        });
        run_process(async {
            let world = World::reboot(&disk).await;
            assert_eq!(world.get(run).await.state.status(), RunStatus::WaitingInput);
            world.kernel.run_answer(&world.me, run, wait, input("blue")).await.unwrap();
            // The process crashes again, perhaps before the agent continues.
        });
        run_process(async {
            let clock = Clock::manual(NOW.plus(2_000));
            let world = World::boot(disk.clone(), Options::default(), vec![], clock, 3).await;
            let run = world.get(run).await;
            let run = match run.state.status() {
                RunStatus::Orphaned => run,
                _ => world.ended(run.id).await,
            };
            assert!(run.state.status().is_ended());
            assert_eq!(count(&world.events("a").await, "input.provided"), 1, "{}", disk.name);
        });
    }
}

#[test]
fn a_question_expires_while_no_process_runs() {
    let disk = Disk::memory();
    let run = run_process(async {
        let world = World::on(disk.clone()).await;
        let run = world.prompt("a", "ask Which?").await;
        world.wait_for_question(run.id).await;
        run.id
    });
    run_process(async {
        let clock = Clock::manual(NOW.plus(48 * 3_600_000));
        let world = World::boot(disk.clone(), Options::default(), vec![], clock, 2).await;
        assert_eq!(world.ended(run).await.state.status(), RunStatus::TimedOut);
    });
}

#[test]
fn a_clock_that_was_set_back_between_two_processes_stalls_neither_expiries_nor_retries() {
    for disk in every_store() {
        let later = || Clock::manual(NOW.plus(30 * DAY_MS));
        let (asks, retries) = run_process(async {
            let world = World::boot(disk.clone(), Options::default(), vec![], later(), 1).await;
            let asks = world.prompt("a", "ask Which?").await;
            world.wait_for_question(asks.id).await;
            let retries = world.prompt("b", "fail once; say done").await;
            world.wait_until(retries.id, |run| run.attempts == 1 && run.state.holder().is_none()).await;
            (asks.id, retries.id)
        });
        run_process(async {
            // A month earlier.
            let world = World::reboot(&disk).await;
            let run = world.advance_until(100, world.ended(retries)).await;
            assert_eq!(run.state.status(), RunStatus::Succeeded, "{}", disk.name);
            let question = world.get(asks).await.state.wait().unwrap().expires_at.unwrap();
            assert!(question <= NOW.plus(2 * DAY_MS), "{}: {question:?}", disk.name);
            world.clock.advance(2 * DAY_MS);
            assert_eq!(world.ended(asks).await.state.status(), RunStatus::TimedOut, "{}", disk.name);
        });
    }
}

#[test]
fn a_held_question_is_orphaned_and_expired_in_one_commit() {
    for disk in every_store() {
        let (run, cursor) = run_process(async {
            let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
            let world = World::with(disk.clone(), Options::default(), vec![adapter]).await;
            let run = world.send(puppet_request("a", "go")).await.unwrap().run;
            let execution = control.next().await;
            tokio::select! {
                biased;
                _ = execution.handle.ask(question(WaitRequest::Approval, None)) => panic!("nobody answered"),
                _ = world.wait_for_question(run.id) => {}
            }
            (run.id, world.events("a").await.pop().unwrap())
        });
        let next = run_process(async {
            let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
            let clock = Clock::manual(NOW.plus(1_000));
            let world = World::boot(disk.clone(), Options::default(), vec![adapter], clock, 2).await;
            assert_eq!(world.get(run).await.state.status(), RunStatus::Orphaned);
            let (_, mut events) = world.subscribe("a", Some(cursor.position())).await;
            read_until(&mut events, "run.orphaned").await;
            assert!(control.is_idle());
            let all = world.events("a").await;
            let after: Vec<_> = all.into_iter().filter(|event| event.cursor > cursor.cursor).collect();
            assert!(after.iter().all(|event| event.at == after[0].at));
            events_text(&after)
        });
        insta::allow_duplicates! {
            assert_snapshot!(next, @r#"
            usage.updated 0 in, 0 out
            approval.resolved Expired
            attempt.failed orphaned executor_lost retryable=true
            message.completed assistant failed error executor_lost
            run.orphaned executor_lost
            "#);
        }
    }
}

#[tokio::test]
async fn an_answer_to_a_run_that_does_not_wait_names_its_status() {
    let world = World::on(Disk::memory()).await;
    let unknown = WaitId::from_random([1; 16]);
    let refused = async |run| {
        let error = world.kernel.run_answer(&world.me, run, unknown, input("x")).await.unwrap_err();
        assert_eq!(error.code(), "not_waiting");
        error.to_string()
    };
    let idle = world.play("a", "say hi").await;
    assert!(refused(idle.id).await.ends_with("the run is succeeded"));
    let busy = world.prompt("a", "hang").await;
    world.wait_until(busy.id, |run| run.state.status() == RunStatus::Running).await;
    assert!(refused(busy.id).await.ends_with("the run is running"));
    world.kernel.run_cancel(&world.me, busy.id).await.unwrap();
    world.ended(busy.id).await;
}
