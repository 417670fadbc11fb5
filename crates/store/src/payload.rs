//! The stored payload of an event, in every durable store.

use mainspring_core::{Body, ToolEnd};
use mainspring_kernel::store::StoreError;

/// Serializes the payload of an event. A completed message and the result of a tool call are left out: they are stored
/// in rows of their own.
pub(crate) fn payload(body: &Body) -> Result<String, StoreError> {
    let stored_end = |end: &ToolEnd| ToolEnd { duration_ms: end.duration_ms, ..ToolEnd::default() };
    let without_result = match body {
        Body::MessageCompleted { parent_id, .. } => {
            let parent = parent_id.map(|parent| format!(r#"{{"parentId":"{parent}"}}"#));
            return Ok(parent.unwrap_or_else(|| "{}".into()));
        }
        Body::ToolCompleted { tool_use_id, name, end } if end.message_id.is_some() => {
            let (tool_use_id, name) = (tool_use_id.clone(), name.clone());
            Some(Body::ToolCompleted { tool_use_id, name, end: stored_end(end) })
        }
        Body::ToolFailed { tool_use_id, name, outcome, error, end } if end.message_id.is_some() => {
            let (tool_use_id, name, error) = (tool_use_id.clone(), name.clone(), error.clone());
            Some(Body::ToolFailed { tool_use_id, name, outcome: *outcome, error, end: stored_end(end) })
        }
        _ => None,
    };
    let body = without_result.as_ref().unwrap_or(body);
    let mut text = serde_json::to_string(body).map_err(|error| not_serializable(&error))?;
    let head = r#"{"type":"","payload":"#.len() + body.kind().len();
    text.pop();
    text.drain(..head);
    Ok(text)
}

/// The error of a value that has no JSON form.
pub(crate) fn not_serializable(error: &serde_json::Error) -> StoreError {
    StoreError::Corrupt(format!("cannot be serialized as JSON: {error}"))
}
