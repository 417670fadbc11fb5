//! The built-in tool that delegates: work for a session of its own.

use std::sync::Arc;

use mainspring_core::{DelegationMode, Mode, RequestName, RunOptions, SessionId};
use mainspring_kernel::kernel::{DelegationRequest, NewSession, SessionTarget};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::{Tool, ToolCall, ToolError, function};

/// How long a result is waited for: as long as a run waits for a person.
const PATIENCE: u64 = 24 * 60 * 60 * 1_000;

pub(super) fn tool() -> Arc<dyn Tool> {
    let told = "Hands work to an agent session of its own, which sees only the objective and the context you give it. \
                Call several at once to have them work side by side.";
    // A second call with the same id finds the same child.
    Arc::new(function("delegate_agent", told, delegate).idempotent().timeout(PATIENCE))
}

/// How to delegate.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum How {
    /// Wait for the result.
    #[default]
    Call,
    /// Go on at once; nobody tells you the result.
    Spawn,
    /// Give an earlier child more to do, and wait for the result.
    Continue,
}

#[derive(Deserialize, JsonSchema)]
struct Work {
    /// What is to be achieved.
    objective: String,
    /// What the child needs to know for that, at most 4000 characters.
    #[serde(default)]
    context: Option<String>,
    /// How; call if not given.
    #[serde(default)]
    mode: How,
    /// The session of an earlier child, to continue.
    #[serde(default)]
    session_id: Option<String>,
    /// Whether the child may use tools; it only answers if not given.
    #[serde(default)]
    may_act: bool,
    /// The agent that does it, such as "reviewer@1"; one like you if not given.
    #[serde(default)]
    agent: Option<String>,
    /// The agent runtime; yours if not given.
    #[serde(default)]
    adapter: Option<String>,
    /// The model; that of the agent if not given.
    #[serde(default)]
    model: Option<String>,
    /// What to call the child's session.
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
    let made = call.desk.delegate(wanted).await?;
    let handles = json!({
        "delegation_id": made.delegation.id,
        "session_id": made.session.id,
        "run_id": made.run.id,
    });
    if !mode.is_awaited() {
        return Ok(json!({"delegated": handles, "status": made.delegation.status}).to_string());
    }
    let (settled, result) = call.desk.settled(made.delegation.id).await?;
    Ok(json!({"delegated": handles, "status": settled.status, "result": result}).to_string())
}
