//! Migrations: data of earlier versions is kept and means the same.

use std::path::Path;

use mainspring_core::*;
use mainspring_kernel::search::Query;
use mainspring_kernel::store::{DelegationsOf, Row, SessionRef, StateAt, StatePlace, StateRow, Store};
use mainspring_store::SCHEMA_VERSION;
use rusqlite::Connection;
use serde_json::json;

use crate::agents::agent;
use crate::digests::digest;
use crate::fixtures::*;
use crate::steps::step;

pub(crate) const RELEASED: &[&str] = &[
    include_str!("../../migrations/0001_tables.sql"),
    include_str!("../../migrations/0002_views.sql"),
    include_str!("../../migrations/0003_access.sql"),
    include_str!("../../migrations/0004_trees.sql"),
    include_str!("../../migrations/0005_retention.sql"),
    include_str!("../../migrations/0006_data.sql"),
    include_str!("../../migrations/0007_steps.sql"),
    include_str!("../../migrations/0008_bindings.sql"),
    include_str!("../../migrations/0009_steering.sql"),
    include_str!("../../migrations/0010_digests.sql"),
    include_str!("../../migrations/0011_budgets.sql"),
    include_str!("../../migrations/0012_agents.sql"),
];

/// Creates a database of the version that had these migrations, and runs `fill` on it.
pub(crate) fn create_database(folder: &Path, migrations: &[&str], fill: &str) {
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
pub(crate) fn hex(bytes: &[u8; 16]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn bindings_of_earlier_versions_are_not_reconstructed() {
    let folder = tempfile::tempdir().unwrap();
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
    create_database(folder.path(), &RELEASED[..6], &fill);
    let store = sqlite_open(folder.path());
    let found = store.bindings(session_id(1), None, None, 9).await.unwrap();
    let read: Vec<_> =
        found.iter().map(|binding| (binding.id, binding.generation, binding.reconstructed)).collect();
    assert_eq!(read, [(binding_id(1), 2, false)]);
}

#[tokio::test]
async fn bindings_of_earlier_versions_get_the_times_of_their_last_use_and_end() {
    let folder = tempfile::tempdir().unwrap();
    let fill = format!(
        "{run};
         INSERT INTO adapter_bindings (binding_id, session_id, adapter_id, binding_generation, resume_fidelity, status,
           boot_node_id, created_at_ms, updated_at_ms)
         VALUES (x'{stale}', x'{session}', 'acp', 1, 'native', 'stale', x'{node}', 3, 8),
           (x'{active}', x'{session}', 'acp', 2, 'native', 'active', x'{node}', 3, 9);
         INSERT INTO run_attempts (run_id, attempt_no, attempt_id, status, adapter_id, node_id, binding_id, retryable,
           input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_nanos, created_at_ms, started_at_ms,
           completed_at_ms)
         VALUES (x'{the_run}', 1, x'{attempt}', 'failed', 'acp', x'{node}', x'{stale}', 0, 0, 0, 0, 0, 0, 3, 5, 6)",
        run = insert_queued_run(0),
        session = hex(session_id(1).as_bytes()),
        the_run = hex(run_id(1).as_bytes()),
        attempt = hex(attempt_id(1).as_bytes()),
        stale = hex(binding_id(1).as_bytes()),
        active = hex(binding_id(2).as_bytes()),
        node = hex(node_id(1).as_bytes()),
    );
    create_database(folder.path(), RELEASED, &fill);
    let store = sqlite_open(folder.path());
    let found = store.bindings(session_id(1), None, None, 9).await.unwrap();
    let times: Vec<_> = found.iter().map(|binding| (binding.last_used_at, binding.invalidated_at)).collect();
    assert_eq!(times, [(None, None), (Some(Time(6)), Some(Time(8)))]);
    let attempts = store.attempts(run_id(1)).await.unwrap().items;
    assert_eq!((&attempts[0].instance, attempts[0].metadata.is_empty()), (&None, true));
}

#[tokio::test]
async fn a_run_of_a_version_without_hashes_has_the_hash_of_its_system_prompt() {
    let folder = tempfile::tempdir().unwrap();
    let prompt = "UPDATE runs SET options = '{\"systemPrompt\":\"be kind\"}'";
    create_database(folder.path(), RELEASED, &format!("{}; {prompt}", insert_queued_run(0)));
    let store = sqlite_open(folder.path());
    let hash = mainspring_kernel::kernel::instructions_hash(Some("be kind"));
    let old = store.run_get(run_id(1)).await.unwrap().unwrap();
    assert_eq!(old.system_prompt_hash, hash);
    // The row gets the hash, and its checksum, with its next change.
    let fence = lease(&store, 1).await;
    let changed = Run { state: RunState::Succeeded {}, ..old };
    commit(&store, fence, vec![row_run(changed.clone())], vec![]).await.unwrap();
    assert_eq!(store.run_get(run_id(1)).await.unwrap(), Some(changed));
    let connection = Connection::open(folder.path().join("test.sqlite3")).unwrap();
    let read = |row: &rusqlite::Row<'_>| row.get::<_, Option<String>>(0);
    assert_eq!(connection.query_row("SELECT system_prompt_hash FROM omi_runs", [], read).unwrap(), hash);
    assert_eq!(store.verify_checksums().await.unwrap().problems, Vec::<String>::new());
}

#[tokio::test]
async fn sessions_of_versions_without_orgs_are_private() {
    let folder = tempfile::tempdir().unwrap();
    let fill = format!(
        "INSERT INTO sessions (session_id, owner_id, agent_definition_id, key, title, status, surface_kind,
           default_adapter_id, model_profile, metadata_json, version, created_at_ms, updated_at_ms, last_activity_at_ms)
         VALUES (x'{}', '{OWNER}', 'generalist@1', 'old', 'session 1', 'open', 'chat', 'native', 'fast', '{{}}', 1,
           {now}, {now}, {now} + 1)",
        hex(session_id(1).as_bytes()),
        now = NOW.0,
    );
    create_database(folder.path(), &RELEASED[..2], &fill);
    let store = sqlite_open(folder.path());
    let check = store.check(true).await.unwrap();
    assert_eq!((check.schema_version, check.problems), (SCHEMA_VERSION, vec![]));
    let old = Session { key: Some("old".into()), model_profile: Some("fast".into()), ..session(1) };
    let found = store.session_find(OWNER, &SessionRef::Key("old".into())).await.unwrap();
    assert_eq!(found, Some(old.clone()));
    let fence = lease(&store, 1).await;
    let shared = Session { org: Some("acme".into()), visibility: Visibility::Org, ..old };
    commit(&store, fence, vec![row_session(shared.clone())], vec![]).await.unwrap();
    assert_eq!(store.session_load(session_id(1)).await.unwrap().unwrap().session, shared);
}

#[tokio::test]
async fn lines_of_versions_without_state_have_an_opener() {
    let folder = tempfile::tempdir().unwrap();
    let fill = format!(
        "INSERT INTO sessions (session_id, owner_id, agent_definition_id, status, surface_kind, default_adapter_id,
           metadata_json, tip_line, tip_pos, version, created_at_ms, updated_at_ms, last_activity_at_ms)
         VALUES (x'{one}', '{OWNER}', 'generalist@1', 'open', 'chat', 'native', '{{}}', 1, 3, 1, 0, 0, 0);
         INSERT INTO lines VALUES (1, 1, x'{one}', NULL, NULL, 4, 0), (2, 2, x'{one}', 1, 1, 4, 0);
         INSERT INTO artifacts VALUES (x'{two}', x'{one}', NULL, NULL, 'file', 'result', 'file:///a', NULL, NULL, NULL,
           NULL, 7)",
        one = hex(session_id(1).as_bytes()),
        two = hex(artifact_id(2).as_bytes()),
    );
    create_database(folder.path(), &RELEASED[..3], &fill);
    let store = sqlite_open(folder.path());
    let check = store.check(true).await.unwrap();
    assert_eq!((check.schema_version, check.problems), (SCHEMA_VERSION, vec![]));
    let found = store.artifact_get(artifact_id(2)).await.unwrap().unwrap();
    assert_eq!(
        (found.uri.as_str(), found.content_hash),
        ("file:///a", None),
        "an artifact without stored bytes"
    );
    // New state is visible on its own line, but not from an older branch.
    let fence = lease(&store, 1).await;
    let place = StatePlace::Session { at: Some(point(1, 1)), aside: false };
    let row = StateRow { place, key: "k".into(), version: 1, value: Some(1.into()), at: NOW };
    commit(&store, fence, vec![Row::State(Box::new(row))], vec![progress(1)]).await.unwrap();
    for (at, is_visible) in [(point(1, 3), true), (point(2, 3), false)] {
        let at = StateAt::Session { session: session_id(1), at: Some(at) };
        assert_eq!(store.state_get(&at, "k").await.unwrap().entry.is_some(), is_visible, "{at:?}");
    }
}

#[tokio::test]
async fn messages_of_versions_without_search_are_found_and_have_children() {
    let folder = tempfile::tempdir().unwrap();
    let (session, now) = (hex(session_id(1).as_bytes()), NOW.0);
    let mut fill = format!(
        "INSERT INTO sessions (session_id, owner_id, agent_definition_id, title, status, surface_kind, default_adapter_id,
           metadata_json, tip_line, tip_pos, tip_message_id, version, created_at_ms, updated_at_ms, last_activity_at_ms)
         VALUES (x'{session}', '{OWNER}', 'generalist@1', 'session 1', 'open', 'chat', 'native', '{{}}', 1, 1, x'{}', 1,
           {now}, {now}, {now} + 1);
         INSERT INTO sessions (session_id, owner_id, agent_definition_id, status, surface_kind, default_adapter_id,
           metadata_json, version, created_at_ms, updated_at_ms, last_activity_at_ms)
         VALUES (x'{}', '{OWNER}', 'generalist@1', 'open', 'chat', 'native', '{{}}', 1, {now}, {now}, {now});
         INSERT INTO lines (line, session_id, end_pos, abandoned) VALUES (1, x'{session}', 2, 0);
         INSERT INTO lines (line, session_id, parent_line, parent_pos, end_pos, abandoned)
         VALUES (2, x'{session}', 1, 0, 2, 0);",
        hex(message_id(11).as_bytes()),
        hex(session_id(2).as_bytes()),
    );
    for (n, line, pos, text) in
        [(10, 1, 0, "a question"), (11, 1, 1, "an Answer"), (21, 2, 1, "another answer")]
    {
        let role = if n % 2 == 0 { "user" } else { "assistant" };
        fill += &format!(
            "INSERT INTO messages (message_id, session_id, role, status, line, pos, created_at_ms, content)
             VALUES (x'{}', x'{session}', '{role}', 'completed', {line}, {pos}, {now}, '[{{\"type\":\"text\",\"text\":\"{text}\"}}]');",
            hex(message_id(n).as_bytes()),
        );
    }
    create_database(folder.path(), &RELEASED[..3], &fill);
    let store = sqlite_open(folder.path());
    let check = store.check(true).await.unwrap();
    assert_eq!((check.schema_version, check.problems), (SCHEMA_VERSION, vec![]));
    let named = store.session_load(session_id(1)).await.unwrap().unwrap().session;
    let unnamed = store.session_load(session_id(2)).await.unwrap().unwrap().session;
    assert_eq!((named.title_source, unnamed.title_source), (Some(TitleSource::Manual), None));
    assert_eq!((named.pinned, named.forked_from, named.base), (false, None, None));
    let children = store.children(session_id(1), Some(point(1, 0)), 9).await.unwrap();
    assert_eq!(children, [message_id(11), message_id(21)]);
    for _ in 0..2 {
        let query = Query::parse("ANSWER").unwrap();
        let found = store.search_messages(OWNER, &query, None, 9).await.unwrap().rows.items;
        let found: Vec<_> = found.into_iter().map(|found| found.message.id).collect();
        assert_eq!(found, [message_id(21), message_id(11)]);
        let titles = store.search_titles(OWNER, &Query::parse("sess").unwrap(), None, 9).await.unwrap().items;
        assert_eq!(titles, std::slice::from_ref(&named));
        while store.search_index().await.unwrap() {}
    }
}

/// SQL that inserts a session with one queued run, in the columns of the first version.
pub(crate) fn insert_queued_run(cost_nanos: u64) -> String {
    format!(
        "INSERT INTO sessions (session_id, owner_id, agent_definition_id, status, surface_kind, default_adapter_id,
           metadata_json, version, created_at_ms, updated_at_ms, last_activity_at_ms)
         VALUES (x'{session}', '{OWNER}', 'generalist@1', 'open', 'chat', 'native', '{{}}', 1, 0, 0, 0);
         INSERT INTO runs (run_id, session_id, owner_id, run_no, fingerprint, adapter_id, mode, created_seq, created_at_ms,
           status, attempts, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_nanos, updated_at_ms)
         VALUES (x'{run}', x'{session}', '{OWNER}', 1, x'{fingerprint}', 'native', 'act', 1, {at}, 'queued', 0, 0, 0, 0,
           0, {cost_nanos}, {at})",
        session = hex(session_id(1).as_bytes()),
        run = hex(run_id(1).as_bytes()),
        fingerprint = hex(&[7; 16]),
        at = NOW.plus(1).0,
    )
}

#[tokio::test]
async fn a_run_of_a_version_without_steps_steering_digests_and_budgets_can_get_them() {
    let folder = tempfile::tempdir().unwrap();
    let fill = insert_queued_run(0);
    create_database(folder.path(), &RELEASED[..6], &fill);
    let store = sqlite_open(folder.path());
    let check = store.check(true).await.unwrap();
    assert_eq!((check.schema_version, check.problems), (SCHEMA_VERSION, vec![]));
    let old = run(1, 1, 1, queued());
    assert_eq!(store.run_get(run_id(1)).await.unwrap(), Some(old.clone()));
    let fence = lease(&store, 1).await;
    let budget = Budget { max_steps: Some(9), steps_left: Some(7), ..Budget::default() };
    let merged = Run { merged_into: Some(run_id(2)), budget: Some(Box::new(budget)), ..old };
    let (step, digest) = (step(1, 1, 1), digest(1, 2));
    let rows = vec![
        row_run(merged.clone()),
        Row::Step(Box::new(step.clone())),
        Row::Line(line(1, None, 4)),
        Row::Digest(Box::new(digest.clone())),
    ];
    commit(&store, fence, rows, vec![progress(1)]).await.unwrap();
    assert_eq!(store.run_get(run_id(1)).await.unwrap(), Some(merged));
    assert_eq!(store.steps(run_id(1)).await.unwrap().items, [step]);
    assert_eq!(store.digest(session_id(1), point(1, 3)).await.unwrap(), Some(digest));
}

#[tokio::test]
async fn owners_of_versions_without_agents_can_create_agents() {
    let folder = tempfile::tempdir().unwrap();
    let fill = format!(
        "INSERT INTO sessions (session_id, owner_id, agent_definition_id, status, surface_kind, default_adapter_id,
           metadata_json, version, created_at_ms, updated_at_ms, last_activity_at_ms)
         VALUES (x'{}', '{OWNER}', 'coder@2', 'open', 'chat', 'native', '{{}}', 1, 0, 0, 0)",
        hex(session_id(1).as_bytes()),
    );
    create_database(folder.path(), &RELEASED[..11], &fill);
    let store = sqlite_open(folder.path());
    let check = store.check(true).await.unwrap();
    assert_eq!((check.schema_version, check.problems), (SCHEMA_VERSION, vec![]));
    let kept = store.session_load(session_id(1)).await.unwrap().unwrap().session;
    assert_eq!(kept.agent_definition, "coder@2", "the agent of a session is unchanged");
    assert_eq!(store.agent_page(OWNER, None, 9).await.unwrap(), []);
    assert_eq!(store.agent_find(OWNER, "coder", Some(2)).await.unwrap(), None);
    let made = agent(OWNER, "coder", 2, 1);
    assert_eq!(store.agent_write(&made).await, Ok(true));
    assert_eq!(store.agent_find(OWNER, "coder", None).await.unwrap(), Some(made));
    assert_eq!(store.agent_count(OWNER).await, Ok(1));
}

#[tokio::test]
async fn costs_of_versions_without_unknown_costs_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let fill = insert_queued_run(1_500_000_000);
    create_database(folder.path(), &RELEASED[..12], &fill);
    let store = sqlite_open(folder.path());
    let check = store.check(true).await.unwrap();
    assert_eq!((check.schema_version, check.problems), (SCHEMA_VERSION, vec![]));
    let old = store.run_get(run_id(1)).await.unwrap().unwrap();
    assert_eq!(old.usage.cost.usd(), Some(1.5));
    let fence = lease(&store, 1).await;
    let unpriced = Usage { input_tokens: 5, cost: Cost::UNKNOWN, ..Usage::default() };
    let rows = vec![row_run(Run { usage: unpriced, ..run(2, 1, 2, queued()) })];
    commit(&store, fence, rows, vec![progress(1)]).await.unwrap();
    assert_eq!(store.run_get(run_id(2)).await.unwrap().unwrap().usage, unpriced);
    drop(store);
    let reader = Connection::open(folder.path().join("test.sqlite3")).unwrap();
    let mut costs = reader.prepare("SELECT cost_usd FROM omi_runs ORDER BY run_id").unwrap();
    let costs = costs.query_map([], |row| row.get::<_, Option<f64>>(0)).unwrap();
    let mut costs: Vec<_> = costs.map(Result::unwrap).collect();
    costs.sort_by(|a, b| a.partial_cmp(b).unwrap());
    assert_eq!(costs, [None, Some(1.5)]);
}

#[tokio::test]
async fn delegations_and_bindings_of_versions_without_requests_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let [session, run, delegation, binding] = [
        hex(session_id(1).as_bytes()),
        hex(run_id(1).as_bytes()),
        hex(delegation_id(1).as_bytes()),
        hex(binding_id(1).as_bytes()),
    ];
    let fill = format!(
        "{};
         INSERT INTO delegations (delegation_id, parent_session_id, parent_run_id, child_session_id, child_run_id, mode,
           status, objective, created_at_ms)
         VALUES (x'{delegation}', x'{session}', x'{run}', x'{session}', x'{run}', 'call', 'running', 'look', 0);
         INSERT INTO adapter_bindings (binding_id, session_id, adapter_id, binding_generation, adapter_native_session_id,
           resume_fidelity, status, boot_node_id, created_at_ms, updated_at_ms)
         VALUES (x'{binding}', x'{session}', 'pi', 1, 'n', 'none', 'active', x'{run}', 0, 0)",
        insert_queued_run(0).trim_end_matches(';'),
    );
    create_database(folder.path(), &RELEASED[..12], &fill);
    let store = sqlite_open(folder.path());
    let check = store.check(true).await.unwrap();
    assert_eq!((check.schema_version, check.problems), (SCHEMA_VERSION, vec![]));
    let kept = store.delegations(&DelegationsOf::Id(delegation_id(1))).await.unwrap().pop().unwrap();
    assert_eq!((kept.objective.as_str(), kept.request.is_absent()), ("look", true));
    assert_eq!(store.unfinished().await.unwrap().bound, [session_id(1)]);
    drop(store);
    let reader = Connection::open(folder.path().join("test.sqlite3")).unwrap();
    let sql = "SELECT request_json FROM omi_delegations";
    assert_eq!(reader.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap(), "{}");
}

#[tokio::test]
async fn sessions_of_versions_without_rules_accept_rules_and_attempts_are_found_by_an_index() {
    let folder = tempfile::tempdir().unwrap();
    create_database(folder.path(), RELEASED, &insert_queued_run(0));
    let store = sqlite_open(folder.path());
    let old = store.session_load(session_id(1)).await.unwrap().unwrap().session;
    assert_eq!(old.rules, [""; 0]);
    let fence = lease(&store, 1).await;
    let ruled = Session { rules: vec!["deny fs write *".into()], ..old };
    commit(&store, fence, vec![row_session(ruled.clone())], vec![]).await.unwrap();
    assert_eq!(store.session_load(session_id(1)).await.unwrap().unwrap().session, ruled);
    assert_eq!(store.verify_checksums().await.unwrap().problems, Vec::<String>::new());
    let connection = Connection::open(folder.path().join("test.sqlite3")).unwrap();
    let plan = "EXPLAIN QUERY PLAN SELECT * FROM run_attempts WHERE attempt_id = x'00' LIMIT 1";
    let plan: String = connection.query_row(plan, [], |row| row.get(3)).unwrap();
    assert!(plan.contains("SEARCH") && plan.contains("run_attempts_id_idx"), "{plan}");
}

#[tokio::test]
async fn sessions_messages_and_steps_of_versions_without_session_agents_are_kept_and_accept_agents() {
    let folder = tempfile::tempdir().unwrap();
    create_database(folder.path(), RELEASED, &insert_queued_run(0));
    let store = sqlite_open(folder.path());
    let old = store.session_load(session_id(1)).await.unwrap().unwrap().session;
    assert_eq!((old.tools.len(), old.idle_unload_ms, old.labels.len()), (0, None, 0));
    let fence = lease(&store, 1).await;
    let tool = ClientTool { name: "rain".into(), input_schema: json!({}), ..ClientTool::default() };
    let changed = Session { tools: vec![tool], idle_unload_ms: Some(0), labels: vec!["gpu".into()], ..old };
    let message = Message { agent: Some("coder@2".into()), ..message(3, 1, "hi") };
    let step = step(4, 1, 1);
    let rows = vec![
        row_session(changed.clone()),
        Row::Line(line(5, None, 1)),
        row_message(message.clone(), Some(point(5, 0))),
        Row::Step(Box::new(step.clone())),
    ];
    commit(&store, fence, rows, vec![]).await.unwrap();
    drop(store);
    let store = sqlite_open(folder.path());
    assert_eq!(store.session_load(session_id(1)).await.unwrap().unwrap().session, changed);
    let (placed, _) = store.message_get(session_id(1), message.id).await.unwrap().unwrap();
    assert_eq!(*placed.message, message);
    assert_eq!(store.steps(run_id(1)).await.unwrap().items, [step]);
    assert_eq!(store.verify_checksums().await.unwrap().problems, Vec::<String>::new());
}
