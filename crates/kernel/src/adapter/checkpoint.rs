//! Checkpoints: the state that an earlier attempt of a run has saved as an artifact.

use mainspring_core::Artifact;

use super::{AttemptHandle, HandleError};
use crate::error::Error;

/// The largest checkpoint that an agent gets with its prompt.
pub const MAX_CHECKPOINT_BYTES: u64 = 100 << 10;

impl AttemptHandle {
    /// Describes the checkpoint that the attempt continues from, as text for an agent. Includes the content if it has
    /// at most `max_bytes`. `None` if there is no checkpoint or it was deleted.
    pub async fn checkpoint_text(&self, max_bytes: u64) -> Result<Option<String>, HandleError> {
        let Some(id) = self.assignment().attempt.checkpoint else { return Ok(None) };
        let artifact = match self.artifact_get(id).await {
            Ok(artifact) => artifact,
            Err(HandleError::Kernel(Error::NotFound { .. })) => return Ok(None),
            Err(error) => return Err(error),
        };
        let content = match artifact.size_bytes {
            Some(size) if size <= max_bytes => {
                // The attempt continues without the content if the checkpoint cannot be read.
                let bytes = self.artifact_read(&artifact, 0, max_bytes).await.inspect_err(|error| {
                    tracing::warn!(%error, %id, "a checkpoint cannot be read");
                });
                bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok())
            }
            _ => None,
        };
        Ok(Some(describe(&artifact, content.as_deref())))
    }
}

fn describe(artifact: &Artifact, content: Option<&str>) -> String {
    let name = artifact.name.as_deref().unwrap_or("without a name");
    let content = match content {
        Some(content) => format!("\n{}\n", content.trim_end_matches('\n')),
        None => "(its content is not text, too long or unreadable)".to_owned(),
    };
    format!(
        "<checkpoint artifact=\"{}\" name={name:?}>{content}</checkpoint>\nAn earlier attempt at this task was \
         interrupted. The checkpoint above is the last one that it has saved: go on from there.",
        artifact.id
    )
}
