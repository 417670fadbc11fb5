//! Delegations: written by the child's session, read from both sides, removed with the parent's session.

use std::slice::from_ref;

use mainspring_core::*;
use mainspring_kernel::store::{DelegationsOf, InboxItem, Note, Row};

use crate::fixtures::*;

pub(crate) fn delegation(no: u64) -> Delegation {
    Delegation {
        id: delegation_id(no),
        parent_session: session_id(1),
        parent_run: run_id(1),
        child_session: session_id(2),
        child_run: run_id(no),
        mode: DelegationMode::Call,
        status: DelegationStatus::Pending,
        objective: "look".into(),
        request: serde_json::json!({"objective": "look", "context": no}).into(),
        result: None,
        created_at: Time(i64::try_from(no).unwrap()),
        completed_at: None,
    }
}

fn row(delegation: &Delegation) -> Row {
    Row::Delegation(Box::new(delegation.clone()))
}

#[tokio::test]
async fn a_delegation_is_read_from_both_sides_until_its_parent_session_is_purged() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let (parent, child) = (create_session(store, 1).await, create_session(store, 2).await);
        commit(store, parent, vec![row_run(run(1, 1, 1, queued()))], vec![progress(1)]).await.unwrap();
        let (first, second) = (delegation(2), delegation(3));
        let child_run = |n: u64, no: u32| row_run(Run { parent: Some(run_id(1)), ..run(n, 2, no, queued()) });
        let rows = vec![child_run(2, 1), child_run(3, 2), row(&second), row(&first)];
        commit(store, child, rows, vec![progress(2)]).await.unwrap();

        let read = async |of: DelegationsOf| store.delegations(&of).await.unwrap();
        assert_eq!(read(DelegationsOf::Id(first.id)).await, from_ref(&first), "{name}");
        assert_eq!(read(DelegationsOf::Child(run_id(3))).await, from_ref(&second), "{name}");
        let made = DelegationsOf::Parent(session_id(1), run_id(1));
        assert_eq!(read(made).await, [first.clone(), second.clone()], "{name}: oldest first");
        assert_eq!(read(DelegationsOf::Parent(session_id(2), run_id(1))).await, [], "{name}");

        // A loaded session has the delegations that are not settled, as parent and as child.
        let settled =
            Delegation { status: DelegationStatus::Succeeded, completed_at: Some(NOW), ..second.clone() };
        commit(store, child, vec![row(&settled)], vec![progress(3)]).await.unwrap();
        for session in [1, 2] {
            let loaded = store.session_load(session_id(session)).await.unwrap().unwrap();
            assert_eq!(loaded.delegations, from_ref(&first), "{name}: session {session}");
        }

        let deleted = Session { status: SessionStatus::Deleted, ..session(1) };
        commit(store, parent, vec![row_session(deleted)], vec![progress(4)]).await.unwrap();
        let late = Delegation { status: DelegationStatus::Running, ..first };
        commit(store, child, vec![row(&late)], vec![progress(5)]).await.unwrap();
        while store.session_purge(session_id(1)).await.unwrap() {}
        commit(store, child, vec![row(&late)], vec![progress(6)]).await.unwrap();
        assert_eq!(read(made).await, [], "{name}");
    }
}

#[tokio::test]
async fn the_usage_of_delegated_runs_includes_all_descendants() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let used = |input_tokens| Usage { input_tokens, ..Usage::default() };
        let fences =
            [create_session(store, 1).await, create_session(store, 2).await, create_session(store, 3).await];
        for (n, fence) in (1..).zip(fences) {
            let run = Run { usage: used(10_u64.pow(u32::try_from(n).unwrap())), ..run(n, n, 1, queued()) };
            commit(store, fence, vec![row_run(run)], vec![progress(n)]).await.unwrap();
        }
        // Session 1 delegates to session 2, session 2 to session 3, and session 3 back to session 1.
        for (parent, child) in [(1, 2), (2, 3), (3, 1)] {
            let made = Delegation {
                parent_session: session_id(parent),
                parent_run: run_id(parent),
                child_session: session_id(child),
                child_run: run_id(child),
                ..delegation(child)
            };
            let fence = fences[usize::try_from(child).unwrap() - 1];
            commit(store, fence, vec![row(&made)], vec![progress(9 + child)]).await.unwrap();
        }
        assert_eq!(store.delegated_usage(session_id(1)).await.unwrap(), (2, used(1_100)), "{name}");
        assert_eq!(store.session_usage(session_id(1)).await.unwrap(), (1, used(10)), "{name}");
        delete_session(store, fences[1]).await;
        let rest = Usage { at_least: true, ..used(1_000) };
        assert_eq!(
            store.delegated_usage(session_id(1)).await.unwrap(),
            (2, rest),
            "{name}: not known any more"
        );
    }
}

#[tokio::test]
async fn a_session_with_a_note_is_unfinished() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let (from, to) = (create_session(store, 1).await, create_session(store, 2).await);
        assert_eq!(store.unfinished().await.unwrap().live, [], "{name}");
        let item = InboxItem { id: event_id(9), at: NOW, note: Note::Cancel { run: run_id(1) } };
        commit(store, from, vec![Row::Inbox(session_id(2), item.clone())], vec![progress(1)]).await.unwrap();
        assert_eq!(store.unfinished().await.unwrap().live, [session_id(2)], "{name}");
        assert_eq!(store.inbox(session_id(2)).await.unwrap(), [item], "{name}");
        commit(store, to, vec![Row::InboxTaken(event_id(9))], vec![progress(2)]).await.unwrap();
        assert_eq!(store.unfinished().await.unwrap().live, [], "{name}");
    }
}
