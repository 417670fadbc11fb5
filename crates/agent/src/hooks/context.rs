//! The context of a hook: the session, the run and the plan that it is called for, and what it may read and change.

use std::fmt;
use std::sync::Arc;

use mainspring_core::{
    Expect, Message, Run, RunId, RunStatus, Session, SessionId, StateEntry, StateOutcome, StateScope,
};
use mainspring_kernel::adapter::{AttemptHandle, HandleError, SessionMemory};
use parking_lot::Mutex;
use serde_json::Value;

use crate::native::Plan;

/// The run that a hook is called for. Calls fail once the attempt has lost its authority.
#[derive(Clone)]
pub struct HookContext {
    /// The session.
    pub session: SessionId,
    /// The run.
    pub run: RunId,
    /// The number of the run's last model call that produced a message; 0 before the first, always in
    /// `on_end`, and in `on_start` outside of a network.
    pub step: u32,
    /// The plan as it is now. Absent in `on_start`, which gets it as an argument, and in `on_end`.
    pub plan: Option<Arc<Plan>>,
    changes: PlanChanges,
    attempt: AttemptHandle,
}

impl HookContext {
    pub(crate) fn new(attempt: &AttemptHandle, step: u32, plan: Option<(Arc<Plan>, PlanChanges)>) -> Self {
        let (session, run) = (attempt.assignment().session.id, attempt.assignment().run.id);
        let (plan, changes) = plan.unzip();
        let changes = changes.unwrap_or_default();
        Self { session, run, step, plan, changes, attempt: attempt.clone() }
    }

    /// Returns the session as it was when this execution began.
    pub fn session(&self) -> &Session {
        &self.attempt.assignment().session
    }

    /// Returns the run as it was when this execution began.
    pub fn run(&self) -> &Run {
        &self.attempt.assignment().run
    }

    /// Returns the status of the run when this execution began. It is `running` for a run that continues after a wait.
    pub fn status(&self) -> RunStatus {
        self.run().state.status()
    }

    /// Reads the last `limit` messages of the run's path, root first. They never change; a prompt, a continuation or a
    /// tool result adds to them.
    pub async fn messages(&self, limit: usize) -> Result<Vec<Arc<Message>>, HandleError> {
        self.attempt.path(limit).await
    }

    /// Returns the value of a state key.
    pub async fn state_get(&self, scope: StateScope, key: &str) -> Result<Option<StateEntry>, HandleError> {
        self.attempt.state_get(scope, key).await
    }

    /// Sets a state key, or deletes it if `value` is `None`. Fails if its version is not the expected one.
    pub async fn state_set(
        &self,
        scope: StateScope,
        key: &str,
        value: Option<Value>,
        expect: Expect,
    ) -> Result<StateOutcome, HandleError> {
        self.attempt.state_set(scope, key, value, expect).await
    }

    /// Changes the plan before the next model call, for the rest of this execution: the model, the system prompt, the
    /// tools, the limits. In a network this changes the plan of the current member until the end of the member's call.
    /// `on_start` and `on_error` get the plan as an argument instead.
    pub fn change_plan(&self, change: impl FnOnce(&mut Plan) + Send + 'static) {
        self.changes.0.lock().push(Box::new(change));
    }

    /// Returns the embedder's own data of the session. The data is dropped when the session leaves memory, and is never
    /// stored.
    pub fn memory(&self) -> &SessionMemory {
        &self.attempt.assignment().memory
    }
}

impl fmt::Debug for HookContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { session, run, step, .. } = self;
        f.debug_struct("HookContext").field("session", session).field("run", run).field("step", step).finish()
    }
}

type PlanChange = Box<dyn FnOnce(&mut Plan) + Send>;

/// Changes of a plan that are not applied yet.
#[derive(Clone, Default)]
pub(crate) struct PlanChanges(Arc<Mutex<Vec<PlanChange>>>);

impl PlanChanges {
    /// Applies the changes in the order in which they were asked for.
    pub(crate) fn apply(&self, plan: &mut Plan) {
        let changes = std::mem::take(&mut *self.0.lock());
        changes.into_iter().for_each(|change| change(plan));
    }
}
