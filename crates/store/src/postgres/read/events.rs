//! Reads events: parses the stored payloads, and adds the messages and results that are stored in rows of their own.

use std::collections::HashMap;
use std::sync::Arc;

use mainspring_core::{
    AttemptId, Block, Body, Cursor, Event, EventId, History, Message, MessageId, Position, RunId, SessionId,
    Time,
};
use mainspring_kernel::store::{LostEvents, OpenToolCall, StoreError};
use serde_json::Value;
use tokio_postgres::Row;

use super::super::values::{all, get, get_id, get_maybe_id, get_u64, int, sql_limit};
use super::super::writer::EVENT_BITS;
use super::sessions::{effect, floor, position};
use super::{MESSAGE, Reader, message};

const EVENT: &str = "e.cursor, e.event_id, e.session_id, e.run_id, e.attempt_id, e.message_id, e.type, e.pos, e.created_at, \
                     e.payload, (SELECT r.request_id FROM runs AS r WHERE r.run_id = e.run_id)";

pub(in super::super) async fn events_after(
    reader: &Reader,
    session: SessionId,
    run: Option<RunId>,
    after: Cursor,
    limit: usize,
) -> Result<Vec<Event>, StoreError> {
    let run_key = run.map(|run| run.as_bytes().to_vec());
    let mut begin = int(after.0);
    if let Some(run) = &run_key {
        // Every event of a run comes after the last event before the run was created.
        let sql = "SELECT created_cursor FROM runs WHERE run_id = $1";
        let created = reader.row(sql, &[run]).await?.map_or(Ok(0), |row| get::<i64>(&row, 0))?;
        begin = begin.max(created);
    }
    if let Some(floor) = floor(reader, session).await?.filter(|floor| begin < int(floor.cursor.0)) {
        return Err(StoreError::Pruned(floor));
    }
    let sql = format!(
        "SELECT {EVENT} FROM events AS e WHERE e.session_id = $1 AND e.cursor > $2
           AND ($3::bytea IS NULL OR e.run_id = $3) ORDER BY e.cursor LIMIT $4"
    );
    let key = session.as_bytes().as_slice();
    let rows = reader.rows(&sql, &[&key, &begin, &run_key, &sql_limit(limit)]).await?;
    events(reader, &rows).await
}

/// A page of an owner's events.
pub(in super::super) struct OwnerPage {
    pub(in super::super) events: Vec<Event>,
    /// Every matching event up to this cursor is in this page or in an earlier one.
    pub(in super::super) scanned_to: Cursor,
    /// The newest committed event of any owner, if open transactions may still add events before it.
    pub(in super::super) behind: Option<Cursor>,
}

/// Reads events of an owner whose cursors are lower than those of every open transaction.
pub(in super::super) async fn owner_events(
    reader: &Reader,
    base: u64,
    owner: &str,
    types: Option<&[&'static str]>,
    after: Cursor,
    limit: usize,
) -> Result<OwnerPage, StoreError> {
    // One statement, so that the events and the `xmin` that bounds them are of the same snapshot.
    let bound = format!("((pg_snapshot_xmin(pg_current_snapshot())::text::bigint + {base}) << {EVENT_BITS})");
    let sql = format!(
        "WITH bound AS MATERIALIZED (SELECT {bound} AS cursor),
           last AS MATERIALIZED (SELECT max(e.cursor) AS cursor FROM events AS e, bound WHERE e.cursor < bound.cursor),
           newest AS MATERIALIZED (SELECT max(cursor) AS cursor FROM events)
         SELECT {EVENT}, last.cursor, newest.cursor
         FROM last CROSS JOIN newest LEFT JOIN LATERAL (
           SELECT e.* FROM events AS e JOIN sessions AS s ON s.session_id = e.session_id
             LEFT JOIN retention AS k ON k.session_id = e.session_id
           WHERE e.owner_id = $1 AND e.cursor > $2 AND e.cursor <= last.cursor
             AND ($3::text[] IS NULL OR e.type = ANY ($3))
             AND (s.status <> 'deleted' OR e.type = 'session.deleted')
             AND (k.floor_cursor IS NULL OR e.cursor > k.floor_cursor)
           ORDER BY e.cursor LIMIT $4) AS e ON true
         ORDER BY e.cursor"
    );
    let types: Option<Vec<&'static str>> = types.map(<[&str]>::to_vec);
    let rows = reader.rows(&sql, &[&owner, &int(after.0), &types, &sql_limit(limit)]).await?;
    let first = rows.first();
    let last = first.map_or(Ok(None), |row| get::<Option<i64>>(row, 11))?.unwrap_or(0).cast_unsigned();
    let newest = first.map_or(Ok(None), |row| get::<Option<i64>>(row, 12))?.unwrap_or(0).cast_unsigned();
    let found: Vec<Row> = rows
        .into_iter()
        .filter(|row| row.try_get::<_, Option<i64>>(0).is_ok_and(|cursor| cursor.is_some()))
        .collect();
    let events = events(reader, &found).await?;
    let is_full = events.len() >= limit;
    let scanned_to = events.last().filter(|_| is_full).map_or(Cursor(last).max(after), |event| event.cursor);
    let behind = (newest > last && !is_full).then_some(Cursor(newest)).filter(|newest| *newest > after);
    Ok(OwnerPage { events, scanned_to, behind })
}

pub(in super::super) async fn event_last(reader: &Reader) -> Result<Cursor, StoreError> {
    let sql = "SELECT greatest((SELECT max(cursor) FROM events), (SELECT value FROM meta WHERE name = 'last_cursor'), 0)";
    let row = reader.row(sql, &[]).await?;
    Ok(Cursor(row.map_or(Ok(0), |row| get_u64(&row, 0))?))
}

pub(in super::super) async fn event_before(
    reader: &Reader,
    session: SessionId,
    before: Cursor,
) -> Result<Option<Position>, StoreError> {
    let sql =
        "SELECT cursor, pos FROM events WHERE session_id = $1 AND cursor < $2 ORDER BY cursor DESC LIMIT 1";
    let row = reader.row(sql, &[&session.as_bytes().as_slice(), &int(before.0)]).await?;
    let found = row.map(|row| position(&row)).transpose()?;
    let floor = floor(reader, session).await?.unwrap_or_default().cursor;
    Ok(found.filter(|found| found.cursor > floor))
}

/// Ranges of cursors whose events a copied database had lost. PostgreSQL itself loses none.
pub(in super::super) async fn lost_events(reader: &Reader) -> Result<Vec<LostEvents>, StoreError> {
    let sql = "SELECT after_cursor, until_cursor FROM lost_events ORDER BY after_cursor";
    all(&reader.rows(sql, &[]).await?, |row| {
        Ok(LostEvents { after: Cursor(get_u64(row, 0)?), until: Cursor(get_u64(row, 1)?) })
    })
}

pub(in super::super) async fn histories(reader: &Reader) -> Result<Vec<History>, StoreError> {
    let rows = reader.rows("SELECT token, after_cursor FROM histories ORDER BY id", &[]).await?;
    all(&rows, |row| Ok(History { token: get(row, 0)?, after: Cursor(get_u64(row, 1)?) }))
}

/// The stored parts of an event.
struct Stored {
    event: Event,
    message: Option<MessageId>,
    kind: String,
    payload: String,
}

fn stored(row: &Row) -> Result<Stored, StoreError> {
    let event = Event {
        cursor: Cursor(get_u64(row, 0)?),
        id: EventId::from_bytes(get_id(row, 1)?),
        session: SessionId::from_bytes(get_id(row, 2)?),
        run: get_maybe_id(row, 3)?.map(RunId::from_bytes),
        attempt: get_maybe_id(row, 4)?.map(AttemptId::from_bytes),
        pos: get_u64(row, 7)?,
        at: Time(get(row, 8)?),
        request: get(row, 10)?,
        body: Body::RunRunning {},
    };
    let message = get_maybe_id(row, 5)?.map(MessageId::from_bytes);
    Ok(Stored { event, message, kind: get(row, 6)?, payload: get(row, 9)? })
}

/// Messages by id; the problem of those that cannot be read.
type Messages = HashMap<MessageId, Result<Arc<Message>, String>>;

/// Reads events with their messages: two further statements at most, however many events there are.
async fn events(reader: &Reader, rows: &[Row]) -> Result<Vec<Event>, StoreError> {
    let stored = all(rows, stored)?;
    let ids: Vec<Vec<u8>> =
        stored.iter().filter_map(|one| one.message).map(|id| id.as_bytes().to_vec()).collect();
    let (mut messages, mut calls) = (Messages::new(), vec![]);
    if !ids.is_empty() {
        let sql = format!("SELECT {MESSAGE}, m.message_id FROM messages AS m WHERE message_id = ANY ($1)");
        for row in reader.rows(&sql, &[&ids]).await? {
            let id = MessageId::from_bytes(get_id(&row, 4)?);
            let read = message(&row).map(|placed| placed.message);
            messages.insert(id, read.map_err(|error| format!("the message {id}: {error}")));
        }
        let sql = "SELECT run_id, tool_use_id, started_at, message_id, name, result FROM effects
                   WHERE message_id = ANY ($1)";
        // A result that cannot be read is missing: its event reports that.
        calls = reader.rows(sql, &[&ids]).await?.iter().filter_map(|row| effect(row).ok()).collect();
    }
    Ok(stored.into_iter().map(|one| complete(one, &messages, &calls)).collect())
}

/// Adds the body to an event. If the body cannot be read, the event reports the damage instead.
fn complete(stored: Stored, messages: &Messages, calls: &[OpenToolCall]) -> Event {
    let body = body(&stored, messages, calls).unwrap_or_else(|message| Body::EventDamaged {
        event_type: Some(stored.kind.clone()),
        message_id: stored.message,
        message,
    });
    Event { body, ..stored.event }
}

fn body(stored: &Stored, messages: &Messages, calls: &[OpenToolCall]) -> Result<Body, String> {
    let Stored { event, message, kind, payload } = stored;
    if let Some(id) = message.filter(|_| kind == Body::MESSAGE_COMPLETED) {
        let missing = || format!("the completed message {id} is missing");
        let parsed: Value = serde_json::from_str(payload).map_err(|error| error.to_string())?;
        let parent = parsed["parentId"].as_str().map(str::parse).transpose();
        let parent_id = parent.map_err(|error: mainspring_core::BadId| error.to_string())?;
        return Ok(Body::MessageCompleted {
            message: messages.get(&id).ok_or_else(missing)?.clone()?,
            parent_id,
        });
    }
    let text = format!(r#"{{"type":"{kind}","payload":{payload}}}"#);
    let mut body: Body =
        serde_json::from_str(&text).map_err(|error| format!("invalid payload of a {kind} event: {error}"))?;
    if let (Some(id), Some((tool_use_id, end))) = (message, body.tool_end_mut()) {
        let of_call = |block: &Block| match block {
            Block::ToolResult { tool_use_id: of, content, .. } if of == tool_use_id => Some(content.clone()),
            _ => None,
        };
        end.message_id = Some(*id);
        end.content = match messages.get(id) {
            Some(Ok(message)) => message.content.iter().find_map(of_call).unwrap_or_default(),
            Some(Err(problem)) => return Err(problem.clone()),
            // Until all calls of the round have ended, the row of the call holds the result.
            None => {
                let call =
                    calls.iter().find(|call| Some(call.run) == event.run && call.tool_use_id == tool_use_id);
                let ended = call.and_then(|call| call.ended.as_ref());
                let missing = || format!("the result of the tool call {tool_use_id} is missing");
                ended.ok_or_else(missing)?.result.content.clone()
            }
        };
    }
    Ok(body)
}
