//! The built-in tools for state and artifacts.

use std::sync::Arc;

use mainspring_core::{Artifact, ArtifactId, ArtifactRole, Expect, StateScope};
use mainspring_kernel::adapter::NewArtifact;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Tool, ToolCall, ToolError, function};

/// The maximum number of entries in a list.
const PAGE_SIZE: usize = 100;

/// The default length of `artifact_read`.
const DEFAULT_READ_BYTES: u64 = 16 << 10;

/// Returns the tools. The tools for the owner's state leave the session, since the owner's other sessions see that
/// state: the pattern `*` of an agent definition does not include them.
pub(super) fn tools() -> Vec<Arc<dyn Tool>> {
    let (get, set) =
        ("Reads the value of a key.", "Stores a JSON value under a key, for this and later turns.");
    let list = "Lists the keys and their values.";
    let (put, delete) = ("Stores a JSON value under a key.", "Deletes a key and its value.");
    let of_owner = |what: &str| format!("{what} The values are shared by all conversations of the person.");
    let write = "Stores a text as an artifact: a result for the person, such as a report or a patch.";
    let read = "Reads a part of a text artifact. Tool results that were too long are stored as artifacts.";
    vec![
        Arc::new(function("state_get", get, state_get).idempotent()),
        Arc::new(function("state_set", set, state_set).idempotent()),
        Arc::new(function("state_delete", delete, state_delete).idempotent()),
        Arc::new(function("state_list", list, state_list).idempotent()),
        Arc::new(function("owner_state_get", &of_owner(get), owner_state_get).idempotent().leaves_session()),
        Arc::new(function("owner_state_set", &of_owner(put), owner_state_set).idempotent().leaves_session()),
        Arc::new(
            function("owner_state_delete", &of_owner(delete), owner_state_delete)
                .idempotent()
                .leaves_session(),
        ),
        Arc::new(
            function("owner_state_list", &of_owner(list), owner_state_list).idempotent().leaves_session(),
        ),
        Arc::new(function("artifact_write", write, artifact_write)),
        Arc::new(function("artifact_read", read, artifact_read).idempotent()),
        Arc::new(
            function("artifact_list", "Lists the artifacts of this session, newest first.", artifact_list)
                .idempotent(),
        ),
    ]
}

/// The scope of state.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Scope {
    /// The conversation: the value remains in later turns.
    Session,
    /// This turn only.
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
struct KeyInput {
    /// Letters, digits, underscores, hyphens and dots.
    key: String,
    /// The scope; session if not given, and run for a member of a network.
    #[serde(default)]
    scope: Option<Scope>,
}

#[derive(Deserialize, JsonSchema)]
struct StateSetInput {
    /// Letters, digits, underscores, hyphens and dots.
    key: String,
    /// The value: any JSON.
    value: Value,
    /// The scope; session if not given, and run for a member of a network.
    #[serde(default)]
    scope: Option<Scope>,
    /// The version that the key must have; 0 if it must not exist. Any version if not given.
    #[serde(default)]
    version: Option<u64>,
}

#[derive(Deserialize, JsonSchema)]
struct StateDeleteInput {
    /// Letters, digits, underscores, hyphens and dots.
    key: String,
    /// The scope; session if not given, and run for a member of a network.
    #[serde(default)]
    scope: Option<Scope>,
    /// The version that the key must have. Any version if not given.
    #[serde(default)]
    version: Option<u64>,
}

#[derive(Deserialize, JsonSchema)]
struct OwnerKeyInput {
    /// Letters, digits, underscores, hyphens and dots.
    key: String,
}

#[derive(Deserialize, JsonSchema)]
struct OwnerSetInput {
    /// Letters, digits, underscores, hyphens and dots.
    key: String,
    /// The value: any JSON.
    value: Value,
    /// The version that the key must have; 0 if it must not exist. Any version if not given.
    #[serde(default)]
    version: Option<u64>,
}

#[derive(Deserialize, JsonSchema)]
struct OwnerDeleteInput {
    /// Letters, digits, underscores, hyphens and dots.
    key: String,
    /// The version that the key must have. Any version if not given.
    #[serde(default)]
    version: Option<u64>,
}

#[derive(Deserialize, JsonSchema)]
struct OwnerListInput {
    /// Only keys after this one.
    #[serde(default)]
    after: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
struct StateListInput {
    /// The scope; session if not given, and run for a member of a network.
    #[serde(default)]
    scope: Option<Scope>,
    /// Only keys after this one.
    #[serde(default)]
    after: Option<String>,
}

/// Returns the scope that a call names, else the default scope of its agent.
fn scope_of(call: &ToolCall, scope: Option<Scope>) -> StateScope {
    scope.map_or_else(|| call.context.default_scope(), StateScope::from)
}

async fn state_get(call: ToolCall, KeyInput { key, scope }: KeyInput) -> Result<String, ToolError> {
    get(&call, scope_of(&call, scope), &key).await
}

async fn get(call: &ToolCall, scope: StateScope, key: &str) -> Result<String, ToolError> {
    match call.context.state_get(scope, key).await? {
        Some(entry) => Ok(json!({"value": entry.value, "version": entry.version}).to_string()),
        None => Ok(json!({"value": null, "version": 0}).to_string()),
    }
}

async fn state_set(call: ToolCall, input: StateSetInput) -> Result<String, ToolError> {
    set(&call, scope_of(&call, input.scope), &input.key, Some(input.value), input.version).await
}

/// Sets a key, or deletes it, if it has the expected version.
async fn set(
    call: &ToolCall,
    scope: StateScope,
    key: &str,
    value: Option<Value>,
    version: Option<u64>,
) -> Result<String, ToolError> {
    let expect = match version {
        None => Expect::Any,
        Some(0) => Expect::Absent,
        Some(version) => Expect::Version(version),
    };
    let outcome = call.context.state_set(scope, key, value, expect).await?;
    Ok(match outcome.entry {
        Some(entry) => json!({"version": entry.version}).to_string(),
        None => "deleted".into(),
    })
}

async fn state_delete(call: ToolCall, input: StateDeleteInput) -> Result<String, ToolError> {
    set(&call, scope_of(&call, input.scope), &input.key, None, input.version).await
}

async fn state_list(
    call: ToolCall,
    StateListInput { scope, after }: StateListInput,
) -> Result<String, ToolError> {
    list(&call, scope_of(&call, scope), after.as_deref()).await
}

async fn list(call: &ToolCall, scope: StateScope, after: Option<&str>) -> Result<String, ToolError> {
    let entries = call.context.state_list(scope, after, PAGE_SIZE).await?;
    let next = (entries.len() == PAGE_SIZE).then(|| entries.last().map(|entry| entry.key.clone())).flatten();
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

async fn owner_state_get(call: ToolCall, input: OwnerKeyInput) -> Result<String, ToolError> {
    get(&call, StateScope::Owner, &input.key).await
}

async fn owner_state_set(call: ToolCall, input: OwnerSetInput) -> Result<String, ToolError> {
    set(&call, StateScope::Owner, &input.key, Some(input.value), input.version).await
}

async fn owner_state_delete(call: ToolCall, input: OwnerDeleteInput) -> Result<String, ToolError> {
    set(&call, StateScope::Owner, &input.key, None, input.version).await
}

async fn owner_state_list(call: ToolCall, input: OwnerListInput) -> Result<String, ToolError> {
    list(&call, StateScope::Owner, input.after.as_deref()).await
}

#[derive(Deserialize, JsonSchema)]
struct ArtifactWriteInput {
    /// The name, for example report.md.
    name: String,
    /// The text.
    content: String,
    /// The media type; text/plain if not given.
    #[serde(default)]
    mime_type: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
struct ArtifactReadInput {
    /// The artifact's id: art_…
    artifact: String,
    /// The first byte to read; 0 if not given.
    #[serde(default)]
    offset: u64,
    /// The number of bytes; 16384 if not given.
    #[serde(default)]
    length: Option<u64>,
}

#[derive(Deserialize, JsonSchema)]
struct EmptyInput {}

async fn artifact_write(call: ToolCall, input: ArtifactWriteInput) -> Result<String, ToolError> {
    let new = NewArtifact {
        role: ArtifactRole::Result,
        name: Some(input.name),
        mime_type: Some(input.mime_type.unwrap_or_else(|| "text/plain".into())),
        ..NewArtifact::default()
    };
    let artifact = call.context.artifact_write(new, input.content.as_bytes()).await?;
    Ok(description(&artifact).to_string())
}

async fn artifact_list(call: ToolCall, _: EmptyInput) -> Result<String, ToolError> {
    let artifacts = call.context.artifact_list(PAGE_SIZE).await?;
    Ok(Value::from(artifacts.iter().map(description).collect::<Vec<_>>()).to_string())
}

async fn artifact_read(call: ToolCall, input: ArtifactReadInput) -> Result<String, ToolError> {
    let id: ArtifactId = input.artifact.trim().parse().map_err(|bad| ToolError(format!("{bad}")))?;
    // Leaves space for the note at the end, else this result would become an artifact itself.
    let max_length =
        u64::try_from(call.context.max_result_bytes().saturating_sub(300)).unwrap_or(u64::MAX).max(4);
    let length = input.length.unwrap_or(DEFAULT_READ_BYTES).clamp(4, max_length);
    let (artifact, bytes) = call.context.artifact_read(id, input.offset, length).await?;
    let size = artifact.size_bytes.unwrap_or(0);
    if input.offset > 0 && input.offset >= size {
        return Err(ToolError(format!("{id} has {size} bytes; the offset {} is past the end", input.offset)));
    }
    let (skipped, text) = text_in(&bytes, input.offset > 0).ok_or_else(|| {
        let kind = artifact.mime_type.as_deref().unwrap_or("unknown bytes");
        ToolError(format!("{id} is not text but {kind} and cannot be read"))
    })?;
    let (from, to) = (input.offset + skipped, input.offset + skipped + text.len() as u64);
    let is_end = input.offset + bytes.len() as u64 >= size;
    Ok(match size.saturating_sub(to) {
        0 => format!("{text}\n[bytes {from} to {to} of {size}; this is the end]"),
        // The artifact ends within a character.
        rest if is_end => format!("{text}\n[bytes {from} to {to} of {size}; the last {rest} are no text]"),
        _ => format!("{text}\n[bytes {from} to {to} of {size}; read on with offset {to}]"),
    })
}

/// Returns the text in `bytes` without characters that are cut in half, and the number of bytes skipped before it;
/// `None` if it is not text. A character can be cut at the end and, if `in_middle`, at the beginning.
fn text_in(bytes: &[u8], in_middle: bool) -> Option<(u64, &str)> {
    let skipped = match in_middle {
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

fn description(artifact: &Artifact) -> Value {
    json!({
        "artifact": artifact.id, "name": artifact.name, "role": artifact.role, "mimeType": artifact.mime_type,
        "sizeBytes": artifact.size_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_text_has_no_cut_characters() {
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
