//! Branches: regenerated answers, edited prompts, new roots, and failed branches.

use mainspring_core::{Block, MessageId, Place, RunStatus};
use mainspring_kernel::kernel::RunRequest;

use crate::world::{Disk, World, by_key, every_store, message_text};

/// Builds a prompt at a place in the tree.
fn at(place: Place, script: &str) -> RunRequest {
    RunRequest {
        place,
        prompt: match script {
            "" => vec![],
            script => vec![Block::text(script)],
        },
        ..RunRequest::text("a", "")
    }
}

async fn branch(world: &World, place: Place, script: &str) -> mainspring_core::Run {
    let run = world.send(at(place, script)).await.unwrap().run;
    world.ended(run.id).await
}

/// Formats the tree: indented by depth, with `*` before the active path and `x` before abandoned messages.
async fn tree(world: &World) -> String {
    let tree = world.tree("a").await;
    let mut lines = vec![];
    for node in &tree.nodes {
        let mark = match (node.active, node.abandoned) {
            (true, _) => "*",
            (false, true) => "x",
            (false, false) => "-",
        };
        let parent = tree.nodes.iter().position(|other| Some(other.message.id) == node.parent_id);
        let parent = parent.map_or("root".into(), |at| at.to_string());
        let indent = "  ".repeat(node.depth as usize);
        lines.push(format!("{mark} {indent}{} under {parent}", message_text(&node.message)));
    }
    lines.join("\n")
}

async fn message(world: &World, index: usize) -> MessageId {
    world.path("a").await[index].id
}

#[tokio::test]
async fn regenerate_edit_and_root_change_the_path() {
    let mut results = vec![];
    for disk in every_store() {
        let world = World::on(disk).await;
        world.play("a", "say one").await;
        world.play("a", "say two").await;
        let mut trees = vec![];
        let again = Place::Regenerate { message_id: message(&world, 2).await };
        let run = branch(&world, again, "").await;
        assert_eq!(run.state.status(), RunStatus::Succeeded);
        assert_eq!(run.prompt, None, "it answers an earlier prompt");
        trees.push(tree(&world).await);
        let edit = Place::Edit { message_id: message(&world, 1).await };
        branch(&world, edit, "say three").await;
        trees.push(tree(&world).await);
        branch(&world, Place::Root, "say four").await;
        trees.push(tree(&world).await);
        // The next prompt continues the current path.
        world.play("a", "say five").await;
        trees.push(world.path_text("a").await);
        results.push(trees);
    }
    assert_eq!(results[0], results[1], "every store tells the same");
    let trees = results.remove(0);
    insta::assert_snapshot!(trees.join("\n\n"), @r#"
    * user completed "say one" under root
    *   assistant completed "one\n" under 0
    *     user completed "say two" under 1
    -       assistant completed "two\n" under 2
    *       assistant completed "two\n" under 2

    * user completed "say one" under root
    *   assistant completed "one\n" under 0
    -     user completed "say two" under 1
    -       assistant completed "two\n" under 2
    -       assistant completed "two\n" under 2
    *     user completed "say three" under 1
    *       assistant completed "three\n" under 5

    - user completed "say one" under root
    -   assistant completed "one\n" under 0
    -     user completed "say two" under 1
    -       assistant completed "two\n" under 2
    -       assistant completed "two\n" under 2
    -     user completed "say three" under 1
    -       assistant completed "three\n" under 5
    * user completed "say four" under root
    *   assistant completed "four\n" under 7

    user completed "say four"
    assistant completed "four\n"
    user completed "say five"
    assistant completed "five\n"
    "#);
}

#[tokio::test]
async fn an_unsuccessful_branch_does_not_change_path_and_tip() {
    for disk in every_store() {
        let world = World::on(disk).await;
        world.play("a", "say one").await;
        world.play("a", "say two").await;
        let before =
            (world.path("a").await, world.kernel.session_get(&world.me, &by_key("a")).await.unwrap());
        assert_eq!(before.0.len(), 4);
        let cursors = world.cursors("a").await;
        let first = Place::Edit { message_id: before.0[1].id };
        // One branch fails, one is cancelled while it runs.
        let failed = branch(&world, first, "say lost; fail for good").await;
        assert_eq!(failed.state.status(), RunStatus::Failed);
        let cancelled = world.send(at(Place::Root, "say lost too; hang")).await.unwrap().run;
        world.kernel.run_cancel(&world.me, cancelled.id).await.unwrap();
        world.ended(cancelled.id).await;
        let after = (world.path("a").await, world.kernel.session_get(&world.me, &by_key("a")).await.unwrap());
        assert_eq!(after.0, before.0, "{}", world.disk.name);
        assert_eq!((after.1.tip, after.1.tip_message), (before.1.tip, before.1.tip_message));
        assert_eq!(world.cursors("a").await, cursors);
        let tree = world.tree("a").await;
        let abandoned: Vec<String> =
            tree.nodes.iter().filter(|node| node.abandoned).map(|node| message_text(&node.message)).collect();
        assert!(abandoned.iter().any(|shown| shown.contains("error script_failed")), "{abandoned:?}");
        assert!(abandoned.iter().any(|shown| shown.contains("error cancelled")), "{abandoned:?}");
        assert!(tree.nodes.iter().all(|node| !(node.active && node.abandoned)));
        let next = world.play("a", "say next").await;
        assert_eq!(next.state.status(), RunStatus::Succeeded);
        assert_eq!(world.path("a").await.len(), 6);
    }
}

#[tokio::test]
async fn a_retried_branch_changes_the_path_when_it_succeeds() {
    for disk in every_store() {
        let world = World::on(disk).await;
        world.play("a", "say one").await;
        let place = Place::Edit { message_id: message(&world, 1).await };
        let run = world.send(at(place, "say half; fail once; say whole")).await.unwrap().run;
        let run = world.advance_until(100, world.ended(run.id)).await;
        assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 2));
        assert_eq!(world.path("a").await.len(), 4, "{}", world.disk.name);
    }
}

#[tokio::test]
async fn a_busy_session_refuses_branches() {
    let world = World::on(Disk::memory()).await;
    world.play("a", "say one").await;
    world.prompt("a", "hang").await;
    let before = world.events("a").await.len();
    let user = world.path("a").await[0].id;
    for place in [Place::Root, Place::Regenerate { message_id: user }] {
        let script = if place == Place::Root { "say no" } else { "" };
        let error = world.send(at(place, script)).await.unwrap_err();
        assert_eq!(error.code(), "session_busy");
    }
    assert_eq!(world.events("a").await.len(), before);
}

#[tokio::test]
async fn a_branch_needs_a_message_of_the_right_role_in_its_own_session() {
    for disk in every_store() {
        let world = World::on(disk).await;
        world.play("a", "say one").await;
        world.play("b", "say other").await;
        let (user, agent) = (message(&world, 0).await, message(&world, 1).await);
        let foreign = world.path("b").await[0].id;
        let before = world.events("a").await.len();
        for (place, script, code) in [
            (Place::Regenerate { message_id: agent }, "", "not_user_message"),
            (Place::Edit { message_id: user }, "say x", "not_assistant_message"),
            (Place::Regenerate { message_id: foreign }, "", "not_found"),
            (Place::Edit { message_id: foreign }, "say x", "not_found"),
            (Place::Regenerate { message_id: user }, "say x", "invalid_request"),
            (Place::Root, "", "invalid_request"),
        ] {
            let error = world.send(at(place, script)).await.unwrap_err();
            assert_eq!(error.code(), code, "{place:?}");
        }
        assert_eq!(world.events("a").await.len(), before);
    }
}

#[tokio::test]
async fn a_regenerated_answer_without_text_is_an_empty_message() {
    for disk in every_store() {
        let world = World::on(disk).await;
        world.play("a", "usage 1 1").await;
        let again = Place::Regenerate { message_id: message(&world, 0).await };
        let run = branch(&world, again, "").await;
        let session = world.kernel.session_get(&world.me, &by_key("a")).await.unwrap();
        let path = world.path("a").await;
        assert_eq!((path.len(), path[1].run), (2, Some(run.id)), "{}", world.disk.name);
        assert_eq!(session.tip_message, Some(path[1].id));
    }
}

#[tokio::test]
async fn the_messages_of_a_retried_regeneration_are_children_of_its_prompt() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let run = world.prompt("a", "say half; fail once; say whole").await;
        world.advance_until(100, world.ended(run.id)).await;
        let prompt = message(&world, 0).await;
        let again = Place::Regenerate { message_id: prompt };
        let run = world.send(at(again, "")).await.unwrap().run;
        world.advance_until(100, world.ended(run.id)).await;
        let tree = world.tree("a").await;
        assert_eq!(tree.nodes.len(), 5);
        for node in &tree.nodes[1..] {
            assert_eq!(node.parent_id, Some(prompt), "{}", world.disk.name);
        }
    }
}

#[tokio::test]
async fn an_abandoned_message_cannot_be_continued() {
    for disk in every_store() {
        let world = World::on(disk).await;
        world.play("a", "say one").await;
        let after = Place::Edit { message_id: message(&world, 1).await };
        assert_eq!(branch(&world, after, "say lost; fail").await.state.status(), RunStatus::Failed);
        let tree = world.tree("a").await;
        let lost = tree.nodes.iter().rfind(|node| node.abandoned).unwrap().message.id;
        let refused = world.send(at(Place::Edit { message_id: lost }, "say on")).await.unwrap_err();
        assert_eq!(refused.code(), "abandoned_message");
        let path: Vec<String> = world.path("a").await.iter().map(|message| message_text(message)).collect();
        assert_eq!(path.len(), 2, "{path:?}");
    }
}
