//! Writes a commit: its rows, in the order of `order.rs`, and its events.

use std::sync::Arc;

use mainspring_core::{Body, Cursor, SessionId};
use mainspring_kernel::store::{Chunk, Commit, NewEvent, Row, StoreError};
use rusqlite::{Connection, params};

use super::checksum;
use super::columns::{Id, blob, int};
use super::data::{line_order_write, state_back, state_write};
use super::digests::digest_write;
use super::event_blocks::{self, EventBlocks};
use super::feedback;
use super::inherited;
use super::owners;
use super::pins;
use super::read::{chunk_columns, event_columns};
use super::state_history::state_change_write;
use super::steps::{step_input_write, step_write, steps_seal};
use super::write::{
    WriteError, WriteResult, attempt_write, cursor_write, effect_write, floor_write, fresh_check,
    inbox_write, line_write, message_place, message_write, request_write, run_write,
};
use super::write_records::{artifact_write, binding_write, delegation_write, grant_write, session_write};
use crate::order::{rank, replaces};
use crate::payload::{not_serializable, payload};

/// A commit whose JSON is already serialized, so that the writer thread need not do it.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) commit: Arc<Commit>,
    /// For each row to write, in the order of writing: its index, and its content if it is a message.
    rows: Vec<(usize, String)>,
    /// The payload of each event.
    payloads: Vec<String>,
}

impl Prepared {
    pub(super) fn new(commit: Arc<Commit>) -> Result<Self, StoreError> {
        let mut rows = Vec::with_capacity(commit.rows.len());
        for (index, row) in commit.rows.iter().enumerate() {
            if commit.rows[index + 1..].iter().any(|later| replaces(later, row)) {
                continue;
            }
            let content = match row {
                Row::Message(message, _) => {
                    serde_json::to_string(&message.content).map_err(|error| not_serializable(&error))?
                }
                _ => String::new(),
            };
            rows.push((index, content));
        }
        rows.sort_by_key(|(index, _)| rank(&commit.rows[*index]));
        let payloads = commit.events.iter().map(|event| payload(&event.body)).collect::<Result<_, _>>()?;
        Ok(Self { commit, rows, payloads })
    }

    /// Writes all rows and events. `seq` is the last cursor assigned, and is advanced.
    pub(super) fn write(
        &self,
        connection: &Connection,
        seq: &mut u64,
        blocks: &mut EventBlocks,
    ) -> Result<Vec<Cursor>, StoreError> {
        for (index, content) in &self.rows {
            self.row_write(connection, &self.commit.rows[*index], content, *seq)?;
        }
        let mut cursors = Vec::with_capacity(self.payloads.len());
        let owner = match self.payloads.is_empty() {
            true => None,
            false => event_blocks::owner_of(connection, &self.commit).map_err(WriteError::Sqlite)?,
        };
        for (event, payload) in self.commit.events.iter().zip(&self.payloads) {
            *seq += 1;
            self.event_write(connection, event, payload, *seq)?;
            if let Some(owner) = &owner {
                blocks.add(connection, owner, event.body.kind(), *seq).map_err(WriteError::Sqlite)?;
            }
            cursors.push(Cursor(*seq));
        }
        Ok(cursors)
    }

    fn row_write(&self, connection: &Connection, row: &Row, content: &str, seq: u64) -> WriteResult {
        let session = self.commit.fence.session;
        match row {
            Row::NewId(fresh) => fresh_check(connection, *fresh),
            Row::Session(session) => session_write(connection, session),
            Row::Run(run) => run_write(connection, run, seq),
            Row::Attempt(attempt) => attempt_write(connection, attempt),
            Row::Message(message, at) => message_write(connection, message, *at, content),
            Row::MessagePlace(message, at) => message_place(connection, session, *message, *at),
            Row::Line(line) => line_write(connection, session, line, seq),
            Row::Cursor(at, to) => cursor_write(connection, session, *at, *to),
            Row::Chunks(chunks) => chunks_write(connection, session, chunks),
            Row::ChunksDrop(before) => {
                connection
                    .prepare_cached("DELETE FROM chunks WHERE session_id = ?1 AND pos < ?2")?
                    .execute(params![session.bytes(), int(*before)])?;
                Ok(())
            }
            Row::Floor(floor) => floor_write(connection, session, *floor),
            Row::ToolCall(effect) => effect_write(connection, session, effect),
            Row::ToolCallSettled(run, tool_use_id) => {
                connection
                    .prepare_cached(
                        "DELETE FROM effects WHERE session_id = ?1 AND run_id = ?2 AND tool_use_id = ?3",
                    )?
                    .execute(params![session.bytes(), run.bytes(), tool_use_id])?;
                Ok(())
            }
            Row::Request(request) => request_write(connection, request),
            Row::Inbox(to, item) => inbox_write(connection, *to, item),
            Row::InboxTaken(item) => {
                connection
                    .prepare_cached("DELETE FROM inbox WHERE session_id = ?1 AND event_id = ?2")?
                    .execute(params![session.bytes(), item.bytes()])?;
                Ok(())
            }
            Row::Binding(binding) => binding_write(connection, binding),
            Row::NativeOwner(native) => owners::native_owner_write(connection, native),
            Row::Spend(key, day, spend) => owners::spend_add(connection, *key, *day, *spend),
            Row::Feedback(given) => feedback::feedback_write(connection, given),
            Row::InheritedArtifact(artifact) => inherited::inherited_write(connection, artifact),
            Row::Pin(pin) => pins::pin_write(connection, pin),
            Row::Grant(grant) => grant_write(connection, grant),
            Row::Artifact(artifact) => artifact_write(connection, artifact),
            Row::ArtifactGone(artifact) => {
                connection
                    .prepare_cached("DELETE FROM artifacts WHERE artifact_id = ?1 AND session_id = ?2")?
                    .execute(params![artifact.bytes(), session.bytes()])?;
                Ok(())
            }
            Row::State(row) => state_write(connection, session, row, int(seq)),
            Row::StateAtOrder(row, order) => state_write(connection, session, row, *order),
            Row::LineOrder(line, order) => line_order_write(connection, session, *line, *order),
            Row::StateBack(from, key) => state_back(connection, *from, key),
            Row::StateChange(row) => Ok(state_change_write(connection, &row.of, &row.change)?),
            Row::Delegation(delegation) => delegation_write(connection, delegation),
            Row::Digest(digest) => digest_write(connection, session, digest),
            Row::Step(step) => step_write(connection, step),
            Row::StepInput(input) => step_input_write(connection, session, input),
            Row::StepsSeal(run) => steps_seal(connection, *run),
        }
    }

    fn event_write(&self, connection: &Connection, event: &NewEvent, payload: &str, seq: u64) -> WriteResult {
        let message = match &event.body {
            Body::MessageCompleted { message, .. } => Some(message.id),
            Body::ToolCompleted { end, .. } | Body::ToolFailed { end, .. } => end.message_id,
            _ => None,
        };
        let columns = params![
            int(seq),
            event.id.bytes(),
            self.commit.fence.session.bytes(),
            blob(event.run),
            blob(event.attempt),
            blob(message),
            event.body.kind(),
            int(event.pos),
            event.at.0,
            payload,
        ];
        let mut insert = connection.prepare_cached(concat!(
            "INSERT INTO events (",
            event_columns!(),
            ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)"
        ))?;
        checksum::execute(&mut insert, &[(&checksum::EVENT, columns)], &[])?;
        Ok(())
    }
}

/// Writes the streamed text that the positions of a commit's events cover.
fn chunks_write(connection: &Connection, session: SessionId, chunks: &[Chunk]) -> WriteResult {
    // A batch of streamed text may have written the beginning of the same text.
    let mut insert = connection.prepare_cached(concat!(
        "INSERT OR REPLACE INTO chunks (",
        chunk_columns!(),
        ", session_id) VALUES (?1, ?2, ?3, ?4, ?5, ?6)"
    ))?;
    for chunk in chunks {
        let columns = params![int(chunk.pos), chunk.message.bytes(), chunk.block, chunk.text];
        checksum::execute(&mut insert, &[(&checksum::CHUNK, columns)], params![session.bytes()])?;
    }
    Ok(())
}
