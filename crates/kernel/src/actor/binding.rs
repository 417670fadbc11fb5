//! Bindings: which native session an attempt takes up, and where the one it used stands afterwards.
//!
//! The latest binding of the session and adapter is found and checked when an attempt starts, so that an agent never
//! answers from a path it is not on. While an attempt uses a binding, the binding stands at the attempt's prompt, which
//! is above no other prompt: whatever goes wrong, nobody takes it up from there. When the run ends on the session's
//! path, the binding stands at the run's last message.

use mainspring_core::binding::{Command as BindingCommand, apply, decide};
use mainspring_core::run::Outcome;
use mainspring_core::{
    Approval, Binding, BindingStatus, Body, Failure, Fidelity, GrantId, Message, MessageId, NodeId, Place,
    Point, Refusal, Run, RunStatus, SessionId,
};

use super::{Actor, Draft, before};
use crate::error::Error;
use crate::kernel::{Adopted, Shared, instructions_hash};
use crate::store::{Row, StoreError};

/// How many bindings of a session and an adapter are looked at, the newest generation first.
pub(crate) const BINDINGS: usize = 50;

/// What an attempt of an adapter with bindings finds.
pub(super) struct Bound {
    latest: Option<Box<Binding>>,
    /// The message above the run's prompt.
    at: Option<MessageId>,
}

/// What somebody wants of a session's binding.
pub(crate) enum BindingChange {
    /// It must not be used again.
    Invalidate(String),
    /// The session's first binding of an adapter is one that exists already.
    Adopt(String, Adopted),
}

impl Actor {
    /// What the next attempt of `run` finds; none for an adapter without bindings.
    pub(super) async fn bound(
        &self,
        run: &Run,
        base: Option<Point>,
        prompt: &Message,
    ) -> Result<Option<Bound>, Error> {
        let adapter = self.shared.adapters.get(&run.adapter);
        if !adapter.is_some_and(|adapter| adapter.capabilities().uses_bindings) {
            return Ok(None);
        }
        // Boxed, so that runs of other adapters do not carry it along.
        let find = Box::pin(async {
            let latest = self.binding_latest(&run.adapter).await?;
            let at = match &latest {
                Some(binding) if binding.status == BindingStatus::Active => {
                    self.above(run, base, prompt).await?
                }
                _ => None,
            };
            Ok(Some(Bound { latest, at }))
        });
        find.await
    }

    pub(super) async fn binding_latest(&self, adapter: &str) -> Result<Option<Box<Binding>>, Error> {
        let found = self.shared.store.bindings(self.fence.session, Some(adapter), None, 1).await?;
        Ok(found.into_iter().next().map(Box::new))
    }

    /// The message above the prompt of `run`.
    async fn above(
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
        let path = self.shared.store.path(tip, None, 2).await?;
        let mut path = path.iter().rev().map(|placed| placed.message.id);
        Ok(match path.next() {
            Some(last) if last == prompt.id => path.next(),
            last => last,
        })
    }

    /// The runtime no longer knows the native session: that is recorded, and the run is tried again at once.
    pub(super) async fn stale(&mut self, reason: String) -> Outcome {
        let error = Failure::new("stale_binding", reason.clone());
        let lost = match self.active_draft() {
            Some(mut draft) => match draft.binding_lose(reason) {
                Ok(()) => self.take_over(draft).await.is_ok(),
                Err(_) => {
                    self.give_up();
                    false
                }
            },
            None => false,
        };
        match lost {
            true => Outcome::Failed {
                status: RunStatus::Failed,
                error,
                retryable: true,
                retry_at: Some(self.shared.clock.now()),
            },
            // Without a binding to lose it would go on for ever; as a failure it is tried again a few times.
            false => self.failed(error, true),
        }
    }

    pub(super) async fn change_binding(&mut self, change: BindingChange) -> Result<Binding, Error> {
        let (BindingChange::Invalidate(adapter) | BindingChange::Adopt(adapter, _)) = &change;
        if let Some(status) = self.busy() {
            return Err(Error::Busy { status });
        }
        let latest = self.binding_latest(adapter).await?;
        let (mut draft, _) = self.draft(false);
        draft.hot.binding = latest;
        let changed = match change {
            BindingChange::Invalidate(adapter) => match draft.hot.binding {
                Some(_) => draft.binding_command(BindingCommand::Invalidate).map_err(Error::from),
                None => Err(Error::not_found("binding", adapter)),
            },
            BindingChange::Adopt(adapter, adopted) => draft.binding_adopt(adapter, adopted, self.shared.node),
        };
        if let Err(error) = changed {
            self.give_up();
            return Err(error);
        }
        match self.commit(draft).await {
            Ok(_) => self.hot.binding.as_deref().cloned().ok_or(Error::ShuttingDown),
            Err(StoreError::Conflict(_)) => Err(Error::native_taken()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Shared {
    /// Tells runtimes that these native sessions are not going to be taken up soon.
    pub(crate) fn natives_forget<'a>(&self, bindings: impl Iterator<Item = &'a Binding>) {
        for binding in bindings {
            if let (Some(adapter), Some(native)) = (self.adapters.get(&binding.adapter), &binding.native) {
                adapter.forget(native);
            }
        }
    }

    /// The native sessions that a session would take up, one of each adapter.
    pub(crate) async fn natives(&self, session: SessionId) -> Result<Vec<Binding>, StoreError> {
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

impl Draft {
    /// Takes up what was found if it fits the run, and says that it is stale if it does not.
    pub(super) fn bind(&mut self, bound: Bound, node: NodeId) {
        self.hot.binding = bound.latest;
        let (Some(binding), Some(run)) = (&self.hot.binding, &self.run) else { return };
        let resume = BindingCommand::Resume {
            node,
            at: bound.at,
            cwd: run.options.cwd.clone(),
            system_prompt_hash: instructions_hash(run.options.system_prompt.as_deref()),
        };
        // That it was resumed is recorded once the runtime has.
        if let Ok(body @ Body::BindingStale { .. }) = decide(binding, resume) {
            self.binding_emit(body, node);
        }
    }

    /// A new native session is there; it takes the place of the one before.
    pub(super) fn binding_open(
        &mut self,
        native: Option<String>,
        fidelity: Fidelity,
        reconstructed: bool,
        node: NodeId,
    ) {
        let Some(run) = &self.run else { return };
        let binding = Binding {
            id: self.ids.binding(),
            session: run.session,
            adapter: run.adapter.clone(),
            generation: self.hot.binding.as_ref().map_or(0, |before| before.generation) + 1,
            native,
            fidelity,
            status: BindingStatus::Active,
            node,
            last_message: prompt_of(run),
            cwd: run.options.cwd.clone(),
            system_prompt_hash: instructions_hash(run.options.system_prompt.as_deref()),
            reconstructed,
            created_at: self.at,
            updated_at: self.at,
        };
        if self.hot.binding.as_ref().is_some_and(|before| before.status == BindingStatus::Active) {
            let _ = self.binding_lose("another native session was opened".into());
        }
        // Refused for one that was closed in good order, which nothing needs to be said of.
        let _ = self.binding_command(BindingCommand::Replace { by: binding.id });
        self.emit(Body::BindingCreated {
            binding_id: binding.id,
            adapter: binding.adapter.clone(),
            generation: binding.generation,
            fidelity,
            reconstructed,
        });
        let binding = Box::new(binding);
        self.row(Row::Binding(binding.clone()));
        self.hot.binding = Some(binding);
    }

    /// The native session that was found goes on.
    pub(super) fn binding_resume(&mut self, node: NodeId) -> Result<(), Refusal> {
        let active = self.hot.binding.as_mut().filter(|binding| binding.status == BindingStatus::Active);
        let Some(binding) = active else {
            return Err(Refusal::WrongState { what: "binding", status: "missing" });
        };
        binding.last_message = self.run.as_ref().and_then(prompt_of);
        let binding_id = binding.id;
        self.binding_emit(Body::BindingResumed { binding_id }, node);
        Ok(())
    }

    pub(super) fn binding_lose(&mut self, reason: String) -> Result<(), Refusal> {
        self.binding_command(BindingCommand::Lose { reason })
    }

    /// Makes a native session that exists already the session's first of this adapter.
    pub(super) fn binding_adopt(
        &mut self,
        adapter: String,
        adopted: Adopted,
        node: NodeId,
    ) -> Result<(), Error> {
        if let Some(binding) = &self.hot.binding {
            return Err(Error::AlreadyExists { name: format!("binding {}", binding.id) });
        }
        let session = &self.hot.session;
        let binding = Binding {
            id: self.ids.binding(),
            session: session.id,
            adapter: adapter.clone(),
            generation: 1,
            native: Some(adopted.native),
            fidelity: Fidelity::Native,
            status: BindingStatus::Active,
            node,
            last_message: session.tip_message,
            cwd: adopted.cwd.or_else(|| session.cwd.clone()),
            system_prompt_hash: instructions_hash(
                adopted.system_prompt.as_ref().or(session.system_prompt.as_ref()).map(String::as_str),
            ),
            reconstructed: false,
            created_at: self.at,
            updated_at: self.at,
        };
        self.emit(Body::BindingCreated {
            binding_id: binding.id,
            adapter,
            generation: 1,
            fidelity: Fidelity::Native,
            reconstructed: false,
        });
        let binding = Box::new(binding);
        self.row(Row::Binding(binding.clone()));
        self.hot.binding = Some(binding);
        Ok(())
    }

    /// The run has ended on the session's path: so has what its native session knows.
    pub(super) fn binding_follows(&mut self) {
        let used = self.attempt.as_ref().and_then(|attempt| attempt.binding);
        let Some(binding) = &mut self.hot.binding else { return };
        if used != Some(binding.id) || binding.status != BindingStatus::Active {
            return;
        }
        binding.last_message = self.run.as_ref().and_then(|run| run.final_message);
        binding.updated_at = self.at;
        let row = Row::Binding(binding.clone());
        self.row(row);
    }

    /// A permission that nobody was asked for: what was asked and what was decided, one after the other.
    pub(super) fn decided(&mut self, question: String, decision: Approval, grant_id: Option<GrantId>) {
        let wait_id = self.ids.wait();
        self.emit(Body::ApprovalRequested { wait_id, question, expires_at_ms: None });
        self.emit(Body::ApprovalResolved { wait_id, decision, grant_id });
    }

    fn binding_command(&mut self, command: BindingCommand) -> Result<(), Refusal> {
        let Some(binding) = &self.hot.binding else {
            return Err(Refusal::WrongState { what: "binding", status: "missing" });
        };
        let node = binding.node;
        let body = decide(binding, command)?;
        self.binding_emit(body, node);
        Ok(())
    }

    fn binding_emit(&mut self, body: Body, node: NodeId) {
        if let Some(binding) = &mut self.hot.binding {
            apply(binding, &body, node, self.at);
            let row = Row::Binding(binding.clone());
            self.row(row);
        }
        self.emit(body);
    }
}

/// The user message that `run` answers.
fn prompt_of(run: &Run) -> Option<MessageId> {
    run.prompt.or(match run.place {
        Place::Regenerate { message_id } => Some(message_id),
        _ => None,
    })
}
