//! Goals: commands in, events out; and how the end of a run concludes them.

use serde_json::json;

use super::*;
use crate::attempt::Attempt;
use crate::run::tests::queued_run;
use crate::run::{self, Outcome};
use crate::{AttemptId, CancelReason, NodeId, Proof, RetryReason, RunChange, RunState};

fn goal_id(n: u8) -> GoalId {
    GoalId::from_random([n; 16])
}

/// A run with its attempt, driven the way the kernel does it.
struct World {
    run: Run,
    attempt: Option<Attempt>,
    now: Time,
}

impl World {
    /// A running run with goals of these types.
    fn running(types: &[&str]) -> Self {
        let mut world = Self { run: queued_run(), attempt: None, now: Time(0) };
        for (no, goal_type) in (1..).zip(types) {
            let declared = Body::GoalDeclared {
                goal_id: goal_id(no),
                goal_type: (*goal_type).to_owned(),
                data: Map::new(),
            };
            world.apply(&[declared]);
        }
        world.start();
        world
    }

    fn apply(&mut self, bodies: &[Body]) -> Vec<&'static str> {
        self.now = self.now.plus(1);
        for body in bodies {
            let by = self.attempt.as_ref().map(|attempt| attempt.id);
            run::apply(&mut self.run, body, by, None, self.now);
            if let Some(attempt) = &mut self.attempt {
                crate::attempt::apply(attempt, body, self.now);
            }
        }
        bodies.iter().map(Body::kind).collect()
    }

    fn command(&mut self, command: run::Command) -> Vec<&'static str> {
        let events = run::decide(&self.run, self.attempt.as_ref(), command).unwrap();
        self.apply(&events)
    }

    fn start(&mut self) {
        let id = AttemptId::from_random([u8::try_from(self.run.attempts).unwrap() + 1; 16]);
        let attempt = run::new_attempt(&self.run, id, None, NodeId::from_random([1; 16]), self.now);
        let events = run::decide(&self.run, None, run::Command::Start { checkpoint: None }).unwrap();
        self.attempt = Some(attempt);
        self.apply(&events);
        self.command(run::Command::Open { by: id });
    }

    fn finish(&mut self, outcome: Outcome) -> Vec<&'static str> {
        let by = self.attempt.as_ref().unwrap().id;
        self.command(run::Command::Finish { by, outcome })
    }

    fn goal(&mut self, command: Command) -> Result<Vec<&'static str>, String> {
        let events = decide(&self.run.goals, command).map_err(|refusal| refusal.to_string())?;
        Ok(self.apply(&events))
    }

    fn achieve(&mut self, n: u8, call: &str, value: Value) -> Result<Vec<&'static str>, String> {
        self.goal(Command::Achieve { goal: goal_id(n), tool_use_id: call.into(), value })
    }

    fn reject(&mut self, n: u8, call: &str) -> Vec<&'static str> {
        let reason = "no".to_owned();
        self.goal(Command::Reject { goal: goal_id(n), tool_use_id: call.into(), reason }).unwrap()
    }

    fn statuses(&self) -> Vec<(&str, bool)> {
        self.run.goals.iter().map(|goal| (goal.status.name(), goal.concluded_at.is_some())).collect()
    }
}

#[test]
fn a_goal_is_achieved_once_by_the_call_that_reported_its_value() {
    let mut world = World::running(&["a", "b"]);
    assert_eq!(world.statuses(), [("pending", false), ("pending", false)]);
    assert_eq!(world.reject(1, "t1"), ["goal.rejected"]);
    assert_eq!(world.run.goals[0].tool_use_id.as_deref(), Some("t1"), "the goal names its last call");
    assert_eq!(world.statuses()[0], ("pending", false), "a value that does not fit leaves the goal pending");
    assert_eq!(world.achieve(1, "t2", json!({"n": 1})).unwrap(), ["goal.achieved"]);
    let goal = &world.run.goals[0];
    assert_eq!((goal.value.clone(), goal.error.clone()), (Some(json!({"n": 1})), None));
    assert_eq!(goal.tool_use_id.as_deref(), Some("t2"));
    assert_eq!(goal.concluded_at, Some(world.now));
    // The same call, repeated after a crash.
    assert_eq!(world.achieve(1, "t2", json!({"n": 1})), Ok(vec![]));
    let refused = world.achieve(1, "t3", json!({"n": 2})).unwrap_err();
    assert_eq!(refused, "not possible while the goal is achieved");
    assert_eq!(world.reject(1, "t4"), [""; 0], "an achieved goal keeps the call that achieved it");
    assert_eq!(world.achieve(9, "t5", json!({})).unwrap_err(), "not possible while the goal is unknown");
    assert_eq!(world.run.goals[0].value, Some(json!({"n": 1})));
}

#[test]
fn an_agent_is_reminded_up_to_the_maximum() {
    let mut world = World::running(&["a", "b"]);
    world.achieve(2, "t1", json!({})).unwrap();
    for reminder in 1..=2 {
        assert_eq!(after_turn(&world.run.goals, 2), AfterTurn::Remind);
        assert_eq!(world.goal(Command::Remind { max: 2 }).unwrap(), ["goals.reminded"]);
        assert_eq!(world.run.goals[0].reminders, reminder);
        assert_eq!(world.run.goals[1].reminders, 0, "an achieved goal is not mentioned");
    }
    let AfterTurn::GiveUp(failure) = after_turn(&world.run.goals, 2) else { panic!("not given up") };
    assert_eq!(failure, Failure::new("goals_failed", "the agent did not achieve its goals: a"));
    assert_eq!(after_turn(&[], 0), AfterTurn::Done);
    world.achieve(1, "t2", json!({})).unwrap();
    assert_eq!(after_turn(&world.run.goals, 0), AfterTurn::Done);
    assert_eq!(world.goal(Command::Remind { max: 2 }), Ok(vec![]));
}

#[test]
fn a_run_with_a_pending_goal_never_succeeds() {
    let mut world = World::running(&["a", "b"]);
    world.achieve(1, "t1", json!({})).unwrap();
    assert_eq!(world.finish(Outcome::Succeeded), ["attempt.failed", "goal.failed", "run.failed"]);
    assert_eq!(world.run.state.error().unwrap().code.as_str(), "goals_failed");
    assert_eq!(world.statuses(), [("achieved", true), ("failed", true)]);
    assert!(is_consistent(&world.run.goals, world.run.state.status()));

    let mut world = World::running(&["a"]);
    world.achieve(1, "t1", json!({})).unwrap();
    assert_eq!(world.finish(Outcome::Succeeded), ["run.succeeded"]);
    assert!(is_consistent(&world.run.goals, world.run.state.status()));
}

#[test]
fn every_end_of_a_run_concludes_its_goals() {
    let failed = |status: RunStatus| {
        let error = Failure::new("broke", "it broke");
        Outcome::Failed { status, error, retryable: false, retry: None }
    };
    let ends = [
        (Outcome::Stopped { proof: Proof::Ended }, "run.cancelled", "cancelled"),
        (failed(RunStatus::Failed), "run.failed", "broke"),
        (failed(RunStatus::TimedOut), "run.timed_out", "broke"),
        (failed(RunStatus::Orphaned), "run.orphaned", "broke"),
    ];
    for (outcome, last, code) in ends {
        let mut world = World::running(&["a"]);
        let events = world.finish(outcome);
        assert_eq!(events[events.len() - 2..], ["goal.failed", last]);
        assert_eq!(world.run.goals[0].error.as_ref().unwrap().code.as_str(), code);
        assert!(is_consistent(&world.run.goals, world.run.state.status()), "{last}");
    }
    let mut queued = World::running(&["a"]);
    queued.run.state = RunState::Queued { retry_at: None, retry_reason: None };
    let events = queued.command(run::Command::Cancel { reason: CancelReason::Requested });
    assert_eq!(events, ["run.cancellation_requested", "goal.failed", "run.cancelled"]);
}

#[test]
fn a_retry_reopens_failed_goals_and_keeps_achieved_ones() {
    let mut world = World::running(&["a", "b"]);
    world.achieve(1, "t1", json!({"kept": true})).unwrap();
    world.goal(Command::Remind { max: 3 }).unwrap();
    world.finish(Outcome::Succeeded);
    let retry = run::Command::Retry { reason: RetryReason::User, change: RunChange::default() };
    assert_eq!(world.command(retry), ["run.queued"]);
    assert_eq!(world.statuses(), [("achieved", true), ("pending", false)]);
    assert_eq!(world.run.goals[0].value, Some(json!({"kept": true})));
    assert_eq!((world.run.goals[1].reminders, world.run.goals[1].error.clone()), (0, None));
    world.start();
    world.achieve(2, "t2", json!({})).unwrap();
    assert_eq!(world.finish(Outcome::Succeeded), ["run.succeeded"]);
}

#[test]
fn goal_types_need_a_well_formed_name_and_an_object_schema() {
    for goal_type in built_in_goal_types() {
        assert_eq!(check_goal_type(&goal_type), Ok(()), "{}", goal_type.name);
    }
    let named = |name: &str| GoalType { name: name.into(), ..built_in_goal_types().remove(0) };
    for name in ["", "A", "1a", "a-b", "ä", &"x".repeat(49)] {
        assert_eq!(check_goal_type(&named(name)), Err(BadGoal::Name(name.into())));
    }
    for schema in [json!(null), json!([]), json!({"type": "string"})] {
        let bad = GoalType { schema, ..named("a") };
        assert_eq!(check_goal_type(&bad), Err(BadGoal::Schema("a".into())));
    }
    let large = GoalType { description: "x".repeat(MAX_TYPE_BYTES), ..named("a") };
    assert!(matches!(check_goal_type(&large), Err(BadGoal::TooLarge { .. })));
    let goal = DeclaredGoal { goal_type: "a".into(), data: Map::new(), definition: None };
    assert_eq!(check_goals(&vec![goal.clone(); 5]), Ok(()));
    assert_eq!(check_goals(&vec![goal; 6]), Err(BadGoal::TooMany(6)));
}

#[test]
fn items_with_the_same_unique_property_are_refused() {
    let triage = &built_in_goal_types()[1].schema;
    let value = |labels: &[&str]| {
        let decisions: Vec<Value> = labels.iter().map(|label| json!({"label": label})).collect();
        json!({"label_decisions": decisions})
    };
    assert_eq!(check_value(triage, &value(&["a", "b"])), Ok(()));
    let twice = check_value(triage, &value(&["a", "b", "a"])).unwrap_err();
    assert_eq!(twice, "/label_decisions: two items have the label \"a\"");
    let large = json!({"summary": "x".repeat(MAX_VALUE_BYTES)});
    assert!(check_value(triage, &large).unwrap_err().contains("at most"));
}

#[test]
fn tools_for_goals_of_the_same_type_are_numbered() {
    let world = World::running(&["a", "b", "a", "a"]);
    assert_eq!(tool_names(&world.run.goals), ["achieve_a", "achieve_b", "achieve_a_2", "achieve_a_3"]);
    let world = World::running(&["a", "a", "a_2", "a_2"]);
    let names = ["achieve_a", "achieve_a_3", "achieve_a_2", "achieve_a_2_2"];
    assert_eq!(tool_names(&world.run.goals), names, "no two tools have one name");
}

#[test]
fn a_prompt_names_the_goals_and_their_data() {
    let data = Map::from_iter([("dataset_id".to_owned(), json!("ds_1"))]);
    let goals = [
        DeclaredGoal { goal_type: "dataset_summary".into(), data, definition: None },
        DeclaredGoal { goal_type: "other".into(), data: Map::new(), definition: None },
    ];
    insta::assert_snapshot!(prompt_of(&goals), @r#"
    Achieve these goals:
    - dataset_summary: {"dataset_id":"ds_1"}
    - other
    "#);
}
