//! Reads of state: along a path, of a run, of an owner.

use std::collections::BTreeMap;

use mainspring_core::{Point, RunId, SessionId, StateEntry, StateSlot};
use mainspring_kernel::store::{StateAt, StoreError};
use rusqlite::{Connection, params};
use serde_json::Value;

use super::super::columns::{Columns, Id};
use super::{all, limit, one};

/// No event is as late.
const EVER: i64 = i64::MAX;

/// One place on the way from a point to before every message.
enum Spot {
    /// A stretch of a line, up to a point.
    Line {
        line: i64,
        to: u32,
        owner: [u8; 16],
        /// What its owner wrote counts up to this event.
        bound: i64,
        /// Who looks, or came from beneath: what that session wrote here as a guest counts too.
        guest: [u8; 16],
        guest_bound: i64,
    },
    /// Before every message.
    Root { owner: [u8; 16], bound: i64 },
}

/// A row that was found.
struct Found {
    id: i64,
    version: u64,
    is_there: bool,
}

fn found(columns: &mut Columns<'_>) -> rusqlite::Result<Found> {
    Ok(Found { id: columns.get()?, version: columns.number()?, is_there: columns.get()? })
}

impl Spot {
    /// The nearest row of `key` here that counts.
    fn nearest(&self, connection: &Connection, key: &str) -> Result<Option<Found>, StoreError> {
        match self {
            Self::Line { line, to, owner, bound, guest, guest_bound } => one(
                connection,
                "SELECT id, version, value IS NOT NULL FROM session_state
                 WHERE line = ?1 AND key = ?2 AND pos <= ?3 AND (aside = 0 OR pos = ?3)
                   AND (session_id = ?4 AND seq <= ?5 OR session_id = ?6 AND session_id <> ?4 AND seq <= ?7)
                 ORDER BY pos DESC, version DESC LIMIT 1",
                params![line, key, to, owner, bound, guest, guest_bound],
                found,
            ),
            Self::Root { owner, bound } => one(
                connection,
                "SELECT id, version, value IS NOT NULL FROM session_state
                 WHERE session_id = ?1 AND key = ?2 AND line IS NULL AND seq <= ?3 ORDER BY version DESC LIMIT 1",
                params![owner, key, bound],
                found,
            ),
        }
    }

    /// The first key after `after` that has a row here, whether it counts or not.
    fn next_key(&self, connection: &Connection, after: &str) -> Result<Option<String>, StoreError> {
        let next = match self {
            Self::Line { line, .. } => one(
                connection,
                "SELECT min(key) FROM session_state WHERE line = ?1 AND key > ?2",
                params![line, after],
                |columns| columns.get(),
            ),
            Self::Root { owner, .. } => one(
                connection,
                "SELECT min(key) FROM session_state WHERE session_id = ?1 AND key > ?2 AND line IS NULL",
                params![owner, after],
                |columns| columns.get(),
            ),
        };
        Ok(next?.flatten())
    }
}

/// Shows every spot from `at` upwards, the nearest first, until `seen` says that it is enough.
fn walk(
    connection: &Connection,
    session: SessionId,
    at: Option<Point>,
    mut seen: impl FnMut(&Spot) -> Result<bool, StoreError>,
) -> Result<(), StoreError> {
    let me = session.bytes();
    let (mut next, mut owner, mut bound) = (at, me, EVER);
    let (mut guest, mut guest_bound) = (me, EVER);
    let mut first = true;
    while let Some(point) = next {
        let sql = "SELECT parent_line, parent_pos, coalesce(opened_by, session_id), opened_seq FROM lines WHERE line = ?1";
        let line = one(connection, sql, [point.line.0], |columns| {
            Ok((columns.point()?, columns.get::<[u8; 16]>()?, columns.get::<i64>()?))
        })?;
        let (parent, opened_by, opened_seq) =
            line.ok_or_else(|| StoreError::Corrupt(format!("line {} is not there", point.line.0)))?;
        owner = opened_by;
        if first && owner != me {
            // A fork that has no line of its own yet: it sees what held when it was made.
            bound = birth(connection, me)?;
        }
        first = false;
        if seen(&Spot::Line { line: point.line.0, to: point.pos, owner, bound, guest, guest_bound })? {
            return Ok(());
        }
        (guest, guest_bound, bound) = (owner, bound, bound.min(opened_seq));
        next = parent;
    }
    seen(&Spot::Root { owner, bound }).map(drop)
}

/// The last event before the session was made.
fn birth(connection: &Connection, session: [u8; 16]) -> Result<i64, StoreError> {
    let sql = "SELECT min(event_seq) - 1 FROM events WHERE session_id = ?1";
    Ok(one(connection, sql, [session], |columns| columns.get())?.flatten().unwrap_or(EVER))
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
    walk(connection, session, at, |spot| {
        nearest = spot.nearest(connection, key)?;
        Ok(nearest.is_some())
    })?;
    let sql = "SELECT max(version) FROM session_state WHERE session_id = ?1 AND key = ?2";
    let highest =
        one(connection, sql, params![session.bytes(), key], |columns| columns.get::<Option<i64>>())?;
    let highest = highest.flatten().map_or(0, i64::cast_unsigned);
    let version = nearest.as_ref().map_or(0, |found| found.version).max(highest);
    let entry = match nearest.filter(|found| found.is_there) {
        Some(found) => session_entry(connection, found.id)?,
        None => None,
    };
    Ok(StateSlot { entry, version })
}

fn session_entry(connection: &Connection, id: i64) -> Result<Option<StateEntry>, StoreError> {
    let sql = "SELECT key, version, updated_at_ms, value FROM session_state WHERE id = ?1";
    one(connection, sql, [id], entry)
}

fn entry(columns: &mut Columns<'_>) -> rusqlite::Result<StateEntry> {
    let (key, version, updated_at) = (columns.get()?, columns.number()?, columns.time()?);
    Ok(StateEntry { key, version, updated_at, value: columns.json()? })
}

fn run_slot(connection: &Connection, run: RunId, key: &str) -> Result<StateSlot, StoreError> {
    let sql = "SELECT version, updated_at_ms, value FROM run_state WHERE run_id = ?1 AND key = ?2";
    let slot = one(connection, sql, params![run.bytes(), key], |columns| {
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
    let sql = "SELECT key, version, updated_at_ms, value FROM owner_state WHERE owner_id = ?1 AND key = ?2";
    one(connection, sql, [owner, key], entry)
}

/// Every key after `after` that a session sees from a point, and its row.
fn session_keys(
    connection: &Connection,
    session: SessionId,
    at: Option<Point>,
    after: &str,
) -> Result<BTreeMap<String, i64>, StoreError> {
    let mut keys: BTreeMap<String, Found> = BTreeMap::new();
    walk(connection, session, at, |spot| {
        let mut last = after.to_owned();
        while let Some(key) = spot.next_key(connection, &last)? {
            if !keys.contains_key(&key)
                && let Some(found) = spot.nearest(connection, &key)?
            {
                keys.insert(key.clone(), found);
            }
            last = key;
        }
        Ok(false)
    })?;
    Ok(keys.into_iter().filter(|(_, found)| found.is_there).map(|(key, found)| (key, found.id)).collect())
}

pub(in super::super) fn state_page(
    connection: &Connection,
    at: &StateAt,
    after: &str,
    many: usize,
) -> Result<Vec<StateEntry>, StoreError> {
    match at {
        StateAt::Session { session, at } => {
            let keys = session_keys(connection, *session, *at, after)?;
            let entries = keys.values().take(many).map(|id| session_entry(connection, *id));
            entries.filter_map(Result::transpose).collect()
        }
        StateAt::Run(run) => all(
            connection,
            "SELECT key, version, updated_at_ms, value FROM run_state
             WHERE run_id = ?1 AND key > ?2 AND value IS NOT NULL ORDER BY key LIMIT ?3",
            params![run.bytes(), after, limit(many)],
            entry,
        ),
        StateAt::Owner(owner) => all(
            connection,
            "SELECT key, version, updated_at_ms, value FROM owner_state
             WHERE owner_id = ?1 AND key > ?2 ORDER BY key LIMIT ?3",
            params![owner, after, limit(many)],
            entry,
        ),
    }
}

pub(in super::super) fn state_count(connection: &Connection, at: &StateAt) -> Result<usize, StoreError> {
    let count = |columns: &mut Columns<'_>| columns.number();
    let counted = match at {
        StateAt::Session { session, at } => {
            return Ok(session_keys(connection, *session, *at, "")?.len());
        }
        StateAt::Run(run) => {
            let sql = "SELECT count(*) FROM run_state WHERE run_id = ?1 AND value IS NOT NULL";
            one(connection, sql, [run.bytes()], count)?
        }
        StateAt::Owner(owner) => {
            one(connection, "SELECT count(*) FROM owner_state WHERE owner_id = ?1", [owner], count)?
        }
    };
    Ok(counted.and_then(|count| usize::try_from(count).ok()).unwrap_or(0))
}
