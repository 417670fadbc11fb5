//! Cancellation: requested, dispatched, acknowledged, stopped; each recorded before the next.

use mainspring_core::run::{Command as RunCommand, Outcome};
use mainspring_core::{Attempt, AttemptId, CancelReason, Failure, Proof, Run, RunId, RunStatus, Usage};
use tokio::sync::oneshot;

use super::{Actor, Command, Reply};
use crate::adapter::{Death, Dispatch, HandleError};
use crate::error::Error;
use crate::kernel::CancelOutcome;

impl Actor {
    pub(super) async fn cancel(&mut self, run: RunId, reply: Reply<CancelOutcome>) {
        match &mut self.active {
            Some(active) if active.run.id == run => match active.run.state.status() {
                RunStatus::Cancelling if active.telling => active.cancelling.push(reply),
                RunStatus::Cancelling => {
                    let _ = reply.send(Ok(outcome(&active.run, Some(&active.attempt))));
                }
                _ => self.cancel_active(CancelReason::Requested, Some(reply)).await,
            },
            _ => {
                let outcome = self.cancel_queued(run, CancelReason::Requested).await;
                let _ = reply.send(outcome);
            }
        }
    }

    /// Stops a run for another reason than that somebody asked; one that has ended is stopped.
    pub(super) async fn stop(&mut self, run: RunId, reason: CancelReason) -> Result<(), Error> {
        if self.active.as_ref().is_some_and(|active| active.run.id == run) {
            self.stop_active(reason).await;
        } else if self.queue.iter().any(|queued| queued.id == run) {
            self.cancel_queued(run, reason).await?;
        }
        Ok(())
    }

    /// Ends a run that is not being executed, at once.
    async fn cancel_queued(&mut self, run: RunId, reason: CancelReason) -> Result<CancelOutcome, Error> {
        let Some(at) = self.queue.iter().position(|queued| queued.id == run) else {
            let known = self.run_known(run).await?;
            return Err(known.not_live().into());
        };
        let queued = self.queue[at].clone();
        let turn = self.turn_to(queued.pen).await?;
        let (draft, _) = self.draft(false);
        let mut draft = draft.with_run(queued, None).with_turn(turn);
        if let Err(refusal) = draft.command(RunCommand::Cancel { reason }) {
            self.give_up();
            return Err(refusal.into());
        }
        let (run, _) = self.commit(draft).await?;
        self.queue.remove(at);
        run.map(|run| outcome(&run, None)).ok_or(Error::ShuttingDown)
    }

    /// Stops the active run: asks first, and kills what has not stopped after the grace period.
    async fn cancel_active(&mut self, reason: CancelReason, reply: Option<Reply<CancelOutcome>>) {
        let Some(pen) = self.active.as_ref().map(|active| active.run.pen) else { return };
        let turn = match self.turn_to(pen).await {
            Ok(turn) => turn,
            Err(error) => {
                let _ = reply.map(|reply| reply.send(Err(error.into())));
                return;
            }
        };
        let Some(active) = &self.active else { return };
        let (by, adapter) = (active.attempt.id, active.run.adapter.clone());
        // Nothing executes while the store alone holds a wait: then the run ends here.
        let (draft, text) = self.draft(active.task.is_none());
        let draft = draft.with_run(active.run.clone(), Some(active.attempt.clone()));
        let mut draft = draft.with_text(text).with_turn(turn);
        if let Err(refusal) = draft.command(RunCommand::Cancel { reason }) {
            self.give_up();
            let _ = reply.map(|reply| reply.send(Err(refusal.into())));
            return;
        }
        let ends = draft.run.as_ref().is_some_and(|run| run.state.status().is_ended());
        if ends {
            if let (Some(active), Some(reply)) = (&mut self.active, reply) {
                active.cancelling.push(reply);
            }
            if let Err(error) = self.conclude(draft).await {
                self.refuse_cancelling(&error);
            }
            return;
        }
        if let Err(error) = self.take_over(draft).await {
            let _ = reply.map(|reply| reply.send(Err(error.into())));
            return;
        }
        let Some(active) = &mut self.active else { return };
        active.cancelling.extend(reply);
        active.telling = true;
        active.cancel.cancel();
        if let Some(held) = active.held.take() {
            let _ = held.reply.send(Err(HandleError::Revoked));
        }
        let kill_at = self.shared.clock.now().plus(self.shared.options.cancel_grace_ms);
        active.kill_at = Some(kill_at);
        let (tx, clock) = (self.tx.clone(), self.shared.clock.clone());
        let adapter = self.shared.adapters.get(&adapter).cloned();
        self.shared.tasks.spawn(async move {
            let nothing = Dispatch { dispatched: false, acknowledged: false };
            let dispatch = match adapter {
                Some(adapter) => tokio::select! {
                    dispatch = adapter.cancel(by) => dispatch,
                    () = clock.sleep_until(kill_at) => nothing,
                },
                None => nothing,
            };
            let _ = tx.send(Command::Dispatched(by, dispatch));
        });
    }

    fn refuse_cancelling(&mut self, error: &Error) {
        for reply in
            self.active.as_mut().map(|active| std::mem::take(&mut active.cancelling)).unwrap_or_default()
        {
            let _ = reply.send(Err(error.clone()));
        }
    }

    /// The adapter was told to stop.
    pub(super) async fn dispatched(&mut self, by: AttemptId, dispatch: Dispatch) {
        let holds = self.active.as_ref().is_some_and(|active| active.run.state.holder() == Some(by));
        if !holds {
            return;
        }
        let Some(mut draft) = self.active_draft() else {
            return;
        };
        let Dispatch { dispatched, acknowledged } = dispatch;
        if draft.command(RunCommand::Dispatched { by, dispatched, acknowledged }).is_err() {
            self.give_up();
            return;
        }
        if let Err(error) = self.take_over(draft).await {
            self.refuse_cancelling(&error.into());
            return;
        }
        let Some(active) = &mut self.active else { return };
        active.telling = false;
        let outcome = outcome(&active.run, Some(&active.attempt));
        for reply in std::mem::take(&mut active.cancelling) {
            let _ = reply.send(Ok(outcome.clone()));
        }
    }

    /// Gives the execution up: it is dropped, then whatever acts for it is killed, then the attempt ends as `outcome`.
    pub(super) fn kill(&mut self, outcome: Outcome) {
        let Some(active) = &mut self.active else { return };
        active.kill_at = None;
        active.killing = Some(outcome);
        if let Some(task) = &active.task {
            task.abort();
        }
    }

    /// The execution that was given up is gone; its adapter ends what is left of it. An adapter that does not say in
    /// time that it has, or fails at it, has proven nothing.
    pub(super) fn bury(&self, adapter: &str, by: AttemptId) {
        let (tx, clock) = (self.tx.clone(), self.shared.clock.clone());
        let until = clock.now().plus(self.shared.options.cancel_grace_ms);
        let killing = self.shared.adapters.get(adapter).cloned().map(|adapter| {
            let kill = async move { adapter.kill(by).await };
            self.shared.tasks.spawn(kill)
        });
        self.shared.tasks.spawn(async move {
            let death = match killing {
                Some(mut killing) => tokio::select! {
                    death = &mut killing => death.unwrap_or(Death::Unproven),
                    () = clock.sleep_until(until) => {
                        killing.abort();
                        Death::Unproven
                    }
                },
                None => Death::Proven,
            };
            let _ = tx.send(Command::Killed(by, death));
        });
    }

    pub(super) async fn killed(&mut self, by: AttemptId, death: Death) {
        let holds = self.active.as_ref().is_some_and(|active| active.run.state.holder() == Some(by));
        if !holds {
            return;
        }
        let wanted = self.active.as_mut().and_then(|active| active.killing.take());
        let outcome = match (death, wanted) {
            (Death::Proven, Some(outcome)) => outcome,
            (Death::Proven, None) => Outcome::Stopped { proof: Proof::Killed },
            (Death::Unproven, _) => Outcome::Failed {
                status: RunStatus::Orphaned,
                error: Failure::new(
                    "cancel_unproven",
                    "it was told to stop, but whether it has is not known",
                ),
                retryable: false,
                retry_at: None,
            },
        };
        self.finish(by, outcome, Usage::default()).await;
    }

    /// A newer prompt takes the place of these.
    pub(super) async fn supersede(&mut self, superseded: &[Run], interrupt: bool) {
        for run in superseded {
            let mut pause = 50;
            while let Err(error) = self.cancel_queued(run.id, CancelReason::Superseded).await {
                if self.over || !error.is_retryable() {
                    tracing::warn!(%error, run = %run.id, "a superseded prompt could not be cancelled");
                    break;
                }
                self.rest(&mut pause).await;
            }
        }
        if interrupt {
            self.stop_active(CancelReason::Superseded).await;
        }
    }

    pub(super) async fn shut_down(&mut self, done: oneshot::Sender<()>) {
        self.shutdown = Some(done);
        if self.active.as_ref().is_some_and(|active| active.task.is_some()) {
            self.stop_active(CancelReason::Shutdown).await;
        }
    }

    /// Stops the active run for the kernel's own reasons: nobody asks again, so this does not give up.
    async fn stop_active(&mut self, reason: CancelReason) {
        let goes_on = |active: &super::Active| {
            active.killing.is_none() && active.run.state.status() != RunStatus::Cancelling
        };
        let mut pause = 50;
        while self.active.as_ref().is_some_and(goes_on) {
            self.cancel_active(reason, None).await;
            if self.over || !self.active.as_ref().is_some_and(goes_on) {
                return;
            }
            self.rest(&mut pause).await;
        }
    }
}

/// What a cancellation answers.
pub(super) fn outcome(run: &Run, attempt: Option<&Attempt>) -> CancelOutcome {
    let stages = attempt.map(|attempt| attempt.cancellation).unwrap_or_default();
    CancelOutcome {
        accepted: true,
        run_id: run.id,
        attempt_id: run.last_attempt,
        dispatch_attempted: stages.dispatched_at.is_some(),
        adapter_acknowledged: stages.acknowledged_at.is_some(),
        status: run.state.status(),
    }
}
