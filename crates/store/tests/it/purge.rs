//! Deleting: in steps, wholly, and never under a fork's feet.

use mainspring_core::*;
use mainspring_kernel::store::{Fence, Row, Store};

use crate::fixtures::*;

async fn purge(store: &dyn Store, n: u64) -> usize {
    let mut steps = 1;
    while store.session_purge(session_id(n)).await.unwrap() {
        steps += 1;
        assert!(steps < 1000, "the purge does not end");
    }
    steps
}

/// A session with `messages` messages on line `n`, hanging beneath `parent`, and its tip at the last.
async fn talk(store: &dyn Store, n: u64, parent: Option<Point>, messages: u32) -> Fence {
    let fence = session_made(store, n).await;
    let id = i64::try_from(n).unwrap();
    let held = line(id, parent, messages);
    let mut rows = vec![
        Row::Line(held),
        row_session(Session { tip: held.last(), ..session(n) }),
        row_run(run(n, n, 1, RunState::Succeeded {})),
        row_attempt(attempt(n, n, 1, RunStatus::Succeeded)),
    ];
    for pos in held.start()..held.end {
        let message = message(n * 100_000 + u64::from(pos), n, &format!("{n}.{pos}"));
        rows.push(row_message(message, Some(point(id, pos))));
    }
    commit(store, fence, rows, vec![progress(n), progress(n + 1)]).await.unwrap();
    fence
}

#[tokio::test]
async fn a_purged_session_leaves_nothing() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let (fence, _) = (talk(store, 1, None, 3).await, talk(store, 2, None, 2).await);
        assert!(!store.session_purge(session_id(1)).await.unwrap(), "{name}");
        assert_eq!(events(store, 1).await.len(), 2, "{name}: only what is deleted is purged");
        session_deleted(store, fence).await;
        assert_eq!(store.unfinished().await.unwrap().deleted, [session_id(1)], "{name}");
        purge(store, 1).await;
        assert_eq!(store.unfinished().await.unwrap().deleted, [], "{name}");
        assert_eq!(events(store, 1).await, [], "{name}");
        assert_eq!(store.run_get(run_id(1)).await.unwrap(), None, "{name}");
        assert_eq!(store.attempts(run_id(1)).await.unwrap(), [], "{name}");
        assert_eq!(store.tree_page(session_id(1), None, 9).await.unwrap(), [], "{name}");
        assert_eq!(store.message_get(session_id(1), message_id(100_000)).await.unwrap(), None, "{name}");
        assert_eq!(events(store, 2).await.len(), 2, "{name}");
        assert_eq!(store.path(point(2, 1), None, 9).await.unwrap().len(), 2, "{name}");
    }
}

#[tokio::test]
async fn the_bindings_of_a_purged_session_go_too_and_their_native_sessions_are_free() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let (gone, stays) = (session_made(store, 1).await, session_made(store, 2).await);
        let bound = |binding: &Binding| vec![Row::Binding(Box::new(binding.clone()))];
        let old = binding(1, 1, "acp", 1, BindingStatus::Active);
        let kept = binding(2, 2, "acp", 1, BindingStatus::Active);
        commit(store, gone, bound(&old), vec![]).await.unwrap();
        commit(store, stays, bound(&kept), vec![]).await.unwrap();
        let next = Binding { native: old.native.clone(), ..binding(3, 2, "acp", 2, BindingStatus::Stale) };
        commit(store, stays, bound(&next), vec![]).await.unwrap_err();
        session_deleted(store, gone).await;
        purge(store, 1).await;
        assert_eq!(store.bindings(session_id(1), None, None, 9).await.unwrap(), [], "{name}");
        assert_eq!(store.bindings(session_id(2), None, None, 9).await.unwrap(), [kept], "{name}");
        commit(store, stays, bound(&next), vec![]).await.unwrap();
    }
}

#[tokio::test]
async fn a_large_session_is_purged_in_steps() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_open(folder.path());
    let fence = talk(&store, 1, None, 2500).await;
    session_deleted(&store, fence).await;
    assert_eq!(purge(&store, 1).await, 3);
    let check = store.check(true).await.unwrap();
    assert_eq!((check.sessions, check.runs, check.events, check.problems), (0, 0, 0, vec![]));
}

#[tokio::test]
async fn a_line_stays_as_far_as_a_fork_reads_it_and_goes_with_the_last_one() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fork = async |n, at| {
            let fence = lease(store, n).await;
            let fork = Session { base: Some(at), tip: Some(at), ..session(n) };
            commit(store, fence, vec![row_session(fork)], vec![]).await.unwrap();
            fence
        };
        let seen = async |n| store.tree_page(session_id(n), None, 99).await.unwrap().len();
        let origin = talk(store, 1, None, 5).await;
        // One with a line of its own, one without, and one that was forked from a fork and stands elsewhere by now.
        let branch = talk(store, 2, Some(point(1, 2)), 2).await;
        let based = Session { base: Some(point(1, 2)), tip: Some(point(2, 4)), ..session(2) };
        commit(store, branch, vec![row_session(based)], vec![]).await.unwrap();
        let bare = fork(3, point(1, 1)).await;
        let moved = fork(4, point(2, 3)).await;
        commit(store, moved, vec![Row::Line(line(40, None, 1))], vec![]).await.unwrap();

        session_deleted(store, origin).await;
        purge(store, 1).await;
        assert_eq!((seen(2).await, seen(3).await, seen(4).await), (5, 2, 4), "{name}");
        let gone = store.path(point(1, 4), None, 9).await.unwrap();
        assert_eq!(gone.len(), 3, "{name}: what no fork sees is gone");
        session_deleted(store, branch).await;
        purge(store, 2).await;
        assert_eq!((seen(3).await, seen(4).await), (2, 4), "{name}");
        session_deleted(store, moved).await;
        purge(store, 4).await;
        assert_eq!(seen(3).await, 2, "{name}");
        assert_eq!(store.path(point(1, 4), None, 9).await.unwrap().len(), 2, "{name}");
        session_deleted(store, bare).await;
        purge(store, 3).await;
        assert!(store.path(point(1, 1), None, 9).await.is_err(), "{name}: the line itself is gone");
        assert!(store.path(point(2, 3), None, 9).await.is_err(), "{name}");
    }
}

#[tokio::test]
async fn a_cursor_is_never_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut last = Cursor::START;
    for _ in 0..3 {
        let store = sqlite_open(folder.path());
        let fence = session_made(&store, 1).await;
        for cursor in commit(&store, fence, vec![], vec![progress(1), progress(2)]).await.unwrap() {
            assert!(cursor > last, "{cursor:?} comes after {last:?}");
            last = cursor;
        }
        session_deleted(&store, fence).await;
        purge(&store, 1).await;
        assert_eq!(store.check(false).await.unwrap().events, 0);
    }
}
