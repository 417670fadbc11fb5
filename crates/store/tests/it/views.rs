//! The views in the form of the original daemon's tables.

use std::path::Path;
use std::sync::Arc;

use mainspring_core::*;
use mainspring_kernel::store::{Row, Store};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};
use serde_json::{Map, Value, json};

use crate::fixtures::*;

/// The columns of the original's tables, in their order.
const ORIGINAL_COLUMNS: [(&str, &str); 8] = [
    (
        "sessions",
        "session_id owner_id agent_definition_id title status surface_kind external_ref_kind external_ref_id \
         legacy_client_scope legacy_session_key default_adapter_id default_cwd model_profile metadata_json created_at_ms \
         updated_at_ms last_activity_at_ms",
    ),
    (
        "runs",
        "run_id session_id parent_run_id client_id request_id idempotency_key status mode input_json system_prompt_hash \
         model_profile requested_model_id cwd final_text result_json error_code error_message input_tokens output_tokens \
         cache_read_tokens cache_write_tokens cost_usd created_at_ms started_at_ms completed_at_ms updated_at_ms",
    ),
    (
        "adapter_bindings",
        "binding_id session_id adapter_id binding_generation adapter_native_session_id adapter_instance_id \
         resume_fidelity status cwd model_id system_prompt_hash metadata_json created_at_ms updated_at_ms last_used_at_ms \
         invalidated_at_ms",
    ),
    (
        "run_attempts",
        "attempt_id run_id attempt_no status adapter_id adapter_instance_id runtime_node_id binding_id \
         adapter_native_run_id resume_from_attempt_id checkpoint_artifact_id retry_reason retryable \
         cancellation_requested_at_ms cancellation_dispatched_at_ms cancellation_acknowledged_at_ms started_at_ms \
         completed_at_ms error_code error_message metadata_json created_at_ms updated_at_ms",
    ),
    (
        "events",
        "event_seq event_id session_id run_id attempt_id type retention_class visibility payload_json created_at_ms",
    ),
    (
        "artifacts",
        "artifact_id session_id run_id attempt_id kind role uri display_name mime_type content_hash size_bytes \
         metadata_json created_at_ms",
    ),
    (
        "delegations",
        "delegation_id parent_session_id parent_run_id child_session_id child_run_id mode status objective request_json \
         result_artifact_id created_at_ms completed_at_ms",
    ),
    (
        "grants",
        "grant_id session_id run_id capability operation resource_pattern effect source constraints_json created_at_ms \
         expires_at_ms revoked_at_ms",
    ),
];

fn open_read_only(folder: &Path) -> Connection {
    Connection::open_with_flags(folder.join("test.sqlite3"), OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap()
}

fn object(json: Value) -> Map<String, Value> {
    serde_json::from_value(json).unwrap()
}

fn text_or_null(connection: &Connection, sql: &str) -> Option<String> {
    connection.query_row(sql, [], |row| row.get(0)).unwrap()
}

/// The only row of `sql` as JSON.
fn row(connection: &Connection, sql: &str) -> Value {
    let read = |row: &rusqlite::Row<'_>| {
        let value = |index| {
            Ok(match row.get_ref(index)? {
                ValueRef::Integer(number) => number.into(),
                ValueRef::Text(text) => String::from_utf8_lossy(text).into(),
                _ => Value::Null,
            })
        };
        (0..row.as_ref().column_count()).map(value).collect::<rusqlite::Result<Value>>()
    };
    connection.query_row(sql, [], read).unwrap()
}

#[test]
fn each_view_has_the_columns_of_its_table() {
    let folder = tempfile::tempdir().unwrap();
    let _store = sqlite_open(folder.path());
    let connection = open_read_only(folder.path());
    for (table, columns) in ORIGINAL_COLUMNS {
        let statement = connection.prepare(&format!("SELECT * FROM omi_{table}")).unwrap();
        let columns: Vec<&str> = columns.split_whitespace().collect();
        let found: Vec<&str> = statement.column_names().take(columns.len()).collect();
        assert_eq!(found, columns, "{table}");
    }
}

/// A view that an SQLite cannot parse makes it refuse the whole database. Ordered aggregates are as new as 3.44; systems
/// in use have 3.40.
#[test]
fn an_older_sqlite_can_read_the_views() {
    let folder = tempfile::tempdir().unwrap();
    let _store = sqlite_open(folder.path());
    let connection = open_read_only(folder.path());
    let mut statement =
        connection.prepare("SELECT name, sql FROM sqlite_schema WHERE type = 'view'").unwrap();
    let views = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    let views: Vec<(String, String)> = views.collect::<Result<_, _>>().unwrap();
    assert!(views.len() >= ORIGINAL_COLUMNS.len());
    for (name, sql) in views {
        for arguments in sql.split("group_concat(").skip(1) {
            let end = arguments.find('\n').unwrap_or(arguments.len());
            assert!(!arguments[..end].contains("ORDER BY"), "{name}: {arguments}");
        }
    }
}

#[test]
fn events_have_the_class_and_visibility_of_their_type() {
    let folder = tempfile::tempdir().unwrap();
    sqlite_open(folder.path()).close();
    let connection = Connection::open(folder.path().join("test.sqlite3")).unwrap();
    connection.execute_batch("PRAGMA foreign_keys = OFF").unwrap();
    for (seq, kind) in (1..).zip(Body::TYPES) {
        let insert = "INSERT INTO events (event_seq, event_id, session_id, type, pos, created_at_ms, payload)
                      VALUES (?1, zeroblob(16), zeroblob(16), ?2, 0, 0, '{}')";
        connection.execute(insert, (seq, kind)).unwrap();
        let sql = format!("SELECT retention_class, visibility FROM omi_events WHERE event_seq = {seq}");
        assert_eq!(
            row(&connection, &sql),
            json!([Body::retention_class(kind), Body::visibility(kind)]),
            "{kind}"
        );
    }
}

/// One row of each kind of record that has a view of its own.
fn record_rows() -> Vec<Row> {
    vec![
        Row::Binding(Box::new(Binding {
            id: binding_id(1),
            session: session_id(1),
            adapter: "acp".into(),
            generation: 1,
            native: Some("n".into()),
            fidelity: Fidelity::Native,
            status: BindingStatus::Stale,
            node: node_id(1),
            instance: Some("worker-1".into()),
            model: Some("m1".into()),
            last_message: None,
            cwd: None,
            system_prompt_hash: Some("abc".into()),
            reconstructed: false,
            metadata: object(json!({"agent": {"version": "1.2"}})),
            created_at: NOW,
            updated_at: NOW.plus(9),
            last_used_at: Some(NOW.plus(1)),
            invalidated_at: Some(NOW.plus(2)),
            invalidation_reason: Some("unknown session".into()),
        })),
        Row::Grant(Box::new(Grant {
            id: grant_id(1),
            session: session_id(1),
            run: None,
            capability: "fs".into(),
            operation: "write".into(),
            resource_pattern: "*".into(),
            effect: GrantEffect::Allow,
            source: GrantSource::User,
            constraints: object(json!({"mode": "act"})),
            created_at: NOW,
            expires_at: None,
            revoked_at: None,
            revoked_by: None,
        })),
        Row::Artifact(Box::new(Artifact {
            id: artifact_id(1),
            session: session_id(1),
            run: Some(run_id(1)),
            attempt: None,
            kind: "patch".into(),
            role: ArtifactRole::Result,
            uri: "file:x".into(),
            name: None,
            mime_type: None,
            content_hash: None,
            size_bytes: Some(3),
            metadata: object(json!({"page": 1})),
            created_at: NOW,
        })),
        Row::Delegation(Box::new(Delegation {
            id: delegation_id(1),
            parent_session: session_id(1),
            parent_run: run_id(1),
            child_session: session_id(2),
            child_run: run_id(2),
            mode: DelegationMode::Call,
            status: DelegationStatus::Pending,
            objective: "look".into(),
            request: json!({"context": "all of it"}).into(),
            result: Some(artifact_id(1)),
            created_at: NOW,
            completed_at: None,
        })),
    ]
}

#[tokio::test]
async fn unknown_usage_is_null_in_the_view() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_open(folder.path());
    let fence = create_session(&store, 1).await;
    let used =
        |n, usage| row_run(Run { usage, ..run(n, 1, u32::try_from(n).unwrap(), RunState::Succeeded {}) });
    let some = Usage { input_tokens: 5, at_least: true, ..Usage::default() };
    let rows = vec![used(1, Usage::UNKNOWN), used(2, some), used(3, Usage::default())];
    commit(&store, fence, rows, vec![]).await.unwrap();
    let connection = open_read_only(folder.path());
    let sql = "SELECT input_tokens, output_tokens, cost_usd FROM omi_runs ORDER BY run_id";
    let mut statement = connection.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
    let rows: Vec<(Option<i64>, Option<i64>, Option<f64>)> = rows.map(Result::unwrap).collect();
    assert_eq!(rows, [(None, None, None), (Some(5), Some(0), None), (Some(0), Some(0), Some(0.0))]);
}

#[tokio::test]
async fn the_views_have_the_tables_and_columns_of_the_original() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_open(folder.path());
    let fence = create_session(&store, 1).await;
    let done = Run {
        prompt: Some(message_id(2)),
        system_prompt_hash: Some("abc".into()),
        final_message: Some(message_id(5)),
        completed_at: Some(NOW),
        output: Some(Box::new(RunOutput::new(serde_json::json!({"n": 4}), None))),
        usage: Usage { cost: Cost(1_500_000_000), ..Usage::default() },
        ..run(1, 1, 1, RunState::Succeeded {})
    };
    let of_run = |n, text| Message { run: Some(run_id(1)), ..message(n, 1, text) };
    let completed = Body::MessageCompleted { message: Arc::new(of_run(5, "ur")), parent_id: None };
    // The run was tried again: its path continues on another line, without the messages of the first attempt.
    let mut rows = vec![
        Row::Line(line(1, None, 6)),
        row_message(message(1, 1, "earlier"), Some(point(1, 0))),
        row_message(of_run(2, "2 + 2?"), Some(point(1, 1))),
        row_message(of_run(3, "fo"), Some(point(1, 2))),
        row_message(of_run(4, "the tool's"), Some(point(1, 3))),
        row_message(of_run(7, "ah"), Some(point(1, 4))),
        Row::Line(line(2, Some(point(1, 3)), 5)),
        row_message(of_run(5, "ur"), Some(point(2, 4))),
        row_run(done),
        row_attempt(Attempt {
            instance: Some("worker-1".into()),
            native_run: Some("7".into()),
            metadata: object(json!({"stopReason": "end_turn"})),
            ..attempt(1, 1, 1, RunStatus::Failed)
        }),
        row_attempt(Attempt { checkpoint: Some(artifact_id(1)), ..attempt(2, 1, 2, RunStatus::Succeeded) }),
    ];
    rows.extend(record_rows());
    commit(&store, fence, rows, vec![event(1, completed)]).await.unwrap();
    let connection = open_read_only(folder.path());
    let text = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
    assert_eq!(text("SELECT session_id FROM omi_sessions"), session_id(1).to_string());
    assert_eq!(text("SELECT run_id || final_text FROM omi_runs"), format!("{}four", run_id(1)));
    assert_eq!(text("SELECT max(checkpoint_artifact_id) FROM omi_run_attempts"), artifact_id(1).to_string());
    assert_eq!(text("SELECT result_json FROM omi_runs"), r#"{"n":4}"#);
    assert_eq!(text("SELECT input_json ->> '$.prompt' FROM omi_runs"), "2 + 2?");
    assert_eq!(text("SELECT cost_usd || '' FROM omi_runs WHERE parent_run_id IS NULL"), "1.5");
    assert_eq!(text("SELECT payload_json ->> '$.message.content[0].text' FROM omi_events"), "ur");
    for (view, id, text_id) in [
        ("omi_adapter_bindings", "binding_id", binding_id(1).to_string()),
        ("omi_grants", "grant_id", grant_id(1).to_string()),
        ("omi_artifacts", "artifact_id", artifact_id(1).to_string()),
        ("omi_delegations", "delegation_id", delegation_id(1).to_string()),
    ] {
        assert_eq!(text(&format!("SELECT {id} FROM {view}")), text_id, "{view}");
    }
    let asked = "SELECT request_json || result_artifact_id FROM omi_delegations";
    assert_eq!(text(asked), format!(r#"{{"context":"all of it"}}{}"#, artifact_id(1)));
    let row = |sql: &str| row(&connection, sql);
    let sql = "SELECT client_id, request_id, idempotency_key, system_prompt_hash FROM omi_runs";
    assert_eq!(row(sql), json!([null, null, null, "abc"]), "names that were not given are null");
    let sql = "SELECT adapter_instance_id, adapter_native_run_id, metadata_json FROM omi_run_attempts WHERE attempt_no = ";
    assert_eq!(row(&format!("{sql} 1")), json!(["worker-1", "7", r#"{"stopReason":"end_turn"}"#]));
    assert_eq!(row(&format!("{sql} 2")), json!([node_id(1), null, "{}"]), "executed by mainspring itself");
    let sql = "SELECT adapter_instance_id, model_id, system_prompt_hash, metadata_json, last_used_at_ms, invalidated_at_ms,
                 invalidation_reason FROM omi_adapter_bindings";
    let binding = ["worker-1", "m1", "abc", r#"{"agent":{"version":"1.2"}}"#];
    let (used, ended) = (NOW.plus(1).0, NOW.plus(2).0);
    let [instance, model, hash, metadata] = binding;
    assert_eq!(row(sql), json!([instance, model, hash, metadata, used, ended, "unknown session"]));
    assert_eq!(row("SELECT constraints_json FROM omi_grants"), json!([r#"{"mode":"act"}"#]));
    assert_eq!(row("SELECT metadata_json FROM omi_artifacts"), json!([r#"{"page":1}"#]));
    drop(connection);
    store.close();
    // The process is gone with the mainspring that started it.
    let store = sqlite_open(folder.path());
    let connection = open_read_only(folder.path());
    assert_eq!(text_or_null(&connection, "SELECT adapter_instance_id FROM omi_adapter_bindings"), None);
    assert_eq!(store.bindings(session_id(1), None, None, 9).await.unwrap()[0].instance, None);
}
