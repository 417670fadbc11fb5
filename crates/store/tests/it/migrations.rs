//! Migrations: what an earlier version wrote is there, and means the same.

use std::path::Path;

use mainspring_core::*;
use mainspring_kernel::store::{SessionRef, Store};
use mainspring_store::SCHEMA_VERSION;
use rusqlite::Connection;

use crate::fixtures::*;

const RELEASED: &[&str] =
    &[include_str!("../../migrations/0001_tables.sql"), include_str!("../../migrations/0002_views.sql")];

/// A database as the version that knew these migrations made it, with what `fill` puts into it.
fn database_of(folder: &Path, migrations: &[&str], fill: &str) {
    let old = Connection::open(folder.join("test.sqlite3")).unwrap();
    old.pragma_update(None, "application_id", 0x4D53_5052).unwrap();
    old.execute_batch(
        "CREATE TABLE schema_migrations (version INTEGER PRIMARY KEY, applied_at_ms INTEGER NOT NULL) STRICT",
    )
    .unwrap();
    for (version, sql) in (1..).zip(migrations) {
        old.execute_batch(sql).unwrap();
        old.execute("INSERT INTO schema_migrations VALUES (?1, 0)", [version]).unwrap();
        old.pragma_update(None, "user_version", version).unwrap();
    }
    old.execute_batch(fill).unwrap();
}

/// The 16 bytes of an id in SQL.
fn hex(bytes: &[u8; 16]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn bindings_from_before_they_said_how_they_were_made_were_not_reconstructed() {
    let folder = tempfile::tempdir().unwrap();
    let access = include_str!("../../migrations/0003_access.sql");
    let fill = format!(
        "INSERT INTO sessions (session_id, owner_id, agent_definition_id, title, status, surface_kind,
           default_adapter_id, metadata_json, version, created_at_ms, updated_at_ms, last_activity_at_ms)
         VALUES (x'{session}', '{OWNER}', 'generalist@1', 'session 1', 'open', 'chat', 'native', '{{}}', 1, 1, 1, 1);
         INSERT INTO adapter_bindings (binding_id, session_id, adapter_id, binding_generation, resume_fidelity, status,
           boot_node_id, created_at_ms, updated_at_ms)
         VALUES (x'{binding}', x'{session}', 'acp', 2, 'native', 'active', x'{node}', 3, 4)",
        session = hex(session_id(1).as_bytes()),
        binding = hex(binding_id(1).as_bytes()),
        node = hex(node_id(1).as_bytes()),
    );
    database_of(folder.path(), &[RELEASED[0], RELEASED[1], access], &fill);
    let store = sqlite_open(folder.path());
    let found = store.bindings(session_id(1), None, 9).await.unwrap();
    let shown: Vec<_> =
        found.iter().map(|binding| (binding.id, binding.generation, binding.reconstructed)).collect();
    assert_eq!(shown, [(binding_id(1), 2, false)]);
}

#[tokio::test]
async fn sessions_from_before_there_were_orgs_are_private() {
    let folder = tempfile::tempdir().unwrap();
    let fill = format!(
        "INSERT INTO sessions (session_id, owner_id, agent_definition_id, key, title, status, surface_kind,
           default_adapter_id, model_profile, metadata_json, version, created_at_ms, updated_at_ms, last_activity_at_ms)
         VALUES (x'{}', '{OWNER}', 'generalist@1', 'old', 'session 1', 'open', 'chat', 'native', 'fast', '{{}}', 1,
           {now}, {now}, {now} + 1)",
        hex(session_id(1).as_bytes()),
        now = NOW.0,
    );
    database_of(folder.path(), &RELEASED[..2], &fill);
    let store = sqlite_open(folder.path());
    let check = store.check(true).await.unwrap();
    assert_eq!((check.schema_version, check.problems), (SCHEMA_VERSION, vec![]));
    let old = Session { key: Some("old".into()), model_profile: Some("fast".into()), ..session(1) };
    let found = store.session_find(OWNER, &SessionRef::Key("old".into())).await.unwrap();
    assert_eq!(found, Some(old.clone()));
    let fence = lease(&store, 1).await;
    let shown = Session { org: Some("acme".into()), visibility: Visibility::Org, ..old };
    commit(&store, fence, vec![row_session(shown.clone())], vec![]).await.unwrap();
    assert_eq!(store.session_load(session_id(1)).await.unwrap().unwrap().session, shown);
}
