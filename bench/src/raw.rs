//! Hand-written SQLite: a plain loop over prepared statements with the same rows, file and settings.

use std::path::Path;

use mainspring_core::{Attempt, Body, Message, Point, Run, SessionId};
use mainspring_kernel::store::NewEvent;
use rusqlite::{Connection, params};

use crate::world;

/// Opens a database with the schema and settings of the store, durability full.
pub(crate) fn open(path: &Path) -> Connection {
    // The store creates the schema.
    drop(world::store(path));
    connect(path)
}

/// Connects to an existing database.
pub(crate) fn connect(path: &Path) -> Connection {
    let connection = Connection::open(path).unwrap();
    connection.set_prepared_statement_cache_capacity(64);
    connection
        .execute_batch(
            "PRAGMA journal_mode = WAL;
             PRAGMA synchronous = FULL;
             PRAGMA foreign_keys = ON;
             PRAGMA wal_autocheckpoint = 2000;
             PRAGMA journal_size_limit = 67108864;
             PRAGMA temp_store = MEMORY;
             PRAGMA cache_size = -16384;",
        )
        .unwrap();
    connection
}

/// Runs `work` in a transaction.
pub(crate) fn transaction(connection: &Connection, work: impl FnOnce()) {
    connection.prepare_cached("BEGIN IMMEDIATE").unwrap().execute([]).unwrap();
    work();
    connection.prepare_cached("COMMIT").unwrap().execute([]).unwrap();
}

fn insert(connection: &Connection, sql: &str, params: impl rusqlite::Params) {
    connection.prepare_cached(sql).unwrap().execute(params).unwrap();
}

pub(crate) fn session(connection: &Connection, id: SessionId) {
    insert(
        connection,
        "INSERT INTO sessions (session_id, owner_id, agent_definition_id, status, surface_kind, default_adapter_id,
           metadata_json, version, created_at_ms, updated_at_ms, last_activity_at_ms)
         VALUES (?1, ?2, 'generalist', 'open', 'api', 'answer', '{}', 1, 0, 0, 0)",
        params![id.as_bytes(), world::OWNER],
    );
}

pub(crate) fn run(connection: &Connection, run: &Run, seq: i64) {
    insert(
        connection,
        "INSERT INTO runs (run_id, session_id, owner_id, run_no, fingerprint, mode, prompt_message_id, created_seq,
           created_at_ms, adapter_id, status, attempts, last_attempt_id, final_message_id, input_tokens, output_tokens,
           cache_read_tokens, cache_write_tokens, cost_nanos, started_at_ms, completed_at_ms, updated_at_ms)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, 0, 0, 0, 0, 0, ?15, ?16, ?17)",
        params![
            run.id.as_bytes(),
            run.session.as_bytes(),
            run.owner,
            run.no,
            run.fingerprint,
            run.mode.name(),
            run.prompt.as_ref().map(|id| id.as_bytes()),
            seq,
            run.created_at.0,
            run.adapter,
            run.state.status().name(),
            run.attempts,
            run.last_attempt.as_ref().map(|id| id.as_bytes()),
            run.final_message.as_ref().map(|id| id.as_bytes()),
            run.started_at.map(|at| at.0),
            run.completed_at.map(|at| at.0),
            run.updated_at.0,
        ],
    );
}

pub(crate) fn attempt(connection: &Connection, attempt: &Attempt) {
    insert(
        connection,
        "INSERT INTO run_attempts (run_id, attempt_no, attempt_id, status, adapter_id, node_id, retryable, input_tokens,
           output_tokens, cache_read_tokens, cache_write_tokens, cost_nanos, created_at_ms, started_at_ms,
           completed_at_ms)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0, 0, 0, 0, 0, 0, ?7, ?8, ?9)",
        params![
            attempt.run.as_bytes(),
            attempt.no,
            attempt.id.as_bytes(),
            attempt.status.name(),
            attempt.adapter,
            attempt.node.as_bytes(),
            attempt.created_at.0,
            attempt.started_at.map(|at| at.0),
            attempt.completed_at.map(|at| at.0),
        ],
    );
}

pub(crate) fn event(connection: &Connection, session: SessionId, event: &NewEvent, payload: &str, seq: i64) {
    let message = match &event.body {
        Body::MessageCompleted { message, .. } => Some(message.id),
        _ => None,
    };
    insert(
        connection,
        "INSERT INTO events (event_seq, event_id, session_id, run_id, attempt_id, message_id, type, pos, created_at_ms,
           payload)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        params![
            seq,
            event.id.as_bytes(),
            session.as_bytes(),
            event.run.as_ref().map(|id| id.as_bytes()),
            event.attempt.as_ref().map(|id| id.as_bytes()),
            message.as_ref().map(|id| id.as_bytes()),
            event.body.kind(),
            event.pos.cast_signed(),
            event.at.0,
            payload,
        ],
    );
}

pub(crate) fn line(connection: &Connection, line: i64, session: SessionId) {
    insert(
        connection,
        "INSERT INTO lines (line, session_id, end_pos, abandoned) VALUES (?1, ?2, 0, 0)",
        params![line, session.as_bytes()],
    );
}

pub(crate) fn message(connection: &Connection, message: &Message, at: Point, content: &str) {
    insert(
        connection,
        "INSERT INTO messages (message_id, session_id, run_id, role, status, line, pos, created_at_ms, content)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        params![
            message.id.as_bytes(),
            message.session.as_bytes(),
            message.run.as_ref().map(|id| id.as_bytes()),
            message.role.name(),
            message.status.name(),
            at.line.0,
            at.pos,
            message.created_at.0,
            content,
        ],
    );
    insert(connection, "UPDATE lines SET end_pos = ?2 WHERE line = ?1", params![at.line.0, at.pos + 1]);
}

/// Records that a run of the session has started.
pub(crate) fn run_started(connection: &Connection, run: &Run) {
    insert(
        connection,
        "UPDATE sessions SET last_activity_at_ms = ?2 WHERE session_id = ?1",
        params![run.session.as_bytes(), run.updated_at.0],
    );
}

/// Records the end of the run, its attempt and the new tip of the session.
pub(crate) fn run_ended(connection: &Connection, run: &Run, at: Point) {
    insert(
        connection,
        "UPDATE runs SET status = 'succeeded', final_message_id = ?2, completed_at_ms = ?3, updated_at_ms = ?3
         WHERE run_id = ?1",
        params![
            run.id.as_bytes(),
            run.final_message.as_ref().map(|id| id.as_bytes()),
            run.updated_at.0
        ],
    );
    insert(
        connection,
        "UPDATE run_attempts SET status = 'succeeded', completed_at_ms = ?2 WHERE run_id = ?1",
        params![run.id.as_bytes(), run.updated_at.0],
    );
    insert(
        connection,
        "UPDATE sessions SET tip_line = ?2, tip_pos = ?3, version = version + 1, last_activity_at_ms = ?4
         WHERE session_id = ?1",
        params![run.session.as_bytes(), at.line.0, at.pos, run.updated_at.0],
    );
}
