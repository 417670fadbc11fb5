//! Waiting: a run asks a person or its caller's tools, gives its worker back, and goes on once it is answered and a worker is free.

use mainspring_core::run::{Command as RunCommand, Outcome};
use mainspring_core::{Answer, AttemptId, Failure, Refusal, Run, RunId, RunStatus, Usage, Wait, WaitId};

use super::{Actor, Draft};
use crate::adapter::{Answered, Ask, AskReply, HandleError};
use crate::error::Error;
use crate::scheduler::Permit;

impl Actor {
    /// An adapter asks and holds its execution.
    pub(super) async fn ask(&mut self, by: AttemptId, ask: Ask, holder: AskReply) {
        match self.authority(by) {
            Some(active) if active.run.state.status() == RunStatus::Running => {
                Box::pin(self.wait(by, ask, Some(holder))).await;
            }
            Some(_) | None => {
                let _ = holder.reply.send(Err(HandleError::Revoked));
            }
        }
    }

    /// The active run waits: `held` by its execution, or by the store alone.
    pub(super) async fn wait(&mut self, by: AttemptId, ask: Ask, held: Option<AskReply>) {
        let expiry = self.shared.clock.now().plus(self.shared.options.wait_expiry_ms);
        let wait = Wait {
            id: self.shared.ids.wait(),
            request: ask.request,
            question: ask.question,
            expires_at: Some(ask.expires_at.unwrap_or(expiry)),
            held: held.is_some(),
            calls: ask.calls,
            results: ask.results,
            resume: ask.resume,
            answer: None,
        };
        let Some(mut draft) = self.active_draft() else {
            return;
        };
        draft.state_settle();
        let (size, limit) = (wait.question.len(), self.shared.options.limits.prompt_bytes);
        // What was streamed before the question stays open: it is completed with the attempt's next message.
        let asked = match draft.command(RunCommand::Wait { by, wait }) {
            Ok(()) if size > limit => {
                self.give_up();
                Err(Error::TooLarge { what: "the question", size, limit })
            }
            Ok(()) => self.take_over(draft).await.map_err(Error::from),
            Err(refusal) => {
                self.give_up();
                Err(refusal.into())
            }
        };
        match (asked, held) {
            (Ok(()), held) => {
                if let Some(active) = &mut self.active {
                    active.held = held;
                    // Waiting is not working: the worker is free for others.
                    active.permit = None;
                }
            }
            (Err(error), Some(holder)) => {
                let _ = holder.reply.send(Err(HandleError::Kernel(error)));
            }
            (Err(error), None) => {
                let error = Failure::new("unavailable", error.to_string());
                let outcome =
                    Outcome::Failed { status: RunStatus::Failed, error, retryable: true, retry_at: None };
                self.finish(by, outcome, Usage::default()).await;
            }
        }
    }

    pub(super) async fn answer(&mut self, run: RunId, wait: WaitId, answer: Answer) -> Result<Run, Error> {
        let active = self.active.as_ref().filter(|active| active.run.id == run && active.killing.is_none());
        if active.is_none() {
            let status = self.run_known(run).await?.state.status();
            return Err(Refusal::NotWaiting { wait, status }.into());
        }
        let Some(mut draft) = self.active_draft() else {
            return Err(Error::not_found("run", run));
        };
        if let Err(refusal) = draft.command(RunCommand::Answer { wait, answer }) {
            self.give_up();
            return Err(refusal.into());
        }
        self.take_over(draft).await?;
        self.active.as_ref().map(|active| active.run.clone()).ok_or_else(|| Error::not_found("run", run))
    }

    /// A worker is free for the run that was answered.
    pub(super) async fn resume(&mut self, permit: Permit) -> Result<(), Error> {
        let Some(active) = &self.active else { return Ok(()) };
        let by = active.attempt.id;
        let Some((answer, resume)) =
            active.run.state.wait().and_then(|w| Some((w.answer.clone()?, w.resume.clone())))
        else {
            return Ok(());
        };
        let Some(mut draft) = self.active_draft() else {
            return Ok(());
        };
        if let Err(refusal) = draft.command(RunCommand::Resume { by }) {
            self.give_up();
            return Err(refusal.into());
        }
        self.take_over(draft).await?;
        let Some(mut active) = self.active.take() else {
            return Ok(());
        };
        match active.held.take() {
            Some(held) => {
                active.permit = Some(permit);
                self.active = Some(active);
                let _ = held.reply.send(Ok(answer));
            }
            None => {
                let answered = Answered { answer, resume };
                self.launch(active.run, active.attempt, Some(permit), active.prompt, Some(answered));
            }
        }
        Ok(())
    }

    /// Nobody answered in time. An execution that holds the wait is stopped before the run ends, unless it said that
    /// it goes on.
    pub(super) async fn expire(&mut self) {
        let Some(active) = &mut self.active else { return };
        if active.killing.is_none() && active.held.as_ref().is_some_and(|holder| holder.lapses) {
            let by = active.attempt.id;
            return self.lapse(by).await;
        }
        let outcome = Outcome::Failed {
            status: RunStatus::TimedOut,
            error: Failure::new("wait_expired", "nobody answered in time"),
            retryable: true,
            retry_at: None,
        };
        match active.task {
            Some(_) if active.killing.is_none() => self.kill(outcome),
            Some(_) => {}
            None => {
                let by = active.attempt.id;
                self.finish(by, outcome, Usage::default()).await;
            }
        }
    }

    /// The execution goes on as soon as a worker is free, without an answer.
    async fn lapse(&mut self, by: AttemptId) {
        let mut pause = 50;
        while let Some(mut draft) = self.active_draft() {
            if let Err(refusal) = draft.command(RunCommand::Lapse { by }) {
                self.give_up();
                tracing::error!(%refusal, "a question lapsed in a way its run does not allow");
                return;
            }
            match self.take_over(draft).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(%error, "that a question has lapsed could not be recorded yet");
                    self.rest(&mut pause).await;
                }
            }
            if self.over {
                return;
            }
        }
    }

    /// A draft of the active run that leaves what is being streamed open.
    pub(super) fn active_draft(&self) -> Option<Draft> {
        let active = self.active.as_ref()?;
        let (draft, _) = self.draft(false);
        Some(draft.with_run(active.run.clone(), Some(active.attempt.clone())))
    }
}
