//! Writes state, and removes loose hashes. A hash is loose after an artifact that referred to it was removed.

use mainspring_core::state::decide;
use mainspring_core::{LineId, Point, SessionId, StateChange, StateOutcome, StateSlot};
use mainspring_kernel::store::{OwnerState, StateHistoryOf, StatePlace, StateRow, StoreError};
use rusqlite::{Connection, OptionalExtension, params};

use super::checksum;
use super::columns::{Id, int, json, point};
use super::error::write_error;
use super::read::data::owner_entry;
use super::read::state_columns;
use super::state_history::state_change_write;
use super::write::WriteResult;

/// Writes a row of state. `seq` is the number of the last event before the row, or the order of an imported row.
pub(super) fn state_write(
    connection: &Connection,
    session: SessionId,
    row: &StateRow,
    seq: i64,
) -> WriteResult {
    let value = row.value.as_ref().map(json).transpose()?;
    let columns = params![row.key, int(row.version), row.at.0, value];
    match row.place {
        StatePlace::Session { at, aside } => {
            let (line, pos) = point(at);
            let mut insert = connection.prepare_cached(concat!(
                "INSERT INTO session_state (",
                state_columns!(),
                ", session_id, line, pos, aside, seq, away)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10,
                   coalesce((SELECT opened_by <> ?6 FROM lines WHERE line = ?7), 1))",
            ))?;
            let place = params![session.bytes(), line, pos, aside, seq];
            checksum::execute(&mut insert, &[(&checksum::STATE, columns)], place)?;
        }
        StatePlace::Run(run) => {
            let mut write = connection.prepare_cached(concat!(
                "INSERT INTO run_state (",
                state_columns!(),
                ", run_id) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                 ON CONFLICT (run_id, key) DO UPDATE SET version = ?2, updated_at_ms = ?3, value = ?4, checksum = ?5",
            ))?;
            checksum::execute(&mut write, &[(&checksum::STATE, columns)], params![run.bytes()])?;
        }
    }
    Ok(())
}

/// Sets the order at which a line of the session was opened.
pub(super) fn line_order_write(
    connection: &Connection,
    session: SessionId,
    line: LineId,
    order: i64,
) -> WriteResult {
    connection
        .prepare_cached("UPDATE lines SET opened_seq = ?3 WHERE line = ?1 AND session_id = ?2")?
        .execute(params![line.0, session.bytes(), order])?;
    Ok(())
}

/// Moves state from a position that got no message to the message before it.
pub(super) fn state_back(connection: &Connection, from: Point, key: &str) -> WriteResult {
    connection
        .prepare_cached(
            "UPDATE session_state SET pos = pos - 1 WHERE line = ?1 AND key = ?2 AND pos = ?3 AND pos > 0",
        )?
        .execute(params![from.line.0, key, from.pos])?;
    Ok(())
}

pub(super) fn state_put(connection: &Connection, put: &OwnerState) -> Result<StateOutcome, StoreError> {
    let last_version = || {
        connection
            .prepare_cached("SELECT version FROM owner_state_versions WHERE owner_id = ?1")?
            .query_row([&put.owner], |row| row.get::<_, i64>(0))
            .optional()
    };
    let entry = owner_entry(connection, &put.owner, &put.key)?;
    let counter = last_version().map_err(|error| write_error(&error))?.unwrap_or(0);
    let slot = StateSlot { entry, version: counter.cast_unsigned() };
    let version = decide(&slot, put.value.as_ref(), put.expect)?;
    if let Some(version) = version {
        let added = i64::from(put.value.is_some()) - i64::from(slot.entry.is_some());
        owner_state_write(connection, put, version, added).map_err(|error| write_error(&error))?;
    }
    Ok(StateOutcome::of(slot, &put.key, put.value.clone(), version, put.at))
}

/// Writes a key of an owner's state. `added` is the change of the number of keys.
fn owner_state_write(
    connection: &Connection,
    put: &OwnerState,
    version: u64,
    added: i64,
) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO owner_state_versions (owner_id, version, keys) VALUES (?1, ?2, ?3)
             ON CONFLICT (owner_id) DO UPDATE SET version = ?2, keys = keys + ?3",
        )?
        .execute(params![put.owner, int(version), added])?;
    match &put.value {
        Some(value) => {
            let value = json(value)?;
            let columns = params![put.key, int(version), put.at.0, value];
            let mut write = connection.prepare_cached(concat!(
                "INSERT INTO owner_state (",
                state_columns!(),
                ", owner_id) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                 ON CONFLICT (owner_id, key) DO UPDATE SET version = ?2, updated_at_ms = ?3, value = ?4, checksum = ?5",
            ))?;
            checksum::execute(&mut write, &[(&checksum::STATE, columns)], params![put.owner])?
        }
        None => connection
            .prepare_cached("DELETE FROM owner_state WHERE owner_id = ?1 AND key = ?2")?
            .execute(params![put.owner, put.key])?,
    };
    let change = StateChange::new(&put.key, version, put.value.as_ref(), put.at, put.by.clone());
    state_change_write(connection, &StateHistoryOf::Owner(put.owner.clone()), &change)
}

/// Returns whether an artifact refers to `hash`. If so, the hash is no longer loose.
pub(super) fn blob_is_used(connection: &Connection, hash: &str) -> rusqlite::Result<bool> {
    let referenced = "SELECT 1 FROM artifacts WHERE content_hash = ?1 UNION ALL
                      SELECT 1 FROM inherited_artifacts WHERE content_hash = ?1 LIMIT 1";
    let claimed = connection.prepare_cached(referenced)?.exists([hash])?;
    if claimed {
        blob_forget(connection, hash)?;
    }
    Ok(claimed)
}

/// Removes the hash from the loose hashes. Returns whether it was loose.
pub(super) fn blob_forget(connection: &Connection, hash: &str) -> rusqlite::Result<bool> {
    Ok(connection.prepare_cached("DELETE FROM blobs_loose WHERE content_hash = ?1")?.execute([hash])? > 0)
}
