//! JSON forms of the control tools: one row of the specification's tables each, where a session's id is `omiSessionId`.

use mainspring_api::jsonl::codes::protocol_code;
use mainspring_core::{Artifact, Attempt, Binding, Delegation, Event, Run, Session};
use serde_json::{Value, json};

pub(super) fn session(session: &Session) -> Value {
    let (external, legacy) = (session.external_ref.as_ref(), session.legacy_alias.as_ref());
    json!({
        "omiSessionId": session.id,
        "ownerId": session.owner,
        "agentDefinitionId": session.agent_definition,
        "title": session.title,
        "status": session.status,
        "surfaceKind": session.surface_kind,
        "externalRefKind": external.map(|external| &external.kind),
        "externalRefId": external.map(|external| &external.id),
        "legacyClientScope": legacy.map(|legacy| &legacy.scope),
        "legacySessionKey": legacy.map(|legacy| &legacy.key),
        "defaultAdapterId": session.adapter,
        "defaultCwd": session.cwd,
        "modelProfile": session.model_profile,
        "metadata": session.metadata,
        "createdAtMs": session.created_at,
        "updatedAtMs": session.updated_at,
        "lastActivityAtMs": session.last_activity_at,
    })
}

pub(super) fn delegation(delegation: &Delegation, request: &Value) -> Value {
    json!({
        "delegationId": delegation.id,
        "parentOmiSessionId": delegation.parent_session,
        "parentRunId": delegation.parent_run,
        "childOmiSessionId": delegation.child_session,
        "childRunId": delegation.child_run,
        "mode": delegation.mode,
        "status": delegation.status,
        "objective": delegation.objective,
        "request": request,
        "resultArtifactId": delegation.result,
        "createdAtMs": delegation.created_at,
        "completedAtMs": delegation.completed_at,
    })
}

pub(super) fn run(run: &Run, prompt: Option<&str>, final_text: Option<&str>) -> Value {
    let error = run.state.error();
    json!({
        "runId": run.id,
        "omiSessionId": run.session,
        "parentRunId": run.parent,
        // `#…` scopes the requests of a client without an id to its connection; it is not part of the id.
        "clientId": run.request.client_id.as_deref().map(|name| name.split('#').next()),
        "requestId": run.request.request_id,
        "idempotencyKey": run.request.idempotency_key,
        "status": run.state.status(),
        "mode": run.mode,
        "input": prompt.map_or_else(|| json!({}), |prompt| json!({"prompt": prompt})),
        "modelProfile": run.options.model_profile,
        "requestedModelId": run.options.model,
        "cwd": run.options.cwd,
        "finalText": final_text,
        "result": null,
        "errorCode": error.map(|error| protocol_code(&error.code).0),
        "errorReason": error.and_then(|error| protocol_code(&error.code).1),
        "errorMessage": error.map(|error| &error.message),
        "usage": run.usage,
        "createdAtMs": run.created_at,
        "startedAtMs": run.started_at,
        "completedAtMs": run.completed_at,
        "updatedAtMs": run.updated_at,
    })
}

pub(super) fn attempt(attempt: &Attempt) -> Value {
    json!({
        "attemptId": attempt.id,
        "runId": attempt.run,
        "attemptNo": attempt.no,
        "status": attempt.status,
        "adapterId": attempt.adapter,
        "runtimeNodeId": attempt.node,
        "bindingId": attempt.binding,
        "resumeFromAttemptId": attempt.resume_from,
        "retryReason": attempt.error.as_ref().filter(|_| attempt.retryable).map(|error| &error.code),
        "retryable": attempt.retryable,
        "cancellationRequestedAtMs": attempt.cancellation.requested_at,
        "cancellationDispatchedAtMs": attempt.cancellation.dispatched_at,
        "cancellationAcknowledgedAtMs": attempt.cancellation.acknowledged_at,
        "errorCode": attempt.error.as_ref().map(|error| protocol_code(&error.code).0),
        "errorReason": attempt.error.as_ref().and_then(|error| protocol_code(&error.code).1),
        "errorMessage": attempt.error.as_ref().map(|error| &error.message),
        "usage": attempt.usage,
        "metadata": {},
        "createdAtMs": attempt.created_at,
        "startedAtMs": attempt.started_at,
        "completedAtMs": attempt.completed_at,
    })
}

pub(super) fn binding(binding: &Binding) -> Value {
    json!({
        "bindingId": binding.id,
        "omiSessionId": binding.session,
        "adapterId": binding.adapter,
        "bindingGeneration": binding.generation,
        "adapterNativeSessionId": binding.native,
        "adapterInstanceId": null,
        "resumeFidelity": binding.fidelity,
        "status": binding.status,
        "cwd": binding.cwd,
        "modelId": null,
        "metadata": {},
        "createdAtMs": binding.created_at,
        "updatedAtMs": binding.updated_at,
    })
}

pub(super) fn artifact(artifact: &Artifact) -> Value {
    json!({
        "artifactId": artifact.id,
        "omiSessionId": artifact.session,
        "runId": artifact.run,
        "attemptId": artifact.attempt,
        "kind": artifact.kind,
        "role": artifact.role,
        "uri": artifact.uri,
        "displayName": artifact.name,
        "mimeType": artifact.mime_type,
        "contentHash": artifact.content_hash,
        "sizeBytes": artifact.size_bytes,
        "metadata": {},
        "createdAtMs": artifact.created_at,
    })
}

pub(super) fn event(event: &Event) -> Value {
    let body = serde_json::to_value(&event.body).unwrap_or_default();
    json!({
        "eventSeq": event.cursor,
        "eventId": event.id,
        "omiSessionId": event.session,
        "runId": event.run,
        "attemptId": event.attempt,
        "type": event.body.kind(),
        "retentionClass": "core",
        "visibility": "ui",
        "payload": body.get("payload").cloned().unwrap_or_else(|| json!({})),
        "createdAtMs": event.at,
    })
}
