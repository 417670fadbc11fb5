//! The handle through which an adapter acts on the attempt it executes.

use std::pin::pin;
use std::sync::Arc;

use mainspring_core::{
    Answer, Approval, AttemptId, Binding, BindingStatus, Delegation, DelegationId, DelegationResult,
    Fidelity, Grant, GrantId, Message, Route, Time, Usage,
};
use serde_json::Value;
use tokio::sync::{Mutex, oneshot, watch};
use tokio_util::sync::CancellationToken;

use self::path::Known;
use super::{Answered, Ask, Assignment, EarlierCalls, HandleError, Record};
use crate::actor::{self, Command, MAX_BINDINGS_READ, Progress, Report};
use crate::clock::{Clock, Moment};
use crate::error::Error;
use crate::feed::Feed;
use crate::ids::Ids;
use crate::kernel::{
    AgentCaller, AgentToken, Caller, Delegated, DelegationRequest, HostCallError, Kernel, KernelPlane,
    NewHostCall, Shared,
};
use crate::store::{DelegationsOf, SessionRef, Store};

mod data;
mod path;

/// Authority over one attempt: to stream, record and read.
#[derive(Clone)]
pub struct AttemptHandle {
    assignment: Arc<Assignment>,
    parts: HandleParts,
    known: Arc<Mutex<Known>>,
    /// Cancelled once people are no longer asked.
    asking_ended: Option<CancellationToken>,
}

/// The parts of the kernel that a handle uses.
#[derive(Clone)]
pub(crate) struct HandleParts {
    pub(crate) feed: Arc<Feed>,
    pub(crate) actor: actor::Sender,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) ids: Ids,
    pub(crate) clock: Clock,
    pub(crate) steered: watch::Receiver<bool>,
    pub(crate) progress: Arc<Progress>,
}

/// Reply to a call of a handle.
pub(crate) type HandleReply<T> = oneshot::Sender<Result<T, HandleError>>;

/// Reply to an execution that waits for an answer.
pub(crate) struct AskReply {
    pub(crate) reply: HandleReply<Answer>,
    /// True if the execution continues without an answer when the question expires.
    pub(crate) lapses: bool,
    /// Cancelled once the execution continues without an answer.
    pub(crate) ended: Option<CancellationToken>,
}

impl AskReply {
    /// True once the execution continues without an answer.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.as_ref().is_some_and(CancellationToken::is_cancelled)
    }
}

impl AttemptHandle {
    pub(crate) fn new(assignment: Assignment, parts: HandleParts) -> Self {
        Self { assignment: Arc::new(assignment), parts, known: Arc::default(), asking_ended: None }
    }

    /// The attempt's id.
    pub fn id(&self) -> AttemptId {
        self.assignment.attempt.id
    }

    /// The attempt's input: session, run, prompt.
    pub fn assignment(&self) -> &Assignment {
        &self.assignment
    }

    /// Makes a token for a process that is started for this attempt. Calls with the token are refused until it is attached.
    pub fn new_agent_token(&self) -> AgentToken {
        AgentToken::new(self.parts.shared.agent_tokens.clone(), &self.parts.ids)
    }

    /// Makes `token` act for this attempt.
    pub fn attach_token(&self, token: &AgentToken) {
        token.set_caller(Some(self.caller()));
    }

    /// The answer the attempt waited for; none at its first execution.
    pub fn answer(&self) -> Option<&Answered> {
        self.assignment.answer.as_ref()
    }

    /// Resolves once the attempt must stop.
    pub async fn cancelled(&self) {
        self.assignment.cancel.cancelled().await;
    }

    /// True once the attempt must stop.
    pub fn is_cancelled(&self) -> bool {
        self.assignment.cancel.is_cancelled()
    }

    /// Streams text of block `block` of the agent's message. Never waits for the disk.
    pub fn delta(&self, block: u32, text: &str) -> Result<(), HandleError> {
        Ok(self.parts.feed.delta(self.id(), block, text, || self.parts.ids.message())?)
    }

    /// Sends a thought to the present subscribers. It is never stored.
    pub fn thought(&self, text: &str) -> Result<(), HandleError> {
        Ok(self.parts.feed.thought(self.id(), text)?)
    }

    /// Makes `records` durable atomically before it returns.
    pub async fn record(&self, records: Vec<Record>) -> Result<(), HandleError> {
        let by = self.id();
        self.call(|reply| Report::Record { by, records, reply }).await
    }

    /// Makes `records` durable in the commit that ends the attempt, which saves a commit. If the execution waits instead of
    /// ending, the records are discarded. Returns without waiting for the session's actor, which ignores the records if the
    /// attempt has lost its authority.
    pub async fn record_at_end(&self, records: Vec<Record>) -> Result<(), HandleError> {
        actor::check_size(&records, self.parts.shared.options.limits.message_bytes)?;
        let report = Report::RecordAtEnd { by: self.id(), records };
        // If the actor has ended, so has the attempt's authority.
        self.parts.actor.send(report.into()).map_err(|_| HandleError::Revoked)
    }

    /// True while a prompt waits to join the run. Always false if the adapter does not support steering.
    pub fn is_steered(&self) -> bool {
        *self.parts.steered.borrow()
    }

    /// Resolves once a prompt waits to join the run.
    pub async fn steered(&self) {
        let mut steered = self.parts.steered.clone();
        // Without a sender the attempt has ended and cannot be steered.
        if steered.wait_for(|steered| *steered).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Makes `records` durable, and in the same commit adds the waiting prompts to the run. Returns those prompts: the agent
    /// continues with them.
    pub async fn steer(&self, records: Vec<Record>) -> Result<Vec<Arc<Message>>, HandleError> {
        let by = self.id();
        self.call(|reply| Report::Steer { by, records, reply }).await
    }

    /// Asks a person and waits within the execution. The wait does not survive the process; an adapter whose state can be
    /// stored returns [`super::Executed::Waiting`] instead.
    pub async fn ask(&self, ask: Ask) -> Result<Answer, HandleError> {
        self.answered(ask, false).await
    }

    /// Asks like [`AttemptHandle::ask`]. When the question expires it is withdrawn, and the attempt continues without an
    /// answer.
    pub async fn ask_until(&self, ask: Ask) -> Result<Option<Answer>, HandleError> {
        Ok(match self.answered(ask, true).await? {
            Answer::Approval(answer) if answer.decision == Approval::Expired => None,
            Answer::Input { input: Value::Null } => None,
            answer => Some(answer),
        })
    }

    /// Returns a handle of the same attempt that asks people only until `end` is cancelled. From then on, its
    /// open question and each new one expire at once; a question that is queued behind another one fails with
    /// [`HandleError::Revoked`].
    pub fn asking_until(&self, end: CancellationToken) -> Self {
        Self { asking_ended: Some(end), ..self.clone() }
    }

    /// False once the token of [`AttemptHandle::asking_until`] is cancelled.
    pub fn may_ask(&self) -> bool {
        self.asking_ended.as_ref().is_none_or(|ended| !ended.is_cancelled())
    }

    async fn answered(&self, ask: Ask, lapses: bool) -> Result<Answer, HandleError> {
        let by = self.id();
        let Some(end) = self.asking_ended.clone() else {
            let holder = |reply| AskReply { reply, lapses, ended: None };
            return self.call(|reply| Report::Ask { by, ask, holder: holder(reply) }).await;
        };
        let ended = Some(end.clone());
        let mut answer =
            pin!(self.call(|reply| Report::Ask { by, ask, holder: AskReply { reply, lapses, ended } }));
        tokio::select! {
            biased;
            answer = &mut answer => return answer,
            () = end.cancelled() => {}
        }
        // If the actor has stopped, the call fails.
        let _ = self.parts.actor.send(Report::EndAsking { by }.into());
        answer.await
    }

    /// Finds a native session that can be forked for this run, so that the path need not be sent to a new
    /// one. It has the same adapter, folder and instructions, and its last message is the message above the
    /// run's prompt. It belongs to an earlier binding of the session, or to a binding of the session this one
    /// was forked from.
    ///
    /// The binding's own session may use the native session at any time: call this again once the native session is
    /// locked for the fork.
    pub async fn origin(&self) -> Result<Option<Binding>, HandleError> {
        let Assignment { session, run, prompt, .. } = &*self.assignment;
        let path = self.path(2).await?;
        let [above, last] = path.as_slice() else { return Ok(None) };
        if last.id != prompt.id {
            return Ok(None);
        }
        let matches = |binding: &Binding| {
            binding.last_message == Some(above.id)
                && binding.native.is_some()
                && binding.fidelity == Fidelity::Native
                && binding.status != BindingStatus::Invalid
                && binding.cwd == run.options.cwd
                && binding.system_prompt_hash == run.system_prompt_hash
        };
        let store = &self.parts.store;
        for of in [session.id, above.session] {
            let found = store.session_find(&session.owner, &SessionRef::Id(of)).await.map_err(Error::from)?;
            if found.is_none_or(|found| found.owner != session.owner) {
                continue;
            }
            let bindings =
                store.bindings(of, Some(&run.adapter), None, MAX_BINDINGS_READ).await.map_err(Error::from)?;
            if let Some(found) = bindings.into_iter().find(matches) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Draws an id for a grant.
    pub fn new_grant(&self) -> GrantId {
        self.parts.ids.grant()
    }

    /// Delegates work of the run. Requests under the same name create one child.
    pub async fn delegate(&self, request: DelegationRequest) -> Result<Delegated, HandleError> {
        let (kernel, caller) = self.kernel_and_caller()?;
        // Boxed, since an actor that is started here may delegate in turn.
        Ok(Box::pin(kernel.run_delegate(&caller, self.assignment.run.id, request)).await?)
    }

    /// Delegates several pieces of work of the run at the same time; a refusal leaves no child
    /// ([`Kernel::run_delegate_all`](crate::Kernel::run_delegate_all)).
    pub async fn delegate_all(
        &self,
        requests: Vec<DelegationRequest>,
    ) -> Result<Vec<Delegated>, HandleError> {
        let (kernel, caller) = self.kernel_and_caller()?;
        Ok(Box::pin(kernel.run_delegate_all(&caller, self.assignment.run.id, requests)).await?)
    }

    /// True if the run is the work of a member of its parent's network. Reads the store only for a run that is tried again
    /// after its delegation was settled.
    pub async fn is_network_member(&self) -> Result<bool, HandleError> {
        let Assignment { run, delegation, .. } = &*self.assignment;
        let is_member = |delegation: &Delegation| delegation.request.member().is_some();
        match (delegation, run.parent) {
            (Some(delegation), _) => Ok(is_member(delegation)),
            (None, None) => Ok(false),
            (None, Some(_)) => {
                let of = DelegationsOf::Child(run.id);
                let found = self.parts.store.delegations(&of).await.map_err(Error::from)?;
                Ok(found.first().is_some_and(is_member))
            }
        }
    }

    /// The operations of the control tools, on behalf of the session's owner.
    pub fn control(&self) -> Result<KernelPlane, HandleError> {
        // Control tools use the actors of other sessions, which cannot check the authority of this attempt.
        self.head()?;
        let (kernel, caller) = self.kernel_and_caller()?;
        Ok(KernelPlane::new(kernel, caller))
    }

    /// The operations of the control tools, for a call that the adapter has approved: if a rule requires it, a person has
    /// allowed the call ([`crate::policy::Rules::control_verdict`]).
    pub fn control_of_approved_call(&self) -> Result<KernelPlane, HandleError> {
        self.head()?;
        let (kernel, caller) = self.kernel_and_caller()?;
        let agent = caller.agent.map(|agent| AgentCaller { is_call_approved: true, ..agent });
        Ok(KernelPlane::new(kernel, Caller { agent, ..caller }))
    }

    fn kernel_and_caller(&self) -> Result<(Kernel, Caller), Error> {
        Ok((self.parts.shared.kernel().ok_or(Error::ShuttingDown)?, self.caller()))
    }

    /// The agent of this attempt as a caller.
    fn caller(&self) -> Caller {
        let (session, run) = (&self.assignment.session, &self.assignment.run);
        Caller {
            org: session.org.clone(),
            folders: run.options.folders.clone(),
            lists: run.options.key.clone(),
            agent: Some(AgentCaller {
                session: session.id,
                run: run.id,
                attempt: self.id(),
                is_call_approved: false,
            }),
            ..Caller::new(&session.owner)
        }
    }

    /// Asks the host of the run to run a tool, and waits for its result. `call_id` is the agent's name for the call.
    pub async fn call_host(&self, call_id: &str, name: &str, input: Value) -> Result<Value, HostCallError> {
        let call =
            NewHostCall { call_id: call_id.to_owned(), name: name.to_owned(), input, attempt: self.id() };
        self.parts.shared.call_host(&self.assignment.run, call).await
    }

    /// Waits until a delegation is settled, and returns its result; none if the child was deleted.
    pub async fn settled(
        &self,
        delegation: DelegationId,
    ) -> Result<(Delegation, Option<DelegationResult>), HandleError> {
        let settled = self.call(|reply| Report::DelegationWait { delegation, reply }).await?;
        let result = self.parts.shared.delegation_result(&settled).await?;
        Ok((settled, result))
    }

    /// The grants of the run that delegated this one; none if this run was not delegated.
    pub(crate) async fn parent_grants(&self) -> Result<Option<Vec<Grant>>, HandleError> {
        let Some(parent) = self.assignment.run.parent else { return Ok(None) };
        let store = &self.parts.store;
        // The grants of a deleted parent are unknown: assume none.
        let parent = store.run_get(parent).await.map_err(Error::from)?;
        let Some(parent) = parent else { return Ok(Some(vec![])) };
        Ok(Some(self.parts.shared.grants_in_force(parent.session, parent.id).await?))
    }

    /// The grants that hold for this run now.
    pub(crate) async fn grants_in_force(&self) -> Result<Vec<Grant>, HandleError> {
        let (session, run) = (self.assignment.session.id, self.assignment.run.id);
        Ok(self.parts.shared.grants_in_force(session, run).await?)
    }

    /// The grants of this run and of its session, also those that were revoked or have expired.
    pub(crate) async fn all_grants(&self) -> Result<Vec<Grant>, HandleError> {
        let (session, run) = (self.assignment.session.id, self.assignment.run.id);
        Ok(self.parts.store.grants(session, run).await.map_err(Error::from)?)
    }

    /// True if a grant is neither revoked nor expired, and neither is any grant of a parent that it depends on.
    pub(crate) async fn is_in_force(&self, grant: &Grant) -> Result<bool, HandleError> {
        let now = self.now();
        Ok(grant.holds_at(now) && self.parts.shared.are_parents_in_force(grant, now).await?)
    }

    /// Usage of the run's delegated children, including the amounts that unfinished children may still use.
    pub async fn spent_by_children(&self) -> Result<Usage, HandleError> {
        let (session, run) = (self.assignment.session.id, self.assignment.run.id);
        Ok(self.parts.shared.spent_by_children(session, run).await?)
    }

    /// The tool calls of the run so far, read from its events.
    pub async fn earlier_calls(&self) -> Result<EarlierCalls, HandleError> {
        let (session, run) = (self.assignment.session.id, self.assignment.run.id);
        Ok(self.parts.shared.earlier_calls(session, run).await?)
    }

    /// The decisions of the run's router so far, of all attempts.
    pub async fn routes(&self) -> Result<Vec<Route>, HandleError> {
        let (session, run) = (self.assignment.session.id, self.assignment.run.id);
        let routes = self.parts.shared.routes(session, run).await?;
        Ok(routes.into_iter().map(|(_, route)| route).collect())
    }

    /// The delegations that the run has made.
    pub async fn delegations(&self) -> Result<Vec<Delegation>, HandleError> {
        let of = DelegationsOf::Parent(self.assignment.session.id, self.assignment.run.id);
        Ok(self.parts.store.delegations(&of).await.map_err(Error::from)?)
    }

    /// True if the session has no title and should get one after a completed turn.
    pub fn wants_title(&self) -> bool {
        self.parts.shared.options.auto_title && self.assignment.session.title_source.is_none()
    }

    /// Sets the session's title from the future `title`, in the background and also after the attempt has ended, unless a
    /// person has set one by then. The future's usage is recorded for the session.
    pub fn title_later(&self, title: impl Future<Output = (Option<String>, Usage)> + Send + 'static) {
        let (shared, session) = (self.parts.shared.clone(), self.assignment.session.id);
        self.parts.shared.tasks.spawn(async move {
            let (title, used) = tokio::select! {
                () = shared.tasks.stopping() => return,
                titled = title => titled,
            };
            let titled = |reply| Command::Title(title, used, reply);
            if let Err(error) = shared.call(session, titled).await {
                tracing::warn!(%error, %session, "cannot set the title of the session");
            }
        });
    }

    /// The present time.
    pub fn now(&self) -> Time {
        self.parts.clock.now()
    }

    /// The present moment, to measure how long something takes.
    pub fn moment(&self) -> Moment {
        self.parts.clock.moment()
    }

    /// Waits for `millis` milliseconds from this call on.
    pub fn sleep_for(&self, millis: u64) -> impl Future<Output = ()> + Send + use<> {
        self.parts.clock.sleep_for(millis)
    }

    async fn call<T>(&self, report: impl FnOnce(HandleReply<T>) -> Report) -> Result<T, HandleError> {
        let (reply, answer) = oneshot::channel();
        // If the actor has ended, so has the attempt's authority.
        self.parts.actor.send(report(reply).into()).map_err(|_| HandleError::Revoked)?;
        answer.await.unwrap_or(Err(HandleError::Revoked))
    }
}
