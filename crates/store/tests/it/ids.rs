//! Lookup of ids by their beginning: in order, and only of records that the reader may see.

use mainspring_core::*;
use mainspring_kernel::store::{IdPage, IdsOf, Row, Store};

use crate::fixtures::*;

fn all(of: IdsOf, limit: usize) -> IdPage {
    IdPage { of, first: [0; 16], last: [0xff; 16], limit, visit: 99 }
}

/// Finds all ids of a kind, as bytes.
async fn find(store: &dyn Store, of: IdsOf) -> Vec<[u8; 16]> {
    store.id_page(&all(of, 9)).await.unwrap().unwrap()
}

#[tokio::test]
async fn ids_are_found_in_their_range_and_in_sessions_that_the_reader_sees() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let org = Session {
            org: Some("acme".into()),
            visibility: Visibility::Org,
            owner: "eve".into(),
            ..session(2)
        };
        let private = Session { id: session_id(3), visibility: Visibility::Private, ..org.clone() };
        let mut fences = vec![];
        for (n, session) in [(1, session(1)), (2, org), (3, private)] {
            let fence = lease(store, n).await;
            let rows = vec![
                row_session(session),
                row_run(run(n, n, 1, queued())),
                Row::Artifact(Box::new(artifact(n, n, "hash"))),
            ];
            commit(store, fence, rows, vec![]).await.unwrap();
            fences.push(fence);
        }
        let owner = || OWNER.to_owned();
        let acme = || Some("acme".to_owned());
        let runs = |numbers: &[u64]| numbers.iter().map(|n| *run_id(*n).as_bytes()).collect::<Vec<_>>();
        assert_eq!(find(store, IdsOf::Runs { owner: owner(), org: None }).await, runs(&[1]), "{name}");
        assert_eq!(find(store, IdsOf::Runs { owner: owner(), org: acme() }).await, runs(&[1, 2]), "{name}");
        assert_eq!(
            find(store, IdsOf::Runs { owner: "eve".into(), org: None }).await,
            runs(&[2, 3]),
            "{name}"
        );
        let sessions = find(store, IdsOf::Sessions { owner: owner(), org: acme() }).await;
        assert_eq!(sessions, [1, 2].map(|n| *session_id(n).as_bytes()), "{name}");
        let artifacts = find(store, IdsOf::Artifacts { owner: owner(), org: None }).await;
        assert_eq!(artifacts, [*artifact_id(1).as_bytes()], "{name}");

        let of = || IdsOf::Runs { owner: "eve".into(), org: None };
        let second = *run_id(2).as_bytes();
        let exactly = IdPage { first: second, last: second, ..all(of(), 9) };
        assert_eq!(store.id_page(&exactly).await.unwrap(), Some(vec![second]), "{name}");
        assert_eq!(store.id_page(&all(of(), 1)).await.unwrap(), Some(vec![second]), "{name}");

        delete_session(store, fences[0]).await;
        assert_eq!(find(store, IdsOf::Runs { owner: owner(), org: None }).await, runs(&[]), "{name}");
    }
}

#[tokio::test]
async fn keys_are_found_in_the_org_of_their_admin() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        for (n, org) in [(1, None), (2, Some("acme")), (3, Some("other"))] {
            store.key_write(&crate::keys::key(n, org), None).await.unwrap();
        }
        let ids = |numbers: &[u64]| numbers.iter().map(|n| *key_id(*n).as_bytes()).collect::<Vec<_>>();
        assert_eq!(find(store, IdsOf::Keys { org: None }).await, ids(&[1, 2, 3]), "{name}");
        assert_eq!(find(store, IdsOf::Keys { org: Some("acme".into()) }).await, ids(&[2]), "{name}");
    }
}

#[tokio::test]
async fn messages_are_found_where_a_session_or_its_fork_sees_them() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let (one, two) = (create_session(store, 1).await, lease(store, 2).await);
        let rows = vec![
            Row::Line(line(1, None, 3)),
            row_message(message(1, 1, "a"), Some(point(1, 0))),
            row_message(message(2, 1, "b"), Some(point(1, 1))),
            row_message(message(3, 1, "c"), Some(point(1, 2))),
            row_message(message(4, 1, "waits"), None),
        ];
        commit(store, one, rows, vec![]).await.unwrap();
        let fork = Session { base: Some(point(1, 1)), ..session(2) };
        commit(store, two, vec![row_session(fork), row_message(message(5, 2, "d"), None)], vec![])
            .await
            .unwrap();
        let ids = |numbers: &[u64]| numbers.iter().map(|n| *message_id(*n).as_bytes()).collect::<Vec<_>>();
        assert_eq!(find(store, IdsOf::Messages(session_id(1))).await, ids(&[1, 2, 3, 4]), "{name}");
        assert_eq!(
            find(store, IdsOf::Messages(session_id(2))).await,
            ids(&[1, 2, 5]),
            "{name}: up to its base"
        );
    }
}

#[tokio::test]
async fn a_lookup_that_would_look_through_too_many_ids_finds_nothing() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        for (n, owner) in [(1, "eve"), (2, "ada"), (3, "eve"), (4, "ada")] {
            let fence = lease(store, n).await;
            let session = Session { owner: owner.into(), ..session(n) };
            let rows = vec![row_session(session), row_message(message(n, n, "a"), None)];
            commit(store, fence, rows, vec![]).await.unwrap();
        }
        let ada = || IdsOf::Sessions { owner: "ada".into(), org: None };
        let found =
            async |of, limit, visit| store.id_page(&IdPage { visit, ..all(of, limit) }).await.unwrap();
        let ids = |numbers: &[u64]| numbers.iter().map(|n| *session_id(*n).as_bytes()).collect::<Vec<_>>();
        assert_eq!(found(ada(), 9, 4).await, Some(ids(&[2, 4])), "{name}");
        assert_eq!(found(ada(), 9, 3).await, None, "{name}: the fourth id may be one of ada");
        assert_eq!(found(ada(), 1, 2).await, Some(ids(&[2])), "{name}: the page is full");
        assert_eq!(found(ada(), 1, 1).await, None, "{name}");
        let messages = || IdsOf::Messages(session_id(2));
        let second = Some(vec![*message_id(2).as_bytes()]);
        assert_eq!(found(messages(), 9, 4).await, second, "{name}");
        assert_eq!(found(messages(), 9, 3).await, None, "{name}");
        assert_eq!(found(messages(), 1, 2).await, second, "{name}");
        assert_eq!(found(IdsOf::Keys { org: None }, 9, 1).await, Some(vec![]), "{name}");
    }
}
