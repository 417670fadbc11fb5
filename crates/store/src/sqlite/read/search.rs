//! Searches the index, and the messages and titles that are not indexed yet.

use std::ops::Range;
use std::sync::Arc;

use mainspring_core::{Damage, Rows, Session, SessionId, Time};
use mainspring_kernel::search::{Query, searchable_text};
use mainspring_kernel::store::{FoundMessage, FoundMessages, StoreError};
use rusqlite::types::Null;
use rusqlite::{Connection, Result, params};

use super::super::columns::{Columns, Id};
use super::super::error::read_error;
use super::super::search::{BUCKET_BITS, last_indexed, last_untagged, tag};
use super::{message, page_start, prepare, query_stored, rows, session, session_columns, sql_limit, stored};

/// The most buckets that one read searches: 2,097,152 messages.
const SEARCH_BUCKETS: usize = 512;
/// The number of latest sessions whose titles are compared before the index is asked.
const RECENT_TITLES: usize = 128;
/// Beyond that number, further sessions are read while at least one in this many matches.
const RECENT_TITLES_PER_HIT: usize = 32;

/// Builds the match expression of the index: every word, with its last token as a prefix. Each token begins with `tag`.
fn match_expression(query: &Query, tag: &str) -> String {
    let phrase = |word: &Vec<String>| word.iter().map(|token| format!("{tag}{token}")).collect::<Vec<_>>();
    let words = query.words().iter().map(|word| format!("\"{}\" *", phrase(word).join(" ")));
    words.collect::<Vec<_>>().join(" ")
}

pub(in super::super) fn search_titles(
    connection: &Connection,
    owner: &str,
    query: &Query,
    before: Option<(Time, SessionId)>,
    limit: usize,
) -> Result<Rows<Session>, StoreError> {
    let found = search_recent_titles(connection, owner, query, before, limit);
    if let Some(found) = found.map_err(|error| read_error(&error))? {
        return Ok(found.into());
    }
    // Few titles match here: otherwise the latest sessions would have filled the page. Without the cross join, SQLite
    // reads all sessions of the owner.
    let indexed = concat!(
        "SELECT ",
        session_columns!(),
        " FROM (SELECT DISTINCT session_id AS found FROM search_titles WHERE search_titles MATCH ?2) AS hits \
           CROSS JOIN sessions ON session_id = found \
         WHERE owner_id = ?1 AND status <> 'deleted' AND title IS searched_title \
           AND (last_activity_at_ms, session_id) < (?4, ?5) \
           AND (?6 IS NULL OR (org_id = ?6 AND visibility = 'org')) \
         ORDER BY last_activity_at_ms DESC, session_id DESC LIMIT ?3"
    );
    let unindexed = concat!(
        "SELECT ",
        session_columns!(),
        " FROM sessions INDEXED BY sessions_unsearched_idx \
         WHERE title IS NOT searched_title AND title IS NOT NULL AND owner_id = ?1 AND status <> 'deleted'"
    );
    let (time, id) = before.map_or((i64::MAX, [0xff; 16]), |(time, id)| (time.0, id.bytes()));
    let words = match_expression(query, "");
    let mut found = rows(limit, |limit| {
        let params = params![owner, words, sql_limit(limit), time, id, query.org()];
        query_stored(connection, indexed, params, session)
    })?;
    let unindexed: Rows<Session> =
        query_stored(connection, unindexed, [owner], session)?.into_iter().collect();
    found.items.extend(
        unindexed
            .items
            .into_iter()
            .filter(|session| query.covers(session))
            .filter(|session| session.title.as_deref().is_some_and(|title| query.matches(title)))
            .filter(|session| before.is_none_or(|before| (session.last_activity_at, session.id) < before)),
    );
    found.items.sort_by_key(|session| std::cmp::Reverse((session.last_activity_at, session.id)));
    found.items.truncate(limit);
    // A damaged title may or may not match. The first page names the damaged sessions that are not indexed.
    found.damaged.extend(unindexed.damaged.into_iter().filter(|_| before.is_none()));
    found.damaged.iter_mut().for_each(|damage| damage.index = damage.index.min(found.items.len()));
    Ok(found)
}

/// Reads the page from the latest sessions if many of their titles match. The index would return all matches of a common
/// word, and in another order. Returns `None` if the index must be asked.
fn search_recent_titles(
    connection: &Connection,
    owner: &str,
    query: &Query,
    before: Option<(Time, SessionId)>,
    limit: usize,
) -> Result<Option<Vec<Session>>> {
    let sql = concat!(
        "SELECT ",
        session_columns!(),
        " FROM sessions WHERE owner_id = ?1 AND status <> 'deleted' AND (last_activity_at_ms, session_id) < (?2, ?3) \
         ORDER BY last_activity_at_ms DESC, session_id DESC"
    );
    let (time, id) = page_start(before);
    let mut statement = prepare(connection, sql)?;
    let mut rows = statement.query(params![owner, time, id])?;
    let (mut found, mut read) = (vec![], 0);
    while let Some(row) = rows.next()? {
        // Only the index knows whether the title of a damaged row matched.
        let Ok(session) = stored(session(&mut Columns::new(row)))? else { return Ok(None) };
        read += 1;
        let title = session.title.as_deref().filter(|_| query.covers(&session));
        if title.is_some_and(|title| query.matches(title)) {
            found.push(session);
        }
        if found.len() == limit {
            return Ok(Some(found));
        }
        if read >= RECENT_TITLES && found.len() * RECENT_TITLES_PER_HIT < read {
            return Ok(None);
        }
    }
    Ok(Some(found))
}

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
              WHERE id < ?2 AND s.owner_id = ?1 AND s.status <> 'deleted' \
                AND (?6 IS NULL OR (s.org_id = ?6 AND s.visibility = 'org'))"
        )
    };
}

pub(in super::super) fn search_messages(
    connection: &Connection,
    owner: &str,
    query: &Query,
    before: Option<u64>,
    limit: usize,
) -> Result<FoundMessages, StoreError> {
    let before = before.map_or(i64::MAX, |before| i64::try_from(before).unwrap_or(i64::MAX));
    let fail = |error| read_error(&error);
    let last_indexed = last_indexed(connection).map_err(fail)?;
    let unindexed = concat!(select_hits!(" FROM messages"), " AND id > ?3 ORDER BY id DESC");
    let params = params![owner, before, last_indexed, Null, Null, query.org()];
    let mut hits = scan_messages(connection, unindexed, params, query, limit).map_err(fail)?;
    let last_untagged = last_untagged(connection).map_err(fail)?;
    let mut search = IndexSearch { connection, owner, query, limit, hits: &mut hits };
    // The messages before this one are not searched yet.
    let mut end = before.min(last_indexed.saturating_add(1));
    let mut buckets = 0;
    while !search.is_full() && end > last_untagged + 1 && buckets < SEARCH_BUCKETS {
        let begin = ((end - 1) >> BUCKET_BITS << BUCKET_BITS).max(last_untagged + 1);
        search.read(begin..end, &tag(owner, begin))?;
        (end, buckets) = (begin, buckets + 1);
    }
    if !search.is_full() && end > 1 && end <= last_untagged + 1 {
        search.read(0..end, "")?;
        end = 0;
    }
    let searched_to = (!search.is_full() && end > 1).then_some(end.cast_unsigned());
    titles_read(connection, &mut hits)?;
    Ok(FoundMessages { rows: hits, searched_to })
}

/// A search of the index.
struct IndexSearch<'a> {
    connection: &'a Connection,
    owner: &'a str,
    query: &'a Query,
    limit: usize,
    hits: &'a mut Rows<FoundMessage>,
}

impl IndexSearch<'_> {
    fn is_full(&self) -> bool {
        self.hits.len() >= self.limit
    }

    /// Adds the hits among the messages in `ids`, whose words have `tag`.
    fn read(&mut self, ids: Range<i64>, tag: &str) -> Result<(), StoreError> {
        let indexed = concat!(
            select_hits!(" FROM search_messages AS f CROSS JOIN messages ON id = f.rowid"),
            " AND search_messages MATCH ?3 AND f.rowid >= ?4 AND f.rowid < ?2 ORDER BY f.rowid DESC LIMIT ?5"
        );
        let (words, already) = (match_expression(self.query, tag), self.hits.len());
        let more = rows(self.limit - already, |limit| {
            let params = params![self.owner, ids.end, words, ids.start, sql_limit(limit), self.query.org()];
            query_stored(self.connection, indexed, params, search_hit)
        })?;
        self.hits.items.extend(more.items);
        let damaged = more.damaged.into_iter();
        self.hits.damaged.extend(damaged.map(|damage| Damage { index: damage.index + already, ..damage }));
        Ok(())
    }
}

/// Adds the titles of the sessions. A title is read with the whole row, whose checksum covers it.
fn titles_read(connection: &Connection, hits: &mut Rows<FoundMessage>) -> Result<(), StoreError> {
    let sql = concat!("SELECT ", session_columns!(), " FROM sessions WHERE session_id = ?1");
    for (index, hit) in hits.items.iter_mut().enumerate() {
        match query_stored(connection, sql, [hit.session.bytes()], session)?.pop() {
            Some(Ok(session)) => hit.title = session.title,
            Some(Err(damage)) => hits.damaged.push(Damage { index, ..damage }),
            None => {}
        }
    }
    hits.damaged.sort_by_key(|damage| damage.index);
    Ok(())
}

fn search_hit(columns: &mut Columns<'_>) -> Result<FoundMessage> {
    let (arrival, session) = (columns.number()?, columns.id()?);
    Ok(FoundMessage { arrival, session, title: None, message: Arc::clone(&message(columns)?.message) })
}

/// Returns the first `limit` messages of `sql` that match `query`, and the damaged messages before them, which may
/// match. Reads them one at a time, because there may be many.
fn scan_messages(
    connection: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
    query: &Query,
    limit: usize,
) -> Result<Rows<FoundMessage>> {
    let mut statement = prepare(connection, sql)?;
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

#[cfg(test)]
mod tests {
    use mainspring_core::Time;

    use super::super::super::{migrate, search};
    use super::*;

    /// A store in which 3,000,000 messages have arrived, of which two are left.
    fn database() -> Connection {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate::migrate(&mut connection, Time(1)).unwrap();
        connection
            .execute_batch(
                r#"PRAGMA foreign_keys = OFF;
                   INSERT INTO sessions (session_id, owner_id, agent_definition_id, status, surface_kind,
                     default_adapter_id, metadata_json, version, created_at_ms, updated_at_ms, last_activity_at_ms)
                   VALUES (zeroblob(16), 'ada', 'generalist', 'open', 'api', 'script', '{}', 1, 1, 1, 1);
                   INSERT INTO messages (id, message_id, session_id, role, status, created_at_ms, content)
                   SELECT value, randomblob(16), zeroblob(16), 'user', 'completed', 1, '[{"type":"text","text":"a fox"}]'
                   FROM json_each('[5, 3000000]');"#,
            )
            .unwrap();
        while let Some(mut text) = search::unindexed(&connection).unwrap() {
            search::search_index(&connection, &mut text, || false).unwrap();
        }
        connection
    }

    #[test]
    fn one_read_searches_a_bounded_number_of_buckets() {
        let (connection, query) = (database(), Query::parse("fox").unwrap());
        let read = |before| {
            let found = search_messages(&connection, "ada", &query, before, 9).unwrap();
            (found.rows.iter().map(|hit| hit.arrival).collect::<Vec<_>>(), found.searched_to)
        };
        let (newest, searched_to) = read(None);
        let bucket = 3_000_000 >> BUCKET_BITS;
        assert_eq!((newest, searched_to), (vec![3_000_000], Some((bucket - 511) << BUCKET_BITS)));
        assert_eq!(read(searched_to), (vec![5], None));
        let full = search_messages(&connection, "ada", &query, None, 1).unwrap();
        assert_eq!((full.rows.len(), full.searched_to), (1, None), "a full page ends at its last hit");
    }
}
