//! The built-in tools that keep data: state under keys, artifacts as texts.

use std::sync::Arc;

use mainspring_core::{Artifact, ArtifactId, ArtifactRole, Expect, StateScope};
use mainspring_kernel::adapter::NewArtifact;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Tool, ToolCall, ToolError, function};

/// How many entries a list shows.
const PAGE: usize = 100;

/// Bytes that one reading of an artifact gives, if it does not say how many.
const READ: u64 = 16 << 10;

/// Every one of them.
pub(super) fn tools() -> Vec<Arc<dyn Tool>> {
    let (get, set) =
        ("Reads what is kept under a key.", "Keeps a JSON value under a key, for this and later turns.");
    let list = "Lists the keys under which something is kept, with their values.";
    let write = "Keeps a text as an artifact: a result that the person gets, such as a report or a patch.";
    let read = "Reads a part of an artifact that is text. Answers that were too long are kept as artifacts.";
    vec![
        Arc::new(function("state_get", get, state_get).idempotent()),
        Arc::new(function("state_set", set, state_set).idempotent()),
        Arc::new(
            function("state_delete", "Removes a key and what is kept under it.", state_delete).idempotent(),
        ),
        Arc::new(function("state_list", list, state_list).idempotent()),
        Arc::new(function("artifact_write", write, artifact_write)),
        Arc::new(function("artifact_read", read, artifact_read).idempotent()),
        Arc::new(
            function(
                "artifact_list",
                "Lists the artifacts of this session, the newest first.",
                artifact_list,
            )
            .idempotent(),
        ),
    ]
}

/// Whose state.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Scope {
    /// This conversation's: it is there in later turns.
    #[default]
    Session,
    /// This turn's alone.
    Run,
}

impl From<Scope> for StateScope {
    fn from(scope: Scope) -> Self {
        match scope {
            Scope::Session => Self::Session,
            Scope::Run => Self::Run,
        }
    }
}

#[derive(Deserialize, JsonSchema)]
struct Key {
    /// Letters, digits, underscores, hyphens and dots.
    key: String,
    /// Whose state; the session's if not given.
    #[serde(default)]
    scope: Scope,
}

#[derive(Deserialize, JsonSchema)]
struct Put {
    /// Letters, digits, underscores, hyphens and dots.
    key: String,
    /// What to keep: any JSON value.
    value: Value,
    /// Whose state; the session's if not given.
    #[serde(default)]
    scope: Scope,
    /// Only if this version is there; 0 if nothing may be there. Whatever is there, if not given.
    #[serde(default)]
    version: Option<u64>,
}

#[derive(Deserialize, JsonSchema)]
struct List {
    /// Whose state; the session's if not given.
    #[serde(default)]
    scope: Scope,
    /// Only keys after this one.
    #[serde(default)]
    after: Option<String>,
}

async fn state_get(call: ToolCall, Key { key, scope }: Key) -> Result<String, ToolError> {
    match call.desk.state_get(scope.into(), &key).await? {
        Some(entry) => Ok(json!({"value": entry.value, "version": entry.version}).to_string()),
        None => Ok(json!({"value": null, "version": 0}).to_string()),
    }
}

async fn state_set(call: ToolCall, put: Put) -> Result<String, ToolError> {
    let expect = match put.version {
        None => Expect::Any,
        Some(0) => Expect::Absent,
        Some(version) => Expect::Version(version),
    };
    let outcome = call.desk.state_set(put.scope.into(), &put.key, Some(put.value), expect).await?;
    Ok(json!({"version": outcome.entry.map_or(0, |entry| entry.version)}).to_string())
}

async fn state_delete(call: ToolCall, Key { key, scope }: Key) -> Result<String, ToolError> {
    call.desk.state_set(scope.into(), &key, None, Expect::Any).await?;
    Ok("it is gone".into())
}

async fn state_list(call: ToolCall, List { scope, after }: List) -> Result<String, ToolError> {
    let entries = call.desk.state_list(scope.into(), after.as_deref(), PAGE).await?;
    let next = (entries.len() == PAGE).then(|| entries.last().map(|entry| entry.key.clone())).flatten();
    let entries: Vec<Value> = entries
        .into_iter()
        .map(|entry| json!({"key": entry.key, "value": entry.value, "version": entry.version}))
        .collect();
    Ok(match next {
        Some(next) => json!({"entries": entries, "more_after": next}),
        None => json!({"entries": entries}),
    }
    .to_string())
}

#[derive(Deserialize, JsonSchema)]
struct Write {
    /// Its name, for example report.md.
    name: String,
    /// The text.
    content: String,
    /// Its media type; text/plain if not given.
    #[serde(default)]
    mime_type: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
struct Read {
    /// The artifact's id: art_…
    artifact: String,
    /// The byte to begin with; 0 if not given.
    #[serde(default)]
    offset: u64,
    /// How many bytes; 16384 if not given.
    #[serde(default)]
    length: Option<u64>,
}

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

async fn artifact_write(call: ToolCall, write: Write) -> Result<String, ToolError> {
    let new = NewArtifact {
        role: ArtifactRole::Result,
        name: Some(write.name),
        mime_type: Some(write.mime_type.unwrap_or_else(|| "text/plain".into())),
        ..NewArtifact::default()
    };
    let artifact = call.desk.artifact_write(new, write.content.as_bytes()).await?;
    Ok(shown(&artifact).to_string())
}

async fn artifact_list(call: ToolCall, _: Nothing) -> Result<String, ToolError> {
    let artifacts = call.desk.artifact_list(PAGE).await?;
    Ok(Value::from(artifacts.iter().map(shown).collect::<Vec<_>>()).to_string())
}

async fn artifact_read(call: ToolCall, read: Read) -> Result<String, ToolError> {
    let id: ArtifactId = read.artifact.trim().parse().map_err(|bad| ToolError(format!("{bad}")))?;
    // What is said around it must fit as well, else this answer would become an artifact too.
    let most = u64::try_from(call.desk.shown_bytes().saturating_sub(300)).unwrap_or(u64::MAX).max(4);
    let length = read.length.unwrap_or(READ).clamp(4, most);
    let (artifact, bytes) = call.desk.artifact_read(id, read.offset, length).await?;
    let size = artifact.size_bytes.unwrap_or(0);
    if read.offset > 0 && read.offset >= size {
        return Err(ToolError(format!("{id} has {size} bytes; the offset {} is beyond them", read.offset)));
    }
    let (skipped, text) = text_in(&bytes, read.offset > 0).ok_or_else(|| {
        let kind = artifact.mime_type.as_deref().unwrap_or("unknown bytes");
        ToolError(format!("{id} is not text but {kind}, and cannot be shown"))
    })?;
    let (from, to) = (read.offset + skipped, read.offset + skipped + text.len() as u64);
    Ok(match to < size {
        true => format!("{text}\n[bytes {from} to {to} of {size}; read on with offset {to}]"),
        false => format!("{text}\n[bytes {from} to {to} of {size}; that is the end]"),
    })
}

/// The whole characters among `bytes`, and how many bytes come before them; none if it is no text. Characters may be
/// cut at the end and, `within` a text, at the beginning.
fn text_in(bytes: &[u8], within: bool) -> Option<(u64, &str)> {
    let skipped = match within {
        true => bytes.iter().take(3).take_while(|byte| **byte & 0xC0 == 0x80).count(),
        false => 0,
    };
    let rest = &bytes[skipped..];
    match std::str::from_utf8(rest) {
        Ok(text) => Some((skipped as u64, text)),
        Err(error) if error.error_len().is_none() => {
            let text = std::str::from_utf8(&rest[..error.valid_up_to()]).ok()?;
            Some((skipped as u64, text))
        }
        Err(_) => None,
    }
}

fn shown(artifact: &Artifact) -> Value {
    json!({
        "artifact": artifact.id, "name": artifact.name, "role": artifact.role, "mimeType": artifact.mime_type,
        "sizeBytes": artifact.size_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_text_has_whole_characters() {
        let all = "aäöü€".as_bytes();
        for from in 0..all.len() {
            for to in from..=all.len() {
                let (skipped, text) = text_in(&all[from..to], from > 0).unwrap();
                assert!("aäöü€".contains(text), "{from} {to}");
                assert!(skipped <= 2 || text.is_empty());
            }
        }
        assert_eq!(text_in(&[0xFF, 0xFE, b'a'], false), None);
        assert_eq!(text_in(b"", true), Some((0, "")));
    }
}
