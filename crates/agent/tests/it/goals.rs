//! Goals: a tool for each, reminders, and the end of a run that has not achieved them. Tasks: the plan that an agent
//! keeps.

use std::sync::Arc;

use mainspring_agent::Toolbox;
use mainspring_core::{
    Block, Body, DeclaredGoal, GoalStatus, GoalType, MessageStatus, Role, Run, RunChange, RunId, RunOptions,
    RunStatus, Subtask, SubtaskStatus, TaskStatus,
};
use mainspring_kernel::kernel::{OnOrphan, RunRequest};
use mainspring_kernel::store::SessionRef;
use mainspring_model_server::{Action, ModelServer, Protocol, Reply};
use mainspring_store::{SqliteOptions, SqliteStore};
use serde_json::{Map, Value, json};

use crate::world::{NOW, Setup, World, run_until_crash, within_timeout};

fn declared(goal_type: &str, data: Value) -> DeclaredGoal {
    let data: Map<String, Value> = serde_json::from_value(data).unwrap();
    DeclaredGoal { goal_type: goal_type.into(), data, definition: None }
}

fn summary() -> DeclaredGoal {
    declared("dataset_summary", json!({"dataset_id": "ds_1"}))
}

fn triage() -> DeclaredGoal {
    declared("dataset_triage", json!({"dataset_id": "ds_1", "label_vocabulary": {"a": "A", "b": "B"}}))
}

fn with_goals(text: &str, goals: Vec<DeclaredGoal>) -> RunRequest {
    let options = RunOptions { goals, ..RunOptions::default() };
    RunRequest { options, ..RunRequest::text("s", text) }
}

fn decisions(labels: &[&str]) -> Value {
    let decision =
        |label: &&str| json!({"label": label, "applies": true, "justification": "seen", "confidence": 0.5});
    json!({"label_decisions": labels.iter().map(decision).collect::<Vec<_>>()})
}

async fn goal_events(world: &World, run: RunId) -> Vec<&'static str> {
    let bodies = world.event_bodies(run).await;
    bodies.iter().map(Body::kind).filter(|kind| kind.starts_with("goal")).collect()
}

fn statuses(run: &Run) -> Vec<(&str, GoalStatus, bool)> {
    let goals = run.goals.iter();
    goals.map(|goal| (goal.goal_type.as_str(), goal.status, goal.concluded_at.is_some())).collect()
}

#[tokio::test]
async fn goals_are_achieved_by_their_tools_in_every_protocol() {
    for protocol in Protocol::ALL {
        let world = Setup::protocol(protocol).start().await;
        world
            .server
            .enqueue(Reply::tool("achieve_dataset_summary", json!({"summary": "fine"})))
            .enqueue(Reply::tool("achieve_dataset_triage", decisions(&["a", "b"])))
            .enqueue(Reply::text("done"));
        let run = world.send(with_goals("look", vec![summary(), triage()])).await;
        let run = world.wait_ended(run.id).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{protocol:?} {:?}", run.state);
        let expected =
            [("dataset_summary", GoalStatus::Achieved, true), ("dataset_triage", GoalStatus::Achieved, true)];
        assert_eq!(statuses(&run), expected, "{protocol:?}");
        assert_eq!(run.goals[0].value, Some(json!({"summary": "fine"})), "{protocol:?}");
        assert_eq!(run.goals[1].value, Some(decisions(&["a", "b"])), "{protocol:?}");
        // The goal names the tool call that achieved it.
        let messages = world.messages(run.id).await;
        let calls = messages.iter().flat_map(|message| &message.content).filter_map(|block| match block {
            Block::ToolUse { id, .. } => Some(id.clone()),
            _ => None,
        });
        let named: Vec<String> = run.goals.iter().filter_map(|goal| goal.tool_use_id.clone()).collect();
        assert_eq!(named, calls.collect::<Vec<_>>(), "{protocol:?}");
        let events = goal_events(&world, run.id).await;
        assert_eq!(
            events,
            ["goal.declared", "goal.declared", "goal.achieved", "goal.achieved"],
            "{protocol:?}"
        );
        let asked = world.request_body(0).to_string();
        for part in ["achieve_dataset_summary", "achieve_dataset_triage", "ds_1", "confidence"] {
            assert!(asked.contains(part), "{protocol:?}: {part}");
        }
    }
}

#[tokio::test]
async fn a_turn_with_pending_goals_is_reminded_and_then_fails_with_its_messages() {
    let world = Setup::default().start().await;
    for text in ["first", "second", "third", "fourth"] {
        world.server.enqueue(Reply::text(text));
    }
    let run = world.send(with_goals("look", vec![summary()])).await;
    let run = world.wait_ended(run.id).await;
    assert_eq!(
        (run.state.status(), run.state.error().unwrap().code.as_str()),
        (RunStatus::Failed, "goals_failed")
    );
    assert_eq!(statuses(&run), [("dataset_summary", GoalStatus::Failed, true)]);
    assert_eq!(run.goals[0].error.as_ref().unwrap().code.as_str(), "goals_failed");
    assert_eq!(world.server.counts().received, 4, "one call and three reminders");
    assert!(world.request_body(1).to_string().contains("not achieved yet"));
    let events = goal_events(&world, run.id).await;
    let reminded = "goals.reminded";
    assert_eq!(events, ["goal.declared", reminded, reminded, reminded, "goal.failed"]);
    // The messages stay on the session's path, with the error at the end.
    let path = world.kernel.session_path(&world.me, &SessionRef::Id(run.session), None, None).await;
    let path = path.unwrap();
    let own = path.iter().filter(|message| message.role == Role::Assistant);
    let texts: Vec<(String, MessageStatus)> = own.map(|message| (message.text(), message.status)).collect();
    let completed = |text: &str| (text.to_owned(), MessageStatus::Completed);
    let expected = [completed("first"), completed("second"), completed("third"), completed("fourth")];
    assert_eq!(texts[..4], expected);
    assert_eq!(texts[4..], [(String::new(), MessageStatus::Failed)]);

    // A retry makes the goal pending again and has reminders of its own. It begins with a reminder after the last
    // answer.
    world.server.enqueue(Reply::text("hm"));
    world.server.enqueue(Reply::tool("achieve_dataset_summary", json!({"summary": "now"})));
    world.server.enqueue(Reply::text("done"));
    world.kernel.run_retry(&world.me, run.id, RunChange::default()).await.unwrap();
    let run = world.wait_status(run.id, |status| status == RunStatus::Succeeded).await;
    assert_eq!(statuses(&run), [("dataset_summary", GoalStatus::Achieved, true)]);
    assert_eq!((run.goals[0].reminders, run.goals[0].error.clone()), (2, None));
}

#[tokio::test]
async fn a_value_that_does_not_fit_is_refused_and_the_goal_names_the_last_call() {
    let world = Setup::default().start().await;
    world
        .server
        .enqueue(Reply::tool("achieve_dataset_triage", json!({"label_decisions": [{"label": "a"}]})))
        .enqueue(Reply::tool("achieve_dataset_triage", decisions(&["a", "a"])))
        .enqueue(Reply::text("I give up"))
        .enqueue(Reply::tool("achieve_dataset_triage", decisions(&["a"])))
        .enqueue(Reply::tool("achieve_dataset_triage", decisions(&["b"])))
        .enqueue(Reply::text("done"));
    let run = world.send(with_goals("look", vec![triage()])).await;
    let run = world.wait_ended(run.id).await;
    assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
    let results = world.tool_results(run.id).await;
    assert!(results[0].1 && results[0].0.contains("/label_decisions/0"), "{results:?}");
    assert!(results[1].1 && results[1].0.contains("two items have the label"), "{results:?}");
    assert_eq!(results[2], ("the goal is achieved".to_owned(), false));
    assert!(results[3].1 && results[3].0.contains("the goal is achieved"), "a second value: {results:?}");
    assert_eq!(run.goals[0].value, Some(decisions(&["a"])), "the first value that fits counts");
    let events = goal_events(&world, run.id).await;
    let expected = ["goal.declared", "goal.rejected", "goal.rejected", "goals.reminded", "goal.achieved"];
    assert_eq!(events, expected);
}

#[tokio::test]
async fn an_owners_goal_type_is_used_as_it_was_when_the_run_was_accepted() {
    let world = Setup::default().start().await;
    let schema =
        |kind: &str| json!({"type": "object", "properties": {"n": {"type": kind}}, "required": ["n"]});
    let create = |schema: Value| {
        let goal_type =
            GoalType { name: "count".into(), description: String::new(), schema, data_schema: None };
        world.kernel.goal_type_create(&world.me, goal_type)
    };
    let unknown =
        world.kernel.run_create(&world.me, with_goals("", vec![declared("count", json!({}))])).await;
    let unknown = unknown.unwrap_err().to_string();
    assert!(unknown.contains("no goal type \"count\"") && unknown.contains("/v1/goal-types"), "{unknown}");
    assert!(create(json!({"type": "nonsense"})).await.is_err());
    assert!(create(schema("integer")).await.unwrap().1, "a new name");
    // A run without a prompt gets one that names its goals.
    world.server.enqueue(Reply::text("what?"));
    world.server.enqueue(Reply::tool("achieve_count", json!({"n": 1})));
    world.server.enqueue(Reply::text("done"));
    let run = world.send(with_goals("", vec![declared("count", json!({"of": "apples"}))])).await;
    assert!(!create(schema("string")).await.unwrap().1, "the type is replaced");
    let run = world.wait_ended(run.id).await;
    assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
    assert_eq!(run.goals[0].value, Some(json!({"n": 1})));
    let prompt = world.messages(run.id).await[0].text();
    assert_eq!(prompt, "Achieve these goals:\n- count: {\"of\":\"apples\"}");
    let unfit =
        world.kernel.run_create(&world.me, with_goals("x", vec![declared("dataset_summary", json!({}))]));
    assert!(unfit.await.unwrap_err().to_string().contains("dataset_id"), "the data must fit");
    let many = vec![summary(); 6];
    let refused = world.kernel.run_create(&world.me, with_goals("x", many)).await.unwrap_err();
    assert_eq!(refused.to_string(), "there are 6 goals; at most 5 are allowed");
}

#[test]
fn an_achieved_goal_survives_a_crash_and_an_export() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.sqlite3");
    let open = || Arc::new(SqliteStore::open(&path, SqliteOptions::default(), NOW).unwrap());
    let run = run_until_crash(async {
        let world = Setup { store: open(), ..Setup::default() }.start().await;
        world.server.enqueue(Reply::tool("achieve_dataset_summary", json!({"summary": "fine"})));
        world.server.enqueue(Reply::text("").and(Action::Hang));
        let run = world.send(with_goals("look", vec![summary(), triage()])).await;
        world.wait_event(run.id, "goal.achieved", 1).await;
        within_timeout(world.server.wait(|counts| counts.received == 2)).await;
        run.id
    });
    run_until_crash(async {
        let server = ModelServer::start().await.unwrap();
        server.enqueue(Reply::tool("achieve_dataset_triage", decisions(&["a"]))).enqueue(Reply::text("done"));
        let setup = Setup { store: open(), on_orphan: OnOrphan::Retry, seed: 2, ..Setup::default() };
        let world = setup.start_on(server).await;
        let run = world.wait_ended(run).await;
        assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 2), "{:?}", run.state);
        assert_eq!(run.goals[0].value, Some(json!({"summary": "fine"})), "achieved by the first attempt");
        let events = goal_events(&world, run.id).await;
        assert_eq!(events, ["goal.declared", "goal.declared", "goal.achieved", "goal.achieved"]);

        let other = Setup::default().start().await;
        let mut export = world.kernel.session_export(&world.me, &SessionRef::Id(run.session)).await.unwrap();
        let mut import = other.kernel.session_import(&other.me).unwrap();
        while let Some(lines) = export.next().await.unwrap() {
            import.push(lines.as_bytes()).await.unwrap();
        }
        import.finish().await.unwrap();
        let imported = other.get(run.id).await;
        assert_eq!((imported.goals, imported.tasks), (run.goals, run.tasks));
    });
}

#[tokio::test]
async fn a_snapshot_is_null_when_nothing_changed_and_empty_when_there_are_no_goals() {
    let world = Setup::default().start().await;
    world.server.enqueue(Reply::text("hi"));
    let run = world.run_prompt("hello").await;
    let by = SessionRef::Id(run.session);
    let read = async |after| world.kernel.session_goals(&world.me, &by, after).await.unwrap();
    let none = read(None).await;
    assert_eq!((none.goals, none.tasks), (Some(vec![]), Some(vec![])), "read, and there are none");
    let same = read(Some(none.cursor)).await;
    assert_eq!((same.goals, same.tasks, same.cursor), (None, None, none.cursor));

    world.server.enqueue(Reply::tool("achieve_dataset_summary", json!({"summary": "fine"})));
    world.server.enqueue(Reply::text("done"));
    let run = world.send(with_goals("look", vec![summary()])).await;
    world.wait_ended(run.id).await;
    let changed = read(Some(none.cursor)).await;
    let goals = changed.goals.unwrap();
    assert_eq!((goals.len(), goals[0].run_id, goals[0].goal.status), (1, run.id, GoalStatus::Achieved));
    assert_eq!(changed.tasks, None, "the plan has not changed");
    world.server.enqueue(Reply::text("hi"));
    world.run_prompt("thanks").await;
    let later = read(Some(changed.cursor)).await;
    assert_eq!(later.goals, None, "a turn without goals");
    assert!(later.cursor > changed.cursor);
    assert_eq!(read(None).await.goals, Some(goals), "all goals of the session");
}

#[tokio::test]
async fn an_agent_keeps_a_plan() {
    let world = Setup { tools: Toolbox::built_in(), ..Setup::default() }.start().await;
    let first = json!({"tasks": [
        {"title": "read", "status": "in_progress", "subtasks": [{"title": "one", "done": true}, {"title": "two"}]},
        {"title": "write"},
    ]});
    let second = json!({"tasks": [
        {"title": "read", "status": "completed", "conclusion": "all read"},
        {"id": 2, "title": "write it", "status": "in_progress"},
    ]});
    world.server.enqueue(Reply::tool("plan_update", first)).enqueue(Reply::tool("plan_update", second));
    world.server.enqueue(Reply::text("done"));
    let run = world.run_prompt("plan").await;
    assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
    let plan: Vec<_> = run.tasks.iter().map(|task| (task.id, &*task.title, task.status)).collect();
    assert_eq!(plan, [(1, "read", TaskStatus::Completed), (2, "write it", TaskStatus::InProgress)]);
    let subtask = |title: &str, status| Subtask { title: title.into(), status };
    let expected = [subtask("one", SubtaskStatus::Done), subtask("two", SubtaskStatus::Pending)];
    assert_eq!(run.tasks[0].subtasks, expected, "subtasks that are not given stay");
    let messages = world.messages(run.id).await;
    let agents: Vec<_> = messages.iter().filter(|message| message.role == Role::Assistant).collect();
    assert_eq!(run.tasks[0].started_in_message_id, Some(agents[0].id));
    assert_eq!(run.tasks[0].completed_in_message_id, Some(agents[1].id));
    let bodies = world.event_bodies(run.id).await;
    let updates = bodies.iter().filter(|body| matches!(body, Body::TasksUpdated { .. })).count();
    assert_eq!(updates, 2);
}
