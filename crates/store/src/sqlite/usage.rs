//! The stored data of owners.
//!
//! The table `owner_usage` counts the artifacts of each owner as they change, by triggers, and the messages up to the
//! row `messages_counted` of `meta`, the id of the last of them. The writer counts later messages from time to time:
//! counting each one in its own commit would add a page to every commit. A read adds the few that are not counted yet.
//!
//! Invariant: the last counted message exists, so that no new message gets an id that counts as counted.

use mainspring_kernel::store::{OwnerUsage, StoreError};
use rusqlite::Connection;

use super::read::query_one;

/// The number of messages that are counted at once.
pub(super) const COUNTED_AT_ONCE: usize = 64;

/// The id of the last counted message.
macro_rules! counted {
    () => {
        "(SELECT value FROM meta WHERE name = 'messages_counted')"
    };
}

/// Sums the counted data of each owner by reading everything.
macro_rules! recounted {
    () => {
        concat!(
            "SELECT owner_id, sum(bytes) AS bytes, sum(artifacts) AS artifacts FROM (
               SELECT s.owner_id, octet_length(m.content) AS bytes, 0 AS artifacts
               FROM messages AS m JOIN sessions AS s ON s.session_id = m.session_id WHERE m.id <= ",
            counted!(),
            " UNION ALL
               SELECT s.owner_id, coalesce(a.size_bytes, 0), 1
               FROM artifacts AS a JOIN sessions AS s ON s.session_id = a.session_id
             ) GROUP BY owner_id"
        )
    };
}

/// A rule of the verification: the stored counts equal a new count.
pub(super) const COUNTS_RULE: &str = concat!(
    "WITH counted AS (SELECT owner_id, bytes, artifacts FROM owner_usage WHERE bytes <> 0 OR artifacts <> 0),
       stored AS (SELECT * FROM (",
    recounted!(),
    ") WHERE bytes <> 0 OR artifacts <> 0)
     SELECT 'the owner ' || quote(owner_id) || ' stores ' || coalesce(stored.bytes, 0) || ' bytes and '
       || coalesce(stored.artifacts, 0) || ' artifacts, but ' || coalesce(counted.bytes, 0) || ' and '
       || coalesce(counted.artifacts, 0) || ' are counted'
     FROM counted FULL JOIN stored USING (owner_id)
     WHERE counted.bytes IS NOT stored.bytes OR counted.artifacts IS NOT stored.artifacts"
);

/// Sums the stored data of an owner: what is counted, and the messages that are not counted yet.
pub(super) fn owner_usage(connection: &Connection, owner: &str) -> Result<OwnerUsage, StoreError> {
    let found = query_one(
        connection,
        concat!(
            "SELECT sum(bytes), sum(artifacts) FROM (
               SELECT bytes, artifacts FROM owner_usage WHERE owner_id = ?1
               UNION ALL
               SELECT octet_length(m.content), 0
               FROM messages AS m CROSS JOIN sessions AS s ON s.session_id = m.session_id
               WHERE m.id > ",
            counted!(),
            " AND s.owner_id = ?1)"
        ),
        [owner],
        |columns| Ok((columns.get::<Option<i64>>()?, columns.get::<Option<i64>>()?)),
    )?;
    // A negative count means that something was subtracted twice.
    let count = |count: Option<i64>| u64::try_from(count.unwrap_or(0)).unwrap_or(0);
    Ok(found.map_or_else(OwnerUsage::default, |(bytes, artifacts)| OwnerUsage {
        bytes: count(bytes),
        artifacts: count(artifacts),
    }))
}

/// Counts the messages that are not counted yet.
pub(super) fn messages_count(connection: &Connection) -> rusqlite::Result<()> {
    connection
        .prepare_cached(concat!(
            "INSERT INTO owner_usage (owner_id, bytes, artifacts)
             SELECT s.owner_id, sum(octet_length(m.content)), 0
             FROM messages AS m CROSS JOIN sessions AS s ON s.session_id = m.session_id
             WHERE m.id > ",
            counted!(),
            " GROUP BY s.owner_id
             ON CONFLICT (owner_id) DO UPDATE SET bytes = bytes + excluded.bytes"
        ))?
        .execute([])?;
    all_counted(connection)
}

/// Counts everything again. Returns the number of owners whose counts were wrong.
pub(super) fn recount(connection: &Connection) -> rusqlite::Result<u64> {
    let wrong: i64 =
        connection.query_row(&format!("SELECT count(*) FROM ({COUNTS_RULE})"), [], |row| row.get(0))?;
    all_counted(connection)?;
    connection.execute("DELETE FROM owner_usage", [])?;
    connection.execute(concat!("INSERT INTO owner_usage (owner_id, bytes, artifacts) ", recounted!()), [])?;
    Ok(wrong.cast_unsigned())
}

/// Records that all messages are counted.
fn all_counted(connection: &Connection) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO meta (name, value) SELECT 'messages_counted', coalesce(max(id), 0) FROM messages WHERE true
             ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        )?
        .execute([])
        .map(drop)
}

#[cfg(test)]
mod tests {
    use mainspring_core::Time;

    use super::super::{migrate, search};
    use super::*;

    fn execute(connection: &Connection, sql: &str) {
        connection.execute_batch(sql).unwrap();
    }

    fn session_insert(connection: &Connection, id: u8, owner: &str) {
        let insert = format!(
            "INSERT INTO sessions (session_id, owner_id, agent_definition_id, status, surface_kind, default_adapter_id,
               metadata_json, version, created_at_ms, updated_at_ms, last_activity_at_ms)
             VALUES ({0}, '{owner}', 'generalist', 'open', 'api', 'script', '{{}}', 1, 1, 1, 1);
             INSERT INTO lines (line, session_id, end_pos, abandoned) VALUES ({id}, {0}, 0, 0)",
            blob(id),
        );
        execute(connection, &insert);
    }

    fn message_insert(connection: &Connection, id: u8, session: u8, content: &str) {
        let insert = format!(
            "INSERT INTO messages (message_id, session_id, role, status, line, pos, created_at_ms, content)
             VALUES ({}, {}, 'user', 'completed', {session}, {id}, 1, '{content}')",
            blob(id),
            blob(session),
        );
        execute(connection, &insert);
    }

    fn blob(id: u8) -> String {
        format!("x'{}'", format!("{id:02x}").repeat(16))
    }

    fn delete(connection: &Connection, id: u8) {
        let select = format!("SELECT id FROM messages WHERE message_id = {}", blob(id));
        search::messages_delete(connection, &select, []).unwrap();
    }

    /// The bytes of an owner, before and after the messages that are not counted yet are counted. Both are equal and agree
    /// with a new count.
    fn bytes(connection: &Connection, owner: &str) -> u64 {
        let before = owner_usage(connection, owner).unwrap();
        let transaction = connection.unchecked_transaction().unwrap();
        messages_count(&transaction).unwrap();
        assert_eq!(owner_usage(&transaction, owner).unwrap(), before);
        transaction.rollback().unwrap();
        assert!(!connection.prepare(COUNTS_RULE).unwrap().exists([]).unwrap());
        before.bytes
    }

    #[test]
    fn messages_count_before_and_after_they_are_added_to_the_count() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate::migrate(&mut connection, Time(1)).unwrap();
        for (session, owner) in [(1, "ada"), (2, "eve")] {
            session_insert(&connection, session, owner);
        }
        message_insert(&connection, 1, 1, "four");
        message_insert(&connection, 2, 2, "elevenbytes");
        assert_eq!([bytes(&connection, "ada"), bytes(&connection, "eve")], [4, 11]);
        messages_count(&connection).unwrap();
        message_insert(&connection, 3, 1, "seven b");
        assert_eq!([bytes(&connection, "ada"), bytes(&connection, "eve")], [11, 11]);
        // One that is counted and one that is not.
        execute(&connection, "UPDATE messages SET content = 'longer than before' WHERE id IN (1, 3)");
        assert_eq!([bytes(&connection, "ada"), bytes(&connection, "eve")], [36, 11]);
        delete(&connection, 3);
        assert_eq!([bytes(&connection, "ada"), bytes(&connection, "eve")], [18, 11]);
        // A fork may still read the messages of a removed session: a counted one and one that is not.
        message_insert(&connection, 4, 2, "ninebytes");
        execute(&connection, &format!("DELETE FROM sessions WHERE session_id = {}", blob(2)));
        assert_eq!([bytes(&connection, "ada"), bytes(&connection, "eve")], [18, 0]);
        delete(&connection, 2);
        delete(&connection, 4);
        assert_eq!([bytes(&connection, "ada"), bytes(&connection, "eve")], [18, 0]);
    }

    #[test]
    fn a_message_with_the_id_of_a_removed_one_counts() {
        for removed in [[1, 2, 3], [3, 2, 1], [2, 3, 1]] {
            let mut connection = Connection::open_in_memory().unwrap();
            migrate::migrate(&mut connection, Time(1)).unwrap();
            session_insert(&connection, 1, "ada");
            (1..=3).for_each(|id| message_insert(&connection, id, 1, "counted"));
            messages_count(&connection).unwrap();
            for (count, id) in (1..).zip(removed) {
                delete(&connection, id);
                message_insert(&connection, 10 + id, 1, "new");
                assert_eq!(bytes(&connection, "ada"), 21 - 4 * count, "{removed:?}");
            }
        }
    }

    #[test]
    fn counts_that_are_wrong_or_missing_are_found_and_counted_again() {
        for damage in [
            "DELETE FROM owner_usage",
            "UPDATE owner_usage SET bytes = 0",
            "UPDATE owner_usage SET bytes = 5",
        ] {
            let mut connection = Connection::open_in_memory().unwrap();
            migrate::migrate(&mut connection, Time(1)).unwrap();
            session_insert(&connection, 1, "ada");
            message_insert(&connection, 1, 1, "four");
            messages_count(&connection).unwrap();
            execute(&connection, damage);
            assert!(connection.prepare(COUNTS_RULE).unwrap().exists([]).unwrap(), "{damage}");
            assert_eq!(recount(&connection).unwrap(), 1, "{damage}");
            assert_eq!(bytes(&connection, "ada"), 4, "{damage}");
        }
    }

    #[test]
    fn messages_that_an_earlier_version_counted_are_not_counted_again() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate::migrate_until(&mut connection, 63, Time(1)).unwrap();
        session_insert(&connection, 1, "ada");
        message_insert(&connection, 1, 1, "four");
        migrate::migrate(&mut connection, Time(1)).unwrap();
        assert_eq!(bytes(&connection, "ada"), 4);
        message_insert(&connection, 2, 1, "and more");
        assert_eq!(bytes(&connection, "ada"), 12);
        delete(&connection, 1);
        assert_eq!(bytes(&connection, "ada"), 8);
    }
}
