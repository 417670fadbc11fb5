//! Property tests: the invariants hold after any sequence of commands.

use proptest::prelude::*;

use super::*;
use crate::Cancellation;

/// The commands of random scripts. Commands that make progress are repeated, so that scripts reach later states.
const COMMANDS: &[&str] = &[
    "start",
    "start",
    "start",
    "start",
    "open",
    "open",
    "open",
    "open",
    "open a1",
    "open a2",
    "open a9",
    "ask input",
    "ask input held",
    "ask approval w2",
    "ask approval w2 held",
    "ask a1 input",
    "ask tools w3",
    "ask tools w3 held",
    "give w3 t1",
    "give w3 t1",
    "give w3 t1 other",
    "give w3 t2",
    "give w3 t2",
    "give w3 t9",
    "lapse",
    "lapse a1",
    "input",
    "input",
    "input w2",
    "input w9",
    "allow w2",
    "allow w2",
    "deny w2",
    "allow",
    "resume",
    "resume",
    "resume",
    "resume a1",
    "cancel",
    "dispatch",
    "dispatch acknowledged",
    "dispatch unsent",
    "dispatch a1",
    "finish ok",
    "finish a1 ok",
    "finish a2 ok",
    "finish a9 stopped",
    "finish stopped",
    "finish killed",
    "finish failed",
    "finish timed_out",
    "finish orphaned",
    "finish failed again",
    "finish failed again",
    "finish failed again",
    "finish orphaned again",
    "finish timed_out again",
    "finish running",
    "finish queued again",
    "finish succeeded",
    "retry",
    "retry",
    "retry",
    "spend 1",
    "spend 7",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_invariants_hold_after_any_commands(
        script in prop::collection::vec(prop::sample::select(COMMANDS), 0..60),
    ) {
        let mut world = World::new();
        for command in script {
            let before = world.clone();
            let result = world.step(command);
            check_step(&before, command, &result, &world)?;
            check_state(&world)?;
        }
    }
}

/// Checks the effect of one command.
fn check_step(
    before: &World,
    command: &str,
    result: &Result<Vec<Body>, Refusal>,
    after: &World,
) -> Result<(), TestCaseError> {
    let (was, is) = (before.run.state.status(), after.run.state.status());
    let no_events = result.as_ref().map_or(true, Vec::is_empty);
    if no_events {
        prop_assert_eq!(before, after, "a command without events changes nothing");
    }
    if was.is_final() {
        prop_assert!(no_events, "{} is final", was);
    }
    if was.is_settled() && !no_events {
        prop_assert_eq!((command, is), ("retry", RunStatus::Queued), "{} is settled", was);
    }
    if was == RunStatus::Cancelling {
        let ends = [RunStatus::Cancelling, RunStatus::Cancelled, RunStatus::Orphaned];
        prop_assert!(ends.contains(&is), "a run that is being cancelled became {}", is);
    }
    if let Some(by) = by(command).filter(|by| before.run.state.holder() != Some(*by)) {
        let refused = matches!(
            result,
            Err(Refusal::StaleAttempt { by: named, .. } | Refusal::NoAuthority { by: named, .. }) if *named == by
        );
        prop_assert!(refused, "{} has no authority: {:?}", by, result);
    }
    for (was, is) in before.attempts.iter().zip(&after.attempts) {
        if was.status.is_ended() {
            prop_assert_eq!(was, is, "an ended attempt never changes again");
        }
        let stages = |attempt: &Attempt| {
            let Cancellation { requested_at, dispatched_at, acknowledged_at } = attempt.cancellation;
            [requested_at, dispatched_at, acknowledged_at]
        };
        for (was, is) in stages(was).into_iter().zip(stages(is)) {
            prop_assert!(was.is_none() || was == is, "a stage of a cancellation changed");
        }
    }
    Ok(())
}

/// Checks the invariants that hold after every command.
fn check_state(world: &World) -> Result<(), TestCaseError> {
    let World { run, attempts, events, .. } = world;
    let status = run.state.status();

    let live: Vec<&Attempt> = attempts.iter().filter(|attempt| !attempt.status.is_ended()).collect();
    prop_assert!(live.len() <= 1, "two attempts are live");
    prop_assert_eq!(
        live.first().map(|attempt| (attempt.id, attempt.status)),
        run.state.holder().map(|id| (id, status))
    );
    prop_assert_eq!(run.state.holder().is_some(), !status.is_ended() && status != RunStatus::Queued);
    if let Some(holder) = run.state.holder() {
        prop_assert_eq!(Some(holder), attempts.last().map(|attempt| attempt.id));
    }

    let mut previous = None;
    for (attempt, no) in attempts.iter().zip(1..) {
        prop_assert_eq!((attempt.no, attempt.resume_from), (no, previous));
        prop_assert_eq!(attempt.completed_at.is_some(), attempt.status.is_ended());
        prop_assert_eq!(attempt.error.is_some(), attempt.status.is_settled());
        prop_assert!(
            attempts.iter().filter(|other| other.id == attempt.id).count() == 1,
            "two attempts have the same id"
        );
        previous = Some(attempt.id);
    }
    prop_assert_eq!((run.attempts as usize, run.last_attempt), (attempts.len(), previous));
    prop_assert_eq!(run.started_at, attempts.first().map(|attempt| attempt.created_at));

    prop_assert_eq!(run.completed_at.is_some(), status.is_ended());
    prop_assert_eq!(run.state.error().is_some(), status.is_settled());
    let used = attempts.iter().fold(Usage::default(), |sum, attempt| sum + attempt.usage);
    prop_assert_eq!(run.usage, used);

    let count = |kinds: [&str; 2]| events.iter().filter(|body| kinds.contains(&body.kind())).count();
    let asked = count(["input.requested", "approval.requested"]);
    let closed = count(["input.provided", "approval.resolved"]);
    let open = run.state.wait().filter(|wait| wait.answer.is_none());
    prop_assert_eq!(
        asked - closed,
        usize::from(open.is_some_and(|wait| wait.request != WaitRequest::Tools)),
        "an open wait closes exactly once"
    );
    check_results(world)
}

/// Checks waits for tool results: each call has at most one result, and the wait closes exactly once, with its last
/// result or early, without the missing results.
fn check_results(world: &World) -> Result<(), TestCaseError> {
    let mut given: Option<(Vec<&str>, bool)> = None;
    for body in &world.events {
        match (body, &mut given) {
            (Body::ToolsRequested { .. }, given) => *given = Some((vec![], false)),
            (Body::ToolsProvided { results, .. }, Some((ids, closed))) => {
                prop_assert!(!*closed, "results came after the wait was closed");
                ids.extend(results.iter().flatten().map(|result| result.tool_use_id.as_str()));
                *closed = results.is_none() || ids.len() == 2;
            }
            _ => {}
        }
    }
    if let Some((mut ids, closed)) = given {
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        prop_assert_eq!(ids.len(), count, "a call has two results");
        let wait = world.run.state.wait().filter(|wait| wait.request == WaitRequest::Tools);
        if let Some(wait) = wait {
            prop_assert_eq!(wait.answer.is_some(), closed);
        }
    }
    Ok(())
}
