//! The built-in tools for other sessions and runs: the control tools, on the kernel that executes the agent.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use mainspring_control::{ControlToolSpec, ControlTools, DELEGATE, SEND};
use serde_json::Value;

use super::{Tool, ToolCall, ToolError, ToolTraits};
use crate::provider::ToolSpec;

/// The timeout of a tool that reads or cancels.
const TIMEOUT_MS: u64 = 60_000;
/// The timeout of a tool that waits for the answer of another session. That session may need the permit that the calling
/// run holds, so the wait must end.
const REPLY_TIMEOUT_MS: u64 = 10 * 60_000;
/// The timeout of a tool that waits for a child: as long as a run waits for a person. The child runs on the permit of the
/// calling run.
const RESULT_TIMEOUT_MS: u64 = 24 * 60 * 60_000;

pub(super) fn tools() -> Vec<Arc<dyn Tool>> {
    mainspring_control::specs().map(|spec| Arc::new(ControlTool::new(spec)) as Arc<dyn Tool>).collect()
}

struct ControlTool {
    spec: ToolSpec,
}

impl ControlTool {
    fn new(tool: ControlToolSpec) -> Self {
        let schema = Value::Object(tool.input_schema);
        Self { spec: ToolSpec { name: tool.name.into(), description: tool.description.into(), schema } }
    }
}

#[async_trait]
impl Tool for ControlTool {
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    fn traits(&self) -> ToolTraits {
        let timeout_ms = match self.spec.name.as_str() {
            SEND => REPLY_TIMEOUT_MS,
            DELEGATE => RESULT_TIMEOUT_MS,
            _ => TIMEOUT_MS,
        };
        // A second call with the same id finds the run of the first call. A child belongs to the delegating session.
        ToolTraits { idempotent: true, timeout_ms, leaves_session: self.spec.name != DELEGATE }
    }

    async fn call(&self, call: ToolCall) -> Result<String, ToolError> {
        let tools = ControlTools {
            plane: &call.context.control()?,
            session: Some(call.session),
            run: Some(call.run),
            aliases: &HashMap::new(),
            client_id: &call.run.to_string(),
            request_id: &call.id,
            // The child gets a share of the limits of its parent.
            default_budget_usd: None,
        };
        tools.call(&self.spec.name, call.input).await.map_err(ToolError)
    }
}
