//! Waiting: a run asks a person or its caller's tools, releases its worker, and continues once it is answered and a
//! worker is free.

use mainspring_core::approval::{GRANT_LIFETIME_MS, circumstances};
use mainspring_core::run::{Command as RunCommand, Outcome};
use mainspring_core::{
    Answer, Answerer, ApprovalAnswer, ApprovalRequest, ApprovalScope, AttemptId, Decider, Failure, Grant,
    MayAnswer, NewGrant, OnExpiry, Refusal, Run, RunId, RunStatus, Time, Usage, Wait, WaitId, WaitRequest,
};

use super::Actor;
use super::active::Active;
use super::draft::OfRun;
use super::patience::INITIAL_BACKOFF_MS;
use crate::adapter::{Answered, Ask, AskReply, HandleError};
use crate::error::Error;
use crate::kernel::json_size;
use crate::scheduler::Permit;
use crate::store::Row;

impl Actor {
    /// Records a question of an execution, which waits for the answer. If the execution already waits, the question is
    /// queued.
    pub(super) async fn ask(&mut self, by: AttemptId, ask: Ask, holder: AskReply) {
        match self.authority(by) {
            Some(active) if active.status() == RunStatus::Running => {
                Box::pin(self.wait(by, ask, Some(holder))).await;
            }
            // The execution already waits for an answer: a run asks one question at a time.
            Some(active) if active.questions.held().is_some() => active.questions.push(ask, holder),
            Some(_) | None => {
                let _ = holder.reply.send(Err(HandleError::Revoked));
            }
        }
    }

    /// Makes the active run wait for an answer. With `held`, its execution holds the wait, otherwise only the store
    /// does.
    pub(super) async fn wait(&mut self, by: AttemptId, ask: Ask, held: Option<AskReply>) {
        // Boxed to keep the futures of turns that ask nothing small.
        let asked = Box::pin(self.record_wait(by, ask, held.as_ref().map(|holder| holder.lapses))).await;
        match (asked, held) {
            (Ok(()), held) => {
                if let Some(active) = &mut self.active {
                    active.wait(held);
                }
            }
            (Err(error), Some(holder)) => {
                let _ = holder.reply.send(Err(HandleError::Kernel(error)));
            }
            (Err(error), None) => {
                let error = Failure::new("unavailable", error.to_string());
                let outcome =
                    Outcome::Failed { status: RunStatus::Failed, error, retryable: true, retry: None };
                self.finish(outcome, Usage::default()).await;
            }
        }
    }

    /// Records that the run waits. `lapses`: whether the execution that holds the wait continues when the question expires;
    /// `None` if only the store holds the wait.
    async fn record_wait(&mut self, by: AttemptId, ask: Ask, lapses: Option<bool>) -> Result<(), Error> {
        let (size, limit) = (ask.question.len(), self.shared.options.limits.prompt_bytes);
        if size > limit {
            return Err(Error::TooLarge { what: "the question", size, limit });
        }
        let expiry = self.shared.clock.now().plus(self.shared.options.wait_expiry_ms);
        let on_expiry = match lapses {
            Some(true) => OnExpiry::Continue,
            Some(false) | None => OnExpiry::TimeOut,
        };
        let Some(active) = self.active.as_ref().filter(|active| active.is_held_by(by)) else {
            return Err(Refusal::NoAuthority { by, status: RunStatus::Running }.into());
        };
        let approval = (ask.request == WaitRequest::Approval).then(|| {
            let mut approval = ask.approval.unwrap_or_else(|| Box::new(ApprovalRequest::plain()));
            approval.may_answer = Some(MayAnswer::of_owner(&active.run().owner));
            if json_size(Some(&*approval)) > limit {
                approval.truncate();
            }
            approval
        });
        let mut wait = Wait {
            id: self.shared.ids.wait(),
            request: ask.request,
            question: ask.question,
            expires_at: Some(ask.expires_at.unwrap_or(expiry)),
            on_expiry,
            approval,
            held: lapses.is_some(),
            calls: ask.calls,
            results: ask.results,
            resume: ask.resume,
            replies: ask.replies.map(Box::new),
            answer: None,
        };
        wait.set_deadlines(&active.run().options.tools, self.shared.clock.now());
        // Streamed text stays open: it is completed with the attempt's next message.
        let mut draft = self.draft_of(active);
        draft.state_settle();
        self.give_up_on_error(draft.command(RunCommand::Wait { by, wait }))?;
        self.commit_active(draft).await?;
        Ok(())
    }

    pub(super) async fn answer(
        &mut self,
        run: RunId,
        wait: WaitId,
        answer: Answer,
        by: Decider,
    ) -> Result<Run, Error> {
        let active = self.active.as_ref();
        let Some(active) = active.filter(|active| active.run().id == run && !active.stop.is_killing()) else {
            let status = self.run_known(run).await?.state.status();
            return Err(Refusal::NotWaiting { wait, status }.into());
        };
        let grant = self.session_grant(active, wait, &answer, &by);
        let answerer = Answerer { by, grant: grant.as_ref().map(|grant| grant.id) };
        let mut draft = self.draft_of(active);
        self.give_up_on_error(draft.command(RunCommand::Answer { wait, answer, by: Some(answerer) }))?;
        if let Some(grant) = grant {
            draft.row(Row::Grant(Box::new(grant)));
        }
        self.commit_active(draft).await?;
        self.active
            .as_ref()
            .map(|active| Run::clone(active.run()))
            .ok_or_else(|| Error::not_found("run", run))
    }

    /// Makes the grant of an answer that allows a request for the session.
    fn session_grant(&self, active: &Active, wait: WaitId, answer: &Answer, by: &Decider) -> Option<Grant> {
        let Answer::Approval(ApprovalAnswer { scope: ApprovalScope::Session, expires_in_ms, .. }) = answer
        else {
            return None;
        };
        let open = active.run().state.wait().filter(|open| open.id == wait)?;
        let session = &self.hot.session;
        let (at, run) = (self.shared.clock.now(), active.run());
        let folder = run.options.cwd.as_deref().or(session.cwd.as_deref());
        let lifetime_ms = expires_in_ms.unwrap_or(GRANT_LIFETIME_MS).max(0).unsigned_abs();
        open.approval.as_ref()?.session_grant(NewGrant {
            id: self.shared.ids.grant(),
            session: session.id,
            wait,
            by: by.clone(),
            circumstances: circumstances(&active.attempt().adapter, run.mode, folder),
            at,
            expires_at: at.plus(lifetime_ms),
        })
    }

    /// Continues the answered run with `permit`. Returns false if the active run has no answer to continue with, because it
    /// was cancelled meanwhile.
    pub(super) async fn resume(&mut self, permit: Permit) -> Result<bool, Error> {
        let Some(active) = &self.active else { return Ok(false) };
        let wait = active.run().state.wait();
        let Some((answer, resume)) = wait.and_then(|wait| Some((wait.answer.clone()?, wait.resume.clone())))
        else {
            return Ok(false);
        };
        let (by, prompt) = (active.attempt().id, active.prompt().clone());
        let mut draft = self.draft_of(active);
        self.give_up_on_error(draft.command(RunCommand::Resume { by }))?;
        let OfRun { run, attempt, .. } = self.commit(draft).await?;
        match self.active.as_mut().and_then(|active| Some((active.questions.take_held()?, active))) {
            Some((held, active)) => {
                active.committed(run, attempt);
                active.grant(permit);
                let _ = held.reply.send(Ok(answer));
                self.ask_next(by).await;
            }
            None => self.launch(run, attempt, permit, prompt, Some(Answered { answer, resume })),
        }
        Ok(true)
    }

    /// Refuses the queued questions that the execution has ended. If the open question has ended too, it lapses unless it was
    /// answered. The execution continues without a permit, because its turn is about to end.
    pub(super) async fn end_asking(&mut self, by: AttemptId) {
        let Some(active) = self.active.as_mut().filter(|active| active.is_held_by(by)) else { return };
        active.questions.refuse_ended();
        if active.stop.is_killing() || !active.questions.held().is_some_and(AskReply::is_ended) {
            return;
        }
        if active.is_waiting() {
            self.lapse(|_| RunCommand::Lapse { by }).await;
        }
        let waiting = self.active.as_ref().and_then(|active| active.run().state.wait());
        let Some(answer) = waiting.and_then(|wait| wait.answer.clone()) else { return };
        self.lapse(|_| RunCommand::Resume { by }).await;
        // Without the record, the answer must have no effect: another server may have the session by now.
        let is_recorded = |active: &&mut Active| active.run().state.wait().is_none();
        let Some(active) = self.active.as_mut().filter(is_recorded) else { return };
        if let Some(held) = active.questions.take_held() {
            let _ = held.reply.send(Ok(answer));
        }
        self.ask_next(by).await;
    }

    /// Asks the next question of an execution that goes on. Drops questions whose asker no longer waits.
    async fn ask_next(&mut self, by: AttemptId) {
        while let Some((ask, holder)) = self.active.as_mut().and_then(|active| active.questions.take_next()) {
            if !holder.reply.is_closed() {
                Box::pin(self.wait(by, ask, Some(holder))).await;
            }
            // A question that could not be recorded was refused: the next one follows.
            if self.active.as_ref().is_none_or(|active| active.questions.held().is_some()) {
                return;
            }
        }
    }

    /// Lets the execution go on if the asker of its open question no longer waits for the answer.
    pub(super) async fn withdraw(&mut self, by: AttemptId) {
        let Some(active) = self.active.as_ref().filter(|active| active.is_held_by(by)) else { return };
        let is_withdrawn = active.questions.held().is_some_and(|held| held.lapses && held.reply.is_closed());
        if is_withdrawn && active.is_waiting() && !active.stop.is_killing() {
            Box::pin(self.lapse(|active| RunCommand::Lapse { by: active.attempt().id })).await;
        }
    }

    /// Returns the time at which the open question of the active run expires.
    pub(super) fn expiry(&self) -> Option<Time> {
        let active = self.active.as_ref().filter(|active| !active.stop.is_killing())?;
        active.run().state.wait()?.next_expiry()
    }

    /// Ends a run whose question was not answered in time. An execution that holds the wait is stopped first, unless
    /// it continues without an answer. The run also continues if its overdue calls are of client tools whose timeout
    /// does not end the run: these calls get an error as their result.
    pub(super) async fn expire(&mut self) {
        let Some(active) = &self.active else { return };
        if !active.stop.is_killing() && active.questions.held().is_some_and(|holder| holder.lapses) {
            return Box::pin(self.lapse(|active| RunCommand::Lapse { by: active.attempt().id })).await;
        }
        let now = self.shared.clock.now();
        let overdue = active.run().state.wait().and_then(|wait| Some((wait.id, wait.overdue(now)?)));
        if let Some((wait, results)) = overdue.filter(|_| !active.stop.is_killing()) {
            let answer = Answer::Tools { results };
            let give = move |_: &Active| RunCommand::Answer { wait, answer: answer.clone(), by: None };
            return Box::pin(self.lapse(give)).await;
        }
        let outcome = Outcome::Failed {
            status: RunStatus::TimedOut,
            error: Failure::new("wait_expired", "nobody answered in time"),
            retryable: true,
            retry: None,
        };
        match active.is_executing() {
            true if !active.stop.is_killing() => self.kill(outcome),
            true => {}
            false => self.finish(outcome, Usage::default()).await,
        }
    }

    /// Applies `command`, which lets a waiting run continue without an answer or without some tool results. Retries
    /// until the commit succeeds.
    async fn lapse(&mut self, command: impl Fn(&Active) -> RunCommand) {
        let mut backoff_ms = INITIAL_BACKOFF_MS;
        while let Some(active) = self.active.as_ref().filter(|_| !self.lifetime.is_over()) {
            let mut draft = self.draft_of(active);
            if let Err(refusal) = self.give_up_on_error(draft.command(command(active))) {
                tracing::error!(%refusal, "a question lapsed in a state that does not allow it");
                return;
            }
            match self.commit_active(draft).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(%error, "a lapsed question could not be recorded yet");
                    if self.wait_for_store(&mut backoff_ms, &error.into()).await.is_break() {
                        return;
                    }
                }
            }
        }
    }
}
