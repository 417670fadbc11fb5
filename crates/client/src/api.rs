//! What is sent and what comes back, beside the core's own types.

use mainspring_core::{
    AccessRole, AgentDefinition, ApiKey, ArtifactRole, AttemptId, Binding, Block, Delegation, DelegationMode,
    DelegationResult, ExternalRef, LegacyAlias, Message, MessageId, Mode, Place, Policy, Position, Role, Run,
    RunId, RunOptions, RunStatus, Session, SessionId, SessionStatus, Time,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::bridge::Surface;

/// Why the server refused (RFC 9457).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Problem {
    /// The HTTP status.
    pub status: u16,
    /// Stable, snake_case.
    pub code: String,
    /// For people: names the thing and the remedy.
    pub detail: String,
    /// True when the same request may succeed later.
    #[serde(default)]
    pub retryable: bool,
}

/// One page of a list, and where the next one begins.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Page<T> {
    /// What is on it.
    pub items: Vec<T>,
    /// Absent on the last page.
    #[serde(default)]
    pub next: Option<String>,
}

/// Which session, and what it is like if it is new.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// By id: it must exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// By the caller's key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// By what it stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_ref: Option<ExternalRef>,
    /// By a compatibility alias.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub legacy_alias: Option<LegacyAlias>,
    /// The title of a new one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What kind of surface opens it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub surface_kind: Option<String>,
    /// The adapter of a new one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// The folder of a new one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The model profile of a new one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_profile: Option<String>,
    /// The agent definition of a new one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_definition: Option<String>,
    /// The caller's own data: an object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
}

impl From<&Surface> for Target {
    /// The session of a surface.
    fn from(surface: &Surface) -> Self {
        Self {
            external_ref: Some(surface.external_ref.clone()),
            surface_kind: Some(surface.kind.clone()),
            ..Self::default()
        }
    }
}

/// A prompt.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Prompt {
    /// For which session.
    pub session: Target,
    /// What is said. Empty only when an earlier message is answered again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prompt: Vec<Block>,
    /// The adapter; the session's if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// Whether it may act.
    pub mode: Mode,
    /// All else.
    pub options: RunOptions,
    /// Where in the tree.
    pub place: Place,
    /// What it does to a busy session.
    pub policy: Policy,
    /// Who asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// The caller's name for the request: the same again gives the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// A key under which the same request gives the same run for 24 hours.
    #[serde(skip)]
    pub idempotency_key: Option<String>,
}

impl Prompt {
    /// A prompt of plain text for the session of this key.
    pub fn text(key: impl Into<String>, text: impl Into<String>) -> Self {
        let session = Target { key: Some(key.into()), ..Target::default() };
        Self { session, prompt: vec![Block::text(text)], ..Self::default() }
    }
}

/// A prompt that was accepted.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Accepted {
    /// Its run.
    #[serde(flatten)]
    pub run: Run,
    /// The policy that took effect.
    pub policy: Policy,
    /// Subscribe from here to see all of the run.
    pub position: Position,
    /// The same request was sent before; this is the run it made.
    pub replayed: bool,
}

/// Work that a run hands to a session of its own.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Delegate {
    /// How.
    pub mode: DelegationMode,
    /// What is to be achieved.
    pub objective: String,
    /// What the child needs to know for that; it sees nothing else of its parent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// To continue, the child's session, by its id; else what a new one is like.
    pub session: Target,
    /// The adapter; the session's if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// Whether the child may act; never more than its parent.
    pub run_mode: Mode,
    /// All else.
    pub options: RunOptions,
    /// How deep delegation may go, the child counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_depth: Option<u32>,
    /// Who asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// The caller's name for the request: the same again gives the same delegation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// A key under which the same request gives the same delegation for 24 hours.
    #[serde(skip)]
    pub idempotency_key: Option<String>,
}

impl Delegate {
    /// Work for a new session, which may only answer.
    pub fn new(mode: DelegationMode, objective: impl Into<String>) -> Self {
        Self {
            mode,
            objective: objective.into(),
            context: None,
            session: Target::default(),
            adapter: None,
            run_mode: Mode::Ask,
            options: RunOptions::default(),
            max_depth: None,
            client_id: None,
            request_id: None,
            idempotency_key: None,
        }
    }
}

/// Work that was delegated.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Delegated {
    /// The tie between the two runs.
    pub delegation: Delegation,
    /// The child.
    pub run: Run,
    /// The same request was sent before; this is what it made.
    pub replayed: bool,
    /// What came of it, once the child has ended.
    pub outcome: Option<DelegationResult>,
}

/// The delegations around a run.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Kin {
    /// The one that made it.
    pub parent: Option<Delegation>,
    /// Those that it has made, the oldest first.
    pub children: Vec<Delegation>,
}

/// A delegation, and what came of it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Settled {
    /// The delegation.
    #[serde(flatten)]
    pub delegation: Delegation,
    /// What came of it, once its child has ended.
    pub outcome: Option<DelegationResult>,
}

/// An agent's own session that exists already.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Adoption {
    /// The adapter, by its name.
    pub adapter: String,
    /// The agent's own id of it.
    pub adapter_native_session_id: String,
    /// The folder it was opened in; the session's if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The instructions it was opened with; the session's if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
}

/// A session that was to be tied to an agent's own session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionAdopted {
    /// The session.
    pub session: Session,
    /// What it is tied to.
    pub binding: Binding,
    /// Whether it is tied to that by this; false if it had been tied before.
    pub adopted: bool,
}

/// What a cancellation answers: what was done, not what is hoped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cancellation {
    /// The wish to stop is recorded.
    pub accepted: bool,
    /// The run.
    pub run_id: RunId,
    /// Its latest attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_id: Option<AttemptId>,
    /// The adapter was told.
    pub dispatch_attempted: bool,
    /// The adapter confirmed.
    pub adapter_acknowledged: bool,
    /// Where the run stands now.
    pub status: RunStatus,
}

/// A session of a list, with its latest run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Listed {
    /// The session.
    #[serde(flatten)]
    pub session: Session,
    /// Its latest run.
    pub latest_run: Option<Run>,
}

/// An agent definition, and whose it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Agent {
    /// Whose it is: `owner` or `shared`.
    pub scope: String,
    /// When its owner made it; none if it is everybody's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at_ms: Option<Time>,
    /// What it says.
    #[serde(flatten)]
    pub definition: AgentDefinition,
}

/// A key to be made.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewKey {
    /// What it is for, for people.
    pub name: String,
    /// For whom its holder acts; the caller if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner_id: Option<String>,
    /// The org its holder belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub org_id: Option<String>,
    /// What its holder may do.
    pub role: AccessRole,
    /// From when on it opens nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<Time>,
}

/// A key that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadeKey {
    /// The key.
    #[serde(flatten)]
    pub key: ApiKey,
    /// Shown once; none when the same request made the key before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// How a session is started: made under a name that is free, or taken up by a name that exists.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Start {
    /// Make it: true, or the key it is to have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<Value>,
    /// Take it up, by id or key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<String>,
    /// Its title, if it is new.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Its adapter, if it is new.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// What kind of surface opens it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub surface_kind: Option<String>,
    /// The model of its runs, unless it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The instructions of its runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// The folder of its runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// A session that was started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Started {
    /// The session.
    #[serde(flatten)]
    pub session: Session,
    /// What its prompts are to be sent with.
    #[serde(default)]
    pub options: RunOptions,
}

/// From where a session is forked, and what the fork is called.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fork {
    /// The message that the fork goes on from.
    pub message_id: MessageId,
    /// The fork's key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The fork's title.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
}

/// What a search found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hit {
    /// The session.
    pub session_id: SessionId,
    /// Its title.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The message; none if the title was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// Who speaks in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// When it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at_ms: Option<Time>,
    /// The part of the text where it was found.
    pub snippet: String,
}

/// What an artifact is, beside its bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct NewArtifact {
    /// What it is; `file` if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// What it is for; `input` if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<ArtifactRole>,
    /// Its name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its media type.
    #[serde(skip)]
    pub mime_type: Option<String>,
}

/// Which sessions to list.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionList {
    /// Only these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<SessionStatus>,
    /// Only those of this kind of surface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub surface_kind: Option<String>,
    /// Only the one that has an alias within this scope; with `legacy_key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub legacy_scope: Option<String>,
    /// Which one of that scope.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub legacy_key: Option<String>,
    /// How many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// The `next` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
}

/// Which runs to list.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct RunList {
    /// Only this session's, by id or key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Only these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<RunStatus>,
    /// How many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// The `next` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
}

/// What of a session to change. Absent is as it is.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionChanges {
    /// Its title; none for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<Option<String>>,
    /// Open or archived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<SessionStatus>,
    /// Whether it is pinned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned: Option<bool>,
}

/// A session at one instant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// The session.
    pub session: Session,
    /// The run that is being executed or waits for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_run: Option<Run>,
    /// Runs that wait their turn.
    pub queued_runs: Vec<Run>,
    /// The end of the active path.
    pub messages: Vec<Message>,
    /// What the active run has written so far; not on the path yet.
    pub pending: Vec<Message>,
    /// What is being streamed.
    pub partial: Vec<OpenText>,
    /// Where the session's stream stands.
    pub position: Position,
}

/// Streamed text of one message, block by block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OpenText {
    /// The message.
    pub message_id: MessageId,
    /// Its blocks.
    pub blocks: Vec<OpenBlock>,
}

/// Streamed text of one block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenBlock {
    /// Its number.
    pub block: u32,
    /// Its text so far.
    pub text: String,
}

/// One message of a tree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TreeNode {
    /// The message.
    #[serde(flatten)]
    pub message: Message,
    /// The message above.
    pub parent_id: Option<MessageId>,
    /// How many messages stand above.
    pub depth: u32,
    /// On the active path.
    pub active: bool,
    /// Part of a branch that was rolled back.
    pub abandoned: bool,
    /// The message beneath that was last visited: where the path goes on from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<MessageId>,
}
