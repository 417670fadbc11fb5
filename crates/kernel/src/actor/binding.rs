//! Bindings: the native session that an attempt resumes, and its position in the session's tree afterwards.
//!
//! The latest binding of the session and adapter is checked when an attempt starts, so that an agent never answers from
//! another path. While an attempt uses a binding, the position of the binding is the attempt's prompt. No other prompt lies
//! directly beneath that message, so after a crash no run resumes the binding. When the run ends on the session's path, the
//! position becomes the run's last message.

use mainspring_core::binding::{Command as BindingCommand, NewBinding, PROCESS_GONE, apply, decide};
use mainspring_core::run::Outcome;
use mainspring_core::tree::before;
use mainspring_core::{
    Binding, BindingStatus, Body, Failure, FailureCode, Fidelity, Message, MessageId, NextAttempt, NodeId,
    Place, Point, Refusal, RetryReason, Run, RunStatus, SessionId,
};

use super::draft::{AttemptSlot, OfRun};
use super::{Actor, AttemptDraft, Draft, SessionDraft, Subject};
use crate::adapter::RuntimeFacts;
use crate::error::Error;
use crate::kernel::{Adopted, Shared, instructions_hash};
use crate::store::{NativeClaim, NativeOwner, Row, StoreError};

/// Maximum number of bindings of a session and an adapter that are read, newest generation first.
pub(crate) const MAX_BINDINGS_READ: usize = 50;

/// The binding that an attempt may resume.
pub(super) struct ResumeCandidate {
    latest: Option<Box<Binding>>,
    /// The message above the run's prompt.
    at: Option<MessageId>,
}

/// The latest binding of the active run's adapter, if it is known.
#[derive(Debug, Clone, Default)]
pub(super) struct LatestBinding(Option<Box<Binding>>);

impl LatestBinding {
    /// Takes over a binding from the store.
    pub(super) fn restore(latest: Option<Box<Binding>>) -> Self {
        Self(latest)
    }

    pub(super) fn get(&self) -> Option<&Binding> {
        self.0.as_deref()
    }
}

/// A change of a session's binding.
pub(crate) enum BindingChange {
    /// Invalidates the latest binding of an adapter: it is not used again.
    Invalidate(String),
    /// Makes an existing native session the session's first binding of an adapter.
    Adopt(Adoption),
}

/// An existing native session that becomes a session's first binding of an adapter.
pub(crate) struct Adoption {
    pub(crate) adapter: String,
    pub(crate) adopted: Adopted,
    /// The way in which the owner obtained the native session.
    pub(crate) claim: NativeClaim,
}

impl Actor {
    /// Finds the binding that the next attempt of `run` may resume; none for an adapter without bindings.
    pub(super) async fn resume_candidate(
        &self,
        run: &Run,
        base: Option<Point>,
        prompt: &Message,
    ) -> Result<Option<ResumeCandidate>, Error> {
        let adapter = self.shared.adapters.get(&run.adapter);
        if !adapter.is_some_and(|adapter| adapter.capabilities().uses_bindings) {
            return Ok(None);
        }
        // Boxed to keep the future of other adapters' runs small.
        let find = Box::pin(async {
            let latest = self.binding_latest(&run.adapter).await?;
            let at = match &latest {
                Some(binding) if binding.status == BindingStatus::Active => {
                    self.message_above_prompt(run, base, prompt).await?
                }
                _ => None,
            };
            Ok(Some(ResumeCandidate { latest, at }))
        });
        find.await
    }

    pub(super) async fn binding_latest(&self, adapter: &str) -> Result<Option<Box<Binding>>, Error> {
        let found = self.shared.store.bindings(self.fence.session, Some(adapter), None, 1).await?;
        Ok(found.into_iter().next().map(Box::new))
    }

    /// Returns the message above the prompt of `run`.
    async fn message_above_prompt(
        &self,
        run: &Run,
        base: Option<Point>,
        prompt: &Message,
    ) -> Result<Option<MessageId>, Error> {
        let tip = match (run.pen, run.place) {
            (None, Place::Tip) => return Ok(self.hot.session.tip_message),
            (None, Place::Root) => return Ok(None),
            (None, Place::Edit { message_id }) => return Ok(Some(message_id)),
            (None, Place::Regenerate { .. }) => base,
            (Some(pen), _) => before(pen),
        };
        let Some(tip) = tip else { return Ok(None) };
        let path = self.shared.store.path(tip, None, 2).await?.intact()?;
        let mut path = path.iter().rev().map(|placed| placed.message.id);
        Ok(match path.next() {
            Some(last) if last == prompt.id => path.next(),
            last => last,
        })
    }

    /// Records that the runtime has lost the native session. The run is retried at once.
    pub(super) async fn stale_outcome(&mut self, reason: String) -> Outcome {
        let error = Failure::new(FailureCode::StaleBinding, reason.clone());
        // Boxed: it holds a whole draft.
        match Box::pin(self.record_lost(reason)).await.is_ok() {
            true => Outcome::Failed {
                status: RunStatus::Failed,
                error,
                retryable: true,
                retry: Some(Box::new(NextAttempt::new(RetryReason::Stale, self.shared.clock.now()))),
            },
            // Without a binding to lose, an immediate retry could loop for ever: this counts as an ordinary failure.
            false => self.failed_outcome(error, true).await,
        }
    }

    async fn record_lost(&mut self, reason: String) -> Result<(), Error> {
        let active = self.active_or_error()?;
        let mut draft = self.draft_of(active);
        self.give_up_on_error(draft.binding_lose(reason))?;
        self.commit_active(draft).await?;
        Ok(())
    }

    /// Records that the process-local bindings of earlier processes are stale.
    pub(super) async fn lose_process_local_bindings(&mut self) -> Result<(), Error> {
        let (session, node) = (self.fence.session, self.shared.node);
        let mut lost = vec![];
        let mut after = None;
        loop {
            let after_ref =
                after.as_ref().map(|(adapter, generation): &(String, u32)| (&**adapter, *generation));
            let page = self.shared.store.bindings(session, None, after_ref, MAX_BINDINGS_READ).await?;
            let Some(last) = page.last() else { break };
            after = Some((last.adapter.clone(), last.generation));
            lost.extend(page.into_iter().filter(|binding| {
                binding.status == BindingStatus::Active
                    && binding.fidelity.is_process_local()
                    && binding.node != node
            }));
        }
        let mut draft = self.draft();
        let mut of_run = draft.hot.binding.0.take();
        for binding in lost {
            let is_of_run = of_run.as_ref().is_some_and(|of_run| of_run.id == binding.id);
            draft.hot.binding.0 = Some(Box::new(binding));
            self.give_up_on_error(draft.binding_lose(PROCESS_GONE.into()))?;
            if is_of_run {
                of_run = draft.hot.binding.0.take();
            }
        }
        draft.hot.binding.0 = of_run;
        self.commit(draft).await?;
        Ok(())
    }

    pub(super) async fn change_binding(&mut self, change: BindingChange) -> Result<Binding, Error> {
        let (BindingChange::Invalidate(adapter) | BindingChange::Adopt(Adoption { adapter, .. })) = &change;
        if let Some(status) = self.busy() {
            return Err(Error::Busy { status });
        }
        let latest = self.binding_latest(adapter).await?;
        let mut draft = self.draft();
        draft.hot.binding.0 = latest;
        let changed = match change {
            BindingChange::Invalidate(adapter) => match draft.hot.binding.0 {
                Some(_) => draft.binding_command(BindingCommand::Invalidate).map_err(Error::from),
                None => Err(Error::not_found("binding", adapter)),
            },
            BindingChange::Adopt(adoption) => draft.binding_adopt(adoption, self.shared.node),
        };
        self.give_up_on_error(changed)?;
        match self.commit(draft).await {
            Ok(_) => self.hot.binding.get().cloned().ok_or(Error::ShuttingDown),
            Err(StoreError::Conflict(_)) => Err(Error::native_taken()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Shared {
    /// Tells the adapters that these native sessions are not resumed soon.
    pub(crate) fn forget_native_sessions<'a>(&self, bindings: impl Iterator<Item = &'a Binding>) {
        for binding in bindings {
            if let (Some(adapter), Some(native)) = (self.adapters.get(&binding.adapter), &binding.native) {
                adapter.forget(native);
            }
        }
    }

    /// Lists the bindings that the session would resume, one per adapter.
    pub(crate) async fn active_bindings(&self, session: SessionId) -> Result<Vec<Binding>, StoreError> {
        let mut natives = vec![];
        for (name, adapter) in &self.adapters {
            if adapter.capabilities().uses_bindings {
                let latest = self.store.bindings(session, Some(name), None, 1).await?;
                natives.extend(latest.into_iter().filter(|binding| binding.status == BindingStatus::Active));
            }
        }
        Ok(natives)
    }
}

impl<S: Subject> Draft<S> {
    /// Records a new binding, and the owner of its native session.
    fn binding_create(&mut self, new: NewBinding, claim: NativeClaim) {
        let binding = Box::new(Binding::open(new, self.at));
        self.emit(Body::BindingCreated {
            binding_id: binding.id,
            adapter: binding.adapter.clone(),
            generation: binding.generation,
            fidelity: binding.fidelity,
            reconstructed: binding.reconstructed,
        });
        self.own_native(&binding, claim);
        self.row(Row::Binding(binding.clone()));
        self.hot.binding.0 = Some(binding);
    }

    /// Records that the session's owner has the native session of `binding`. The commit fails with a conflict if the owner
    /// may not have it.
    fn own_native(&mut self, binding: &Binding, claim: NativeClaim) {
        let Some(native) = binding.native.clone() else { return };
        let (adapter, owner) = (binding.adapter.clone(), self.hot.session.owner.clone());
        self.row(Row::NativeOwner(Box::new(NativeOwner { adapter, native, owner, claim })));
    }
}

impl AttemptDraft {
    /// Uses the binding if it fits the run, and records that it is stale if it does not.
    pub(super) fn use_candidate(&mut self, candidate: ResumeCandidate, node: NodeId) {
        self.hot.binding.0 = candidate.latest;
        let Some(binding) = self.hot.binding.get() else { return };
        let run = &self.subject.run;
        let resume = BindingCommand::Resume {
            node,
            at: candidate.at,
            cwd: run.options.cwd.clone(),
            system_prompt_hash: run.system_prompt_hash.clone(),
        };
        // `binding.resumed` is recorded when the runtime reports it.
        match decide(binding, resume) {
            Ok(body @ Body::BindingStale { .. }) => self.binding_emit(body, node),
            Ok(_) => self.subject.attempt.binding = Some(binding.id),
            Err(_) => {}
        }
    }

    /// Records a new native session, which replaces the one before.
    pub(super) fn binding_open(
        &mut self,
        native: Option<String>,
        fidelity: Fidelity,
        reconstructed: bool,
        node: NodeId,
    ) -> Result<(), Refusal> {
        let (run, before) = (&self.subject.run, self.hot.binding.get());
        let new = NewBinding {
            id: self.ids.binding(),
            session: run.session,
            adapter: run.adapter.clone(),
            generation_before: before.map_or(0, |before| before.generation),
            native,
            fidelity,
            reconstructed,
            node,
            last_message: run.answered_message(),
            cwd: run.options.cwd.clone(),
            system_prompt_hash: run.system_prompt_hash.clone(),
            is_used: true,
        };
        let commands = before.map_or(vec![], |before| before.replace_commands(new.id));
        for command in commands {
            self.binding_command(command)?;
        }
        self.binding_create(new, NativeClaim::Opened);
        Ok(())
    }

    /// Records that the native session was resumed.
    pub(super) fn binding_resume(&mut self, node: NodeId) -> Result<(), Refusal> {
        let Some(binding) = &mut self.hot.binding.0 else {
            return Err(Refusal::WrongState { what: "binding", status: "missing" });
        };
        binding.advance(self.subject.run.answered_message(), self.at)?;
        let binding_id = binding.id;
        self.binding_emit(Body::BindingResumed { binding_id }, node);
        Ok(())
    }

    /// Adds the runtime's facts about the execution to the attempt, and to the binding that the attempt uses.
    pub(super) fn runtime_facts(&mut self, facts: RuntimeFacts) {
        let RuntimeFacts { instance, native_run, model, metadata, binding_metadata } = facts;
        let attempt = &mut self.subject.attempt;
        attempt.instance = instance.clone().or(attempt.instance.take());
        attempt.native_run = native_run.or(attempt.native_run.take());
        attempt.metadata.extend(metadata);
        let used = attempt.binding;
        let is_used =
            |binding: &&mut Box<Binding>| Some(binding.id) == used && binding.status == BindingStatus::Active;
        let Some(binding) = self.hot.binding.0.as_mut().filter(is_used) else { return };
        let before = binding.clone();
        binding.instance = instance.or(binding.instance.take());
        binding.model = model.or(binding.model.take());
        binding.metadata.extend(binding_metadata);
        if *binding != before {
            let row = Row::Binding(binding.clone());
            self.row(row);
        }
    }
}

impl SessionDraft {
    /// Makes an existing native session the session's first binding of this adapter.
    pub(super) fn binding_adopt(&mut self, adoption: Adoption, node: NodeId) -> Result<(), Error> {
        let Adoption { adapter, adopted, claim } = adoption;
        if let Some(binding) = self.hot.binding.get() {
            let native = binding.native.clone().unwrap_or_else(|| "a session".into());
            return Err(Error::AlreadyBound { adapter, native });
        }
        let session = &self.hot.session;
        let system_prompt = adopted.system_prompt.as_ref().or(session.system_prompt.as_ref());
        let new = NewBinding {
            id: self.ids.binding(),
            session: session.id,
            adapter,
            generation_before: 0,
            native: Some(adopted.native),
            fidelity: Fidelity::Native,
            reconstructed: false,
            node,
            last_message: session.tip_message,
            cwd: adopted.cwd.or_else(|| session.cwd.clone()),
            system_prompt_hash: instructions_hash(system_prompt.map(String::as_str)),
            is_used: false,
        };
        self.binding_create(new, claim);
        Ok(())
    }
}

impl<A: AttemptSlot> Draft<OfRun<A>> {
    /// Moves the binding that the attempt used to the run's last message: the run has ended on the session's path.
    pub(super) fn binding_advance(&mut self) {
        // An attempt that has not started has not given the prompt to the native session.
        let started = self.subject.attempt.get().filter(|attempt| attempt.started_at.is_some());
        let used = started.and_then(|attempt| attempt.binding);
        let (message, at) = (self.subject.run.final_message, self.at);
        let Some(binding) = self.hot.binding.0.as_mut().filter(|binding| Some(binding.id) == used) else {
            return;
        };
        // Refused if the binding became stale or invalid during the attempt: it is not used again.
        if binding.advance(message, at).is_ok() {
            let row = Row::Binding(binding.clone());
            self.row(row);
        }
    }
}

impl<S: Subject> Draft<S> {
    /// Records that the runtime has lost the native session.
    pub(super) fn binding_lose(&mut self, reason: String) -> Result<(), Refusal> {
        self.binding_command(BindingCommand::Lose { reason })
    }

    fn binding_command(&mut self, command: BindingCommand) -> Result<(), Refusal> {
        let Some(binding) = self.hot.binding.get() else {
            return Err(Refusal::WrongState { what: "binding", status: "missing" });
        };
        let node = binding.node;
        let body = decide(binding, command)?;
        self.binding_emit(body, node);
        Ok(())
    }

    fn binding_emit(&mut self, body: Body, node: NodeId) {
        if let Some(binding) = &mut self.hot.binding.0 {
            apply(binding, &body, node, self.at);
            let row = Row::Binding(binding.clone());
            self.row(row);
        }
        self.emit(body);
    }
}
