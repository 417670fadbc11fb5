//! Reads events: parses the stored payload, and adds the message to a completed message event.

use std::collections::HashMap;
use std::sync::Arc;

use mainspring_core::{
    AttemptId, Block, Body, Cursor, Event, EventId, History, Message, MessageId, Position, RunId, SessionId,
    Time,
};
use mainspring_kernel::store::{LostEvents, StoreError};
use rusqlite::{Connection, Row, ToSql, params};
use serde::Deserialize;

use super::super::columns::{Columns, Id, blob, int};
use super::super::error::read_error;
use super::super::event_blocks::{self, BLOCK_BITS};
use super::super::{backup, checksum};
use super::{
    Lookup, effect, effect_columns, event_columns, message, message_columns, prepare, query_all, query_one,
    run_request_columns, sql_limit,
};

/// Selects the columns of events, and after them those of the completed message, if the event is one. One statement for
/// both: a second one for each message would take longer than reading its row. The message of a round of tools is left
/// out: each of the round's events would read all results.
macro_rules! select_events {
    ($where:literal) => {
        concat!(
            "WITH e AS (SELECT ",
            event_columns!(),
            " FROM events), m AS (SELECT ",
            message_columns!(),
            " FROM messages) SELECT e.*, m.* FROM e \
               LEFT JOIN m ON e.type = 'message.completed' AND m.message_id = e.message_id WHERE ",
            $where
        )
    };
}

/// The number of events that a page has room for from the beginning. A list that grows copies the events it holds.
const RESERVED_EVENTS: usize = 256;

pub(in super::super) fn events_after(
    connection: &Connection,
    session: SessionId,
    run: Option<RunId>,
    after: Cursor,
    limit: usize,
) -> Result<Vec<Event>, StoreError> {
    let sql = match run {
        None => {
            select_events!(
                "e.session_id = ?1 AND e.event_seq > ?2 AND ?3 IS NULL ORDER BY e.event_seq LIMIT ?4"
            )
        }
        Some(_) => {
            select_events!(
                "e.session_id = ?1 AND e.run_id = ?3 AND
                   e.event_seq > max(?2, coalesce((SELECT created_seq FROM runs WHERE run_id = ?3), 0))
                   ORDER BY e.event_seq LIMIT ?4"
            )
        }
    };
    let after = int(after.0.min(i64::MAX.cast_unsigned()));
    check_not_pruned(connection, session, run, after)?;
    let mut reader = EventReader { session: Some(session), ..EventReader::new(connection) };
    let mut statement = prepare(connection, sql).map_err(|error| read_error(&error))?;
    let params = params![session.bytes(), after, blob(run), sql_limit(limit)];
    let mut rows = statement.query(params).map_err(|error| read_error(&error))?;
    let mut events = Vec::with_capacity(limit.min(RESERVED_EVENTS));
    while let Some(row) = rows.next().map_err(|error| read_error(&error))? {
        events.push(reader.event_or_damage(row)?);
    }
    // A reader that has caught up reads few events and may keep them for long.
    events.shrink_to_fit();
    Ok(events)
}

/// Returns a run's events in order, except those of messages and tools: a damaged message does not matter.
pub(in super::super) fn run_changes(
    connection: &Connection,
    session: SessionId,
    run: RunId,
) -> Result<Vec<Event>, StoreError> {
    let sql = select_events!(
        "e.session_id = ?1 AND e.run_id = ?2 AND e.type NOT LIKE 'message.%' AND e.type NOT LIKE 'tool.%'
           ORDER BY e.event_seq"
    );
    check_not_pruned(connection, session, Some(run), 0)?;
    let mut reader = EventReader::new(connection);
    let mut statement = prepare(connection, sql).map_err(|error| read_error(&error))?;
    let mut rows =
        statement.query(params![session.bytes(), run.bytes()]).map_err(|error| read_error(&error))?;
    let mut events = vec![];
    while let Some(row) = rows.next().map_err(|error| read_error(&error))? {
        events.push(reader.event(&mut Columns::new(row))?);
    }
    Ok(events)
}

/// The number of blocks that one read scans. A block holds events of all owners.
const SCAN_BLOCKS: usize = 8;

/// Returns events of an owner after `after`, and the cursor up to which events were scanned. Blocks in which the owner has
/// no event of these types are skipped.
pub(in super::super) fn owner_events(
    connection: &Connection,
    owner: &str,
    types: Option<&[&'static str]>,
    after: Cursor,
    limit: usize,
) -> Result<(Vec<Event>, Cursor), StoreError> {
    let Cursor(last) = event_last(connection)?;
    if last <= after.0 {
        return Ok((vec![], after));
    }
    let words = event_blocks::words(types.unwrap_or(Body::TYPES));
    let mut page = OwnerPage {
        reader: EventReader::new(connection),
        owner,
        types: types.map(|types| serde_json::json!(types).to_string()),
        events: vec![],
        read: 0,
        limit,
        floors: HashMap::new(),
    };
    let mut scanned_to = after.0;
    for _ in 0..SCAN_BLOCKS {
        let from = (scanned_to + 1) >> BLOCK_BITS;
        let Some(block) = event_blocks::next_block(connection, owner, &words, from)? else {
            scanned_to = last;
            break;
        };
        let begin = scanned_to.max((block << BLOCK_BITS).saturating_sub(1));
        let until = (((block + 1) << BLOCK_BITS) - 1).min(last);
        if let Some(cursor) = page.read(begin, until)? {
            return Ok((page.events, cursor));
        }
        scanned_to = until.max(scanned_to);
        if scanned_to >= last {
            break;
        }
    }
    Ok((page.events, Cursor(scanned_to)))
}

/// A page of an owner's events that is being read.
struct OwnerPage<'a> {
    reader: EventReader<'a>,
    owner: &'a str,
    /// A JSON list.
    types: Option<String>,
    events: Vec<Event>,
    /// The rows read, also of pruned events.
    read: usize,
    limit: usize,
    /// The cursor up to which the events of each session are pruned.
    floors: HashMap<SessionId, Option<Cursor>>,
}

impl OwnerPage<'_> {
    /// Reads the events after `begin` up to `until`. Returns the cursor of the last one if the page is full.
    fn read(&mut self, begin: u64, until: u64) -> Result<Option<Cursor>, StoreError> {
        let sql = select_events!(
            "e.event_seq > ?1 AND e.event_seq <= ?2 \
              AND (?3 IS NULL OR e.type IN (SELECT value FROM json_each(?3))) \
              AND EXISTS (SELECT 1 FROM sessions WHERE sessions.session_id = e.session_id AND owner_id = ?4 \
                  AND (sessions.status <> 'deleted' OR e.type = 'session.deleted')) \
              ORDER BY e.event_seq LIMIT ?5"
        );
        let connection = self.reader.connection;
        let mut statement = prepare(connection, sql).map_err(|error| read_error(&error))?;
        let params =
            params![int(begin), int(until), self.types, self.owner, sql_limit(self.limit - self.read)];
        let mut rows = statement.query(params).map_err(|error| read_error(&error))?;
        while let Some(row) = rows.next().map_err(|error| read_error(&error))? {
            self.read += 1;
            let event = self.reader.event_or_damage(row)?;
            let cursor = event.cursor;
            let floor = match self.floors.get(&event.session) {
                Some(floor) => *floor,
                None => {
                    let floor = floor(connection, event.session)?.map(|floor| floor.cursor);
                    self.floors.insert(event.session, floor);
                    floor
                }
            };
            self.events.extend(Some(event).filter(|event| floor.is_none_or(|floor| event.cursor > floor)));
            if self.read >= self.limit {
                return Ok(Some(cursor));
            }
        }
        Ok(None)
    }
}

/// Returns the last cursor given to an event of any session.
pub(in super::super) fn event_last(connection: &Connection) -> Result<Cursor, StoreError> {
    backup::last_cursor(connection).map_err(|error| read_error(&error))
}

/// Fails if events after `after` may have been pruned.
fn check_not_pruned(
    connection: &Connection,
    session: SessionId,
    run: Option<RunId>,
    after: i64,
) -> Result<(), StoreError> {
    let Some(floor) = floor(connection, session)? else { return Ok(()) };
    // `created_seq` is the cursor after which all events of the run lie.
    let sql = "SELECT created_seq FROM runs WHERE run_id = ?1";
    let before = match run {
        Some(run) => query_one(connection, sql, [run.bytes()], |columns| columns.get::<i64>())?,
        None => None,
    };
    if after.max(before.unwrap_or(0)) < int(floor.cursor.0) {
        return Err(StoreError::Pruned(floor));
    }
    Ok(())
}

/// Returns the position up to which the events of a session are pruned.
pub(super) fn floor(connection: &Connection, session: SessionId) -> Result<Option<Position>, StoreError> {
    let sql = "SELECT floor_seq, floor_pos FROM retention WHERE session_id = ?1";
    query_one(connection, sql, [session.bytes()], position)
}

fn position(columns: &mut Columns<'_>) -> rusqlite::Result<Position> {
    Ok(Position { cursor: Cursor(columns.number()?), pos: columns.number()? })
}

pub(in super::super) fn lost_events(connection: &Connection) -> Result<Vec<LostEvents>, StoreError> {
    let sql = "SELECT after_seq, until_seq FROM lost_events ORDER BY after_seq";
    query_all(connection, sql, [], |columns| {
        Ok(LostEvents { after: Cursor(columns.number()?), until: Cursor(columns.number()?) })
    })
}

pub(in super::super) fn histories(connection: &Connection) -> Result<Vec<History>, StoreError> {
    let sql = "SELECT token, after_seq FROM histories ORDER BY id";
    query_all(connection, sql, [], |columns| {
        Ok(History { token: columns.get()?, after: Cursor(columns.number()?) })
    })
}

pub(in super::super) fn event_before(
    connection: &Connection,
    session: SessionId,
    before: Cursor,
) -> Result<Option<Position>, StoreError> {
    let sql = "SELECT event_seq, pos FROM events WHERE session_id = ?1 AND event_seq < ?2 \
               ORDER BY event_seq DESC LIMIT 1";
    let before = int(before.0.min(i64::MAX.cast_unsigned()));
    let found = query_one(connection, sql, params![session.bytes(), before], position)?;
    let floor = floor(connection, session)?;
    Ok(found.filter(|found| floor.is_none_or(|floor| floor.cursor < found.cursor)))
}

/// The index of `pos` in the columns of an event; that of its time follows.
const POS_COLUMN: usize = 7;
/// The index of `request_id` in the columns of a run.
const REQUEST_ID_COLUMN: usize = 6;

/// The row of an event.
struct Stored<'row> {
    cursor: Cursor,
    id: EventId,
    session: SessionId,
    run: Option<RunId>,
    attempt: Option<AttemptId>,
    message: Option<MessageId>,
    kind: &'row str,
    pos: u64,
    at: Time,
    payload: &'row str,
}

impl<'row> Stored<'row> {
    /// Reads a row and compares it with its checksum.
    fn read(columns: &mut Columns<'row>) -> rusqlite::Result<Self> {
        columns.check(&checksum::EVENT)?;
        Ok(Self {
            cursor: Cursor(columns.number()?),
            id: columns.id()?,
            session: columns.id()?,
            run: columns.maybe_id()?,
            attempt: columns.maybe_id()?,
            message: columns.maybe_id()?,
            kind: columns.text()?,
            pos: columns.number()?,
            at: columns.time()?,
            payload: columns.text()?,
        })
    }

    fn into_event(self, request: Option<String>, body: Body) -> Event {
        let Self { cursor, id, session, run, attempt, pos, at, .. } = self;
        Event { cursor, id, session, run, attempt, pos, at, request, body }
    }
}

/// Converts the rows of one page of events.
struct EventReader<'a> {
    connection: &'a Connection,
    /// The session whose events are read; none if the read covers several sessions.
    session: Option<SessionId>,
    /// Reads the request of a run.
    runs: Lookup<'a>,
    /// The request ids of the runs of this page, which has many events of few runs.
    request_ids: HashMap<RunId, Option<String>>,
    /// Reads the message of a round of tools.
    results: Lookup<'a>,
    /// The message of the last round of tools.
    last_results: Option<Arc<Message>>,
    /// A buffer for the JSON of a body.
    text: String,
}

impl<'a> EventReader<'a> {
    fn new(connection: &'a Connection) -> Self {
        Self {
            connection,
            session: None,
            runs: Lookup::new(
                connection,
                concat!("SELECT ", run_request_columns!(), " FROM runs WHERE run_id = ?1"),
            ),
            request_ids: HashMap::new(),
            results: Lookup::new(
                connection,
                concat!("SELECT ", message_columns!(), " FROM messages WHERE message_id = ?1"),
            ),
            last_results: None,
            text: String::new(),
        }
    }

    /// Reads an event. If the event, its message or its result is damaged, returns `event.damaged` in its place:
    /// readers get the events around it, and know that one is missing.
    fn event_or_damage(&mut self, row: &Row<'_>) -> Result<Event, StoreError> {
        let message = match self.event(&mut Columns::new(row)) {
            Err(StoreError::Corrupt(problem)) => problem,
            read => return read,
        };
        match Stored::read(&mut Columns::new(row)) {
            // The event itself is intact.
            Ok(stored) => {
                let (event_type, message_id) = (Some(stored.kind.into()), stored.message);
                Ok(stored.into_event(None, Body::EventDamaged { event_type, message_id, message }))
            }
            Err(_) => damaged_event(self.connection, row, self.session, message),
        }
    }

    fn event(&mut self, columns: &mut Columns<'_>) -> Result<Event, StoreError> {
        let stored = Stored::read(columns).map_err(|error| read_error(&error))?;
        let request = match stored.run {
            Some(run) => self.request_id(run)?,
            None => None,
        };
        let body = match stored.message {
            None => self.body(stored.kind, stored.payload)?,
            Some(id) if stored.kind == Body::MESSAGE_COMPLETED => {
                let missing = || StoreError::Corrupt(format!("the completed message {id} is missing"));
                let message = joined_message(columns)?.ok_or_else(missing)?;
                Body::MessageCompleted { message, parent_id: parent_id(stored.payload)? }
            }
            Some(id) => self.ended_tool(&stored, id)?,
        };
        Ok(stored.into_event(request, body))
    }

    fn body(&mut self, kind: &str, payload: &str) -> Result<Body, StoreError> {
        self.text.clear();
        for part in [r#"{"type":""#, kind, r#"","payload":"#, payload, "}"] {
            self.text.push_str(part);
        }
        serde_json::from_str(&self.text)
            .map_err(|error| StoreError::Corrupt(format!("invalid payload of a {kind} event: {error}")))
    }

    /// Parses the end of a tool call and adds its result, which the message `id` holds. Until all calls of the round have
    /// ended, the row of the call holds it.
    fn ended_tool(&mut self, stored: &Stored<'_>, id: MessageId) -> Result<Body, StoreError> {
        let mut body = self.body(stored.kind, stored.payload)?;
        let Some((tool_use_id, end)) = body.tool_end_mut() else { return Ok(body) };
        let of_call = |block: &Block| match block {
            Block::ToolResult { tool_use_id: of, content, .. } if of == tool_use_id => Some(content.clone()),
            _ => None,
        };
        end.message_id = Some(id);
        end.content = match self.results(id)? {
            Some(message) => message.content.iter().find_map(of_call).unwrap_or_default(),
            None => {
                let sql = concat!(
                    "SELECT ",
                    effect_columns!(),
                    " FROM effects WHERE session_id = ?1 AND run_id = ?2 AND tool_use_id = ?3"
                );
                let params = params![stored.session.bytes(), blob(stored.run), tool_use_id];
                let found = query_one(self.connection, sql, params, effect)?.and_then(|call| call.ended);
                let missing =
                    || StoreError::Corrupt(format!("the result of the tool call {tool_use_id} is missing"));
                Arc::unwrap_or_clone(found.ok_or_else(missing)?.result).content
            }
        };
        Ok(body)
    }

    /// Reads the message of a round of tools, once for all calls of the round.
    fn results(&mut self, id: MessageId) -> Result<Option<Arc<Message>>, StoreError> {
        if self.last_results.as_ref().is_none_or(|last| last.id != id) {
            self.last_results = self.results.query_one([id.bytes()], message)?.map(|found| found.message);
        }
        Ok(self.last_results.clone())
    }

    fn request_id(&mut self, run: RunId) -> Result<Option<String>, StoreError> {
        if let Some(request_id) = self.request_ids.get(&run) {
            return Ok(request_id.clone());
        }
        let read = self.runs.query_stored([run.bytes()], |columns| {
            // Without a request id, the events are the same whether the run is damaged or not.
            if columns.is_null(REQUEST_ID_COLUMN)? {
                return Ok(None);
            }
            columns.check(&checksum::RUN_REQUEST)?;
            columns.skip(REQUEST_ID_COLUMN);
            columns.get::<Option<String>>()
        })?;
        // A damaged run does not hide its events: they come without the request id, and reading the run reports the
        // error.
        let request_id = read.and_then(Result::ok).flatten();
        self.request_ids.insert(run, request_id.clone());
        Ok(request_id)
    }
}

/// Reads the message in the columns after those of its event. Skips the event's last column, its checksum.
fn joined_message(columns: &mut Columns<'_>) -> Result<Option<Arc<Message>>, StoreError> {
    columns.skip(1);
    let read = match columns.is_null(0) {
        Ok(true) => return Ok(None),
        Ok(false) => message(columns),
        Err(error) => Err(error),
    };
    read.map(|found| Some(found.message)).map_err(|error| read_error(&error))
}

/// Builds the event in place of one whose own row is damaged. Its place among the events is certain, since the row was
/// found there. Its position and time are those of the row if they fit between the neighbours, else those of a
/// neighbour.
fn damaged_event(
    connection: &Connection,
    row: &Row<'_>,
    session: Option<SessionId>,
    message: String,
) -> Result<Event, StoreError> {
    macro_rules! neighbours {
        ($order:literal) => {
            concat!("SELECT ", event_columns!(), " FROM events WHERE session_id = ?1 AND event_seq ", $order)
        };
    }
    let mut columns = Columns::new(row);
    let found = columns.number().and_then(|cursor| Ok((cursor, columns.id::<EventId>()?)));
    let (cursor, id) = found.map_err(|error| read_error(&error))?;
    let session = match session {
        Some(session) => session,
        None => columns.id().map_err(|error| read_error(&error))?,
    };
    let place = params![session.bytes(), int(cursor)];
    let before = first_intact(connection, neighbours!("< ?2 ORDER BY event_seq DESC"), place)?;
    let after = first_intact(connection, neighbours!("> ?2 ORDER BY event_seq"), place)?;
    let (pos, at) = (row.get::<_, i64>(POS_COLUMN), row.get::<_, i64>(POS_COLUMN + 1));
    let (first_pos, first_at) = before.unwrap_or((0, Time(0)));
    let (last_pos, last_at) = after.unwrap_or((u64::MAX, Time(i64::MAX)));
    let pos = pos.ok().map(i64::cast_unsigned).filter(|pos| (first_pos..=last_pos).contains(pos));
    let at = at.ok().map(Time).filter(|at| (first_at..=last_at).contains(at));
    // A reader may have seen all bytes up to the next event.
    let likely_pos = after.map_or(first_pos, |(pos, _)| pos);
    let body = Body::EventDamaged { event_type: None, message_id: None, message };
    Ok(Event {
        cursor: Cursor(cursor),
        id,
        session,
        run: None,
        attempt: None,
        request: None,
        pos: pos.unwrap_or(likely_pos),
        at: at.unwrap_or(first_at),
        body,
    })
}

/// Returns the position and time of the first row of `sql` that is intact.
fn first_intact(
    connection: &Connection,
    sql: &str,
    params: &[&dyn ToSql],
) -> Result<Option<(u64, Time)>, StoreError> {
    let mut statement = prepare(connection, sql).map_err(|error| read_error(&error))?;
    let mut rows = statement.query(params).map_err(|error| read_error(&error))?;
    while let Some(row) = rows.next().map_err(|error| read_error(&error))? {
        if let Ok(stored) = Stored::read(&mut Columns::new(row)) {
            return Ok(Some((stored.pos, stored.at)));
        }
    }
    Ok(None)
}

/// The stored part of a completed message: the message itself is in a row of its own.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CompletedMessage {
    parent_id: Option<MessageId>,
}

fn parent_id(payload: &str) -> Result<Option<MessageId>, StoreError> {
    if payload == "{}" {
        return Ok(None);
    }
    let stored = serde_json::from_str::<CompletedMessage>(payload);
    stored.map(|stored| stored.parent_id).map_err(|error| StoreError::Corrupt(error.to_string()))
}
