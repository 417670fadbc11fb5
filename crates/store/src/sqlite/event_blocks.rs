//! The blocks of cursors in which an owner has events, by the first word of their type.
//!
//! An index of events by owner and type would add an entry per event. A row of this table stands for all events of one
//! owner and word within a block of 2,048 cursors, so a turn adds almost no rows. Readers skip the blocks without a
//! row, and scan the others.
//!
//! Invariant: every event has its row. Pruning leaves rows without events; such a row costs a scan of its block.

use std::borrow::Cow;
use std::collections::HashMap;

use mainspring_core::SessionId;
use mainspring_kernel::store::{Commit, Row, StoreError};
use rusqlite::{Connection, OptionalExtension, Result, params};

use super::columns::{Id, int};
use super::read::query_one;

/// The number of cursors in a block, as a power of two. Migration 42 and `missing_rows!` have the same number.
pub(super) const BLOCK_BITS: u32 = 11;

/// The rows of the current block that the writer knows to exist.
#[derive(Debug, Default)]
pub(super) struct EventBlocks {
    block: u64,
    words_by_owner: HashMap<String, Vec<&'static str>>,
}

impl EventBlocks {
    /// Adds the row of an event, unless it is known to exist.
    pub(super) fn add(
        &mut self,
        connection: &Connection,
        owner: &str,
        kind: &'static str,
        seq: u64,
    ) -> Result<()> {
        let block = seq >> BLOCK_BITS;
        if self.block != block {
            self.block = block;
            self.words_by_owner.clear();
        }
        let word = word(kind);
        let known = self.words_by_owner.get_mut(owner);
        if known.as_ref().is_some_and(|words| words.contains(&word)) {
            return Ok(());
        }
        connection
            .prepare_cached("INSERT OR IGNORE INTO event_blocks (owner_id, word, block) VALUES (?1, ?2, ?3)")?
            .execute(params![owner, word, int(block)])?;
        match known {
            Some(words) => words.push(word),
            None => drop(self.words_by_owner.insert(owner.to_owned(), vec![word])),
        }
        Ok(())
    }

    /// Forgets all rows: a transaction that may have added some of them was rolled back.
    pub(super) fn forget(&mut self) {
        self.words_by_owner.clear();
    }
}

/// Returns the owner of a commit's session. Reads the database only if no row of the commit names the owner.
pub(super) fn owner_of<'a>(connection: &Connection, commit: &'a Commit) -> Result<Option<Cow<'a, str>>> {
    let session = commit.fence.session;
    let written = commit.rows.iter().find_map(|row| match row {
        Row::Session(row) if row.id == session => Some(row.owner.as_str()),
        Row::Run(run) if run.session == session => Some(run.owner.as_str()),
        _ => None,
    });
    match written {
        Some(owner) => Ok(Some(Cow::Borrowed(owner))),
        None => Ok(stored_owner(connection, session)?.map(Cow::Owned)),
    }
}

fn stored_owner(connection: &Connection, session: SessionId) -> Result<Option<String>> {
    let mut owner = connection.prepare_cached("SELECT owner_id FROM sessions WHERE session_id = ?1")?;
    owner.query_row([session.bytes()], |row| row.get(0)).optional()
}

/// Returns the part of an event type before its dot.
fn word(kind: &str) -> &str {
    kind.split_once('.').map_or(kind, |(word, _)| word)
}

/// Returns the distinct first words of `types`.
pub(super) fn words(types: &[&'static str]) -> Vec<&'static str> {
    let mut words: Vec<&str> = types.iter().map(|kind| word(kind)).collect();
    words.sort_unstable();
    words.dedup();
    words
}

/// Returns the first block from `block` on in which `owner` has events of one of these words.
pub(super) fn next_block(
    connection: &Connection,
    owner: &str,
    words: &[&'static str],
    block: u64,
) -> Result<Option<u64>, StoreError> {
    let sql = "SELECT min(block) FROM event_blocks WHERE owner_id = ?1 AND word = ?2 AND block >= ?3";
    let mut next: Option<u64> = None;
    for word in words {
        let params = params![owner, word, int(block)];
        let found = query_one(connection, sql, params, |columns| columns.get::<Option<i64>>())?.flatten();
        let found = found.map(i64::cast_unsigned);
        next = next.into_iter().chain(found).min();
        if next == Some(block) {
            break;
        }
    }
    Ok(next)
}

macro_rules! missing_rows {
    () => {
        "SELECT DISTINCT s.owner_id, substr(e.type, 1, instr(e.type, '.') - 1) AS word, e.event_seq >> 11 AS block
         FROM events AS e JOIN sessions AS s ON s.session_id = e.session_id
         EXCEPT SELECT owner_id, word, block FROM event_blocks"
    };
}

/// A rule of the verification: every event has its row.
pub(super) const ROWS_RULE: &str = concat!(
    "SELECT 'events ' || word || '.* of the owner ' || quote(owner_id) || ' from cursor ' || (block << 11)
       || ' on cannot be found by their type' FROM (",
    missing_rows!(),
    ")"
);

/// Adds the missing rows. Returns their number.
pub(super) fn rebuild(connection: &Connection) -> Result<u64> {
    let added = connection
        .execute(concat!("INSERT INTO event_blocks (owner_id, word, block) ", missing_rows!()), [])?;
    Ok(added as u64)
}

#[cfg(test)]
mod tests {
    use mainspring_core::{Body, Time};

    use super::*;
    use crate::sqlite::migrate;

    fn rows(connection: &Connection) -> Vec<(String, String, i64)> {
        let mut rows = connection.prepare("SELECT owner_id, word, block FROM event_blocks").unwrap();
        let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
        rows.collect::<Result<_>>().unwrap()
    }

    fn database() -> Connection {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate::migrate(&mut connection, Time(1)).unwrap();
        connection
    }

    #[test]
    fn a_block_has_one_row_per_owner_and_word() {
        let (connection, mut blocks) = (database(), EventBlocks::default());
        for (owner, kind, seq) in [
            ("ada", "run.queued", 1),
            ("ada", "run.running", 2),
            ("eve", "run.queued", 3),
            ("ada", "message.completed", 2_047),
            ("ada", "run.failed", 2_048),
        ] {
            blocks.add(&connection, owner, kind, seq).unwrap();
        }
        let row = |owner: &str, word: &str, block| (owner.to_owned(), word.to_owned(), block);
        let expected =
            [row("ada", "message", 0), row("ada", "run", 0), row("ada", "run", 1), row("eve", "run", 0)];
        assert_eq!(rows(&connection), expected);
        let next = |owner, words, from| next_block(&connection, owner, words, from).unwrap();
        assert_eq!(next("ada", &["run"], 0), Some(0));
        assert_eq!(next("ada", &["message", "run"], 1), Some(1));
        assert_eq!(next("ada", &["message"], 1), None);
        assert_eq!(next("eve", &["artifact"], 0), None);
    }

    #[test]
    fn a_row_that_was_rolled_back_is_added_again() {
        let (connection, mut blocks) = (database(), EventBlocks::default());
        connection.execute_batch("BEGIN").unwrap();
        blocks.add(&connection, "ada", "run.queued", 1).unwrap();
        connection.execute_batch("ROLLBACK").unwrap();
        blocks.forget();
        blocks.add(&connection, "ada", "run.queued", 1).unwrap();
        assert_eq!(rows(&connection).len(), 1);
    }

    #[test]
    fn every_type_has_a_word() {
        assert!(Body::TYPES.iter().all(|kind| kind.contains('.') && !word(kind).is_empty()));
        assert_eq!(words(&["run.queued", "message.completed", "run.failed"]), ["message", "run"]);
    }
}
