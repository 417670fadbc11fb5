//! Migrations: numbered, forward only, applied by one of several processes that start together.

use std::sync::Once;

use tokio_postgres::Client;

use super::PostgresError;
use super::error::describe;
use crate::copy::UNFINISHED_COPY;

/// `migrations/postgres/NNNN_name.sql`, in order. A released migration is never edited.
const MIGRATIONS: &[(usize, &str)] = &[
    (1, include_str!("../../migrations/postgres/0001_tables.sql")),
    (2, include_str!("../../migrations/postgres/0002_readers.sql")),
    (3, include_str!("../../migrations/postgres/0003_edge_records.sql")),
    (4, include_str!("../../migrations/postgres/0004_cluster.sql")),
    (6, include_str!("../../migrations/postgres/0006_owner_keys_and_lost_events.sql")),
    (7, include_str!("../../migrations/postgres/0007_homes.sql")),
    (9, include_str!("../../migrations/postgres/0009_placement.sql")),
    (10, include_str!("../../migrations/postgres/0010_permits.sql")),
    (11, include_str!("../../migrations/postgres/0011_announced_waits.sql")),
    (12, include_str!("../../migrations/postgres/0012_draining.sql")),
    (13, include_str!("../../migrations/postgres/0013_blob_claims.sql")),
    (14, include_str!("../../migrations/postgres/0014_server_settings.sql")),
    (15, include_str!("../../migrations/postgres/0015_owner_blocks.sql")),
    (16, include_str!("../../migrations/postgres/0016_checkpoints.sql")),
    (17, include_str!("../../migrations/postgres/0017_server_versions.sql")),
];

/// The version of the tables and records that this program writes. A change of the form of records also gets a version
/// if an earlier program would misread the new form, or lose data when it writes such records.
pub(super) const SCHEMA_VERSION: usize = MIGRATIONS[MIGRATIONS.len() - 1].0;

/// The lock under which migrations are applied: the bytes of "mainspri".
const LOCK: i64 = 0x6d61_696e_7370_7269;

/// Brings the tables up to date. Refuses a newer database or an unfinished copy, without changing it.
pub(super) async fn migrate(client: &Client) -> Result<(), PostgresError> {
    let fail = |error: tokio_postgres::Error| PostgresError::Database(describe(&error));
    // One transaction: a process that waits for the lock then sees all changes of the process that held it.
    client
        .batch_execute(&format!(
            "BEGIN; SELECT pg_advisory_xact_lock({LOCK}); \
             CREATE TABLE IF NOT EXISTS mainspring_schema (version bigint NOT NULL)"
        ))
        .await
        .map_err(fail)?;
    let applied = match is_unfinished_copy(client).await {
        Ok(false) => apply(client).await,
        Ok(true) => Err(PostgresError::UnfinishedCopy),
        Err(error) => Err(fail(error)),
    };
    let end = if applied.is_ok() { "COMMIT" } else { "ROLLBACK" };
    client.batch_execute(end).await.map_err(fail)?;
    applied
}

/// Returns whether the database is the target of a copy that has not ended. The table of versions must exist.
pub(super) async fn is_unfinished_copy(client: &Client) -> Result<bool, tokio_postgres::Error> {
    let sql = format!("SELECT EXISTS (SELECT 1 FROM mainspring_schema WHERE version = {UNFINISHED_COPY})");
    client.query_typed_one(&sql, &[]).await?.try_get(0)
}

/// The condition that a later version than this program has changed the tables or records.
pub(super) fn is_changed_by_later() -> String {
    format!(
        "EXISTS (SELECT 1 FROM mainspring_schema WHERE version > {SCHEMA_VERSION} AND version <> {UNFINISHED_COPY})"
    )
}

/// The condition that the server `n`, a row of `node_leases`, knows the tables and records of all versions so far.
pub(super) fn is_of_latest_version(n: &str) -> String {
    format!(
        "NOT EXISTS (SELECT 1 FROM mainspring_schema AS v
                     WHERE v.version > {n}.schema_version AND v.version <> {UNFINISHED_COPY})"
    )
}

/// Returns true if this program may not begin to work on the database, though it has checked the tables before: a copy into
/// the database has begun since, or a later version has changed the tables.
pub(super) async fn is_closed(client: &Client) -> Result<bool, tokio_postgres::Error> {
    static WARNING: Once = Once::new();
    let sql = format!("SELECT {}", is_changed_by_later());
    let is_changed: bool = client.query_typed_one(&sql, &[]).await?.try_get(0)?;
    if is_changed {
        // Only once: the caller retries.
        WARNING.call_once(|| {
            tracing::warn!(
                "a server of a later version has changed the tables: this one does not begin to work; start it again with \
                 the later version"
            );
        });
    }
    Ok(is_changed || is_unfinished_copy(client).await?)
}

/// Checks that the database has the tables of this version, and changes nothing. Returns false if it has none.
pub(super) async fn check(client: &Client) -> Result<bool, PostgresError> {
    let fail = |error: tokio_postgres::Error| PostgresError::Database(describe(&error));
    let exists = "SELECT to_regclass('mainspring_schema') IS NOT NULL";
    if !client.query_typed_one(exists, &[]).await.and_then(|row| row.try_get::<_, bool>(0)).map_err(fail)? {
        return Ok(false);
    }
    if is_unfinished_copy(client).await.map_err(fail)? {
        return Err(PostgresError::UnfinishedCopy);
    }
    let sql = "SELECT coalesce(max(version), 0) FROM mainspring_schema";
    let found = client.query_typed_one(sql, &[]).await.and_then(|row| row.try_get::<_, i64>(0));
    match usize::try_from(found.map_err(fail)?).unwrap_or(0) {
        0 => Ok(false),
        SCHEMA_VERSION => Ok(true),
        found if found > SCHEMA_VERSION => Err(PostgresError::Newer { found, known: SCHEMA_VERSION }),
        found => Err(PostgresError::Older { found, known: SCHEMA_VERSION }),
    }
}

/// Applies the missing migrations in the transaction that is open.
pub(super) async fn apply(client: &Client) -> Result<(), PostgresError> {
    let fail = |error: tokio_postgres::Error| PostgresError::Database(describe(&error));
    let sql = format!("SELECT version FROM mainspring_schema WHERE version <> {UNFINISHED_COPY}");
    let rows = client.query_typed(&sql, &[]).await.map_err(fail)?;
    let mut applied = vec![];
    for row in &rows {
        let version: i64 = row.try_get(0).map_err(fail)?;
        applied.push(usize::try_from(version).unwrap_or(0));
    }
    if let Some(found) = applied.iter().max().copied().filter(|found| *found > SCHEMA_VERSION) {
        return Err(PostgresError::Newer { found, known: SCHEMA_VERSION });
    }
    // Each number is compared, not only the highest: a database may lack a migration with a lower number that was
    // reserved and written later.
    for (number, migration) in MIGRATIONS.iter().filter(|(number, _)| !applied.contains(number)) {
        let record = format!("INSERT INTO mainspring_schema VALUES ({number})");
        client.batch_execute(migration).await.map_err(fail)?;
        client.batch_execute(&record).await.map_err(fail)?;
    }
    Ok(())
}
