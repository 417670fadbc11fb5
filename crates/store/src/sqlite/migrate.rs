//! Migrations: numbered SQL files, each applied once, in order. There is no downgrade.

use mainspring_core::Time;
use rusqlite::{Connection, OptionalExtension};

/// `migrations/NNNN_name.sql`, in order. A released migration is never edited.
const MIGRATIONS: &[(u32, &str)] = &[
    (1, include_str!("../../migrations/0001_tables.sql")),
    (2, include_str!("../../migrations/0002_views.sql")),
    (3, include_str!("../../migrations/0003_access.sql")),
    (4, include_str!("../../migrations/0004_trees.sql")),
    (5, include_str!("../../migrations/0005_retention.sql")),
    (6, include_str!("../../migrations/0006_data.sql")),
    (7, include_str!("../../migrations/0007_steps.sql")),
    (8, include_str!("../../migrations/0008_bindings.sql")),
    (9, include_str!("../../migrations/0009_steering.sql")),
    (10, include_str!("../../migrations/0010_digests.sql")),
    (11, include_str!("../../migrations/0011_budgets.sql")),
    (12, include_str!("../../migrations/0012_agents.sql")),
    (16, include_str!("../../migrations/0016_unknown_costs.sql")),
    (17, include_str!("../../migrations/0017_wal_token.sql")),
    (18, include_str!("../../migrations/0018_tool_results.sql")),
    (19, include_str!("../../migrations/0019_checksums.sql")),
    (20, include_str!("../../migrations/0020_run_output.sql")),
    (21, include_str!("../../migrations/0021_retries.sql")),
    (22, include_str!("../../migrations/0022_lost_events.sql")),
    (23, include_str!("../../migrations/0023_bindings.sql")),
    (24, include_str!("../../migrations/0024_sandbox.sql")),
    (25, include_str!("../../migrations/0025_key_folders.sql")),
    (26, include_str!("../../migrations/0026_source_columns.sql")),
    (27, include_str!("../../migrations/0027_approvals.sql")),
    (28, include_str!("../../migrations/0028_unknown_usage.sql")),
    (29, include_str!("../../migrations/0029_more_checksums.sql")),
    (32, include_str!("../../migrations/0032_histories.sql")),
];

/// The schema version this program writes.
pub const SCHEMA_VERSION: u32 = MIGRATIONS[MIGRATIONS.len() - 1].0;

/// Migrates the database to [`SCHEMA_VERSION`] in one transaction.
pub(super) fn migrate(connection: &mut Connection, now: Time) -> rusqlite::Result<()> {
    if version(connection)? == SCHEMA_VERSION {
        return Ok(());
    }
    let transaction = connection.transaction()?;
    transaction.execute_batch(
        "CREATE TABLE IF NOT EXISTS schema_migrations (version INTEGER PRIMARY KEY, applied_at_ms INTEGER NOT NULL) STRICT",
    )?;
    let applied = version(&transaction)?;
    for (version, sql) in MIGRATIONS.iter().filter(|(version, _)| *version > applied) {
        transaction.execute_batch(sql)?;
        transaction.execute("INSERT INTO schema_migrations VALUES (?1, ?2)", (version, now.0))?;
    }
    transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    transaction.commit()
}

/// Returns the last migration applied, 0 for a database without tables.
pub(super) fn version(connection: &Connection) -> rusqlite::Result<u32> {
    let table = "SELECT 1 FROM sqlite_schema WHERE name = 'schema_migrations'";
    if connection.query_row(table, [], |_| Ok(())).optional()?.is_none() {
        return Ok(0);
    }
    connection.query_row("SELECT coalesce(max(version), 0) FROM schema_migrations", [], |row| row.get(0))
}
