//! `get_agent_run`, `cancel_agent_run`.

use mainspring_api::control::{
    ArtifactForm, AttemptForm, CancelRun, CancelledRun, ControlError, DelegationForm, EventForm, GetRun,
    RunDetails, RunForm,
};
use mainspring_core::{Cursor, Event, Position, Rows, Run, RunId, SessionId};

use crate::bounds::{self, PageBudget, text_page};
use crate::{ControlTools, Input, invalid, limit, run_id};

impl ControlTools<'_> {
    pub(crate) async fn get(&self, input: Input<GetRun>) -> Result<RunDetails, ControlError> {
        let input = input?;
        self.check_owner(input.owner_id.as_deref())?;
        let event_limit = match input.include_events.unwrap_or(true) {
            true => limit(input.event_limit, 100, 500)?,
            false => 0,
        };
        let before = input.cursor.as_deref().map(event_cursor).transpose()?;
        let run = self.plane.run_get(run_id(&input.run_id)?).await?;
        let (id, session) = (run.id, run.session);
        let delegations = self.plane.run_delegations(id).await?;
        // One page; `inspect_agent_artifacts` has all.
        let artifacts = self.plane.run_artifacts(id, None).await?;
        let mut run = self.run_form(run).await?;
        let texts = [&mut run.input.prompt, &mut run.final_text];
        let next_text_offset = text_page(texts, input.text_offset.unwrap_or(0));
        let attempts = self.attempts(id).await?;
        let damaged = attempts.damaged.into_iter().chain(artifacts.damaged).collect();
        let mut details = RunDetails {
            session: self.plane.session_get(session).await?.into(),
            run,
            attempts: attempts.items,
            adapter_bindings: self.bindings(session).await?,
            artifacts: artifacts.items.into_iter().map(ArtifactForm::from).collect(),
            events: vec![],
            parent_delegations: delegations.parent.into_iter().map(DelegationForm::from).collect(),
            child_delegations: delegations.children.into_iter().map(DelegationForm::from).collect(),
            next_cursor: None,
            next_text_offset,
            truncated: vec![],
            damaged,
        };
        let (found, mut has_earlier) = self.last_events(id, before, event_limit).await?;
        let mut budget = PageBudget::after(bounds::RUN.size_of(&details));
        for event in found.into_iter().rev().map(EventForm::from) {
            if !budget.admits(bounds::RUN.size_of(&event)) {
                has_earlier = true;
                break;
            }
            details.events.push(event);
        }
        details.events.reverse();
        let first = details.events.first().map(|event| event.event_seq.0.to_string());
        details.next_cursor = first.filter(|_| has_earlier);
        Ok(details)
    }

    pub(crate) async fn cancel(&self, input: Input<CancelRun>) -> Result<CancelledRun, ControlError> {
        let input = input?;
        self.check_owner(input.owner_id.as_deref())?;
        let id = run_id(&input.run_id)?;
        let cancellation = self.plane.run_cancel(id).await?;
        let run = self.run_form(self.plane.run_get(id).await?).await?;
        let Rows { items: attempts, damaged } = self.attempts(id).await?;
        Ok(CancelledRun { cancellation, run, attempts, damaged })
    }

    /// Returns the last attempt of a run. Fails if the row of any attempt is damaged, because that attempt could be the
    /// last one.
    pub(crate) async fn last_attempt(&self, run: RunId) -> Result<Option<AttemptForm>, ControlError> {
        let attempts = self.attempts(run).await?.intact();
        let mut attempts = attempts.map_err(|damage| ControlError::corrupt(damage.message))?;
        Ok(attempts.pop())
    }

    pub(crate) async fn attempts(&self, run: RunId) -> Result<Rows<AttemptForm>, ControlError> {
        Ok(self.plane.run_attempts(run).await?.map(AttemptForm::from))
    }

    /// Returns the last `limit` events of a run, and whether there are earlier ones. With `before`, only the events
    /// before that event are considered.
    async fn last_events(
        &self,
        run: RunId,
        before: Option<Cursor>,
        limit: usize,
    ) -> Result<(Vec<Event>, bool), ControlError> {
        let (mut last, mut has_earlier, mut after) = (vec![], false, Position::START);
        if limit == 0 {
            return Ok((last, false));
        }
        loop {
            let page = self.plane.run_events(run, after).await?;
            let is_wanted = |event: &Event| before.is_none_or(|end| event.cursor < end);
            let is_end = page.items.last().is_some_and(|event| !is_wanted(event));
            last.extend(page.items.into_iter().take_while(is_wanted));
            let excess = last.len().saturating_sub(limit);
            has_earlier |= excess > 0;
            last.drain(..excess);
            match page.next.and_then(|next| next.parse().ok()) {
                Some(next) if !is_end => after = next,
                _ => return Ok((last, has_earlier)),
            }
        }
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
        // A run that was read as part of a list has no final text.
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

/// Parses the cursor of earlier events: the number of the oldest event that was read so far.
fn event_cursor(text: &str) -> Result<Cursor, ControlError> {
    let bad = || invalid(format!("cursor: {text:?} is not the nextCursor of an earlier answer"));
    text.parse().map(Cursor).map_err(|_| bad())
}
