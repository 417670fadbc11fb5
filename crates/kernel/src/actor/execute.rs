//! Execution: attempts are started, recorded and ended here.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll};

use mainspring_core::run::{Command as RunCommand, Outcome};
use mainspring_core::{
    ArtifactId, ArtifactRole, Attempt, AttemptId, BindingStatus, Failure, FailureCode, Message,
    MessageStatus, Proof, Refusal, Run, RunStatus, Usage, session,
};
use tokio::task::AbortHandle;

use super::binding::ResumeCandidate;
use super::cache::PathChange;
use super::cancel::cancel_outcome;
use super::draft::check_size;
use super::patience::INITIAL_BACKOFF_MS;
use super::tree::Base;
use super::{Active, Actor, AttemptDraft, Report};
use crate::actor;
use crate::adapter::{
    Answered, Assignment, AttemptHandle, End, Executed, HandleError, HandleParts, Record, RestartBehavior,
};
use crate::error::Error;
use crate::scheduler::Permit;
use crate::store::StoreError;

impl Actor {
    /// Starts the next attempt of the first run of the queue.
    pub(super) async fn begin(&mut self, run: Run, permit: Permit) -> Result<(), Error> {
        let base = match run.pen {
            None => self.base_of(run.place).await?,
            Some(_) => {
                // The run was tried before, perhaps by another process.
                self.restore_path_end(&run).await?;
                Base::default()
            }
        };
        let prompt = match &base.answered_again {
            Some(earlier) => earlier.clone(),
            None => self.prompt_of(&run).await?,
        };
        let new_prompt = run.prompt.is_some().then(|| (prompt.clone(), true));
        let candidate = self.resume_candidate(&run, base.at, &prompt).await?;
        let checkpoint = match run.attempts {
            0 => None,
            _ => self.shared.newest_artifact(&run, ArtifactRole::Checkpoint).await?.map(|found| found.id),
        };
        let draft = self.draft().of_run(run);
        let mut draft =
            self.give_up_on_error(draft.start(self.shared.node, &base, new_prompt, checkpoint))?;
        self.give_up_on_error(self.open(&mut draft, candidate))?;
        let started = self.commit(draft).await?;
        self.queue.remove(started.run.id);
        self.launch(started.run, started.attempt, permit, prompt, None);
        Ok(())
    }

    /// Reads the user message that `run` answers.
    pub(super) async fn prompt_of(&self, run: &Run) -> Result<Arc<Message>, Error> {
        let id = run.answered_message();
        let id = id.ok_or_else(|| Error::Corrupt(format!("{} has no prompt", run.id)))?;
        let found = self.shared.store.message_get(self.fence.session, id).await?;
        let (placed, _) =
            found.ok_or_else(|| Error::Corrupt(format!("the prompt {id} of {} is missing", run.id)))?;
        // A prompt that was queued is completed once its run starts.
        Ok(Arc::new(Message { status: MessageStatus::Completed, ..Message::clone(&placed.message) }))
    }

    /// Opens an attempt of an adapter without bindings. Any other attempt opens once its native session is ready.
    pub(super) fn open(
        &self,
        draft: &mut AttemptDraft,
        candidate: Option<ResumeCandidate>,
    ) -> Result<(), Refusal> {
        match candidate {
            Some(candidate) => {
                draft.use_candidate(candidate, self.shared.node);
                Ok(())
            }
            None => {
                let by = draft.subject.attempt.id;
                draft.command(RunCommand::Open { by })
            }
        }
    }

    /// Hands a committed attempt to its adapter.
    pub(super) fn launch(
        &mut self,
        run: Arc<Run>,
        attempt: Attempt,
        permit: Permit,
        prompt: Arc<Message>,
        answer: Option<Answered>,
    ) {
        self.feed.authorize(Some((attempt.id, run.id)));
        let mut active = Active::new(run, attempt, prompt, &self.shared.clock);
        active.grant(permit);
        active.add_output(answer.is_some());
        active.set_steered(self.is_steered());
        let assignment = self.assignment(&active, answer);
        let parts = HandleParts {
            feed: self.feed.clone(),
            actor: self.inputs.sender().clone(),
            store: self.shared.store.clone(),
            shared: self.shared.clone(),
            ids: self.shared.ids.clone(),
            clock: self.shared.clock.clone(),
            steered: active.steered(),
            progress: active.progress(),
        };
        let handle = AttemptHandle::new(assignment, parts);
        let task = self.execute(&active.run().adapter, handle);
        active.launched(task);
        self.active = Some(active);
    }

    fn assignment(&self, active: &Active, answer: Option<Answered>) -> Assignment {
        let binding = self.hot.binding.get();
        let delegation = self.hot.delegations.own(active.run().id);
        Assignment {
            session: self.hot.session.shared(),
            run: active.run().clone(),
            attempt: Arc::new(active.attempt().clone()),
            prompt: active.prompt().clone(),
            binding: binding.filter(|binding| binding.status == BindingStatus::Active).cloned(),
            answer,
            open_tool_calls: self.hot.calls.to_vec(),
            cancel: active.stop_signal(),
            rules: Arc::new(self.shared.layers(&self.hot.session, active.run(), &active.attempt().adapter)),
            memory: self.memory.clone(),
            delegation: delegation.cloned().map(Box::new),
        }
    }

    /// Executes an attempt in a task of its own, and reports how the execution ends.
    fn execute(&self, adapter: &str, handle: AttemptHandle) -> AbortHandle {
        let aborted = Err("it was aborted".to_owned());
        // Dropped after the execution, so that the report is sent when nothing of the execution is left.
        let mut end = ReportedEnd { by: handle.id(), actor: self.inputs.sender().clone(), executed: aborted };
        let adapter = self.shared.adapters.get(adapter).cloned();
        let task = self.shared.tasks.spawn(async move {
            let Some(adapter) = adapter else {
                let error =
                    Failure::new(FailureCode::AdapterUnavailable, "its adapter is not configured here");
                return end.set(Ok(End::failed(error, false)));
            };
            let mut execution = adapter.execute(handle);
            let poll = |context: &mut Context<'_>| {
                let polled = catch_unwind(AssertUnwindSafe(|| execution.as_mut().poll(context)));
                polled.map_or_else(|panic| Poll::Ready(Err(panic_text(panic))), |poll| poll.map(Ok))
            };
            end.set(poll_fn(poll).await);
        });
        task.abort_handle()
    }

    /// Returns the active run, or an error if there is none.
    pub(super) fn active_or_error(&self) -> Result<&Active, Error> {
        self.active.as_ref().ok_or_else(no_active_run)
    }

    /// Returns the active run, if `by` has authority over it; a late call is counted.
    pub(super) fn authority(&mut self, by: AttemptId) -> Option<&mut Active> {
        let has_authority = self.active.as_ref().is_some_and(|active| active.is_held_by(by));
        if !has_authority {
            self.feed.count_late();
        }
        self.active.as_mut().filter(|_| has_authority)
    }

    /// Returns the active run, if `by` may record for it: not between a cancellation and the signal to stop.
    pub(super) fn recordable(&mut self, by: AttemptId) -> Result<&mut Active, HandleError> {
        let active = self.authority(by).ok_or(HandleError::Revoked)?;
        if active.status() == RunStatus::Cancelling && !active.is_signalled() {
            return Err(HandleError::Revoked);
        }
        Ok(active)
    }

    /// Makes `records` durable.
    pub(super) async fn record(&mut self, by: AttemptId, records: Vec<Record>) -> Result<(), HandleError> {
        self.recordable(by)?;
        let has_usage = records.iter().any(|record| {
            matches!(record, Record::Usage(_) | Record::Message { usage: Some(_), .. } | Record::Step(_))
        });
        let has_state = records.iter().any(|record| matches!(record, Record::RunState { .. }));
        // Boxed: only the runs of networks change state with their records.
        let state = if has_state { Box::pin(self.run_state_rows(by, &records)).await? } else { vec![] };
        let mut draft = self.draft_with_records(by, records)?;
        state.into_iter().for_each(|(row, writer)| draft.state_set(row, writer));
        self.commit_active(draft).await.map_err(|error| HandleError::Kernel(error.into()))?;
        if has_usage {
            self.enforce_limits();
            // Boxed to keep the futures of other records small.
            Box::pin(self.enforce_spend()).await;
        }
        Ok(())
    }

    /// Opens a draft of the active run that holds `records`.
    pub(super) fn draft_with_records(
        &mut self,
        by: AttemptId,
        records: Vec<Record>,
    ) -> Result<AttemptDraft, HandleError> {
        let limit = self.shared.options.limits.message_bytes;
        self.authority(by).ok_or(HandleError::Revoked)?;
        check_size(&records, limit)?;
        let Some(active) = &mut self.active else { return Err(HandleError::Revoked) };
        active.add_output(records.iter().any(Record::is_output));
        let Some(active) = &self.active else { return Err(HandleError::Revoked) };
        let completes = records.iter().any(|record| matches!(record, Record::Message { .. }));
        let mut draft = match completes {
            true => self.draft_completing(active),
            false => self.draft_of(active),
        };
        for record in records {
            self.give_up_on_error(draft.record(self.shared.node, record)).map_err(HandleError::Kernel)?;
        }
        Ok(draft)
    }

    /// Keeps `records` for the commit that ends the execution.
    pub(super) fn record_at_end(&mut self, by: AttemptId, records: Vec<Record>) {
        if let Some(active) = self.authority(by) {
            active.record_at_end(records);
        }
    }

    /// Commits a draft of the active run and keeps its state.
    pub(super) async fn commit_active(&mut self, draft: AttemptDraft) -> Result<(), StoreError> {
        let committed = self.commit(draft).await?;
        if let Some(active) = &mut self.active {
            active.committed(committed.run, committed.attempt);
        }
        Ok(())
    }

    /// Ends the attempt whose execution has returned, or lets its run wait.
    pub(super) async fn executed(&mut self, by: AttemptId, executed: Result<Executed, String>) {
        let Some(active) = self.authority(by) else { return };
        active.executed();
        if active.stop.is_killing() {
            let adapter = active.run().adapter.clone();
            self.kill_remains(&adapter, by);
            return;
        }
        let (status, waits) = (active.status(), active.run().state.wait().is_some());
        let (outcome, usage) = match executed {
            Ok(Executed::Waiting(ask)) if status == RunStatus::Running => {
                return Box::pin(self.wait(by, ask, None)).await;
            }
            Ok(Executed::Waiting(_)) => (Outcome::Stopped { proof: Proof::Ended }, Usage::default()),
            Ok(Executed::Ended(End::Succeeded { usage })) if status == RunStatus::Starting => {
                let error = Failure::new(
                    FailureCode::BindingFailed,
                    "the adapter ended before it had opened its session",
                );
                (self.failed_outcome(error, true).await, usage)
            }
            Ok(Executed::Ended(End::Succeeded { usage })) if waits => {
                let error =
                    Failure::new("wait_abandoned", "the adapter ended without the answer it asked for");
                (self.failed_outcome(error, false).await, usage)
            }
            Ok(Executed::Ended(End::Succeeded { usage })) => (Outcome::Succeeded, usage),
            Ok(Executed::Ended(End::Stopped { usage })) => (Outcome::Stopped { proof: Proof::Ended }, usage),
            Ok(Executed::Ended(End::Stale { reason })) => {
                (Box::pin(self.stale_outcome(reason)).await, Usage::default())
            }
            Ok(Executed::Ended(End::Failed { error, retryable, usage })) => {
                (self.failed_outcome(error, retryable).await, usage)
            }
            Err(crash) => {
                let error =
                    Failure::new(FailureCode::AdapterCrashed, format!("the adapter crashed: {crash}"));
                (self.failed_outcome(error, true).await, Usage::UNKNOWN)
            }
        };
        let outcome = self.with_proof(outcome);
        self.finish(outcome, usage).await;
    }

    /// Ends the active attempt. Retries until the end is recorded: the attempt is over even if the store is unavailable.
    pub(super) async fn finish(&mut self, outcome: Outcome, usage: Usage) {
        let mut backoff_ms = INITIAL_BACKOFF_MS;
        loop {
            // Boxed: it holds a whole draft.
            match Box::pin(self.try_finish(outcome.clone(), usage)).await {
                Ok(()) => return,
                Err(error) if self.lifetime.is_over() => {
                    tracing::error!(%error, "an attempt's end could not be recorded");
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, run = ?self.active.as_ref().map(|active| active.run().id), "an attempt's end could not be recorded yet");
                    self.release_permit();
                    if self.wait_for_store(&mut backoff_ms, &error).await.is_break() {
                        return;
                    }
                }
            }
        }
    }

    /// Ends the active attempt.
    pub(super) async fn try_finish(&mut self, outcome: Outcome, usage: Usage) -> Result<(), Error> {
        let pen = self.active.as_ref().and_then(|active| active.run().pen);
        let change = self.path_change_to(pen).await?;
        let result = match &self.active {
            // Boxed: few runs are delegated.
            Some(active) if self.hot.delegations.is_delegated(active.run().id) => {
                let found = Box::pin(self.shared.newest_artifact(active.run(), ArtifactRole::Result)).await?;
                found.map(|artifact| artifact.id)
            }
            Some(_) | None => None,
        };
        match self.end_draft(change, result, outcome, usage) {
            Some(draft) => self.commit_end(draft).await,
            // Nothing to retry: the attempt has ended already, or its run does not allow this end, which is logged.
            None => Ok(()),
        }
    }

    /// Opens a draft in which the active attempt ends; `None` if no attempt is active, or if its run does not allow
    /// this end.
    fn end_draft(
        &self,
        change: Option<PathChange>,
        result: Option<ArtifactId>,
        outcome: Outcome,
        usage: Usage,
    ) -> Option<AttemptDraft> {
        let active = self.active.as_ref()?;
        let resumes = self.shared.adapters.get(&active.run().adapter).is_some_and(|adapter| {
            adapter.capabilities().restart_behavior == RestartBehavior::ResumesFromMessages
        });
        let mut draft = self
            .draft_completing(active)
            .with_path_change(change)
            .with_result_artifact(result)
            .with_title(self.title_after(active, &outcome))
            .leaving_tools(resumes);
        for record in active.records_at_end().iter().cloned() {
            if let Err(error) = draft.record(self.shared.node, record) {
                tracing::error!(%error, "a record for the end of an attempt is invalid");
            }
        }
        if !usage.is_zero() {
            draft.add_usage(usage);
        }
        self.record_exceeded_limits(&mut draft, active, &outcome);
        if let Err(refusal) = self.give_up_on_error(end_attempt(&mut draft, active, outcome)) {
            tracing::error!(%refusal, "an attempt ended in a way its run does not allow");
            return None;
        }
        Some(draft)
    }

    /// Returns the title for a session without one, once its first turn is completed.
    fn title_after(&self, active: &Active, outcome: &Outcome) -> Option<String> {
        let is_named = self.hot.session.title_source.is_some() || !self.shared.options.auto_title;
        match outcome {
            Outcome::Succeeded if !is_named => session::title_of(&active.prompt().text()),
            _ => None,
        }
    }

    /// Commits a draft in which the active run ends or goes back to the queue, and releases its permit and execution.
    pub(super) async fn commit_end(&mut self, draft: AttemptDraft) -> Result<(), Error> {
        let ended = self.commit(draft).await?;
        self.feed.authorize(None);
        let active = self.active.take();
        let (run, attempt) = (ended.run, ended.attempt);
        // Every tool call of an ended run has a result.
        let is_tip = run.state.status().is_ended() && run.final_message == self.hot.session.tip_message;
        if let Some(tip) = self.hot.session.tip.filter(|_| is_tip) {
            self.cache.tree.set_answered(tip);
        }
        if let Some(mut active) = active {
            active.stop.answer(&cancel_outcome(&run, Some(&attempt)));
        }
        if run.state.status() == RunStatus::Queued {
            self.queue.push_first(Arc::unwrap_or_clone(run));
        } else if self.shared.adapters.get(&run.adapter).is_some_and(|adapter| adapter.login().is_some()) {
            self.shared.logins.record_end(&run, self.shared.clock.now());
        }
        Ok(())
    }
}

/// The error of a command to the active run of a session that has none.
pub(super) fn no_active_run() -> Error {
    Error::not_found("run", "active")
}

/// Applies the end of the active attempt to `draft`, after the dispatch of a cancellation that is under way.
fn end_attempt(draft: &mut AttemptDraft, active: &Active, outcome: Outcome) -> Result<(), Refusal> {
    let by = active.attempt().id;
    let killed = matches!(
        outcome,
        Outcome::Stopped { proof: Proof::Killed } | Outcome::Failed { status: RunStatus::Orphaned, .. }
    );
    if active.stop.is_dispatching() {
        // An attempt that was not killed has stopped because of the kernel's signal, before its adapter confirmed
        // that.
        draft.command(RunCommand::Dispatched { by, dispatched: !killed, acknowledged: false })?;
    }
    draft.command(RunCommand::Finish { by, outcome })
}

/// Reports the end of an execution to the actor when this value is dropped. A second task that waits for the
/// execution would also do, but costs a spawn and a wake per run.
struct ReportedEnd {
    by: AttemptId,
    actor: actor::Sender,
    executed: Result<Executed, String>,
}

impl ReportedEnd {
    fn set(&mut self, executed: Result<Executed, String>) {
        self.executed = executed;
    }
}

impl Drop for ReportedEnd {
    fn drop(&mut self) {
        let executed = std::mem::replace(&mut self.executed, Err(String::new()));
        // The report to an actor that has stopped is dropped.
        let _ = self.actor.send(Report::Executed(self.by, executed).into());
    }
}

fn panic_text(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => {
            panic.downcast::<&str>().map_or_else(|_| "it panicked".into(), |text| (*text).to_owned())
        }
    }
}
