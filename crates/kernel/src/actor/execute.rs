//! Execution: attempts are started, recorded and ended here.

use std::sync::Arc;

use mainspring_core::run::{Command as RunCommand, Outcome};
use mainspring_core::{
    Attempt, AttemptId, BindingStatus, Block, Body, Failure, Message, MessageStatus, NodeId, Place, Point,
    Proof, Refusal, Run, RunStatus, TitleSource, Usage, session,
};
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;

use super::binding::Bound;
use super::tree::Base;
use super::{Active, Actor, Command, Draft, before};
use crate::adapter::{
    Answered, Assignment, AttemptHandle, End, Executed, HandleError, HandleParts, Record, RestartBehavior,
};
use crate::error::Error;
use crate::scheduler::Permit;
use crate::store::{Row, StoreError};

impl Actor {
    /// A worker is free: the waiting run goes on, or the next one starts.
    pub(super) async fn granted(&mut self, permit: Permit) {
        self.ordered = false;
        if self.shared.tasks.is_stopping() {
            return;
        }
        let next = match &self.active {
            Some(active) => Some(&active.run),
            None => self.queue.front(),
        };
        // What the permit was ordered for may be gone; what is next may need one of another adapter.
        let Some(run) = next.filter(|run| permit.is_for(&run.adapter)).cloned() else {
            return;
        };
        let started = match self.active {
            Some(_) => self.resume(permit).await,
            None => self.begin(run, permit).await,
        };
        match started {
            Ok(()) => self.stalled = None,
            Err(error) => {
                tracing::warn!(%error, session = %self.fence.session, "a run could not be started or go on");
                self.stall();
            }
        }
    }

    /// Starts the next attempt of the first run of the queue.
    async fn begin(&mut self, run: Run, permit: Permit) -> Result<(), Error> {
        let base = match run.pen {
            None => self.base(run.place).await?,
            Some(_) => Base::default(),
        };
        let prompt = match &base.again {
            Some(earlier) => earlier.clone(),
            None => self.prompt_of(&run).await?,
        };
        let own = run.prompt.is_some().then(|| (prompt.clone(), true));
        let bound = self.bound(&run, base.at, &prompt).await?;
        let (draft, _) = self.draft(false);
        let mut draft = draft.with_run(run, None);
        let started = draft.start(self.shared.node, &base, own).and_then(|()| self.open(&mut draft, bound));
        if let Err(refusal) = started {
            self.give_up();
            return Err(refusal.into());
        }
        if let (Some(run), Some(attempt)) = self.commit(draft).await? {
            self.queue.pop_front();
            self.launch(run, attempt, Some(permit), prompt, None);
        }
        Ok(())
    }

    /// The user message that `run` answers.
    pub(super) async fn prompt_of(&self, run: &Run) -> Result<Arc<Message>, Error> {
        let id = match (run.prompt, run.place) {
            (Some(id), _) | (None, Place::Regenerate { message_id: id }) => id,
            _ => return Err(Error::Corrupt(format!("{} has no prompt", run.id))),
        };
        let found = self.shared.store.message_get(self.fence.session, id).await?;
        let (placed, _) =
            found.ok_or_else(|| Error::Corrupt(format!("the prompt {id} of {} is missing", run.id)))?;
        // Once its run starts, a prompt that waited is as whole as any other.
        Ok(Arc::new(Message { status: MessageStatus::Completed, ..Message::clone(&placed.message) }))
    }

    /// An adapter without bindings has control as soon as the attempt exists; another once its native session does.
    pub(super) fn open(&self, draft: &mut Draft, bound: Option<Bound>) -> Result<(), Refusal> {
        match (bound, &draft.attempt) {
            (Some(bound), _) => draft.bind(bound, self.shared.node),
            (None, Some(attempt)) => {
                let by = attempt.id;
                draft.command(RunCommand::Open { by })?;
            }
            (None, None) => {}
        }
        Ok(())
    }

    /// Hands control to the adapter. Its commit has returned.
    pub(super) fn launch(
        &mut self,
        run: Run,
        attempt: Attempt,
        permit: Option<Permit>,
        prompt: Arc<Message>,
        answer: Option<Answered>,
    ) {
        let cancel = CancellationToken::new();
        let by = attempt.id;
        self.feed.authorize(Some((by, run.id)));
        let assignment = Assignment {
            session: Arc::new(self.hot.session.clone()),
            run: Arc::new(run.clone()),
            attempt: Arc::new(attempt.clone()),
            prompt: prompt.clone(),
            binding: self
                .hot
                .binding
                .as_deref()
                .filter(|binding| binding.status == BindingStatus::Active)
                .cloned(),
            answer,
            open_tool_calls: self.hot.effects.clone(),
            cancel: cancel.clone(),
        };
        let (steering, steered) = tokio::sync::watch::channel(self.is_steered());
        let parts = HandleParts {
            feed: self.feed.clone(),
            actor: self.tx.clone(),
            store: self.shared.store.clone(),
            shared: self.shared.clone(),
            ids: self.shared.ids.clone(),
            clock: self.shared.clock.clone(),
            steered,
        };
        let handle = AttemptHandle::new(assignment, parts);
        let adapter = self.shared.adapters.get(&run.adapter).cloned();
        let task = self.shared.tasks.spawn(async move {
            match adapter {
                Some(adapter) => adapter.execute(handle).await,
                None => End::failed(
                    Failure::new("adapter_unavailable", "its adapter is not configured here"),
                    false,
                ),
            }
        });
        let abort = task.abort_handle();
        let tx = self.tx.clone();
        self.shared.tasks.spawn(async move {
            let executed = task.await;
            // An actor that is gone has nobody to tell.
            let _ = tx.send(Command::Executed(by, executed));
        });
        self.active = Some(Active {
            run,
            attempt,
            permit,
            task: Some(abort),
            cancel,
            prompt,
            held: None,
            cancelling: vec![],
            telling: false,
            kill_at: None,
            killing: None,
            at_end: vec![],
            steering,
        });
    }

    /// The active run, if `by` has authority over it; a late caller is counted.
    pub(super) fn authority(&mut self, by: AttemptId) -> Option<&mut Active> {
        let holds = self.active.as_ref().is_some_and(|active| active.run.state.holder() == Some(by));
        if !holds {
            self.feed.count_late();
        }
        self.active.as_mut().filter(|_| holds)
    }

    /// Where the path of the active run ends.
    pub(super) fn head(&mut self, by: AttemptId) -> Result<Option<Point>, HandleError> {
        let active = self.authority(by).ok_or(HandleError::Revoked)?;
        Ok(active.run.pen.and_then(before))
    }

    pub(super) async fn record(&mut self, by: AttemptId, records: Vec<Record>) -> Result<(), HandleError> {
        let active = self.authority(by).ok_or(HandleError::Revoked)?;
        if active.run.state.status() == RunStatus::Cancelling && !active.cancel.is_cancelled() {
            return Err(HandleError::Revoked);
        }
        let spends = records.iter().any(|record| {
            matches!(record, Record::Usage(_) | Record::Message { usage: Some(_), .. } | Record::Step(_))
        });
        let draft = self.recording(by, records)?;
        self.take_over(draft).await.map_err(|error| HandleError::Kernel(error.into()))?;
        if spends {
            self.hold_to_limits();
        }
        Ok(())
    }

    /// Keeps what is recorded in the commit that ends the execution.
    pub(super) fn record_at_end(&mut self, by: AttemptId, records: Vec<Record>) -> Result<(), HandleError> {
        let limit = self.shared.options.limits.message_bytes;
        let active = self.authority(by).ok_or(HandleError::Revoked)?;
        check_size(&records, limit)?;
        active.at_end.extend(records);
        Ok(())
    }

    /// Commits a draft of the active run and keeps its state.
    pub(super) async fn take_over(&mut self, draft: Draft) -> Result<(), StoreError> {
        let (run, attempt) = self.commit(draft).await?;
        if let (Some(active), Some(run), Some(attempt)) = (&mut self.active, run, attempt) {
            active.run = run;
            active.attempt = attempt;
        }
        Ok(())
    }

    /// An execution has returned.
    pub(super) async fn executed(&mut self, by: AttemptId, executed: Result<Executed, JoinError>) {
        let Some(active) = self.authority(by) else { return };
        active.task = None;
        if active.killing.is_some() {
            let adapter = active.run.adapter.clone();
            self.bury(&adapter, by);
            return;
        }
        let (outcome, usage) = match executed {
            Ok(Executed::Waiting(ask)) if active.run.state.status() == RunStatus::Running => {
                return Box::pin(self.wait(by, ask, None)).await;
            }
            Ok(Executed::Waiting(_)) => (Outcome::Stopped { proof: Proof::Ended }, Usage::default()),
            Ok(Executed::Ended(End::Succeeded { usage }))
                if active.run.state.status() == RunStatus::Starting =>
            {
                let error =
                    Failure::new("binding_failed", "the adapter ended before it had opened its session");
                (self.failed(error, true), usage)
            }
            Ok(Executed::Ended(End::Succeeded { usage })) if active.run.state.wait().is_some() => {
                let error =
                    Failure::new("wait_abandoned", "the adapter ended without the answer it asked for");
                (self.failed(error, false), usage)
            }
            Ok(Executed::Ended(End::Succeeded { usage })) => (Outcome::Succeeded, usage),
            Ok(Executed::Ended(End::Stopped { usage })) => (Outcome::Stopped { proof: Proof::Ended }, usage),
            Ok(Executed::Ended(End::Stale { reason })) => (self.stale(reason).await, Usage::default()),
            Ok(Executed::Ended(End::Failed { error, retryable, usage })) => {
                (self.failed(error, retryable), usage)
            }
            Err(gone) => {
                let error =
                    Failure::new("adapter_crashed", format!("the adapter crashed: {}", panic_text(gone)));
                (self.failed(error, true), Usage::default())
            }
        };
        self.finish(by, outcome, usage).await;
    }

    /// A failure, to be tried again if the rules of retry say so.
    pub(super) fn failed(&self, error: Failure, retryable: bool) -> Outcome {
        let attempts = self.active.as_ref().map_or(0, |active| active.run.attempts);
        let retry = &self.shared.options.retry;
        let again = retryable && attempts < self.shared.options.limits.attempts;
        let retry_at = again.then(|| self.shared.clock.now().plus(retry.delay(attempts)));
        Outcome::Failed { status: RunStatus::Failed, error, retryable, retry_at }
    }

    /// Ends the active attempt. The attempt is over whatever the store says, so this does not give up.
    pub(super) async fn finish(&mut self, by: AttemptId, outcome: Outcome, usage: Usage) {
        let mut pause = 50;
        loop {
            match self.try_finish(by, outcome.clone(), usage).await {
                Ok(()) => return,
                Err(error) if self.over => {
                    tracing::error!(%error, "an attempt's end could not be recorded");
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, run = ?self.active.as_ref().map(|active| active.run.id), "an attempt's end could not be recorded yet");
                    self.rest(&mut pause).await;
                }
            }
        }
    }

    pub(super) async fn try_finish(
        &mut self,
        by: AttemptId,
        outcome: Outcome,
        usage: Usage,
    ) -> Result<(), Error> {
        let Some(active) = &self.active else { return Ok(()) };
        let (run, attempt, telling) = (active.run.clone(), active.attempt.clone(), active.telling);
        let at_end = active.at_end.clone();
        let resumes = self.shared.adapters.get(&run.adapter).is_some_and(|adapter| {
            adapter.capabilities().restart_behavior == RestartBehavior::ResumesFromMessages
        });
        let turn = self.turn_to(run.pen).await?;
        let (draft, text) = self.draft(true);
        let title = self.title_of(&outcome);
        let draft = draft.with_run(run, Some(attempt)).with_text(text);
        let mut draft = draft.with_turn(turn).with_title(title);
        draft.leave_tools(resumes);
        for record in at_end {
            if let Err(error) = apply(&mut draft, self.shared.node, by, record) {
                tracing::error!(%error, "what an attempt left for its end makes no sense");
            }
        }
        if !usage.is_zero() {
            draft.spend(usage);
        }
        let killed = matches!(
            outcome,
            Outcome::Stopped { proof: Proof::Killed } | Outcome::Failed { status: RunStatus::Orphaned, .. }
        );
        let told = match telling {
            true => draft.command(RunCommand::Dispatched {
                by,
                // What ended by itself did so at the kernel's own signal, before its adapter had answered.
                dispatched: !killed,
                acknowledged: false,
            }),
            false => Ok(()),
        };
        let finished = told.and_then(|()| draft.command(RunCommand::Finish { by, outcome }));
        if let Err(refusal) = finished {
            self.give_up();
            tracing::error!(%refusal, "an attempt ended in a way its run does not allow");
            return Ok(());
        }
        self.conclude(draft).await
    }

    /// What a session is called that nobody has named when its first turn is completed.
    fn title_of(&self, outcome: &Outcome) -> Option<String> {
        let active = self.active.as_ref().filter(|_| *outcome == Outcome::Succeeded)?;
        let named = self.hot.session.title_source.is_some() || !self.shared.options.auto_title;
        if named { None } else { session::title_of(&active.prompt.text()) }
    }

    /// Commits a draft in which the active run ends or goes back to the queue, and lets go of what it held.
    pub(super) async fn conclude(&mut self, draft: Draft) -> Result<(), Error> {
        let (run, attempt) = self.commit(draft).await?;
        self.feed.authorize(None);
        let active = self.active.take();
        if let Some(run) = run {
            // What a run writes is settled when it ends.
            let ended = run.state.status().is_ended() && run.final_message == self.hot.session.tip_message;
            self.answered = self.hot.session.tip.filter(|_| ended).or(self.answered);
            if run.state.status() == RunStatus::Queued {
                self.queue.push_front(run.clone());
            }
            for reply in active.into_iter().flat_map(|active| active.cancelling) {
                let _ = reply.send(Ok(super::cancel::outcome(&run, attempt.as_ref())));
            }
        }
        Ok(())
    }
}

pub(super) fn apply(draft: &mut Draft, node: NodeId, by: AttemptId, record: Record) -> Result<(), Error> {
    let unknown = |id: &str| Error::Invalid(format!("tool call {id:?} has not been started"));
    match record {
        Record::Opened { native, fidelity, reconstructed } => {
            draft.binding_open(native, fidelity, reconstructed, node);
            draft.command(RunCommand::Open { by })?;
        }
        Record::Resumed => {
            draft.binding_resume(node)?;
            draft.command(RunCommand::Open { by })?;
        }
        Record::Granted(grant) => draft.row(Row::Grant(grant)),
        Record::Decided { question, decision, grant } => draft.decided(question, decision, grant),
        Record::Message { blocks, usage } => {
            draft.hot.turn_usage += usage.unwrap_or_default();
            draft.write_assistant(blocks);
            if let Some(usage) = usage {
                draft.emit(Body::UsageUpdated { usage });
            }
        }
        Record::Step(step) => draft.step(by, *step),
        Record::Compacted(compacted) => draft.compact(*compacted)?,
        Record::Output { output, error } => draft.emit(Body::OutputCompleted { output, error }),
        Record::Continued { blocks } | Record::ToolResults { blocks } => draft.write_results(blocks),
        Record::ToolStarted { tool_use_id, name, input } => {
            draft.effect_start(tool_use_id.clone(), name.clone());
            draft.emit(Body::ToolStarted { tool_use_id, name, input });
        }
        Record::ToolUpdated { tool_use_id, text } => draft.emit(Body::ToolUpdated { tool_use_id, text }),
        Record::ToolCompleted { tool_use_id } => {
            let name = draft.effect_end(&tool_use_id).ok_or_else(|| unknown(&tool_use_id))?;
            draft.emit(Body::ToolCompleted { tool_use_id, name });
        }
        Record::ToolFailed { tool_use_id, outcome, error } => {
            let name = draft.effect_end(&tool_use_id).ok_or_else(|| unknown(&tool_use_id))?;
            draft.emit(Body::ToolFailed { tool_use_id, name, outcome, error });
        }
        Record::Progress { text } => draft.emit(Body::ProgressUpdated { text }),
        Record::Title { title } => {
            if let Some(title) = session::title_of(&title) {
                draft.session_command(session::Command::Title { title, source: TitleSource::Agent })?;
            }
        }
        Record::Usage(usage) => draft.spend(usage),
    }
    Ok(())
}

pub(super) fn check_size(records: &[Record], limit: usize) -> Result<(), Error> {
    for record in records {
        let (what, size) = match record {
            Record::Message { blocks, .. }
            | Record::Continued { blocks }
            | Record::ToolResults { blocks } => ("message", size_of(blocks)),
            Record::Output { output, .. } => ("output", output.to_string().len()),
            Record::Compacted(compacted) => {
                ("summary", compacted.digest.summary.as_ref().map_or(0, String::len))
            }
            Record::Step(step) => {
                ("step", step.private.as_ref().map_or(0, |private| private.to_string().len()))
            }
            Record::ToolStarted { input, .. } => {
                ("tool call", input.as_ref().map_or(0, |input| input.to_string().len()))
            }
            Record::ToolUpdated { text, .. } | Record::Progress { text } => ("report", text.len()),
            Record::Decided { question, .. } => ("question", question.len()),
            Record::Opened { .. } | Record::Resumed | Record::Granted(_) | Record::Usage(_) => continue,
            Record::ToolCompleted { .. } | Record::ToolFailed { .. } | Record::Title { .. } => continue,
        };
        if size > limit {
            return Err(Error::TooLarge { what, size, limit });
        }
    }
    Ok(())
}

fn size_of(blocks: &[Block]) -> usize {
    let size = |block: &Block| match block {
        Block::Text { text } => text.len(),
        Block::ToolResult { content, .. } => size_of(content),
        other => serde_json::to_string(other).map_or(0, |json| json.len()),
    };
    blocks.iter().map(size).sum()
}

fn panic_text(gone: JoinError) -> String {
    match gone.try_into_panic() {
        Ok(panic) => match panic.downcast::<String>() {
            Ok(text) => *text,
            Err(panic) => {
                panic.downcast::<&str>().map_or_else(|_| "it panicked".into(), |text| (*text).to_owned())
            }
        },
        Err(_) => "it was aborted".into(),
    }
}
