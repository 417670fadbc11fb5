//! Control operations that a rule asks about.

use mainspring_api::control::ControlPlane;
use mainspring_core::{Answer, ApprovalAnswer, ApprovalScope};

use super::*;

/// A world whose agents need a person to cancel runs, and a running parent in it.
async fn asking_world(disk: Disk) -> (World, PuppetControl, RunId, Execution) {
    let rules = vec!["ask control cancel_agent_run *".parse().unwrap()];
    let behavior = PuppetBehavior { obeys: true, rules, ..PuppetBehavior::default() };
    let (adapter, mut control) = puppet(&disk.store, behavior);
    let world = World::with(disk, Options::default(), vec![adapter]).await;
    let (run, execution) = parent(&world, &mut control).await;
    (world, control, run.id, execution)
}

/// A run of another session that waits for the test.
async fn victim(world: &World, control: &mut PuppetControl, key: &str) -> (RunId, Execution) {
    let run = world.send(puppet_request(key, "go")).await.unwrap().run.id;
    (run, control.next().await)
}

async fn cancel(execution: &Execution, run: RunId) -> Result<(), String> {
    let plane = execution.handle.control().unwrap();
    plane.run_cancel(run).await.map(drop).map_err(|error| format!("{}: {}", error.code, error.message))
}

async fn answer(world: &World, run: RunId, answer: ApprovalAnswer) {
    let wait = world.wait_for_question(run).await;
    world.kernel.run_answer(&world.me, run, wait, Answer::Approval(answer)).await.unwrap();
}

#[tokio::test]
async fn a_person_decides_and_the_call_waits() {
    for disk in every_store() {
        let (world, mut control, run, execution) = asking_world(disk).await;
        let (other, _running) = victim(&world, &mut control, "other").await;
        let denied = ApprovalAnswer { reason: Some("not that one".into()), ..Approval::Denied.into() };
        let asked = async { tokio::join!(cancel(&execution, other), answer(&world, run, denied)).0 };
        let refused = with_timeout(asked).await.unwrap_err();
        assert!(
            refused.starts_with("forbidden") && refused.ends_with("a person denied it: not that one"),
            "{refused}"
        );
        assert_eq!(world.get(other).await.state.status(), RunStatus::Running);

        let wait = async {
            let wait = world.wait_for_question(run).await;
            let known = world.get(run).await;
            let action = known.state.wait().unwrap().approval.as_ref().unwrap().action.clone().unwrap();
            assert_eq!((action.operation.as_str(), action.resource), ("cancel_agent_run", other.to_string()));
            let allowed = Answer::Approval(Approval::Allowed.into());
            world.kernel.run_answer(&world.me, run, wait, allowed).await.unwrap();
        };
        with_timeout(async { tokio::join!(cancel(&execution, other), wait).0 }).await.unwrap();
        world.ended(other).await;
    }
}

#[tokio::test]
async fn an_answer_for_the_session_is_not_asked_for_again() {
    let (world, mut control, run, execution) = asking_world(Disk::memory()).await;
    let (other, _running) = victim(&world, &mut control, "other").await;
    let for_session = ApprovalAnswer { scope: ApprovalScope::Session, ..Approval::Allowed.into() };
    let asked = async { tokio::join!(cancel(&execution, other), answer(&world, run, for_session)).0 };
    with_timeout(asked).await.unwrap();
    world.ended(other).await;
    let again = with_timeout(cancel(&execution, other)).await.unwrap_err();
    assert!(again.starts_with("run_ended"), "it was allowed: {again}");
    // Another run is another request.
    let (third, _running) = victim(&world, &mut control, "third").await;
    let asked =
        async { tokio::join!(cancel(&execution, third), answer(&world, run, Approval::Denied.into())).0 };
    with_timeout(asked).await.unwrap_err();
}

#[tokio::test]
async fn a_question_that_expires_or_is_withdrawn_lets_the_agent_go_on() {
    let (world, mut control, run, execution) = asking_world(Disk::memory()).await;
    let (other, _running) = victim(&world, &mut control, "other").await;
    let expired = world.advance_until(60_000, cancel(&execution, other)).await.unwrap_err();
    assert!(expired.ends_with("nobody allowed it in time"), "{expired}");
    assert_eq!(world.get(run).await.state.status(), RunStatus::Running);
    // A caller that stops waiting withdraws its question.
    let asked = async {
        tokio::select! {
            refused = cancel(&execution, other) => panic!("{refused:?}"),
            _ = world.wait_for_question(run) => {}
        }
    };
    with_timeout(asked).await;
    world.wait_until(run, |run| run.state.status() == RunStatus::Running).await;
    assert_eq!(world.get(other).await.state.status(), RunStatus::Running);
    execution.end(End::succeeded());
    assert_eq!(world.ended(run).await.state.status(), RunStatus::Succeeded);
}

#[tokio::test]
async fn questions_of_one_agent_are_asked_one_after_the_other() {
    let (world, mut control, run, execution) = asking_world(Disk::memory()).await;
    let (other, _running) = victim(&world, &mut control, "other").await;
    let permission = policy::request_permission(&execution.handle, None, "may I?".to_owned().into());
    let answers = async {
        answer(&world, run, Approval::Allowed.into()).await;
        world.wait_until(run, |run| run.state.wait().is_some_and(|wait| wait.answer.is_none())).await;
        answer(&world, run, Approval::Allowed.into()).await;
    };
    let all = async { tokio::join!(permission, cancel(&execution, other), answers) };
    let (permission, cancelled, ()) = with_timeout(all).await;
    assert_eq!(permission.unwrap().decision, Approval::Allowed);
    cancelled.unwrap();
    world.ended(other).await;
}

#[tokio::test]
async fn a_cancelled_agent_gets_no_answer_to_any_question() {
    let (world, mut control, run, execution) = asking_world(Disk::memory()).await;
    let (other, _running) = victim(&world, &mut control, "other").await;
    let stop = async {
        world.wait_for_question(run).await;
        world.kernel.run_cancel(&world.me, run).await.unwrap();
    };
    let both = async { tokio::join!(cancel(&execution, other), cancel(&execution, other), stop) };
    let (first, second, ()) = with_timeout(both).await;
    for refused in [first, second] {
        assert!(refused.unwrap_err().starts_with("no_authority"));
    }
    assert_eq!(world.ended(run).await.state.status(), RunStatus::Cancelled);
    assert_eq!(world.get(other).await.state.status(), RunStatus::Running);
}

#[tokio::test]
async fn an_attempt_that_has_ended_cancels_nothing() {
    let disk = Disk::memory();
    let (adapter, mut control) =
        puppet(&disk.store, PuppetBehavior { obeys: true, ..PuppetBehavior::default() });
    let world = World::with(disk, Options::default(), vec![adapter]).await;
    let (other, _running) = victim(&world, &mut control, "other").await;
    let (run, execution) = parent(&world, &mut control).await;
    let plane = execution.handle.control().unwrap();
    execution.end(End::succeeded());
    world.ended(run.id).await;
    for is_loaded in [true, false] {
        if !is_loaded {
            world.kernel.session_close(&world.me, &by_key("parent")).await.unwrap();
        }
        let refused = with_timeout(plane.run_cancel(other)).await.unwrap_err();
        assert_eq!(refused.code, "no_authority", "{is_loaded}");
    }
    assert_eq!(world.get(other).await.state.status(), RunStatus::Running);
}

#[tokio::test]
async fn a_run_that_may_only_answer_cancels_only_its_children() {
    let disk = Disk::memory();
    let (adapter, mut control) =
        puppet(&disk.store, PuppetBehavior { obeys: true, ..PuppetBehavior::default() });
    let world = World::with(disk, Options::default(), vec![adapter]).await;
    let (other, _running) = victim(&world, &mut control, "other").await;
    world.send(RunRequest { mode: Mode::Ask, ..puppet_request("asking", "go") }).await.unwrap();
    let execution = control.next().await;
    let refused = with_timeout(cancel(&execution, other)).await.unwrap_err();
    assert!(refused.starts_with("forbidden: a run in the mode `ask`"), "{refused}");
    assert_eq!(world.get(other).await.state.status(), RunStatus::Running);
}
