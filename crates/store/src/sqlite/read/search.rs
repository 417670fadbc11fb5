//! Searches the index, and the messages and titles that are not indexed yet.

use std::sync::Arc;

use mainspring_core::{Damage, Rows, Session, SessionId, Time};
use mainspring_kernel::search::{Query, searchable_text};
use mainspring_kernel::store::{FoundMessage, StoreError};
use rusqlite::{Connection, Result, params};

use super::super::columns::{Columns, Id};
use super::super::error::read_error;
use super::super::search::last_indexed;
use super::{message, query_stored, rows, session, session_columns, sql_limit, stored};

/// Builds the match expression of the index: every word, with its last token as a prefix.
fn match_expression(query: &Query) -> String {
    let words = query.words().iter().map(|word| format!("\"{}\" *", word.join(" ")));
    words.collect::<Vec<_>>().join(" ")
}

pub(in super::super) fn search_titles(
    connection: &Connection,
    owner: &str,
    query: &Query,
    before: Option<(Time, SessionId)>,
    limit: usize,
) -> Result<Rows<Session>, StoreError> {
    let indexed = concat!(
        "SELECT ",
        session_columns!(),
        " FROM sessions WHERE session_id IN (SELECT session_id FROM search_titles WHERE search_titles MATCH ?2) \
           AND owner_id = ?1 AND status <> 'deleted' AND title IS searched_title \
           AND (last_activity_at_ms, session_id) < (?4, ?5) \
         ORDER BY last_activity_at_ms DESC, session_id DESC LIMIT ?3"
    );
    let unindexed = concat!(
        "SELECT ",
        session_columns!(),
        " FROM sessions INDEXED BY sessions_unsearched_idx \
         WHERE title IS NOT searched_title AND title IS NOT NULL AND owner_id = ?1 AND status <> 'deleted'"
    );
    let (time, id) = before.map_or((i64::MAX, [0xff; 16]), |(time, id)| (time.0, id.bytes()));
    let words = match_expression(query);
    let mut found = rows(limit, |limit| {
        let params = params![owner, words, sql_limit(limit), time, id];
        query_stored(connection, indexed, params, session)
    })?;
    let unindexed: Rows<Session> =
        query_stored(connection, unindexed, [owner], session)?.into_iter().collect();
    found.items.extend(
        unindexed
            .items
            .into_iter()
            .filter(|session| session.title.as_deref().is_some_and(|title| query.matches(title)))
            .filter(|session| before.is_none_or(|before| (session.last_activity_at, session.id) < before)),
    );
    found.items.sort_by_key(|session| std::cmp::Reverse((session.last_activity_at, session.id)));
    found.items.truncate(limit);
    // Nobody knows whether a damaged title matches. The first page names the sessions that are not indexed.
    found.damaged.extend(unindexed.damaged.into_iter().filter(|_| before.is_none()));
    found.damaged.iter_mut().for_each(|damage| damage.index = damage.index.min(found.items.len()));
    Ok(found)
}

pub(in super::super) fn search_messages(
    connection: &Connection,
    owner: &str,
    query: &Query,
    before: Option<u64>,
    limit: usize,
) -> Result<Rows<FoundMessage>, StoreError> {
    // A message belongs to the session that opened its line, or without a line to the session that created it.
    macro_rules! select_hits {
        ($from:literal) => {
            concat!(
                "SELECT id, s.session_id, \
                   message_id, messages.session_id, run_id, role, messages.status, line, pos, input_tokens, \
                   output_tokens, cache_read_tokens, cache_write_tokens, cost_nanos, messages.created_at_ms, content, \
                   agent, external_id, messages.checksum",
                $from,
                " CROSS JOIN sessions AS s ON s.session_id = \
                    coalesce((SELECT l.session_id FROM lines AS l WHERE l.line = messages.line), messages.session_id) \
                  WHERE id < ?2 AND s.owner_id = ?1 AND s.status <> 'deleted'"
            )
        };
    }
    let unindexed = concat!(select_hits!(" FROM messages"), " AND id > ?3 ORDER BY id DESC");
    let indexed = concat!(
        select_hits!(" FROM search_messages AS f CROSS JOIN messages ON id = f.rowid"),
        " AND search_messages MATCH ?3 AND f.rowid < ?2 ORDER BY f.rowid DESC LIMIT ?4"
    );
    let before = before.map_or(i64::MAX, |before| i64::try_from(before).unwrap_or(i64::MAX));
    let last_indexed = last_indexed(connection).map_err(|error| read_error(&error))?;
    let mut hits = scan_messages(connection, unindexed, params![owner, before, last_indexed], query, limit)
        .map_err(|error| read_error(&error))?;
    let (unindexed, remaining) = (hits.len(), limit - hits.len());
    if remaining > 0 {
        let more = rows(remaining, |limit| {
            let params = params![owner, before, match_expression(query), sql_limit(limit)];
            query_stored(connection, indexed, params, search_hit)
        })?;
        hits.items.extend(more.items);
        let damaged = more.damaged.into_iter();
        hits.damaged.extend(damaged.map(|damage| Damage { index: damage.index + unindexed, ..damage }));
    }
    // The title is read with the whole row, whose checksum covers it.
    let sql = concat!("SELECT ", session_columns!(), " FROM sessions WHERE session_id = ?1");
    for (index, hit) in hits.items.iter_mut().enumerate() {
        match query_stored(connection, sql, [hit.session.bytes()], session)?.pop() {
            Some(Ok(session)) => hit.title = session.title,
            Some(Err(damage)) => hits.damaged.push(Damage { index, ..damage }),
            None => {}
        }
    }
    hits.damaged.sort_by_key(|damage| damage.index);
    Ok(hits)
}

fn search_hit(columns: &mut Columns<'_>) -> Result<FoundMessage> {
    let (arrival, session) = (columns.number()?, columns.id()?);
    Ok(FoundMessage { arrival, session, title: None, message: Arc::clone(&message(columns)?.message) })
}

/// Returns the first `limit` messages of `sql` that match `query`, and the damaged ones before them, of which nobody knows
/// whether they match. Reads them one at a time, because there may be many.
fn scan_messages(
    connection: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
    query: &Query,
    limit: usize,
) -> Result<Rows<FoundMessage>> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    let mut hits = Rows::from(vec![]);
    while let Some(row) = rows.next()?.filter(|_| hits.len() < limit) {
        match stored(search_hit(&mut Columns::new(row)))? {
            Ok(hit) if query.matches(&searchable_text(&hit.message.content)) => hits.items.push(hit),
            Ok(_) => {}
            Err(damage) => hits.damaged.push(Damage { index: hits.len(), ..damage }),
        }
    }
    Ok(hits)
}
