//! Control tools: the inputs and answers of the tools with which an agent reads and directs other sessions, and the
//! operations that they need.
//!
//! An answer is `{"ok": true, …}` or `{"ok": false, "error": {"code", "reason", "message"}}`.

use mainspring_core::{ArtifactRole, DelegationMode, Mode, SessionStatus};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

mod answer;
mod form;
mod plane;
mod tool;

pub use answer::{
    Answer, ArtifactList, CancelledRun, DelegatedWork, ErrorAnswer, ListedSession, MessageReply, RunDetails,
    SessionList, ToolFailure,
};
pub use form::{
    ArtifactForm, AttemptForm, BindingForm, DelegationForm, DelegationInput, DelegationResultForm, EventForm,
    RunForm, RunInput, SessionForm,
};
pub use plane::{ControlError, ControlPlane};
pub use tool::{ControlTool, ControlToolHints, ControlToolPages, ControlToolRule, ToolAccess};

/// The input of `list_agent_sessions`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListSessions {
    /// The owner; must be the one that the caller acts for.
    pub owner_id: Option<String>,
    /// Only sessions with this status.
    #[cfg_attr(feature = "schema", schema(inline))]
    pub status: Option<SessionStatus>,
    /// Only sessions with this surface kind.
    pub surface_kind: Option<String>,
    /// The maximum number of results, at most 200; default: 50.
    pub limit: Option<usize>,
    /// Only sessions last active before this time.
    pub before_updated_at_ms: Option<i64>,
    /// The nextCursor of an earlier page: returns the page after it.
    pub cursor: Option<String>,
}

/// The input of `get_agent_run`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetRun {
    /// The run.
    pub run_id: String,
    /// The owner; must be the one that the caller acts for.
    pub owner_id: Option<String>,
    /// Whether to include events; default: true.
    pub include_events: Option<bool>,
    /// The number of latest events, at most 500; default: 100.
    pub event_limit: Option<usize>,
    /// The nextCursor of an earlier answer: returns the events before the events of that answer.
    pub cursor: Option<String>,
    /// The nextTextOffset of an earlier answer: returns the next part of the prompt and the final text.
    pub text_offset: Option<usize>,
}

/// The input of `cancel_agent_run`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CancelRun {
    /// The run.
    pub run_id: String,
    /// The owner; must be the one that the caller acts for.
    pub owner_id: Option<String>,
}

/// The input of `inspect_agent_artifacts`: exactly one of session, run and attempt.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InspectArtifacts {
    /// The session.
    pub session_id: Option<String>,
    /// The run.
    pub run_id: Option<String>,
    /// The attempt.
    pub attempt_id: Option<String>,
    /// The owner; must be the one that the caller acts for.
    pub owner_id: Option<String>,
    /// Only artifacts with this role.
    #[cfg_attr(feature = "schema", schema(inline))]
    pub role: Option<ArtifactRole>,
    /// The maximum number of results, at most 200; default: 50.
    pub limit: Option<usize>,
    /// The nextCursor of an earlier page: returns the page after it.
    pub cursor: Option<String>,
}

/// The input of `send_agent_message`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SendMessage {
    /// The session.
    pub session_id: String,
    /// The prompt.
    pub prompt: String,
    /// The owner; must be the one that the caller acts for.
    pub owner_id: Option<String>,
    /// Whether the agent may act or only answer; default: only answer.
    #[cfg_attr(feature = "schema", schema(inline))]
    pub mode: Option<Mode>,
    /// The agent runtime; default: that of the session.
    pub adapter_id: Option<String>,
    /// The working directory.
    pub cwd: Option<String>,
    /// The model.
    pub model: Option<String>,
    /// The logical model profile, such as worker; a model takes precedence.
    pub model_profile: Option<String>,
    /// An idempotency id: repeating the message with it returns the same run.
    pub request_id: Option<String>,
    /// The client that the requestId belongs to.
    pub client_id: Option<String>,
}

/// The input of `delegate_agent`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DelegateWork {
    /// call: wait for the result. spawn: return at once. continue: give an earlier child more work, and wait. Default: call.
    #[cfg_attr(feature = "schema", schema(inline))]
    pub mode: Option<DelegationMode>,
    /// The active run that delegates; default: the run you work for.
    pub parent_run_id: Option<String>,
    /// The objective of the work.
    pub objective: String,
    /// Context for the child, at most 4000 characters; the child sees nothing else of your session.
    pub context: Option<String>,
    /// The owner; must be the one that the caller acts for.
    pub owner_id: Option<String>,
    /// The child's session; required for continue.
    pub child_session_id: Option<String>,
    /// The surface kind of a new session; default: delegated_agent.
    pub child_surface_kind: Option<String>,
    /// The kind of the external object that a new session refers to.
    pub child_external_ref_kind: Option<String>,
    /// The id of the external object that a new session refers to.
    pub child_external_ref_id: Option<String>,
    /// The title of a new session.
    pub child_title: Option<String>,
    /// The agent definition of a new session, such as reviewer@1; default: that of the parent.
    pub child_agent_definition: Option<String>,
    /// The agent runtime of this work; default: that of the session.
    pub adapter_id: Option<String>,
    /// The agent runtime of a new session; default: that of the parent.
    pub default_adapter_id: Option<String>,
    /// The working directory; default: that of the parent.
    pub cwd: Option<String>,
    /// The model.
    pub model: Option<String>,
    /// The logical model profile, such as worker; a model takes precedence.
    pub model_profile: Option<String>,
    /// Whether the child may act or only answer; default: only answer.
    #[cfg_attr(feature = "schema", schema(inline))]
    pub run_mode: Option<Mode>,
    /// An idempotency id: repeating the call with it returns the same child.
    pub request_id: Option<String>,
    /// The client that the requestId belongs to.
    pub client_id: Option<String>,
    /// The maximum depth of delegation, from 1 to 5; default: 3.
    pub max_depth: Option<u32>,
    /// The budget of the child in US dollars, at most 10; default: 5, and for native agents a share of what is left to you.
    pub max_budget_usd: Option<f64>,
    /// Metadata of a new session.
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub metadata: Option<Map<String, Value>>,
}
