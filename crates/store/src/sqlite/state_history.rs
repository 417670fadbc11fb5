//! The history of state: the last changes of each key, and who made them.

use mainspring_core::state::HISTORY_CHANGES;
use mainspring_core::{Rows, StateChange};
use mainspring_kernel::store::{StateHistoryOf, StoreError};
use rusqlite::{Connection, params};

use super::checksum;
use super::columns::{Columns, int, json};
use super::read::{query_stored, rows, sql_limit, state_change_columns};

/// Adds a change, and drops the oldest ones of its key that are too many.
pub(super) fn state_change_write(
    connection: &Connection,
    of: &StateHistoryOf,
    change: &StateChange,
) -> rusqlite::Result<()> {
    let place = of.place();
    let mut insert = connection.prepare_cached(concat!(
        "INSERT OR REPLACE INTO state_history (",
        state_change_columns!(),
        ", place) VALUES (?1, ?2, ?3, ?4, ?5)"
    ))?;
    let text = json(change)?;
    let columns = params![change.key, int(change.version), text];
    checksum::execute(&mut insert, &[(&checksum::STATE_CHANGE, columns)], params![place])?;
    connection
        .prepare_cached(
            "DELETE FROM state_history WHERE place = ?1 AND key = ?2 AND version <= (
               SELECT version FROM state_history WHERE place = ?1 AND key = ?2 ORDER BY version DESC LIMIT 1 OFFSET ?3)",
        )?
        .execute(params![place, change.key, sql_limit(HISTORY_CHANGES)])?;
    Ok(())
}

/// Lists the changes of a key before a version, newest first.
pub(super) fn state_history(
    connection: &Connection,
    of: &StateHistoryOf,
    key: &str,
    before: Option<u64>,
    limit: usize,
) -> Result<Rows<StateChange>, StoreError> {
    let before = before.map_or(i64::MAX, |version| int(version).max(0));
    let sql = concat!(
        "SELECT ",
        state_change_columns!(),
        " FROM state_history WHERE place = ?1 AND key = ?2 AND version < ?3 ORDER BY version DESC LIMIT ?4"
    );
    rows(limit, |limit| {
        let params = params![of.place(), key, before, sql_limit(limit)];
        query_stored(connection, sql, params, change)
    })
}

/// Lists the changes of all keys, by key and version.
pub(super) fn state_changes(
    connection: &Connection,
    of: &StateHistoryOf,
    (key, version): &(String, u64),
    limit: usize,
) -> Result<Rows<StateChange>, StoreError> {
    let sql = concat!(
        "SELECT ",
        state_change_columns!(),
        " FROM state_history WHERE place = ?1 AND (key, version) > (?2, ?3) ORDER BY key, version LIMIT ?4"
    );
    rows(limit, |limit| {
        let params = params![of.place(), key, int(*version), sql_limit(limit)];
        query_stored(connection, sql, params, change)
    })
}

fn change(columns: &mut Columns<'_>) -> rusqlite::Result<StateChange> {
    columns.check(&checksum::STATE_CHANGE)?;
    columns.skip(2);
    columns.json()
}
