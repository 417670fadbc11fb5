//! The built-in tool that delegates work to another session.

use std::sync::Arc;

use mainspring_core::{DelegationMode, Mode, RequestName, RunOptions, SessionId};
use mainspring_kernel::kernel::{DelegationRequest, NewSession, SessionTarget};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::{Tool, ToolCall, ToolError, function};

/// How long the tool waits for a result: as long as a run waits for a person.
const RESULT_TIMEOUT_MS: u64 = 24 * 60 * 60 * 1_000;

pub(super) fn tool() -> Arc<dyn Tool> {
    let description = "Hands work to another agent session, which sees only the objective and the context you give it. \
                       Make several calls at once to run them in parallel.";
    // A second call with the same id finds the same child.
    Arc::new(function("delegate_agent", description, delegate).idempotent().timeout(RESULT_TIMEOUT_MS))
}

/// The mode of a delegation.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum How {
    /// Wait for the result.
    #[default]
    Call,
    /// Continue at once, without the result.
    Spawn,
    /// Give an earlier child another objective and wait for the result.
    Continue,
}

#[derive(Deserialize, JsonSchema)]
struct Work {
    /// The goal of the child.
    objective: String,
    /// Information that the child needs, at most 4000 characters.
    #[serde(default)]
    context: Option<String>,
    /// The mode; call if not given.
    #[serde(default)]
    mode: How,
    /// The session of an earlier child, for mode continue.
    #[serde(default)]
    session_id: Option<String>,
    /// Whether the child may use tools; if not given, it can only answer.
    #[serde(default)]
    may_act: bool,
    /// The agent definition of the child, such as "reviewer@1"; yours if not given.
    #[serde(default)]
    agent: Option<String>,
    /// The agent runtime; yours if not given.
    #[serde(default)]
    adapter: Option<String>,
    /// The model; the one of the agent definition if not given.
    #[serde(default)]
    model: Option<String>,
    /// The title of the child's session.
    #[serde(default)]
    title: Option<String>,
}

async fn delegate(call: ToolCall, work: Work) -> Result<String, ToolError> {
    let mode = match work.mode {
        How::Call => DelegationMode::Call,
        How::Spawn => DelegationMode::Spawn,
        How::Continue => DelegationMode::Continue,
    };
    let id = work.session_id.as_deref().map(str::parse::<SessionId>).transpose();
    let id = id.map_err(|bad| ToolError::new(bad.to_string()))?;
    let wanted = DelegationRequest {
        context: work.context,
        session: SessionTarget {
            id,
            new: NewSession {
                title: work.title,
                agent_definition: work.agent,
                adapter: work.adapter,
                ..NewSession::default()
            },
            ..SessionTarget::default()
        },
        run_mode: if work.may_act { Mode::Act } else { Mode::Ask },
        options: RunOptions { model: work.model, ..RunOptions::default() },
        name: RequestName {
            client_id: Some(call.run.to_string()),
            request_id: Some(call.id.clone()),
            idempotency_key: None,
        },
        ..DelegationRequest::new(mode, work.objective)
    };
    let made = call.context.delegate(wanted).await?;
    let handles = json!({
        "delegation_id": made.delegation.id,
        "session_id": made.session.id,
        "run_id": made.run.id,
    });
    if !mode.is_awaited() {
        return Ok(json!({"delegated": handles, "status": made.delegation.status}).to_string());
    }
    let (settled, result) = call.context.settled(made.delegation.id).await?;
    Ok(json!({"delegated": handles, "status": settled.status, "result": result}).to_string())
}
