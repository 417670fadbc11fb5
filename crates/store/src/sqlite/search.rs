//! The search index, updated in small steps after commits and never as part of one.
//!
//! The few messages and titles not yet indexed are searched by reading them, so that a search finds every commit that
//! has returned.
//!
//! Every word of a message is indexed with a tag that stands for the message's owner and for its bucket of 4,096
//! consecutive messages. FTS5 reads all matches of a prefix before it returns the first, so a search for a common word
//! would read the whole index. With tags, a search reads one bucket after the other, newest first, until its page is full,
//! and skips the words of nearly all other owners. Messages that earlier versions have indexed have no tags, and are
//! searched at once, after all others.

use std::collections::VecDeque;

use mainspring_core::Block;
use mainspring_kernel::search::{folded, searchable_text};
use rusqlite::{Connection, OptionalExtension, Result, params};

use super::columns::Columns;

/// The most messages that are read for one step.
const STEP_ROWS: i64 = 64;
/// The amount of text after which a step ends.
const STEP_BYTES: usize = 512 << 10;
/// The messages, and the amount of text, that a step indexes before it stops for urgent work. Each transaction of the
/// index has a fixed cost, so smaller steps would cost more than they save.
const ROWS_BEFORE_YIELD: usize = 16;
const BYTES_BEFORE_YIELD: usize = 64 << 10;
/// The most titles indexed in one step.
const STEP_TITLES: i64 = 16;

/// Sessions whose title is not indexed.
const UNINDEXED_TITLES: &str = "SELECT session_id, title, searched_row FROM sessions INDEXED BY sessions_unsearched_idx \
     WHERE title IS NOT searched_title LIMIT ?1";

/// The number of messages in a bucket, as a power of two.
pub(super) const BUCKET_BITS: u32 = 12;
/// The numbers of characters of a tag: first those for the owner, then those for the bucket.
const OWNER_DIGITS: usize = 2;
const BUCKET_DIGITS: usize = 4;

/// Returns the tag of the words of the message in row `id`. Owners may share a tag: hits are compared with the owner.
pub(super) fn tag(owner: &str, id: i64) -> String {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    // FNV-1a, which never changes: tags are stored.
    let hash = owner.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut tag = String::with_capacity(OWNER_DIGITS + BUCKET_DIGITS);
    for (number, digits) in
        [(hash ^ (hash >> 32), OWNER_DIGITS), (id.cast_unsigned() >> BUCKET_BITS, BUCKET_DIGITS)]
    {
        for place in (0..digits as u32).rev() {
            let digit = number / 36_u64.pow(place) % 36;
            tag.push(char::from(DIGITS[digit as usize]));
        }
    }
    tag
}

/// Adds `tag` to each word of a folded text.
fn tagged(text: &str, tag: &str) -> String {
    let mut tagged = String::with_capacity(text.len() * 3);
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        if !tagged.is_empty() {
            tagged.push(' ');
        }
        tagged.push_str(tag);
        tagged.push_str(word);
    }
    tagged
}

/// Text that is not indexed yet. A reader prepares it, so that the writer only adds it.
#[derive(Debug)]
pub(super) struct Unindexed {
    /// The last indexed message when this was read.
    after: i64,
    /// The row and the id of each message, and its folded text with tags.
    messages: VecDeque<(i64, [u8; 16], String)>,
    has_titles: bool,
    /// True if there are messages after these.
    has_more: bool,
}

/// Reads some of the messages that are not indexed yet. Returns `None` if everything is indexed.
pub(super) fn unindexed(connection: &Connection) -> Result<Option<Unindexed>> {
    let after = last_indexed(connection)?;
    // A message belongs to the session that opened its line, or without a line to the session that created it.
    let mut texts = connection.prepare_cached(
        "SELECT id, message_id, (SELECT owner_id FROM sessions AS s WHERE s.session_id =
           coalesce((SELECT l.session_id FROM lines AS l WHERE l.line = messages.line), messages.session_id)), content
         FROM messages WHERE id > ?1 ORDER BY id LIMIT ?2",
    )?;
    let mut rows = texts.query(params![after, STEP_ROWS])?;
    let (mut messages, mut bytes) = (VecDeque::new(), 0);
    while let Some(row) = rows.next()?.filter(|_| bytes < STEP_BYTES) {
        let mut columns = Columns::new(row);
        let (id, message) = (columns.get()?, columns.get()?);
        // A message whose session is gone cannot be found.
        let owner = columns.get::<Option<String>>()?;
        // Damaged content counts as empty, so that later messages are indexed.
        let content = columns.json::<Vec<Block>>().unwrap_or_default();
        let text = match owner {
            Some(owner) => tagged(&folded(&searchable_text(&content)), &tag(&owner, id)),
            None => String::new(),
        };
        bytes += text.len();
        messages.push_back((id, message, text));
    }
    let has_titles = connection.prepare_cached(UNINDEXED_TITLES)?.exists([1])?;
    if messages.is_empty() && !has_titles {
        return Ok(None);
    }
    let has_more = messages.len() as i64 == STEP_ROWS || bytes >= STEP_BYTES;
    Ok(Some(Unindexed { after, messages, has_titles, has_more }))
}

/// The outcome of an index step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IndexStep {
    /// The step stopped for urgent work. The rest of the text is indexed later.
    Stopped,
    /// The text is indexed, or must be read again.
    Done {
        /// True if there is more to index.
        has_more: bool,
    },
}

/// Adds `text` and some of the new titles to the index, and removes the indexed messages from `text`. Stops soon after
/// `is_urgent` returns true.
pub(super) fn search_index(
    connection: &Connection,
    text: &mut Unindexed,
    is_urgent: impl Fn() -> bool,
) -> Result<IndexStep> {
    // Messages may have been deleted since they were read.
    if last_indexed(connection)? != text.after {
        return Ok(IndexStep::Done { has_more: true });
    }
    let are_all_indexed = messages_index(connection, text, &is_urgent)?;
    if are_all_indexed && !text.messages.is_empty() {
        return Ok(IndexStep::Stopped);
    }
    let has_more_titles = text.has_titles && titles_index(connection)?;
    Ok(IndexStep::Done { has_more: !are_all_indexed || text.has_more || has_more_titles })
}

/// Adds messages to the index. Returns false if it stopped at a message that was deleted since: another message may
/// have its row.
fn messages_index(
    connection: &Connection,
    text: &mut Unindexed,
    is_urgent: impl Fn() -> bool,
) -> Result<bool> {
    let mut same = connection.prepare_cached("SELECT 1 FROM messages WHERE id = ?1 AND message_id = ?2")?;
    let mut insert =
        connection.prepare_cached("INSERT INTO search_messages (rowid, text) VALUES (?1, ?2)")?;
    let (mut last, mut are_all_indexed) = (text.after, true);
    let (mut rows, mut bytes) = (0, 0);
    while let Some((id, message, words)) = text.messages.pop_front() {
        if !same.exists(params![id, message])? {
            are_all_indexed = false;
            break;
        }
        if !words.is_empty() {
            insert.execute(params![id, words])?;
        }
        last = id;
        (rows, bytes) = (rows + 1, bytes + words.len());
        if (rows >= ROWS_BEFORE_YIELD || bytes >= BYTES_BEFORE_YIELD) && is_urgent() {
            break;
        }
    }
    if last > text.after {
        connection.prepare_cached("UPDATE meta SET value = ?1 WHERE name = 'searched'")?.execute([last])?;
        text.after = last;
    }
    Ok(are_all_indexed)
}

fn titles_index(connection: &Connection) -> Result<bool> {
    let mut titles = connection.prepare_cached(UNINDEXED_TITLES)?;
    /// The session, its title, and the row of its indexed title.
    type TitleRow = ([u8; 16], Option<String>, Option<i64>);
    let found = titles.query_map([STEP_TITLES], |row| {
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
    Ok(found.len() as i64 == STEP_TITLES)
}

/// Returns the id of the last indexed message.
pub(super) fn last_indexed(connection: &Connection) -> Result<i64> {
    let last = connection
        .prepare_cached("SELECT value FROM meta WHERE name = 'searched'")?
        .query_row([], |row| row.get(0))
        .optional()?;
    Ok(last.unwrap_or(0))
}

/// Returns the id of the last message that is indexed without tags.
pub(super) fn last_untagged(connection: &Connection) -> Result<i64> {
    let last = connection
        .prepare_cached("SELECT value FROM meta WHERE name = 'searched_untagged'")?
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
        // The next message may reuse the id of a removed one, and must be indexed, with tags.
        connection
            .prepare_cached(
                "UPDATE meta SET value = min(value, coalesce((SELECT max(id) FROM messages), 0))
                 WHERE name = 'searched' OR name = 'searched_untagged'",
            )?
            .execute([])?;
    }
    Ok(ids.len() as i64)
}

#[cfg(test)]
mod tests {
    use mainspring_core::Time;

    use super::*;
    use crate::sqlite::migrate;

    fn message_insert(connection: &Connection, id: u8, text: &str) {
        let content = format!(r#"[{{"type":"text","text":"{text}"}}]"#);
        connection
            .execute(
                "INSERT INTO messages (message_id, session_id, role, status, created_at_ms, content)
                 VALUES (?1, ?1, 'user', 'completed', 1, ?2)",
                params![[id; 16], content],
            )
            .unwrap();
    }

    /// Adds the session of the message with this id.
    fn session_insert(connection: &Connection, id: u8) {
        connection
            .execute(
                "INSERT INTO sessions (session_id, owner_id, agent_definition_id, status, surface_kind,
                   default_adapter_id, metadata_json, version, created_at_ms, updated_at_ms, last_activity_at_ms)
                 VALUES (?1, 'ada', 'generalist', 'open', 'api', 'script', '{}', 1, 1, 1, 1)",
                [[id; 16]],
            )
            .unwrap();
    }

    fn found(connection: &Connection, word: &str) -> Vec<i64> {
        let mut search =
            connection.prepare("SELECT rowid FROM search_messages WHERE search_messages MATCH ?1").unwrap();
        let word = format!("{}{word}", tag("ada", 1));
        search.query_map([word], |row| row.get(0)).unwrap().collect::<Result<_>>().unwrap()
    }

    #[test]
    fn a_tag_names_the_owner_and_the_bucket() {
        assert_eq!(tag("ada", 1), tag("ada", 4_095));
        let tags = [tag("ada", 1), tag("ada", 4_096), tag("eve", 1), tag("ada", i64::MAX)];
        assert!(tags.iter().all(|tag| tag.len() == OWNER_DIGITS + BUCKET_DIGITS), "{tags:?}");
        assert_eq!(tags.iter().collect::<std::collections::HashSet<_>>().len(), tags.len(), "{tags:?}");
        assert_eq!(tagged("the  fox", "xy"), "xythe xyfox");
        assert_eq!(tagged("", "xy"), "");
    }

    #[test]
    fn a_message_in_the_row_of_a_deleted_one_is_indexed() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate::migrate(&mut connection, Time(1)).unwrap();
        connection.execute_batch("PRAGMA foreign_keys = OFF").unwrap();
        (1..=3).for_each(|id| session_insert(&connection, id));
        message_insert(&connection, 1, "first");
        message_insert(&connection, 2, "deleted");
        let mut read = unindexed(&connection).unwrap().unwrap();
        messages_delete(&connection, "SELECT id FROM messages WHERE id = 2", []).unwrap();
        message_insert(&connection, 3, "second");
        let step = |text: &mut Unindexed| search_index(&connection, text, || false).unwrap();
        assert_eq!(step(&mut read), IndexStep::Done { has_more: true });
        let mut rest = unindexed(&connection).unwrap().unwrap();
        assert_eq!(step(&mut rest), IndexStep::Done { has_more: false });
        assert!(unindexed(&connection).unwrap().is_none());
        let words = ["first", "second", "deleted"].map(|word| found(&connection, word));
        assert_eq!(words, [vec![1], vec![2], vec![]]);
    }

    #[test]
    fn a_step_stops_for_urgent_work_and_continues_where_it_stopped() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate::migrate(&mut connection, Time(1)).unwrap();
        connection.execute_batch("PRAGMA foreign_keys = OFF").unwrap();
        let count = u8::try_from(2 * ROWS_BEFORE_YIELD + 1).unwrap();
        for id in 1..=count {
            session_insert(&connection, id);
            message_insert(&connection, id, "word");
        }
        let mut text = unindexed(&connection).unwrap().unwrap();
        let mut indexed = vec![];
        while search_index(&connection, &mut text, || true).unwrap() == IndexStep::Stopped {
            indexed.push(found(&connection, "word").len());
        }
        assert_eq!(indexed, [ROWS_BEFORE_YIELD, 2 * ROWS_BEFORE_YIELD]);
        assert_eq!(found(&connection, "word").len(), usize::from(count));
        assert!(unindexed(&connection).unwrap().is_none());
    }

    #[test]
    fn a_step_that_was_stopped_is_read_again_after_a_deletion() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate::migrate(&mut connection, Time(1)).unwrap();
        connection.execute_batch("PRAGMA foreign_keys = OFF").unwrap();
        let count = u8::try_from(ROWS_BEFORE_YIELD + 2).unwrap();
        for id in 1..=count {
            session_insert(&connection, id);
            message_insert(&connection, id, "word");
        }
        let mut text = unindexed(&connection).unwrap().unwrap();
        assert_eq!(search_index(&connection, &mut text, || true).unwrap(), IndexStep::Stopped);
        messages_delete(&connection, "SELECT id FROM messages WHERE id >= ?1", [ROWS_BEFORE_YIELD as i64])
            .unwrap();
        let step = search_index(&connection, &mut text, || false).unwrap();
        assert_eq!(step, IndexStep::Done { has_more: true });
        assert_eq!(found(&connection, "word").len(), ROWS_BEFORE_YIELD - 1);
    }
}
