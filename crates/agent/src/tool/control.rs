//! The built-in tools for other sessions and runs: the control tools, on the kernel that executes the agent.
//!
//! The native agent has its own tool for delegation, whose child runs on the parent's permit.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use mainspring_control::{ControlTools, DELEGATE, SEND};

use super::{Tool, ToolCall, ToolError, ToolTraits};
use crate::provider::ToolSpec;

/// The timeout of a tool that reads or cancels.
const TIMEOUT_MS: u64 = 60_000;
/// The timeout of a tool that waits for the answer of another session. That session may need the permit that the calling
/// run holds, so the wait must end.
const REPLY_TIMEOUT_MS: u64 = 10 * 60_000;

pub(super) fn tools() -> Vec<Arc<dyn Tool>> {
    let others = mainspring_control::tools().into_iter().filter(|tool| tool.name != DELEGATE);
    others.map(|tool| Arc::new(ControlTool::new(tool)) as Arc<dyn Tool>).collect()
}

struct ControlTool {
    spec: ToolSpec,
}

impl ControlTool {
    fn new(tool: mainspring_control::ToolSpec) -> Self {
        let mainspring_control::ToolSpec { name, description, schema } = tool;
        Self { spec: ToolSpec { name: name.into(), description: description.into(), schema } }
    }
}

#[async_trait]
impl Tool for ControlTool {
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    fn traits(&self) -> ToolTraits {
        let timeout_ms = if self.spec.name == SEND { REPLY_TIMEOUT_MS } else { TIMEOUT_MS };
        // A second message with the same id finds the run of the first.
        ToolTraits { idempotent: true, timeout_ms, leaves_session: true }
    }

    async fn call(&self, call: ToolCall) -> Result<String, ToolError> {
        let tools = ControlTools {
            plane: &call.context.control().await?,
            session: Some(call.session),
            run: Some(call.run),
            aliases: &HashMap::new(),
            client_id: &call.run.to_string(),
            request_id: &call.id,
            run_of: &|_| None,
        };
        tools.call(&self.spec.name, call.input).await.map_err(ToolError)
    }
}
