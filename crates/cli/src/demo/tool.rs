//! The tool of the demo.

use async_trait::async_trait;
use mainspring_agent::provider::ToolSpec;
use mainspring_agent::tool::{Tool, ToolCall, ToolError};
use serde_json::json;

/// Adds two numbers.
pub(super) struct Add;

#[async_trait]
impl Tool for Add {
    fn spec(&self) -> ToolSpec {
        let schema = json!({
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        });
        ToolSpec { name: "add".into(), description: "Adds two numbers.".into(), schema }
    }

    async fn call(&self, call: ToolCall) -> Result<String, ToolError> {
        match (call.input["a"].as_f64(), call.input["b"].as_f64()) {
            (Some(a), Some(b)) => Ok((a + b).to_string()),
            _ => Err(ToolError::new("a and b must be numbers")),
        }
    }
}
