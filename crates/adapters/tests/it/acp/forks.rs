//! Forking and closing of native sessions.

use mainspring_core::{BindingStatus, MessageId, Place};
use mainspring_kernel::kernel::ForkRequest;

use super::*;

/// Forks a session at a message; at its last one by default.
async fn fork(world: &World, from: &str, to: &str, at: Option<MessageId>) {
    let message = match at {
        Some(at) => at,
        None => world.last_message(from).await.id,
    };
    let fork = ForkRequest { key: Some(to.into()), message, title: None };
    world.kernel().session_fork(&world.me, &session_ref(from).unwrap(), fork, None).await.unwrap();
}

/// The file of a native session.
async fn file(world: &World, key: &str) -> PathBuf {
    let native = world.bindings(key).await[0].native.clone().unwrap();
    world.folder.path().join("agent").join(native)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forked_session_continues_in_a_fork_of_the_native_session() {
    let mut world = world("resume,fork").await;
    world.answer_to("a", "my name is Ada").await;
    fork(&world, "a", "b", None).await;
    for _ in 0..2 {
        let answer = world.answer_to("b", "history").await;
        assert!(answer.starts_with("my name is Ada | (forked)\nhistory\n"), "{answer}");
        world.restart().await;
    }
    let bindings = world.bindings("b").await;
    assert_eq!((bindings.len(), bindings[0].generation, bindings[0].reconstructed), (1, 1, false));
    assert_eq!(world.answer_to("a", "history").await, "my name is Ada\nhistory\n", "the origin is unchanged");
    // The native session is now past the message at which the next fork begins.
    let first = world.path("a").await[1].id;
    fork(&world, "a", "c", Some(first)).await;
    let answer = world.answer_to("c", "history").await;
    assert!(answer.contains("user: my name is Ada"), "{answer}");
    assert!(world.bindings("c").await[0].reconstructed);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_left_earlier_continues_in_a_fork_of_its_native_session() {
    let world = world("resume,fork").await;
    world.answer_to("a", "one").await;
    world.answer_to("a", "two").await;
    let path = world.path("a").await;
    let (first, last) = (path[1].id, path[3].id);
    let run = world
        .start_request(RunRequest { place: Place::Edit { message_id: first }, ..request("a", "other") })
        .await;
    world.wait_for_end(run).await;
    assert!(world.bindings("a").await[0].reconstructed, "no native session is at that message");
    let session = session_ref("a").unwrap();
    world.kernel().session_navigate(&world.me, &session, Some(last), None).await.unwrap();
    assert_eq!(world.answer_to("a", "history").await, "one | two | (forked)\nhistory\n");
    let bindings = world.bindings("a").await;
    assert_eq!((bindings.len(), bindings[0].generation, bindings[0].reconstructed), (3, 3, false));
    // An invalidated session is not forked.
    world.kernel().binding_invalidate(&world.me, &session, "agent").await.unwrap();
    let answer = world.answer_to("a", "history").await;
    assert!(answer.contains("user: one") && !answer.contains("(forked)\nhistory\nhistory"), "{answer}");
    assert_eq!(world.bindings("a").await[1].status, BindingStatus::Invalid);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_or_lost_native_session_is_not_forked() {
    let world = world("resume,fork").await;
    world.answer_to("a", "my name is Ada").await;
    fork(&world, "a", "b", None).await;
    // A turn runs in it.
    let run = world.start("a", "hang").await;
    world.wait_for_text("a", "hanging").await;
    let answer = world.answer_to("b", "history").await;
    assert!(answer.contains("user: my name is Ada") && !answer.contains("hang"), "{answer}");
    world.cancel(run).await;
    world.wait_for_end(run).await;
    world.answer_to("d", "my name is Bob").await;
    fork(&world, "d", "e", None).await;
    std::fs::remove_file(file(&world, "d").await).unwrap();
    let answer = world.answer_to("e", "history").await;
    assert!(answer.contains("user: my name is Bob"), "{answer}");
    assert!(world.bindings("e").await[0].reconstructed);
    // An agent that cannot fork gets a transcript.
    world.close().await;
    let world = self::world("resume").await;
    world.answer_to("a", "my name is Ada").await;
    fork(&world, "a", "b", None).await;
    assert!(world.answer_to("b", "history").await.contains("user: my name is Ada"));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_native_session_can_be_resumed() {
    let world = world("resume,close").await;
    let closed = |file: &PathBuf| {
        let mark = file.with_extension("closed");
        with_timeout(async move {
            while !mark.exists() {
                tokio::task::yield_now().await;
            }
            std::fs::remove_file(mark).unwrap();
        })
    };
    let kernel = world.kernel();
    let session = session_ref("a").unwrap();
    world.answer_to("a", "one").await;
    let first = file(&world, "a").await;
    // The session is closed, and used again.
    kernel.session_close(&world.me, &session).await.unwrap();
    closed(&first).await;
    assert_eq!(world.answer_to("a", "history").await, "one\nhistory\n");
    // Another native session supersedes it.
    let mut other = request("a", "history");
    other.options.system_prompt = Some("be short".into());
    let run = world.start_request(other.clone()).await;
    world.wait_for_end(run).await;
    closed(&first).await;
    let second = file(&world, "a").await;
    // Its binding is invalidated while its process is idle.
    kernel.binding_invalidate(&world.me, &session, "agent").await.unwrap();
    closed(&second).await;
    let run = world.start_request(other).await;
    world.wait_for_end(run).await;
    let third = file(&world, "a").await;
    kernel.session_delete(&world.me, &session).await.unwrap();
    closed(&third).await;
    world.close().await;
}
