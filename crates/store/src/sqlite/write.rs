//! Writes the rows of a commit.
//!
//! A row with an id is inserted, or replaced if it exists. An update names only the columns that can change, because
//! SQLite rewrites the index entries of every column that the update names, changed or not.

use mainspring_core::{
    Attempt, Line, LineId, Message, MessageId, MessageStatus, Point, Position, RetryReason, Run, SessionId,
};
use mainspring_kernel::store::{InboxItem, NewId, OpenToolCall, Request, StoreError, Unique};
use rusqlite::{Connection, OptionalExtension, Result, params};

use super::checksum;
use super::columns::{Id, blob, failure, int, json, ms, object, point, usage_columns};
use super::read::{attempt_columns, effect_columns, message_columns, run_columns};
use super::state::StateColumns;

/// A write that failed.
pub(super) enum WriteError {
    /// An error of SQLite.
    Sqlite(rusqlite::Error),
    /// A row that must be unique exists, or a row that must exist does not.
    Conflict(Unique),
}

impl From<rusqlite::Error> for WriteError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<WriteError> for StoreError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Sqlite(error) => super::error::write_error(&error),
            WriteError::Conflict(unique) => Self::Conflict(unique),
        }
    }
}

pub(super) type WriteResult = Result<(), WriteError>;

/// Fails with a conflict if a row has this id.
pub(super) fn fresh_check(connection: &Connection, fresh: NewId) -> WriteResult {
    let (sql, id) = match fresh {
        NewId::Session(id) => ("SELECT 1 FROM sessions WHERE session_id = ?1", id.bytes()),
        NewId::Run(id) => ("SELECT 1 FROM runs WHERE run_id = ?1", id.bytes()),
        NewId::Message(id) => ("SELECT 1 FROM messages WHERE message_id = ?1", id.bytes()),
        NewId::Artifact(id) => ("SELECT 1 FROM artifacts WHERE artifact_id = ?1", id.bytes()),
    };
    match connection.prepare_cached(sql)?.exists([id])? {
        true => Err(WriteError::Conflict(Unique::Id)),
        false => Ok(()),
    }
}

pub(super) fn run_write(connection: &Connection, run: &Run, seq: u64) -> WriteResult {
    let state = StateColumns::new(&run.state)?;
    let (error_code, error_message) = failure(state.error);
    let (pen_line, pen_pos) = point(run.pen);
    let [input, output, cache_read, cache_write, cost] = usage_columns(&run.usage);
    let options = (run.options != Default::default()).then(|| json(&run.options)).transpose()?;
    let place = run.place.is_branch().then(|| json(&run.place)).transpose()?;
    let budget = run.budget.as_ref().map(json).transpose()?;
    let structured = run.output.as_ref().map(json).transpose()?;
    let goals = (!run.goals.is_empty()).then(|| json(&run.goals)).transpose()?;
    let tasks = (!run.tasks.is_empty()).then(|| json(&run.tasks)).transpose()?;
    let request = params![
        run.id.bytes(),
        run.session.bytes(),
        run.owner,
        run.no,
        blob(run.parent),
        run.request.client_id,
        run.request.request_id,
        run.request.idempotency_key,
        run.fingerprint,
        run.mode.name(),
        blob(run.prompt),
        options,
        place,
        run.created_at.0,
        run.steers.then_some(1),
        run.system_prompt_hash,
    ];
    let state = params![
        run.adapter,
        run.state.status().name(),
        blob(state.attempt),
        ms(state.retry_at),
        state.wait,
        state.reason,
        error_code,
        error_message,
        pen_line,
        pen_pos,
        run.attempts,
        blob(run.last_attempt),
        blob(run.final_message),
        input,
        output,
        cache_read,
        cache_write,
        cost,
        ms(run.started_at),
        ms(run.completed_at),
        run.updated_at.0,
        blob(run.merged_into),
        budget,
        structured,
        ms(run.retried_at),
        goals,
        tasks,
    ];
    let mut write = connection.prepare_cached(concat!(
        "INSERT INTO runs (",
        run_columns!(),
        ", created_seq)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22,
           ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?30, ?31, ?32, ?33, ?34, ?35, ?36, ?37, ?38, ?39, ?40, ?41, ?42, ?43, ?44,
           ?45, ?46)
         ON CONFLICT (run_id) DO UPDATE SET
           checksum = CASE WHEN options IS ?12 AND system_prompt_hash IS ?16 THEN checksum ELSE ?17 END,
           options = ?12, system_prompt_hash = ?16, adapter_id = ?18, status = ?19, active_attempt_id = ?20,
           retry_at_ms = ?21, wait = ?22, reason = ?23, error_code = ?24, error_message = ?25, pen_line = ?26,
           pen_pos = ?27, attempts = ?28, last_attempt_id = ?29, final_message_id = ?30, input_tokens = ?31,
           output_tokens = ?32, cache_read_tokens = ?33, cache_write_tokens = ?34, cost_nanos = ?35,
           started_at_ms = ?36, completed_at_ms = ?37, updated_at_ms = ?38, merged_into_run_id = ?39, budget = ?40,
           output = ?41, retried_at_ms = ?42, goals = ?43, tasks = ?44, state_checksum = ?45",
    ))?;
    let parts = [(&checksum::RUN_REQUEST, request), (&checksum::RUN_STATE, state)];
    checksum::execute(&mut write, &parts, params![int(seq)])?;
    Ok(())
}

pub(super) fn attempt_write(connection: &Connection, attempt: &Attempt) -> WriteResult {
    let (error_code, error_message) = failure(attempt.error.as_ref());
    let [input, output, cache_read, cache_write, cost] = usage_columns(&attempt.usage);
    let mut write = connection.prepare_cached(concat!(
        "INSERT INTO run_attempts (",
        attempt_columns!(),
        ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22,
           ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?30)
         ON CONFLICT (run_id, attempt_no) DO UPDATE SET
           status = ?4, adapter_id = ?5, node_id = ?6, binding_id = ?7, resume_from_attempt_id = ?8, error_code = ?9,
           error_message = ?10, retryable = ?11, input_tokens = ?12, output_tokens = ?13, cache_read_tokens = ?14,
           cache_write_tokens = ?15, cost_nanos = ?16, cancellation_requested_at_ms = ?17,
           cancellation_dispatched_at_ms = ?18, cancellation_acknowledged_at_ms = ?19, created_at_ms = ?20,
           started_at_ms = ?21, completed_at_ms = ?22, retry_reason = ?23, sandbox = ?24, left_running = ?25,
           adapter_instance_id = ?26, adapter_native_run_id = ?27, metadata_json = ?28, checkpoint_artifact_id = ?29,
           checksum = ?30
         WHERE attempt_id = ?1",
    ))?;
    let columns = params![
        attempt.id.bytes(),
        attempt.run.bytes(),
        attempt.no,
        attempt.status.name(),
        attempt.adapter,
        attempt.node.bytes(),
        blob(attempt.binding),
        blob(attempt.resume_from),
        error_code,
        error_message,
        attempt.retryable,
        input,
        output,
        cache_read,
        cache_write,
        cost,
        ms(attempt.cancellation.requested_at),
        ms(attempt.cancellation.dispatched_at),
        ms(attempt.cancellation.acknowledged_at),
        attempt.created_at.0,
        ms(attempt.started_at),
        ms(attempt.completed_at),
        attempt.retry_reason.map(RetryReason::name),
        attempt.sandbox.as_ref().map(json).transpose()?,
        (!attempt.left_running.is_empty()).then(|| json(&attempt.left_running)).transpose()?,
        attempt.instance,
        attempt.native_run,
        object(&attempt.metadata)?,
        blob(attempt.checkpoint),
    ];
    let written = checksum::execute(&mut write, &[(&checksum::ATTEMPT, columns)], &[])?;
    // Another attempt has this number.
    if written == 0 { Err(WriteError::Conflict(Unique::Other)) } else { Ok(()) }
}

pub(super) fn message_write(
    connection: &Connection,
    message: &Message,
    at: Option<Point>,
    content: &str,
) -> WriteResult {
    let (line, pos) = point(at);
    let usage = message.usage.as_ref().map(usage_columns);
    let usage_column = |index: usize| usage.map(|usage| usage[index]);
    let columns = params![
        message.id.bytes(),
        message.session.bytes(),
        blob(message.run),
        message.role.name(),
        message.status.name(),
        line,
        pos,
        usage_column(0),
        usage_column(1),
        usage_column(2),
        usage_column(3),
        usage_column(4),
        message.created_at.0,
        content,
        message.agent,
        message.external_id,
    ];
    let mut write = connection.prepare_cached(concat!(
        "INSERT INTO messages (",
        message_columns!(),
        ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)
         ON CONFLICT (message_id) DO UPDATE SET
           session_id = ?2, run_id = ?3, role = ?4, status = ?5, line = ?6, pos = ?7, input_tokens = ?8,
           output_tokens = ?9, cache_read_tokens = ?10, cache_write_tokens = ?11, cost_nanos = ?12,
           created_at_ms = ?13, content = ?14, agent = ?15, external_id = ?16, checksum = ?17",
    ))?;
    checksum::execute(&mut write, &[(&checksum::MESSAGE, columns)], &[])?;
    Ok(())
}

pub(super) fn message_place(
    connection: &Connection,
    session: SessionId,
    message: MessageId,
    at: Point,
) -> WriteResult {
    /// The checksum and the place: `status`, `line`, `pos`.
    type Placed = (Option<i64>, String, Option<i64>, Option<u32>);
    let found: Option<Placed> = connection
        .prepare_cached(
            "SELECT checksum, status, line, pos FROM messages WHERE message_id = ?1 AND session_id = ?2",
        )?
        .query_row(params![message.bytes(), session.bytes()], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })
        .optional()?;
    let Some((sum, status, line, pos)) = found else { return Err(WriteError::Conflict(Unique::Other)) };
    let completed = MessageStatus::Completed.name();
    let sum = match sum {
        Some(sum) => {
            let before = checksum::place(&[&status, &line, &pos])?;
            Some(sum ^ before ^ checksum::place(&[&completed, &at.line.0, &at.pos])?)
        }
        None => None,
    };
    connection
        .prepare_cached(
            "UPDATE messages SET line = ?2, pos = ?3, status = ?4, checksum = ?5 WHERE message_id = ?1",
        )?
        .execute(params![message.bytes(), at.line.0, at.pos, completed, sum])?;
    Ok(())
}

/// Writes a line. `seq` is the last event before a new line.
pub(super) fn line_write(connection: &Connection, session: SessionId, line: &Line, seq: u64) -> WriteResult {
    let (parent_line, parent_pos) = point(line.parent);
    let mut extend = connection.prepare_cached(
        "UPDATE lines SET end_pos = ?2, abandoned = ?3 WHERE line = ?1 AND parent_line IS ?4 AND parent_pos IS ?5",
    )?;
    if extend.execute(params![line.id.0, line.end, line.abandoned, parent_line, parent_pos])? > 0 {
        return Ok(());
    }
    connection
        .prepare_cached(
            "INSERT INTO lines (line, session_id, parent_line, parent_pos, end_pos, abandoned, opened_by, opened_seq)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?2, CASE
               WHEN EXISTS (SELECT 1 FROM lines AS parent WHERE parent.line = ?3 AND parent.opened_by <> ?2)
               THEN coalesce((SELECT min(event_seq) - 1 FROM events WHERE events.session_id = ?2), ?7)
               ELSE ?7 END)
             ON CONFLICT (line) DO UPDATE SET parent_line = ?3, parent_pos = ?4, end_pos = ?5, abandoned = ?6",
        )?
        .execute(params![
            line.id.0,
            session.bytes(),
            parent_line,
            parent_pos,
            line.end,
            line.abandoned,
            int(seq)
        ])?;
    Ok(())
}

pub(super) fn cursor_write(
    connection: &Connection,
    session: SessionId,
    at: Point,
    to: Option<LineId>,
) -> WriteResult {
    match to {
        Some(to) => connection
            .prepare_cached(
                "INSERT INTO cursors (session_id, line, pos, to_line) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT (session_id, line, pos) DO UPDATE SET to_line = ?4",
            )?
            .execute(params![session.bytes(), at.line.0, at.pos, to.0])?,
        None => connection
            .prepare_cached("DELETE FROM cursors WHERE session_id = ?1 AND line = ?2 AND pos = ?3")?
            .execute(params![session.bytes(), at.line.0, at.pos])?,
    };
    Ok(())
}

/// Raises the floor of a session. A lower floor is ignored.
pub(super) fn floor_write(connection: &Connection, session: SessionId, floor: Position) -> WriteResult {
    connection
        .prepare_cached(
            "INSERT INTO retention (session_id, floor_seq, floor_pos, pruned) VALUES (?1, ?2, ?3, 0)
             ON CONFLICT (session_id) DO UPDATE SET floor_seq = ?2, floor_pos = ?3, pruned = 0 WHERE floor_seq < ?2",
        )?
        .execute(params![session.bytes(), int(floor.cursor.0), int(floor.pos)])?;
    Ok(())
}

pub(super) fn effect_write(
    connection: &Connection,
    session: SessionId,
    effect: &OpenToolCall,
) -> WriteResult {
    let columns = params![
        effect.run.bytes(),
        effect.tool_use_id,
        effect.name,
        ms(effect.started_at),
        blob(effect.ended.as_ref().map(|ended| ended.message)),
        effect.ended.as_ref().map(|ended| json(&ended.result)).transpose()?,
    ];
    let mut write = connection.prepare_cached(concat!(
        "INSERT INTO effects (",
        effect_columns!(),
        ", session_id) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
         ON CONFLICT (session_id, run_id, tool_use_id) DO UPDATE SET
           name = ?3, started_at_ms = ?4, message_id = ?5, result = ?6, checksum = ?7",
    ))?;
    checksum::execute(&mut write, &[(&checksum::EFFECT, columns)], params![session.bytes()])?;
    Ok(())
}

pub(super) fn request_write(connection: &Connection, request: &Request) -> WriteResult {
    let written = connection
        .prepare_cached(
            "INSERT INTO requests (owner_id, operation, key, fingerprint, answer, created_at_ms)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)
             ON CONFLICT (owner_id, operation, key) DO UPDATE SET fingerprint = ?4, answer = ?5, created_at_ms = ?6
             WHERE created_at_ms < ?7",
        )?
        .execute(params![
            request.owner,
            request.operation,
            request.key,
            request.fingerprint,
            request.answer,
            request.at.0,
            Request::oldest_kept(request.at).0,
        ])?;
    if written == 0 { Err(WriteError::Conflict(Unique::RequestKey)) } else { Ok(()) }
}

/// Writes a note, unless the receiving session is gone or deleted.
pub(super) fn inbox_write(connection: &Connection, session: SessionId, item: &InboxItem) -> WriteResult {
    connection
        .prepare_cached(
            "INSERT INTO inbox (session_id, event_id, created_at_ms, item)
             SELECT ?1, ?2, ?3, ?4 FROM sessions WHERE session_id = ?1 AND status <> 'deleted'
             ON CONFLICT (session_id, event_id) DO UPDATE SET created_at_ms = ?3, item = ?4",
        )?
        .execute(params![session.bytes(), item.id.bytes(), item.at.0, json(&item.note)?])?;
    Ok(())
}
