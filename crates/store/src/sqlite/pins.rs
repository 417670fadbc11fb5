//! Writes and reads the pins of readers.

use mainspring_core::{SessionId, Time};
use mainspring_kernel::store::{Pin, StoreError};
use rusqlite::{Connection, params};

use super::columns::Id;
use super::read::query_all;
use super::write::WriteResult;

/// Adds or removes a pin. An existing pin keeps its time.
pub(super) fn pin_write(connection: &Connection, pin: &Pin) -> WriteResult {
    match pin.at {
        Some(at) => connection
            .prepare_cached(
                "INSERT INTO pins VALUES (?1, ?2, ?3) ON CONFLICT (owner_id, session_id) DO NOTHING",
            )?
            .execute(params![pin.owner, pin.session.bytes(), at.0])?,
        None => connection
            .prepare_cached("DELETE FROM pins WHERE owner_id = ?1 AND session_id = ?2")?
            .execute(params![pin.owner, pin.session.bytes()])?,
    };
    Ok(())
}

pub(super) fn pins(connection: &Connection, owner: &str) -> Result<Vec<(SessionId, Time)>, StoreError> {
    let sql = "SELECT session_id, pinned_at_ms FROM pins WHERE owner_id = ?1 ORDER BY session_id";
    query_all(connection, sql, params![owner], |columns| Ok((columns.id()?, columns.time()?)))
}
