//! Delegation: a run hands work to a session of its own, and learns what came of it.
//!
//! The child's session, its run and the delegation become durable in one commit, the child's; the parent's session is
//! told through its inbox (`actor/inbox.rs`). So a delegation that was refused has left nothing, and one that was
//! accepted is never lost.

use std::collections::{HashSet, VecDeque};

use mainspring_core::{
    Approval, Block, Body, Cost, Cursor, Delegation, DelegationId, DelegationMode, DelegationResult,
    DelegationStatus, DoneEffect, Mode, Policy, Refusal, RequestName, Run, RunId, RunLimits, RunOptions,
    RunStatus, Session, SessionId, Usage, WaitId,
};
use serde::Serialize;
use serde_json::Value;

use super::requests::in_order;
use super::runs::check_size;
use super::{Caller, Kernel, NewSession, RunRequest, SessionTarget, Shared, idempotency};
use crate::error::Error;
use crate::store::{ArtifactPage, DelegationsOf, SessionRef};

/// How deep delegation goes if nothing is said: a child of a child of a child.
const DEPTH: u32 = 3;
/// How deep it goes at most.
pub const DEPTH_MOST: u32 = 5;
/// Characters of context that a child is handed at most.
pub const CONTEXT_CHARS: usize = 4_000;
/// Characters of a child's answer that its parent is handed; the rest is in the child's session.
const SUMMARY_CHARS: usize = 8_000;
/// Tool calls, questions and artifacts that a result names.
const NAMED: usize = 100;
/// The kind of surface of a session that was made for delegated work.
const SURFACE: &str = "delegated_agent";

/// Work to delegate.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Delegate {
    /// How.
    pub mode: DelegationMode,
    /// What is to be achieved.
    pub objective: String,
    /// What the child needs to know for that; it sees nothing else of its parent.
    pub context: Option<String>,
    /// For [`DelegationMode::Continue`] the child's session, by its id; else what a new one is like. The adapter, the
    /// folder and the agent of a new one are the parent's if not given.
    pub session: SessionTarget,
    /// The adapter; the session's if not given.
    pub adapter: Option<String>,
    /// Whether the child may act; never more than its parent, and only answer if not given.
    pub run_mode: Mode,
    /// All else it needs. How much it may use is never more than its parent has left.
    pub options: RunOptions,
    /// How deep delegation may go, the child counted.
    pub max_depth: Option<u32>,
    /// The caller's names for it: the same names again give the same delegation.
    #[serde(skip)]
    pub name: RequestName,
}

impl Delegate {
    /// Work for a new session.
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

    /// The same, with its maps in order, so that its hash is that of what it says.
    fn in_order(&self) -> Self {
        let mut ordered = Self { session: self.session.in_order(), ..self.clone() };
        ordered.options.model_options = in_order(&self.options.model_options);
        ordered.options.output_schema.iter_mut().for_each(Value::sort_all_objects);
        ordered
    }

    /// What the child is told.
    fn prompt(&self) -> String {
        match self.context.as_deref().map(str::trim).filter(|context| !context.is_empty()) {
            Some(context) => format!("{}\n\nContext:\n{context}", self.objective),
            None => self.objective.clone(),
        }
    }
}

/// Work that was delegated.
#[derive(Debug, Clone, PartialEq)]
pub struct Delegated {
    /// The tie.
    pub delegation: Delegation,
    /// The child's session.
    pub session: Session,
    /// The child.
    pub run: Run,
    /// True when it existed already: this request was sent before.
    pub replayed: bool,
}

/// The delegations around a run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Kin {
    /// The one that made it.
    pub parent: Option<Delegation>,
    /// Those that it has made, the oldest first.
    pub children: Vec<Delegation>,
}

impl Kernel {
    /// Delegates work of the run `parent`, which must be at work: exactly one child for it, however often it is sent
    /// under the same name.
    pub async fn run_delegate(
        &self,
        caller: &Caller,
        parent: RunId,
        delegate: Delegate,
    ) -> Result<Delegated, Error> {
        let run = self.run_get(caller, parent).await?;
        caller.check_changes_run(&run)?;
        self.check_delegate(&delegate)?;
        let fingerprint = idempotency::fingerprint(&(parent, &delegate.in_order()));
        let request = RunRequest { name: delegate.name.clone(), ..RunRequest::default() };
        // Before all that may have changed since: what was accepted is answered as before.
        if let Some(accepted) = self.run_replayed(caller, &request, fingerprint).await? {
            return self.delegated(accepted.run.id, accepted.session, accepted.run, true).await;
        }
        let request = self.delegated_request(caller, &run, &delegate).await?;
        let delegation = Delegation {
            id: self.shared.ids.delegation(),
            parent_session: run.session,
            parent_run: parent,
            // Known once there is one; its own actor writes it down.
            child_session: run.session,
            child_run: self.shared.ids.run(),
            mode: delegate.mode,
            status: DelegationStatus::Pending,
            objective: delegate.objective.clone(),
            result: None,
            created_at: self.shared.clock.now(),
            completed_at: None,
        };
        // Two that would wait for each other must not both find that neither waits yet.
        let _one = self.shared.delegating.lock().await;
        if let Some(child) = self.session_named(caller, &request.session).await? {
            self.check_cycle(&run, child.id, delegate.mode).await?;
        }
        if delegate.mode.is_awaited() {
            let adapter = request.adapter.as_ref().or(request.session.new.adapter.as_ref());
            self.shared.check_room_to_wait(adapter.unwrap_or(&run.adapter))?;
        }
        let made = self.run_made(caller, &request, fingerprint, Some(&delegation)).await?;
        self.delegated(made.run.id, made.session, made.run, made.replayed).await
    }

    async fn delegated(
        &self,
        child: RunId,
        session: Session,
        run: Run,
        replayed: bool,
    ) -> Result<Delegated, Error> {
        let found = self.shared.store.delegations(&DelegationsOf::Child(child)).await?.pop();
        let delegation = found.ok_or_else(|| Error::RequestConflict {
            name: format!("the name of {child}, which nobody delegated,"),
        })?;
        Ok(Delegated { delegation, session, run, replayed })
    }

    fn check_delegate(&self, delegate: &Delegate) -> Result<(), Error> {
        let limits = &self.shared.options.limits;
        if delegate.objective.trim().is_empty() {
            return Err(Error::Invalid("an objective must not be empty: say what is to be achieved".into()));
        }
        check_size("the objective", delegate.objective.len(), limits.prompt_bytes)?;
        let context = delegate.context.as_ref().map_or(0, |context| context.chars().count());
        if context > CONTEXT_CHARS {
            return Err(Error::Invalid(format!(
                "the context has {context} characters; at most {CONTEXT_CHARS} are handed on. Hand over artifacts instead"
            )));
        }
        if delegate.max_depth.is_some_and(|depth| !(1..=DEPTH_MOST).contains(&depth)) {
            return Err(Error::Invalid(format!("a depth is from 1 to {DEPTH_MOST}")));
        }
        match (delegate.mode, delegate.session.id) {
            (DelegationMode::Continue, None) => {
                Err(Error::Invalid("to continue, name the child's session by its id".into()))
            }
            (DelegationMode::Call | DelegationMode::Spawn, Some(_)) => Err(Error::Invalid(
                "call and spawn make a session: to give one that exists more to do, use continue".into(),
            )),
            _ => Ok(()),
        }
    }

    /// The prompt that the child gets: what its parent may give, and no more.
    async fn delegated_request(
        &self,
        caller: &Caller,
        parent: &Run,
        delegate: &Delegate,
    ) -> Result<RunRequest, Error> {
        let status = parent.state.status();
        if status.is_ended() || parent.merged_into.is_some() {
            return Err(parent.not_live().into());
        }
        if parent.state.holder().is_none() || status == RunStatus::Cancelling {
            return Err(Refusal::WrongState { what: "run that would delegate", status: status.name() }.into());
        }
        let depth = self.shared.depth(parent).await? + 1;
        let most = delegate.max_depth.unwrap_or(DEPTH);
        if depth > most {
            return Err(Error::TooDeep { depth, limit: most });
        }
        let mode = delegate.run_mode;
        if mode == Mode::Act && parent.mode == Mode::Ask {
            return Err(Error::Forbidden(
                "a run that may only answer cannot let another act: delegate with the mode ask".into(),
            ));
        }
        let home = self.session_get(caller, &SessionRef::Id(parent.session)).await?;
        let given = &delegate.session.new;
        let new = NewSession {
            surface_kind: Some(given.surface_kind.clone().unwrap_or_else(|| SURFACE.into())),
            adapter: Some(given.adapter.as_ref().unwrap_or(&parent.adapter).clone()),
            cwd: given.cwd.clone().or(parent.options.cwd.clone()).or(home.cwd),
            agent_definition: given.agent_definition.clone().or(Some(home.agent_definition)),
            ..given.clone()
        };
        let limits = self.shared.share(parent, delegate.options.limits).await?;
        let request = RunRequest {
            session: SessionTarget { new, ..delegate.session.clone() },
            prompt: vec![Block::text(delegate.prompt())],
            adapter: delegate.adapter.clone(),
            mode,
            options: RunOptions { limits, ..delegate.options.clone() },
            policy: Policy::Enqueue,
            name: delegate.name.clone(),
            ..RunRequest::default()
        };
        self.check_request(caller, &request)?;
        Ok(request)
    }

    /// Refuses a wait that would never end: for a session that waits, however indirectly, for the one that would wait.
    async fn check_cycle(&self, parent: &Run, child: SessionId, mode: DelegationMode) -> Result<(), Error> {
        if child == parent.session {
            return Err(Error::WouldDeadlock(child));
        }
        if !mode.is_awaited() {
            return Ok(());
        }
        let (mut seen, mut next) = (HashSet::from([child]), VecDeque::from([child]));
        while let Some(session) = next.pop_front() {
            let Some(loaded) = self.shared.store.session_load(session).await? else { continue };
            let waits = |delegation: &&Delegation| {
                delegation.parent_session == session && delegation.mode.is_awaited()
            };
            for delegation in loaded.delegations.iter().filter(waits) {
                if delegation.child_session == parent.session {
                    return Err(Error::WouldDeadlock(child));
                }
                if seen.insert(delegation.child_session) {
                    next.push_back(delegation.child_session);
                }
            }
        }
        Ok(())
    }

    /// The delegations around a run.
    pub async fn run_delegations(&self, caller: &Caller, run: RunId) -> Result<Kin, Error> {
        let run = self.run_get(caller, run).await?;
        let store = &self.shared.store;
        let parent = match run.parent {
            Some(_) => store.delegations(&DelegationsOf::Child(run.id)).await?.pop(),
            None => None,
        };
        Ok(Kin { parent, children: store.delegations(&DelegationsOf::Parent(run.session, run.id)).await? })
    }

    /// One delegation, and what came of it if it is settled.
    pub async fn delegation_get(
        &self,
        caller: &Caller,
        id: DelegationId,
    ) -> Result<(Delegation, Option<DelegationResult>), Error> {
        let not_found = || Error::not_found("delegation", id);
        let delegation =
            self.shared.store.delegations(&DelegationsOf::Id(id)).await?.pop().ok_or_else(not_found)?;
        // Who may see the run that delegated may see what it has delegated.
        self.run_get(caller, delegation.parent_run).await.map_err(|_| not_found())?;
        let result = match delegation.status.is_settled() {
            true => self.shared.result_of(&delegation).await?,
            false => None,
        };
        Ok((delegation, result))
    }
}

impl Shared {
    /// How many have delegated to each other until `run` was made.
    async fn depth(&self, run: &Run) -> Result<u32, Error> {
        let (mut depth, mut above) = (0, run.parent);
        while let Some(parent) = above {
            depth += 1;
            // What was deleted meanwhile still counts.
            above = self.store.run_get(parent).await?.and_then(|run| run.parent);
        }
        Ok(depth)
    }

    /// What of `wanted` a child of `parent` may use: at most what its parent has left.
    async fn share(&self, parent: &Run, wanted: RunLimits) -> Result<RunLimits, Error> {
        let limits = parent.options.limits;
        let (max_tokens, max_cost) = match &parent.budget {
            Some(budget) => (budget.max_tokens.or(limits.max_tokens), budget.max_cost.or(limits.max_cost)),
            None => (limits.max_tokens, limits.max_cost),
        };
        let since = parent.started_at.unwrap_or(parent.created_at);
        let ends =
            parent.budget.and_then(|budget| budget.ends_at).or(limits.max_time.map(|max| since.plus(max)));
        if max_tokens.is_none() && max_cost.is_none() && ends.is_none() {
            return Ok(wanted);
        }
        let used = parent.usage + self.spent_by_children(parent.session, parent.id).await?;
        let tokens = max_tokens.map(|max| max.saturating_sub(used.tokens()));
        let cost = max_cost.map(|max| Cost(max.0.saturating_sub(used.cost.0)));
        let time = ends.map(|ends| ends.since(self.clock.now()));
        let none = tokens == Some(0) || cost == Some(Cost(0)) || time == Some(0);
        if none {
            return Err(Error::Invalid(
                "the run that would delegate has used up its own limits, or given them to others: wait for those".into(),
            ));
        }
        Ok(RunLimits {
            max_tokens: least(wanted.max_tokens, tokens),
            max_cost: least(wanted.max_cost, cost),
            max_time: least(wanted.max_time, time),
            ..wanted
        })
    }

    /// What the children of a run have used, and what those that have not ended may still use.
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

    /// A child that is waited for is refused rather than queued where it might wait for those who wait for it.
    fn check_room_to_wait(&self, adapter: &str) -> Result<(), Error> {
        match self.options.adapter_workers.get(adapter).filter(|_| self.scheduler.is_full(adapter)) {
            Some(limit) => Err(Error::AdapterFull { adapter: adapter.to_owned(), limit: *limit }),
            None => Ok(()),
        }
    }

    /// What came of delegated work; none if its run was deleted.
    pub(crate) async fn result_of(&self, delegation: &Delegation) -> Result<Option<DelegationResult>, Error> {
        let Some(run) = self.store.run_get(delegation.child_run).await? else { return Ok(None) };
        let session = delegation.child_session;
        let said = match run.final_message {
            Some(message) => self.store.message_get(session, message).await?,
            None => None,
        };
        let said = said.map(|(placed, _)| placed.message.text()).unwrap_or_default();
        let summary: String = said.chars().take(SUMMARY_CHARS).collect();
        let page = ArtifactPage { session, run: Some(run.id), before: None, limit: NAMED };
        let mut result = DelegationResult {
            status: run.state.status(),
            truncated: summary.len() < said.len(),
            summary,
            artifacts: self.store.artifact_page(&page).await?,
            verified_effects: vec![],
            open_questions: vec![],
            error: run.state.error().cloned(),
            usage: run.usage,
        };
        let (mut after, mut asked) = (Cursor::START, vec![]);
        loop {
            let events = self.store.events_after(session, Some(run.id), after, 500).await?;
            let Some(last) = events.last() else { break };
            after = last.cursor;
            events.into_iter().for_each(|event| note(&mut result, &mut asked, event.body));
        }
        result.open_questions = asked.into_iter().map(|(_, question)| question).collect();
        Ok(Some(result))
    }
}

/// What an event of a child means for its result, and for the questions that nobody has answered.
fn note(result: &mut DelegationResult, asked: &mut Vec<(WaitId, String)>, body: Body) {
    match body {
        Body::ToolCompleted { tool_use_id, name } if result.verified_effects.len() < NAMED => {
            result.verified_effects.push(DoneEffect { tool_use_id, name });
        }
        Body::InputRequested { wait_id, question, .. }
        | Body::ApprovalRequested { wait_id, question, .. }
            if asked.len() < NAMED =>
        {
            asked.push((wait_id, question));
        }
        Body::InputProvided { wait_id, input: Some(_) } => asked.retain(|(open, _)| *open != wait_id),
        Body::ApprovalResolved { wait_id, decision: Approval::Allowed | Approval::Denied, .. } => {
            asked.retain(|(open, _)| *open != wait_id);
        }
        _ => {}
    }
}

fn least<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
