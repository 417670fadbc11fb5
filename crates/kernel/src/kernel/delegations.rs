//! Delegation: a run gives work to a child session and gets its result.
//!
//! The child's session, its run and the delegation become durable in one commit, the child's. The parent's session is
//! notified through its inbox (`actor/inbox.rs`). So a refused delegation leaves nothing, and an accepted one is never
//! lost.

use mainspring_api::Delegate;
pub use mainspring_api::RunDelegations;
use mainspring_core::{
    Block, Cost, Delegation, DelegationId, DelegationMode, DelegationResult, Mode, NewDelegation, Policy,
    Refusal, RequestName, Run, RunId, RunLimits, RunOptions, RunStatus, Session, SessionId, Usage,
};
use serde::Serialize;
use serde_json::{Value, json};

use super::requests::{in_order, request_name};
use super::runs::check_size;
use super::{Accepted, Caller, Kernel, NewSession, RunRequest, SessionTarget, Shared, idempotency};
use crate::error::Error;
use crate::store::{DelegationsOf, SessionRef};

mod result;

/// The depth limit if a request gives none: a child of a child of a child.
const DEFAULT_MAX_DEPTH: u32 = 3;
/// The largest depth limit that a request may give.
pub const MAX_DEPTH: u32 = 5;
/// The most characters of context that a child gets.
pub const MAX_CONTEXT_CHARS: usize = 4_000;
/// The surface kind of a session that was created for delegated work.
const DELEGATED_SURFACE_KIND: &str = "delegated_agent";

/// A request to delegate work of a run.
// Requests are remembered by a hash of these fields: their names and order must not change.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DelegationRequest {
    /// Whether the parent waits, and whether the child's session is new.
    pub mode: DelegationMode,
    /// The goal of the child.
    pub objective: String,
    /// The context for the objective. The child sees nothing else of its parent.
    pub context: Option<String>,
    /// For [`DelegationMode::Continue`] the child's session, by id; otherwise the new session. A new session takes the
    /// adapter, the folder and the agent of its parent where none is given.
    pub session: SessionTarget,
    /// The adapter of the child run; the session's if not given.
    pub adapter: Option<String>,
    /// Whether the child may act. Never more than its parent.
    pub run_mode: Mode,
    /// The other options of the child run. Its limits are at most the rest of its parent's.
    pub options: RunOptions,
    /// The largest depth of delegation, counting the child.
    pub max_depth: Option<u32>,
    /// The caller's names for the request: the same names again give the same delegation.
    #[serde(skip)]
    pub name: RequestName,
}

impl DelegationRequest {
    /// A request with this mode and objective, for a new session.
    pub fn new(mode: DelegationMode, objective: impl Into<String>) -> Self {
        Self {
            mode,
            objective: objective.into(),
            context: None,
            session: SessionTarget::default(),
            adapter: None,
            run_mode: Mode::Ask,
            options: RunOptions::default(),
            max_depth: None,
            name: RequestName::default(),
        }
    }

    /// A copy with sorted maps, so that equal requests have equal hashes.
    fn in_order(&self) -> Self {
        let mut ordered = Self { session: self.session.in_order(), ..self.clone() };
        ordered.options.model_options = in_order(&self.options.model_options);
        ordered.options.output_schema.iter_mut().for_each(Value::sort_all_objects);
        ordered
    }

    /// The form in which the delegation keeps the request: the fields that were given, and `context` always. The child's
    /// session keeps its own settings.
    fn stored(&self) -> Value {
        let mut request = json!({"mode": self.mode, "objective": self.objective, "context": self.context});
        let mut add = |name: &str, value: Value| {
            if !value.is_null() && value != json!({}) {
                request[name] = value;
            }
        };
        add("adapter", json!(self.adapter));
        add("runMode", json!(self.run_mode));
        add("maxDepth", json!(self.max_depth));
        add("options", json!(self.options));
        request
    }

    /// The text of the child's prompt.
    fn prompt(&self) -> String {
        match self.context.as_deref().map(str::trim).filter(|context| !context.is_empty()) {
            Some(context) => format!("{}\n\nContext:\n{context}", self.objective),
            None => self.objective.clone(),
        }
    }
}

impl TryFrom<Delegate> for DelegationRequest {
    type Error = Error;

    fn try_from(work: Delegate) -> Result<Self, Error> {
        if work.session.has_start_fields() {
            return Err(Error::Invalid(
                "a delegation does not start a session: leave out `new` and `load`".into(),
            ));
        }
        let name = request_name(work.client_id, work.request_id, work.idempotency_key)?;
        Ok(Self {
            mode: work.mode,
            objective: work.objective,
            context: work.context,
            session: work.session.into(),
            adapter: work.adapter,
            run_mode: work.run_mode,
            options: work.options,
            max_depth: work.max_depth,
            name,
        })
    }
}

/// An accepted delegation.
#[derive(Debug, Clone, PartialEq)]
pub struct Delegated {
    /// The delegation.
    pub delegation: Delegation,
    /// The child's session.
    pub session: Session,
    /// The child run.
    pub run: Run,
    /// True when an earlier request under the same name was accepted.
    pub replayed: bool,
}

impl Kernel {
    /// Delegates work of the run `parent`, which must be executing. Requests under the same name give one child.
    pub async fn run_delegate(
        &self,
        caller: &Caller,
        parent: RunId,
        request: DelegationRequest,
    ) -> Result<Delegated, Error> {
        let parent = self.run_readable(caller, parent).await?;
        caller.check_changes_run(&parent)?;
        self.check_delegation(&request)?;
        let fingerprint = idempotency::fingerprint(&(parent.id, &request.in_order()));
        // A repeated request is not checked again: the checks may refuse by now a request they allowed then.
        let accepted = match self.run_replayed(caller, &request.name, Policy::Enqueue, fingerprint).await? {
            Some(accepted) => accepted,
            None => Box::pin(self.child_create(caller, &parent, request, fingerprint)).await?,
        };
        let Accepted { session, run, replayed, .. } = accepted;
        let found = self.shared.store.delegations(&DelegationsOf::Child(run.id)).await?.pop();
        let delegation = found.ok_or_else(|| Error::RequestConflict {
            name: format!("the name of {}, which nobody delegated,", run.id),
        })?;
        Ok(Delegated { delegation, session, run, replayed })
    }

    /// Creates the child run of a delegation that is not a repeated request.
    async fn child_create(
        &self,
        caller: &Caller,
        parent: &Run,
        request: DelegationRequest,
        fingerprint: [u8; 16],
    ) -> Result<Accepted, Error> {
        let child = self.child_request(caller, parent, &request).await?;
        let stored = request.stored();
        let delegation = NewDelegation {
            id: self.shared.ids.delegation(),
            parent_session: parent.session,
            parent_run: parent.id,
            child_run: self.shared.ids.run(),
            mode: request.mode,
            objective: request.objective,
            request: stored,
        };
        self.run_accept_once(caller, &child, fingerprint, Some(&delegation)).await
    }

    fn check_delegation(&self, request: &DelegationRequest) -> Result<(), Error> {
        let limits = &self.shared.options.limits;
        if request.objective.trim().is_empty() {
            return Err(Error::Invalid("an objective must not be empty: say what is to be achieved".into()));
        }
        check_size("the objective", request.objective.len(), limits.prompt_bytes)?;
        let context = request.context.as_ref().map_or(0, |context| context.chars().count());
        if context > MAX_CONTEXT_CHARS {
            return Err(Error::Invalid(format!(
                "the context has {context} characters; at most {MAX_CONTEXT_CHARS} are handed on. Hand over artifacts instead"
            )));
        }
        if request.max_depth.is_some_and(|depth| !(1..=MAX_DEPTH).contains(&depth)) {
            return Err(Error::Invalid(format!("a depth is from 1 to {MAX_DEPTH}")));
        }
        match (request.mode, request.session.id) {
            (DelegationMode::Continue, None) => {
                Err(Error::Invalid("to continue, name the child's session by its id".into()))
            }
            (DelegationMode::Call | DelegationMode::Spawn, Some(_)) => Err(Error::Invalid(
                "call and spawn make a session: to give one that exists more to do, use continue".into(),
            )),
            _ => Ok(()),
        }
    }

    /// Builds the prompt for the child, with no more rights and limits than its parent has.
    async fn child_request(
        &self,
        caller: &Caller,
        parent: &Run,
        request: &DelegationRequest,
    ) -> Result<RunRequest, Error> {
        let status = parent.state.status();
        if status.is_ended() || parent.merged_into.is_some() {
            return Err(parent.not_live().into());
        }
        if parent.state.holder().is_none() || status == RunStatus::Cancelling {
            return Err(Refusal::WrongState { what: "run that would delegate", status: status.name() }.into());
        }
        let depth = self.shared.depth(parent).await? + 1;
        let limit = request.max_depth.unwrap_or(DEFAULT_MAX_DEPTH);
        if depth > limit {
            return Err(Error::TooDeep { depth, limit });
        }
        let mode = request.run_mode;
        if mode == Mode::Act && parent.mode == Mode::Ask {
            return Err(Error::Forbidden(
                "a run that may only answer cannot let another act: delegate with the mode ask".into(),
            ));
        }
        let home = self.session_get(caller, &SessionRef::Id(parent.session)).await?;
        let given = &request.session.new;
        let new = NewSession {
            surface_kind: Some(given.surface_kind.clone().unwrap_or_else(|| DELEGATED_SURFACE_KIND.into())),
            adapter: Some(given.adapter.as_ref().unwrap_or(&parent.adapter).clone()),
            cwd: given.cwd.clone().or(parent.options.cwd.clone()).or(home.cwd),
            agent_definition: given.agent_definition.clone().or(Some(home.agent_definition)),
            ..given.clone()
        };
        let limits = self.shared.child_limits(parent, request.options.limits).await?;
        let child = RunRequest {
            session: SessionTarget { new, ..request.session.clone() },
            prompt: vec![Block::text(request.prompt())],
            adapter: request.adapter.clone(),
            mode,
            options: RunOptions { limits, ..request.options.clone() },
            policy: Policy::Enqueue,
            name: request.name.clone(),
            ..RunRequest::default()
        };
        self.check_request(caller, &child)?;
        Ok(child)
    }

    /// Returns the delegations of a run.
    pub async fn run_delegations(&self, caller: &Caller, run: RunId) -> Result<RunDelegations, Error> {
        let run = self.run_readable(caller, run).await?;
        let store = &self.shared.store;
        let parent = match run.parent {
            Some(_) => store.delegations(&DelegationsOf::Child(run.id)).await?.pop(),
            None => None,
        };
        let children = store.delegations(&DelegationsOf::Parent(run.session, run.id)).await?;
        Ok(RunDelegations { parent, children })
    }

    /// Returns one delegation, and its result if it is settled and its child was not deleted.
    pub async fn delegation_get(
        &self,
        caller: &Caller,
        id: DelegationId,
    ) -> Result<(Delegation, Option<DelegationResult>), Error> {
        let not_found = || Error::not_found("delegation", id);
        let delegation =
            self.shared.store.delegations(&DelegationsOf::Id(id)).await?.pop().ok_or_else(not_found)?;
        // A caller who may see the parent run may see its delegations.
        self.run_readable(caller, delegation.parent_run).await.map_err(|_| not_found())?;
        let result = match delegation.status.is_settled() {
            true => self.shared.delegation_result(&delegation).await?,
            false => None,
        };
        Ok((delegation, result))
    }
}

impl Shared {
    /// Counts the delegations above `run`.
    async fn depth(&self, run: &Run) -> Result<u32, Error> {
        let (mut depth, mut above) = (0, run.parent);
        while let Some(parent) = above {
            depth += 1;
            // A deleted parent still counts.
            above = self.store.run_get(parent).await?.and_then(|run| run.parent);
        }
        Ok(depth)
    }

    /// Reduces the limits requested for a child of `parent` to the rest of its parent's.
    async fn child_limits(&self, parent: &Run, wanted: RunLimits) -> Result<RunLimits, Error> {
        let limits = parent.options.limits;
        let (max_tokens, max_cost) = match &parent.budget {
            Some(budget) => (budget.max_tokens.or(limits.max_tokens), budget.max_cost.or(limits.max_cost)),
            None => (limits.max_tokens, limits.max_cost),
        };
        let since = parent.limited_since();
        let ends = parent
            .budget
            .as_ref()
            .and_then(|budget| budget.ends_at)
            .or(limits.max_time.map(|max| since.plus(max)));
        if max_tokens.is_none() && max_cost.is_none() && ends.is_none() {
            return Ok(wanted);
        }
        let used = parent.usage + self.spent_by_children(parent.session, parent.id).await?;
        let tokens = max_tokens.map(|max| max.saturating_sub(used.tokens()));
        let cost = max_cost.map(|max| Cost(max.0.saturating_sub(used.cost.0)));
        let time = ends.map(|ends| ends.since(self.clock.now()));
        if tokens == Some(0) || cost == Some(Cost(0)) || time == Some(0) {
            return Err(Error::Invalid(
                "the run that would delegate has used up its own limits, or given them to others: wait for those".into(),
            ));
        }
        Ok(RunLimits {
            // Limits that only come from the parent are kept as well as the child's adapter can.
            best_effort: wanted.best_effort.or(wanted.has_no_amount().then_some(true)),
            max_tokens: min_set(wanted.max_tokens, tokens),
            max_cost: min_set(wanted.max_cost, cost),
            max_time: min_set(wanted.max_time, time),
            ..wanted
        })
    }

    /// Reduces the limits requested for a retry of `child` to the rest of its parent's. What the child has used counts
    /// again in the retry.
    pub(crate) async fn retried_child_limits(
        &self,
        parent: &Run,
        child: &Run,
        wanted: RunLimits,
    ) -> Result<RunLimits, Error> {
        let rest = self.child_limits(parent, RunLimits::default()).await?;
        let tokens = rest.max_tokens.map(|max| max.saturating_add(child.usage.tokens()));
        let cost = rest.max_cost.map(|max| Cost(max.0.saturating_add(child.usage.cost.0)));
        Ok(RunLimits {
            max_tokens: min_set(wanted.max_tokens, tokens),
            max_cost: min_set(wanted.max_cost, cost),
            max_time: min_set(wanted.max_time, rest.max_time),
            ..wanted
        })
    }

    /// Sums the usage of the children of a run. Children that have not ended count with their limits.
    pub(crate) async fn spent_by_children(&self, session: SessionId, run: RunId) -> Result<Usage, Error> {
        let mut spent = Usage::default();
        for delegation in self.store.delegations(&DelegationsOf::Parent(session, run)).await? {
            let Some(child) = self.store.run_get(delegation.child_run).await? else { continue };
            let beneath = Box::pin(self.spent_by_children(child.session, child.id)).await?;
            let mut usage = child.usage + beneath;
            if !delegation.status.is_settled() {
                let limits = child.options.limits;
                usage.cost = usage.cost.max(limits.max_cost.unwrap_or_default());
                usage.output_tokens += limits.max_tokens.unwrap_or(0).saturating_sub(usage.tokens());
            }
            spent += usage;
        }
        Ok(spent)
    }

    /// Refuses an awaited child that would queue for a worker of a full adapter: the runs that hold the workers may be
    /// waiting for the child.
    pub(crate) fn check_free_worker(&self, adapter: &str) -> Result<(), Error> {
        match self.options.adapter_workers.get(adapter).filter(|_| self.scheduler.is_full(adapter)) {
            Some(limit) => Err(Error::AdapterFull { adapter: adapter.to_owned(), limit: *limit }),
            None => Ok(()),
        }
    }
}

fn min_set<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
