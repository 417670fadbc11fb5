//! Commits of different writers that claim the same id or name at the same time: one of them wins, and the other gets a
//! conflict.

use std::sync::Arc;

use mainspring_core::*;
use mainspring_kernel::store::{Commit, NativeClaim, NativeOwner, NewId, Row, Store, StoreError, Unique};
use mainspring_store::{PostgresOptions, PostgresStore};

use crate::cluster::database;
use crate::fixtures::*;

const ROUNDS: u64 = 20;

fn open(writers: usize) -> PostgresStore {
    let options = PostgresOptions { writers, takes_lock: false, ..PostgresOptions::default() };
    PostgresStore::open(&database(), options).unwrap()
}

/// Commits for three sessions at once. With one writer, the last two wait for the first and form a batch.
async fn commit_at_once(
    store: &PostgresStore,
    first: u64,
    rows: impl Fn(u64) -> Vec<Row>,
) -> [Result<Vec<Cursor>, StoreError>; 2] {
    let mut commits = vec![];
    for n in first..first + 3 {
        let fence = lease(store, n).await;
        let rows = if n == first { vec![row_session(session(n))] } else { rows(n) };
        commits.push(Arc::new(Commit { fence, events: vec![], rows }));
    }
    let [company, one, other] = commits.try_into().unwrap();
    let (company, one, other) = tokio::join!(store.commit(company), store.commit(one), store.commit(other));
    company.unwrap();
    [one, other]
}

/// Asserts that one commit has won, and the other was refused because of `unique`.
fn check_winner(results: &[Result<Vec<Cursor>, StoreError>; 2], unique: Unique) {
    let won = results.iter().filter(|result| result.is_ok()).count();
    let lost = results.iter().filter(|result| **result == Err(StoreError::Conflict(unique))).count();
    assert_eq!((won, lost), (1, 1), "{results:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_one_of_two_commits_creates_the_same_id() {
    for writers in [1, 2] {
        let store = open(writers);
        for round in 0..ROUNDS {
            let id = 1_000 + round;
            let rows = |n| {
                let written = row_message(message(id, n, &format!("of {n}")), None);
                vec![row_session(session(n)), Row::NewId(NewId::Message(message_id(id))), written]
            };
            let first = round * 3;
            let results = commit_at_once(&store, first, rows).await;
            check_winner(&results, Unique::Id);
            let winner = if results[0].is_ok() { first + 1 } else { first + 2 };
            let found = store.message_get(session_id(winner), message_id(id)).await.unwrap();
            assert_eq!(found.unwrap().0.message.session, session_id(winner), "the winner keeps its message");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_one_of_two_commits_creates_a_session_with_the_same_name() {
    for writers in [1, 2] {
        let store = open(writers);
        for round in 0..ROUNDS {
            let rows = |n| vec![row_session(Session { key: Some(format!("key {round}")), ..session(n) })];
            let results = commit_at_once(&store, round * 3, rows).await;
            check_winner(&results, Unique::SessionName);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_one_of_two_owners_adopts_the_same_native_session() {
    for writers in [1, 2] {
        let store = open(writers);
        for round in 0..ROUNDS {
            let first = round * 3;
            let rows = |n| {
                let (adapter, native) = match n == first + 1 {
                    true => ("acp", format!("native-{round}")),
                    false => ("twin", format!("NATIVE{round}")),
                };
                let (adapter, owner, claim) = (adapter.into(), format!("owner {n}"), NativeClaim::Adopted);
                let adopted = NativeOwner { adapter, native, owner, claim };
                vec![row_session(session(n)), Row::NativeOwner(Box::new(adopted))]
            };
            check_winner(&commit_at_once(&store, first, rows).await, Unique::Other);
        }
    }
}
