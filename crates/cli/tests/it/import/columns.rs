//! Every column of the original is kept, in the API, the control tools and the views.

use rusqlite::{Connection, OpenFlags};

use super::*;

/// An original whose rows have a value in every column.
fn full_original() -> Original {
    let mut original = Original::new();
    let chat =
        original.session(1, "main_chat", &[("status", &"closed"), ("metadata_json", &r#"{"color":"red"}"#)]);
    let stale: [(&str, &dyn rusqlite::types::ToSql); 6] = [
        ("status", &"stale"),
        ("adapter_instance_id", &"desktop-local"),
        ("model_id", &"sonnet"),
        ("metadata_json", &r#"{"mcp":["omi"]}"#),
        ("last_used_at_ms", &7),
        ("invalidated_at_ms", &8),
    ];
    let binding = original.binding(1, &chat, &stale);
    let run = original.run(
        1,
        &chat,
        "hello",
        &[
            ("final_text", &"hi"),
            ("client_id", &""),
            ("system_prompt_hash", &"x1"),
            ("result_json", &r#"{"n":4}"#),
            ("input_tokens", &5),
        ],
    );
    let attempt: [(&str, &dyn rusqlite::types::ToSql); 5] = [
        ("retry_reason", &"bad_luck"),
        ("binding_id", &binding),
        ("adapter_instance_id", &"desktop-local"),
        ("adapter_native_run_id", &"turn-9"),
        ("metadata_json", &r#"{"tries":2}"#),
    ];
    original.attempt(1, &run, &chat, &attempt);
    original.event(
        &chat,
        Some(&run),
        None,
        "binding.stale",
        &json!({"bindingId": binding, "reason": "gone"}),
    );
    original.event(&chat, Some(&run), None, "run.succeeded", &json!({"runId": run}));
    original.artifact(1, &chat, &run, "file:///nowhere.md", 3);
    original.database.execute("UPDATE artifacts SET metadata_json = ?1", [r#"{"page":1}"#]).unwrap();
    original.grant(1, &chat, &run, &[("constraints_json", &r#"{"times":1}"#)]);
    original
}

#[tokio::test]
async fn every_column_of_the_original_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let from = full_original().copy_after_kill(dir.path());
    let report = report(&import(dir.path(), &from, &["--json"]));
    let changed = report["changed"].to_string();
    assert!(changed.contains("unknown retry reason") && changed.contains(&id("att", 1)), "{changed}");
    let run: mainspring::core::RunId = id("run", 1).parse().unwrap();
    with_kernel(dir.path(), async |kernel, me| {
        let chat = kernel.session_get(me, &session(1)).await.unwrap();
        assert_eq!(chat.status, mainspring::core::SessionStatus::Closed);
        let binding = json!(kernel.binding_list(me, &session(1), None, None).await.unwrap()[0]);
        for (field, value) in [
            ("modelId", json!("sonnet")),
            ("metadata", json!({"mcp": ["omi"]})),
            ("lastUsedAtMs", json!(7)),
            ("invalidatedAtMs", json!(8)),
            ("invalidationReason", json!("gone")),
            ("adapterInstanceId", Value::Null),
        ] {
            assert_eq!(binding[field], value, "{field}");
        }
        let attempt = json!(kernel.run_attempts(me, run).await.unwrap()[0]);
        for (field, value) in [
            ("adapterInstanceId", json!("desktop-local")),
            ("adapterNativeRunId", json!("turn-9")),
            ("metadata", json!({"tries": 2})),
        ] {
            assert_eq!(attempt[field], value, "{field}");
        }
        let hash = mainspring_kernel::kernel::instructions_hash(Some("be kind"));
        let imported = kernel.run_get(me, run).await.unwrap();
        assert_eq!(imported.system_prompt_hash, hash);
        assert_eq!(imported.output.unwrap().value, json!({"n": 4}));
        assert_eq!((imported.usage.input_tokens, imported.usage.at_least), (5, true), "the rest is unknown");
        assert!(!imported.usage.cost.is_known());
        assert_eq!(json!(kernel.artifact_get(me, artifact(1)).await.unwrap().metadata), json!({"page": 1}));
        assert_eq!(json!(kernel.run_grants(me, run).await.unwrap()[0].constraints), json!({"times": 1}));
    })
    .await;
    let database = dir.path().join("state/mainspring.sqlite3");
    let connection = Connection::open_with_flags(database, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let text = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, Option<String>>(0)).unwrap();
    assert_eq!(text("SELECT client_id FROM omi_runs"), None, "a name that was not given");
    assert_eq!(text("SELECT result_json FROM omi_runs").as_deref(), Some(r#"{"n":4}"#));
    assert_eq!(text("SELECT metadata_json FROM omi_adapter_bindings").as_deref(), Some(r#"{"mcp":["omi"]}"#));
    assert_eq!(text("SELECT adapter_native_run_id FROM omi_run_attempts").as_deref(), Some("turn-9"));
    assert_eq!(text("SELECT constraints_json FROM omi_grants").as_deref(), Some(r#"{"times":1}"#));
    assert_eq!(text("SELECT status FROM omi_sessions").as_deref(), Some("closed"));
}
