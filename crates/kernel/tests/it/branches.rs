//! Branches: other answers, other questions, other roots; and what becomes of those that fail.

use mainspring_core::{Block, MessageId, Place, RunStatus};
use mainspring_kernel::kernel::RunRequest;

use crate::world::{Disk, World, by, every_store, shown};

/// A prompt somewhere in the tree.
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

/// The whole tree: indented by depth, the active path marked, abandoned branches in brackets.
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
        lines.push(format!("{mark} {indent}{} under {parent}", shown(&node.message)));
    }
    lines.join("\n")
}

async fn message(world: &World, index: usize) -> MessageId {
    world.path("a").await[index].id
}

#[tokio::test]
async fn regenerate_edit_and_root_turn_the_path() {
    let mut told = vec![];
    for disk in every_store() {
        let world = World::on(disk).await;
        world.play("a", "say one").await;
        world.play("a", "say two").await;
        let mut story = vec![];
        let again = Place::Regenerate { message_id: message(&world, 2).await };
        let run = branch(&world, again, "").await;
        assert_eq!(run.state.status(), RunStatus::Succeeded);
        assert_eq!(run.prompt, None, "it answers an earlier prompt");
        story.push(tree(&world).await);
        let edit = Place::Edit { message_id: message(&world, 1).await };
        branch(&world, edit, "say three").await;
        story.push(tree(&world).await);
        branch(&world, Place::Root, "say four").await;
        story.push(tree(&world).await);
        // The path goes on where it stands now.
        world.play("a", "say five").await;
        story.push(world.path_shown("a").await);
        told.push(story);
    }
    assert_eq!(told[0], told[1], "every store tells the same");
    let story = told.remove(0);
    insta::assert_snapshot!(story.join("\n\n"), @r#"
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
async fn a_branch_that_does_not_succeed_leaves_path_and_tip_as_they_were() {
    for disk in every_store() {
        let world = World::on(disk).await;
        world.play("a", "say one").await;
        world.play("a", "say two").await;
        let before = (world.path("a").await, world.kernel.session_get(&world.me, &by("a")).await.unwrap());
        assert_eq!(before.0.len(), 4);
        let cursors = world.cursors("a").await;
        let first = Place::Edit { message_id: before.0[1].id };
        // One that fails, one that is cancelled while it runs.
        let failed = branch(&world, first, "say lost; fail for good").await;
        assert_eq!(failed.state.status(), RunStatus::Failed);
        let cancelled = world.send(at(Place::Root, "say lost too; hang")).await.unwrap().run;
        world.kernel.run_cancel(&world.me, cancelled.id).await.unwrap();
        world.ended(cancelled.id).await;
        let after = (world.path("a").await, world.kernel.session_get(&world.me, &by("a")).await.unwrap());
        assert_eq!(after.0, before.0, "{}", world.disk.name);
        assert_eq!((after.1.tip, after.1.tip_message), (before.1.tip, before.1.tip_message));
        assert_eq!(world.cursors("a").await, cursors);
        let tree = world.tree("a").await;
        let abandoned: Vec<String> =
            tree.nodes.iter().filter(|node| node.abandoned).map(|node| shown(&node.message)).collect();
        assert!(abandoned.iter().any(|shown| shown.contains("error script_failed")), "{abandoned:?}");
        assert!(abandoned.iter().any(|shown| shown.contains("error cancelled")), "{abandoned:?}");
        assert!(tree.nodes.iter().all(|node| !(node.active && node.abandoned)));
        let next = world.play("a", "say next").await;
        assert_eq!(next.state.status(), RunStatus::Succeeded);
        assert_eq!(world.path("a").await.len(), 6);
    }
}

#[tokio::test]
async fn a_branch_that_failed_and_is_tried_again_turns_the_path_when_it_succeeds() {
    for disk in every_store() {
        let world = World::on(disk).await;
        world.play("a", "say one").await;
        let place = Place::Edit { message_id: message(&world, 1).await };
        let run = world.send(at(place, "say half; fail once; say whole")).await.unwrap().run;
        let run = world.turning(100, world.ended(run.id)).await;
        assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 2));
        assert_eq!(world.path("a").await.len(), 4, "{}", world.disk.name);
    }
}

#[tokio::test]
async fn a_busy_session_is_not_branched() {
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
async fn another_answer_that_says_nothing_is_an_empty_one() {
    for disk in every_store() {
        let world = World::on(disk).await;
        world.play("a", "usage 1 1").await;
        let again = Place::Regenerate { message_id: message(&world, 0).await };
        let run = branch(&world, again, "").await;
        let session = world.kernel.session_get(&world.me, &by("a")).await.unwrap();
        let path = world.path("a").await;
        assert_eq!((path.len(), path[1].run), (2, Some(run.id)), "{}", world.disk.name);
        assert_eq!(session.tip_message, Some(path[1].id));
    }
}

#[tokio::test]
async fn what_another_answer_leaves_when_it_is_tried_again_hangs_from_its_prompt() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let run = world.prompt("a", "say half; fail once; say whole").await;
        world.turning(100, world.ended(run.id)).await;
        let prompt = message(&world, 0).await;
        let again = Place::Regenerate { message_id: prompt };
        let run = world.send(at(again, "")).await.unwrap().run;
        world.turning(100, world.ended(run.id)).await;
        let tree = world.tree("a").await;
        assert_eq!(tree.nodes.len(), 5);
        for node in &tree.nodes[1..] {
            assert_eq!(node.parent_id, Some(prompt), "{}", world.disk.name);
        }
    }
}

#[tokio::test]
async fn nothing_goes_on_from_what_was_rolled_back() {
    for disk in every_store() {
        let world = World::on(disk).await;
        world.play("a", "say one").await;
        let after = Place::Edit { message_id: message(&world, 1).await };
        assert_eq!(branch(&world, after, "say lost; fail").await.state.status(), RunStatus::Failed);
        let tree = world.tree("a").await;
        let lost = tree.nodes.iter().rfind(|node| node.abandoned).unwrap().message.id;
        let refused = world.send(at(Place::Edit { message_id: lost }, "say on")).await.unwrap_err();
        assert_eq!(refused.code(), "abandoned_message");
        let path: Vec<String> = world.path("a").await.iter().map(|message| shown(message)).collect();
        assert_eq!(path.len(), 2, "{path:?}");
    }
}
