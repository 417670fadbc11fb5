//! The start of a store: each start has a number and a history of its own.

use std::path::Path;

use mainspring_core::Time;
use rusqlite::Connection;

use super::{backup, check, wal};

/// The number of histories that are kept.
const KEPT_HISTORIES: i64 = 1_000;

/// Increments the number of boots and renews the token, so that a WAL or a copy from before this start is never combined
/// with one from after it. Returns the number of boots and the last cursor ever assigned. [`merge`] must follow. The
/// connection does not sync its commits afterwards.
pub(super) fn boot(
    path: &Path,
    connection: &Connection,
    check_due: bool,
    now: Time,
) -> rusqlite::Result<(u64, u64)> {
    // The merge syncs the WAL before it writes the file: a sync of this commit would be a second one.
    connection.execute_batch("PRAGMA synchronous = NORMAL; BEGIN IMMEDIATE")?;
    let boot = connection.query_row(
        "INSERT INTO meta VALUES ('boot', 1) ON CONFLICT (name) DO UPDATE SET value = value + 1 RETURNING value",
        [],
        |row| row.get::<_, i64>(0),
    )?;
    check::crash_check_write(connection, check_due)?;
    backup::remove_old_copies(path, connection, now)?;
    wal::token_renew(connection)?;
    let last = backup::last_cursor(connection)?.0;
    history_begin(connection, last)?;
    connection.execute_batch("COMMIT")?;
    Ok((boot.cast_unsigned(), last))
}

/// Merges the WAL with the new token into the file.
pub(super) fn merge(connection: &Connection) -> rusqlite::Result<()> {
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}

/// Begins the history of this process after the cursor `last`. Forgets all but the latest histories, so that a database
/// that is opened for each command does not grow.
fn history_begin(connection: &Connection, last: u64) -> rusqlite::Result<()> {
    let begin = "INSERT INTO histories (token, after_seq) VALUES (lower(hex(randomblob(8))), ?1)";
    connection.execute(begin, [last.cast_signed()])?;
    let forget = "DELETE FROM histories WHERE id <= (SELECT max(id) FROM histories) - ?1";
    connection.execute(forget, [KEPT_HISTORIES]).map(drop)
}
