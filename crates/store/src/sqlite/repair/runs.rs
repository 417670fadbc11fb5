//! Rebuilds the outcome of a damaged run by applying its events again.
//!
//! Only a run that has ended is rebuilt, and only if its request and all events that change it are intact:
//! the state of a run that waits is in no event.

use mainspring_core::{Body, Point, Run, RunId};
use mainspring_kernel::store::StoreError;
use rusqlite::types::Value;
use rusqlite::{Connection, Result, params};

use super::checksum;
use crate::sqlite::columns::{Columns, Id, usage_columns};
use crate::sqlite::read::{self, events::run_changes, run_columns, run_request_columns};
use crate::sqlite::write::{WriteError, run_write};

/// Rebuilds runs that are damaged, or have no checksum and disagree with their events. Returns their number.
pub(super) fn runs_rebuild(connection: &Connection) -> Result<u64> {
    let all = concat!("SELECT ", run_columns!(), ", run_id FROM runs");
    let damaged = checksum::damaged(connection, all, &[&checksum::RUN_REQUEST, &checksum::RUN_STATE])?;
    let mut unchecked = connection.prepare("SELECT run_id FROM runs WHERE state_checksum IS NULL")?;
    let unchecked = unchecked.query_map([], |row| Ok(vec![row.get(0)?]))?.collect::<Result<Vec<_>>>()?;
    let mut rebuilt = 0;
    for (key, is_damaged) in
        damaged.iter().map(|key| (key, true)).chain(unchecked.iter().map(|key| (key, false)))
    {
        let [Value::Blob(id)] = &key[..] else { continue };
        let Ok(id) = <[u8; 16]>::try_from(id.as_slice()) else { continue };
        // If needed data is damaged or pruned, the run stays unchanged, and verification reports it.
        let Ok(Some(run)) = run_replay(connection, RunId::from_column(id)) else { continue };
        if !is_damaged && agrees(connection, &run)? {
            continue;
        }
        match run_write(connection, &run, 0) {
            Ok(()) => rebuilt += 1,
            Err(WriteError::Sqlite(error)) => return Err(error),
            Err(WriteError::Conflict(_)) => {}
        }
    }
    Ok(rebuilt)
}

/// True if the stored run has the status, attempts and usage of `run`.
fn agrees(connection: &Connection, run: &Run) -> Result<bool> {
    let sql = "SELECT 1 FROM runs WHERE run_id = ?1 AND (status, attempts, input_tokens, output_tokens,
                 cache_read_tokens, cache_write_tokens, cost_nanos) IS (?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    let [input, output, cache_read, cache_write, cost] = usage_columns(&run.usage);
    let status = run.state.status().name();
    let wanted = params![run.id.bytes(), status, run.attempts, input, output, cache_read, cache_write, cost];
    connection.prepare(sql)?.exists(wanted)
}

/// Applies the events of a run to its request. None if the run has not ended.
fn run_replay(connection: &Connection, id: RunId) -> Result<Option<Run>, StoreError> {
    let sql = concat!("SELECT ", run_request_columns!(), " FROM runs WHERE run_id = ?1");
    let Some(mut run) = read::query_one(connection, sql, [id.bytes()], read::run_request)? else {
        return Ok(None);
    };
    // The stored options are those of the last retry.
    let options = run.options.clone();
    let events = run_changes(connection, run.session, id)?;
    let Some(Body::RunQueued { adapter, .. }) = events.first().map(|event| &event.body) else {
        return Ok(None);
    };
    run.adapter.clone_from(adapter);
    for event in &events {
        mainspring_core::run::apply(&mut run, &event.body, event.attempt, None, event.at);
        if let Some(close) = event.body.close() {
            run.usage = close.usage;
        }
    }
    run.options = options;
    run.pen = pen(connection, id)?;
    Ok(run.state.status().is_ended().then_some(run))
}

/// Returns the position after the last message of a run.
fn pen(connection: &Connection, run: RunId) -> Result<Option<Point>, StoreError> {
    let sql =
        "SELECT line, pos + 1 FROM messages WHERE run_id = ?1 AND line IS NOT NULL ORDER BY id DESC LIMIT 1";
    let last =
        read::query_one(connection, sql, params![run.bytes()], |columns: &mut Columns<'_>| columns.point())?;
    Ok(last.flatten())
}
