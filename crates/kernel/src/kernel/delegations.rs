//! Delegation: a run gives work to a child session and gets its result.
//!
//! The child's session, its run and the delegation become durable in one commit, the child's. The parent's session is
//! notified through its inbox (`actor/inbox.rs`). So a refused delegation leaves nothing, and an accepted one is never
//! lost.

use mainspring_api::Delegate;
pub use mainspring_api::RunDelegations;
use mainspring_core::placement::merged_labels;
use mainspring_core::{
    AgentLimits, AgentName, Block, Delegation, DelegationId, DelegationMode, DelegationResult, GrantEffect,
    GrantSource, KeyLists, Mode, NetworkMember, NewDelegation, Policy, Refusal, RequestFields, RequestName,
    Run, RunId, RunLimits, RunOptions, RunStatus, SandboxProfile, SandboxReach, Session, SessionId,
    StoredRequest, Visibility,
};
use serde::Serialize;
use serde_json::{Map, Value};

use super::authority;
use super::requests::{in_order, request_name};
use super::runs::{RunOrigin, check_size};
use super::{
    Accepted, AgentScope, Caller, Kernel, NewSession, RunRequest, SessionTarget, Shared, idempotency,
};
use crate::error::Error;
use crate::policy::{Permissions, Rule, definition_rules};
use crate::store::{DelegationsOf, SessionRef};

mod result;
mod share;

pub(crate) use share::Shares;
use share::{ReservedShare, Wanted};

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
    /// The state that the child run starts with.
    #[serde(skip)]
    pub state: Map<String, Value>,
    /// The member of the parent's network whose work the child does.
    #[serde(skip)]
    pub member: Option<NetworkMember>,
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
            state: Map::new(),
            member: None,
        }
    }

    /// A copy with sorted maps, so that equal requests have equal hashes.
    fn in_order(&self) -> Self {
        let mut ordered = Self { session: self.session.in_order(), ..self.clone() };
        ordered.options.model_options = in_order(&self.options.model_options);
        ordered.options.output_schema.iter_mut().for_each(Value::sort_all_objects);
        ordered
    }

    /// The form in which the delegation keeps the request.
    fn stored(&self) -> StoredRequest {
        let fields = RequestFields {
            mode: self.mode,
            objective: &self.objective,
            context: self.context.as_deref(),
            adapter: self.adapter.as_deref(),
            run_mode: self.run_mode,
            max_depth: self.max_depth,
            options: &self.options,
            member: self.member.as_ref(),
        };
        fields.into()
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
            state: Map::new(),
            member: None,
        })
    }
}

/// The bounds of a run's authority that its children inherit.
struct Bounds {
    /// The folders in which agents may work; `None` for any.
    folders: Option<Vec<String>>,
    /// The weakest sandbox.
    sandbox: Option<SandboxProfile>,
    /// The widest reach of confined agents.
    reach: Option<SandboxReach>,
    /// The rules of the run and of the runs above it.
    rules: Vec<Vec<String>>,
    /// The lists of the key that the run is charged to.
    key: Option<Box<KeyLists>>,
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

/// A child that is about to be committed, or that an earlier request created.
enum PreparedChild {
    Existing(Box<Accepted>),
    New(Box<NewChild>),
}

struct NewChild {
    /// The child's session, if another kernel is its home.
    elsewhere: Option<SessionId>,
    request: RunRequest,
    share: ReservedShare,
    delegation: NewDelegation,
    fingerprint: [u8; 16],
}

impl Kernel {
    /// Delegates work of the run `parent`, which must be executing. Requests under the same name give one child.
    pub async fn run_delegate(
        &self,
        caller: &Caller,
        parent: RunId,
        request: DelegationRequest,
    ) -> Result<Delegated, Error> {
        let mut delegated = self.run_delegate_all(caller, parent, vec![request]).await?;
        delegated.pop().ok_or_else(|| Error::not_found("delegation", parent))
    }

    /// Delegates several pieces of work at the same time. All requests are checked, and the shares of all children reserved
    /// in the order of the requests, before the first child is committed: a refusal leaves no child. The commits are then
    /// made together, so that the store can group them and no child starts long before another.
    ///
    /// If a commit fails, the children of the others remain. Requests under the same names find them.
    pub async fn run_delegate_all(
        &self,
        caller: &Caller,
        parent: RunId,
        requests: Vec<DelegationRequest>,
    ) -> Result<Vec<Delegated>, Error> {
        let parent = self.run_readable(caller, parent).await?;
        let (agent, caller) = (caller, &caller.for_delegation(&parent)?);
        self.shared.check_run_allowed(caller, &parent)?;
        if self.shared.options.homes.is_some() {
            // The shares of children are reserved at the home of their parent alone.
            Box::pin(self.shared.check_home(parent.session)).await?;
        }
        let (mut children, mut authorized) = (vec![], vec![]);
        for request in requests {
            let child = self.child_prepare((agent, caller), &parent, request, &mut authorized);
            children.push(Box::pin(child).await?);
        }
        let accepted = children.into_iter().map(|child| self.child_accept(caller, child));
        futures_util::future::join_all(accepted).await.into_iter().collect()
    }

    /// Checks a request, and finds the child that an earlier request under its name created, or builds a new one.
    /// `authorized` holds the operations that were allowed for earlier requests of the same call: each is decided and
    /// recorded once.
    async fn child_prepare(
        &self,
        (agent, caller): (&Caller, &Caller),
        parent: &Run,
        request: DelegationRequest,
        authorized: &mut Vec<(&'static str, String)>,
    ) -> Result<PreparedChild, Error> {
        self.check_delegation(&request)?;
        if agent.agent.is_some() && !request.session.new.rules.is_empty() {
            return Err(Error::Forbidden("an agent sets no rules: leave out `rules`".into()));
        }
        if agent.agent.is_some() && request.session.new.visibility == Some(Visibility::Org) {
            return Err(Error::Forbidden(
                "an agent cannot share the session of its child: leave out `visibility`".into(),
            ));
        }
        let fingerprint = idempotency::fingerprint(&(parent.id, &request.in_order()));
        // A repeated request is not checked again: the checks might refuse now what they allowed then.
        if let Some(accepted) = self.run_replayed(caller, &request.name, Policy::Enqueue, fingerprint).await?
        {
            return Ok(PreparedChild::Existing(Box::new(accepted)));
        }
        let action = match request.session.id {
            Some(session) => (authority::SEND, session.to_string()),
            None => (authority::DELEGATE, request.mode.name().to_owned()),
        };
        if !authorized.contains(&action) {
            Box::pin(self.authorize(agent, action.0, &action.1)).await?;
            authorized.push(action);
        }
        let child_run = self.shared.ids.run();
        let elsewhere = self.target_elsewhere(caller, &request.session).await?;
        let (child, share) =
            self.child_request(caller, parent, &request, (child_run, elsewhere.is_some())).await?;
        let stored = request.stored();
        let delegation = NewDelegation {
            id: self.shared.ids.delegation(),
            parent_session: parent.session,
            parent_run: parent.id,
            child_run,
            mode: request.mode,
            objective: request.objective,
            request: stored,
            state: request.state,
        };
        let new = NewChild { elsewhere, request: child, share, delegation, fingerprint };
        Ok(PreparedChild::New(Box::new(new)))
    }

    /// Commits a new child, and reads the delegation.
    async fn child_accept(&self, caller: &Caller, child: PreparedChild) -> Result<Delegated, Error> {
        let accepted = match child {
            PreparedChild::Existing(accepted) => *accepted,
            PreparedChild::New(new) => {
                let NewChild { elsewhere, request, share, delegation, fingerprint } = *new;
                let accepted = match elsewhere {
                    Some(session) => {
                        Box::pin(self.child_relay(caller, session, request, fingerprint, delegation)).await
                    }
                    None => {
                        let origin = RunOrigin { delegation: Some(&delegation), relayed: None };
                        Box::pin(self.run_accept_once(caller, &request, fingerprint, origin)).await
                    }
                };
                // The store has the limits of the child now.
                drop(share);
                accepted?
            }
        };
        let Accepted { session, run, replayed, .. } = accepted;
        let found = self.shared.store.delegations(&DelegationsOf::Child(run.id)).await?.pop();
        let delegation = found.ok_or_else(|| Error::RequestConflict {
            name: format!("the name of {}, which nobody delegated,", run.id),
        })?;
        Ok(Delegated { delegation, session, run, replayed })
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

    /// Refuses a delegation of a run that may not make it: the run must be executing, and the child may neither be too
    /// deep nor act for a run that only answers.
    async fn check_parent(
        &self,
        parent: &Run,
        agent: AgentLimits,
        request: &DelegationRequest,
    ) -> Result<(), Error> {
        let status = parent.state.status();
        if status.is_ended() || parent.merged_into.is_some() {
            return Err(parent.not_live().into());
        }
        if parent.state.holder().is_none() || status == RunStatus::Cancelling {
            return Err(Refusal::WrongState { what: "run that would delegate", status: status.name() }.into());
        }
        let depth = self.shared.depth(parent).await? + 1;
        let wanted = request.max_depth.unwrap_or(DEFAULT_MAX_DEPTH);
        let limit = parent.options.limits.of_agent(agent).max_depth.map_or(wanted, |limit| limit.min(wanted));
        if depth > limit {
            return Err(Error::TooDeep { depth, limit });
        }
        if request.run_mode == Mode::Act && parent.mode == Mode::Ask {
            return Err(Error::Forbidden(
                "a run that may only answer cannot let another act: delegate with the mode ask".into(),
            ));
        }
        Ok(())
    }

    /// Builds the prompt for the child, with no more rights and limits than its parent has. The caller keeps the returned
    /// share until the child is committed. A child whose home is another kernel is checked there.
    async fn child_request(
        &self,
        caller: &Caller,
        parent: &Run,
        request: &DelegationRequest,
        (child_run, is_elsewhere): (RunId, bool),
    ) -> Result<(RunRequest, ReservedShare), Error> {
        let parent_session = self.session_get(caller, &SessionRef::Id(parent.session)).await?;
        let parent_agent = parent.agent_definition(&parent_session).to_owned();
        let parent_limits = self.agent_limits(caller, &parent_agent).await?;
        self.check_parent(parent, parent_limits, request).await?;
        let bounds = self.bounds_of(caller, parent, &parent_session).await?;
        if bounds.sandbox == Some(SandboxProfile::ReadOnly) && request.run_mode == Mode::Act {
            return Err(Error::Forbidden(
                "a run that may write nothing cannot let another act: delegate with the mode ask".into(),
            ));
        }
        let given = &request.session.new;
        let new = child_session(parent, &parent_session, &parent_agent, given);
        let (adapter, agent, own_cwd) = match request.session.id {
            Some(id) => {
                let child = self.session_get(caller, &SessionRef::Id(id)).await?;
                let agent = request.options.agent_definition.clone().unwrap_or(child.agent_definition);
                (child.adapter, agent, child.cwd)
            }
            None => (
                given.adapter.as_ref().unwrap_or(&parent.adapter).clone(),
                given.agent_definition.as_ref().unwrap_or(&parent_agent).clone(),
                new.cwd.clone(),
            ),
        };
        let adapter = request.adapter.clone().unwrap_or(adapter);
        let keeps_limits = match self.shared.adapter(&adapter) {
            Ok(adapter) => adapter.capabilities().keeps_limits,
            Err(_) if is_elsewhere => false,
            Err(error) => return Err(error),
        };
        // Only an adapter that enforces limits itself enforces the limits of an agent definition.
        let own = match keeps_limits {
            true => self.agent_limits(caller, &agent).await?,
            false => AgentLimits::default(),
        };
        let wanted = Wanted {
            limits: RunLimits { max_depth: request.max_depth, ..request.options.limits }.of_agent(own),
            parent_agent: parent_limits,
            counts_steps: keeps_limits,
        };
        let share = self.shared.reserve_share(parent, child_run, &adapter, wanted).await?;
        let child = RunRequest {
            session: SessionTarget { new, ..request.session.clone() },
            prompt: vec![Block::text(request.prompt())],
            adapter: request.adapter.clone(),
            mode: request.run_mode,
            options: RunOptions {
                limits: share.limits,
                // A child without a folder of its own works in the folder of its parent.
                cwd: request.options.cwd.clone().or_else(|| match own_cwd {
                    None => bounds.folders.iter().flatten().next().cloned(),
                    Some(_) => None,
                }),
                folders: bounds.folders.clone(),
                sandbox: bounds.sandbox,
                bounds: bounds.rules.clone(),
                sandbox_reach: bounds.reach.clone(),
                key: bounds.key.clone(),
                ..request.options.clone()
            },
            policy: Policy::Enqueue,
            name: request.name.clone(),
            ..RunRequest::default()
        };
        if !is_elsewhere {
            self.check_request(caller, &child)?;
        }
        Ok((child, share))
    }

    /// The upper bound of what the agents of a run and of its children may do.
    async fn bounds_of(&self, caller: &Caller, run: &Run, session: &Session) -> Result<Bounds, Error> {
        let attempt = self.shared.store.attempts(run.id).await?.intact()?.pop();
        let adapter = attempt.as_ref().map_or(&run.adapter, |attempt| &attempt.adapter);
        let confined = attempt.as_ref().and_then(|attempt| attempt.sandbox.as_ref());
        let own = &run.options;
        let profile =
            confined.map(|sandbox| sandbox.profile).filter(|profile| *profile != SandboxProfile::Off);
        let sandbox = match (profile, own.sandbox) {
            (Some(profile), Some(inherited)) => Some(profile.stricter(inherited)),
            (profile, inherited) => profile.or(inherited),
        };
        let folder = confined.and_then(|sandbox| sandbox.folder.clone());
        let reach = confined.and_then(|sandbox| sandbox.reach.clone()).map(|mut reach| {
            // The working folder of the parent is in the reach of its children, too.
            reach.writable.extend(folder.clone());
            reach
        });
        let layers = self.shared.layers(session, run, adapter);
        let definition = self.definition_rules(caller, run.agent_definition(session)).await?;
        let mut otherwise = self.shared.adapter(adapter)?.otherwise();
        if otherwise == Permissions::Legacy.as_rules() && !self.is_granted_everything(run).await? {
            // The grant was revoked, or the run is limited by its own parent: its children must ask.
            otherwise = Permissions::Ask.as_rules();
        }
        Ok(Bounds {
            folders: folder.map(|folder| vec![folder]).or_else(|| own.folders.clone()),
            sandbox,
            reach: reach.or_else(|| own.sandbox_reach.clone()),
            rules: layers.of_children(definition, &otherwise),
            key: own.key.clone(),
        })
    }

    /// True while the run's grant of everything, which the permissions `legacy` give, is in force.
    async fn is_granted_everything(&self, run: &Run) -> Result<bool, Error> {
        let grants = self.shared.grants_in_force(run.session, run.id).await?;
        Ok(grants.iter().any(|grant| {
            grant.run == Some(run.id)
                && grant.effect == GrantEffect::Allow
                && grant.source == GrantSource::LegacyDefault
        }))
    }

    /// The rules of an agent definition about its tools.
    async fn definition_rules(&self, caller: &Caller, agent: &str) -> Result<Vec<Rule>, Error> {
        let Ok(name) = agent.parse::<AgentName>() else { return Ok(vec![]) };
        match self.agent_get(caller, &name).await {
            Ok(agent) => Ok(definition_rules(&agent.definition.deny, &agent.definition.approve)),
            Err(Error::NotFound { .. }) => Ok(vec![]),
            Err(error) => Err(error),
        }
    }

    /// The limits of an agent definition; none if there is no such definition.
    async fn agent_limits(&self, caller: &Caller, name: &str) -> Result<AgentLimits, Error> {
        let Ok(name) = name.parse::<AgentName>() else { return Ok(AgentLimits::default()) };
        match self.agent_get(caller, &name).await {
            Ok(agent) => {
                let is_ceiling = agent.scope == AgentScope::Shared;
                Ok(AgentLimits { limits: agent.definition.limits, is_ceiling })
            }
            Err(Error::NotFound { .. }) => Ok(AgentLimits::default()),
            Err(error) => Err(error),
        }
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
        match self.run_readable(caller, delegation.parent_run).await {
            Ok(_) => {}
            // The message must not reveal the run of another owner.
            Err(Error::NotFound { .. }) => return Err(not_found()),
            Err(error) => return Err(error),
        }
        let result = match delegation.status.is_settled() {
            true => self.shared.delegation_result(&delegation).await?,
            false => None,
        };
        Ok((delegation, result))
    }
}

/// The session of a new child. Settings that the delegation does not give are those of the parent.
fn child_session(
    parent: &Run,
    parent_session: &Session,
    parent_agent: &str,
    given: &NewSession,
) -> NewSession {
    let cwd = given.cwd.as_ref().or(parent.options.cwd.as_ref()).or(parent_session.cwd.as_ref());
    let added = given.rules.iter().filter(|rule| !parent_session.rules.contains(rule));
    NewSession {
        surface_kind: Some(given.surface_kind.clone().unwrap_or_else(|| DELEGATED_SURFACE_KIND.into())),
        adapter: Some(given.adapter.as_ref().unwrap_or(&parent.adapter).clone()),
        cwd: cwd.cloned(),
        agent_definition: given.agent_definition.clone().or_else(|| Some(parent_agent.to_owned())),
        // Later runs of the child's session also obey the rules of the parent's session.
        rules: parent_session.rules.iter().chain(added).cloned().collect(),
        // Parent and child need the same labels, so that both find the same new home if their server ends.
        labels: merged_labels(&parent_session.labels, &given.labels),
        ..given.clone()
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

    /// Refuses an awaited child that would queue for a worker of a full adapter: the runs that hold the workers may be
    /// waiting for the child.
    pub(crate) fn check_free_worker(&self, adapter: &str) -> Result<(), Error> {
        match self.options.adapter_workers.get(adapter).filter(|_| self.scheduler.is_full(adapter)) {
            Some(limit) => Err(Error::AdapterFull { adapter: adapter.to_owned(), limit: *limit }),
            None => Ok(()),
        }
    }
}
