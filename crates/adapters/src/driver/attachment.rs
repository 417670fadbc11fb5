//! Attachments of a prompt.

use mainspring_core::{ArtifactId, Failure, Message};
use mainspring_kernel::adapter::{AttemptHandle, HandleError};
use tokio::io::AsyncReadExt;

/// The largest attachment that an agent is given.
const MAX_ATTACHMENT_BYTES: u64 = 20 << 20;

/// Reads an attachment of `prompt`.
pub(crate) async fn read_attachment(
    attempt: &AttemptHandle,
    prompt: &Message,
    id: ArtifactId,
) -> Result<Vec<u8>, Failure> {
    let (artifact, mut reader) = attempt.attachment(prompt, id).await.map_err(|error| match error {
        HandleError::Kernel(error) => Failure::new(error.code(), error.to_string()),
        HandleError::Revoked => Failure::new("cancelled", error.to_string()),
    })?;
    if artifact.size_bytes.is_some_and(|size| size > MAX_ATTACHMENT_BYTES) {
        let limit = MAX_ATTACHMENT_BYTES >> 20;
        let message = format!("the attachment {id} is larger than {limit} MB; attach a smaller one");
        return Err(Failure::new("invalid_request", message));
    }
    let mut bytes = vec![];
    let read = reader.read_to_end(&mut bytes).await;
    read.map_err(|error| {
        Failure::new("unavailable", format!("the attachment {id} could not be read: {error}"))
    })?;
    Ok(bytes)
}
