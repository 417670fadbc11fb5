//! The search index: made of what was written, a little at a time, never as part of a commit.
//!
//! What is not in it yet is few, and is read: search finds every commit that has returned.

use mainspring_core::Block;
use mainspring_kernel::search::{folded, searchable_text};
use rusqlite::{Connection, OptionalExtension, Result, params};

use super::columns::Columns;

/// Messages, and titles, that one step takes in.
const STEP: i64 = 64;
/// Bytes after which a step ends.
const STEP_BYTES: usize = 512 << 10;

/// Takes some of what was written since into the index; true while there is more.
pub(super) fn search_index(connection: &Connection) -> Result<bool> {
    let more = messages_index(connection)?;
    Ok(titles_index(connection)? || more)
}

fn messages_index(connection: &Connection) -> Result<bool> {
    let mut texts =
        connection.prepare_cached("SELECT id, content FROM messages WHERE id > ?1 ORDER BY id LIMIT ?2")?;
    let mut insert =
        connection.prepare_cached("INSERT INTO search_messages (rowid, text) VALUES (?1, ?2)")?;
    let begin = searched_to(connection)?;
    let mut rows = texts.query(params![begin, STEP])?;
    let (mut last, mut count, mut bytes) = (begin, 0, 0);
    while let Some(row) = rows.next()?.filter(|_| bytes < STEP_BYTES) {
        let mut columns = Columns::of(row);
        (last, count) = (columns.get()?, count + 1);
        let text = folded(&searchable_text(&columns.json::<Vec<Block>>()?));
        bytes += text.len();
        if !text.is_empty() {
            insert.execute(params![last, text])?;
        }
    }
    if last > begin {
        connection.prepare_cached("UPDATE meta SET value = ?1 WHERE name = 'searched'")?.execute([last])?;
    }
    Ok(count == STEP || bytes >= STEP_BYTES)
}

fn titles_index(connection: &Connection) -> Result<bool> {
    let mut titles = connection.prepare_cached(
        "SELECT session_id, title, searched_row FROM sessions INDEXED BY sessions_unsearched_idx
         WHERE title IS NOT searched_title LIMIT ?1",
    )?;
    type Titled = ([u8; 16], Option<String>, Option<i64>);
    let found = titles.query_map([STEP], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let found: Vec<Titled> = found.collect::<Result<_>>()?;
    for (session, title, known) in &found {
        if let Some(known) = known {
            connection.prepare_cached("DELETE FROM search_titles WHERE rowid = ?1")?.execute([known])?;
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
    Ok(found.len() as i64 == STEP)
}

/// Messages up to this id are in the index.
pub(super) fn searched_to(connection: &Connection) -> Result<i64> {
    let known = connection
        .prepare_cached("SELECT value FROM meta WHERE name = 'searched'")?
        .query_row([], |row| row.get(0))
        .optional()?;
    Ok(known.unwrap_or(0))
}

/// Removes messages that `which` selects by their ids, and their place in the index; how many they were.
pub(super) fn messages_remove(
    connection: &Connection,
    which: &str,
    params: impl rusqlite::Params,
) -> Result<i64> {
    let mut select = connection.prepare_cached(which)?;
    let ids: Vec<i64> = select.query_map(params, |row| row.get(0))?.collect::<Result<_>>()?;
    let searched = searched_to(connection)?;
    for id in &ids {
        if *id <= searched {
            connection.prepare_cached("DELETE FROM search_messages WHERE rowid = ?1")?.execute([id])?;
        }
        connection.prepare_cached("DELETE FROM messages WHERE id = ?1")?.execute([id])?;
    }
    if !ids.is_empty() {
        // The next message may get an id that was in use: it is to be taken in all the same.
        connection
            .prepare_cached(
                "UPDATE meta SET value = min(value, coalesce((SELECT max(id) FROM messages), 0)) WHERE name = 'searched'",
            )?
            .execute([])?;
    }
    Ok(ids.len() as i64)
}
