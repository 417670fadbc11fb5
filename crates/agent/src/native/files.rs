//! Files in requests: images and PDFs are sent as they are, text files as text, other files by name only.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mainspring_core::{Artifact, ArtifactId, Block, Message};
use mainspring_kernel::adapter::{AttemptHandle, Context, HandleError};

use super::Exit;
use crate::provider::Part;

/// The maximum size of an image or a PDF in a request.
const MAX_FILE_BYTES: u64 = 20 << 20;

/// The files that messages of the path refer to. Each is read once.
#[derive(Debug, Default)]
pub(super) struct Files(HashMap<ArtifactId, Part>);

impl Files {
    /// Reads the files that `context` and the prompt refer to. A text file is cut after `max_text_bytes`.
    pub(super) async fn read(
        &mut self,
        attempt: &AttemptHandle,
        context: &Context,
        max_text_bytes: usize,
    ) -> Result<(), Exit> {
        let prompt = &attempt.assignment().prompt;
        let messages =
            context.messages.iter().map(|(_, message)| message).chain(&context.prompt).chain([prompt]);
        let attached: Vec<(ArtifactId, Option<String>)> = messages.flat_map(attachments).collect();
        for (id, name) in attached {
            if let Entry::Vacant(entry) = self.0.entry(id) {
                entry.insert(load(attempt, id, name.as_deref(), max_text_bytes).await?);
            }
        }
        Ok(())
    }

    /// Returns the part of a request that holds the file.
    pub(super) fn part(&self, id: ArtifactId) -> Part {
        self.0
            .get(&id)
            .cloned()
            .unwrap_or_else(|| Part::Text(format!("[file {id}: it cannot be shown here]")))
    }
}

fn attachments(message: &Arc<Message>) -> Vec<(ArtifactId, Option<String>)> {
    let attachment = |block: &Block| match block {
        Block::Attachment { artifact, name, .. } => Some((*artifact, name.clone())),
        _ => None,
    };
    message.content.iter().filter_map(attachment).collect()
}

async fn load(
    attempt: &AttemptHandle,
    id: ArtifactId,
    name: Option<&str>,
    max_text_bytes: usize,
) -> Result<Part, Exit> {
    let unreadable = |error: HandleError| match error {
        HandleError::Revoked => Err(Exit::from(HandleError::Revoked)),
        HandleError::Kernel(error) => Ok(Part::Text(format!("[file {id}: it cannot be read: {error}]"))),
    };
    let artifact = match attempt.artifact_get(id).await {
        Ok(artifact) => artifact,
        Err(error) => return unreadable(error),
    };
    let Artifact { size_bytes, mime_type, .. } = &artifact;
    let (size, mime_type) = (size_bytes.unwrap_or(0), mime_type.as_deref().unwrap_or_default());
    let essence = mime_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let name = name.or(artifact.name.as_deref()).unwrap_or("without a name");
    let label = format!("file {name}, {mime_type}, {size} bytes, artifact {id}");
    let binary = is_image(&essence) || essence == "application/pdf";
    let length = match () {
        () if binary && size > MAX_FILE_BYTES => {
            return Ok(Part::Text(format!("[{label}: it is too large to be shown here]")));
        }
        () if binary => size,
        () if is_text(&essence) => size.min(max_text_bytes as u64),
        () => return Ok(Part::Text(format!("[{label}: its content cannot be shown here]"))),
    };
    let bytes = match attempt.artifact_read(&artifact, 0, length).await {
        Ok(bytes) => bytes,
        Err(error) => return unreadable(error),
    };
    if binary {
        let data = STANDARD.encode(&bytes).into();
        return Ok(Part::File { mime_type: essence, data, name: Some(name.to_owned()) });
    }
    let text = String::from_utf8_lossy(&bytes);
    // Drops a character that was cut in half at the end.
    let text = text.trim_end_matches('\u{FFFD}');
    Ok(Part::Text(match length < size {
        true => format!("[{label}: its first {length} bytes]\n{text}\n[the rest is in the artifact]"),
        false => format!("[{label}]\n{text}\n[end of the file]"),
    }))
}

/// Returns true for image types that every protocol accepts.
fn is_image(essence: &str) -> bool {
    matches!(essence, "image/png" | "image/jpeg" | "image/gif" | "image/webp")
}

fn is_text(essence: &str) -> bool {
    let suffixes = ["json", "xml", "yaml", "toml", "javascript", "typescript", "x-sh", "sql"];
    essence.starts_with("text/")
        || essence
            .strip_prefix("application/")
            .is_some_and(|kind| suffixes.iter().any(|suffix| kind.ends_with(suffix)))
}
