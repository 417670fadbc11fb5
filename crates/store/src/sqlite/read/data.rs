//! Reads state: of a session along a path, of a run, of an owner.

use std::collections::BTreeMap;

use mainspring_core::{Point, Rows, RunId, SessionId, StateEntry, StateSlot};
use mainspring_kernel::store::{StateAt, StoreError};
use rusqlite::{Connection, params};
use serde_json::Value;

use super::super::checksum;
use super::super::columns::{Columns, Id};
use super::{Stored, query_one, query_stored, rows, sql_limit, state_columns};

/// Greater than the number of any event.
const UNBOUNDED: i64 = i64::MAX;

/// A segment of the path from a point to the root, with the events up to which state on it is visible.
enum Segment {
    /// The part of a line up to a position.
    Line {
        line: i64,
        to: u32,
        /// The session that opened the line.
        owner: [u8; 16],
        /// State of the owner is visible up to this event.
        bound: i64,
        /// The session that opened the line below, or the reading session at the end of the path. State that it wrote
        /// on this line is visible too.
        child_owner: [u8; 16],
        /// State of `child_owner` is visible up to this event.
        child_bound: i64,
    },
    /// The root, before the first message.
    Root { owner: [u8; 16], bound: i64 },
}

/// A row of `session_state`, without its value.
struct StateRowRef {
    id: i64,
    version: u64,
    has_value: bool,
}

fn state_row_ref(columns: &mut Columns<'_>) -> rusqlite::Result<StateRowRef> {
    Ok(StateRowRef { id: columns.get()?, version: columns.number()?, has_value: columns.get()? })
}

impl Segment {
    /// Returns the nearest visible row of `key`.
    fn nearest(&self, connection: &Connection, key: &str) -> Result<Option<StateRowRef>, StoreError> {
        match self {
            Self::Line { line, to, owner, bound, child_owner, child_bound } => query_one(
                connection,
                "SELECT id, version, value IS NOT NULL FROM session_state
                 WHERE line = ?1 AND key = ?2 AND pos <= ?3 AND (aside = 0 OR pos = ?3)
                   AND (session_id = ?4 AND seq <= ?5 OR session_id = ?6 AND session_id <> ?4 AND seq <= ?7)
                 ORDER BY pos DESC, version DESC LIMIT 1",
                params![line, key, to, owner, bound, child_owner, child_bound],
                state_row_ref,
            ),
            Self::Root { owner, bound } => query_one(
                connection,
                "SELECT id, version, value IS NOT NULL FROM session_state
                 WHERE session_id = ?1 AND key = ?2 AND line IS NULL AND seq <= ?3 ORDER BY version DESC LIMIT 1",
                params![owner, key, bound],
                state_row_ref,
            ),
        }
    }

    /// Returns the first key after `after` that has a row, visible or not.
    fn next_key(&self, connection: &Connection, after: &str) -> Result<Option<String>, StoreError> {
        let next = match self {
            Self::Line { line, .. } => query_one(
                connection,
                "SELECT min(key) FROM session_state WHERE line = ?1 AND key > ?2",
                params![line, after],
                |columns| columns.get(),
            ),
            Self::Root { owner, .. } => query_one(
                connection,
                "SELECT min(key) FROM session_state WHERE session_id = ?1 AND key > ?2 AND line IS NULL",
                params![owner, after],
                |columns| columns.get(),
            ),
        };
        Ok(next?.flatten())
    }
}

/// Visits the segments from `at` towards the root, nearest first, until `visit` returns true.
fn visit_segments(
    connection: &Connection,
    session: SessionId,
    at: Option<Point>,
    mut visit: impl FnMut(&Segment) -> Result<bool, StoreError>,
) -> Result<(), StoreError> {
    let reader = session.bytes();
    let (mut next, mut owner, mut bound) = (at, reader, UNBOUNDED);
    let (mut child_owner, mut child_bound) = (reader, UNBOUNDED);
    let mut first = true;
    while let Some(point) = next {
        let sql = "SELECT parent_line, parent_pos, coalesce(opened_by, session_id), opened_seq FROM lines WHERE line = ?1";
        let line = query_one(connection, sql, [point.line.0], |columns| {
            Ok((columns.point()?, columns.get::<[u8; 16]>()?, columns.get::<i64>()?))
        })?;
        let (parent, opened_by, opened_seq) =
            line.ok_or_else(|| StoreError::Corrupt(format!("line {} is missing", point.line.0)))?;
        owner = opened_by;
        if first && owner != reader {
            // A fork without an own line sees the state at the time of its creation.
            bound = seq_before_creation(connection, reader)?;
        }
        first = false;
        if visit(&Segment::Line {
            line: point.line.0,
            to: point.pos,
            owner,
            bound,
            child_owner,
            child_bound,
        })? {
            return Ok(());
        }
        (child_owner, child_bound, bound) = (owner, bound, bound.min(opened_seq));
        next = parent;
    }
    visit(&Segment::Root { owner, bound }).map(drop)
}

/// Returns the number of the last event before the session was created.
fn seq_before_creation(connection: &Connection, session: [u8; 16]) -> Result<i64, StoreError> {
    let sql = "SELECT min(event_seq) - 1 FROM events WHERE session_id = ?1";
    Ok(query_one(connection, sql, [session], |columns| columns.get())?.flatten().unwrap_or(UNBOUNDED))
}

pub(in super::super) fn state_get(
    connection: &Connection,
    at: &StateAt,
    key: &str,
) -> Result<StateSlot, StoreError> {
    match at {
        StateAt::Session { session, at } => session_slot(connection, *session, *at, key),
        StateAt::Run(run) => run_slot(connection, *run, key),
        StateAt::Owner(owner) => {
            let entry = owner_entry(connection, owner, key)?;
            Ok(StateSlot { version: entry.as_ref().map_or(0, |entry| entry.version), entry })
        }
    }
}

fn session_slot(
    connection: &Connection,
    session: SessionId,
    at: Option<Point>,
    key: &str,
) -> Result<StateSlot, StoreError> {
    let mut nearest = None;
    visit_segments(connection, session, at, |segment| {
        nearest = segment.nearest(connection, key)?;
        Ok(nearest.is_some())
    })?;
    let sql = "SELECT max(version) FROM session_state WHERE session_id = ?1 AND key = ?2";
    let highest =
        query_one(connection, sql, params![session.bytes(), key], |columns| columns.get::<Option<i64>>())?;
    let highest = highest.flatten().map_or(0, i64::cast_unsigned);
    let version = nearest.as_ref().map_or(0, |found| found.version).max(highest);
    let entry = match nearest.filter(|found| found.has_value) {
        Some(found) => session_entry(connection, found.id)?,
        None => None,
    };
    Ok(StateSlot { entry, version })
}

fn session_entry(connection: &Connection, id: i64) -> Result<Option<StateEntry>, StoreError> {
    let entry = session_entry_stored(connection, id)?.transpose();
    entry.map_err(|damage| StoreError::Corrupt(damage.message))
}

fn session_entry_stored(connection: &Connection, id: i64) -> Result<Option<Stored<StateEntry>>, StoreError> {
    let sql = concat!("SELECT ", state_columns!(), " FROM session_state WHERE id = ?1");
    Ok(query_stored(connection, sql, [id], entry)?.pop())
}

fn entry(columns: &mut Columns<'_>) -> rusqlite::Result<StateEntry> {
    columns.check(&checksum::STATE)?;
    let (key, version, updated_at) = (columns.get()?, columns.number()?, columns.time()?);
    Ok(StateEntry { key, version, updated_at, value: columns.json()? })
}

fn run_slot(connection: &Connection, run: RunId, key: &str) -> Result<StateSlot, StoreError> {
    let sql = concat!("SELECT ", state_columns!(), " FROM run_state WHERE run_id = ?1 AND key = ?2");
    let slot = query_one(connection, sql, params![run.bytes(), key], |columns| {
        columns.check(&checksum::STATE)?;
        columns.skip(1);
        let (version, updated_at) = (columns.number()?, columns.time()?);
        let value = columns.maybe_json::<Value>()?;
        let entry = value.map(|value| StateEntry { key: key.into(), value, version, updated_at });
        Ok(StateSlot { entry, version })
    })?;
    Ok(slot.unwrap_or_default())
}

pub(in super::super) fn owner_entry(
    connection: &Connection,
    owner: &str,
    key: &str,
) -> Result<Option<StateEntry>, StoreError> {
    let sql = concat!("SELECT ", state_columns!(), " FROM owner_state WHERE owner_id = ?1 AND key = ?2");
    query_one(connection, sql, [owner, key], entry)
}

/// Returns the keys after `after` that have a value visible from a point, each with its row.
fn session_keys(
    connection: &Connection,
    session: SessionId,
    at: Option<Point>,
    after: &str,
) -> Result<BTreeMap<String, i64>, StoreError> {
    let mut keys: BTreeMap<String, StateRowRef> = BTreeMap::new();
    visit_segments(connection, session, at, |segment| {
        let mut last = after.to_owned();
        while let Some(key) = segment.next_key(connection, &last)? {
            if !keys.contains_key(&key)
                && let Some(found) = segment.nearest(connection, &key)?
            {
                keys.insert(key.clone(), found);
            }
            last = key;
        }
        Ok(false)
    })?;
    Ok(keys.into_iter().filter(|(_, found)| found.has_value).map(|(key, found)| (key, found.id)).collect())
}

pub(in super::super) fn state_page(
    connection: &Connection,
    at: &StateAt,
    after: &str,
    limit: usize,
) -> Result<Rows<StateEntry>, StoreError> {
    rows(limit, |limit| state_stored(connection, at, after, limit))
}

fn state_stored(
    connection: &Connection,
    at: &StateAt,
    after: &str,
    limit: usize,
) -> Result<Vec<Stored<StateEntry>>, StoreError> {
    match at {
        StateAt::Session { session, at } => {
            let keys = session_keys(connection, *session, *at, after)?;
            let entries = keys.values().take(limit).map(|id| session_entry_stored(connection, *id));
            entries.filter_map(Result::transpose).collect()
        }
        StateAt::Run(run) => query_stored(
            connection,
            concat!(
                "SELECT ",
                state_columns!(),
                " FROM run_state WHERE run_id = ?1 AND key > ?2 AND value IS NOT NULL ORDER BY key LIMIT ?3"
            ),
            params![run.bytes(), after, sql_limit(limit)],
            entry,
        ),
        StateAt::Owner(owner) => query_stored(
            connection,
            concat!(
                "SELECT ",
                state_columns!(),
                " FROM owner_state WHERE owner_id = ?1 AND key > ?2 ORDER BY key LIMIT ?3"
            ),
            params![owner, after, sql_limit(limit)],
            entry,
        ),
    }
}

pub(in super::super) fn state_count(connection: &Connection, at: &StateAt) -> Result<usize, StoreError> {
    let read_count = |columns: &mut Columns<'_>| columns.number();
    let count = match at {
        StateAt::Session { session, at } => {
            return Ok(session_keys(connection, *session, *at, "")?.len());
        }
        StateAt::Run(run) => {
            let sql = "SELECT count(*) FROM run_state WHERE run_id = ?1 AND value IS NOT NULL";
            query_one(connection, sql, [run.bytes()], read_count)?
        }
        StateAt::Owner(owner) => query_one(
            connection,
            "SELECT keys FROM owner_state_versions WHERE owner_id = ?1",
            [owner],
            read_count,
        )?,
    };
    Ok(count.and_then(|count| usize::try_from(count).ok()).unwrap_or(0))
}
