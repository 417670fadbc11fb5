//! Reads the state of a session on all branches, for an export. `sqlite/read/tree_state.rs` explains which inherited
//! entries are listed.

use mainspring_core::{LineId, MessageId, Rows, SessionId, StateChange, Time};
use mainspring_kernel::store::{StateHistoryOf, StoreError, TreeState};
use tokio_postgres::Row;

use super::super::values::{all, get, get_json, get_maybe_id, get_maybe_json, get_u64, int, list, sql_limit};
use super::Reader;

/// The ancestor lines of a fork. `$1` is the fork, `$2` the last event before its creation.
const ABOVE: &str = "WITH RECURSIVE above(line, last, child, child_opened) AS (
    SELECT base_line, base_pos, session_id, $2::bigint FROM sessions WHERE session_id = $1 AND base_line IS NOT NULL
    UNION ALL
    SELECT l.parent_line, l.parent_pos, l.opened_by, l.opened_cursor FROM above JOIN lines AS l ON l.line = above.line
    WHERE l.parent_line IS NOT NULL)";

pub(in super::super) async fn line_orders(
    reader: &Reader,
    session: SessionId,
) -> Result<Vec<(LineId, i64)>, StoreError> {
    let sql = format!(
        "{ABOVE} SELECT line, opened_cursor FROM lines
           WHERE session_id = $1 AND end_pos > coalesce(parent_pos + 1, 0)
         UNION SELECT line, opened_cursor FROM lines WHERE line IN (SELECT line FROM above)"
    );
    let rows = reader.rows(&sql, &[&session.as_bytes().as_slice(), &0_i64]).await?;
    all(&rows, |row| Ok((LineId(get(row, 0)?), get(row, 1)?)))
}

pub(in super::super) async fn state_changes(
    reader: &Reader,
    of: &StateHistoryOf,
    (key, version): &(String, u64),
    limit: usize,
) -> Result<Rows<StateChange>, StoreError> {
    let sql = "SELECT change FROM state_history WHERE place = $1 AND (key, version) > ($2, $3)
               ORDER BY key, version LIMIT $4";
    let params =
        [&of.place() as &dyn super::super::values::Param, &key.as_str(), &int(*version), &sql_limit(limit)];
    list("state", &reader.rows(sql, &params).await?, |row| get_json(row, 0))
}

/// Lists the entries in the order of key and version, after the given key and version.
pub(in super::super) async fn tree_state(
    reader: &Reader,
    session: SessionId,
    (key, version): &(String, u64),
    limit: usize,
) -> Result<Rows<TreeState>, StoreError> {
    let fork = session.as_bytes().as_slice();
    let row = reader.row("SELECT min(cursor) - 1 FROM events WHERE session_id = $1", &[&fork]).await?;
    let created: Option<i64> = row.map_or(Ok(None), |row| get(&row, 0))?;
    let created = created.unwrap_or(i64::MAX);
    let (key, version, rows_limit) = (key.as_str(), int(*version), sql_limit(limit));
    let own = "SELECT s.key, s.version, s.updated_at, s.value, m.message_id, s.aside,
                 CASE WHEN l.opened_by <> s.session_id THEN least(s.cursor, $2) ELSE s.cursor END
               FROM session_state AS s LEFT JOIN messages AS m ON m.line = s.line AND m.pos = s.pos
                 LEFT JOIN lines AS l ON l.line = s.line
               WHERE s.session_id = $1 AND (s.key, s.version) > ($3, $4)
                 AND (s.line IS NULL OR m.message_id IS NOT NULL)
               ORDER BY s.key, s.version LIMIT $5";
    let inherited = format!(
        "{ABOVE} SELECT s.key, s.version, s.updated_at, s.value, m.message_id, s.aside,
           CASE WHEN s.session_id = l.opened_by THEN s.cursor ELSE least(s.cursor, above.child_opened) END
         FROM above JOIN lines AS l ON l.line = above.line JOIN session_state AS s
           ON s.line = above.line AND s.pos <= above.last OR s.line IS NULL AND l.parent_line IS NULL
           LEFT JOIN messages AS m ON m.line = s.line AND m.pos = s.pos
         WHERE s.session_id <> $1 AND s.cursor <= $2 AND (s.key, s.version) > ($3, $4)
           AND (s.session_id = l.opened_by OR s.line IS NOT NULL AND s.session_id = above.child)
           AND (s.line IS NULL OR m.message_id IS NOT NULL)
         ORDER BY s.key, s.version LIMIT $5"
    );
    let mut found = reader.rows(own, &[&fork, &created, &key, &version, &rows_limit]).await?;
    let base = "SELECT 1 FROM sessions WHERE session_id = $1 AND base_line IS NOT NULL";
    if reader.row(base, &[&fork]).await?.is_some() {
        found.extend(reader.rows(&inherited, &[&fork, &created, &key, &version, &rows_limit]).await?);
    }
    let Rows { mut items, damaged } = list("state", &found, entry)?;
    // The sort is stable: of two entries with the same version, the session's own comes first.
    items.sort_by(|a: &TreeState, b| (&a.key, a.version).cmp(&(&b.key, b.version)));
    items.dedup_by(|later, first| (&later.key, later.version) == (&first.key, first.version));
    items.truncate(limit);
    Ok(Rows { items, damaged })
}

fn entry(row: &Row) -> Result<TreeState, StoreError> {
    Ok(TreeState {
        key: get(row, 0)?,
        version: get_u64(row, 1)?,
        at: Time(get(row, 2)?),
        value: get_maybe_json(row, 3)?,
        message: get_maybe_id(row, 4)?.map(MessageId::from_bytes),
        aside: get(row, 5)?,
        order: get(row, 6)?,
    })
}
