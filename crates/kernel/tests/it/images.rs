//! Images: the copies in memory of loaded sessions and their runs. Reads use an image instead of the store, and must
//! get the result that the store would give.

use std::sync::Arc;

use mainspring_api::LiveStatus;
use mainspring_core::{Block, Message, NodeId, Run, RunStatus, Session, Usage};
use mainspring_kernel::Error;
use mainspring_kernel::kernel::SessionPatch;
use mainspring_kernel::store::{Commit, Row, SessionRef};
use mainspring_store::{Fault, SqliteOptions, SqliteStore};

use crate::world::{Disk, NOW, World, by_key, every_store, input, run_ready_tasks, with_timeout};

fn titled(title: &str) -> SessionPatch {
    SessionPatch { title: Some(Some(title.into())), ..SessionPatch::default() }
}

async fn title(world: &World, by: &SessionRef) -> Option<String> {
    world.kernel.session_get(&world.me, by).await.unwrap().title
}

#[tokio::test]
async fn a_loaded_session_is_read_from_memory_and_an_unloaded_one_from_the_store() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let run = world.play("a", "say one").await;
        world.kernel.session_patch(&world.me, &by_key("a"), titled("mine")).await.unwrap();
        let session = world.kernel.session_get(&world.me, &by_key("a")).await.unwrap();
        let store = &world.disk.store;
        let stored = store.session_find(&world.me.owner, &by_key("a")).await.unwrap();
        assert_eq!(stored.as_ref(), Some(&session), "{}", world.disk.name);
        let known = Run { final_text: None, ..world.get(run.id).await };
        assert_eq!(store.run_get(run.id).await.unwrap(), Some(known), "{}", world.disk.name);
        // A second writer, which the lock of the state directory normally prevents.
        let fence = world.disk.store.lease_take(session.id, NodeId::from_random([0; 16])).await.unwrap();
        let rows = vec![Row::Session(Arc::new(Session { title: Some("theirs".into()), ..session.clone() }))];
        world.disk.store.commit(Arc::new(Commit { fence, events: vec![], rows })).await.unwrap();
        for by in [by_key("a"), SessionRef::Id(session.id)] {
            assert_eq!(title(&world, &by).await.as_deref(), Some("mine"), "{}", world.disk.name);
        }
        assert!(world.kernel.session_close(&world.me, &by_key("a")).await.unwrap());
        for by in [by_key("a"), SessionRef::Id(session.id)] {
            assert_eq!(title(&world, &by).await.as_deref(), Some("theirs"), "{}", world.disk.name);
        }
        assert_eq!(world.get(run.id).await.state.status(), RunStatus::Succeeded);
    }
}

#[tokio::test]
async fn no_change_is_read_before_its_commit_or_after_its_commit_failed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.sqlite3");
    let store = Arc::new(SqliteStore::open(&path, SqliteOptions::default(), NOW).unwrap());
    let mut disk = Disk::memory();
    disk.store = store.clone();
    let world = World::on(disk).await;
    world.play("a", "say one").await;
    let before = title(&world, &by_key("a")).await;
    let paused = store.pause_writer();
    let (kernel, me) = (world.kernel.clone(), world.me.clone());
    let change = async move { kernel.session_patch(&me, &by_key("a"), titled("new")).await };
    let (changed, ()) = with_timeout(async {
        tokio::join!(change, async {
            while store.queued() == 0 {
                run_ready_tasks().await;
            }
            assert_eq!(title(&world, &by_key("a")).await, before);
            drop(paused);
        })
    })
    .await;
    changed.unwrap();
    assert_eq!(title(&world, &by_key("a")).await.as_deref(), Some("new"));
    store.inject_fault(Fault::CommitFails);
    let failed = world.kernel.session_patch(&world.me, &by_key("a"), titled("lost")).await;
    assert!(matches!(failed, Err(Error::Unavailable(_))), "{failed:?}");
    assert_eq!(title(&world, &by_key("a")).await.as_deref(), Some("new"));
}

#[tokio::test]
async fn a_deleted_session_and_its_runs_are_not_found() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let run = world.play("a", "say one").await;
        world.kernel.session_delete(&world.me, &by_key("a")).await.unwrap();
        for by in [by_key("a"), SessionRef::Id(run.session)] {
            let found = world.kernel.session_get(&world.me, &by).await;
            assert_eq!(found.unwrap_err().code(), "not_found", "{}", world.disk.name);
        }
        world.play("a", "say two").await;
        assert_ne!(world.kernel.session_get(&world.me, &by_key("a")).await.unwrap().id, run.session);
    }
}

#[tokio::test]
async fn the_activity_and_usage_of_a_loaded_session_are_read_from_memory() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let view = async || world.kernel.session_view(&world.me, &by_key("a")).await.unwrap();
        let seen = async || (view().await.live_status, view().await.usage.input_tokens);
        world.play("a", "usage 3 1").await;
        let run = world.play("a", "usage 4 1").await;
        // After this change, the session has nothing left to write.
        world.kernel.session_patch(&world.me, &by_key("a"), titled("mine")).await.unwrap();
        assert_eq!(seen().await, (LiveStatus::Idle, 7), "{}", world.disk.name);
        let store = &world.disk.store;
        let fence = store.lease_take(run.session, NodeId::from_random([0; 16])).await.unwrap();
        let usage = Usage { input_tokens: 40, ..run.usage };
        let rows = vec![Row::Run(Arc::new(Run { usage, final_text: None, ..run }))];
        store.commit(Arc::new(Commit { fence, events: vec![], rows })).await.unwrap();
        assert_eq!(seen().await, (LiveStatus::Idle, 7), "{}", world.disk.name);
        assert!(world.kernel.session_close(&world.me, &by_key("a")).await.unwrap());
        world.prompt("a", "usage 5 1; hang").await;
        let queued = world.prompt("a", "usage 6 1").await;
        let status = async || view().await.live_status;
        assert_eq!(status().await, LiveStatus::Busy, "{}", world.disk.name);
        world.kernel.run_cancel(&world.me, queued.id).await.unwrap();
        assert_eq!(status().await, LiveStatus::Busy, "the latest run has ended, {}", world.disk.name);
    }
}

#[tokio::test]
async fn the_text_of_a_loaded_run_is_read_from_memory() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let run = world.play("a", r#"say one; tool add {"a":1,"b":2}; say two"#).await;
        // After this change, the session has nothing left to write.
        world.kernel.session_patch(&world.me, &by_key("a"), titled("mine")).await.unwrap();
        let store = &world.disk.store;
        let fence = store.lease_take(run.session, NodeId::from_random([0; 16])).await.unwrap();
        let (placed, _) = store.message_get(run.session, run.final_message.unwrap()).await.unwrap().unwrap();
        let other = Message { content: vec![Block::text("three\n")], ..Message::clone(&placed.message) };
        let rows = vec![Row::Message(Arc::new(other), placed.point)];
        store.commit(Arc::new(Commit { fence, events: vec![], rows })).await.unwrap();
        let text = async || world.get(run.id).await.final_text;
        assert_eq!(text().await.as_deref(), Some("one\ntwo\n"), "{}", world.disk.name);
        assert!(world.kernel.session_close(&world.me, &by_key("a")).await.unwrap());
        assert_eq!(text().await.as_deref(), Some("one\nthree\n"), "{}", world.disk.name);
    }
}

#[tokio::test]
async fn the_text_in_memory_equals_the_text_in_the_store() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let long = format!("say {}", "word ".repeat(2_000));
        let scripts = [
            "say one",
            r#"say one; tool add {"a":1,"b":2}; say two; tool upper {"text":"x"}"#,
            r#"tool add {"a":1,"b":2} | missing {}"#,
            "usage 1 1",
            "say half; fail once no; say again",
            "say half; fail for good",
            "say half; crash",
            &long,
        ];
        for script in scripts {
            let sent = world.prompt("a", script).await;
            let run = world.advance_until(100, world.ended(sent.id)).await;
            assert!(world.kernel.session_close(&world.me, &by_key("a")).await.unwrap());
            let stored = world.get(run.id).await;
            assert_eq!(run.final_text, stored.final_text, "{} {script}", world.disk.name);
        }
        let asks = world.prompt("a", "say one; ask what?; say two").await;
        let wait = world.wait_for_question(asks.id).await;
        world.kernel.run_answer(&world.me, asks.id, wait, input("this")).await.unwrap();
        let answered = world.ended(asks.id).await;
        let hangs = world.prompt("a", "say half; hang").await;
        with_timeout(world.kernel.run_cancel(&world.me, hangs.id)).await.unwrap();
        let cancelled = world.ended(hangs.id).await;
        let pauses = world.prompt("a", "say half; fail once no; say again").await;
        world.wait_until(pauses.id, |run| run.attempts == 1 && run.state.status() == RunStatus::Queued).await;
        with_timeout(world.kernel.run_cancel(&world.me, pauses.id)).await.unwrap();
        let not_retried = world.ended(pauses.id).await;
        assert!(world.kernel.session_close(&world.me, &by_key("a")).await.unwrap());
        for run in [answered, cancelled, not_retried] {
            assert_eq!(run.final_text, world.get(run.id).await.final_text, "{}", world.disk.name);
        }
    }
}
