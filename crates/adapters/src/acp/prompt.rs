//! A prompt as an agent gets it: what it says, and the files that come with it as far as the agent takes them.

use agent_client_protocol::v1::schema::{ContentBlock, PromptCapabilities};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mainspring_core::{ArtifactId, Block, Failure, Message};
use mainspring_kernel::adapter::AttemptHandle;
use serde_json::{Value, json};

use crate::driver::attached;

/// One piece of a prompt.
pub(crate) enum Piece {
    Text(String),
    File(File),
}

/// A file that comes with a prompt.
pub(crate) struct File {
    artifact: ArtifactId,
    mime_type: String,
    name: Option<String>,
    bytes: Vec<u8>,
}

/// The pieces of `message`, with all the bytes that it names.
pub(super) async fn pieces(attempt: &AttemptHandle, message: &Message) -> Result<Vec<Piece>, Failure> {
    let mut pieces = vec![];
    for block in &message.content {
        match block {
            Block::Text { text } => pieces.push(Piece::Text(text.clone())),
            Block::Attachment { artifact, mime_type, name } => {
                let bytes = attached(attempt, message, *artifact).await?;
                let (artifact, mime_type, name) = (*artifact, mime_type.clone(), name.clone());
                pieces.push(Piece::File(File { artifact, mime_type, name, bytes }));
            }
            _ => {}
        }
    }
    Ok(pieces)
}

/// The pieces as an agent of these capabilities takes them.
pub(super) fn blocks(pieces: Vec<Piece>, can: &PromptCapabilities) -> Result<Vec<Value>, Failure> {
    let block = |piece| match piece {
        Piece::Text(text) => Ok(text_block(&text)),
        Piece::File(file) => file.block(can),
    };
    pieces.into_iter().map(block).collect()
}

/// Text as an agent takes it.
pub(super) fn text_block(text: &str) -> Value {
    serde_json::to_value(ContentBlock::from(text)).unwrap_or_default()
}

impl File {
    fn block(self, can: &PromptCapabilities) -> Result<Value, Failure> {
        let (kind, _) = self.mime_type.split_once('/').unwrap_or((&self.mime_type, ""));
        let media = match kind {
            "image" => Some(can.image),
            "audio" => Some(can.audio),
            _ => None,
        };
        if media == Some(true) {
            return Ok(
                json!({"type": kind, "data": STANDARD.encode(&self.bytes), "mimeType": self.mime_type}),
            );
        }
        let (uri, shown) = (self.uri(), self.name.clone().unwrap_or_else(|| self.artifact.to_string()));
        match String::from_utf8(self.bytes) {
            Ok(text) if can.embedded_context => {
                let resource = json!({"uri": uri, "mimeType": self.mime_type, "text": text});
                Ok(json!({"type": "resource", "resource": resource}))
            }
            // Every agent takes text.
            Ok(text) => Ok(text_block(&format!("<file name={shown:?}>\n{text}\n</file>"))),
            Err(bytes) if can.embedded_context && media.is_none() => {
                let blob = STANDARD.encode(bytes.as_bytes());
                let resource = json!({"uri": uri, "mimeType": self.mime_type, "blob": blob});
                Ok(json!({"type": "resource", "resource": resource}))
            }
            Err(_) => Err(Failure::new(
                "adapter_incompatible",
                format!(
                    "the agent takes no files of type {:?}, which {shown} is; put the file's path into the prompt instead",
                    self.mime_type
                ),
            )),
        }
    }

    /// A name for the file that nothing else has, and its own where it can be part of that.
    fn uri(&self) -> String {
        let plain = |name: &&String| name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        match self.name.as_ref().filter(plain) {
            Some(name) => format!("artifact:{}/{name}", self.artifact),
            None => format!("artifact:{}", self.artifact),
        }
    }
}
