//! `get_agent_run`, `cancel_agent_run`, `inspect_agent_artifacts`.

use mainspring_api::control::{
    ArtifactForm, ArtifactList, AttemptForm, CancelRun, CancelledRun, ControlError, DelegationForm,
    EventForm, GetRun, InspectArtifacts, RunDetails, RunForm,
};
use mainspring_core::{Artifact, AttemptId, Position, Run, RunId, SessionId};

use crate::{ControlTools, Input, invalid, limit, run_id, session_id};

/// The maximum number of artifacts that are read.
const MAX_ARTIFACTS: usize = 200;
/// The number of events that are read at once.
const EVENTS_PER_PAGE: usize = 500;

impl ControlTools<'_> {
    pub(crate) async fn get(&self, input: Input<GetRun>) -> Result<RunDetails, ControlError> {
        let input = input?;
        self.check_owner(input.owner_id.as_deref())?;
        let event_limit = match input.include_events.unwrap_or(true) {
            true => limit(input.event_limit, 100, 500)?,
            false => 0,
        };
        let run = self.plane.run_get(run_id(&input.run_id)?).await?;
        let (id, session) = (run.id, run.session);
        let delegations = self.plane.run_delegations(id).await?;
        let artifacts = self.plane.run_artifacts(id, MAX_ARTIFACTS).await?;
        Ok(RunDetails {
            session: self.plane.session_get(session).await?.into(),
            run: self.run_form(run).await?,
            attempts: self.attempts(id).await?,
            adapter_bindings: self.bindings(session).await?,
            artifacts: artifacts.into_iter().map(ArtifactForm::from).collect(),
            events: self.last_events(id, event_limit).await?,
            parent_delegations: delegations.parent.into_iter().map(DelegationForm::from).collect(),
            child_delegations: delegations.children.into_iter().map(DelegationForm::from).collect(),
        })
    }

    pub(crate) async fn cancel(&self, input: Input<CancelRun>) -> Result<CancelledRun, ControlError> {
        let input = input?;
        self.check_owner(input.owner_id.as_deref())?;
        let id = run_id(&input.run_id)?;
        Ok(CancelledRun {
            cancellation: self.plane.run_cancel(id).await?,
            run: self.run_form(self.plane.run_get(id).await?).await?,
            attempts: self.attempts(id).await?,
        })
    }

    pub(crate) async fn inspect(&self, input: Input<InspectArtifacts>) -> Result<ArtifactList, ControlError> {
        let input = input?;
        self.check_owner(input.owner_id.as_deref())?;
        let most = limit(input.limit, 50, 200)?;
        let found = match (&input.session_id, &input.run_id, &input.attempt_id) {
            (Some(session), None, None) => {
                self.plane.session_artifacts(session_id(session)?, MAX_ARTIFACTS).await?
            }
            (None, Some(run), None) => self.plane.run_artifacts(run_id(run)?, MAX_ARTIFACTS).await?,
            (None, None, Some(attempt)) => self.attempt_artifacts(attempt).await?,
            _ => return Err(invalid("name exactly one of sessionId, runId and attemptId")),
        };
        let has_role = |artifact: &Artifact| input.role.is_none_or(|role| role == artifact.role);
        let artifacts = found.into_iter().filter(has_role).take(most).map(ArtifactForm::from).collect();
        Ok(ArtifactList { artifacts })
    }

    async fn attempt_artifacts(&self, attempt: &str) -> Result<Vec<Artifact>, ControlError> {
        let id: AttemptId =
            attempt.parse().map_err(|_| ControlError::not_found(format!("no attempt {attempt:?}")))?;
        let run = (self.run_of)(id).ok_or_else(|| {
            ControlError::not_found(format!("{attempt} is not among the latest attempts; name its run"))
        })?;
        let mut found = self.plane.run_artifacts(run, MAX_ARTIFACTS).await?;
        found.retain(|artifact| artifact.attempt == Some(id));
        Ok(found)
    }

    pub(crate) async fn attempts(&self, run: RunId) -> Result<Vec<AttemptForm>, ControlError> {
        let attempts = self.plane.run_attempts(run).await?;
        Ok(attempts.into_iter().map(AttemptForm::from).collect())
    }

    /// Returns the last `limit` events of a run.
    async fn last_events(&self, run: RunId, limit: usize) -> Result<Vec<EventForm>, ControlError> {
        let (mut last, mut after) = (vec![], Position::START);
        if limit == 0 {
            return Ok(vec![]);
        }
        loop {
            let page = self.plane.run_events(run, after, Some(EVENTS_PER_PAGE)).await?;
            last.extend(page.items);
            last.drain(..last.len().saturating_sub(limit));
            match page.next.and_then(|next| next.parse().ok()) {
                Some(next) => after = next,
                None => break,
            }
        }
        Ok(last.into_iter().map(EventForm::from).collect())
    }

    /// Returns the id of the native session that an attempt of `session` used.
    pub(crate) async fn native_session(
        &self,
        session: SessionId,
        attempt: Option<&AttemptForm>,
    ) -> Result<Option<String>, ControlError> {
        let Some(used) = attempt.and_then(|attempt| attempt.binding_id) else { return Ok(None) };
        let bindings = self.plane.session_bindings(session).await?;
        Ok(bindings.into_iter().find(|binding| binding.id == used).and_then(|binding| binding.native))
    }

    pub(crate) async fn optional_run_form(&self, run: Option<Run>) -> Result<Option<RunForm>, ControlError> {
        match run {
            Some(run) => Ok(Some(self.run_form(run).await?)),
            None => Ok(None),
        }
    }

    /// Returns the form of a run with its prompt and final text.
    pub(crate) async fn run_form(&self, run: Run) -> Result<RunForm, ControlError> {
        let prompt = self.prompt_text(&run).await?;
        // A run of a list has no text.
        let run = match run.final_text {
            None if run.state.status().is_ended() => self.plane.run_get(run.id).await?,
            _ => run,
        };
        Ok(RunForm::new(run, prompt))
    }

    /// Returns the text of a run's prompt, if the run has one and it is in the tree.
    async fn prompt_text(&self, run: &Run) -> Result<Option<String>, ControlError> {
        let Some(message) = run.prompt else { return Ok(None) };
        match self.plane.session_message(run.session, message).await {
            Ok(found) => Ok(Some(found.text())),
            // A queued prompt is not in the tree yet.
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}
