//! The JSON forms of sessions, runs and their parts in the answers of the control tools. Each has the fields of a row
//! of a table in the protocol's specification, which calls the id of a session `omiSessionId`. An absent value is null,
//! except in fields that are skipped when absent.

use mainspring_core::{
    Artifact, ArtifactId, ArtifactRole, Attempt, AttemptId, Binding, BindingId, BindingStatus, Body, Cursor,
    Delegation, DelegationId, DelegationMode, DelegationResult, DelegationStatus, DoneEffect, Event, EventId,
    Failure, Fidelity, Mode, NodeId, Run, RunId, RunStatus, Session, SessionId, SessionStatus, Time, Usage,
};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::jsonl::codes::protocol_code;
use crate::jsonl::without_connection;

/// A session.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "each field is the one of the session")]
pub struct SessionForm {
    pub omi_session_id: SessionId,
    pub owner_id: String,
    pub agent_definition_id: String,
    pub title: Option<String>,
    pub status: SessionStatus,
    pub surface_kind: String,
    pub external_ref_kind: Option<String>,
    pub external_ref_id: Option<String>,
    pub legacy_client_scope: Option<String>,
    pub legacy_session_key: Option<String>,
    pub default_adapter_id: String,
    pub default_cwd: Option<String>,
    pub model_profile: Option<String>,
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub metadata: Value,
    pub created_at_ms: Time,
    pub updated_at_ms: Time,
    pub last_activity_at_ms: Time,
}

impl From<Session> for SessionForm {
    fn from(session: Session) -> Self {
        let (external_ref_kind, external_ref_id) =
            session.external_ref.map(|external| (external.kind, external.id)).unzip();
        let (legacy_client_scope, legacy_session_key) =
            session.legacy_alias.map(|legacy| (legacy.scope, legacy.key)).unzip();
        Self {
            omi_session_id: session.id,
            owner_id: session.owner,
            agent_definition_id: session.agent_definition,
            title: session.title,
            status: session.status,
            surface_kind: session.surface_kind,
            external_ref_kind,
            external_ref_id,
            legacy_client_scope,
            legacy_session_key,
            default_adapter_id: session.adapter,
            default_cwd: session.cwd,
            model_profile: session.model_profile,
            metadata: session.metadata,
            created_at_ms: session.created_at,
            updated_at_ms: session.updated_at,
            last_activity_at_ms: session.last_activity_at,
        }
    }
}

/// A run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "each field is the one of the run")]
pub struct RunForm {
    pub run_id: RunId,
    pub omi_session_id: SessionId,
    pub parent_run_id: Option<RunId>,
    pub client_id: Option<String>,
    pub request_id: Option<String>,
    pub idempotency_key: Option<String>,
    pub status: RunStatus,
    pub mode: Mode,
    pub input: RunInput,
    pub system_prompt_hash: Option<String>,
    pub model_profile: Option<String>,
    pub requested_model_id: Option<String>,
    pub cwd: Option<String>,
    pub final_text: Option<String>,
    /// The structured output, if the run has one that fits its schema.
    pub result: Option<Value>,
    pub error_code: Option<&'static str>,
    pub error_reason: Option<String>,
    pub error_message: Option<String>,
    pub usage: Usage,
    pub created_at_ms: Time,
    pub started_at_ms: Option<Time>,
    pub completed_at_ms: Option<Time>,
    pub updated_at_ms: Time,
}

/// The input of a run: an empty object if its prompt is not known.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RunInput {
    /// The text of the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
}

impl RunForm {
    /// Builds the form of a run with the text of its prompt.
    pub fn new(run: Run, prompt: Option<String>) -> Self {
        let (error_code, error_reason, error_message) = error_fields(run.state.error());
        Self {
            run_id: run.id,
            omi_session_id: run.session,
            parent_run_id: run.parent,
            client_id: run.request.client_id.as_deref().map(|name| without_connection(name).to_owned()),
            request_id: run.request.request_id,
            idempotency_key: run.request.idempotency_key,
            status: run.state.status(),
            mode: run.mode,
            input: RunInput { prompt },
            system_prompt_hash: run.system_prompt_hash,
            model_profile: run.options.model_profile,
            requested_model_id: run.options.model,
            cwd: run.options.cwd,
            final_text: run.final_text,
            result: run.output.filter(|output| output.fits).map(|output| output.value),
            error_code,
            error_reason,
            error_message,
            usage: run.usage,
            created_at_ms: run.created_at,
            started_at_ms: run.started_at,
            completed_at_ms: run.completed_at,
            updated_at_ms: run.updated_at,
        }
    }
}

/// Returns code, reason and message of an error.
fn error_fields(error: Option<&Failure>) -> (Option<&'static str>, Option<String>, Option<String>) {
    let Some(error) = error else { return (None, None, None) };
    let (code, reason) = protocol_code(error.code.as_str());
    (Some(code), reason.map(str::to_owned), Some(error.message.clone()))
}

/// An attempt of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "each field is the one of the attempt")]
pub struct AttemptForm {
    pub attempt_id: AttemptId,
    pub run_id: RunId,
    pub attempt_no: u32,
    pub status: RunStatus,
    pub adapter_id: String,
    /// The process of the runtime, or the node if mainspring itself executes the attempt.
    pub adapter_instance_id: String,
    pub runtime_node_id: NodeId,
    pub binding_id: Option<BindingId>,
    pub adapter_native_run_id: Option<String>,
    pub resume_from_attempt_id: Option<AttemptId>,
    pub checkpoint_artifact_id: Option<ArtifactId>,
    pub retry_reason: Option<String>,
    pub retryable: bool,
    pub cancellation_requested_at_ms: Option<Time>,
    pub cancellation_dispatched_at_ms: Option<Time>,
    pub cancellation_acknowledged_at_ms: Option<Time>,
    pub error_code: Option<&'static str>,
    pub error_reason: Option<String>,
    pub error_message: Option<String>,
    pub usage: Usage,
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub metadata: Map<String, Value>,
    pub created_at_ms: Time,
    pub started_at_ms: Option<Time>,
    pub completed_at_ms: Option<Time>,
}

impl From<Attempt> for AttemptForm {
    fn from(attempt: Attempt) -> Self {
        let (error_code, error_reason, error_message) = error_fields(attempt.error.as_ref());
        Self {
            attempt_id: attempt.id,
            run_id: attempt.run,
            attempt_no: attempt.no,
            status: attempt.status,
            adapter_id: attempt.adapter,
            adapter_instance_id: attempt.instance.unwrap_or_else(|| attempt.node.to_string()),
            runtime_node_id: attempt.node,
            binding_id: attempt.binding,
            adapter_native_run_id: attempt.native_run,
            resume_from_attempt_id: attempt.resume_from,
            checkpoint_artifact_id: attempt.checkpoint,
            retry_reason: attempt.retry_reason.map(|reason| reason.name().to_owned()),
            retryable: attempt.retryable,
            cancellation_requested_at_ms: attempt.cancellation.requested_at,
            cancellation_dispatched_at_ms: attempt.cancellation.dispatched_at,
            cancellation_acknowledged_at_ms: attempt.cancellation.acknowledged_at,
            error_code,
            error_reason,
            error_message,
            usage: attempt.usage,
            metadata: attempt.metadata,
            created_at_ms: attempt.created_at,
            started_at_ms: attempt.started_at,
            completed_at_ms: attempt.completed_at,
        }
    }
}

/// A binding.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "each field is the one of the binding")]
pub struct BindingForm {
    pub binding_id: BindingId,
    pub omi_session_id: SessionId,
    pub adapter_id: String,
    pub binding_generation: u32,
    pub adapter_native_session_id: Option<String>,
    pub adapter_instance_id: Option<String>,
    pub resume_fidelity: Fidelity,
    pub status: BindingStatus,
    pub cwd: Option<String>,
    pub model_id: Option<String>,
    pub system_prompt_hash: Option<String>,
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub metadata: Map<String, Value>,
    pub created_at_ms: Time,
    pub updated_at_ms: Time,
    pub last_used_at_ms: Option<Time>,
    pub invalidated_at_ms: Option<Time>,
    pub invalidation_reason: Option<String>,
}

impl From<Binding> for BindingForm {
    fn from(binding: Binding) -> Self {
        Self {
            binding_id: binding.id,
            omi_session_id: binding.session,
            adapter_id: binding.adapter,
            binding_generation: binding.generation,
            adapter_native_session_id: binding.native,
            adapter_instance_id: binding.instance,
            resume_fidelity: binding.fidelity,
            status: binding.status,
            cwd: binding.cwd,
            model_id: binding.model,
            system_prompt_hash: binding.system_prompt_hash,
            metadata: binding.metadata,
            created_at_ms: binding.created_at,
            updated_at_ms: binding.updated_at,
            last_used_at_ms: binding.last_used_at,
            invalidated_at_ms: binding.invalidated_at,
            invalidation_reason: binding.invalidation_reason,
        }
    }
}

/// An artifact.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "each field is the one of the artifact")]
pub struct ArtifactForm {
    pub artifact_id: ArtifactId,
    pub omi_session_id: SessionId,
    pub run_id: Option<RunId>,
    pub attempt_id: Option<AttemptId>,
    pub kind: String,
    pub role: ArtifactRole,
    pub uri: String,
    pub display_name: Option<String>,
    pub mime_type: Option<String>,
    pub content_hash: Option<String>,
    pub size_bytes: Option<u64>,
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub metadata: Map<String, Value>,
    pub created_at_ms: Time,
}

impl From<Artifact> for ArtifactForm {
    fn from(artifact: Artifact) -> Self {
        Self {
            artifact_id: artifact.id,
            omi_session_id: artifact.session,
            run_id: artifact.run,
            attempt_id: artifact.attempt,
            kind: artifact.kind,
            role: artifact.role,
            uri: artifact.uri,
            display_name: artifact.name,
            mime_type: artifact.mime_type,
            content_hash: artifact.content_hash,
            size_bytes: artifact.size_bytes,
            metadata: artifact.metadata,
            created_at_ms: artifact.created_at,
        }
    }
}

/// An event.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "each field is the one of the event")]
pub struct EventForm {
    pub event_seq: Cursor,
    pub event_id: EventId,
    pub omi_session_id: SessionId,
    pub run_id: Option<RunId>,
    pub attempt_id: Option<AttemptId>,
    pub r#type: &'static str,
    /// `core`, or `transient` for progress that a later event supersedes.
    pub retention_class: &'static str,
    /// `ui`, or `internal` for events about how a run is executed, such as `attempt.created`.
    pub visibility: &'static str,
    pub payload: Value,
    pub created_at_ms: Time,
}

impl From<Event> for EventForm {
    fn from(event: Event) -> Self {
        let payload = match serde_json::to_value(&event.body) {
            Ok(Value::Object(mut body)) => body.remove("payload"),
            _ => None,
        };
        Self {
            event_seq: event.cursor,
            event_id: event.id,
            omi_session_id: event.session,
            run_id: event.run,
            attempt_id: event.attempt,
            r#type: event.body.kind(),
            retention_class: Body::retention_class(event.body.kind()),
            visibility: Body::visibility(event.body.kind()),
            payload: payload.unwrap_or_else(|| Value::Object(Map::new())),
            created_at_ms: event.at,
        }
    }
}

/// A delegation.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "each field is the one of the delegation")]
pub struct DelegationForm {
    pub delegation_id: DelegationId,
    pub parent_omi_session_id: SessionId,
    pub parent_run_id: RunId,
    pub child_omi_session_id: SessionId,
    pub child_run_id: RunId,
    pub mode: DelegationMode,
    pub status: DelegationStatus,
    pub objective: String,
    pub request: DelegationInput,
    pub result_artifact_id: Option<ArtifactId>,
    pub created_at_ms: Time,
    pub completed_at_ms: Option<Time>,
}

/// The request that made a delegation: an empty object in older delegations.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DelegationInput {
    /// Whether the parent waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<DelegationMode>,
    /// The objective of the child.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objective: Option<String>,
    /// The context for the child; null if the request gave none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub context: Option<Option<String>>,
}

impl From<Delegation> for DelegationForm {
    fn from(delegation: Delegation) -> Self {
        let request = match delegation.request.is_absent() {
            true => DelegationInput::default(),
            false => DelegationInput {
                mode: Some(delegation.mode),
                objective: Some(delegation.objective.clone()),
                context: Some(delegation.request.context().map(str::to_owned)),
            },
        };
        Self {
            delegation_id: delegation.id,
            parent_omi_session_id: delegation.parent_session,
            parent_run_id: delegation.parent_run,
            child_omi_session_id: delegation.child_session,
            child_run_id: delegation.child_run,
            mode: delegation.mode,
            status: delegation.status,
            objective: delegation.objective,
            request,
            result_artifact_id: delegation.result,
            created_at_ms: delegation.created_at,
            completed_at_ms: delegation.completed_at,
        }
    }
}

/// The result of a delegation.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "each field is the one of the result")]
pub struct DelegationResultForm {
    pub summary: String,
    pub artifacts: Vec<ArtifactForm>,
    pub verified_effects: Vec<DoneEffect>,
    pub open_questions: Vec<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub events_pruned: bool,
    pub usage: Usage,
}

impl From<DelegationResult> for DelegationResultForm {
    fn from(result: DelegationResult) -> Self {
        Self {
            summary: result.summary,
            artifacts: result.artifacts.into_iter().map(ArtifactForm::from).collect(),
            verified_effects: result.verified_effects,
            open_questions: result.open_questions,
            events_pruned: result.events_pruned,
            usage: result.usage,
        }
    }
}
