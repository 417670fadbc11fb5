//! Acceptance: a prompt becomes a run, exactly once, and starts at once if it can.

use std::sync::Arc;

use mainspring_core::{
    Body, Message, MessageStatus, Mode, Policy, Role, Run, RunOption, RunOptions, RunState, Session,
    SessionStatus, Usage, session,
};

use super::binding::ResumeCandidate;
use super::draft::QueuedDraft;
use super::tree::Base;
use super::{Actor, AttemptDraft, created};
use crate::error::{CreateError, Error};
use crate::folders::check_folder_usable;
use crate::kernel::{Accept, Accepted, instructions_hash};
use crate::scheduler::{Lender, Permit};
use crate::store::{Request, Row};

impl Actor {
    pub(super) async fn accept(&mut self, accept: Box<Accept>) -> Result<Accepted, CreateError> {
        if accept.is_relayed
            && let Some(accepted) = self.accepted_before(&accept).await?
        {
            return Ok(accepted);
        }
        let adapter = self.check_accept(&accept)?;
        let base = self.base_of(accept.place).await?;
        let policy = self.check_policy(&accept, &adapter)?;
        // Boxed: it rarely waits.
        let permit = Box::pin(self.permit_for(&accept, &adapter)).await?;
        if permit.is_none() {
            Box::pin(self.take_queue_place()).await?;
        }
        let (run, prompt) = self.build_run(&accept, &adapter, base.answered_again.clone(), permit.is_some());
        let (position, _) = self.feed.snapshot();
        let superseded = self.queue.superseded_by(policy);
        let starts = permit.is_some();
        let run = match permit {
            Some(permit) => self.accept_started(&accept, run, policy, &base, prompt, permit).await?,
            None => self.accept_queued(&accept, run, policy, prompt).await?,
        };
        // The store has the wait now.
        drop(accept.pending_wait);
        let session = Session::clone(&self.hot.session);
        if !starts {
            // Boxed: it holds the futures of cancellations.
            Box::pin(self.supersede(&superseded, policy == Policy::Interrupt)).await;
        }
        Ok(Accepted { session, run, policy, position, replayed: false })
    }

    /// Returns the run of a relayed prompt if an earlier relay of the same prompt was accepted. The store has that run: this
    /// actor has committed it, or has loaded the session since.
    async fn accepted_before(&self, accept: &Accept) -> Result<Option<Accepted>, Error> {
        let Some(run) = self.shared.store.run_get(accept.run).await? else { return Ok(None) };
        accept.caller.check_changes(&self.hot.session)?;
        let (session, (position, _)) = (Session::clone(&self.hot.session), self.feed.snapshot());
        Ok(Some(Accepted { session, run, policy: accept.policy, position, replayed: false }))
    }

    /// Commits the run and its first attempt, and hands the attempt to the adapter.
    async fn accept_started(
        &mut self,
        accept: &Accept,
        run: Run,
        policy: Policy,
        base: &Base,
        prompt: Arc<Message>,
        permit: Permit,
    ) -> Result<Run, CreateError> {
        let candidate = self.resume_candidate(&run, base.at, &prompt).await?;
        let draft = self.start_draft(accept, run, policy, base, &prompt, candidate)?;
        let started = self.commit(draft).await?;
        self.queue.accepted(started.run.no);
        let run = Run::clone(&started.run);
        self.launch(started.run, started.attempt, permit, prompt, None);
        Ok(run)
    }

    /// Opens a draft in which `run` is accepted and its first attempt starts.
    fn start_draft(
        &self,
        accept: &Accept,
        run: Run,
        policy: Policy,
        base: &Base,
        prompt: &Arc<Message>,
        candidate: Option<ResumeCandidate>,
    ) -> Result<AttemptDraft, CreateError> {
        let new_prompt = is_new_prompt(accept, prompt).then(|| (prompt.clone(), false));
        let draft = self.accept_draft(accept, run, policy)?;
        let mut draft = self.give_up_on_error(draft.start(self.shared.node, base, new_prompt, None))?;
        self.give_up_on_error(self.open(&mut draft, candidate))?;
        Ok(draft)
    }

    /// Commits the run and queues it.
    async fn accept_queued(
        &mut self,
        accept: &Accept,
        run: Run,
        policy: Policy,
        prompt: Arc<Message>,
    ) -> Result<Run, CreateError> {
        let mut draft = self.accept_draft(accept, run, policy)?;
        if is_new_prompt(accept, &prompt) {
            draft.row(Row::Message(prompt, None));
        }
        let run = Arc::unwrap_or_clone(self.commit(draft).await?.run);
        self.queue.accepted(run.no);
        self.queue.push(run.clone(), policy);
        if let Some(active) = self.active.as_ref().filter(|_| policy == Policy::Steer) {
            active.set_steered(true);
        }
        Ok(run)
    }

    /// Opens a draft in which `run` is queued, in a session that exists and is open.
    fn accept_draft(&self, accept: &Accept, run: Run, policy: Policy) -> Result<QueuedDraft, CreateError> {
        let mut draft = self.draft();
        if !self.hot.session.is_stored() {
            draft.emit(created(&self.hot.session));
        }
        if self.hot.session.status != SessionStatus::Open {
            self.give_up_on_error(draft.session_command(session::Command::Reopen))?;
        }
        let (adapter, id) = (run.adapter.clone(), run.id);
        // Options of the run itself are checked before.
        let unused = match accept.ignore_unused_options {
            true => vec![],
            false => self.shared.unused_options(&adapter, &run.options)?,
        };
        let mut draft = draft.of_run(run);
        draft.emit(Body::run_accepted(adapter.clone(), accept.mode, Some(policy)));
        self.declare_goals(&mut draft);
        let has_tools = !self.hot.session.tools.is_empty() && accept.mode == Mode::Act;
        let tools = (has_tools && !self.shared.supports_client_tools(&adapter)).then_some("tools");
        if !unused.is_empty() || tools.is_some() {
            let names = unused.iter().map(|option| option.name()).chain(tools);
            let names = names.collect::<Vec<_>>().join(", ");
            let text = format!("defaults of the session that adapter {adapter:?} does not use: {names}");
            draft.emit_for_run(id, Body::ProgressUpdated { text });
        }
        if let Some(delegation) = &accept.delegation {
            draft.accept_delegation(delegation);
            draft.seed_state(id, &delegation.state);
        }
        if let Some(key) = &accept.name.idempotency_key {
            draft.row(Row::Request(Box::new(Request {
                owner: self.hot.session.owner.clone(),
                operation: "run_create".into(),
                key: key.clone(),
                fingerprint: accept.fingerprint,
                answer: accept.run.to_string(),
                at: self.shared.clock.now(),
            })));
        }
        Ok(draft)
    }

    /// Checks everything that does not depend on the session's other runs, and returns the run's adapter.
    fn check_accept(&self, accept: &Accept) -> Result<String, Error> {
        if self.shared.tasks.is_stopping() || self.lifetime.is_shutting_down() {
            return Err(Error::ShuttingDown);
        }
        accept.caller.check_changes(&self.hot.session)?;
        session::check_takes_work(&self.hot.session)?;
        let adapter = accept.adapter.as_ref().unwrap_or(&self.hot.session.adapter).clone();
        self.check_accept_lists(accept, &adapter)?;
        if !self.hot.session.is_stored() {
            // The same request describes the new session. Checked first: a caller who may not use a folder must not
            // learn whether it exists.
            let of_session = self.hot.session.cwd.as_deref();
            self.shared.check_folder(&adapter, of_session, accept.caller.folders.as_deref())?;
        }
        if !accept.ignore_unused_options {
            self.shared.check_adapter(&adapter)?;
            self.shared.check_used(&adapter, &accept.options)?;
            if !self.hot.session.is_stored() {
                self.shared.check_defaults(&adapter, &self.hot.session.run_defaults())?;
            }
        }
        self.check_native_options(accept, &adapter)?;
        self.shared.check_profile(&adapter, accept.options.model_profile.as_deref())?;
        let folder = accept.options.cwd.as_deref().or(self.hot.session.cwd.as_deref());
        if accept.options.folders != accept.caller.folders {
            // The run is limited to the folders of its parent; the caller may be limited to others.
            self.shared.check_run_folder(&adapter, folder, accept.caller.folders.as_deref())?;
        }
        self.check_fits_adapter(&adapter, &accept.options, folder)?;
        self.shared.check_limits_kept(&adapter, &accept.options.limits)?;
        Ok(adapter)
    }

    /// Refuses options with which the run could only fail. A model that is not configured fails the run: another adapter may
    /// take over then.
    fn check_native_options(&self, accept: &Accept, adapter: &str) -> Result<(), Error> {
        let agents = &self.shared.options.agents;
        let RunOptions { model_options, output_schema, .. } = &accept.options;
        if model_options.is_some() || output_schema.is_some() {
            let (model_options, output_schema) = (model_options.clone(), output_schema.clone());
            let options = RunOptions { model_options, output_schema, ..RunOptions::default() };
            agents.check_options(adapter, &options).map_err(Error::Invalid)?;
        }
        match self.hot.session.is_stored() {
            true => Ok(()),
            false => {
                let name = &self.hot.session.agent_definition;
                agents.check_agent_name(adapter, name).map_err(Error::Invalid)
            }
        }
    }

    /// Refuses a run that the lists of the caller's key, or those of the parent run, do not allow.
    fn check_accept_lists(&self, accept: &Accept, adapter: &str) -> Result<(), Error> {
        if accept.options.key.is_none() && accept.caller.lists.is_none() {
            return Ok(());
        }
        let complete = accept.options.or(&self.hot.session.run_defaults());
        self.shared.check_lists(complete.key.as_deref(), adapter, &complete)?;
        match complete.key == accept.caller.lists {
            true => Ok(()),
            // A delegated run is limited to the lists of its parent; its caller has lists of its own.
            false => self.shared.check_lists(accept.caller.lists.as_deref(), adapter, &complete),
        }
    }

    /// Checks that the adapter can execute a run with these options in this folder.
    pub(super) fn check_fits_adapter(
        &self,
        adapter: &str,
        options: &RunOptions,
        folder: Option<&str>,
    ) -> Result<(), Error> {
        self.shared.check_adapter(adapter)?;
        if !options.tools.is_empty() && !self.shared.supports_client_tools(adapter) {
            return Err(Error::Unsupported { adapter: adapter.into(), what: "call tools that you execute" });
        }
        // Checked first: a caller who may not use a folder must not learn whether it exists.
        self.shared.check_run_folder(adapter, folder, options.folders.as_deref())?;
        check_folder_usable(folder)
    }

    /// Returns the policy that takes effect, or refuses a prompt that a busy session cannot take.
    fn check_policy(&self, accept: &Accept, adapter: &str) -> Result<Policy, Error> {
        let limits = &self.shared.options.limits;
        let Some(status) = self.busy() else {
            return Ok(accept.policy);
        };
        if accept.place.is_branch() || accept.policy == Policy::Reject {
            return Err(Error::Busy { status });
        }
        if accept.policy == Policy::Steer {
            self.check_steer(accept, adapter)?;
        }
        if self.queue.len() >= limits.queue_per_session && accept.policy == Policy::Enqueue {
            return Err(Error::Overloaded { what: "the session's queue", limit: limits.queue_per_session });
        }
        Ok(accept.policy)
    }

    /// Acquires the permit to start the run at once; none if the run must wait, because the session is busy or no worker is
    /// free.
    async fn permit_for(&self, accept: &Accept, adapter: &str) -> Result<Option<Permit>, Error> {
        let awaited = accept.delegation.as_ref().filter(|delegation| delegation.mode.is_awaited());
        let lender = awaited.map(|delegation| Lender {
            run: delegation.parent_run,
            lends_place: delegation.request.member().is_some(),
        });
        let starts = self.is_idle() && self.shared.options.execute;
        let owner = &self.hot.session.owner;
        let acquire = || self.shared.scheduler.try_acquire(owner, adapter, accept.run, lender);
        let mut permit = starts.then(acquire).flatten();
        if starts && permit.is_none() && self.shared.block_grow(owner).await? {
            permit = acquire();
        }
        // A member of a network is queued instead: it can use the permit of its parent.
        if permit.is_none() && lender.is_some_and(|lender| !lender.lends_place) {
            self.shared.check_free_worker(adapter)?;
        }
        Ok(permit)
    }

    /// The options of a new run, completed by those of the session. Later changes of the session do not affect the run.
    fn complete_options(&self, accept: &Accept, adapter: &str) -> RunOptions {
        let session = &self.hot.session;
        let mut options = accept.options.or(&session.run_defaults());
        if accept.mode == Mode::Ask || !self.shared.supports_client_tools(adapter) {
            // The tools of the session do not apply; a request with such tools of its own was refused.
            options.tools.clone_from(&accept.options.tools);
        }
        if options.agent_definition.is_none() && self.shared.uses(adapter, RunOption::AgentDefinition) {
            options.agent_definition = Some(session.agent_definition.clone());
        }
        options
    }

    /// Builds the run, and the message it answers: a new prompt, or the earlier prompt `answered_again`.
    fn build_run(
        &self,
        accept: &Accept,
        adapter: &str,
        answered_again: Option<Arc<Message>>,
        starts: bool,
    ) -> (Run, Arc<Message>) {
        let now = self.shared.clock.now();
        let prompt = match answered_again {
            Some(earlier) => earlier,
            None => Arc::new(Message {
                id: self.shared.ids.message(),
                session: self.fence.session,
                run: Some(accept.run),
                role: Role::User,
                status: if starts { MessageStatus::Completed } else { MessageStatus::NotStarted },
                content: accept.prompt.clone(),
                usage: None,
                created_at: now,
                agent: None,
                external_id: None,
            }),
        };
        let options = self.complete_options(accept, adapter);
        let run = Run {
            id: accept.run,
            session: self.fence.session,
            owner: self.hot.session.owner.clone(),
            no: self.queue.next_no(),
            parent: accept.delegation.as_ref().map(|delegation| delegation.parent_run),
            request: accept.name.clone(),
            fingerprint: accept.fingerprint,
            adapter: adapter.to_owned(),
            mode: accept.mode,
            prompt: is_new_prompt(accept, &prompt).then_some(prompt.id),
            system_prompt_hash: instructions_hash(options.system_prompt.as_deref()),
            options,
            place: accept.place,
            steers: accept.policy == Policy::Steer && self.busy().is_some(),
            merged_into: None,
            budget: None,
            final_text: None,
            output: None,
            goals: vec![],
            tasks: vec![],
            pen: None,
            state: RunState::Queued { retry_at: None, retry_reason: None },
            attempts: 0,
            last_attempt: None,
            final_message: None,
            usage: Usage::default(),
            created_at: now,
            started_at: None,
            retried_at: None,
            completed_at: None,
            updated_at: now,
        };
        (run, prompt)
    }
}

/// True when `prompt` is new, not an earlier one that is answered again.
fn is_new_prompt(accept: &Accept, prompt: &Message) -> bool {
    prompt.run == Some(accept.run)
}
