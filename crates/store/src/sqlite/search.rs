//! The search index, updated in small steps after commits and never as part of one.
//!
//! The few messages and titles not yet indexed are searched by reading them, so that a search finds every commit that
//! has returned.

use mainspring_core::Block;
use mainspring_kernel::search::{folded, searchable_text};
use rusqlite::{Connection, OptionalExtension, Result, params};

use super::columns::Columns;

/// The most messages, and the most titles, indexed in one step.
const STEP_ROWS: i64 = 64;
/// The amount of text after which a step ends.
const STEP_BYTES: usize = 512 << 10;

/// Indexes some of the new messages and titles. Returns true while there are more.
pub(super) fn search_index(connection: &Connection) -> Result<bool> {
    let more = messages_index(connection)?;
    Ok(titles_index(connection)? || more)
}

fn messages_index(connection: &Connection) -> Result<bool> {
    let mut texts =
        connection.prepare_cached("SELECT id, content FROM messages WHERE id > ?1 ORDER BY id LIMIT ?2")?;
    let mut insert =
        connection.prepare_cached("INSERT INTO search_messages (rowid, text) VALUES (?1, ?2)")?;
    let begin = last_indexed(connection)?;
    let mut rows = texts.query(params![begin, STEP_ROWS])?;
    let (mut last, mut count, mut bytes) = (begin, 0, 0);
    while let Some(row) = rows.next()?.filter(|_| bytes < STEP_BYTES) {
        let mut columns = Columns::new(row);
        (last, count) = (columns.get()?, count + 1);
        // Damaged content has no text: it must not stop the index of the messages after it.
        let content = columns.json::<Vec<Block>>().unwrap_or_default();
        let text = folded(&searchable_text(&content));
        bytes += text.len();
        if !text.is_empty() {
            insert.execute(params![last, text])?;
        }
    }
    if last > begin {
        connection.prepare_cached("UPDATE meta SET value = ?1 WHERE name = 'searched'")?.execute([last])?;
    }
    Ok(count == STEP_ROWS || bytes >= STEP_BYTES)
}

fn titles_index(connection: &Connection) -> Result<bool> {
    let mut titles = connection.prepare_cached(
        "SELECT session_id, title, searched_row FROM sessions INDEXED BY sessions_unsearched_idx
         WHERE title IS NOT searched_title LIMIT ?1",
    )?;
    /// The session, its title, and the row of its indexed title.
    type TitleRow = ([u8; 16], Option<String>, Option<i64>);
    let found = titles.query_map([STEP_ROWS], |row| {
        // A title that is not valid text is not indexed.
        let title = row.get_ref(1)?.as_str().ok().map(str::to_owned);
        Ok((row.get(0)?, title, row.get(2)?))
    })?;
    let found: Vec<TitleRow> = found.collect::<Result<_>>()?;
    for (session, title, indexed_row) in &found {
        if let Some(indexed_row) = indexed_row {
            connection
                .prepare_cached("DELETE FROM search_titles WHERE rowid = ?1")?
                .execute([indexed_row])?;
        }
        let row = match title {
            Some(title) => Some(
                connection
                    .prepare_cached("INSERT INTO search_titles (session_id, text) VALUES (?1, ?2)")?
                    .insert(params![session, folded(title)])?,
            ),
            None => None,
        };
        connection
            .prepare_cached(
                "UPDATE sessions SET searched_title = title, searched_row = ?2 WHERE session_id = ?1",
            )?
            .execute(params![session, row])?;
    }
    Ok(found.len() as i64 == STEP_ROWS)
}

/// Returns the id of the last indexed message.
pub(super) fn last_indexed(connection: &Connection) -> Result<i64> {
    let last = connection
        .prepare_cached("SELECT value FROM meta WHERE name = 'searched'")?
        .query_row([], |row| row.get(0))
        .optional()?;
    Ok(last.unwrap_or(0))
}

/// Removes the messages whose ids `select_ids` returns, also from the index. Returns their number.
pub(super) fn messages_delete(
    connection: &Connection,
    select_ids: &str,
    params: impl rusqlite::Params,
) -> Result<i64> {
    let mut select = connection.prepare_cached(select_ids)?;
    let ids: Vec<i64> = select.query_map(params, |row| row.get(0))?.collect::<Result<_>>()?;
    let last_indexed = last_indexed(connection)?;
    for id in &ids {
        if *id <= last_indexed {
            connection.prepare_cached("DELETE FROM search_messages WHERE rowid = ?1")?.execute([id])?;
        }
        connection.prepare_cached("DELETE FROM messages WHERE id = ?1")?.execute([id])?;
    }
    if !ids.is_empty() {
        // The next message may reuse the id of a removed one, and must be indexed.
        connection
            .prepare_cached(
                "UPDATE meta SET value = min(value, coalesce((SELECT max(id) FROM messages), 0)) WHERE name = 'searched'",
            )?
            .execute([])?;
    }
    Ok(ids.len() as i64)
}
