//! The kinds of records that are copied, and their order.

use mainspring_core::{
    ApiKey, Artifact, Attempt, Binding, Delegation, Digest, Grant, Run, Session, SessionId, Step,
};
use mainspring_kernel::store::{OpenToolCall, PlacedMessage};
use serde::{Deserialize, Serialize};

/// A record in the form in which it is copied.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Record {
    Key(Box<ApiKey>),
    Session(Box<Session>),
    /// A run, and the cursor of the last event before it.
    Run(Box<Run>, i64),
    Attempt(Box<Attempt>),
    Message(PlacedMessage),
    Step(Box<Step>),
    Effect(SessionId, Box<OpenToolCall>),
    Digest(SessionId, Box<Digest>),
    Binding(Box<Binding>),
    Grant(Box<Grant>),
    Artifact(Box<Artifact>),
    Delegation(Box<Delegation>),
    Values(Vec<Value>),
}

/// One value of a row that is not read as a type of `core`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Value {
    Int(Option<i64>),
    Text(Option<String>),
    Bytes(Option<Vec<u8>>),
    Bool(bool),
}

/// A kind of records.
pub(crate) struct CopyTable {
    /// The name in PostgreSQL.
    pub(crate) name: &'static str,
    /// The columns of records that travel as values: a letter for the type (`i` integer, `t` text, `b` bytes, `f` flag, `x`
    /// text that PostgreSQL has as bytes), the name, and after `=` the name in SQLite if that is another one. Empty for a
    /// type of `core`.
    pub(crate) columns: &'static str,
    key: Key,
}

/// The columns by which the records of a table are ordered, and found again. They are not NULL, and no two records have the
/// same values.
enum Key {
    /// This number of columns, from the first one.
    First(usize),
    /// These columns, in the form of [`CopyTable::columns`].
    Columns(&'static str),
}

/// One column of a [`CopyTable`].
pub(crate) struct Column<'a> {
    pub(crate) kind: u8,
    pub(crate) postgres: &'a str,
    pub(crate) sqlite: &'a str,
}

impl CopyTable {
    /// The columns of records that travel as values.
    pub(crate) fn columns(&self) -> Vec<Column<'static>> {
        parse_columns(self.columns)
    }

    /// The columns by which the records are ordered.
    pub(crate) fn key(&self) -> Vec<Column<'static>> {
        match self.key {
            Key::First(count) => self.columns().into_iter().take(count).collect(),
            Key::Columns(columns) => parse_columns(columns),
        }
    }
}

fn parse_columns(columns: &'static str) -> Vec<Column<'static>> {
    let column = |text: &'static str| {
        let (kind, name) = text.trim().split_once(' ').unwrap_or(("t", text));
        let (postgres, sqlite) = name.split_once('=').unwrap_or((name, name));
        Column { kind: kind.as_bytes()[0], postgres, sqlite }
    };
    columns.split(',').map(column).collect()
}

const fn typed(name: &'static str, key: &'static str) -> CopyTable {
    CopyTable { name, columns: "", key: Key::Columns(key) }
}

const fn values(name: &'static str, key: usize, columns: &'static str) -> CopyTable {
    CopyTable { name, columns, key: Key::First(key) }
}

/// The table of the artifacts that forks have inherited.
pub(crate) const INHERITED: &str = "inherited_artifacts";

/// All tables. A table comes after those that it refers to.
pub(crate) const TABLES: &[CopyTable] = &[
    values("owners", 1, "t owner_id, t org_id, i claimed_at=claimed_at_ms"),
    typed("api_keys", "b key_id"),
    values("key_spend", 2, "b key_id, i day, i cost_nanos, f at_least"),
    values(
        "agents",
        3,
        "t owner_id, t agent_id, i version, b hash, i created_at=created_at_ms, t definition=definition_json",
    ),
    values(
        "goal_types",
        2,
        "t owner_id, t name, i created_at=created_at_ms, i updated_at=updated_at_ms, t body=type_json",
    ),
    values("webhooks", 1, "b webhook_id, t owner_id, t body=webhook_json"),
    values("dead_letters", 2, "b webhook_id, i cursor=event_seq, t body=letter_json"),
    values("owner_state", 2, "t owner_id, t key, i version, i updated_at=updated_at_ms, t value"),
    values("owner_state_versions", 1, "t owner_id, i version, i keys"),
    values(
        "native_owners",
        2,
        "t adapter_id, t native_id=adapter_native_session_id, t owner_id, t native_key",
    ),
    values(
        "requests",
        3,
        "t owner_id, t operation, t key, b fingerprint, t answer, i created_at=created_at_ms",
    ),
    typed("sessions", "b session_id"),
    values(
        "lines",
        1,
        "i id, i line, b session_id, i parent_line, i parent_pos, i end_pos, f abandoned, b opened_by, i opened_cursor=opened_seq",
    ),
    typed("runs", "b run_id"),
    typed("attempts", "b run_id, i attempt_no"),
    typed("messages", "i arrival=id"),
    typed("steps", "b run_id, i step_no, b step_id"),
    values("step_inputs", 2, "b session_id, t hash, t input"),
    typed("digests", "i line, i pos, b session_id"),
    values("cursors", 3, "b session_id, i line, i pos, i to_line"),
    values("chunks", 2, "b session_id, i pos, b message_id, i block, x text"),
    typed("effects", "i id"),
    values("inbox", 1, "i id, b session_id, b event_id, i created_at=created_at_ms, t note=item"),
    typed("bindings", "b binding_id"),
    typed("grants", "b grant_id"),
    typed("artifacts", "b artifact_id"),
    values("blobs_loose", 1, "t content_hash"),
    typed("delegations", "b delegation_id"),
    values("retention", 1, "b session_id, i floor_cursor=floor_seq, i floor_pos, f pruned"),
    values(
        "session_state",
        1,
        "i id, b session_id, i line, i pos, f aside, i cursor=seq, t key, i version, i updated_at=updated_at_ms, t value",
    ),
    values("run_state", 2, "b run_id, t key, i version, i updated_at=updated_at_ms, t value"),
    values("state_history", 3, "t place, t key, i version, t change"),
    values("feedback", 3, "b session_id, b message_id, t owner_id, t body=feedback_json"),
    values("pins", 2, "t owner_id, b session_id, i pinned_at=pinned_at_ms"),
    values(INHERITED, 2, "b session_id, b artifact_id, t content_hash, i size_bytes, t body=artifact_json"),
    values("edge_records", 3, "t kind, t scope, t record_id, t body"),
    values(
        "events",
        1,
        "i cursor=event_seq, b event_id, b session_id, b run_id, b attempt_id, b message_id, t type, i pos, i created_at=created_at_ms, t payload",
    ),
    values("histories", 1, "i id, t token, i after_cursor=after_seq"),
    values("lost_events", 1, "i after_cursor=after_seq, i until_cursor=until_seq"),
];
