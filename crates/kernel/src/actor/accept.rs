//! Acceptance: a prompt becomes a run, exactly once, and starts at once if it can.

use std::sync::Arc;

use mainspring_core::{
    Body, Message, MessageStatus, Policy, Role, Run, RunState, SessionStatus, Usage, session,
};

use super::{AcceptOutcome, Actor, created};
use crate::error::Error;
use crate::kernel::{Accept, Accepted};
use crate::store::{Request, Row, StoreError};

impl Actor {
    pub(super) async fn accept(&mut self, accept: Accept) -> Result<AcceptOutcome, Error> {
        if self.shared.tasks.is_stopping() || self.shutdown.is_some() {
            return Err(Error::ShuttingDown);
        }
        accept.caller.check_changes(&self.hot.session)?;
        let adapter = accept.adapter.as_ref().unwrap_or(&self.hot.session.adapter).clone();
        self.shared.check_adapter(&adapter)?;
        if !accept.options.tools.is_empty() && !self.shared.calls_back(&adapter) {
            return Err(Error::Unsupported { adapter, what: "call tools that you execute" });
        }
        let base = self.base(accept.place).await?;
        let policy = self.stage(&accept, &adapter)?;
        // To replace leaves alone what has begun, to interrupt does not, even if it pauses before it is tried again.
        let superseded: Vec<Run> = self
            .queue
            .iter()
            .filter(|run| match policy {
                Policy::Replace => run.attempts == 0,
                Policy::Interrupt => true,
                Policy::Enqueue | Policy::Steer | Policy::Reject => false,
            })
            .cloned()
            .collect();
        let idle = self.is_idle() && self.shared.options.execute;
        let lender =
            accept.delegation.as_ref().filter(|task| task.mode.is_awaited()).map(|task| task.parent_run);
        let permit = idle.then(|| self.shared.scheduler.try_acquire(&adapter, lender)).flatten();
        if permit.is_none() {
            if lender.is_some() {
                self.shared.check_free_worker(&adapter)?;
            }
            self.check_room()?;
        }
        let (run, prompt) = self.run_of(&accept, &adapter, base.again.clone(), permit.is_some());
        let bound = match permit {
            Some(_) => self.bound(&run, base.at, &prompt).await?,
            None => None,
        };

        let (position, _) = self.feed.now();
        let (mut draft, _) = self.draft(false);
        if !self.stored {
            draft.emit(created(&self.hot.session));
        }
        if self.hot.session.status != SessionStatus::Open
            && let Err(refusal) = draft.session_command(session::Command::Reopen)
        {
            self.give_up();
            return Err(refusal.into());
        }
        draft.run = Some(run);
        draft.emit(Body::RunQueued {
            adapter: adapter.clone(),
            mode: accept.mode,
            policy: Some(policy),
            retry_at_ms: None,
        });
        if let Some(delegation) = &accept.delegation {
            draft.accept_delegation(delegation);
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
        if permit.is_some() {
            let own = run_prompts(&accept, &prompt).then(|| (prompt.clone(), false));
            let started =
                draft.start(self.shared.node, &base, own).and_then(|()| self.open(&mut draft, bound));
            if let Err(refusal) = started {
                self.give_up();
                return Err(refusal.into());
            }
        } else if run_prompts(&accept, &prompt) {
            draft.row(Row::Message(prompt.clone(), None));
        }
        let (run, attempt) = match self.commit(draft).await {
            Ok(committed) => committed,
            Err(conflict @ StoreError::Conflict(_)) => return Ok(Err(conflict)),
            Err(error) => return Err(error.into()),
        };
        // The store has the wait now.
        drop(accept.pending_wait);
        let Some(run) = run else {
            return Err(Error::Invalid("the run was lost".into()));
        };
        self.next_no = run.no + 1;
        let accepted = Accepted {
            session: self.hot.session.clone(),
            run: run.clone(),
            policy,
            position,
            replayed: false,
        };
        match attempt {
            Some(attempt) => self.launch(run, attempt, permit, prompt, None),
            None => {
                self.queue.insert(self.turn_of(policy), run);
                if let Some(active) = self.active.as_ref().filter(|_| policy == Policy::Steer) {
                    active.steering.send_replace(true);
                }
                self.supersede(&superseded, policy == Policy::Interrupt).await;
            }
        }
        Ok(Ok(accepted))
    }

    /// What the policy makes of a busy session: the policy that takes effect, or a refusal.
    fn stage(&self, accept: &Accept, adapter: &str) -> Result<Policy, Error> {
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

    /// Whether one more run may wait. A session that is idle waits too, when no worker is free.
    fn check_room(&self) -> Result<(), Error> {
        let limit = self.shared.options.limits.queue_total;
        if self.shared.queue_len() < limit {
            return Ok(());
        }
        Err(Error::Overloaded { what: "the queue", limit })
    }

    /// The run, and the message it answers: its own prompt, or an earlier one.
    fn run_of(
        &self,
        accept: &Accept,
        adapter: &str,
        again: Option<Arc<Message>>,
        starts: bool,
    ) -> (Run, Arc<Message>) {
        let now = self.shared.clock.now();
        let prompt = match again {
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
            }),
        };
        let run = Run {
            id: accept.run,
            session: self.fence.session,
            owner: self.hot.session.owner.clone(),
            no: self.next_no,
            parent: accept.delegation.as_ref().map(|task| task.parent_run),
            request: accept.name.clone(),
            fingerprint: accept.fingerprint,
            adapter: adapter.to_owned(),
            mode: accept.mode,
            prompt: run_prompts(accept, &prompt).then_some(prompt.id),
            options: accept.options.or(&self.hot.session.run_defaults()),
            place: accept.place,
            steers: accept.policy == Policy::Steer && self.busy().is_some(),
            merged_into: None,
            budget: None,
            pen: None,
            state: RunState::Queued { retry_at: None },
            attempts: 0,
            last_attempt: None,
            final_message: None,
            usage: Usage::default(),
            created_at: now,
            started_at: None,
            completed_at: None,
            updated_at: now,
        };
        (run, prompt)
    }
}

/// True when `prompt` is the run's own, not an earlier one that is answered again.
fn run_prompts(accept: &Accept, prompt: &Message) -> bool {
    prompt.run == Some(accept.run)
}
