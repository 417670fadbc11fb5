//! A state directory of the original daemon, written row by row as the original does.

use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::types::ToSql;
use rusqlite::{Connection, params};
use serde_json::{Value, json};

pub(super) const OWNER: &str = "ada-uid";
const SCHEMA: &str = include_str!("schema.sql");

/// A thought in the original's records.
pub(super) const THOUGHT: &str = "a-thought-that-is-nobodys-business";

/// The original with its database open.
pub(super) struct Original {
    folder: tempfile::TempDir,
    pub(super) database: Connection,
    clock: i64,
}

/// Builds an id in the original's format from a prefix and `n`.
pub(super) fn id(prefix: &str, n: u64) -> String {
    format!("{prefix}_{n:012x}4000a000{n:012x}")
}

impl Original {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let database = Connection::open(folder.path().join("omi-agentd.sqlite3")).unwrap();
        database
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA busy_timeout = 5000;
                 PRAGMA wal_autocheckpoint = 0;",
            )
            .unwrap();
        database.execute_batch(SCHEMA).unwrap();
        // Allows irregular rows, which the schema's own checks would reject.
        database.execute_batch("PRAGMA foreign_keys = OFF; PRAGMA ignore_check_constraints = ON").unwrap();
        Self { folder, database, clock: 1_782_240_000_000 }
    }

    /// Path of the state directory, while the original runs.
    pub(super) fn running_dir(&self) -> &Path {
        self.folder.path()
    }

    /// Copies the files a killed original leaves into `to`: the database, and a WAL that holds most of the data.
    pub(super) fn copy_after_kill(&self, to: &Path) -> PathBuf {
        let copy = to.join("omi");
        fs::create_dir(&copy).unwrap();
        for name in ["omi-agentd.sqlite3", "omi-agentd.sqlite3-wal"] {
            fs::copy(self.folder.path().join(name), copy.join(name)).unwrap();
        }
        assert!(fs::metadata(copy.join("omi-agentd.sqlite3-wal")).unwrap().len() > 0);
        copy
    }

    fn now(&mut self) -> i64 {
        self.clock += 1;
        self.clock
    }

    /// Inserts a row; unnamed columns get their defaults.
    pub(super) fn insert(&self, table: &str, columns: &[(&str, &dyn ToSql)]) {
        let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
        let places: Vec<String> = (1..=columns.len()).map(|at| format!("?{at}")).collect();
        let sql = format!("INSERT INTO {table} ({}) VALUES ({})", names.join(", "), places.join(", "));
        let values: Vec<&dyn ToSql> = columns.iter().map(|(_, value)| *value).collect();
        self.database.prepare_cached(&sql).unwrap().execute(&values[..]).unwrap();
    }

    pub(super) fn session(&mut self, n: u64, surface: &str, more: &[(&str, &dyn ToSql)]) -> String {
        let (id, now) = (id("ses", n), self.now());
        let mut columns: Vec<(&str, &dyn ToSql)> = vec![
            ("session_id", &id),
            ("owner_id", &OWNER),
            ("status", &"open"),
            ("surface_kind", &surface),
            ("default_adapter_id", &"acp"),
            ("created_at_ms", &now),
            ("updated_at_ms", &now),
            ("last_activity_at_ms", &now),
        ];
        columns.retain(|(name, _)| more.iter().all(|(other, _)| other != name));
        columns.extend(more);
        self.insert("sessions", &columns);
        id
    }

    /// Inserts a run and the event of its acceptance.
    pub(super) fn run(&mut self, n: u64, session: &str, prompt: &str, more: &[(&str, &dyn ToSql)]) -> String {
        let (id, now) = (id("run", n), self.now());
        let input = json!({"prompt": prompt, "systemPrompt": "be kind", "metadata": {}}).to_string();
        let request = format!("request-{n}");
        let mut columns: Vec<(&str, &dyn ToSql)> = vec![
            ("run_id", &id),
            ("session_id", &session),
            ("client_id", &"swift"),
            ("request_id", &request),
            ("status", &"succeeded"),
            ("mode", &"act"),
            ("input_json", &input),
            ("cwd", &"/"),
            ("created_at_ms", &now),
            ("updated_at_ms", &now),
        ];
        columns.retain(|(name, _)| more.iter().all(|(other, _)| other != name));
        columns.extend(more);
        self.insert("runs", &columns);
        self.event(session, Some(&id), None, "run.created", &json!({"runId": id, "requestId": request}));
        id
    }

    pub(super) fn attempt(
        &mut self,
        n: u64,
        run: &str,
        session: &str,
        more: &[(&str, &dyn ToSql)],
    ) -> String {
        let (id, now) = (id("att", n), self.now());
        let mut columns: Vec<(&str, &dyn ToSql)> = vec![
            ("attempt_id", &id),
            ("run_id", &run),
            ("attempt_no", &1),
            ("status", &"succeeded"),
            ("adapter_id", &"acp"),
            ("adapter_instance_id", &""),
            ("created_at_ms", &now),
            ("updated_at_ms", &now),
        ];
        columns.retain(|(name, _)| more.iter().all(|(other, _)| other != name));
        columns.extend(more);
        self.insert("run_attempts", &columns);
        self.event(
            session,
            Some(run),
            Some(&id),
            "attempt.created",
            &json!({"attemptId": id, "attemptNo": 1}),
        );
        id
    }

    pub(super) fn binding(&mut self, n: u64, session: &str, more: &[(&str, &dyn ToSql)]) -> String {
        let (id, now) = (id("bind", n), self.now());
        let native = format!("native-{n}");
        let mut columns: Vec<(&str, &dyn ToSql)> = vec![
            ("binding_id", &id),
            ("session_id", &session),
            ("adapter_id", &"acp"),
            ("binding_generation", &1),
            ("adapter_native_session_id", &native),
            ("resume_fidelity", &"native"),
            ("status", &"active"),
            ("cwd", &"/"),
            ("created_at_ms", &now),
            ("updated_at_ms", &now),
        ];
        columns.retain(|(name, _)| more.iter().all(|(other, _)| other != name));
        columns.extend(more);
        self.insert("adapter_bindings", &columns);
        id
    }

    /// Inserts an event and returns its number.
    pub(super) fn event(
        &mut self,
        session: &str,
        run: Option<&str>,
        attempt: Option<&str>,
        kind: &str,
        payload: &Value,
    ) -> u64 {
        let now = self.now();
        let id = format!("evt_{now:032x}");
        let sql =
            "INSERT INTO events (event_id, session_id, run_id, attempt_id, type, payload_json, created_at_ms)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        let payload = payload.to_string();
        let mut insert = self.database.prepare_cached(sql).unwrap();
        insert.execute(params![id, session, run, attempt, kind, payload, now]).unwrap();
        u64::try_from(self.database.last_insert_rowid()).unwrap()
    }

    /// Inserts a whole turn: an attempt that speaks, thinks and uses a tool, and its end.
    pub(super) fn turn(&mut self, n: u64, session: &str, run: &str, binding: &str, status: &str) -> String {
        let attempt = self.attempt(n, run, session, &[("binding_id", &binding), ("status", &status)]);
        let mut says =
            |kind: &str, payload: Value| self.event(session, Some(run), Some(&attempt), kind, &payload);
        says("attempt.started", json!({"attemptId": attempt, "bindingId": binding}));
        says("run.running", json!({"runId": run, "attemptId": attempt}));
        says("adapter.thinking_delta", json!({"type": "thinking_delta", "text": THOUGHT}));
        says("adapter.text_delta", json!({"type": "text_delta", "text": "hello "}));
        let tool = |status: &str| json!({"type": "tool_activity", "name": "read", "status": status, "toolUseId": "t1"});
        says("adapter.tool_activity", tool("started"));
        says("adapter.tool_activity", tool("completed"));
        says("adapter.text_delta", json!({"type": "text_delta", "text": "Ada"}));
        says(&format!("attempt.{status}"), json!({"attemptId": attempt, "status": status}));
        says(&format!("run.{status}"), json!({"runId": run, "status": status}));
        attempt
    }

    pub(super) fn artifact(&self, n: u64, session: &str, run: &str, uri: &str, size: u64) -> String {
        let id = id("art", n);
        let size = i64::try_from(size).unwrap();
        self.insert(
            "artifacts",
            &[
                ("artifact_id", &id),
                ("session_id", &session),
                ("run_id", &run),
                ("kind", &"report"),
                ("role", &"result"),
                ("uri", &uri),
                ("display_name", &"report.md"),
                ("mime_type", &"text/markdown"),
                ("content_hash", &"sha256:0"),
                ("size_bytes", &size),
                ("created_at_ms", &1),
            ],
        );
        id
    }

    pub(super) fn grant(&self, n: u64, session: &str, run: &str, more: &[(&str, &dyn ToSql)]) -> String {
        let id = id("grant", n);
        let mut columns: Vec<(&str, &dyn ToSql)> = vec![
            ("grant_id", &id),
            ("session_id", &session),
            ("run_id", &run),
            ("capability", &"*"),
            ("operation", &"*"),
            ("resource_pattern", &"*"),
            ("effect", &"allow"),
            ("source", &"legacy_default"),
            ("created_at_ms", &1),
        ];
        columns.extend(more);
        self.insert("grants", &columns);
        id
    }
}
