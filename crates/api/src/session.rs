//! Sessions.

use std::sync::Arc;

use mainspring_core::{
    Damage, ExternalRef, LegacyAlias, Message, MessageId, Position, Run, RunOptions, Session, SessionId,
    SessionStatus, Usage, Visibility,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{LiveStatus, SessionCard, SessionView};

/// Names a session, and describes it in case it is new.
///
/// A prompt finds the session by the first name that exists, or creates one. `POST /v1/sessions` also takes `new` or
/// `load`, which demand that the session is new or exists.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionTarget {
    /// By id: the session must exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// By the caller's own key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(pattern = "^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}$"))]
    pub key: Option<String>,
    /// By the thing that the session stands for in the caller's application.
    #[serde(
        default,
        deserialize_with = "crate::request::external_ref",
        skip_serializing_if = "Option::is_none"
    )]
    pub external_ref: Option<ExternalRef>,
    /// By a compatibility alias.
    #[serde(
        default,
        deserialize_with = "crate::request::legacy_alias",
        skip_serializing_if = "Option::is_none"
    )]
    pub legacy_alias: Option<LegacyAlias>,
    /// The title of a new session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The kind of surface that opens a new session; `api` if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 512))]
    pub surface_kind: Option<String>,
    /// The adapter of a new session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// The folder that a new session's runs work in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The logical model of a new session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_profile: Option<String>,
    /// The agent definition that a new session follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 512))]
    pub agent_definition: Option<String>,
    /// The caller's own data, stored with a new session: an object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub metadata: Option<Value>,
    /// The readers of a new session besides its owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visibility: Option<Visibility>,
    /// The model that a new session's runs use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The instructions for a new session's runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// Options for the model's provider in a new session's runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub model_options: Option<Map<String, Value>>,
    /// The rules about what a new session's agents may do, tried after those of the server, the owner, the adapter and the
    /// agent definition.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    /// The labels that a server of a cluster must have to execute a new session.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// Creates the session: true, or the key it gets, which must be free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<NewName>,
    /// Loads the session of this id or key, which must exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<String>,
    /// With `new` or `load`: refuses unless the session has a model.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub model_required: bool,
    /// Not supported: refused for a new session, ignored for a loaded one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<Value>,
}

impl SessionTarget {
    /// Names the session of this key, which is created if there is none.
    pub fn key(key: impl Into<String>) -> Self {
        Self { key: Some(key.into()), ..Self::default() }
    }

    /// Names an existing session.
    pub fn id(session: SessionId) -> Self {
        Self { session_id: Some(session), ..Self::default() }
    }

    /// True if `new`, `load` or a field that only they use is set.
    pub fn has_start_fields(&self) -> bool {
        self.new.is_some() || self.load.is_some() || self.messages.is_some() || self.model_required
    }
}

/// The key of a session to create, or true for a session without a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum NewName {
    /// True: a session without a key.
    Any(bool),
    /// A session with this key.
    Key(String),
}

/// A session, and whether it was created, loaded or already in memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct OpenedSession {
    /// The session.
    #[serde(flatten)]
    pub session: Session,
    /// Whether the session was created, loaded or already in memory.
    pub opening: Opening,
    /// The options to send with the session's prompts, if the session was started by `new` or `load`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<RunOptions>,
}

/// Whether a session was created, loaded or already in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Opening {
    /// The session was created.
    Created,
    /// The session was loaded from the store.
    Started,
    /// The session was in memory already.
    Existing,
}

/// Selects sessions to list.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionListQuery {
    /// Only the caller's own sessions (`own`), all that members of the org may read (`org`), or both (`all`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(inline))]
    pub scope: Option<Scope>,
    /// Only pinned sessions (true), or only the others (false).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned: Option<bool>,
    /// Only sessions with this status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<SessionStatus>,
    /// Only sessions of this kind of surface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub surface_kind: Option<String>,
    /// Only the session that stands for something of this kind; with `externalId`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_kind: Option<String>,
    /// The id of the thing that the session stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_id: Option<String>,
    /// Only the session with an alias in this scope; with `legacyKey`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub legacy_scope: Option<String>,
    /// The key of the alias.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub legacy_key: Option<String>,
    /// The number of sessions; 50 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// The `next` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(pattern = r"^[0-9]{1,18}\.ses_[0-9a-f]{32}$"))]
    pub before: Option<String>,
    /// Only this session, by id or key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(pattern = "^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}$"))]
    pub session: Option<String>,
    /// True for only sessions with a run that has not ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<bool>,
    /// The form of the items: `cards` adds what a board shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(inline))]
    pub view: Option<SessionView>,
    /// Only the caller's own sessions that are in memory (true). False or absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<bool>,
}

/// Selects the sessions to list by owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The caller's own sessions.
    #[default]
    Own,
    /// All sessions that members of the caller's org may read.
    Org,
    /// All sessions that the caller may read: its own, and those of its org.
    All,
}

/// A session and its latest run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ListedSession {
    /// The session.
    #[serde(flatten)]
    pub session: Session,
    /// The latest run; null if the session has none.
    #[cfg_attr(feature = "schema", schema(required))]
    pub latest_run: Option<Run>,
    /// Whether a run works in the session, or waits for a person.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub live_status: LiveStatus,
    /// The card; only with `view=cards`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<SessionCard>,
}

impl ListedSession {
    /// Builds an item without a card.
    pub fn plain((session, latest_run): (Session, Option<Run>), live_status: LiveStatus) -> Self {
        Self { session, latest_run, live_status, card: None }
    }
}

/// A session, what it does now, and what it has used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct SessionDetails {
    /// The session.
    #[serde(flatten)]
    pub session: Session,
    /// Whether a run works in the session, or waits for a person.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub live_status: LiveStatus,
    /// The number of the active run's last model call with an answer; 0 before that. Absent if no run is
    /// active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_step: Option<u32>,
    /// Tokens and cost of all runs of the session, on every branch.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub usage: Usage,
}

/// Changes to a session. An absent field stays as it is. Null clears a field, but leaves `status`, `pinned`,
/// `visibility` and `agentDefinition` as they are.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionPatch {
    /// The title; null or empty removes it.
    #[serde(default, deserialize_with = "crate::present_or_null", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub title: Option<Option<String>>,
    /// `open`, `archived` or `closed`; null leaves it as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<SessionStatus>,
    /// Whether the session is pinned; null leaves it as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<bool>,
    /// The readers of the session besides its owner; null leaves them as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visibility: Option<Visibility>,
    /// The model that the session's runs use.
    #[serde(default, deserialize_with = "crate::present_or_null", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub model: Option<Option<String>>,
    /// The logical model that the session's runs use.
    #[serde(default, deserialize_with = "crate::present_or_null", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub model_profile: Option<Option<String>>,
    /// The instructions for the session's runs.
    #[serde(default, deserialize_with = "crate::present_or_null", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub system_prompt: Option<Option<String>>,
    /// Options for the model's provider in the session's runs; replaces all of them.
    #[serde(default, deserialize_with = "crate::present_or_null", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub model_options: Option<Option<Map<String, Value>>>,
    /// The folder that the session's runs work in.
    #[serde(default, deserialize_with = "crate::present_or_null", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub cwd: Option<Option<String>>,
    /// The caller's own data; replaces all of it.
    #[serde(default, deserialize_with = "crate::present_or_null", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub metadata: Option<Option<Value>>,
    /// The rules about what the session's agents may do; replaces all of them, null removes them.
    #[serde(default, deserialize_with = "crate::present_or_null", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Vec<String>>))]
    pub rules: Option<Option<Vec<String>>>,
    /// The agent definition that the session's runs follow, as `ID` or `ID@VERSION`; null leaves it as it is. It holds for
    /// runs that are accepted from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 512))]
    pub agent_definition: Option<String>,
    /// The milliseconds that the session stays in memory while it is idle, at most a day; null for the server's setting.
    #[serde(default, deserialize_with = "crate::present_or_null", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<u64>, maximum = 86_400_000))]
    pub idle_unload_ms: Option<Option<u64>>,
}

/// The forks that keep messages of a deleted session.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct KeptForForks {
    /// The forks that still read messages of the deleted session.
    pub kept_for_forks: Vec<SessionId>,
}

/// The result of unloading a session from memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ClosedSession {
    /// True if the session was in memory.
    pub closed: bool,
}

/// Selects the events to prune.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Compaction {
    /// The resume point before which events are pruned.
    #[cfg_attr(feature = "schema", schema(pattern = r"^[0-9]{1,19}\.[0-9]{1,19}$"))]
    pub before: String,
}

/// The events that were pruned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Compacted {
    /// Events up to this position are gone.
    pub floor: Position,
}

/// A session at one instant. Everything later comes through a subscription from its position.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// The session.
    pub session: Session,
    /// The run that is being executed or waits for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_run: Option<Run>,
    /// The queued runs.
    pub queued_runs: Vec<Run>,
    /// The prompts of the first 20 queued runs: a queued prompt is not part of the tree yet. Absent if there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queued_prompts: Vec<Arc<Message>>,
    /// The end of the active path.
    pub messages: Vec<Arc<Message>>,
    /// The messages that the active run has written so far; not on the path yet.
    pub pending: Vec<Arc<Message>>,
    /// The text that is being streamed.
    pub partial: Vec<OpenText>,
    /// The current position of the session's event stream.
    pub position: Position,
    /// Damaged messages: their index is that among `messages`, or the number of `messages` for one of
    /// `pending`. Absent if there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<Damage>,
}

impl Snapshot {
    /// The name of the server-sent event of a snapshot that replaces pruned events.
    pub const RESET: &str = "reset";
}

/// The usage of a session: of all its runs, including those on abandoned branches, and of the runs that they
/// delegated to. The runs of a fork count only for the fork, and those of the session it was forked from only for
/// that session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct SessionUsage {
    /// The session.
    pub session_id: SessionId,
    /// The number of the session's own runs.
    pub runs: u64,
    /// Tokens and cost of the session's own runs.
    pub usage: Usage,
    /// The number of runs in other sessions that the session's runs delegated to, directly or indirectly.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub delegated_runs: u64,
    /// Tokens and cost of the delegated runs. A lower bound if one of them was deleted.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub delegated_usage: Usage,
    /// Tokens and cost of the session's own runs and of the delegated runs.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub total_usage: Usage,
}

/// Streamed text of one message, block by block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct OpenText {
    /// The message.
    pub message_id: MessageId,
    /// The blocks, by number.
    pub blocks: Vec<OpenBlock>,
}

/// Streamed text of one block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct OpenBlock {
    /// The number of the block.
    pub block: u32,
    /// The text so far.
    pub text: String,
}

/// Selects messages of the active path.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct MessageListQuery {
    /// The number of messages; 50 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Only messages of less depth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<u32>,
}
