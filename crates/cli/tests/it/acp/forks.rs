//! Native sessions that are forked, and those that are closed.

use mainspring::core::{BindingStatus, MessageId, Place};
use mainspring_kernel::kernel::ForkRequest;

use super::*;

/// Forks a session at a message; at its last if none is given.
pub(super) async fn fork(world: &World, from: &str, to: &str, at: Option<MessageId>) {
    let message = match at {
        Some(at) => at,
        None => world.last(from).await.id,
    };
    let fork = ForkRequest { key: Some(to.into()), message, title: None };
    world.node().kernel().session_fork(&world.me, &session_ref(from).unwrap(), fork, None).await.unwrap();
}

/// The file of a native session.
async fn file(world: &World, key: &str) -> PathBuf {
    let native = world.bindings(key).await[0].native.clone().unwrap();
    world.folder.path().join("agent").join(native)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forked_session_goes_on_in_a_fork_of_the_native_one_with_all_it_knows() {
    let mut world = world("resume,fork").await;
    world.say("a", "my name is Ada").await;
    fork(&world, "a", "b", None).await;
    for _ in 0..2 {
        let heard = world.say("b", "history").await;
        assert!(heard.starts_with("my name is Ada | (forked)\nhistory\n"), "{heard}");
        world.reopen().await;
    }
    let bindings = world.bindings("b").await;
    assert_eq!((bindings.len(), bindings[0].generation, bindings[0].reconstructed), (1, 1, false));
    assert_eq!(world.say("a", "history").await, "my name is Ada\nhistory\n", "the other goes its own way");
    // After that it stands elsewhere than the next fork begins.
    let first = world.path("a").await[1].id;
    fork(&world, "a", "c", Some(first)).await;
    let heard = world.say("c", "history").await;
    assert!(heard.contains("user: my name is Ada"), "{heard}");
    assert!(world.bindings("c").await[0].reconstructed);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_was_left_is_gone_on_with_where_its_native_session_stands() {
    let world = world("resume,fork").await;
    world.say("a", "one").await;
    world.say("a", "two").await;
    let path = world.path("a").await;
    let (first, last) = (path[1].id, path[3].id);
    let run =
        world.send(RunRequest { place: Place::Edit { message_id: first }, ..request("a", "other") }).await;
    world.ended(run).await;
    assert!(world.bindings("a").await[0].reconstructed, "nothing stands there");
    let session = session_ref("a").unwrap();
    world.node().kernel().session_navigate(&world.me, &session, Some(last), None).await.unwrap();
    assert_eq!(world.say("a", "history").await, "one | two | (forked)\nhistory\n");
    let bindings = world.bindings("a").await;
    assert_eq!((bindings.len(), bindings[0].generation, bindings[0].reconstructed), (3, 3, false));
    // What was declared invalid is not forked either.
    world.node().kernel().binding_invalidate(&world.me, &session, "agent").await.unwrap();
    let heard = world.say("a", "history").await;
    assert!(heard.contains("user: one") && !heard.contains("(forked)\nhistory\nhistory"), "{heard}");
    assert_eq!(world.bindings("a").await[1].status, BindingStatus::Invalid);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_on_or_is_gone_is_not_forked() {
    let world = world("resume,fork").await;
    world.say("a", "my name is Ada").await;
    fork(&world, "a", "b", None).await;
    // It has heard more by now.
    let run = world.prompt("a", "hang").await;
    world.streams("a", "hanging").await;
    let heard = world.say("b", "history").await;
    assert!(heard.contains("user: my name is Ada") && !heard.contains("hang"), "{heard}");
    soon(world.node().kernel().run_cancel(&world.me, run)).await.unwrap();
    world.ended(run).await;
    world.say("d", "my name is Bob").await;
    fork(&world, "d", "e", None).await;
    std::fs::remove_file(file(&world, "d").await).unwrap();
    let heard = world.say("e", "history").await;
    assert!(heard.contains("user: my name is Bob"), "{heard}");
    assert!(world.bindings("e").await[0].reconstructed);
    // One that cannot fork is told of the path.
    world.close().await;
    let world = self::world("resume").await;
    world.say("a", "my name is Ada").await;
    fork(&world, "a", "b", None).await;
    assert!(world.say("b", "history").await.contains("user: my name is Ada"));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_native_session_that_is_not_needed_is_closed_and_is_taken_up_all_the_same() {
    let world = world("resume,close").await;
    let closed = |file: &PathBuf| {
        let mark = file.with_extension("closed");
        soon(async move {
            while !mark.exists() {
                tokio::task::yield_now().await;
            }
            std::fs::remove_file(mark).unwrap();
        })
    };
    let kernel = world.node().kernel();
    let session = session_ref("a").unwrap();
    world.say("a", "one").await;
    let first = file(&world, "a").await;
    // Put away, and taken out again.
    kernel.session_close(&world.me, &session).await.unwrap();
    closed(&first).await;
    assert_eq!(world.say("a", "history").await, "one\nhistory\n");
    // Superseded by another.
    let mut other = request("a", "history");
    other.options.system_prompt = Some("be short".into());
    let run = world.send(other.clone()).await;
    world.ended(run).await;
    closed(&first).await;
    let second = file(&world, "a").await;
    // Declared invalid, while its process is idle.
    kernel.binding_invalidate(&world.me, &session, "agent").await.unwrap();
    closed(&second).await;
    let run = world.send(other).await;
    world.ended(run).await;
    let third = file(&world, "a").await;
    kernel.session_delete(&world.me, &session).await.unwrap();
    closed(&third).await;
    world.close().await;
}
