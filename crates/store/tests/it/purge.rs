//! Deleting sessions: in steps, completely, and without removing what a fork reads.

use mainspring_core::*;
use mainspring_kernel::store::{Fence, Row, Store};
use mainspring_store::SqliteView;

use crate::fixtures::*;

async fn purge(store: &dyn Store, n: u64) -> usize {
    let mut steps = 1;
    while store.session_purge(session_id(n)).await.unwrap() {
        steps += 1;
        assert!(steps < 1000, "the purge does not end");
    }
    steps
}

/// Creates session `n` with `messages` messages on line `n`, a child of `parent`, and its tip at the last message.
async fn create_conversation(store: &dyn Store, n: u64, parent: Option<Point>, messages: u32) -> Fence {
    let fence = create_session(store, n).await;
    let id = i64::try_from(n).unwrap();
    let own = line(id, parent, messages);
    let mut rows = vec![
        Row::Line(own),
        row_session(Session { tip: own.last(), ..session(n) }),
        row_run(run(n, n, 1, RunState::Succeeded {})),
        row_attempt(attempt(n, n, 1, RunStatus::Succeeded)),
    ];
    for pos in own.start()..own.end {
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
        let (fence, _) =
            (create_conversation(store, 1, None, 3).await, create_conversation(store, 2, None, 2).await);
        assert!(!store.session_purge(session_id(1)).await.unwrap(), "{name}");
        assert_eq!(events(store, 1).await.len(), 2, "{name}: only deleted sessions are purged");
        delete_session(store, fence).await;
        assert_eq!(store.unfinished().await.unwrap().deleted, [session_id(1)], "{name}");
        purge(store, 1).await;
        assert_eq!(store.unfinished().await.unwrap().deleted, [], "{name}");
        assert_eq!(events(store, 1).await, [], "{name}");
        assert_eq!(store.run_get(run_id(1)).await.unwrap(), None, "{name}");
        assert_eq!(store.attempts(run_id(1)).await.unwrap().items, [], "{name}");
        assert_eq!(store.tree_page(session_id(1), None, 9).await.unwrap().items, [], "{name}");
        assert_eq!(store.message_get(session_id(1), message_id(100_000)).await.unwrap(), None, "{name}");
        assert_eq!(events(store, 2).await.len(), 2, "{name}");
        assert_eq!(store.path(point(2, 1), None, 9).await.unwrap().len(), 2, "{name}");
    }
}

#[tokio::test]
async fn a_purge_removes_bindings_and_frees_their_native_sessions() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let (deleted, other) = (create_session(store, 1).await, create_session(store, 2).await);
        let row = |binding: &Binding| vec![Row::Binding(Box::new(binding.clone()))];
        let old = binding(1, 1, "acp", 1, BindingStatus::Active);
        let kept = binding(2, 2, "acp", 1, BindingStatus::Active);
        commit(store, deleted, row(&old), vec![]).await.unwrap();
        commit(store, other, row(&kept), vec![]).await.unwrap();
        let next = Binding { native: old.native.clone(), ..binding(3, 2, "acp", 2, BindingStatus::Active) };
        let stale = Binding { status: BindingStatus::Stale, ..kept.clone() };
        let replace = [row(&next), row(&stale)].concat();
        commit(store, other, replace.clone(), vec![]).await.unwrap_err();
        delete_session(store, deleted).await;
        purge(store, 1).await;
        assert_eq!(store.bindings(session_id(1), None, None, 9).await.unwrap(), [], "{name}");
        assert_eq!(store.bindings(session_id(2), None, None, 9).await.unwrap(), [kept], "{name}");
        commit(store, other, replace, vec![]).await.unwrap();
    }
}

#[tokio::test]
async fn a_large_session_is_purged_in_steps() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_open(folder.path());
    let fence = create_conversation(&store, 1, None, 2500).await;
    delete_session(&store, fence).await;
    assert_eq!(purge(&store, 1).await, 3);
    let check = store.check(true).await.unwrap();
    assert_eq!((check.sessions, check.runs, check.events, check.problems), (0, 0, 0, vec![]));
}

#[tokio::test]
async fn a_database_is_intact_while_a_session_is_purged() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_open(folder.path());
    let fence = create_conversation(&store, 1, None, 2500).await;
    delete_session(&store, fence).await;
    assert!(store.session_purge(session_id(1)).await.unwrap(), "there is more to remove");
    store.close();
    let verified = SqliteView::open(&folder.path().join("test.sqlite3"), false).unwrap().verify().unwrap();
    let findings: Vec<String> = verified.into_iter().flat_map(|part| part.findings).collect();
    assert_eq!(findings, Vec::<String>::new());
}

#[tokio::test]
async fn a_line_is_kept_as_far_as_forks_read_it_and_removed_with_the_last_fork() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fork = async |n, at| {
            let fence = lease(store, n).await;
            let fork = Session { base: Some(at), tip: Some(at), ..session(n) };
            commit(store, fence, vec![row_session(fork)], vec![]).await.unwrap();
            fence
        };
        let visible = async |n| store.tree_page(session_id(n), None, 99).await.unwrap().len();
        let origin = create_conversation(store, 1, None, 5).await;
        // A fork with a line of its own, one without, and a fork of a fork whose tip has moved.
        let branch = create_conversation(store, 2, Some(point(1, 2)), 2).await;
        let based = Session { base: Some(point(1, 2)), tip: Some(point(2, 4)), ..session(2) };
        commit(store, branch, vec![row_session(based)], vec![]).await.unwrap();
        let bare = fork(3, point(1, 1)).await;
        let moved = fork(4, point(2, 3)).await;
        commit(store, moved, vec![Row::Line(line(40, None, 1))], vec![]).await.unwrap();

        delete_session(store, origin).await;
        purge(store, 1).await;
        assert_eq!((visible(2).await, visible(3).await, visible(4).await), (5, 2, 4), "{name}");
        let gone = store.path(point(1, 4), None, 9).await.unwrap().items;
        assert_eq!(gone.len(), 3, "{name}: messages that no fork sees are removed");
        delete_session(store, branch).await;
        purge(store, 2).await;
        assert_eq!((visible(3).await, visible(4).await), (2, 4), "{name}");
        delete_session(store, moved).await;
        purge(store, 4).await;
        assert_eq!(visible(3).await, 2, "{name}");
        assert_eq!(store.path(point(1, 4), None, 9).await.unwrap().len(), 2, "{name}");
        delete_session(store, bare).await;
        purge(store, 3).await;
        assert!(store.path(point(1, 1), None, 9).await.is_err(), "{name}: the line is removed");
        assert!(store.path(point(2, 3), None, 9).await.is_err(), "{name}");
    }
}

#[tokio::test]
async fn cursors_are_never_reused() {
    let folder = tempfile::tempdir().unwrap();
    let mut last = Cursor::START;
    for _ in 0..3 {
        let store = sqlite_open(folder.path());
        let fence = create_session(&store, 1).await;
        for cursor in commit(&store, fence, vec![], vec![progress(1), progress(2)]).await.unwrap() {
            assert!(cursor > last, "{cursor:?} comes after {last:?}");
            last = cursor;
        }
        delete_session(&store, fence).await;
        purge(&store, 1).await;
        assert_eq!(store.check(false).await.unwrap().events, 0);
    }
}
