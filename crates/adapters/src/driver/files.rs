//! Files of a prompt, as they are handed to an agent.

use mainspring_core::{ArtifactId, Failure, Message};
use mainspring_kernel::adapter::{AttemptHandle, HandleError};
use tokio::io::AsyncReadExt;

/// How large a file may be that is handed over.
const FILE: u64 = 20 << 20;

/// The bytes of a file that `prompt` names.
pub(crate) async fn attached(
    attempt: &AttemptHandle,
    prompt: &Message,
    id: ArtifactId,
) -> Result<Vec<u8>, Failure> {
    let (artifact, mut reader) = attempt.attachment(prompt, id).await.map_err(|error| match error {
        HandleError::Kernel(error) => Failure::new(error.code(), error.to_string()),
        HandleError::Revoked => Failure::new("cancelled", error.to_string()),
    })?;
    if artifact.size_bytes.is_some_and(|size| size > FILE) {
        let message = format!("the attachment {id} is larger than {} MB; attach a smaller one", FILE >> 20);
        return Err(Failure::new("invalid_request", message));
    }
    let mut bytes = vec![];
    let read = reader.read_to_end(&mut bytes).await;
    read.map_err(|error| {
        Failure::new("unavailable", format!("the attachment {id} could not be read: {error}"))
    })?;
    Ok(bytes)
}
