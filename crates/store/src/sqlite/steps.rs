//! Writes and reads steps.

use mainspring_core::{PromptRef, Rows, RunId, SessionId, Step, StopReason, Usage};
use mainspring_kernel::store::{StepInputRow, StoreError};
use rusqlite::{Connection, Result, params};
use serde_json::Value;

use super::checksum;
use super::columns::{Columns, Id, blob, failure, json, ms, usage_columns};
use super::read::{query_one, query_stored, step_columns};
use super::write::WriteResult;

pub(super) fn step_write(connection: &Connection, step: &Step) -> WriteResult {
    let (error_code, error_message) = failure(step.error.as_ref());
    let [input, output, cache_read, cache_write, cost] = usage_columns(&step.usage.unwrap_or(Usage::UNKNOWN));
    let raw = (!step.raw.is_null()).then(|| json(&step.raw)).transpose()?;
    let private = step.private.as_ref().map(json).transpose()?;
    let mut write = connection.prepare_cached(concat!(
        "INSERT OR REPLACE INTO steps (",
        step_columns!(),
        ", private) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20,
           ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28, ?29)",
    ))?;
    let columns = params![
        step.id.bytes(),
        step.run.bytes(),
        step.attempt.bytes(),
        step.no,
        step.agent,
        step.provider,
        step.model,
        step.profile,
        blob(step.prompt.last),
        step.prompt.messages,
        blob(step.output),
        json(&step.tool_calls)?,
        step.stop_reason.name(),
        error_code,
        error_message,
        input,
        output,
        cache_read,
        cache_write,
        cost,
        json(&step.raw_usage)?,
        step.started_at.0,
        ms(step.first_piece_at),
        step.completed_at.0,
        blob(step.prompt.digest),
        step.input_hash,
        raw,
    ];
    checksum::execute(&mut write, &[(&checksum::STEP, columns)], params![private])?;
    Ok(())
}

/// Erases the private data of the steps of a run.
pub(super) fn steps_seal(connection: &Connection, run: RunId) -> WriteResult {
    let sql = "UPDATE steps SET private = NULL WHERE run_id = ?1 AND private IS NOT NULL";
    connection.prepare_cached(sql)?.execute([run.bytes()])?;
    Ok(())
}

pub(super) fn steps(connection: &Connection, run: RunId) -> Result<Rows<Step>, StoreError> {
    let sql = concat!(
        "SELECT ",
        step_columns!(),
        ", private FROM steps WHERE run_id = ?1 ORDER BY step_no, completed_at_ms, step_id"
    );
    Ok(query_stored(connection, sql, [run.bytes()], step)?.into_iter().collect())
}

/// Reads a step whose private data follows its other columns.
pub(super) fn step(columns: &mut Columns<'_>) -> Result<Step> {
    columns.check(&checksum::STEP)?;
    let mut step = Step {
        id: columns.id()?,
        run: columns.id()?,
        attempt: columns.id()?,
        no: columns.get()?,
        agent: columns.get()?,
        provider: columns.get()?,
        model: columns.get()?,
        profile: columns.get()?,
        prompt: PromptRef { last: columns.maybe_id()?, messages: columns.get()?, digest: None },
        output: columns.maybe_id()?,
        tool_calls: columns.json()?,
        stop_reason: columns.name(StopReason::from_name)?,
        error: columns.failure()?,
        usage: Some(columns.usage()?).filter(|usage| *usage != Usage::UNKNOWN),
        raw_usage: columns.json()?,
        started_at: columns.time()?,
        first_piece_at: columns.maybe_time()?,
        completed_at: columns.time()?,
        input_hash: None,
        raw: Value::Null,
        private: None,
    };
    step.prompt.digest = columns.maybe_id()?;
    step.input_hash = columns.get()?;
    step.raw = columns.maybe_json()?.unwrap_or_default();
    // Skips the checksum, which does not cover the private data.
    columns.skip(1);
    step.private = columns.maybe_json()?;
    Ok(step)
}

/// Writes the input of steps, unless the session has it.
pub(super) fn step_input_write(
    connection: &Connection,
    session: SessionId,
    input: &StepInputRow,
) -> WriteResult {
    let sql = "INSERT OR IGNORE INTO step_inputs (session_id, hash, input) VALUES (?1, ?2, ?3)";
    connection.prepare_cached(sql)?.execute(params![session.bytes(), input.hash, input.json])?;
    Ok(())
}

/// Reads the input of steps, as JSON.
pub(super) fn step_input(
    connection: &Connection,
    session: SessionId,
    hash: &str,
) -> Result<Option<String>, StoreError> {
    let sql = "SELECT input FROM step_inputs WHERE session_id = ?1 AND hash = ?2";
    query_one(connection, sql, params![session.bytes(), hash], |columns| columns.get())
}
