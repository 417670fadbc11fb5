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
    (30, include_str!("../../migrations/0030_session_rules.sql")),
    (31, include_str!("../../migrations/0031_attempt_ids.sql")),
    (32, include_str!("../../migrations/0032_histories.sql")),
    (34, include_str!("../../migrations/0034_owner_usage.sql")),
    (36, include_str!("../../migrations/0036_tenants.sql")),
    (37, include_str!("../../migrations/0037_key_lists.sql")),
    (38, include_str!("../../migrations/0038_native_keys.sql")),
    (39, include_str!("../../migrations/0039_owner_versions.sql")),
    (42, include_str!("../../migrations/0042_event_blocks.sql")),
    (43, include_str!("../../migrations/0043_search_buckets.sql")),
    (46, include_str!("../../migrations/0046_message_writers.sql")),
    (47, include_str!("../../migrations/0047_state_history.sql")),
    (50, include_str!("../../migrations/0050_webhooks.sql")),
    (51, include_str!("../../migrations/0051_session_agent.sql")),
    (52, include_str!("../../migrations/0052_step_inputs.sql")),
    (55, include_str!("../../migrations/0055_goals.sql")),
    (56, include_str!("../../migrations/0056_feedback.sql")),
    (57, include_str!("../../migrations/0057_pins.sql")),
    (58, include_str!("../../migrations/0058_inherited_artifacts.sql")),
    (59, include_str!("../../migrations/0059_edge_records.sql")),
    (61, include_str!("../../migrations/0061_owner_keys.sql")),
    (62, include_str!("../../migrations/0062_session_labels.sql")),
    (63, include_str!("../../migrations/0063_checkpoints.sql")),
    (64, include_str!("../../migrations/0064_messages_counted.sql")),
    (65, include_str!("../../migrations/0065_one_live_attempt.sql")),
];

/// The last migration that `migrations/new.sql` contains, and the file itself. A new database is created from the file:
/// applying these migrations one by one would parse the whole schema after each changed table. Later migrations are
/// applied to a new database as to any other.
const NEW: (u32, &str) = (65, include_str!("../../migrations/new.sql"));

/// The schema version this program writes.
pub const SCHEMA_VERSION: u32 = MIGRATIONS[MIGRATIONS.len() - 1].0;

/// Migrates the database to [`SCHEMA_VERSION`] in one transaction.
pub(super) fn migrate(connection: &mut Connection, now: Time) -> rusqlite::Result<()> {
    migrate_until(connection, SCHEMA_VERSION, now)
}

/// Migrates the database to version `last` in one transaction.
pub(super) fn migrate_until(connection: &mut Connection, last: u32, now: Time) -> rusqlite::Result<()> {
    if version(connection)? == last {
        return Ok(());
    }
    let transaction = connection.transaction()?;
    transaction.execute_batch(
        "CREATE TABLE IF NOT EXISTS schema_migrations (version INTEGER PRIMARY KEY, applied_at_ms INTEGER NOT NULL) STRICT",
    )?;
    let applied = version(&transaction)?;
    let is_new = applied == 0 && last >= NEW.0;
    if is_new {
        transaction.execute_batch(NEW.1)?;
    }
    for (version, sql) in MIGRATIONS.iter().filter(|(version, _)| (applied + 1..=last).contains(version)) {
        if !is_new || *version > NEW.0 {
            transaction.execute_batch(sql)?;
        }
        transaction.execute("INSERT INTO schema_migrations VALUES (?1, ?2)", (version, now.0))?;
    }
    transaction.pragma_update(None, "user_version", last)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The tables, indexes, views and triggers, and the rows that every database has.
    fn content(connection: &Connection) -> Vec<String> {
        let schema = "SELECT type || ' ' || name || ' ' || coalesce(sql, '') FROM sqlite_schema \
                      WHERE name <> 'schema_migrations'";
        let rows = "SELECT name || ' ' || value FROM meta UNION ALL SELECT hex(mark) || schema_cookie FROM wal_token";
        let mut content = vec![];
        for sql in [schema, rows] {
            let mut statement = connection.prepare(sql).unwrap();
            let read = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
            content.extend(read.map(Result::unwrap));
        }
        content.sort();
        content
    }

    #[test]
    fn a_new_database_equals_one_that_all_migrations_made() {
        let mut new = Connection::open_in_memory().unwrap();
        migrate(&mut new, Time(1)).unwrap();
        let migrated = Connection::open_in_memory().unwrap();
        MIGRATIONS.iter().for_each(|(_, sql)| migrated.execute_batch(sql).unwrap());
        assert_eq!(content(&new), content(&migrated));
        assert_eq!(version(&new).unwrap(), SCHEMA_VERSION);
    }
}
