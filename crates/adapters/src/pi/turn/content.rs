//! The messages of a turn: text, thoughts, usage.

use mainspring_core::{Cost, Usage};
use mainspring_kernel::adapter::HandleError;
use serde_json::Value;

use super::PiTurn;

impl PiTurn<'_> {
    pub(super) fn message_update(&mut self, event: &Value) -> Result<(), HandleError> {
        let delta = event["delta"].as_str().unwrap_or_default();
        match event["type"].as_str().unwrap_or_default() {
            "text_start" if self.streamed => {
                self.text.end_block();
                Ok(())
            }
            "text_delta" => {
                self.streamed |= !delta.is_empty();
                self.has_output |= !delta.is_empty();
                self.text.push(delta)
            }
            "thinking_delta" if !delta.is_empty() => {
                self.has_output = true;
                self.turn.attempt.thought(delta)
            }
            _ => Ok(()),
        }
    }

    /// Handles the end of a message and its tool calls.
    pub(super) fn turn_end(&mut self, record: &Value) -> Result<(), HandleError> {
        let message = &record["message"];
        let text = |key: &str| message[key].as_str().unwrap_or_default().to_owned();
        self.last_stop = Some((text("stopReason"), text("errorMessage")));
        self.usage += match &message["usage"] {
            Value::Null => Usage::UNKNOWN,
            usage => usage_of(usage),
        };
        for result in record["toolResults"].as_array().into_iter().flatten() {
            self.usage += usage_of(&result["usage"]);
        }
        self.message_end(message)
    }

    pub(super) fn message_end(&mut self, message: &Value) -> Result<(), HandleError> {
        self.in_message = false;
        // Some models do not stream.
        match std::mem::replace(&mut self.streamed, true) {
            true => Ok(()),
            false => {
                let text = text_of(&message["content"]);
                self.has_output |= !text.is_empty();
                self.text.push(&text)
            }
        }
    }
}

/// The text of a message's content, which is a string or a list of blocks.
pub(super) fn text_of(content: &Value) -> String {
    let text = |block: &Value| match block["type"].as_str() {
        Some("text") => block["text"].as_str().unwrap_or_default().to_owned(),
        _ => String::new(),
    };
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => blocks.iter().map(text).collect(),
        _ => String::new(),
    }
}

/// Converts pi's usage. Without a report it is zero; without a reported cost the cost is unknown.
pub(super) fn usage_of(usage: &Value) -> Usage {
    if usage.is_null() {
        return Usage::default();
    }
    let count = |name: &str| usage[name].as_u64().unwrap_or_default();
    Usage {
        input_tokens: count("input"),
        output_tokens: count("output"),
        cache_read_tokens: count("cacheRead"),
        cache_write_tokens: count("cacheWrite"),
        cost: Cost::from(usage["cost"]["total"].as_f64()),
        at_least: false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_unreported_cost_is_unknown() {
        assert_eq!(usage_of(&json!({"input": 3, "cost": {"total": 0.5}})).cost, Cost::from(0.5));
        assert_eq!(usage_of(&json!({"input": 3})).cost, Cost::UNKNOWN);
        assert!(usage_of(&Value::Null).is_zero(), "nothing was used");
    }
}
