//! Goals and tasks of runs, and the goal types of owners.

use mainspring_core::*;
use mainspring_kernel::store::{GoalTypeRow, Store};
use mainspring_store::SCHEMA_VERSION;
use serde_json::json;

use crate::fixtures::*;
use crate::migrations::{RELEASED, create_database, insert_queued_run};

fn goal_type(owner: &str, name: &str, description: &str, at: Time) -> GoalTypeRow {
    let schema = json!({"type": "object", "default": null});
    let (name, description) = (name.to_owned(), description.to_owned());
    let goal_type = GoalType { name, description, schema, data_schema: Some(json!({})) };
    GoalTypeRow { owner: owner.into(), goal_type, created_at: at, updated_at: at }
}

fn with_goals(of: Run) -> Run {
    let achieved = Goal {
        id: GoalId::from_random([1; 16]),
        goal_type: "a".into(),
        data: serde_json::Map::from_iter([("id".to_owned(), json!("x"))]),
        status: GoalStatus::Achieved,
        created_at: NOW,
        concluded_at: Some(NOW.plus(1)),
        value: Some(json!({"n": [1, null]})),
        tool_use_id: Some("t1".into()),
        error: None,
        reminders: 2,
    };
    let failed = Goal {
        id: GoalId::from_random([2; 16]),
        status: GoalStatus::Failed,
        value: None,
        error: Some(Failure::new("goals_failed", "no")),
        ..achieved.clone()
    };
    let task = Task {
        id: 7,
        position: 0,
        title: "read".into(),
        status: TaskStatus::InProgress,
        description: Some("all of it".into()),
        conclusion: None,
        subtasks: vec![Subtask { title: "one".into(), status: SubtaskStatus::Done }],
        started_in_message_id: Some(message_id(3)),
        completed_in_message_id: None,
    };
    Run { goals: vec![achieved, failed], tasks: vec![task], ..of }
}

#[tokio::test]
async fn goals_and_tasks_of_a_run_read_back_as_written() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        let plain = run(1, 1, 1, queued());
        commit(store, fence, vec![row_run(plain.clone())], vec![]).await.unwrap();
        assert_eq!(store.run_get(run_id(1)).await.unwrap(), Some(plain.clone()), "{name}");
        let full = with_goals(plain.clone());
        commit(store, fence, vec![row_run(full.clone())], vec![]).await.unwrap();
        assert_eq!(store.run_get(run_id(1)).await.unwrap(), Some(full), "{name}");
        commit(store, fence, vec![row_run(plain.clone())], vec![]).await.unwrap();
        assert_eq!(store.run_get(run_id(1)).await.unwrap(), Some(plain), "{name}: and can be removed");
    }
}

#[tokio::test]
async fn a_goal_type_is_replaced_under_its_name_and_keeps_its_time() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let first = goal_type(OWNER, "b", "one", NOW);
        assert_eq!(store.goal_type_write(&first).await, Ok(true), "{name}");
        assert_eq!(store.goal_type_write(&goal_type("other", "b", "theirs", NOW)).await, Ok(true), "{name}");
        assert_eq!(store.goal_type_write(&goal_type(OWNER, "a", "", NOW)).await, Ok(true), "{name}");
        let changed = goal_type(OWNER, "b", "two", NOW.plus(5));
        assert_eq!(store.goal_type_write(&changed).await, Ok(false), "{name}");
        let kept = GoalTypeRow { created_at: NOW, ..changed };
        let expected = [goal_type(OWNER, "a", "", NOW), kept];
        assert_eq!(store.goal_types(OWNER).await.unwrap(), expected, "{name}: by name");
        assert_eq!(store.goal_types("nobody").await.unwrap(), [], "{name}");
    }
}

#[tokio::test]
async fn a_run_of_a_version_without_goals_can_get_them() {
    let folder = tempfile::tempdir().unwrap();
    create_database(folder.path(), RELEASED, &insert_queued_run(0));
    let store = sqlite_open(folder.path());
    let check = store.check(true).await.unwrap();
    assert_eq!((check.schema_version, check.problems), (SCHEMA_VERSION, vec![]));
    let old = store.run_get(run_id(1)).await.unwrap().unwrap();
    assert_eq!((old.goals.len(), old.tasks.len()), (0, 0));
    let fence = lease(&store, 1).await;
    let full = with_goals(old);
    commit(&store, fence, vec![row_run(full.clone())], vec![]).await.unwrap();
    assert_eq!(store.run_get(run_id(1)).await.unwrap(), Some(full));
    assert_eq!(store.verify_checksums().await.unwrap().problems, Vec::<String>::new());
}
