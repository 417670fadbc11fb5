//! Changes of state, artifacts and the title, by callers and by attempts.

use std::sync::Arc;

use mainspring_core::state::decide;
use mainspring_core::{
    Artifact, ArtifactId, AttemptId, Body, Expect, Point, RunId, StateOutcome, StateSlot, StateWriter,
    TitleSource, Usage, session,
};
use serde_json::Value;

use super::{Actor, Draft, Subject};
use crate::adapter::{HandleError, Record};
use crate::error::{CreateError, Error};
use crate::store::{Request, Row, StateAt, StatePlace, StateRow};

/// A change of state of the session, or of one of its runs.
#[derive(Debug)]
pub(crate) struct StateWrite {
    /// None for state of the session.
    pub(crate) run: Option<RunId>,
    pub(crate) key: String,
    /// None to remove the key.
    pub(crate) value: Option<Value>,
    pub(crate) expect: Expect,
    /// The party that makes the change.
    pub(crate) by: StateWriter,
}

/// A decided change of state.
struct Decided {
    outcome: StateOutcome,
    /// The row to write; none if nothing changes.
    row: Option<StateRow>,
    /// The number of keys after the change, if it is known.
    count: Option<(StateAt, usize)>,
}

impl Actor {
    /// Changes state for a caller: of the session at its tip, while no run is active, or of a run that has not ended.
    pub(super) async fn state_write(&mut self, write: StateWrite) -> Result<StateOutcome, Error> {
        match write.run {
            // Boxed: it holds a whole draft.
            Some(run) => Box::pin(self.state_write_of_run(run, write)).await,
            None => self.state_write_of_session(write).await,
        }
    }

    async fn state_write_of_session(&mut self, write: StateWrite) -> Result<StateOutcome, Error> {
        if let Some(active) = &self.active {
            return Err(Error::Busy { status: active.status() });
        }
        let at = self.hot.session.tip;
        let line = at.and_then(|at| self.hot.session.line(at.line));
        let aside = at.zip(line).is_some_and(|(at, line)| line.end > at.pos + 1);
        let by = write.by.clone();
        let Decided { outcome, row, count } = self.state_decide(write, at, aside).await?;
        if let Some(row) = row {
            let mut draft = self.draft();
            draft.state_set(row, by);
            self.commit(draft).await?;
            self.note_count(count);
        }
        Ok(outcome)
    }

    async fn state_write_of_run(&mut self, run: RunId, write: StateWrite) -> Result<StateOutcome, Error> {
        let is_active = self.active.as_ref().is_some_and(|active| active.run().id == run);
        if !is_active && self.queue.get(run).is_none() {
            return Err(self.run_known(run).await?.not_live().into());
        }
        let by = write.by.clone();
        let Decided { outcome, row, count } = self.state_decide(write, None, false).await?;
        let Some(row) = row else { return Ok(outcome) };
        if let Some(active) = self.active.as_ref().filter(|active| active.run().id == run) {
            let mut draft = self.draft_of(active);
            draft.state_set(row, by);
            self.commit_active(draft).await?;
        } else if let Some(queued) = self.queue.get(run).cloned() {
            let mut draft = self.draft().of_run(queued);
            draft.state_set(row, by);
            let changed = self.commit(draft).await?;
            self.queue.update(Arc::unwrap_or_clone(changed.run));
        }
        self.note_count(count);
        Ok(outcome)
    }

    /// Changes state for an attempt: of its run, or of the session at the point where the run writes next.
    pub(super) async fn state_write_by(
        &mut self,
        by: AttemptId,
        write: StateWrite,
    ) -> Result<StateOutcome, HandleError> {
        let pen = self.recordable(by)?.run().pen;
        let (of_session, writer) = (write.run.is_none(), write.by.clone());
        let Decided { outcome, row, count } = self.state_decide(write, pen, false).await?;
        if let (Some(row), Some(active)) = (row, &self.active) {
            let mut draft = self.draft_of(active);
            if of_session {
                draft.hot.path.add_state_key(&row.key);
            }
            draft.state_set(row, writer);
            self.commit_active(draft).await.map_err(Error::from)?;
            self.note_count(count);
        }
        Ok(outcome)
    }

    /// Decides the changes of the active run's state that `records` hold. Returns their rows.
    pub(super) async fn run_state_rows(
        &mut self,
        attempt_id: AttemptId,
        records: &[Record],
    ) -> Result<Vec<(StateRow, StateWriter)>, Error> {
        let Some(run) = self.active.as_ref().map(|active| active.run().id) else { return Ok(vec![]) };
        let mut rows = vec![];
        for record in records {
            let Record::RunState { key, value } = record else { continue };
            self.shared.check_state_entry(key, value.as_ref())?;
            let (key, value) = (key.clone(), value.clone());
            let by = StateWriter::Agent { run_id: run, attempt_id, tool: None };
            let write = StateWrite { run: Some(run), key, value, expect: Expect::Any, by: by.clone() };
            let decided = self.state_decide(write, None, false).await?;
            rows.extend(decided.row.map(|row| (row, by)));
            // The next record is decided as if this one were stored.
            self.note_count(decided.count);
        }
        if !rows.is_empty() {
            self.cache.state_counts.forget(&StateAt::Run(run));
        }
        Ok(rows)
    }

    /// Decides a change of state: its outcome, and its row unless nothing changes. If there is a row, the cached
    /// number of keys is dropped until the caller has made the row durable.
    async fn state_decide(
        &mut self,
        write: StateWrite,
        point: Option<Point>,
        aside: bool,
    ) -> Result<Decided, Error> {
        let (at, place) = match write.run {
            Some(run) => (StateAt::Run(run), StatePlace::Run(run)),
            None => {
                let session = self.fence.session;
                (StateAt::Session { session, at: point }, StatePlace::Session { at: point, aside })
            }
        };
        let StateWrite { key, value, expect, .. } = write;
        let slot: StateSlot = self.shared.store.state_get(&at, &key).await?;
        let version = decide(&slot, value.as_ref(), expect)?;
        let mut count = self.cache.state_counts.get(&at).filter(|_| !aside);
        let is_new = slot.entry.is_none() && value.is_some();
        if is_new {
            count = Some(self.shared.check_state_room(&at, count).await?);
        }
        let now = self.shared.clock.now();
        let row = version.map(|version| StateRow {
            place,
            key: key.clone(),
            version,
            value: value.clone(),
            at: now,
        });
        if row.is_some() {
            self.cache.state_counts.forget(&at);
        }
        let is_removed = slot.entry.is_some() && value.is_none();
        let after = |count: usize| (count + usize::from(is_new)).saturating_sub(usize::from(is_removed));
        let count = count.filter(|_| !aside).map(|count| (at, after(count)));
        Ok(Decided { outcome: StateOutcome::of(slot, &key, value, version, now), row, count })
    }

    /// Notes the number of keys after a change.
    fn note_count(&mut self, count: Option<(StateAt, usize)>) {
        if let Some((at, count)) = count {
            self.cache.state_counts.set(&at, count);
        }
    }

    /// Adds an artifact of a caller.
    pub(super) async fn artifact_add(
        &mut self,
        artifact: Box<Artifact>,
        request: Option<Box<Request>>,
    ) -> Result<(), CreateError> {
        let mut draft = self.draft();
        request.into_iter().for_each(|request| draft.row(Row::Request(request)));
        draft.artifact_add(artifact);
        self.commit(draft).await?;
        Ok(())
    }

    /// Adds an artifact of an attempt.
    pub(super) async fn artifact_add_by(
        &mut self,
        by: AttemptId,
        artifact: Box<Artifact>,
    ) -> Result<(), HandleError> {
        self.recordable(by)?;
        let Some(active) = &self.active else { return Err(HandleError::Revoked) };
        let mut draft = self.draft_of(active);
        draft.artifact_add(artifact);
        self.commit_active(draft).await.map_err(|error| HandleError::Kernel(error.into()))
    }

    /// Names the session with a model's title, and counts the usage of the model as the session's.
    pub(super) async fn title(&mut self, title: Option<String>, used: Usage) -> Result<(), Error> {
        let mut draft = self.draft();
        if !used.is_zero() {
            draft.emit(Body::UsageUpdated { usage: used });
        }
        if let Some(title) = title.as_deref().and_then(session::title_of) {
            let title = session::Command::Title { title, source: TitleSource::Agent };
            self.give_up_on_error(draft.session_command(title))?;
        }
        self.commit(draft).await?;
        Ok(())
    }

    /// Changes the description of an artifact that exists.
    pub(super) async fn artifact_change(&mut self, artifact: Box<Artifact>) -> Result<(), Error> {
        let found = self.shared.store.artifact_get(artifact.id).await?;
        if found.is_none_or(|found| found.session != self.fence.session) {
            return Err(Error::not_found("artifact", artifact.id));
        }
        let mut draft = self.draft();
        draft.row(Row::Artifact(artifact));
        self.commit(draft).await?;
        Ok(())
    }

    pub(super) async fn artifact_delete(&mut self, id: ArtifactId) -> Result<(), Error> {
        let found = self.shared.store.artifact_get(id).await?;
        if found.is_none_or(|found| found.session != self.fence.session) {
            return Err(Error::not_found("artifact", id));
        }
        let mut draft = self.draft();
        draft.row(Row::ArtifactGone(id));
        draft.emit(Body::ArtifactDeleted { artifact_id: id });
        self.commit(draft).await?;
        Ok(())
    }
}

impl<S: Subject> Draft<S> {
    fn artifact_add(&mut self, artifact: Box<Artifact>) {
        let body = Body::ArtifactCreated {
            artifact_id: artifact.id,
            kind: artifact.kind.clone(),
            role: artifact.role,
            name: artifact.name.clone(),
            mime_type: artifact.mime_type.clone(),
            size_bytes: artifact.size_bytes,
        };
        let named = artifact.run;
        self.row(Row::Artifact(artifact));
        self.emit_about(named, body);
    }
}
