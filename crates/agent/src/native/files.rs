//! Files of a conversation as a model is shown them: images and PDF as they are, texts as text, others by name.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mainspring_core::{Artifact, ArtifactId, Block, Message};
use mainspring_kernel::adapter::{AttemptHandle, Context, HandleError};

use super::Stop;
use crate::provider::Part;

/// Bytes of an image or a PDF that is sent to a model.
const FILE_BYTES: u64 = 20 << 20;

/// The files that the messages of a run name, read once.
#[derive(Debug, Default)]
pub(super) struct Files(HashMap<ArtifactId, Part>);

impl Files {
    /// Reads what `context` and the prompt name and is not known yet. `shown` is how many bytes of a text are shown.
    pub(super) async fn read(
        &mut self,
        attempt: &AttemptHandle,
        context: &Context,
        shown: usize,
    ) -> Result<(), Stop> {
        let prompt = &attempt.assignment().prompt;
        let messages =
            context.messages.iter().map(|(_, message)| message).chain(&context.prompt).chain([prompt]);
        let named: Vec<(ArtifactId, Option<String>)> = messages.flat_map(attached).collect();
        for (id, name) in named {
            if let Entry::Vacant(unknown) = self.0.entry(id) {
                unknown.insert(load(attempt, id, name.as_deref(), shown).await?);
            }
        }
        Ok(())
    }

    /// A file as a model is shown it.
    pub(super) fn part(&self, id: ArtifactId) -> Part {
        self.0
            .get(&id)
            .cloned()
            .unwrap_or_else(|| Part::Text(format!("[file {id}: it cannot be shown here]")))
    }
}

fn attached(message: &Arc<Message>) -> Vec<(ArtifactId, Option<String>)> {
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
    shown: usize,
) -> Result<Part, Stop> {
    let gone = |error: HandleError| match error {
        HandleError::Revoked => Err(Stop::from(HandleError::Revoked)),
        HandleError::Kernel(error) => Ok(Part::Text(format!("[file {id}: it cannot be read: {error}]"))),
    };
    let artifact = match attempt.artifact_get(id).await {
        Ok(artifact) => artifact,
        Err(error) => return gone(error),
    };
    let Artifact { size_bytes, mime_type, .. } = &artifact;
    let (size, mime_type) = (size_bytes.unwrap_or(0), mime_type.as_deref().unwrap_or_default());
    let essence = mime_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let name = name.or(artifact.name.as_deref()).unwrap_or("without a name");
    let told = format!("file {name}, {mime_type}, {size} bytes, artifact {id}");
    let as_it_is = is_image(&essence) || essence == "application/pdf";
    let length = match () {
        () if as_it_is && size > FILE_BYTES => {
            return Ok(Part::Text(format!("[{told}: it is too large to be shown here]")));
        }
        () if as_it_is => size,
        () if is_text(&essence) => size.min(shown as u64),
        () => return Ok(Part::Text(format!("[{told}: its content cannot be shown here]"))),
    };
    let bytes = match attempt.artifact_read(&artifact, 0, length).await {
        Ok(bytes) => bytes,
        Err(error) => return gone(error),
    };
    if as_it_is {
        let data = STANDARD.encode(&bytes).into();
        return Ok(Part::File { mime_type: essence, data, name: Some(name.to_owned()) });
    }
    let text = String::from_utf8_lossy(&bytes);
    // A character that was cut at the end is no part of it.
    let text = text.trim_end_matches('\u{FFFD}');
    Ok(Part::Text(match length < size {
        true => format!("[{told}: its first {length} bytes]\n{text}\n[the rest is in the artifact]"),
        false => format!("[{told}]\n{text}\n[end of the file]"),
    }))
}

/// What every protocol takes as an image.
fn is_image(essence: &str) -> bool {
    matches!(essence, "image/png" | "image/jpeg" | "image/gif" | "image/webp")
}

fn is_text(essence: &str) -> bool {
    let ends = ["json", "xml", "yaml", "toml", "javascript", "typescript", "x-sh", "sql"];
    essence.starts_with("text/")
        || essence
            .strip_prefix("application/")
            .is_some_and(|kind| ends.iter().any(|end| kind.strip_suffix(end).is_some()))
}
