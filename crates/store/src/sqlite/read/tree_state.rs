//! Reads the state of a session on all branches, for an export.
//!
//! On an inherited line, a fork sees two kinds of entries, if they were written before the fork was created:
//! entries of the session that opened the line, and entries that the session of the child line wrote there as
//! a guest. The entries of a guest apply to all descendants of the line, so they get the order at which the
//! child line was opened.

use mainspring_core::{LineId, Rows, SessionId};
use mainspring_kernel::store::{StoreError, TreeState};
use rusqlite::{Connection, params};

use super::super::checksum;
use super::super::columns::{Columns, Id, int};
use super::{query_all, query_one, query_stored, sql_limit, state_columns};

/// The ancestor lines of a fork, each with its last inherited position, and with the session and the opening of its
/// child line. `?1` is the fork, `?2` the last event before its creation.
macro_rules! lines_above {
    () => {
        "WITH RECURSIVE above(line, last, child, child_opened) AS (
           SELECT base_line, base_pos, session_id, ?2 FROM sessions WHERE session_id = ?1 AND base_line IS NOT NULL
           UNION ALL
           SELECT l.parent_line, l.parent_pos, l.opened_by, l.opened_seq FROM above JOIN lines AS l ON l.line = above.line
           WHERE l.parent_line IS NOT NULL) "
    };
}

/// The columns of an entry after its own: its message, and whether it is aside.
macro_rules! place_columns {
    () => {
        "(SELECT message_id FROM messages AS m WHERE m.line = s.line AND m.pos = s.pos), s.aside"
    };
}

/// Leaves out entries at positions without a message.
macro_rules! is_placed {
    () => {
        "(s.line IS NULL OR EXISTS (SELECT 1 FROM messages AS m WHERE m.line = s.line AND m.pos = s.pos))"
    };
}

pub(in super::super) fn line_orders(
    connection: &Connection,
    session: SessionId,
) -> Result<Vec<(LineId, i64)>, StoreError> {
    let sql = concat!(
        lines_above!(),
        "SELECT line, opened_seq FROM lines WHERE session_id = ?1 AND end_pos > coalesce(parent_pos + 1, 0)
         UNION SELECT line, opened_seq FROM lines WHERE line IN (SELECT line FROM above)"
    );
    query_all(connection, sql, params![session.bytes(), 0], |columns| {
        Ok((LineId(columns.get()?), columns.get()?))
    })
}

/// Lists the entries by key and version, after the given ones.
pub(in super::super) fn tree_state(
    connection: &Connection,
    session: SessionId,
    (key, version): &(String, u64),
    limit: usize,
) -> Result<Rows<TreeState>, StoreError> {
    let sql = "SELECT min(event_seq) - 1 FROM events WHERE session_id = ?1";
    let created = query_one(connection, sql, [session.bytes()], |columns| columns.get::<Option<i64>>())?;
    let created = created.flatten().unwrap_or(i64::MAX);
    let params = params![session.bytes(), created, key, int(*version), sql_limit(limit)];
    let own = concat!(
        "SELECT ",
        state_columns!(),
        ", ",
        place_columns!(),
        ", CASE WHEN s.line IS NOT NULL AND s.away = 1 THEN min(s.seq, ?2) ELSE s.seq END
         FROM session_state AS s WHERE s.session_id = ?1 AND (s.key, s.version) > (?3, ?4) AND ",
        is_placed!(),
        " ORDER BY s.key, s.version LIMIT ?5"
    );
    let inherited = concat!(
        lines_above!(),
        "SELECT ",
        state_columns!(),
        ", ",
        place_columns!(),
        ", CASE WHEN s.session_id = l.opened_by THEN s.seq ELSE min(s.seq, above.child_opened) END
         FROM above CROSS JOIN lines AS l ON l.line = above.line CROSS JOIN session_state AS s
           ON s.line = above.line AND s.pos <= above.last OR s.line IS NULL AND l.parent_line IS NULL
         WHERE s.session_id <> ?1 AND s.seq <= ?2 AND (s.key, s.version) > (?3, ?4)
           AND (s.session_id = l.opened_by OR s.line IS NOT NULL AND s.session_id = above.child) AND ",
        is_placed!(),
        " ORDER BY s.key, s.version LIMIT ?5"
    );
    let base = "SELECT 1 FROM sessions WHERE session_id = ?1 AND base_line IS NOT NULL";
    let is_fork = query_one(connection, base, [session.bytes()], |columns| columns.get::<i64>())?.is_some();
    let mut stored = query_stored(connection, own, params, entry)?;
    if is_fork {
        stored.extend(query_stored(connection, inherited, params, entry)?);
    }
    let (mut items, mut damaged) = (vec![], vec![]);
    for read in stored {
        match read {
            Ok(state) => items.push(state),
            Err(damage) => damaged.push(damage),
        }
    }
    // The sort is stable: of two entries with the same version, the session's own comes first.
    items.sort_by(|a: &TreeState, b| (&a.key, a.version).cmp(&(&b.key, b.version)));
    items.dedup_by(|later, first| (&later.key, later.version) == (&first.key, first.version));
    items.truncate(limit);
    Ok(Rows { items, damaged })
}

fn entry(columns: &mut Columns<'_>) -> rusqlite::Result<TreeState> {
    columns.check(&checksum::STATE)?;
    let (key, version, at) = (columns.get()?, columns.number()?, columns.time()?);
    let value = columns.maybe_json()?;
    // Skips the checksum.
    columns.skip(1);
    let (message, aside, order) = (columns.maybe_id()?, columns.get()?, columns.get()?);
    Ok(TreeState { key, version, value, at, message, aside, order })
}
