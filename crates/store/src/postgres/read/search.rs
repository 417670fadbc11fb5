//! Searches by reading the newest titles and messages of the owner; words are matched by the rules of the kernel.

use mainspring_core::{Damage, MessageId, Rows, Session, SessionId, Time};
use mainspring_kernel::search::{Query, searchable_text};
use mainspring_kernel::store::{FoundMessage, FoundMessages, StoreError};
use tokio_postgres::Row;

use super::super::values::{all, get, get_id, get_json, get_u64, int, list};
use super::{MESSAGE, Reader, SESSION, message, session};

/// The number of rows that are read at a time.
const PAGE_ROWS: usize = 500;
/// The maximum number of pages of messages that one search reads.
const SEARCH_PAGES: usize = 16;

pub(in super::super) async fn search_titles(
    reader: &Reader,
    owner: &str,
    query: &Query,
    before: Option<(Time, SessionId)>,
    limit: usize,
) -> Result<Rows<Session>, StoreError> {
    let sql = format!(
        "SELECT {SESSION} FROM sessions AS s WHERE owner_id = $1 AND status <> 'deleted'
           AND (last_activity_at, session_id) < ($2, $3)
         ORDER BY last_activity_at DESC, session_id DESC LIMIT {PAGE_ROWS}"
    );
    let mut next = before.unwrap_or((Time(i64::MAX), SessionId::from_bytes([255; 16])));
    let mut found = Rows::from(vec![]);
    loop {
        let rows = reader.rows(&sql, &[&owner, &next.0.0, &next.1.as_bytes().as_slice()]).await?;
        let page = list("session", &rows, session)?;
        let Some(last) = page.last() else { return Ok(found) };
        next = (last.last_activity_at, last.id);
        for session in page.items {
            let title = session.title.as_deref().filter(|_| query.covers(&session));
            if title.is_some_and(|title| query.matches(title)) {
                found.items.push(session);
            }
            if found.items.len() >= limit {
                return Ok(found);
            }
        }
        if rows.len() < PAGE_ROWS {
            return Ok(found);
        }
    }
}

pub(in super::super) async fn owners_sharing(reader: &Reader, org: &str) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT DISTINCT owner_id FROM sessions
               WHERE org_id = $1 AND visibility = 'org' AND status <> 'deleted' ORDER BY owner_id";
    all(&reader.rows(sql, &[&org]).await?, |row| get(row, 0))
}

pub(in super::super) async fn search_messages(
    reader: &Reader,
    owner: &str,
    query: &Query,
    before: Option<u64>,
    limit: usize,
) -> Result<FoundMessages, StoreError> {
    let sql = format!(
        "SELECT {MESSAGE}, m.arrival, s.session_id, s.body, m.message_id
         FROM messages AS m LEFT JOIN lines AS l ON l.line = m.line
         JOIN sessions AS s ON s.session_id = coalesce(l.session_id, m.session_id)
         WHERE s.owner_id = $1 AND s.status <> 'deleted' AND m.arrival < $2
           AND ($3::text IS NULL OR (s.org_id = $3 AND s.visibility = 'org'))
         ORDER BY m.arrival DESC LIMIT {PAGE_ROWS}"
    );
    let mut next = before.map_or(i64::MAX, int);
    let mut found = Rows::from(vec![]);
    for _ in 0..SEARCH_PAGES {
        let rows = reader.rows(&sql, &[&owner, &next, &query.org()]).await?;
        for row in &rows {
            let arrival = get_u64(row, 4)?;
            next = int(arrival);
            match found_message(row, arrival, query) {
                Ok(matching) => found.items.extend(matching),
                Err(StoreError::Corrupt(message)) => {
                    let id = Some(MessageId::from_bytes(get_id(row, 7)?).to_string());
                    let index = found.items.len();
                    found.damaged.push(Damage { kind: "message".into(), id, index, message });
                }
                Err(error) => return Err(error),
            }
            if found.items.len() >= limit {
                return Ok(FoundMessages { rows: found, searched_to: None });
            }
        }
        if rows.len() < PAGE_ROWS {
            return Ok(FoundMessages { rows: found, searched_to: None });
        }
    }
    Ok(FoundMessages { rows: found, searched_to: Some(next.cast_unsigned()) })
}

/// Reads a message of a search; `None` if the query does not match it.
fn found_message(row: &Row, arrival: u64, query: &Query) -> Result<Option<FoundMessage>, StoreError> {
    let message = message(row)?.message;
    if !query.matches(&searchable_text(&message.content)) {
        return Ok(None);
    }
    let (session, Session { title, .. }) = (SessionId::from_bytes(get_id(row, 5)?), get_json(row, 6)?);
    Ok(Some(FoundMessage { arrival, session, message, title }))
}
