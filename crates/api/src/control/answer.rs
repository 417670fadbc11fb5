//! Answers of the control tools.

use mainspring_core::{Damage, RunStatus};
use serde::Serialize;

use super::{
    ArtifactForm, AttemptForm, BindingForm, DelegationForm, DelegationResultForm, EventForm, RunForm,
    SessionForm,
};
use crate::CancelOutcome;
use crate::jsonl::Code;

/// The answer of a tool that succeeded: the fields of `T`, and `ok`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Answer<T> {
    #[serde(flatten)]
    answer: T,
    ok: bool,
}

impl<T> Answer<T> {
    /// Marks the answer of a tool as a success.
    pub fn new(answer: T) -> Self {
        Self { answer, ok: true }
    }
}

/// The answer of a tool that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ErrorAnswer<'a> {
    ok: bool,
    error: ToolFailure<'a>,
}

/// Why a tool failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ToolFailure<'a> {
    /// The protocol's code, and mainspring's own code where the two differ.
    #[serde(flatten)]
    pub code: Code<'a>,
    /// A sentence for people.
    pub message: &'a str,
}

impl<'a> ErrorAnswer<'a> {
    /// Builds the answer from one of mainspring's own codes.
    pub fn new(code: &'a str, message: &'a str) -> Self {
        Self { ok: false, error: ToolFailure { code: Code::new(code), message } }
    }

    /// Builds the answer of a host's tool. The host's code is sent as it is.
    pub fn of_host(code: &'a str, message: &'a str) -> Self {
        let code = Code { code: code.into(), reason: None };
        Self { ok: false, error: ToolFailure { code, message } }
    }
}

/// The answer of `list_agent_sessions`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct SessionList {
    /// The sessions, latest activity first.
    pub sessions: Vec<ListedSession>,
    /// The `cursor` of the next page; null on the last one.
    pub next_cursor: Option<String>,
    /// JSON pointers to the texts, objects and lists of this answer that are cut; absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(required = false))]
    pub truncated: Vec<String>,
    /// Damaged rows of the lists of this answer, which cannot be read; absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(required = false))]
    pub damaged: Vec<Damage>,
}

/// A session with its runs and bindings.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ListedSession {
    /// The session.
    pub session: SessionForm,
    /// The latest run.
    pub latest_run: Option<RunForm>,
    /// The run that is executing or waits.
    pub active_run: Option<RunForm>,
    /// The native sessions of agents.
    pub adapter_bindings: Vec<BindingForm>,
}

/// The answer of `get_agent_run`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct RunDetails {
    /// The session of the run.
    pub session: SessionForm,
    /// The run.
    pub run: RunForm,
    /// The attempts of the run, oldest first.
    pub attempts: Vec<AttemptForm>,
    /// The native sessions of agents that the session uses.
    pub adapter_bindings: Vec<BindingForm>,
    /// The artifacts of the run.
    pub artifacts: Vec<ArtifactForm>,
    /// The latest events of the run, or those before `cursor`, oldest first.
    pub events: Vec<EventForm>,
    /// The delegation that created the run: one or none.
    pub parent_delegations: Vec<DelegationForm>,
    /// The delegations that the run made, oldest first.
    pub child_delegations: Vec<DelegationForm>,
    /// The `cursor` that reads the events before these; null if there are none.
    pub next_cursor: Option<String>,
    /// The `textOffset` that reads the rest of the prompt and the final text; null if they are complete.
    pub next_text_offset: Option<usize>,
    /// JSON pointers to the other texts, objects and lists of this answer that are cut; absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(required = false))]
    pub truncated: Vec<String>,
    /// Damaged rows of the lists of this answer, which cannot be read; absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(required = false))]
    pub damaged: Vec<Damage>,
}

/// The answer of `cancel_agent_run`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CancelledRun {
    /// The steps of the cancellation that were done.
    pub cancellation: CancelOutcome,
    /// The run after the cancellation.
    pub run: RunForm,
    /// The attempts of the run, oldest first.
    pub attempts: Vec<AttemptForm>,
    /// Damaged rows of the lists of this answer, which cannot be read; absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(required = false))]
    pub damaged: Vec<Damage>,
}

/// The answer of `inspect_agent_artifacts`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ArtifactList {
    /// The artifacts, newest first.
    pub artifacts: Vec<ArtifactForm>,
    /// The `cursor` of the next page; null on the last one.
    pub next_cursor: Option<String>,
    /// JSON pointers to the texts and objects of this answer that are cut; absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(required = false))]
    pub truncated: Vec<String>,
    /// Damaged rows of the lists of this answer, which cannot be read; absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(required = false))]
    pub damaged: Vec<Damage>,
}

/// The answer of `send_agent_message`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct MessageReply {
    /// The session that answered.
    pub session: SessionForm,
    /// The run that answered.
    pub run: RunForm,
    /// The last attempt of the run.
    pub attempt: Option<AttemptForm>,
    /// The agent's own id of its session.
    pub adapter_session_id: Option<String>,
    /// The status of the run.
    pub terminal_status: RunStatus,
    /// All text of the agent.
    pub text: String,
}

/// The answer of `delegate_agent`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct DelegatedWork {
    /// The link between the two runs.
    pub delegation: DelegationForm,
    /// The session of the child.
    pub child_session: SessionForm,
    /// The run of the child.
    pub child_run: RunForm,
    /// The last attempt of the child.
    pub child_attempt: Option<AttemptForm>,
    /// The agent's own id of its session.
    pub adapter_session_id: Option<String>,
    /// The status of the child; null until the child has ended.
    pub terminal_status: Option<RunStatus>,
    /// The result of the child; null until the child has ended.
    pub result: Option<DelegationResultForm>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_codes_are_mapped_and_the_code_of_a_host_is_kept() {
        let json = |answer: &ErrorAnswer<'_>| serde_json::to_string(answer).unwrap();
        insta::assert_snapshot!(json(&ErrorAnswer::new("tool_failed", "no")), @r#"{"ok":false,"error":{"code":"adapter_execution_failed","reason":"tool_failed","message":"no"}}"#);
        insta::assert_snapshot!(json(&ErrorAnswer::of_host("tool_failed", "no")), @r#"{"ok":false,"error":{"code":"tool_failed","message":"no"}}"#);
    }
}
