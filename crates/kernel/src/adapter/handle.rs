//! The handle: what an adapter may do with the one attempt it executes.

use std::sync::Arc;

use mainspring_core::{
    AgentDefinition, AgentName, Answer, Approval, Artifact, ArtifactId, AttemptId, Binding, BindingStatus,
    Block, Delegation, DelegationId, DelegationResult, Expect, Fidelity, Grant, GrantId, Message, Point,
    RunId, StateEntry, StateOutcome, StateScope, Step, Time, Usage,
};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{mpsc, oneshot, watch};

use super::{Answered, Ask, Assignment, Context, EarlierCalls, HandleError, Record};
use crate::actor::{BINDINGS, Command, Data, StateWrite};
use crate::blobs::BlobReader;
use crate::clock::Clock;
use crate::error::Error;
use crate::feed::Feed;
use crate::ids::Ids;
use crate::kernel::instructions_hash;
use crate::kernel::{Caller, Delegated, DelegationRequest, NewArtifact, Shared};
use crate::store::{ArtifactPage, SessionRef, StateAt, Store};

/// Authority over one attempt: streams, records and reads.
#[derive(Clone)]
pub struct AttemptHandle {
    assignment: Arc<Assignment>,
    parts: HandleParts,
}

/// What of the kernel a handle reaches.
#[derive(Clone)]
pub(crate) struct HandleParts {
    pub(crate) feed: Arc<Feed>,
    pub(crate) actor: mpsc::UnboundedSender<Command>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) ids: Ids,
    pub(crate) clock: Clock,
    pub(crate) steered: watch::Receiver<bool>,
}

/// What comes back from a recording.
pub(crate) type Recording<T> = oneshot::Sender<Result<T, HandleError>>;

/// An execution that waits for an answer.
pub(crate) struct Holder {
    pub(crate) reply: Recording<Answer>,
    /// It goes on when the time is up, with or without an answer.
    pub(crate) lapses: bool,
}

impl AttemptHandle {
    pub(crate) fn new(assignment: Assignment, parts: HandleParts) -> Self {
        Self { assignment: Arc::new(assignment), parts }
    }

    /// The attempt's id.
    pub fn id(&self) -> AttemptId {
        self.assignment.attempt.id
    }

    /// What it is about: session, run, prompt.
    pub fn assignment(&self) -> &Assignment {
        &self.assignment
    }

    /// What it waited for; none at its first execution.
    pub fn answer(&self) -> Option<&Answered> {
        self.assignment.answer.as_ref()
    }

    /// Resolves once the attempt shall stop.
    pub async fn cancelled(&self) {
        self.assignment.cancel.cancelled().await;
    }

    /// True once the attempt shall stop.
    pub fn is_cancelled(&self) -> bool {
        self.assignment.cancel.is_cancelled()
    }

    /// Streams text of the agent's message, as part of its block `block`. Never waits for the disk.
    pub fn delta(&self, block: u32, text: &str) -> Result<(), HandleError> {
        Ok(self.parts.feed.delta(self.id(), block, text, || self.parts.ids.message())?)
    }

    /// Shows a thought to whoever is subscribed. It is stored nowhere.
    pub fn thought(&self, text: &str) -> Result<(), HandleError> {
        Ok(self.parts.feed.thought(self.id(), text)?)
    }

    /// Makes `records` durable, all of them or none, before it returns.
    pub async fn record(&self, records: Vec<Record>) -> Result<(), HandleError> {
        let by = self.id();
        self.call(|reply| Command::Record { by, records, reply }).await
    }

    /// Makes `records` durable in the very commit that ends the attempt, so that they cost none of their own. An
    /// execution that waits instead takes them back.
    pub async fn record_at_end(&self, records: Vec<Record>) -> Result<(), HandleError> {
        let by = self.id();
        self.call(|reply| Command::RecordAtEnd { by, records, reply }).await
    }

    /// True while a prompt waits to join the run. Only adapters that support steering see any.
    pub fn is_steered(&self) -> bool {
        *self.parts.steered.borrow()
    }

    /// Resolves once a prompt waits to join the run.
    pub async fn steered(&self) {
        let mut steered = self.parts.steered.clone();
        // A sender that is gone has no live attempt, whom nobody steers.
        if steered.wait_for(|steered| *steered).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Makes `records` durable, and with them the prompts that wait to join the run part of it, where it writes next.
    /// Gives those prompts: the agent is to go on with them.
    pub async fn steer(&self, records: Vec<Record>) -> Result<Vec<Arc<Message>>, HandleError> {
        let by = self.id();
        self.call(|reply| Command::Steer { by, records, reply }).await
    }

    /// Asks a person and waits, holding the execution. Such a wait ends with the process; an adapter whose state can
    /// be stored returns [`super::Executed::Waiting`] instead.
    pub async fn ask(&self, ask: Ask) -> Result<Answer, HandleError> {
        let by = self.id();
        self.call(|reply| Command::Ask { by, ask, holder: Holder { reply, lapses: false } }).await
    }

    /// Asks a person and waits like [`AttemptHandle::ask`], but no longer than until the question expires: then it is
    /// withdrawn, and the attempt goes on without an answer.
    pub async fn ask_until(&self, ask: Ask) -> Result<Option<Answer>, HandleError> {
        let by = self.id();
        let answer =
            self.call(|reply| Command::Ask { by, ask, holder: Holder { reply, lapses: true } }).await?;
        Ok(match answer {
            Answer::Approval { decision: Approval::Expired } | Answer::Input { input: Value::Null } => None,
            answer => Some(answer),
        })
    }

    /// The last `limit` messages that the agent is to see, root first.
    pub async fn path(&self, limit: usize) -> Result<Vec<Arc<Message>>, HandleError> {
        let tip = self.head().await?;
        let Some(tip) = tip else { return Ok(vec![]) };
        let path = self.parts.store.path(tip, None, limit).await.map_err(Error::from)?;
        Ok(path.into_iter().map(|placed| placed.message).collect())
    }

    /// The path that the agent is to see, with what stands for its older messages if a model that takes `tokens` needs
    /// that. Costs what is shown, not the history.
    pub async fn context(&self, tokens: Option<u64>) -> Result<Context, HandleError> {
        let Some(tip) = self.head().await? else { return Ok(Context::default()) };
        let (store, session) = (&self.parts.store, self.assignment.session.id);
        let digest = store.digest(session, tip).await.map_err(Error::from)?;
        let digest = digest.filter(|digest| tokens.is_none_or(|tokens| tokens < digest.below_tokens));
        let shown = digest.as_ref().map_or(usize::MAX, |digest| {
            usize::try_from(tip.pos.saturating_sub(digest.at.pos)).unwrap_or(usize::MAX)
        });
        let path = store.path(tip, None, shown).await.map_err(Error::from)?;
        let placed = path.into_iter().filter_map(|placed| Some((placed.point?, placed.message)));
        let messages: Vec<(Point, Arc<Message>)> = placed.collect();
        let said = messages.iter().any(|(_, message)| message.is_prompt());
        let prompt = match digest.as_ref().and_then(|digest| digest.prompt).filter(|_| !said) {
            Some(prompt) => store.message_get(session, prompt).await.map_err(Error::from)?,
            None => None,
        };
        Ok(Context { digest, prompt: prompt.map(|(placed, _)| placed.message), messages })
    }

    /// A native session of the same adapter, folder and instructions that stands where the run begins, and that it is not
    /// bound to: one that was left there before, or that of the session it was forked from. A runtime that can fork it
    /// needs not be told of the path.
    ///
    /// It may go on at any time: whoever forks it asks again once nobody can use it.
    pub async fn origin(&self) -> Result<Option<Binding>, HandleError> {
        let Assignment { session, run, prompt, .. } = &*self.assignment;
        let path = self.path(2).await?;
        let [above, last] = path.as_slice() else { return Ok(None) };
        if last.id != prompt.id {
            return Ok(None);
        }
        let instructions = instructions_hash(run.options.system_prompt.as_deref());
        let stands_there = |binding: &Binding| {
            binding.last_message == Some(above.id)
                && binding.native.is_some()
                && binding.fidelity == Fidelity::Native
                && binding.status != BindingStatus::Invalid
                && binding.cwd == run.options.cwd
                && binding.system_prompt_hash == instructions
        };
        let store = &self.parts.store;
        for of in [session.id, above.session] {
            let theirs =
                store.session_find(&session.owner, &SessionRef::Id(of)).await.map_err(Error::from)?;
            if theirs.is_none_or(|theirs| theirs.owner != session.owner) {
                continue;
            }
            let bindings =
                store.bindings(of, Some(&run.adapter), None, BINDINGS).await.map_err(Error::from)?;
            if let Some(found) = bindings.into_iter().find(stands_there) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// A version of an agent that the run's owner has made; the latest if none is named.
    pub async fn agent(&self, name: &AgentName) -> Result<Option<AgentDefinition>, HandleError> {
        let owner = &self.assignment.run.owner;
        let found = self.parts.store.agent_find(owner, &name.id, name.version).await.map_err(Error::from)?;
        Ok(found.map(|row| row.definition))
    }

    /// An id for a grant of this attempt.
    pub fn new_grant(&self) -> GrantId {
        self.parts.ids.grant()
    }

    /// What a key of state holds, as the run sees it now.
    pub async fn state_get(&self, scope: StateScope, key: &str) -> Result<Option<StateEntry>, HandleError> {
        let at = self.state_at(scope).await?;
        Ok(self.parts.store.state_get(&at, key).await.map_err(Error::from)?.entry)
    }

    /// Entries of state in the order of their keys, those after `after`, as the run sees them now.
    pub async fn state_list(
        &self,
        scope: StateScope,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<StateEntry>, HandleError> {
        let at = self.state_at(scope).await?;
        Ok(self.parts.store.state_page(&at, after, limit).await.map_err(Error::from)?)
    }

    /// Sets a key of state, or removes it, if what is expected is there. Durable before it returns.
    ///
    /// State of the session is written where the run writes its next message: what a branch that fails has written
    /// goes with it.
    pub async fn state_set(
        &self,
        scope: StateScope,
        key: &str,
        value: Option<Value>,
        expect: Expect,
    ) -> Result<StateOutcome, HandleError> {
        self.parts.shared.state_check(key, value.as_ref())?;
        let run = match scope {
            StateScope::Owner => {
                // Nothing else would see that the attempt is over.
                self.head().await?;
                let owner = &self.assignment.session.owner;
                return Ok(self.parts.shared.owner_state_put(owner, key, value, expect).await?);
            }
            StateScope::Session => None,
            StateScope::Run => Some(self.assignment.run.id),
        };
        let write = StateWrite { run, key: key.to_owned(), value, expect };
        let by = self.id();
        self.call(|reply| Command::Data(Box::new(Data::StateBy(by, write, reply)))).await
    }

    /// Keeps all of `content` as an artifact of the run. Durable before it returns.
    pub async fn artifact(
        &self,
        new: NewArtifact,
        content: &mut (impl AsyncRead + Unpin + Send + ?Sized),
    ) -> Result<Artifact, HandleError> {
        let (by, run) = (self.id(), self.assignment.run.id);
        let (staged, artifact) =
            self.parts.shared.artifact_stage(self.assignment.session.id, new, content).await?;
        let artifact = Artifact { run: Some(run), attempt: Some(by), ..artifact };
        let (handle, made) = (self.clone(), artifact.clone());
        let commit = async move {
            handle.call(|reply| Command::Data(Box::new(Data::ArtifactBy(by, made, reply)))).await
        };
        self.parts.shared.artifact_keep(staged, commit).await?;
        Ok(artifact)
    }

    /// Artifacts of the session, the newest first.
    pub async fn artifact_list(&self, limit: usize) -> Result<Vec<Artifact>, HandleError> {
        let page = ArtifactPage { session: self.assignment.session.id, run: None, before: None, limit };
        Ok(self.parts.store.artifact_page(&page).await.map_err(Error::from)?)
    }

    /// One artifact of the session's owner: messages name also those of other sessions.
    pub async fn artifact_get(&self, id: ArtifactId) -> Result<Artifact, HandleError> {
        let (store, owner) = (&self.parts.store, &self.assignment.session.owner);
        let unknown = || Error::not_found("artifact", id);
        let artifact = store.artifact_get(id).await.map_err(Error::from)?.ok_or_else(unknown)?;
        let session = SessionRef::Id(artifact.session);
        let session = store.session_find(owner, &session).await.map_err(Error::from)?;
        if session.is_none_or(|session| session.owner != *owner) {
            return Err(unknown().into());
        }
        Ok(artifact)
    }

    /// At most `length` bytes of an artifact, from `from` on.
    pub async fn artifact_read(
        &self,
        artifact: &Artifact,
        from: u64,
        length: u64,
    ) -> Result<Vec<u8>, HandleError> {
        let mut reader = self.parts.shared.artifact_open(artifact, from, Some(length)).await?;
        let mut bytes = vec![];
        let read = reader.read_to_end(&mut bytes).await;
        read.map_err(|error| Error::Corrupt(format!("the bytes of {}: {error}", artifact.id)))?;
        Ok(bytes)
    }

    /// A file that `prompt` names, and all its bytes.
    pub async fn attachment(
        &self,
        prompt: &Message,
        id: ArtifactId,
    ) -> Result<(Artifact, BlobReader), HandleError> {
        let is = |block: &Block| matches!(block, Block::Attachment { artifact, .. } if *artifact == id);
        let not_found = || Error::not_found("artifact", id);
        if prompt.session != self.assignment.session.id || !prompt.content.iter().any(is) {
            return Err(not_found().into());
        }
        let found = self.parts.store.artifact_get(id).await.map_err(Error::from)?;
        let artifact = found.ok_or_else(not_found)?;
        let bytes = self.parts.shared.artifact_open(&artifact, 0, None).await?;
        Ok((artifact, bytes))
    }

    /// Where state is as the run sees it now: that of the session up to where it writes its next message.
    async fn state_at(&self, scope: StateScope) -> Result<StateAt, HandleError> {
        Ok(match scope {
            StateScope::Run => StateAt::Run(self.assignment.run.id),
            StateScope::Owner => StateAt::Owner(self.assignment.session.owner.clone()),
            StateScope::Session => {
                let at = self.head().await?.map(|head| Point { pos: head.pos + 1, ..head });
                StateAt::Session { session: self.assignment.session.id, at }
            }
        })
    }

    async fn head(&self) -> Result<Option<Point>, HandleError> {
        let by = self.id();
        self.call(|reply| Command::Head { by, reply }).await
    }

    /// Delegates work of the run. Requests under the same name give one child.
    pub async fn delegate(&self, request: DelegationRequest) -> Result<Delegated, HandleError> {
        let kernel = self.parts.shared.kernel().ok_or(Error::ShuttingDown)?;
        let session = &self.assignment.session;
        let caller = Caller { org: session.org.clone(), ..Caller::new(&session.owner) };
        // Boxed, since an actor that is born here may delegate in turn.
        Ok(Box::pin(kernel.run_delegate(&caller, self.assignment.run.id, request)).await?)
    }

    /// Waits until a delegation is settled, and returns its result; `None` if the child was deleted.
    pub async fn settled(
        &self,
        delegation: DelegationId,
    ) -> Result<(Delegation, Option<DelegationResult>), HandleError> {
        let settled = self.call(|reply| Command::Settled(delegation, reply)).await?;
        let result = self.parts.shared.delegation_result(&settled).await?;
        Ok((settled, result))
    }

    /// What the run that delegated this one was granted; none if nobody delegated it.
    pub(crate) async fn parent_grants(&self) -> Result<Option<Vec<Grant>>, HandleError> {
        let Some(parent) = self.assignment.run.parent else { return Ok(None) };
        let store = &self.parts.store;
        // Of a parent that is gone nobody knows what it might do.
        let parent = store.run_get(parent).await.map_err(Error::from)?;
        let Some(parent) = parent else { return Ok(Some(vec![])) };
        Ok(Some(store.grants(parent.session, parent.id).await.map_err(Error::from)?))
    }

    /// What those have used, or may yet use, to whom the run has delegated.
    pub async fn spent_by_children(&self) -> Result<Usage, HandleError> {
        let (session, run) = (self.assignment.session.id, self.assignment.run.id);
        Ok(self.parts.shared.spent_by_children(session, run).await?)
    }

    /// The model calls of the run so far, of all its attempts.
    pub async fn steps(&self) -> Result<Vec<Step>, HandleError> {
        self.steps_of(self.assignment.run.id).await
    }

    /// The model calls of a run whose messages are on the path.
    pub async fn steps_of(&self, run: RunId) -> Result<Vec<Step>, HandleError> {
        Ok(self.parts.store.steps(run).await.map_err(Error::from)?)
    }

    /// What the events of the run say of its tool calls, for an attempt that takes them up from an earlier one.
    pub async fn earlier_calls(&self) -> Result<EarlierCalls, HandleError> {
        let (session, run) = (self.assignment.session.id, self.assignment.run.id);
        Ok(self.parts.shared.earlier_calls(session, run).await?)
    }

    /// True when nobody has named the session, and somebody should once a turn is completed.
    pub fn wants_title(&self) -> bool {
        self.parts.shared.options.auto_title && self.assignment.session.title_source.is_none()
    }

    /// Names the session with what `title` comes to, at some later time and also after the attempt is over, unless a
    /// person has named it by then. What it used is told as the session's.
    pub fn title_later(&self, title: impl Future<Output = (Option<String>, Usage)> + Send + 'static) {
        let (shared, session) = (self.parts.shared.clone(), self.assignment.session.id);
        self.parts.shared.tasks.spawn(async move {
            let (title, used) = tokio::select! {
                () = shared.tasks.stopping() => return,
                titled = title => titled,
            };
            let titled = |reply| Command::Data(Box::new(Data::Title(title, used, reply)));
            if let Err(error) = shared.call(session, titled).await {
                tracing::warn!(%error, %session, "a session could not be named");
            }
        });
    }

    /// The time now.
    pub fn now(&self) -> Time {
        self.parts.clock.now()
    }

    /// Returns once it is `time` or later.
    pub async fn sleep_until(&self, time: Time) {
        self.parts.clock.sleep_until(time).await;
    }

    async fn call<T>(&self, command: impl FnOnce(Recording<T>) -> Command) -> Result<T, HandleError> {
        let (reply, answer) = oneshot::channel();
        // An actor that is gone has no live attempt: whoever still calls has lost its authority.
        self.parts.actor.send(command(reply)).map_err(|_| HandleError::Revoked)?;
        answer.await.unwrap_or(Err(HandleError::Revoked))
    }
}
