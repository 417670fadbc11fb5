//! Prompts in ACP's format: text, and attachments in a form that the agent supports.

use agent_client_protocol::v1::schema::{ContentBlock, PromptCapabilities};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mainspring_core::{ArtifactId, Block, Failure, FailureCode, Message};
use mainspring_kernel::adapter::AttemptHandle;
use serde_json::{Value, json};

use crate::driver::read_attachment;

/// One part of a prompt.
pub(crate) enum PromptPart {
    Text(String),
    Attachment(Attachment),
}

/// An attachment and its content.
pub(crate) struct Attachment {
    artifact: ArtifactId,
    mime_type: String,
    name: Option<String>,
    bytes: Vec<u8>,
}

/// Splits `message` into parts and reads its attachments.
pub(super) async fn read_parts(
    attempt: &AttemptHandle,
    message: &Message,
) -> Result<Vec<PromptPart>, Failure> {
    let mut parts = vec![];
    for block in &message.content {
        match block {
            Block::Text { text } => parts.push(PromptPart::Text(text.clone())),
            Block::Attachment { artifact, mime_type, name } => {
                let bytes = read_attachment(attempt, message, *artifact).await?;
                let (artifact, mime_type, name) = (*artifact, mime_type.clone(), name.clone());
                parts.push(PromptPart::Attachment(Attachment { artifact, mime_type, name, bytes }));
            }
            _ => {}
        }
    }
    Ok(parts)
}

/// Converts the parts to content blocks that an agent of these capabilities supports.
pub(super) fn to_blocks(parts: Vec<PromptPart>, can: &PromptCapabilities) -> Result<Vec<Value>, Failure> {
    let block = |part| match part {
        PromptPart::Text(text) => Ok(text_block(&text)),
        PromptPart::Attachment(attachment) => attachment.into_block(can),
    };
    parts.into_iter().map(block).collect()
}

/// Builds a text content block.
pub(super) fn text_block(text: &str) -> Value {
    serde_json::to_value(ContentBlock::from(text)).unwrap_or_default()
}

impl Attachment {
    fn into_block(self, can: &PromptCapabilities) -> Result<Value, Failure> {
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
        let (uri, name) = (self.uri(), self.name.clone().unwrap_or_else(|| self.artifact.to_string()));
        match String::from_utf8(self.bytes) {
            Ok(text) if can.embedded_context => {
                let resource = json!({"uri": uri, "mimeType": self.mime_type, "text": text});
                Ok(json!({"type": "resource", "resource": resource}))
            }
            // Every agent supports text.
            Ok(text) => Ok(text_block(&format!("<file name={name:?}>\n{text}\n</file>"))),
            Err(bytes) if can.embedded_context && media.is_none() => {
                let blob = STANDARD.encode(bytes.as_bytes());
                let resource = json!({"uri": uri, "mimeType": self.mime_type, "blob": blob});
                Ok(json!({"type": "resource", "resource": resource}))
            }
            Err(_) => Err(Failure::new(
                FailureCode::AdapterIncompatible,
                format!(
                    "the agent takes no files of type {:?}, which {name} is; put the file's path into the prompt instead",
                    self.mime_type
                ),
            )),
        }
    }

    /// A unique URI of the attachment. It ends with the file's name if that needs no escaping.
    fn uri(&self) -> String {
        let plain = |name: &&String| name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        match self.name.as_ref().filter(plain) {
            Some(name) => format!("artifact:{}/{name}", self.artifact),
            None => format!("artifact:{}", self.artifact),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BINARY: &[u8] = b"\x89PNG\xff";

    fn block(mime_type: &str, name: Option<&str>, bytes: &[u8], can: &PromptCapabilities) -> String {
        let attachment = Attachment {
            artifact: ArtifactId::from_bytes([1; 16]),
            mime_type: mime_type.to_owned(),
            name: name.map(str::to_owned),
            bytes: bytes.to_owned(),
        };
        match to_blocks(vec![PromptPart::Attachment(attachment)], can) {
            Ok(blocks) => blocks[0].to_string(),
            Err(failure) => format!("{}: {}", failure.code, failure.message),
        }
    }

    #[test]
    fn an_attachment_takes_the_best_form_that_the_agent_supports() {
        let none = PromptCapabilities::new();
        let image = PromptCapabilities::new().image(true);
        let embedded = PromptCapabilities::new().embedded_context(true);
        let both = image.clone().embedded_context(true);
        let id = ArtifactId::from_bytes([1; 16]);
        let resource = format!(r#""uri":"artifact:{id}"#);
        for (can, mime_type, bytes, expected) in [
            (&image, "image/png", BINARY, r#""type":"image""#),
            (&both, "image/png", BINARY, r#""type":"image""#),
            (&embedded, "image/png", BINARY, "takes no files of type \"image/png\""),
            (&image, "audio/wav", BINARY, "takes no files of type \"audio/wav\""),
            (&embedded, "text/plain", b"hi", r#""text":"hi""#),
            (&none, "text/plain", b"hi", "<file name="),
            (&image, "image/svg+xml", b"<svg/>", r#""type":"image""#),
            (&none, "image/svg+xml", b"<svg/>", "<svg/>"),
            (&embedded, "application/zip", BINARY, &*resource),
            (&none, "application/zip", BINARY, "adapter_incompatible: "),
        ] {
            let block = block(mime_type, None, bytes, can);
            assert!(block.contains(expected), "{mime_type} with {can:?}: {block}");
        }
    }

    #[test]
    fn a_uri_contains_only_names_that_need_no_escaping() {
        let can = PromptCapabilities::new().embedded_context(true);
        let id = ArtifactId::from_bytes([1; 16]);
        for (name, uri) in [
            (Some("notes-1.txt"), format!("artifact:{id}/notes-1.txt")),
            (Some("my notes"), format!("artifact:{id}")),
            (Some("a/b"), format!("artifact:{id}")),
            (None, format!("artifact:{id}")),
        ] {
            let block = block("text/plain", name, b"hi", &can);
            assert!(block.contains(&format!("{uri:?}")), "{name:?}: {block}");
        }
    }
}
