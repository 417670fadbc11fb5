//! Answers to waiting runs.

use mainspring_core::wait::is_recorded;
use mainspring_core::{
    Answer, Body, ClientResult, Event, FirstAnswer, Refusal, Run, RunId, SessionId, WaitId,
};

use super::runs::{check_size, json_size};
use super::{Caller, Kernel, Shared};
use crate::actor::Command;
use crate::adapter::EarlierCalls;
use crate::error::Error;

impl Kernel {
    /// Answers a waiting run. Sending the same tool results again changes nothing, even after the run has continued.
    pub async fn run_answer(
        &self,
        caller: &Caller,
        run: RunId,
        wait: WaitId,
        answer: Answer,
    ) -> Result<Run, Error> {
        caller.check_person()?;
        let session = self.run_for_change(caller, run).await?;
        let Answer::Tools { results } = &answer else {
            let limit = self.shared.options.limits.prompt_bytes;
            check_size("the answer", json_size(Some(&answer)), limit)?;
            let by = caller.decider();
            let outcome =
                self.shared.call(session, |reply| Command::Answer(run, wait, answer, by, reply)).await;
            return match outcome {
                Err(Error::Refused(late @ (Refusal::Answered { .. } | Refusal::NotWaiting { .. }))) => {
                    Err(self.shared.with_first_answer(session, run, wait, late).await?.into())
                }
                outcome => outcome,
            };
        };
        let results = results.clone();
        if results.is_empty() {
            return Err(Error::Invalid("give at least one result".into()));
        }
        let limit = self.shared.options.limits.prompt_bytes;
        check_size("the tool results together", json_size(Some(&results)), limit)?;
        let by = caller.decider();
        match self.shared.call(session, |reply| Command::Answer(run, wait, answer, by, reply)).await {
            Err(Error::Refused(not_waiting @ Refusal::NotWaiting { .. })) => {
                self.check_repeated(session, run, wait, &results, not_waiting).await?;
                self.run_get(caller, run).await
            }
            answered => answered,
        }
    }

    /// Accepts tool results that were recorded before: a caller that lost the answer sends them again, after the run has
    /// continued. Any other result is refused with `not_waiting`.
    async fn check_repeated(
        &self,
        session: SessionId,
        run: RunId,
        wait: WaitId,
        results: &[ClientResult],
        not_waiting: Refusal,
    ) -> Result<(), Error> {
        let earlier = self.shared.earlier_calls(session, run).await?;
        let given = || earlier.given.iter().filter(|(by, _)| *by == wait).map(|(_, result)| result);
        for result in results {
            if !is_recorded(given(), result)? {
                return Err(not_waiting.into());
            }
        }
        Ok(())
    }
}

impl Shared {
    /// Adds the author and the time of the first answer to the refusal of a late answer.
    async fn with_first_answer(
        &self,
        session: SessionId,
        run: RunId,
        wait: WaitId,
        refusal: Refusal,
    ) -> Result<Refusal, Error> {
        let mut events = self.run_events(session, run);
        while let Some(page) = events.next_page().await? {
            if let Some(first) = page.into_iter().find_map(|event| first_answer(event, wait)) {
                return Ok(Refusal::Answered { wait, first: Some(Box::new(first)) });
            }
        }
        Ok(refusal)
    }

    /// Reads from the events of a run which tool calls were begun and which results the caller gave. Skips pruned events.
    pub(crate) async fn earlier_calls(&self, session: SessionId, run: RunId) -> Result<EarlierCalls, Error> {
        let (mut earlier, mut events) = (EarlierCalls::default(), self.run_events(session, run));
        while let Some(page) = events.next_page().await? {
            for event in page {
                match event.body {
                    Body::ToolStarted { tool_use_id, .. } => drop(earlier.begun.insert(tool_use_id)),
                    Body::ToolsProvided { wait_id, results } => {
                        earlier.given.extend(results.into_iter().flatten().map(|result| (wait_id, result)));
                    }
                    _ => {}
                }
            }
        }
        Ok(earlier)
    }
}

/// The answer to `wait` that an event records.
fn first_answer(event: Event, to: WaitId) -> Option<FirstAnswer> {
    let at = event.at;
    match event.body {
        Body::ApprovalResolved { wait_id, decision, decided_by: Some(by), .. } if wait_id == to => {
            Some(FirstAnswer { by: *by, at, decision: Some(decision) })
        }
        Body::InputProvided { wait_id, answered_by: Some(by), .. } if wait_id == to => {
            Some(FirstAnswer { by: *by, at, decision: None })
        }
        _ => None,
    }
}
