//! State and artifacts: what callers and adapters change of them.

use mainspring_core::state::decide;
use mainspring_core::{
    Artifact, ArtifactId, AttemptId, Body, Expect, Point, RunId, RunStatus, StateAuthor, StateOutcome,
    StateSlot, TitleSource, Usage, session,
};
use serde_json::Value;

use super::{Actor, Draft, Reply};
use crate::adapter::{HandleError, HandleReply};
use crate::error::{CreateError, Error};
use crate::store::{Request, Row, StateAt, StatePlace, StateRow};

/// A change of state of the session, or of one of its runs.
#[derive(Debug)]
pub(crate) struct StateWrite {
    /// None for the session's.
    pub(crate) run: Option<RunId>,
    pub(crate) key: String,
    /// None to remove the key.
    pub(crate) value: Option<Value>,
    pub(crate) expect: Expect,
}

/// What an actor is told of state and artifacts.
pub(crate) enum Data {
    /// A caller changes state.
    State(StateWrite, Reply<StateOutcome>),
    /// An adapter changes state.
    StateBy(AttemptId, StateWrite, HandleReply<StateOutcome>),
    /// A caller has put bytes there; a name that is taken is looked up by the caller.
    Artifact(Artifact, Option<Request>, Reply<(), CreateError>),
    /// An adapter has put bytes there.
    ArtifactBy(AttemptId, Artifact, HandleReply<()>),
    /// Delete an artifact.
    ArtifactDelete(ArtifactId, Reply<()>),
    /// A model has a title for the session, or has none; and what it used.
    Title(Option<String>, Usage, Reply<()>),
}

impl Data {
    /// True for what a caller asks.
    pub(super) fn is_call(&self) -> bool {
        !matches!(self, Self::StateBy(..) | Self::ArtifactBy(..))
    }

    /// Answers what nobody will carry out.
    pub(super) fn refuse(self, error: Error) {
        match self {
            Self::State(_, reply) => drop(reply.send(Err(error))),
            Self::Artifact(_, _, reply) => drop(reply.send(Err(error.into()))),
            Self::ArtifactDelete(_, reply) => drop(reply.send(Err(error))),
            Self::Title(_, _, reply) => drop(reply.send(Err(error))),
            // Whoever executes has lost its authority and learns it by the closed channel.
            Self::StateBy(..) | Self::ArtifactBy(..) => {}
        }
    }
}

impl Actor {
    pub(super) async fn data(&mut self, data: Data) {
        match data {
            Data::State(write, reply) => {
                let _ = reply.send(self.state_change(write).await);
            }
            Data::StateBy(by, write, reply) => {
                let _ = reply.send(self.state_change_by(by, write).await);
            }
            Data::Artifact(artifact, request, reply) => {
                let _ = reply.send(self.artifact_add(artifact, request).await);
            }
            Data::ArtifactBy(by, artifact, reply) => {
                let _ = reply.send(self.artifact_add_by(by, artifact).await);
            }
            Data::ArtifactDelete(artifact, reply) => {
                let _ = reply.send(self.artifact_delete(artifact).await);
            }
            Data::Title(title, used, reply) => {
                let _ = reply.send(self.titled(title, used).await);
            }
        }
    }

    /// A caller changes state: the session's where its path ends, while nothing acts there; a run's until it has ended.
    async fn state_change(&mut self, write: StateWrite) -> Result<StateOutcome, Error> {
        let Some(run) = write.run else {
            if let Some(active) = &self.active {
                return Err(Error::Busy { status: active.run.state.status() });
            }
            let at = self.hot.session.tip;
            let line = at.and_then(|at| self.hot.lines.get(&at.line));
            let aside = at.zip(line).is_some_and(|(at, line)| line.end > at.pos + 1);
            let (outcome, row) = self.state_decide(write, at, aside).await?;
            if let Some(row) = row {
                let (mut draft, _) = self.draft(false);
                draft.state_set(row, StateAuthor::Caller);
                self.commit(draft).await?;
            }
            return Ok(outcome);
        };
        let active = self.active.as_ref().is_some_and(|active| active.run.id == run);
        let queued = self.queue.iter().position(|queued| queued.id == run);
        if !active && queued.is_none() {
            let known = self.run_known(run).await?;
            return Err(known.not_live().into());
        }
        let (outcome, row) = self.state_decide(write, None, false).await?;
        let Some(row) = row else { return Ok(outcome) };
        match (self.active_draft().filter(|_| active), queued) {
            (Some(mut draft), _) => {
                draft.state_set(row, StateAuthor::Caller);
                self.take_over(draft).await?;
            }
            (None, Some(at)) => {
                let (draft, _) = self.draft(false);
                let mut draft = draft.with_run(self.queue[at].clone(), None);
                draft.state_set(row, StateAuthor::Caller);
                if let (Some(run), _) = self.commit(draft).await? {
                    self.queue[at] = run;
                }
            }
            (None, None) => return Err(Error::not_found("run", run)),
        }
        Ok(outcome)
    }

    /// An attempt changes state: the session's where its run writes next, or its run's own.
    async fn state_change_by(
        &mut self,
        by: AttemptId,
        write: StateWrite,
    ) -> Result<StateOutcome, HandleError> {
        let pen = self.may_record(by)?;
        let of_session = write.run.is_none();
        let (outcome, row) = self.state_decide(write, pen, false).await?;
        if let (Some(row), Some(mut draft)) = (row, self.active_draft()) {
            if of_session && !draft.hot.state_at_pen.contains(&row.key) {
                draft.hot.state_at_pen.push(row.key.clone());
            }
            draft.state_set(row, StateAuthor::Agent);
            self.take_over(draft).await.map_err(Error::from)?;
        }
        Ok(outcome)
    }

    /// What a change leads to, and the row of it; none if nothing changes.
    async fn state_decide(
        &self,
        write: StateWrite,
        point: Option<Point>,
        aside: bool,
    ) -> Result<(StateOutcome, Option<StateRow>), Error> {
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
        if slot.entry.is_none() && value.is_some() {
            self.shared.check_state_room(&at).await?;
        }
        let now = self.shared.clock.now();
        let row = version.map(|version| StateRow {
            place,
            key: key.clone(),
            version,
            value: value.clone(),
            at: now,
        });
        Ok((StateOutcome::of(slot, &key, value, version, now), row))
    }

    /// Where the run of an attempt that may record writes next.
    fn may_record(&mut self, by: AttemptId) -> Result<Option<Point>, HandleError> {
        let active = self.authority(by).ok_or(HandleError::Revoked)?;
        if active.run.state.status() == RunStatus::Cancelling && !active.cancel.is_cancelled() {
            return Err(HandleError::Revoked);
        }
        Ok(active.run.pen)
    }

    async fn artifact_add(
        &mut self,
        artifact: Artifact,
        request: Option<Request>,
    ) -> Result<(), CreateError> {
        let (mut draft, _) = self.draft(false);
        if let Some(request) = request {
            draft.row(Row::Request(Box::new(request)));
        }
        add(&mut draft, artifact);
        self.commit(draft).await?;
        Ok(())
    }

    async fn artifact_add_by(&mut self, by: AttemptId, artifact: Artifact) -> Result<(), HandleError> {
        self.may_record(by)?;
        let Some(mut draft) = self.active_draft() else {
            return Err(HandleError::Revoked);
        };
        add(&mut draft, artifact);
        self.take_over(draft).await.map_err(|error| HandleError::Kernel(error.into()))
    }

    /// A model has named the session, beside its runs.
    async fn titled(&mut self, title: Option<String>, used: Usage) -> Result<(), Error> {
        let (mut draft, _) = self.draft(false);
        if !used.is_zero() {
            draft.emit(Body::UsageUpdated { usage: used });
        }
        if let Some(title) = title.as_deref().and_then(session::title_of) {
            let title = session::Command::Title { title, source: TitleSource::Agent };
            if let Err(refusal) = draft.session_command(title) {
                self.give_up();
                return Err(refusal.into());
            }
        }
        match draft.is_empty() {
            true => self.give_up(),
            false => drop(self.commit(draft).await?),
        }
        Ok(())
    }

    async fn artifact_delete(&mut self, id: ArtifactId) -> Result<(), Error> {
        let found = self.shared.store.artifact_get(id).await?;
        if found.is_none_or(|found| found.session != self.fence.session) {
            return Err(Error::not_found("artifact", id));
        }
        let (mut draft, _) = self.draft(false);
        draft.row(Row::ArtifactGone(id));
        draft.emit(Body::ArtifactDeleted { artifact_id: id });
        self.commit(draft).await?;
        Ok(())
    }
}

fn add(draft: &mut Draft, artifact: Artifact) {
    let body = Body::ArtifactCreated {
        artifact_id: artifact.id,
        kind: artifact.kind.clone(),
        role: artifact.role,
        name: artifact.name.clone(),
        mime_type: artifact.mime_type.clone(),
        size_bytes: artifact.size_bytes,
    };
    draft.row(Row::Artifact(Box::new(artifact)));
    draft.emit(body);
}
