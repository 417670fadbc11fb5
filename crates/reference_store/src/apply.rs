//! Applies a commit.

use std::sync::Arc;

use mainspring_core::{
    Artifact, Attempt, Binding, Cursor, Delegation, Digest, Event, Line, Message, MessageId, MessageStatus,
    Point, Run, Session, SessionId, Step,
};
use mainspring_kernel::store::{
    Commit, InboxItem, NewEvent, NewId, OpenToolCall, PlacedMessage, Request, Row, StoreError, Unique,
};

use super::tables::Tables;

impl Tables {
    /// Applies `commit`. After an error the tables are inconsistent and must be discarded.
    pub(super) fn apply(&mut self, commit: &Commit) -> Result<Vec<Cursor>, StoreError> {
        let session = commit.fence.session;
        let exists = |row: &Row| match row {
            Row::NewId(NewId::Session(id)) => self.sessions.contains_key(id),
            Row::NewId(NewId::Run(id)) => self.runs.contains_key(id),
            Row::NewId(NewId::Message(id)) => self.messages.contains_key(id),
            Row::NewId(NewId::Artifact(id)) => self.artifacts.contains_key(id),
            _ => false,
        };
        if commit.rows.iter().any(exists) {
            return Err(StoreError::Conflict(Unique::Id));
        }
        for row in commit.rows.iter().filter(|row| !is_late(row)) {
            self.row_apply(session, row)?;
        }
        for row in commit.rows.iter().filter(|row| is_late(row)) {
            self.row_apply(session, row)?;
        }
        let events = commit.events.iter().map(|event| self.event_apply(session, event));
        Ok(events.collect())
    }

    fn row_apply(&mut self, session: SessionId, row: &Row) -> Result<(), StoreError> {
        match row {
            Row::NewId(_) => {}
            Row::Session(image) => drop(self.sessions.insert(image.id, Session::clone(image))),
            Row::Run(image) => self.run_apply(image),
            Row::Attempt(image) => {
                let key = (image.run, image.no);
                if self.attempts.get(&key).is_some_and(|attempt| attempt.id != image.id) {
                    return Err(StoreError::Conflict(Unique::Other));
                }
                self.attempts.insert(key, Attempt::clone(image));
            }
            Row::Message(message, point) => {
                let message = PlacedMessage { message: Arc::clone(message), point: *point };
                let next = self.message_order.values().max().map_or(1, |last| last + 1);
                self.message_order.entry(message.message.id).or_insert(next);
                self.messages.insert(message.message.id, message);
            }
            Row::MessagePlace(message, point) => self.message_place(session, *message, *point)?,
            Row::Line(line) => self.line_apply(session, *line),
            Row::Cursor(at, Some(to)) => drop(self.cursors.insert((session, *at), *to)),
            Row::Cursor(at, None) => drop(self.cursors.remove(&(session, *at))),
            Row::Chunks(chunks) => {
                self.chunks.extend(chunks.iter().map(|chunk| ((session, chunk.pos), chunk.clone())));
            }
            Row::ChunksDrop(before) => {
                self.chunks.retain(|(id, pos), _| *id != session || pos >= before);
            }
            Row::Floor(floor) => {
                if self.floor(session).is_none_or(|known| known.cursor < floor.cursor) {
                    self.floors.insert(session, (*floor, false));
                }
            }
            Row::ToolCall(effect) => self.effect_apply(session, effect),
            Row::ToolCallSettled(run, id) => {
                self.effects
                    .retain(|(by, effect)| *by != session || effect.run != *run || effect.tool_use_id != *id);
            }
            Row::Request(request) => self.request_apply(request)?,
            Row::Inbox(to, item) => self.inbox_apply(*to, item),
            Row::InboxTaken(id) => self.inbox.retain(|(to, item)| *to != session || item.id != *id),
            Row::Binding(image) => drop(self.bindings.insert(image.id, Binding::clone(image))),
            Row::NativeOwner(native) => self.native_owner_apply(native)?,
            Row::Spend(key, day, spend) => {
                let known = self.spends.entry((*key, *day)).or_default();
                *known = known.plus(*spend);
            }
            Row::Feedback(image) => self.feedback_write(image),
            Row::InheritedArtifact(image) => self.inherited_write(image),
            Row::Pin(pin) => self.pin_write(pin),
            Row::Grant(image) => self.grant_write(image),
            Row::Artifact(image) => drop(self.artifacts.insert(image.id, Artifact::clone(image))),
            Row::ArtifactGone(id) => {
                if self.artifacts.get(id).is_some_and(|artifact| artifact.session == session) {
                    self.artifact_remove(*id);
                }
            }
            Row::State(row) => self.state_apply(session, row, None),
            Row::StateAtOrder(row, order) => self.state_apply(session, row, Some(*order)),
            Row::LineOrder(line, order) => self.line_order_apply(*line, *order),
            Row::StateBack(from, key) => self.state_back(*from, key),
            Row::StateChange(row) => self.state_change_apply(&row.of, row.change.clone()),
            Row::Delegation(image) if self.session(image.parent_session).is_none() => {}
            Row::Delegation(image) => drop(self.delegations.insert(image.id, Delegation::clone(image))),
            Row::Digest(image) => drop(self.digests.insert((image.at, session), Digest::clone(image))),
            Row::Step(image) => drop(self.steps.insert((image.run, image.no, image.id), Step::clone(image))),
            Row::StepInput(input) => {
                let known = self.step_inputs.entry((session, input.hash.clone()));
                known.or_insert_with(|| input.json.clone());
            }
            Row::StepsSeal(run) => {
                self.steps.values_mut().filter(|step| step.run == *run).for_each(|step| step.private = None);
            }
        }
        Ok(())
    }

    fn run_apply(&mut self, image: &Run) {
        let mut run = image.clone();
        if let Some(known) = self.runs.get(&run.id) {
            let known = known.clone();
            run = Run {
                session: known.session,
                owner: known.owner,
                no: known.no,
                parent: known.parent,
                request: known.request,
                fingerprint: known.fingerprint,
                mode: known.mode,
                prompt: known.prompt,
                place: known.place,
                created_at: known.created_at,
                ..run
            };
        }
        self.created_seq.entry(run.id).or_insert(self.seq);
        self.runs.insert(run.id, run);
    }

    fn message_place(&mut self, session: SessionId, id: MessageId, point: Point) -> Result<(), StoreError> {
        let known = self.messages.get_mut(&id).filter(|known| known.message.session == session);
        let known = known.ok_or(StoreError::Conflict(Unique::Other))?;
        known.point = Some(point);
        known.message =
            Arc::new(Message { status: MessageStatus::Completed, ..Message::clone(&known.message) });
        Ok(())
    }

    fn line_apply(&mut self, session: SessionId, line: Line) {
        match self.lines.iter_mut().find(|(_, known)| known.id == line.id) {
            Some((_, known)) => *known = line,
            None => {
                self.line_opened(session, &line);
                self.lines.push((session, line));
            }
        }
    }

    fn effect_apply(&mut self, session: SessionId, effect: &OpenToolCall) {
        let same = |(id, known): &&mut (SessionId, OpenToolCall)| {
            *id == session && known.run == effect.run && known.tool_use_id == effect.tool_use_id
        };
        match self.effects.iter_mut().find(same) {
            Some((_, known)) => known.clone_from(effect),
            None => self.effects.push((session, effect.clone())),
        }
    }

    pub(super) fn request_apply(&mut self, request: &Request) -> Result<(), StoreError> {
        let key = (request.owner.clone(), request.operation.clone(), request.key.clone());
        if self.requests.get(&key).is_some_and(|known| known.at >= Request::oldest_kept(request.at)) {
            return Err(StoreError::Conflict(Unique::RequestKey));
        }
        self.requests.insert(key, request.clone());
        Ok(())
    }

    fn inbox_apply(&mut self, to: SessionId, item: &InboxItem) {
        if self.session(to).is_none() {
            return;
        }
        match self.inbox.iter_mut().find(|(id, known)| *id == to && known.id == item.id) {
            Some((_, known)) => *known = item.clone(),
            None => self.inbox.push((to, item.clone())),
        }
    }

    fn event_apply(&mut self, session: SessionId, event: &NewEvent) -> Cursor {
        self.seq += 1;
        let cursor = Cursor(self.seq);
        let NewEvent { id, pos, run, attempt, at, body } = event.clone();
        self.events
            .insert(self.seq, Event { id, cursor, pos, session, run, attempt, request: None, at, body });
        cursor
    }
}

/// Returns true for a row that is applied last, because it refers to rows that the same commit may insert.
fn is_late(row: &Row) -> bool {
    matches!(
        row,
        Row::MessagePlace(..) | Row::Inbox(..) | Row::InboxTaken(_) | Row::StepsSeal(_) | Row::LineOrder(..)
    )
}
