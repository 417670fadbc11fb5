//! How many commits a run makes. Each commit is synced, so their number decides most of the cost of a short
//! run.

use mainspring_core::{Block, RunStatus};
use mainspring_kernel::Options;
use mainspring_kernel::adapter::Record;

use crate::puppet::{PuppetBehavior, puppet, puppet_request};
use crate::world::{Disk, World, by_key, every_store, kinds, with_timeout};

async fn commits_of(world: &World, key: &str, script: &str) -> u64 {
    let before = world.kernel.counts().commits;
    assert_eq!(world.play(key, script).await.state.status(), RunStatus::Succeeded, "{script}");
    // A reader may see the end in the store before the session's actor has counted its commit.
    with_timeout(world.kernel.session_snapshot(&world.me, &by_key(key))).await.unwrap();
    world.kernel.counts().commits - before
}

#[tokio::test]
async fn a_run_makes_one_commit_for_each_step_that_must_not_be_lost() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let tool = r#"tool add {"a":2,"b":3}"#;
        for (script, commits) in [
            ("say hi".to_owned(), 2),
            (tool.to_owned(), 2),
            (format!("{tool}; {tool}"), 3),
            (format!("{tool}; {tool}; {tool}"), 4),
            (format!("{tool}; say between; {tool}; say done"), 4),
        ] {
            assert_eq!(commits_of(&world, "a", &script).await, commits, "{} {script}", world.disk.name);
        }
    }
}

#[tokio::test]
async fn the_end_of_a_tool_is_recorded_before_the_next_one_starts_and_before_anything_is_streamed() {
    let world = World::on(Disk::memory()).await;
    world.play("a", r#"tool add {"a":2,"b":3}; tool upper {"text":"hi"}; say done"#).await;
    let events = world.events("a").await;
    let tools: Vec<&str> = kinds(&events)
        .into_iter()
        .filter(|kind| kind.starts_with("tool.") || *kind == "message.completed")
        .collect();
    assert_eq!(
        tools,
        [
            "message.completed",
            "message.completed",
            "tool.started",
            "tool.completed",
            "message.completed",
            "message.completed",
            "tool.started",
            "tool.completed",
            "message.completed",
            "message.completed",
        ]
    );
    let path = world.path_text("a").await;
    let messages: Vec<&str> = path.lines().skip(1).collect();
    assert_eq!(
        messages,
        [
            "assistant completed call add",
            r#"user completed result "5" error=false"#,
            "assistant completed call upper",
            r#"user completed result "HI" error=false"#,
            r#"assistant completed "done\n""#,
        ]
    );
}

#[tokio::test]
async fn a_cancelled_attempt_keeps_results_that_were_deferred_to_its_last_commit() {
    for disk in every_store() {
        let (adapter, mut control) =
            puppet(&disk.store, PuppetBehavior { obeys: true, ..PuppetBehavior::default() });
        let world = World::with(disk, Options::default(), vec![adapter]).await;
        let run = world.send(puppet_request("a", "go")).await.unwrap().run;
        let execution = control.next().await;
        let (id, name) = (|| "t1".to_owned(), || "add".to_owned());
        let call = Block::tool_use(id(), name(), serde_json::json!({}));
        let started = Record::ToolStarted { tool_use_id: id(), name: name(), input: None, decided_by: None };
        let intent = vec![Record::Message { blocks: vec![call], usage: None }, started];
        execution.handle.record(intent).await.unwrap();
        let content = vec![Block::text("5")];
        let result = Block::tool_result(id(), name(), content.clone(), false);
        let outcome = vec![
            Record::ToolCompleted { tool_use_id: id(), content },
            Record::ToolResults { blocks: vec![result] },
        ];
        execution.handle.record_at_end(outcome).await.unwrap();
        with_timeout(world.kernel.run_cancel(&world.me, run.id)).await.unwrap();
        assert_eq!(world.ended(run.id).await.state.status(), RunStatus::Cancelled);
        let events = kinds(&world.events("a").await);
        assert!(events.contains(&"tool.completed"), "{}: {events:?}", world.disk.name);
        assert!(!events.contains(&"tool.failed"), "{}: {events:?}", world.disk.name);
    }
}
