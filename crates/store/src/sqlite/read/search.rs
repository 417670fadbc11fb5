//! Reads of the search index, and of what is not in it yet.

use std::sync::Arc;

use mainspring_core::Session;
use mainspring_kernel::search::{Query, searchable_text};
use mainspring_kernel::store::{FoundMessage, StoreError};
use rusqlite::{Connection, Result, params};

use super::super::columns::Columns;
use super::super::error::of_read;
use super::super::search::searched_to;
use super::{all, limit, message, session, session_columns};

/// What the index is asked: each word, its last token as a beginning.
fn asked(query: &Query) -> String {
    let words = query.words().iter().map(|word| format!("\"{}\" *", word.join(" ")));
    words.collect::<Vec<_>>().join(" ")
}

pub(in super::super) fn search_titles(
    connection: &Connection,
    owner: &str,
    query: &Query,
    many: usize,
) -> Result<Vec<Session>, StoreError> {
    let indexed = concat!(
        "SELECT ",
        session_columns!(),
        " FROM sessions WHERE session_id IN (SELECT session_id FROM search_titles WHERE search_titles MATCH ?2) \
           AND owner_id = ?1 AND status <> 'deleted' AND title IS searched_title \
         ORDER BY last_activity_at_ms DESC, session_id DESC LIMIT ?3"
    );
    let rest = concat!(
        "SELECT ",
        session_columns!(),
        " FROM sessions INDEXED BY sessions_unsearched_idx \
         WHERE title IS NOT searched_title AND title IS NOT NULL AND owner_id = ?1 AND status <> 'deleted'"
    );
    let mut found = all(connection, indexed, params![owner, asked(query), limit(many)], session)?;
    let rest = all(connection, rest, [owner], session)?;
    found.extend(
        rest.into_iter().filter(|session| session.title.as_deref().is_some_and(|title| query.matches(title))),
    );
    found.sort_by_key(|session| std::cmp::Reverse((session.last_activity_at, session.id)));
    found.truncate(many);
    Ok(found)
}

pub(in super::super) fn search_messages(
    connection: &Connection,
    owner: &str,
    query: &Query,
    before: Option<u64>,
    many: usize,
) -> Result<Vec<FoundMessage>, StoreError> {
    // A message belongs to whoever opened its line; without a place, to whoever made it.
    macro_rules! found {
        ($from:literal) => {
            concat!(
                "SELECT id, s.session_id, s.title, ",
                "message_id, messages.session_id, run_id, role, messages.status, line, pos, content, \
                 messages.created_at_ms, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_nanos",
                $from,
                " CROSS JOIN sessions AS s ON s.session_id = \
                    coalesce((SELECT l.session_id FROM lines AS l WHERE l.line = messages.line), messages.session_id) \
                  WHERE id < ?2 AND s.owner_id = ?1 AND s.status <> 'deleted'"
            )
        };
    }
    let rest = concat!(found!(" FROM messages"), " AND id > ?3 ORDER BY id DESC");
    let indexed = concat!(
        found!(" FROM search_messages AS f CROSS JOIN messages ON id = f.rowid"),
        " AND search_messages MATCH ?3 AND f.rowid < ?2 ORDER BY f.rowid DESC LIMIT ?4"
    );
    let before = before.map_or(i64::MAX, |before| i64::try_from(before).unwrap_or(i64::MAX));
    let searched_to = searched_to(connection).map_err(|error| of_read(&error))?;
    let mut hits = found_by_reading(connection, rest, params![owner, before, searched_to], query, many)
        .map_err(|error| of_read(&error))?;
    let left = limit(many - hits.len());
    if left > 0 {
        hits.extend(all(connection, indexed, params![owner, before, asked(query), left], found)?);
    }
    Ok(hits)
}

fn found(columns: &mut Columns<'_>) -> Result<FoundMessage> {
    let (place, session, title) = (columns.number()?, columns.id()?, columns.get()?);
    Ok(FoundMessage { arrival: place, session, title, message: Arc::clone(&message(columns)?.message) })
}

/// The first `many` of what `sql` selects that `query` finds, one at a time: there may be much to read.
fn found_by_reading(
    connection: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
    query: &Query,
    many: usize,
) -> Result<Vec<FoundMessage>> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    let mut hits = vec![];
    while let Some(row) = rows.next()?.filter(|_| hits.len() < many) {
        let read = found(&mut Columns::of(row))?;
        if query.matches(&searchable_text(&read.message.content)) {
            hits.push(read);
        }
    }
    Ok(hits)
}
