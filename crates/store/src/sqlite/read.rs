//! Reads rows: runs queries, and converts columns to the types of `core`.

use std::sync::Arc;

use mainspring_core::{
    AccessRole, ApiKey, Attempt, Cancellation, Cost, Damage, ExternalRef, LegacyAlias, Line, LineId, Message,
    MessageStatus, Mode, Origin, RequestName, RetryReason, Role, Rows, Run, RunState, RunStatus, Session,
    SessionStatus, Time, TitleSource, Usage, Visibility,
};
use mainspring_kernel::kernel::instructions_hash;
use mainspring_kernel::store::{EndedToolCall, OpenToolCall, PlacedMessage, Request, StoreError};
use rusqlite::{CachedStatement, Connection, OptionalExtension, Params, Result, Row};

use super::checksum;
use super::columns::{Columns, Id};
use super::error::read_error;
use super::state::state_read;

pub(super) mod artifacts;
pub(super) mod bindings;
pub(super) mod data;
pub(super) mod delegations;
pub(super) mod events;
pub(super) mod grants;
pub(super) mod ids;
pub(super) mod keys;
#[cfg(test)]
mod plans;
pub(super) mod runs;
pub(super) mod search;
pub(super) mod sessions;
pub(super) mod tree;
pub(super) mod tree_state;

macro_rules! session_columns {
    () => {
        "session_id, owner_id, agent_definition_id, key, title, status, surface_kind, external_ref_kind, external_ref_id, \
         legacy_client_scope, legacy_session_key, default_adapter_id, default_cwd, model_profile, \
         metadata_json, tip_line, tip_pos, tip_message_id, version, created_at_ms, updated_at_ms, last_activity_at_ms, \
         org_id, visibility, model, system_prompt, model_options, pinned, title_source, forked_from_session_id, \
         forked_from_message_id, base_line, base_pos, rules, tools, idle_unload_ms, labels, checksum"
    };
}
/// The columns of a run that never change, except the options and the hash of the system prompt.
macro_rules! run_request_columns {
    () => {
        "run_id, session_id, owner_id, run_no, parent_run_id, client_id, request_id, idempotency_key, fingerprint, mode, \
         prompt_message_id, options, place, created_at_ms, steers, system_prompt_hash, checksum"
    };
}
macro_rules! run_state_columns {
    () => {
        "adapter_id, status, active_attempt_id, retry_at_ms, wait, reason, error_code, error_message, pen_line, pen_pos, \
         attempts, last_attempt_id, final_message_id, input_tokens, output_tokens, cache_read_tokens, \
         cache_write_tokens, cost_nanos, started_at_ms, completed_at_ms, updated_at_ms, merged_into_run_id, budget, \
         output, retried_at_ms, goals, tasks, state_checksum"
    };
}
macro_rules! run_columns {
    () => {
        concat!(
            $crate::sqlite::read::run_request_columns!(),
            ", ",
            $crate::sqlite::read::run_state_columns!()
        )
    };
}
macro_rules! attempt_columns {
    () => {
        "attempt_id, run_id, attempt_no, status, adapter_id, node_id, binding_id, resume_from_attempt_id, error_code, \
         error_message, retryable, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_nanos, \
         cancellation_requested_at_ms, cancellation_dispatched_at_ms, cancellation_acknowledged_at_ms, created_at_ms, \
         started_at_ms, completed_at_ms, retry_reason, sandbox, left_running, adapter_instance_id, \
         adapter_native_run_id, metadata_json, checkpoint_artifact_id, checksum"
    };
}
macro_rules! step_columns {
    () => {
        "step_id, run_id, attempt_id, step_no, agent, provider, model, model_profile, prompt_message_id, \
         prompt_messages, output_message_id, tool_calls, stop_reason, error_code, error_message, input_tokens, \
         output_tokens, cache_read_tokens, cache_write_tokens, cost_nanos, raw_usage, started_at_ms, \
         first_piece_at_ms, completed_at_ms, prompt_digest_id, input_hash, raw, checksum"
    };
}
macro_rules! digest_columns {
    () => {
        "line, pos, session_id, message_id, prompt_message_id, summary, left_out, below, made_at_ms, checksum"
    };
}
macro_rules! artifact_columns {
    () => {
        "artifact_id, session_id, run_id, attempt_id, kind, role, uri, display_name, mime_type, content_hash, \
         size_bytes, created_at_ms, metadata_json, checksum"
    };
}
macro_rules! message_columns {
    () => {
        "message_id, session_id, run_id, role, status, line, pos, input_tokens, output_tokens, cache_read_tokens, \
         cache_write_tokens, cost_nanos, created_at_ms, content, agent, external_id, checksum"
    };
}
macro_rules! event_columns {
    () => {
        "event_seq, event_id, session_id, run_id, attempt_id, message_id, type, pos, created_at_ms, payload, checksum"
    };
}
macro_rules! effect_columns {
    () => {
        "run_id, tool_use_id, name, started_at_ms, message_id, result, checksum"
    };
}
macro_rules! chunk_columns {
    () => {
        "pos, message_id, block, text, checksum"
    };
}
macro_rules! state_columns {
    () => {
        "key, version, updated_at_ms, value, checksum"
    };
}
macro_rules! state_change_columns {
    () => {
        "key, version, change, checksum"
    };
}
macro_rules! line_columns {
    () => {
        "line, parent_line, parent_pos, end_pos, abandoned"
    };
}
macro_rules! key_columns {
    () => {
        "key_id, name, owner_id, org_id, role, hash, created_at_ms, expires_at_ms, revoked_at_ms, folders, \
         adapters, models, tools, spend_per_day_nanos"
    };
}
macro_rules! request_columns {
    () => {
        "owner_id, operation, key, fingerprint, answer, created_at_ms"
    };
}
pub(super) use {
    artifact_columns, attempt_columns, chunk_columns, digest_columns, effect_columns, event_columns,
    message_columns, run_columns, run_request_columns, run_state_columns, session_columns,
    state_change_columns, state_columns, step_columns,
};
use {key_columns, line_columns, request_columns};

/// The condition of the partial indexes of unfinished runs. SQLite uses them only if it is repeated exactly.
macro_rules! is_live {
    () => {
        "status <> 'succeeded' AND status <> 'failed' AND status <> 'cancelled' AND status <> 'timed_out' \
         AND status <> 'orphaned'"
    };
}

use is_live;

/// Compiles `sql`, or takes it from the cache of the connection.
pub(super) fn prepare<'a>(connection: &'a Connection, sql: &str) -> Result<CachedStatement<'a>> {
    #[cfg(test)]
    plans::record(sql);
    connection.prepare_cached(sql)
}

/// Returns the first row of `sql`.
pub(super) fn query_one<T>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnOnce(&mut Columns<'_>) -> Result<T>,
) -> Result<Option<T>, StoreError> {
    let found = prepare(connection, sql)
        .and_then(|mut statement| statement.query_row(params, |row| read(&mut Columns::new(row))).optional());
    found.map_err(|error| read_error(&error))
}

/// Returns all rows of `sql`.
pub(super) fn query_all<T>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    read: impl Fn(&mut Columns<'_>) -> Result<T>,
) -> Result<Vec<T>, StoreError> {
    let found = prepare(connection, sql).and_then(|mut statement| {
        statement.query_map(params, |row: &Row<'_>| read(&mut Columns::new(row)))?.collect::<Result<_>>()
    });
    found.map_err(|error| read_error(&error))
}

/// Returns all rows of `sql`, with the damaged ones in their places.
pub(super) fn query_stored<T>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    read: impl Fn(&mut Columns<'_>) -> Result<T>,
) -> Result<Vec<Stored<T>>, StoreError> {
    query_all(connection, sql, params, |columns| stored(read(columns)))
}

/// A query for one row that is repeated many times during a read. Its statement is taken from the cache of the connection
/// once: finding it there takes about as long as reading a row.
pub(super) struct Lookup<'a> {
    connection: &'a Connection,
    sql: &'static str,
    statement: Option<CachedStatement<'a>>,
}

impl<'a> Lookup<'a> {
    pub(super) fn new(connection: &'a Connection, sql: &'static str) -> Self {
        Self { connection, sql, statement: None }
    }

    /// Returns the first row.
    pub(super) fn query_one<T>(
        &mut self,
        params: impl Params,
        read: impl FnOnce(&mut Columns<'_>) -> Result<T>,
    ) -> Result<Option<T>, StoreError> {
        self.query(params, read).map_err(|error| read_error(&error))
    }

    /// Returns the first row, or its damage.
    pub(super) fn query_stored<T>(
        &mut self,
        params: impl Params,
        read: impl FnOnce(&mut Columns<'_>) -> Result<T>,
    ) -> Result<Option<Stored<T>>, StoreError> {
        self.query_one(params, |columns| stored(read(columns)))
    }

    fn query<T>(
        &mut self,
        params: impl Params,
        read: impl FnOnce(&mut Columns<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        let statement = match &mut self.statement {
            Some(statement) => statement,
            unprepared => unprepared.insert(prepare(self.connection, self.sql)?),
        };
        statement.query_row(params, |row| read(&mut Columns::new(row))).optional()
    }
}

/// A row as it was read, or its damage.
pub(super) type Stored<T> = std::result::Result<T, Damage>;

/// Separates the damage of one row from an error that concerns the whole read.
fn stored<T>(read: Result<T>) -> Result<Stored<T>> {
    match read {
        Ok(row) => Ok(Ok(row)),
        Err(error) => checksum::damage(error).map(Err),
    }
}

/// Reads a page of `limit` intact rows, and the damaged ones between them. `read` takes the number of rows to read.
///
/// The page ends with an intact row, unless the list ends, so that the next page can begin after that row.
pub(super) fn rows<T>(
    limit: usize,
    read: impl Fn(usize) -> Result<Vec<Stored<T>>, StoreError>,
) -> Result<Rows<T>, StoreError> {
    let mut asked = limit;
    loop {
        let rows = read(asked)?;
        let (count, damaged) = (rows.len(), rows.iter().filter(|row| row.is_err()).count());
        if count < asked || count - damaged >= limit {
            return Ok(rows.into_iter().collect());
        }
        asked = limit.saturating_add(damaged);
    }
}

/// Converts a limit to the integer type of SQLite.
pub(super) fn sql_limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// Returns the time and the id below which a page starts. Without `before`, that is the maximum time, which no row has, so
/// that the id does not matter.
fn page_start<T: Id>(before: Option<(Time, T)>) -> (i64, Vec<u8>) {
    before.map_or((i64::MAX, vec![]), |(time, id)| (time.0, id.bytes().into()))
}

pub(super) fn session(columns: &mut Columns<'_>) -> Result<Session> {
    columns.check(&checksum::SESSION)?;
    Ok(Session {
        id: columns.id()?,
        owner: columns.get()?,
        agent_definition: columns.get()?,
        key: columns.get()?,
        title: columns.get()?,
        status: columns.name(SessionStatus::from_name)?,
        surface_kind: columns.get()?,
        external_ref: {
            let (kind, id) = (columns.get::<Option<_>>()?, columns.get::<Option<_>>()?);
            kind.zip(id).map(|(kind, id)| ExternalRef { kind, id })
        },
        legacy_alias: {
            let (scope, key) = (columns.get::<Option<_>>()?, columns.get::<Option<_>>()?);
            scope.zip(key).map(|(scope, key)| LegacyAlias { scope, key })
        },
        adapter: columns.get()?,
        cwd: columns.get()?,
        model_profile: columns.get()?,
        metadata: columns.json()?,
        tip: columns.point()?,
        tip_message: columns.maybe_id()?,
        version: columns.number()?,
        created_at: columns.time()?,
        updated_at: columns.time()?,
        last_activity_at: columns.time()?,
        org: columns.get()?,
        visibility: columns.name(Visibility::from_name)?,
        model: columns.get()?,
        system_prompt: columns.get()?,
        model_options: columns.maybe_json()?,
        pinned: columns.get()?,
        pinned_at: None,
        title_source: columns.maybe_name(TitleSource::from_name)?,
        forked_from: {
            let (session, message) = (columns.maybe_id()?, columns.maybe_id()?);
            session.zip(message).map(|(session, message)| Origin { session, message })
        },
        base: columns.point()?,
        rules: columns.maybe_json()?.unwrap_or_default(),
        tools: columns.maybe_json()?.unwrap_or_default(),
        idle_unload_ms: columns.get::<Option<i64>>()?.map(i64::cast_unsigned),
        labels: columns.maybe_json()?.unwrap_or_default(),
    })
}

pub(super) fn run(columns: &mut Columns<'_>) -> Result<Run> {
    let request = run_request(columns)?;
    // Skips the checksum of the request.
    columns.skip(1);
    columns.check(&checksum::RUN_STATE)?;
    Ok(Run {
        adapter: columns.get()?,
        state: state_read(columns)?,
        pen: columns.point()?,
        attempts: columns.get()?,
        last_attempt: columns.maybe_id()?,
        final_message: columns.maybe_id()?,
        usage: columns.usage()?,
        started_at: columns.maybe_time()?,
        completed_at: columns.maybe_time()?,
        updated_at: columns.time()?,
        merged_into: columns.maybe_id()?,
        budget: columns.maybe_json()?,
        output: columns.maybe_json()?,
        retried_at: columns.maybe_time()?,
        goals: columns.maybe_json()?.unwrap_or_default(),
        tasks: columns.maybe_json()?.unwrap_or_default(),
        ..request
    })
}

/// Reads the request of a run. The other fields are those of a run that was just accepted.
pub(super) fn run_request(columns: &mut Columns<'_>) -> Result<Run> {
    columns.check(&checksum::RUN_REQUEST)?;
    let mut run = Run {
        id: columns.id()?,
        session: columns.id()?,
        owner: columns.get()?,
        no: columns.get()?,
        parent: columns.maybe_id()?,
        request: RequestName {
            client_id: columns.get()?,
            request_id: columns.get()?,
            idempotency_key: columns.get()?,
        },
        fingerprint: columns.get()?,
        mode: columns.name(Mode::from_name)?,
        prompt: columns.maybe_id()?,
        options: columns.maybe_json()?.unwrap_or_default(),
        place: columns.maybe_json()?.unwrap_or_default(),
        created_at: columns.time()?,
        steers: columns.get::<Option<bool>>()?.unwrap_or(false),
        system_prompt_hash: columns.get()?,
        adapter: String::new(),
        state: RunState::Queued { retry_at: None, retry_reason: None },
        pen: None,
        attempts: 0,
        last_attempt: None,
        final_message: None,
        usage: Usage::default(),
        started_at: None,
        completed_at: None,
        updated_at: Time(0),
        merged_into: None,
        budget: None,
        // Read from the messages where it is needed.
        final_text: None,
        output: None,
        retried_at: None,
        goals: vec![],
        tasks: vec![],
    };
    run.updated_at = run.created_at;
    // Runs of earlier versions have no hash.
    if run.system_prompt_hash.is_none() {
        run.system_prompt_hash = instructions_hash(run.options.system_prompt.as_deref());
    }
    Ok(run)
}

pub(super) fn attempt(columns: &mut Columns<'_>) -> Result<Attempt> {
    columns.check(&checksum::ATTEMPT)?;
    Ok(Attempt {
        id: columns.id()?,
        run: columns.id()?,
        no: columns.get()?,
        status: columns.name(RunStatus::from_name)?,
        adapter: columns.get()?,
        node: columns.id()?,
        binding: columns.maybe_id()?,
        resume_from: columns.maybe_id()?,
        error: columns.failure()?,
        retryable: columns.get()?,
        usage: columns.usage()?,
        cancellation: Cancellation {
            requested_at: columns.maybe_time()?,
            dispatched_at: columns.maybe_time()?,
            acknowledged_at: columns.maybe_time()?,
        },
        created_at: columns.time()?,
        started_at: columns.maybe_time()?,
        completed_at: columns.maybe_time()?,
        retry_reason: columns.maybe_name(RetryReason::from_name)?,
        sandbox: columns.maybe_json()?,
        left_running: columns.maybe_json()?.unwrap_or_default(),
        instance: columns.get()?,
        native_run: columns.get()?,
        metadata: columns.maybe_json()?.unwrap_or_default(),
        checkpoint: columns.maybe_id()?,
    })
}

pub(super) fn message(columns: &mut Columns<'_>) -> Result<PlacedMessage> {
    columns.check(&checksum::MESSAGE)?;
    let (id, session, run) = (columns.id()?, columns.id()?, columns.maybe_id()?);
    let (role, status) = (columns.name(Role::from_name)?, columns.name(MessageStatus::from_name)?);
    let point = columns.point()?;
    let usage = maybe_usage(columns)?;
    let (created_at, content) = (columns.time()?, columns.json()?);
    let (agent, external_id) = (columns.get()?, columns.get()?);
    Ok(PlacedMessage {
        message: Arc::new(Message {
            id,
            session,
            run,
            role,
            status,
            content,
            usage,
            created_at,
            agent,
            external_id,
        }),
        point,
    })
}

fn maybe_usage(columns: &mut Columns<'_>) -> Result<Option<Usage>> {
    if columns.peek::<Option<i64>>()?.is_none() {
        columns.skip(5);
        return Ok(None);
    }
    columns.usage().map(Some)
}

pub(super) fn effect(columns: &mut Columns<'_>) -> Result<OpenToolCall> {
    columns.check(&checksum::EFFECT)?;
    Ok(OpenToolCall {
        run: columns.id()?,
        tool_use_id: columns.get()?,
        name: columns.get()?,
        started_at: columns.maybe_time()?,
        ended: match columns.maybe_id()? {
            Some(message) => Some(EndedToolCall { message, result: columns.json()? }),
            None => None,
        },
    })
}

fn line(columns: &mut Columns<'_>) -> Result<Line> {
    Ok(Line {
        id: LineId(columns.get()?),
        parent: columns.point()?,
        end: columns.get()?,
        abandoned: columns.get()?,
    })
}

fn request(columns: &mut Columns<'_>) -> Result<Request> {
    Ok(Request {
        owner: columns.get()?,
        operation: columns.get()?,
        key: columns.get()?,
        fingerprint: columns.get()?,
        answer: columns.get()?,
        at: columns.time()?,
    })
}

pub(super) fn key(columns: &mut Columns<'_>) -> Result<ApiKey> {
    Ok(ApiKey {
        id: columns.id()?,
        name: columns.get()?,
        owner: columns.get()?,
        org: columns.get()?,
        role: columns.name(AccessRole::from_name)?,
        hash: columns.get()?,
        created_at: columns.time()?,
        expires_at: columns.maybe_time()?,
        revoked_at: columns.maybe_time()?,
        folders: columns.maybe_json()?,
        adapters: columns.maybe_json()?,
        models: columns.maybe_json()?,
        tools: columns.maybe_json()?,
        spend_per_day: columns.get::<Option<i64>>()?.map(|nanos| Cost(nanos.unsigned_abs())),
    })
}
