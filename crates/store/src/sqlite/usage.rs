//! The stored data of owners. The triggers of migration 34 count it as it changes.

use mainspring_kernel::store::{OwnerUsage, StoreError};
use rusqlite::Connection;

use super::read::query_one;

/// Sums the stored data of each owner by reading everything.
macro_rules! recounted {
    () => {
        "SELECT owner_id, sum(bytes) AS bytes, sum(artifacts) AS artifacts FROM (
           SELECT s.owner_id, octet_length(m.content) AS bytes, 0 AS artifacts
           FROM messages AS m JOIN sessions AS s ON s.session_id = m.session_id
           UNION ALL
           SELECT s.owner_id, coalesce(a.size_bytes, 0), 1
           FROM artifacts AS a JOIN sessions AS s ON s.session_id = a.session_id
         ) GROUP BY owner_id"
    };
}

/// A rule of the verification: stored counts that are not 0 equal a new count.
pub(super) const COUNTS_RULE: &str = concat!(
    "SELECT 'the owner ' || quote(owner_id) || ' stores ' || bytes || ' bytes and ' || artifacts
       || ' artifacts, which are counted differently'
     FROM (SELECT owner_id, bytes, artifacts FROM owner_usage WHERE bytes <> 0 OR artifacts <> 0
           EXCEPT ",
    "SELECT owner_id, bytes, artifacts FROM (",
    recounted!(),
    "))"
);

pub(super) fn owner_usage(connection: &Connection, owner: &str) -> Result<OwnerUsage, StoreError> {
    let found = query_one(
        connection,
        "SELECT bytes, artifacts FROM owner_usage WHERE owner_id = ?1",
        [owner],
        |columns| Ok((columns.get::<i64>()?, columns.get::<i64>()?)),
    )?;
    // A negative count means that something was subtracted twice.
    let count = |count: i64| u64::try_from(count).unwrap_or(0);
    Ok(found.map_or_else(OwnerUsage::default, |(bytes, artifacts)| OwnerUsage {
        bytes: count(bytes),
        artifacts: count(artifacts),
    }))
}

/// Counts everything again. Returns the number of owners whose counts were wrong.
pub(super) fn recount(connection: &Connection) -> rusqlite::Result<u64> {
    let wrong: i64 =
        connection.query_row(&format!("SELECT count(*) FROM ({COUNTS_RULE})"), [], |row| row.get(0))?;
    connection.execute("DELETE FROM owner_usage", [])?;
    connection.execute(concat!("INSERT INTO owner_usage (owner_id, bytes, artifacts) ", recounted!()), [])?;
    Ok(wrong.cast_unsigned())
}
