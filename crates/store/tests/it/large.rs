//! Lists and searches of stores with more rows than one block of events or one bucket of the search index has.

use std::sync::Arc;

use mainspring_core::*;
use mainspring_kernel::search::Query;
use mainspring_kernel::store::{Fence, NewEvent, Row, RunPage, Store};
use mainspring_store::{Fault, SqliteView};

use crate::fixtures::*;
use crate::migrations::{RELEASED, create_database, hex};

/// More than the events of two blocks, which have 2,048 each.
const MANY_EVENTS: u64 = 5_000;
/// More than the messages of a bucket, which has 4,096.
const MANY_MESSAGES: u32 = 5_000;

async fn foreign_session(store: &dyn Store, n: u64) -> Fence {
    let fence = lease(store, n).await;
    let row = Row::Session(Arc::new(Session { owner: "them".into(), ..session(n) }));
    commit(store, fence, vec![row], vec![]).await.unwrap();
    fence
}

/// Reads all events of the owner by pages of `limit`, like a client.
async fn owner_events(store: &dyn Store, types: Option<&[&'static str]>, limit: usize) -> Vec<Cursor> {
    let (mut found, mut at) = (vec![], Cursor::START);
    loop {
        let (events, until) = store.owner_events(OWNER, types, at, limit).await.unwrap();
        if until <= at {
            return found;
        }
        found.extend(events.iter().map(|event| event.cursor));
        at = until;
    }
}

#[tokio::test]
async fn events_of_rare_types_and_owners_are_found_among_many_others() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let (own, foreign) = (create_session(store, 1).await, foreign_session(store, 2).await);
        let one = async |body: Body| commit(store, own, vec![], vec![event(9, body)]).await.unwrap()[0];
        let many = async |fence| {
            let events: Vec<NewEvent> = (0..MANY_EVENTS).map(progress).collect();
            commit(store, fence, vec![], events).await.unwrap()
        };
        let first = one(Body::RunRunning {}).await;
        many(foreign).await;
        let second = one(Body::RunRunning {}).await;
        let dense = many(own).await;
        let third = one(Body::RunRunning {}).await;
        many(foreign).await;
        for limit in [1, 2, 9] {
            let found = owner_events(store, Some(&["run.running"]), limit).await;
            assert_eq!(found, [first, second, third], "{name}, by {limit}");
            assert_eq!(owner_events(store, Some(&["run.failed"]), limit).await, [], "{name}, by {limit}");
            assert_eq!(owner_events(store, Some(&["artifact.created"]), limit).await, [], "{name}");
        }
        let all = owner_events(store, None, 500).await;
        let created = all.iter().filter(|cursor| **cursor < first);
        let expected = created.copied().chain([first, second]).chain(dense).chain([third]);
        assert_eq!(all, expected.collect::<Vec<_>>(), "{name}");
    }
}

#[tokio::test]
async fn an_event_after_a_failed_commit_is_found_by_its_type() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        let news = || vec![event(2, Body::RunRunning {})];
        for fault in [Fault::CommitFails, Fault::OutcomeUnknown] {
            subject.inject_fault(fault);
            commit(store, fence, vec![], news()).await.unwrap_err();
        }
        // A commit that is refused after its group has begun.
        let twice = row_run(run(1, 1, 1, queued()));
        commit(store, fence, vec![twice], vec![]).await.unwrap();
        let conflict = row_run(Run { id: run_id(2), ..run(1, 1, 1, queued()) });
        commit(store, fence, vec![conflict], vec![event(3, Body::AttemptStarted {})]).await.unwrap_err();
        let last = commit(store, fence, vec![], vec![event(4, Body::AttemptStarted {})]).await.unwrap()[0];
        assert_eq!(owner_events(store, Some(&["attempt.started"]), 9).await, [last], "{name}");
        let found = owner_events(store, Some(&["run.running"]), 9).await;
        let stored = events(store, 1).await;
        let expected = stored.iter().filter(|event| event.body.kind() == "run.running");
        assert_eq!(found, expected.map(|event| event.cursor).collect::<Vec<_>>(), "{name}");
    }
}

/// Stores messages of one line, the first at position `from`, and indexes them.
async fn messages_store(store: &dyn Store, fence: Fence, texts: &[String], from: u32) {
    for (chunk, part) in (0_u32..).zip(texts.chunks(500)) {
        let start = from + chunk * 500;
        let mut rows = vec![Row::Line(line(1, None, start + u32::try_from(part.len()).unwrap()))];
        for (pos, text) in (start..).zip(part) {
            rows.push(row_message(message(1_000 + u64::from(pos), 1, text), Some(point(1, pos))));
        }
        commit(store, fence, rows, vec![]).await.unwrap();
    }
    while store.search_index().await.unwrap() {}
}

/// Reads all hits by pages of `limit`, like a client.
async fn search(store: &dyn Store, words: &str, limit: usize) -> Vec<MessageId> {
    let (query, mut found, mut before) = (Query::parse(words).unwrap(), vec![], None);
    loop {
        let page = store.search_messages(OWNER, &query, before, limit).await.unwrap();
        let next = page.rows.last().filter(|_| page.rows.len() == limit).map(|last| last.arrival);
        found.extend(page.rows.items.iter().map(|hit| hit.message.id));
        match next.or(page.searched_to) {
            Some(next) => before = Some(next),
            None => return found,
        }
    }
}

#[tokio::test]
async fn a_search_finds_the_newest_messages_of_all_buckets() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        let text = |no: u32| match no {
            3 | 4_200 => "foxes are rare, 東京".to_owned(),
            _ => format!("the common text {no}"),
        };
        let texts: Vec<String> = (0..MANY_MESSAGES).map(text).collect();
        messages_store(store, fence, &texts, 0).await;
        let id = |pos: u32| message_id(1_000 + u64::from(pos));
        for limit in [1, 9] {
            assert_eq!(search(store, "fox", limit).await, [id(4_200), id(3)], "{name}, by {limit}");
            assert_eq!(search(store, "rare 東京", limit).await, [id(4_200), id(3)], "{name}, by {limit}");
            assert_eq!(search(store, "text-4999", limit).await, [id(4_999)], "{name}, by {limit}");
            assert_eq!(search(store, "nothing", limit).await, [], "{name}, by {limit}");
        }
        let common = search(store, "comm", 700).await;
        let expected: Vec<_> =
            (0..MANY_MESSAGES).rev().filter(|no| ![3, 4_200].contains(no)).map(id).collect();
        assert_eq!(common, expected, "{name}");
        // The index has words with tags, which no query finds.
        assert_eq!(search(store, "0000", 9).await, [], "{name}");
    }
}

#[tokio::test]
async fn a_title_is_found_among_many() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let title = |n: u64| match n {
            7 | 250 => "about foxes",
            _ => "a common title",
        };
        for n in 1..=300 {
            let fence = lease(store, n).await;
            let at = NOW.plus(n);
            let row = Session { title: Some(title(n).into()), last_activity_at: at, ..session(n) };
            commit(store, fence, vec![row_session(row)], vec![]).await.unwrap();
        }
        while store.search_index().await.unwrap() {}
        let found = async |words: &str, limit| {
            let found = store.search_titles(OWNER, &Query::parse(words).unwrap(), None, limit).await.unwrap();
            found.items.iter().map(|session| session.id).collect::<Vec<_>>()
        };
        assert_eq!(found("fox", 9).await, [session_id(250), session_id(7)], "{name}");
        assert_eq!(found("fox", 1).await, [session_id(250)], "{name}");
        assert_eq!(found("common", 2).await, [session_id(300), session_id(299)], "{name}");
        assert_eq!(found("title common", NO_LIMIT).await.len(), 298, "{name}");
        assert_eq!(found("nothing", 9).await, [], "{name}");
    }
}

#[tokio::test]
async fn runs_are_listed_by_status_in_the_order_of_the_page() {
    let error = || Failure { code: "agent_failed".into(), message: "it failed".into() };
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        for no in 1..=40_u32 {
            let state = match no % 4 {
                0 => RunState::Failed { error: error() },
                1 => RunState::TimedOut { error: error() },
                _ => RunState::Succeeded {},
            };
            let run = Run { created_at: NOW.plus(u64::from(no)), ..run(u64::from(no), 1, no, state) };
            commit(store, fence, vec![row_run(run)], vec![]).await.unwrap();
        }
        commit(store, fence, vec![row_run(run(99, 1, 99, queued()))], vec![]).await.unwrap();
        let list = async |status, before| {
            let page = RunPage { owner: OWNER.into(), session: None, status: Some(status), before, limit: 3 };
            let runs = store.run_page(&page).await.unwrap().items;
            runs.iter().map(|run| run.no).collect::<Vec<_>>()
        };
        assert_eq!(list(RunStatus::Failed, None).await, [40, 36, 32], "{name}");
        let before = Some((NOW.plus(32), run_id(32)));
        assert_eq!(list(RunStatus::Failed, before).await, [28, 24, 20], "{name}");
        assert_eq!(list(RunStatus::TimedOut, None).await, [37, 33, 29], "{name}");
        assert_eq!(list(RunStatus::Succeeded, None).await, [39, 38, 35], "{name}");
        assert_eq!(list(RunStatus::Queued, None).await, [99], "{name}");
        assert_eq!(list(RunStatus::Cancelled, None).await, [] as [u32; 0], "{name}");
    }
}

/// A database of the first versions, with events and messages that are indexed without tags.
#[tokio::test]
async fn events_and_messages_of_earlier_versions_are_found_beside_new_ones() {
    let folder = tempfile::tempdir().unwrap();
    let (session_hex, now) = (hex(session_id(1).as_bytes()), NOW.0);
    let mut fill = format!(
        "INSERT INTO sessions (session_id, owner_id, agent_definition_id, title, status, surface_kind, default_adapter_id,
           metadata_json, tip_line, tip_pos, version, created_at_ms, updated_at_ms, last_activity_at_ms)
         VALUES (x'{session_hex}', '{OWNER}', 'generalist@1', 'session 1', 'open', 'chat', 'native', '{{}}', 1, 1, 1,
           {now}, {now}, {now});
         INSERT INTO lines (line, session_id, end_pos, abandoned) VALUES (1, x'{session_hex}', 2, 0);
         INSERT INTO events (event_seq, event_id, session_id, type, pos, created_at_ms, payload)
         VALUES (5, x'{session_hex}', x'{session_hex}', 'run.running', 0, {now}, '{{}}'),
                (9000, x'{session_hex}', x'{session_hex}', 'run.starting', 0, {now}, '{{}}');"
    );
    for (pos, text) in [(0, "old foxes"), (1, "an old answer")] {
        fill += &format!(
            "INSERT INTO messages (message_id, session_id, role, status, line, pos, created_at_ms, content)
             VALUES (x'{}', x'{session_hex}', 'user', 'completed', 1, {pos}, {now}, '[{{\"type\":\"text\",\"text\":\"{text}\"}}]');
             INSERT INTO search_messages (rowid, text) VALUES (last_insert_rowid(), '{text}');",
            hex(message_id(1_000 + pos).as_bytes()),
        );
    }
    fill += "UPDATE meta SET value = 2 WHERE name = 'searched';";
    create_database(folder.path(), RELEASED, &fill);
    let store = sqlite_open(folder.path());
    let by_type = async |kind| owner_events(&store, Some(&[kind]), 9).await;
    assert_eq!(by_type("run.running").await, [Cursor(5)]);
    assert_eq!(by_type("run.starting").await, [Cursor(9_000)]);
    let fence = lease(&store, 1).await;
    let id = |pos: u64| message_id(1_000 + pos);
    assert_eq!(search(&store, "old fox", 9).await, [id(0)]);
    messages_store(&store, fence, &["a new fox".into()], 2).await;
    for limit in [1, 9] {
        assert_eq!(search(&store, "fox", limit).await, [id(2), id(0)]);
        assert_eq!(search(&store, "old", limit).await, [id(1), id(0)]);
    }
    store.close();
    let view = SqliteView::open(&folder.path().join("test.sqlite3"), false).unwrap();
    let findings: Vec<String> = view
        .verify()
        .unwrap()
        .into_iter()
        .flat_map(|part| part.findings)
        .filter(|it| it.contains("type"))
        .collect();
    assert_eq!(findings, [] as [String; 0]);
}
