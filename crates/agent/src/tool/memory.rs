//! The tool with which an agent proposes a fact to remember.

use std::sync::Arc;

use mainspring_core::ArtifactRole;
use mainspring_core::memory::{CANDIDATE_BYTES, CANDIDATE_KIND, UNCERTAINTY};
use mainspring_kernel::adapter::NewArtifact;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, json};

use super::{Tool, ToolCall, ToolError, function};

/// Returns the tool. Its proposals leave the session, so an agent definition must name the tool.
pub(super) fn tool() -> Arc<dyn Tool> {
    let description = "Proposes a fact about the person or their work to remember for later conversations. Somebody \
                       else decides whether it is remembered.";
    Arc::new(function("memory_propose", description, propose).leaves_session())
}

#[derive(Deserialize, JsonSchema)]
struct Proposal {
    /// The fact, in a sentence that is understood without this conversation.
    text: String,
    /// How uncertain the fact is: 0 if it is certain, 1 if it is a guess.
    uncertainty: f64,
}

async fn propose(call: ToolCall, Proposal { text, uncertainty }: Proposal) -> Result<String, ToolError> {
    if text.trim().is_empty() || text.len() > CANDIDATE_BYTES {
        return Err(ToolError(format!("the text must have 1 to {CANDIDATE_BYTES} bytes")));
    }
    let new = NewArtifact {
        kind: CANDIDATE_KIND.into(),
        role: ArtifactRole::Other,
        name: None,
        mime_type: Some("text/plain".into()),
        metadata: Map::from_iter([(UNCERTAINTY.to_owned(), json!(uncertainty))]),
        ..NewArtifact::default()
    };
    let artifact = call.context.artifact_write(new, text.as_bytes()).await?;
    Ok(json!({"proposed": artifact.id, "decision": "pending"}).to_string())
}
