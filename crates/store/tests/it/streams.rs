//! Events, streamed text, tool calls and the inbox.

use std::sync::Arc;

use mainspring_core::*;
use mainspring_kernel::store::{Chunk, EndedToolCall, Fence, InboxItem, NewEvent, Note, OpenToolCall, Row};
use serde_json::json;

use crate::fixtures::*;

fn chunk(fence: Fence, pos: u64, text: &str) -> Chunk {
    Chunk { fence, pos, message: message_id(1), block: 0, text: text.into() }
}

#[tokio::test]
async fn events_are_read_by_session_run_and_cursor() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        let request = RequestName { request_id: Some("r1".into()), ..RequestName::default() };
        let rows = vec![row_run(Run { request, ..run(1, 1, 1, queued()) }), row_run(run(2, 1, 2, queued()))];
        let run_event = |n, run| NewEvent { run, attempt: Some(attempt_id(n)), pos: n, ..progress(n) };
        let news = vec![
            run_event(1, Some(run_id(1))),
            run_event(2, None),
            run_event(3, Some(run_id(2))),
            run_event(4, Some(run_id(1))),
        ];
        let cursors = commit(store, fence, rows, news.clone()).await.unwrap();
        let read =
            async |run, after, limit| store.events_after(session_id(1), run, after, limit).await.unwrap();
        let all = read(None, Cursor::START, NO_LIMIT).await;
        let expected: Vec<Event> = news
            .into_iter()
            .zip(&cursors)
            .map(|(new, cursor)| Event {
                id: new.id,
                cursor: *cursor,
                pos: new.pos,
                session: session_id(1),
                run: new.run,
                attempt: new.attempt,
                request: (new.run == Some(run_id(1))).then(|| "r1".into()),
                at: new.at,
                body: new.body,
            })
            .collect();
        assert_eq!(all, expected, "{name}");
        assert_eq!(read(None, cursors[1], 1).await, expected[2..3], "{name}");
        let of_run = [expected[0].clone(), expected[3].clone()];
        assert_eq!(read(Some(run_id(1)), Cursor::START, NO_LIMIT).await, of_run, "{name}");
        assert_eq!(read(Some(run_id(1)), cursors[0], NO_LIMIT).await, of_run[1..], "{name}");
        assert_eq!(read(None, Cursor(u64::MAX), NO_LIMIT).await, [], "{name}");
        assert_eq!(store.events_after(session_id(2), None, Cursor::START, 9).await.unwrap(), [], "{name}");
    }
}

#[tokio::test]
async fn events_of_all_sessions_of_an_owner_are_read_in_one_order() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let (one, other) = (create_session(store, 1).await, create_session(store, 2).await);
        let foreign = store.lease_take(session_id(3), node_id(1)).await.unwrap();
        let row = Row::Session(Arc::new(Session { owner: "them".into(), ..session(3) }));
        commit(store, foreign, vec![row], vec![progress(100)]).await.unwrap();
        let mut made = vec![];
        for no in 1..=4 {
            let (fence, of) = if no % 2 == 0 { (other, 2) } else { (one, 1) };
            let body = if no < 3 { Body::RunRunning {} } else { progress(no).body };
            let event = NewEvent { body, ..progress(no) };
            made.push((of, commit(store, fence, vec![], vec![event]).await.unwrap()[0]));
            commit(store, foreign, vec![], vec![progress(100 + no)]).await.unwrap();
        }
        let read = async |types: Option<&'static [&'static str]>, after, limit| {
            let (events, scanned_to) = store.owner_events(OWNER, types, after, limit).await.unwrap();
            (events.iter().map(|event| (event.session, event.cursor)).collect::<Vec<_>>(), scanned_to)
        };
        let expected: Vec<_> = made.iter().map(|(of, cursor)| (session_id(*of), *cursor)).collect();
        let start = Cursor(made[0].1.0 - 1);
        let (all, end) = read(None, start, NO_LIMIT).await;
        assert_eq!(all, expected, "{name}");
        assert!(end > made[3].1, "{name}: the last event belongs to another owner, and was scanned");
        assert_eq!(read(None, end, NO_LIMIT).await, (vec![], end), "{name}");
        assert_eq!(
            read(None, start, 2).await,
            (expected[..2].to_vec(), made[1].1),
            "{name}: there may be more"
        );
        assert_eq!(read(Some(&["run.running"]), start, 9).await, (expected[..2].to_vec(), end), "{name}");
        assert_eq!(read(Some(&[]), start, 9).await, (vec![], end), "{name}");
        assert_eq!(read(None, Cursor(u64::MAX), 9).await, (vec![], Cursor(u64::MAX)), "{name}");
        // Of a deleted session only the deletion event is returned.
        let gone = Row::Session(Arc::new(Session { status: SessionStatus::Deleted, ..session(2) }));
        let deleted = NewEvent { body: Body::SessionDeleted {}, ..progress(9) };
        let cursor = commit(store, other, vec![gone], vec![deleted]).await.unwrap()[0];
        let left = vec![expected[0], expected[2], (session_id(2), cursor)];
        assert_eq!(read(None, start, NO_LIMIT).await, (left, cursor), "{name}");
    }
}

#[tokio::test]
async fn a_completed_message_comes_back_with_its_event() {
    let usage = Usage { input_tokens: 3, cost: Cost(5), ..Usage::default() };
    let message = Message {
        run: Some(run_id(1)),
        usage: Some(usage),
        content: vec![
            Block::Thinking {},
            Block::text("it's \"done\" – ✓"),
            Block::tool_use("t", "add", json!({"a": [1, null]})),
        ],
        ..message(1, 1, "")
    };
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        let bodies = [Some(message_id(8)), None]
            .map(|parent_id| Body::MessageCompleted { message: Arc::new(message.clone()), parent_id });
        let news = bodies.iter().cloned().zip(1..).map(|(body, n)| event(n, body)).collect();
        let rows = vec![Row::Line(line(5, None, 1)), row_message(message.clone(), Some(point(5, 0)))];
        commit(store, fence, rows, news).await.unwrap();
        let read: Vec<Body> = events(store, 1).await.into_iter().map(|event| event.body).collect();
        assert_eq!(read, bodies, "{name}");
    }
}

#[tokio::test]
async fn bodies_read_back_as_written() {
    let bodies = vec![
        Body::SessionCreated {
            key: None,
            title: Some("t".into()),
            adapter: "a".into(),
            surface_kind: "s".into(),
            external_ref: None,
        },
        Body::SessionUpdated { change: SessionChange::Title { title: None, source: TitleSource::Manual } },
        Body::SessionDeleted {},
        Body::RunQueued {
            adapter: "a".into(),
            mode: Mode::Ask,
            policy: Some(Policy::Steer),
            retry_at_ms: Some(NOW),
            retry_reason: Some(RetryReason::User),
            model: Some("m".into()),
            model_profile: None,
            limits: RunLimits { max_tokens: Some(5), ..RunLimits::default() },
        },
        Body::RunStarting {},
        Body::RunFailed {
            error: Failure::new("c", "m"),
            close: Close { message_id: Some(message_id(1)), tip: None, usage: Usage::default() },
        },
        Body::ToolStarted {
            tool_use_id: "t".into(),
            name: "n".into(),
            input: Some(json!({"x": "}{\""})),
            decided_by: None,
        },
        Body::UsageUpdated { usage: Usage { output_tokens: 2, cost: Cost(1_234_567), ..Usage::default() } },
        Body::InputProvided { wait_id: wait_id(1), input: Some(json!("yes")), answered_by: None },
    ];
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        let news = bodies.iter().cloned().zip(1..).map(|(body, n)| event(n, body)).collect();
        commit(store, fence, vec![], news).await.unwrap();
        let read: Vec<Body> = events(store, 1).await.into_iter().map(|event| event.body).collect();
        assert_eq!(read, bodies, "{name}");
    }
}

#[tokio::test]
async fn streamed_text_is_kept_until_it_is_in_a_message() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        let chunks = vec![chunk(fence, 0, "he"), chunk(fence, 2, "llo "), chunk(fence, 6, "wörld")];
        store.chunks_write(chunks.clone()).await.unwrap();
        store.chunks_write(vec![chunk(fence, 2, "again")]).await.unwrap();
        let loaded = store.session_load(session_id(1)).await.unwrap().unwrap();
        assert_eq!(loaded.chunks, chunks, "{name}");
        assert_eq!(loaded.pos, 12, "{name}: bytes, not characters");
        commit(store, fence, vec![Row::ChunksDrop(6)], vec![NewEvent { pos: 6, ..progress(1) }])
            .await
            .unwrap();
        let loaded = store.session_load(session_id(1)).await.unwrap().unwrap();
        assert_eq!((loaded.chunks, loaded.pos), (chunks[2..].to_vec(), 12), "{name}");
    }
}

#[tokio::test]
async fn a_commit_stores_the_text_before_its_events() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        store.chunks_write(vec![chunk(fence, 0, "he")]).await.unwrap();
        let rows = vec![Row::Chunks(vec![chunk(fence, 0, "hello "), chunk(fence, 6, "wörld")])];
        commit(store, fence, rows, vec![NewEvent { pos: 12, ..progress(1) }]).await.unwrap();
        // A batch that was overtaken by the commit.
        store.chunks_write(vec![chunk(fence, 0, "hel"), chunk(fence, 12, "!")]).await.unwrap();
        let loaded = store.session_load(session_id(1)).await.unwrap().unwrap();
        let stored = [chunk(fence, 0, "hello "), chunk(fence, 6, "wörld"), chunk(fence, 12, "!")];
        assert_eq!((loaded.chunks.as_slice(), loaded.pos), (&stored[..], 13), "{name}");
    }
}

#[tokio::test]
async fn a_chunk_that_arrives_after_its_message_is_dropped() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        let event = NewEvent { pos: 5, ..progress(1) };
        commit(store, fence, vec![Row::ChunksDrop(5)], vec![event]).await.unwrap();
        store.chunks_write(vec![chunk(fence, 2, "llo"), chunk(fence, 5, "next")]).await.unwrap();
        let loaded = store.session_load(session_id(1)).await.unwrap().unwrap();
        assert_eq!(loaded.chunks, [chunk(fence, 5, "next")], "{name}");
    }
}

#[tokio::test]
async fn a_chunk_of_an_old_lease_is_dropped() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let (old, other) = (create_session(store, 1).await, create_session(store, 2).await);
        let new = lease(store, 1).await;
        store.chunks_write(vec![chunk(old, 0, "late"), chunk(other, 0, "kept")]).await.unwrap();
        assert_eq!(store.session_load(session_id(1)).await.unwrap().unwrap().chunks, [], "{name}");
        assert_eq!(store.session_load(session_id(2)).await.unwrap().unwrap().chunks.len(), 1, "{name}");
        store.chunks_write(vec![chunk(new, 0, "fresh")]).await.unwrap();
        let chunks = store.session_load(session_id(1)).await.unwrap().unwrap().chunks;
        assert_eq!(chunks, [chunk(new, 0, "fresh")], "{name}");
    }
}

#[tokio::test]
async fn a_tool_call_is_open_until_it_is_settled() {
    let effect = |run: u64, id: &str| OpenToolCall {
        run: run_id(run),
        tool_use_id: id.into(),
        name: "add".into(),
        started_at: Some(NOW),
        ended: None,
    };
    let row = |call: &OpenToolCall| Row::ToolCall(Box::new(call.clone()));
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        let started = [effect(1, "t2"), effect(1, "t1"), effect(2, "t1")];
        commit(store, fence, started.iter().map(row).collect(), vec![]).await.unwrap();
        let open = async || store.session_load(session_id(1)).await.unwrap().unwrap().open_tool_calls;
        assert_eq!(open().await, started, "{name}");
        let result = CallResult { content: vec![Block::text("5")], ..CallResult::default() };
        let ended = Some(EndedToolCall { result: result.into(), message: message_id(7) });
        let ended = OpenToolCall { ended, ..started[0].clone() };
        commit(store, fence, vec![row(&ended)], vec![]).await.unwrap();
        assert_eq!(open().await, [ended.clone(), started[1].clone(), started[2].clone()], "{name}");
        commit(store, fence, vec![Row::ToolCallSettled(run_id(1), "t1".into())], vec![]).await.unwrap();
        assert_eq!(open().await, [ended, started[2].clone()], "{name}");
    }
}

#[tokio::test]
async fn the_result_of_a_tool_call_is_read_before_and_after_its_message_is_written() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        let content = vec![Block::text("5")];
        let result = CallResult { content: content.clone(), ..CallResult::default() };
        let call = OpenToolCall {
            run: run_id(1),
            tool_use_id: "t1".into(),
            name: "add".into(),
            started_at: Some(NOW),
            ended: Some(EndedToolCall { result: result.into(), message: message_id(7) }),
        };
        let end =
            ToolEnd { message_id: Some(message_id(7)), content: content.clone(), duration_ms: Some(12) };
        let completed = Body::ToolCompleted { tool_use_id: "t1".into(), name: "add".into(), end };
        let event = NewEvent {
            id: event_id(1),
            pos: 0,
            run: Some(run_id(1)),
            attempt: None,
            at: NOW,
            body: completed.clone(),
        };
        commit(store, fence, vec![Row::ToolCall(Box::new(call))], vec![event]).await.unwrap();
        let read = async || {
            let events = store.events_after(session_id(1), None, Cursor::START, 10).await.unwrap();
            events.into_iter().map(|event| event.body).find(|body| matches!(body, Body::ToolCompleted { .. }))
        };
        assert_eq!(read().await, Some(completed.clone()), "{name}: while other calls run");
        let block = Block::tool_result("t1", "add", content, false);
        let message = Arc::new(Message { content: vec![block], ..message(7, 1, "") });
        let rows = vec![Row::Message(message, None), Row::ToolCallSettled(run_id(1), "t1".into())];
        commit(store, fence, rows, vec![]).await.unwrap();
        assert_eq!(read().await, Some(completed), "{name}: once the message holds it");
    }
}

#[tokio::test]
async fn notes_are_kept_in_order_until_the_receiver_removes_them() {
    let item = |n| InboxItem { id: event_id(n), at: NOW, note: Note::Cancel { run: run_id(n) } };
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let (from, to) = (create_session(store, 1).await, create_session(store, 2).await);
        let leave = |n| Row::Inbox(session_id(2), item(n));
        commit(store, from, vec![leave(3), leave(1)], vec![]).await.unwrap();
        commit(store, from, vec![leave(2), leave(1)], vec![]).await.unwrap();
        let inbox = async || store.session_load(session_id(2)).await.unwrap().unwrap().inbox;
        assert_eq!(inbox().await, [item(3), item(1), item(2)], "{name}: in order, each once");
        commit(store, from, vec![Row::InboxTaken(event_id(1))], vec![]).await.unwrap();
        assert_eq!(inbox().await.len(), 3, "{name}: only the receiver removes notes");
        commit(store, to, vec![Row::InboxTaken(event_id(1))], vec![]).await.unwrap();
        assert_eq!(inbox().await, [item(3), item(2)], "{name}");
        let gone = vec![Row::Inbox(session_id(99), item(4))];
        commit(store, from, gone, vec![]).await.unwrap();
    }
}
