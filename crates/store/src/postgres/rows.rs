//! The rows of a commit as operations on tables, in the order in which they are written.

use mainspring_core::binding::native_key;
use mainspring_core::memory::is_undecided;
use mainspring_core::{
    Binding, BindingStatus, Body, Mode, Place, Run, RunId, RunState, Session, SessionId, Wait,
};
use mainspring_core::{ClientResult, MessageId, Replies};
use mainspring_kernel::store::{
    Chunk, Commit, NativeClaim, NativeOwner, NewEvent, OpenToolCall, Request, Row, StatePlace, StateRow,
    StoreError,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::tables::Table;
use super::values::{
    Cell, id, int, json, maybe_id, maybe_json, maybe_text, number, point, text, time, to_json,
};
use crate::order::{rank, replaces};
use crate::payload::payload;

/// One row to write, or to remove, in one table.
#[derive(Debug, Clone)]
pub(super) struct Op {
    pub(super) table: Table,
    pub(super) cells: Vec<Cell>,
}

/// The parts of a run's request that never change and have no column of their own.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Fixed {
    pub(super) parent: Option<RunId>,
    pub(super) idempotency_key: Option<String>,
    pub(super) mode: Mode,
    pub(super) prompt: Option<MessageId>,
    pub(super) place: Place,
}

/// The parts of a wait that its public form leaves out.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PrivateWait {
    pub(super) held: bool,
    pub(super) results: Vec<ClientResult>,
    pub(super) resume: Value,
    pub(super) replies: Option<Box<Replies>>,
}

impl PrivateWait {
    fn of(state: &RunState) -> Option<Self> {
        let wait = match state {
            RunState::WaitingInput { wait, .. } | RunState::WaitingApproval { wait, .. } => wait,
            _ => return None,
        };
        let Wait { held, results, resume, replies, .. } = Wait::clone(wait);
        Some(Self { held, results, resume, replies })
    }
}

/// Returns the operations of a commit. `before` is the cursor before its first event.
pub(super) fn ops(commit: &Commit, before: u64) -> Result<Vec<Op>, StoreError> {
    let last =
        |(index, row): &(usize, &Row)| !commit.rows[index + 1..].iter().any(|later| replaces(later, row));
    let mut rows: Vec<&Row> = commit.rows.iter().enumerate().filter(last).map(|(_, row)| row).collect();
    rows.sort_by_key(|row| table_rank(row));
    let mut ops = vec![];
    for row in rows {
        row_ops(commit.fence.session, row, before, &mut ops)?;
    }
    for (event, cursor) in commit.events.iter().zip(before + 1..) {
        ops.push(event_op(commit.fence.session, event, cursor)?);
    }
    Ok(ops)
}

pub(super) fn row_ops(
    session: SessionId,
    row: &Row,
    before: u64,
    ops: &mut Vec<Op>,
) -> Result<(), StoreError> {
    let own = id(session.as_bytes());
    let (table, cells) = match row {
        // New ids are checked before anything is written.
        Row::NewId(_) => return Ok(()),
        Row::Session(session) => (Table::Sessions, session_cells(session)?),
        Row::Run(run) => (Table::Runs, run_cells(run, before)?),
        Row::Attempt(attempt) => {
            let ended = Cell::Bool(attempt.status.is_ended());
            let key = [id(attempt.run.as_bytes()), number(attempt.no), id(attempt.id.as_bytes())];
            (Table::Attempts, [key.as_slice(), &[ended, json(attempt)?]].concat())
        }
        Row::Step(step) => {
            let key = [id(step.run.as_bytes()), number(step.no), id(step.id.as_bytes())];
            let rest = [number(step.completed_at.0), maybe_json(step.private.as_ref())?, json(step)?];
            (Table::Steps, [key, rest].concat())
        }
        Row::Feedback(feedback) => {
            let key =
                [id(feedback.session.as_bytes()), id(feedback.message.as_bytes()), text(&feedback.owner)];
            (Table::Feedback, [key.as_slice(), &[json(feedback)?]].concat())
        }
        Row::InheritedArtifact(artifact) => {
            let key = [id(artifact.session.as_bytes()), id(artifact.id.as_bytes())];
            let content = [
                maybe_text(artifact.content_hash.as_deref()),
                Cell::Int(artifact.size_bytes.map(int)),
                json(artifact)?,
            ];
            (Table::InheritedArtifacts, [key.as_slice(), &content].concat())
        }
        Row::Pin(pin) => {
            let key = vec![text(&pin.owner), id(pin.session.as_bytes())];
            match pin.at {
                Some(at) => (Table::Pins, [key, vec![number(at.0)]].concat()),
                None => (Table::PinsGone, key),
            }
        }
        Row::StepInput(input) => (Table::StepInputs, vec![own, text(&input.hash), text(&input.json)]),
        Row::StepsSeal(run) => (Table::StepsSeal, vec![id(run.as_bytes())]),
        Row::ToolCall(call) => (Table::Effects, effect_cells(session, call)?),
        Row::ToolCallSettled(run, tool_use_id) => {
            (Table::EffectsGone, vec![own, id(run.as_bytes()), text(tool_use_id)])
        }
        Row::Request(request) => (Table::Requests, request_cells(request)),
        Row::Inbox(to, item) => {
            let key = [id(to.as_bytes()), id(item.id.as_bytes())];
            (Table::Inbox, [key, [number(item.at.0), json(&item.note)?]].concat())
        }
        Row::InboxTaken(item) => (Table::InboxGone, vec![own, id(item.as_bytes())]),
        Row::Binding(binding) => (Table::Bindings, binding_cells(binding)?),
        Row::NativeOwner(native) => {
            native_ops(native, ops);
            return Ok(());
        }
        Row::Spend(key, day, spend) => {
            let cost = Cell::Int(Some(int(spend.cost.0)));
            (Table::Spends, vec![id(key.as_bytes()), number(*day), cost, Cell::Bool(spend.at_least)])
        }
        _ => return tree_ops(session, row, before, ops),
    };
    ops.push(Op { table, cells });
    Ok(())
}

/// The operations of messages, lines, cursors and streamed text.
fn tree_ops(session: SessionId, row: &Row, before: u64, ops: &mut Vec<Op>) -> Result<(), StoreError> {
    let own = id(session.as_bytes());
    let (table, cells) = match row {
        Row::Digest(digest) => {
            let [line, pos] = point(Some(digest.at));
            let cells = vec![
                line,
                pos,
                own,
                id(digest.message.as_bytes()),
                maybe_id(digest.prompt.as_ref().map(MessageId::as_bytes)),
                maybe_json(digest.summary.as_ref())?,
                number(digest.left_out),
                number(digest.below_tokens.cast_signed()),
                number(digest.made_at.0),
            ];
            (Table::Digests, cells)
        }
        Row::Message(message, at) => {
            let [line, pos] = point(*at);
            let size = to_json(&message.content)?.len() as u64;
            let (key, of) = (id(message.id.as_bytes()), id(message.session.as_bytes()));
            let status = text(message.status.name());
            (Table::Messages, vec![key, of, line, pos, status, Cell::Int(Some(int(size))), json(message)?])
        }
        Row::MessagePlace(message, at) => {
            let [line, pos] = point(Some(*at));
            (Table::MessagePlaces, vec![id(message.as_bytes()), own, line, pos])
        }
        Row::Line(line) => {
            let [parent_line, parent_pos] = point(line.parent);
            let cells = vec![
                number(line.id.0),
                own,
                parent_line,
                parent_pos,
                number(line.end),
                Cell::Bool(line.abandoned),
                Cell::Int(Some(int(before))),
            ];
            (Table::Lines, cells)
        }
        Row::Cursor(at, to) => {
            let [line, pos] = point(Some(*at));
            match to {
                Some(to) => (Table::Cursors, vec![own, line, pos, number(to.0)]),
                None => (Table::CursorsGone, vec![own, line, pos]),
            }
        }
        Row::Chunks(chunks) => {
            ops.extend(chunks.iter().map(|chunk| chunk_op(session, chunk, Table::Chunks)));
            return Ok(());
        }
        Row::ChunksDrop(before) => (Table::ChunksGone, vec![own, Cell::Int(Some(int(*before)))]),
        Row::Floor(floor) => {
            let (cursor, pos) = (int(floor.cursor.0), int(floor.pos));
            (Table::Retention, vec![own, Cell::Int(Some(cursor)), Cell::Int(Some(pos))])
        }
        _ => return record_ops(session, row, before, ops),
    };
    ops.push(Op { table, cells });
    Ok(())
}

/// The operations of grants, artifacts, state and delegations.
fn record_ops(session: SessionId, row: &Row, before: u64, ops: &mut Vec<Op>) -> Result<(), StoreError> {
    let (table, cells) = match row {
        Row::Grant(grant) => {
            let cells = vec![
                id(grant.id.as_bytes()),
                id(grant.session.as_bytes()),
                maybe_id(grant.run.as_ref().map(RunId::as_bytes)),
                number(grant.created_at.0),
                time(grant.expires_at),
                time(grant.revoked_at),
                maybe_json(grant.revoked_by.as_ref())?,
                json(grant)?,
            ];
            (Table::Grants, cells)
        }
        Row::Artifact(artifact) => {
            let cells = vec![
                id(artifact.id.as_bytes()),
                id(artifact.session.as_bytes()),
                maybe_id(artifact.run.as_ref().map(RunId::as_bytes)),
                maybe_text(artifact.content_hash.as_deref()),
                Cell::Int(artifact.size_bytes.map(int)),
                Cell::Bool(is_undecided(artifact)),
                number(artifact.created_at.0),
                json(artifact)?,
            ];
            (Table::Artifacts, cells)
        }
        Row::ArtifactGone(artifact) => {
            (Table::ArtifactsGone, vec![id(artifact.as_bytes()), id(session.as_bytes())])
        }
        Row::State(row) => state_cells(session, row, int(before))?,
        Row::StateAtOrder(row, order) => state_cells(session, row, *order)?,
        Row::LineOrder(line, order) => {
            (Table::LineOrders, vec![number(line.0), id(session.as_bytes()), number(*order)])
        }
        Row::StateBack(from, key) => {
            let [line, pos] = point(Some(*from));
            (Table::StateBack, vec![line, pos, text(key)])
        }
        Row::StateChange(row) => {
            let version = Cell::Int(Some(int(row.change.version)));
            let key = [text(&row.of.place()), text(&row.change.key), version];
            ops.push(Op {
                table: Table::StateHistory,
                cells: [key.as_slice(), &[json(&row.change)?]].concat(),
            });
            (Table::StateHistoryCut, key[..2].to_vec())
        }
        Row::Delegation(delegation) => {
            let cells = vec![
                id(delegation.id.as_bytes()),
                id(delegation.parent_session.as_bytes()),
                id(delegation.parent_run.as_bytes()),
                id(delegation.child_session.as_bytes()),
                id(delegation.child_run.as_bytes()),
                maybe_id(delegation.result.as_ref().map(mainspring_core::ArtifactId::as_bytes)),
                number(delegation.created_at.0),
                json(delegation)?,
            ];
            (Table::Delegations, cells)
        }
        _ => return Ok(()),
    };
    ops.push(Op { table, cells });
    Ok(())
}

fn session_cells(session: &Session) -> Result<Vec<Cell>, StoreError> {
    let (external, legacy) = (session.external_ref.as_ref(), session.legacy_alias.as_ref());
    let [tip_line, tip_pos] = point(session.tip);
    let [base_line, base_pos] = point(session.base);
    Ok(vec![
        id(session.id.as_bytes()),
        text(&session.owner),
        maybe_text(session.org.as_deref()),
        text(session.visibility.name()),
        maybe_text(session.key.as_deref()),
        maybe_text(external.map(|external| external.kind.as_str())),
        maybe_text(external.map(|external| external.id.as_str())),
        maybe_text(legacy.map(|legacy| legacy.scope.as_str())),
        maybe_text(legacy.map(|legacy| legacy.key.as_str())),
        text(session.status.name()),
        text(&session.surface_kind),
        Cell::Bool(session.pinned),
        number(session.created_at.0),
        number(session.last_activity_at.0),
        maybe_id(session.forked_from.as_ref().map(|origin| origin.session.as_bytes())),
        tip_line,
        tip_pos,
        base_line,
        base_pos,
        json(session)?,
    ])
}

fn run_cells(run: &Run, before: u64) -> Result<Vec<Cell>, StoreError> {
    let fixed = Fixed {
        parent: run.parent,
        idempotency_key: run.request.idempotency_key.clone(),
        mode: run.mode,
        prompt: run.prompt,
        place: run.place,
    };
    let [pen_line, pen_pos] = point(run.pen);
    let status = run.state.status();
    Ok(vec![
        id(run.id.as_bytes()),
        id(run.session.as_bytes()),
        text(&run.owner),
        number(run.no),
        maybe_text(run.request.client_id.as_deref()),
        maybe_text(run.request.request_id.as_deref()),
        id(&run.fingerprint),
        json(&fixed)?,
        Cell::Int(Some(int(before))),
        number(run.created_at.0),
        text(status.name()),
        Cell::Bool(status.is_ended()),
        pen_line,
        pen_pos,
        maybe_json(PrivateWait::of(&run.state).as_ref())?,
        Cell::Bool(!(run.goals.is_empty() && run.tasks.is_empty())),
        json(run)?,
    ])
}

/// Makes the operation that writes streamed text as a chunk. `table` selects the statement.
pub(super) fn chunk_op(session: SessionId, chunk: &Chunk, table: Table) -> Op {
    let cells = vec![
        id(session.as_bytes()),
        Cell::Int(Some(int(chunk.pos))),
        id(chunk.message.as_bytes()),
        number(chunk.block),
        Cell::Bytes(Some(chunk.text.clone().into_bytes())),
    ];
    Op { table, cells }
}

fn effect_cells(session: SessionId, call: &OpenToolCall) -> Result<Vec<Cell>, StoreError> {
    let ended = call.ended.as_ref();
    Ok(vec![
        id(session.as_bytes()),
        id(call.run.as_bytes()),
        text(&call.tool_use_id),
        time(call.started_at),
        maybe_id(ended.map(|ended| ended.message.as_bytes())),
        json(&call.name)?,
        maybe_json(ended.map(|ended| &*ended.result))?,
    ])
}

pub(super) fn request_cells(request: &Request) -> Vec<Cell> {
    vec![
        text(&request.owner),
        text(&request.operation),
        text(&request.key),
        id(&request.fingerprint),
        text(&request.answer),
        number(request.at.0),
        number(Request::RETENTION_MS.cast_signed()),
    ]
}

fn binding_cells(binding: &Binding) -> Result<Vec<Cell>, StoreError> {
    Ok(vec![
        id(binding.id.as_bytes()),
        id(binding.session.as_bytes()),
        text(&binding.adapter),
        number(binding.generation),
        maybe_text(binding.native.as_deref()),
        Cell::Bool(binding.status == BindingStatus::Active),
        Cell::Bool(binding.fidelity.is_process_local()),
        json(binding)?,
    ])
}

/// Adds the operations that record the owner of a native session, unless it has one, and check the claim.
fn native_ops(native: &NativeOwner, ops: &mut Vec<Op>) {
    let NativeOwner { adapter, native, owner, claim } = native;
    let key = native_key(native);
    if *claim == NativeClaim::AdoptedAgain {
        ops.push(Op { table: Table::NativeOwn, cells: vec![text(adapter), text(native), text(owner)] });
    }
    let cells = vec![text(adapter), text(native), text(owner), text(&key)];
    ops.push(Op { table: Table::NativeOwners, cells });
    if *claim != NativeClaim::Opened {
        // After the insertion, so that the check sees the owners that other commits of the batch have recorded.
        ops.push(Op { table: Table::NativeOfOthers, cells: vec![text(&key), text(owner)] });
    }
}

fn state_cells(session: SessionId, row: &StateRow, before: i64) -> Result<(Table, Vec<Cell>), StoreError> {
    let entry = [
        text(&row.key),
        Cell::Int(Some(int(row.version))),
        number(row.at.0),
        maybe_json(row.value.as_ref())?,
    ];
    Ok(match row.place {
        StatePlace::Session { at, aside } => {
            let [line, pos] = point(at);
            let place = [id(session.as_bytes()), line, pos, Cell::Bool(aside), number(before)];
            (Table::SessionState, [place.as_slice(), &entry].concat())
        }
        StatePlace::Run(run) => (Table::RunState, [[id(run.as_bytes())].as_slice(), &entry].concat()),
    })
}

fn event_op(session: SessionId, event: &NewEvent, cursor: u64) -> Result<Op, StoreError> {
    let message = match &event.body {
        Body::MessageCompleted { message, .. } => Some(message.id),
        Body::ToolCompleted { end, .. } | Body::ToolFailed { end, .. } => end.message_id,
        _ => None,
    };
    let cells = vec![
        Cell::Int(Some(int(cursor))),
        id(event.id.as_bytes()),
        id(session.as_bytes()),
        maybe_id(event.run.as_ref().map(RunId::as_bytes)),
        maybe_id(event.attempt.as_ref().map(mainspring_core::AttemptId::as_bytes)),
        maybe_id(message.as_ref().map(MessageId::as_bytes)),
        text(event.body.kind()),
        Cell::Int(Some(int(event.pos))),
        number(event.at.0),
        Cell::Text(Some(payload(&event.body)?)),
    ];
    Ok(Op { table: Table::Events, cells })
}

/// The order in which rows are written. Rows of one table follow each other, so that one statement writes them. Rows of
/// equal rank keep their order, so that of two rows with the same key the later one counts.
fn table_rank(row: &Row) -> (u8, u8) {
    let table = match row {
        Row::Cursor(..) => 0,
        Row::Chunks(_) | Row::ChunksDrop(_) => 1,
        Row::ToolCall(_) | Row::ToolCallSettled(..) => 2,
        Row::Inbox(..) | Row::InboxTaken(_) => 3,
        Row::Artifact(_) | Row::ArtifactGone(_) => 4,
        Row::State(_) | Row::StateAtOrder(..) | Row::StateBack(..) => 5,
        Row::Floor(_) => 6,
        Row::NativeOwner(_) => 7,
        Row::Spend(..) => 8,
        Row::Grant(_) => 9,
        Row::StateChange(_) => 10,
        Row::Delegation(_) => 11,
        Row::Digest(_) => 12,
        Row::Step(_) => 13,
        Row::StepInput(_) => 14,
        Row::Feedback(_) => 15,
        Row::Pin(_) => 16,
        Row::InheritedArtifact(_) => 17,
        Row::LineOrder(..) => 18,
        // These are ordered by their rank alone.
        Row::NewId(_) | Row::Request(_) | Row::Session(_) | Row::Line(_) | Row::Message(..) => 0,
        Row::MessagePlace(..) | Row::Run(_) | Row::Attempt(_) | Row::Binding(_) | Row::StepsSeal(_) => 0,
    };
    (rank(row), table)
}
