//! Cancellation: requested, dispatched, acknowledged, stopped; each recorded before the next.

use mainspring_core::run::{Command as RunCommand, Outcome};
use mainspring_core::{
    Attempt, AttemptId, CancelReason, Failure, Proof, Run, RunId, RunStatus, Supervision, Usage,
};
use tokio::sync::oneshot;

use super::execute::no_active_run;
use super::patience::INITIAL_BACKOFF_MS;
use super::{Active, Actor, Reply, Report};
use crate::adapter::{Death, Dispatch};
use crate::clock::Moment;
use crate::error::Error;
use crate::kernel::CancelOutcome;

impl Actor {
    /// Stops a run because a caller asked for it.
    pub(super) async fn cancel(&mut self, run: RunId, reply: Reply<CancelOutcome>) {
        match &mut self.active {
            Some(active) if active.run().id == run => match active.status() {
                RunStatus::Cancelling if active.stop.is_dispatching() => active.stop.add_waiting(reply),
                RunStatus::Cancelling => {
                    let _ = reply.send(Ok(cancel_outcome(active.run(), Some(active.attempt()))));
                }
                // The error was sent to the caller.
                _ => drop(Box::pin(self.cancel_active(CancelReason::Requested, Some(reply))).await),
            },
            _ => {
                let outcome = self.cancel_queued(run, CancelReason::Requested).await;
                let _ = reply.send(outcome);
            }
        }
    }

    /// Stops a run for another reason than a caller's request. A run that has ended needs no stop.
    pub(super) async fn stop(&mut self, run: RunId, reason: CancelReason) -> Result<(), Error> {
        if self.active.as_ref().is_some_and(|active| active.run().id == run) {
            self.stop_active(reason).await;
        } else if self.queue.get(run).is_some() {
            self.cancel_queued(run, reason).await?;
        }
        Ok(())
    }

    /// Ends a queued run at once.
    async fn cancel_queued(&mut self, id: RunId, reason: CancelReason) -> Result<CancelOutcome, Error> {
        let Some(queued) = self.queue.get(id).cloned() else {
            return Err(self.run_known(id).await?.not_live().into());
        };
        // The run may have been tried before the session was loaded: then the end of its path is not in memory.
        self.restore_path_end(&queued).await?;
        let change = self.path_change_to(queued.pen).await?;
        let mut draft = self.draft().of_run(queued).with_path_change(change);
        self.give_up_on_error(draft.command(RunCommand::Cancel { reason }))?;
        let cancelled = self.commit(draft).await?;
        self.queue.remove(id);
        Ok(cancel_outcome(&cancelled.run, None))
    }

    /// Stops the active run: asks its adapter to stop, and kills the attempt after the grace period.
    async fn cancel_active(
        &mut self,
        reason: CancelReason,
        reply: Option<Reply<CancelOutcome>>,
    ) -> Result<(), Error> {
        match &mut self.active {
            Some(active) => reply.into_iter().for_each(|reply| active.stop.add_waiting(reply)),
            None => reply.into_iter().for_each(|reply| drop(reply.send(Err(no_active_run())))),
        }
        // Boxed: the future holds a whole draft.
        let cancelled = Box::pin(self.try_cancel_active(reason)).await;
        match &cancelled {
            Ok(true) => self.dispatch_cancel(),
            Ok(false) => {}
            Err(error) => {
                if let Some(active) = &mut self.active {
                    active.stop.refuse(error);
                }
            }
        }
        cancelled.map(drop)
    }

    /// Records the cancellation. Returns true if the adapter must be asked to stop, false if this has ended the run.
    async fn try_cancel_active(&mut self, reason: CancelReason) -> Result<bool, Error> {
        let pen = self.active_or_error()?.run().pen;
        let change = self.path_change_to(pen).await?;
        let active = self.active_or_error()?;
        // While only the store holds a wait, nothing is executed: then the run ends here.
        let draft = match active.is_executing() {
            true => self.draft_of(active),
            false => self.draft_completing(active),
        };
        let mut draft = draft.with_path_change(change);
        self.give_up_on_error(draft.command(RunCommand::Cancel { reason }))?;
        if draft.subject.run.state.status().is_ended() {
            self.commit_end(draft).await?;
            return Ok(false);
        }
        self.commit_active(draft).await?;
        Ok(true)
    }

    /// Asks the adapter of the active run to stop.
    fn dispatch_cancel(&mut self) {
        let Some(active) = &mut self.active else { return };
        let (by, clock) = (active.attempt().id, self.shared.clock.clone());
        let kill_at = clock.moment().plus(self.shared.options.cancel_grace_ms);
        active.stop.dispatch(kill_at);
        active.signal_stop();
        let (tx, adapter) =
            (self.inputs.sender().clone(), self.shared.adapters.get(&active.run().adapter).cloned());
        self.shared.tasks.spawn(async move {
            let not_dispatched = Dispatch { dispatched: false, acknowledged: false };
            let dispatch = match adapter {
                Some(adapter) => tokio::select! {
                    dispatch = adapter.cancel(by) => dispatch,
                    () = clock.sleep_until_moment(kill_at) => not_dispatched,
                },
                None => not_dispatched,
            };
            let _ = tx.send(Report::Dispatched(by, dispatch).into());
        });
    }

    /// Records that the adapter was asked to stop, and answers the callers that wait for it.
    pub(super) async fn dispatched(&mut self, by: AttemptId, dispatch: Dispatch) {
        let Some(active) = self.active.as_ref().filter(|active| active.is_held_by(by)) else { return };
        let mut draft = self.draft_of(active);
        let Dispatch { dispatched, acknowledged } = dispatch;
        let recorded = draft.command(RunCommand::Dispatched { by, dispatched, acknowledged });
        if self.give_up_on_error(recorded).is_err() {
            return;
        }
        let recorded = self.commit_active(draft).await;
        let Some(active) = &mut self.active else { return };
        match recorded {
            Ok(()) => {
                active.stop.dispatched(&cancel_outcome(active.run(), Some(active.attempt())));
            }
            Err(error) => active.stop.refuse(&error.into()),
        }
    }

    /// Returns the moment at which the active run is killed, unless it has stopped by then.
    pub(super) fn kill_at(&self) -> Option<Moment> {
        self.active.as_ref()?.stop.kill_at()
    }

    /// Gives the execution up: it is aborted, then the adapter kills the rest of it, then the attempt ends as
    /// `outcome`.
    pub(super) fn kill(&mut self, outcome: Outcome) {
        let Some(active) = &mut self.active else { return };
        active.stop.kill(outcome);
        active.abort();
    }

    /// Asks the adapter to kill everything that is left of an aborted execution. If the adapter panics or does not
    /// answer within the grace period, the death is unproven.
    pub(super) fn kill_remains(&self, adapter: &str, by: AttemptId) {
        let tx = self.inputs.sender().clone();
        let grace = self.shared.clock.sleep_for(self.shared.options.cancel_grace_ms);
        let killing = self.shared.adapters.get(adapter).cloned().map(|adapter| {
            let kill = async move { adapter.kill(by).await };
            self.shared.tasks.spawn(kill)
        });
        self.shared.tasks.spawn(async move {
            let death = match killing {
                Some(mut killing) => tokio::select! {
                    death = &mut killing => death.unwrap_or(Death::Unproven),
                    () = grace => {
                        killing.abort();
                        Death::Unproven
                    }
                },
                None => Death::Proven,
            };
            let _ = tx.send(Report::Killed(by, death).into());
        });
    }

    /// Ends an attempt that was killed.
    pub(super) async fn killed(&mut self, by: AttemptId, death: Death) {
        let Some(active) = self.active.as_mut().filter(|active| active.is_held_by(by)) else { return };
        let outcome = match (death, active.stop.take_outcome()) {
            (Death::Proven, outcome) => outcome.unwrap_or(Outcome::Stopped { proof: Proof::Killed }),
            (Death::Unproven, _) => Outcome::Failed {
                status: RunStatus::Orphaned,
                error: Failure::new(
                    "cancel_unproven",
                    "the agent was told to stop, but it is not known whether it has stopped",
                ),
                retryable: false,
                retry: None,
            },
        };
        let outcome = self.with_proof(outcome);
        // The execution was dropped before it could report its usage.
        self.finish(outcome, Usage::UNKNOWN).await;
    }

    /// Limits the proof of a stop to the proof that the adapter of the active run can give.
    pub(super) fn with_proof(&self, outcome: Outcome) -> Outcome {
        let Some(active) = &self.active else { return outcome };
        let is_stopped = match &outcome {
            Outcome::Stopped { .. } => true,
            Outcome::Failed { status: RunStatus::Orphaned, .. } => false,
            // An attempt that ended after a request to stop counts as stopped.
            Outcome::Succeeded | Outcome::Failed { .. } => active.status() == RunStatus::Cancelling,
        };
        let adapter = self.shared.adapters.get(&active.run().adapter).filter(|_| is_stopped);
        match adapter.and_then(|adapter| adapter.capabilities().supervision) {
            Some(Supervision::Group) => Outcome::Stopped { proof: Proof::Group },
            Some(Supervision::Tree) | None => outcome,
        }
    }

    /// Cancels the runs that a newer prompt replaces.
    pub(super) async fn supersede(&mut self, superseded: &[RunId], interrupt: bool) {
        for run in superseded {
            let mut backoff_ms = INITIAL_BACKOFF_MS;
            while let Err(error) = self.cancel_queued(*run, CancelReason::Superseded).await {
                if self.lifetime.is_over() || !error.is_retryable() {
                    tracing::warn!(%error, %run, "a superseded prompt could not be cancelled");
                    break;
                }
                if self.wait_for_store(&mut backoff_ms, &error).await.is_break() {
                    return;
                }
            }
        }
        if interrupt {
            self.stop_active(CancelReason::Superseded).await;
        }
    }

    /// Stops the active run because the process stops.
    pub(super) async fn shut_down(&mut self, done: oneshot::Sender<()>) {
        self.lifetime.shut_down(done);
        self.hurry_kill();
        if self.active.as_ref().is_some_and(Active::is_executing) {
            self.stop_active(CancelReason::Shutdown).await;
        }
    }

    /// Shortens the grace period of a run that is being cancelled, if the store cannot be written, to the time that
    /// is left until the process must stop: the end of the run cannot be recorded anyway.
    fn hurry_kill(&mut self) {
        let Some(stop_by) =
            self.shared.stop_by.get().filter(|_| self.shared.store_health.failure().is_some())
        else {
            return;
        };
        if let Some(active) = &mut self.active {
            active.stop.hurry(*stop_by);
        }
    }

    /// Stops the active run for a reason of the kernel's own. Retries until the cancellation is recorded, since no
    /// caller would repeat it.
    async fn stop_active(&mut self, reason: CancelReason) {
        let is_running =
            |active: &Active| !active.stop.is_killing() && active.status() != RunStatus::Cancelling;
        let mut backoff_ms = INITIAL_BACKOFF_MS;
        while self.active.as_ref().is_some_and(is_running) {
            let Err(error) = Box::pin(self.cancel_active(reason, None)).await else { return };
            let is_over = self.lifetime.is_over() || !self.active.as_ref().is_some_and(is_running);
            if is_over || self.wait_for_store(&mut backoff_ms, &error).await.is_break() {
                return;
            }
        }
    }
}

/// Builds the answer to a cancellation.
pub(super) fn cancel_outcome(run: &Run, attempt: Option<&Attempt>) -> CancelOutcome {
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
