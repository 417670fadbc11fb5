//! Files that agents and their tools produce: images, sounds, resources, changes of files, and long outputs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mainspring_core::{ArtifactId, ArtifactRole, Block};
use mainspring_kernel::adapter::{AttemptHandle, HandleError, NewArtifact};

use serde_json::{Map, Value};

use super::excerpt;
use super::turn::EXCERPT_BYTES;

/// The largest side of a diff that is part of a message. A larger one is stored as an artifact.
const MAX_DIFF_BYTES: usize = 64 << 10;

/// The media type of stored texts.
const TEXT_TYPE: &str = "text/plain; charset=utf-8";

/// A file in the form in which agents send it.
pub(crate) enum FileContent<'a> {
    Base64(&'a str),
    Text(&'a str),
}

/// Stores a file of the agent and returns its block. A file that cannot be stored becomes a note.
pub(crate) async fn store_file(
    attempt: &AttemptHandle,
    content: FileContent<'_>,
    mime_type: &str,
    name: Option<&str>,
) -> Result<Block, HandleError> {
    let note = |why: &str| Block::text(format!("[{mime_type}: {why}]"));
    let decoded;
    let bytes = match content {
        FileContent::Text(text) => text.as_bytes(),
        FileContent::Base64(text) => match STANDARD.decode(text.trim()) {
            Ok(bytes) => {
                decoded = bytes;
                decoded.as_slice()
            }
            Err(_) => return Ok(note("the agent sent invalid base64")),
        },
    };
    let kind = ("file", ArtifactRole::Result);
    let stored = store(attempt, bytes, kind, name, mime_type, Map::new()).await?;
    Ok(match stored {
        Some(artifact) => {
            Block::Attachment { artifact, mime_type: mime_type.to_owned(), name: name.map(str::to_owned) }
        }
        None => note("it could not be stored"),
    })
}

/// Stores a text as an artifact, with the tool or path that it comes from. Returns `None` if it cannot be stored.
pub(crate) async fn store_text(
    attempt: &AttemptHandle,
    text: &str,
    (name, mime_type): (&str, &str),
    (origin, value): (&str, &str),
) -> Result<Option<ArtifactId>, HandleError> {
    let kind = ("tool_output", ArtifactRole::ToolOutput);
    let metadata = Map::from_iter([(origin.to_owned(), value.into())]);
    store(attempt, text.as_bytes(), kind, Some(name), mime_type, metadata).await
}

/// The blocks of a tool's output. A long one is stored as an artifact and shortened.
pub(crate) async fn output_blocks(
    attempt: &AttemptHandle,
    tool: &str,
    text: String,
) -> Result<Vec<Block>, HandleError> {
    if text.is_empty() {
        return Ok(vec![]);
    }
    if text.len() <= EXCERPT_BYTES {
        return Ok(vec![Block::text(text)]);
    }
    let name = format!("{}.txt", file_name(tool));
    let stored = store_text(attempt, &text, (&name, TEXT_TYPE), ("tool", tool)).await?;
    let stored = stored.map(|artifact| Block::Attachment {
        artifact,
        mime_type: TEXT_TYPE.to_owned(),
        name: Some(name),
    });
    Ok([Block::text(excerpt(text))].into_iter().chain(stored).collect())
}

/// The block of a changed file. `before` is absent for a new file.
pub(crate) async fn diff_block(
    attempt: &AttemptHandle,
    path: String,
    before: Option<String>,
    after: String,
) -> Result<Block, HandleError> {
    let name = file_name(&path).to_owned();
    let (before, before_artifact) = match before {
        Some(text) => diff_side(attempt, text, &format!("{name}.before"), &path).await?,
        None => (None, None),
    };
    let (after, after_artifact) = diff_side(attempt, after, &format!("{name}.after"), &path).await?;
    Ok(Block::Diff { path, before, after, before_artifact, after_artifact })
}

/// One side of a diff: its text, or the artifact that holds it.
async fn diff_side(
    attempt: &AttemptHandle,
    text: String,
    name: &str,
    path: &str,
) -> Result<(Option<String>, Option<ArtifactId>), HandleError> {
    if text.len() <= MAX_DIFF_BYTES {
        return Ok((Some(text), None));
    }
    Ok(match store_text(attempt, &text, (name, TEXT_TYPE), ("path", path)).await? {
        Some(artifact) => (None, Some(artifact)),
        None => (Some(excerpt(text)), None),
    })
}

async fn store(
    attempt: &AttemptHandle,
    mut bytes: &[u8],
    (kind, role): (&str, ArtifactRole),
    name: Option<&str>,
    mime_type: &str,
    metadata: Map<String, Value>,
) -> Result<Option<ArtifactId>, HandleError> {
    let new = NewArtifact {
        kind: kind.to_owned(),
        role,
        name: name.map(str::to_owned),
        mime_type: Some(mime_type.to_owned()),
        metadata,
        ..NewArtifact::default()
    };
    match attempt.artifact(new, &mut bytes).await {
        Ok(artifact) => Ok(Some(artifact.id)),
        Err(HandleError::Revoked) => Err(HandleError::Revoked),
        Err(HandleError::Kernel(error)) => {
            tracing::warn!(%error, "a file of an agent could not be stored");
            Ok(None)
        }
    }
}

/// The last part of a path or URI.
pub(crate) fn file_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).find(|part| !part.is_empty()).unwrap_or("file")
}
