//! The built-in tool that delegates work to another session.
//!
//! Its input has the names that models know from the other built-in tools. The work itself is a request of the API.

use std::borrow::Cow;
use std::sync::Arc;

use mainspring_api::{Delegate, SessionTarget};
use mainspring_core::{DelegationMode, Mode, RunOptions, SessionId};
use mainspring_kernel::kernel::DelegationRequest;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::json;

use super::{Tool, ToolCall, ToolError, function};

/// How long the tool waits for a result: as long as a run waits for a person.
const RESULT_TIMEOUT_MS: u64 = 24 * 60 * 60 * 1_000;

pub(super) fn tool() -> Arc<dyn Tool> {
    let description = "Hands work to another agent session, which sees only the objective and the context you give it. \
                       Make several calls at once to run them in parallel.";
    // A second call with the same id finds the same child.
    Arc::new(
        function(mainspring_control::DELEGATE, description, delegate).idempotent().timeout(RESULT_TIMEOUT_MS),
    )
}

/// The mode of a delegation, described for a model.
#[derive(Clone, Copy, Deserialize)]
#[serde(transparent)]
struct ModeInput(DelegationMode);

impl Default for ModeInput {
    fn default() -> Self {
        Self(DelegationMode::Call)
    }
}

impl JsonSchema for ModeInput {
    fn schema_name() -> Cow<'static, str> {
        "How".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mode = |mode: DelegationMode, description: &str| json!({"type": "string", "const": mode, "description": description});
        json_schema!({
            "description": "The mode of a delegation.",
            "oneOf": [
                mode(DelegationMode::Call, "Wait for the result."),
                mode(DelegationMode::Spawn, "Continue at once, without the result."),
                mode(DelegationMode::Continue, "Give an earlier child another objective and wait for the result."),
            ],
        })
    }
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Work")]
struct DelegateInput {
    /// The goal of the child.
    objective: String,
    /// Information that the child needs, at most 4000 characters.
    #[serde(default)]
    context: Option<String>,
    /// The mode; call if not given.
    #[serde(default)]
    mode: ModeInput,
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

impl DelegateInput {
    /// Converts the input of a call to a request of the API. A repeated call is the same request.
    fn into_request(self, call: &ToolCall) -> Result<Delegate, ToolError> {
        let session_id = self.session_id.as_deref().map(str::parse::<SessionId>).transpose();
        Ok(Delegate {
            context: self.context,
            session: SessionTarget {
                session_id: session_id.map_err(|bad| ToolError::new(bad.to_string()))?,
                title: self.title,
                agent_definition: self.agent,
                adapter: self.adapter,
                ..SessionTarget::default()
            },
            run_mode: if self.may_act { Mode::Act } else { Mode::Ask },
            options: RunOptions { model: self.model, ..RunOptions::default() },
            client_id: Some(call.run.to_string()),
            request_id: Some(call.id.clone()),
            ..Delegate::new(self.mode.0, self.objective)
        })
    }
}

async fn delegate(call: ToolCall, input: DelegateInput) -> Result<String, ToolError> {
    let mode = input.mode.0;
    let request = DelegationRequest::try_from(input.into_request(&call)?);
    let request = request.map_err(|error| ToolError::new(error.to_string()))?;
    let made = call.context.delegate(request).await?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_input_schema_names_every_mode() {
        let schema = tool().spec().schema;
        let mode = json!({"$ref": "#/$defs/How", "description": "The mode; call if not given."});
        assert_eq!((&schema["title"], &schema["properties"]["mode"]), (&json!("Work"), &mode));
        assert_eq!(schema["required"], json!(["objective"]));
        let modes = json!({
            "description": "The mode of a delegation.",
            "oneOf": [
                {"type": "string", "const": "call", "description": "Wait for the result."},
                {"type": "string", "const": "spawn", "description": "Continue at once, without the result."},
                {
                    "type": "string",
                    "const": "continue",
                    "description": "Give an earlier child another objective and wait for the result.",
                },
            ],
        });
        assert_eq!(schema["$defs"], json!({"How": modes}));
    }
}
