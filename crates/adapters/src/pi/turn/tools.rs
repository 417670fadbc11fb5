//! The tool calls of a turn.

use mainspring_core::{Failure, FileLocation, Time};
use mainspring_kernel::adapter::{HandleError, Record};
use serde_json::Value;

use super::PiTurn;
use super::content::text_of;
use crate::driver::{
    FileContent, StartedCall, TOOL_UPDATE_INTERVAL_MS, diff_block, excerpt, output_blocks, store_file,
};

/// A tool call without an outcome.
pub(super) struct OpenToolCall {
    name: String,
    input: Value,
    /// The time of its last recorded update.
    updated_at: Time,
}

impl PiTurn<'_> {
    pub(super) async fn tool_start(&mut self, record: &Value) -> Result<(), HandleError> {
        let Some(tool_use_id) = record["toolCallId"].as_str().map(str::to_owned) else { return Ok(()) };
        let name = record["toolName"].as_str().filter(|name| !name.is_empty()).unwrap_or("tool").to_owned();
        let input = record["args"].clone();
        let open =
            OpenToolCall { name: name.clone(), input: input.clone(), updated_at: self.turn.attempt.now() };
        self.tools.insert(tool_use_id.clone(), open);
        self.has_output = true;
        self.text.end_block();
        let path = input["path"].as_str();
        let call = StartedCall {
            id: tool_use_id,
            kind: tool_kind(&name).map(str::to_owned),
            locations: path
                .map(|path| FileLocation { path: path.to_owned(), line: None })
                .into_iter()
                .collect(),
            name,
            title: None,
            input: Some(input).filter(|input| !input.is_null()),
        };
        self.calls.start(&mut self.text, call).await
    }

    pub(super) async fn tool_update(&mut self, record: &Value) -> Result<(), HandleError> {
        let now = self.turn.attempt.now();
        let text = text_of(&record["partialResult"]["content"]);
        let id = record["toolCallId"].as_str().unwrap_or_default();
        match self.tools.get_mut(id) {
            Some(open) if !text.is_empty() && now >= open.updated_at.plus(TOOL_UPDATE_INTERVAL_MS) => {
                open.updated_at = now;
            }
            _ => return Ok(()),
        }
        self.record(Record::ToolUpdated { tool_use_id: id.to_owned(), text: excerpt(text) }).await
    }

    pub(super) async fn tool_end(&mut self, record: &Value) -> Result<(), HandleError> {
        let id = record["toolCallId"].as_str().unwrap_or_default();
        let Some(open) = self.tools.remove(id) else { return Ok(()) };
        let (result, attempt) = (&record["result"], self.turn.attempt);
        let text = text_of(&result["content"]);
        let error = (record["isError"] == true).then(|| {
            let message = if text.is_empty() { "the tool failed".into() } else { excerpt(text.clone()) };
            Failure::new("tool_failed", message)
        });
        let mut content = output_blocks(attempt, &open.name, text).await?;
        for image in images_of(&result["content"]) {
            let (data, mime_type) = (image["data"].as_str(), image["mimeType"].as_str());
            let data = FileContent::Base64(data.unwrap_or_default());
            content.push(store_file(attempt, data, mime_type.unwrap_or("image/png"), None).await?);
        }
        let diffs = if error.is_none() { diffs_of(&open.name, &open.input) } else { vec![] };
        for (path, before, after) in diffs {
            content.push(diff_block(attempt, path, before, after).await?);
        }
        self.calls.end(id, error, content).await
    }
}

/// The kind of a tool of pi, in the words of the Agent Client Protocol.
fn tool_kind(name: &str) -> Option<&'static str> {
    match name {
        "read" => Some("read"),
        "edit" | "write" => Some("edit"),
        "grep" | "find" | "ls" => Some("search"),
        "bash" | "powershell" => Some("execute"),
        _ => None,
    }
}

/// The changes of a file by a tool of pi: path, text before, text after. Pi does not report the earlier text of a file
/// that it writes as a whole.
fn diffs_of(name: &str, input: &Value) -> Vec<(String, Option<String>, String)> {
    let Some(path) = input["path"].as_str() else { return vec![] };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let replaced = |edit: &Value| Some((path.to_owned(), text(&edit["oldText"]), text(&edit["newText"])?));
    match name {
        "write" => text(&input["content"]).map(|after| (path.to_owned(), None, after)).into_iter().collect(),
        "edit" => match input["edits"].as_array() {
            Some(edits) => edits.iter().filter_map(replaced).collect(),
            None => replaced(input).into_iter().collect(),
        },
        _ => vec![],
    }
}

/// The images of a message's content.
fn images_of(content: &Value) -> impl Iterator<Item = &Value> {
    content.as_array().into_iter().flatten().filter(|block| block["type"] == "image")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changes_of_files_are_read_from_the_arguments() {
        let diffs = |name: &str, input: Value| {
            let diff = |(path, before, after): (String, Option<String>, String)| {
                format!("{path} {} {after}", before.as_deref().unwrap_or("-"))
            };
            diffs_of(name, &input).into_iter().map(diff).collect::<Vec<_>>()
        };
        assert_eq!(diffs("write", json!({"path": "/a", "content": "x"})), ["/a - x"]);
        let edits = json!([{"oldText": "x", "newText": "y"}, {"oldText": "z", "newText": ""}]);
        assert_eq!(diffs("edit", json!({"path": "/a", "edits": edits})), ["/a x y", "/a z "]);
        assert_eq!(diffs("edit", json!({"path": "/a", "oldText": "x", "newText": "y"})), ["/a x y"]);
        assert_eq!(diffs("read", json!({"path": "/a"})), [""; 0]);
        assert_eq!(diffs("edit", json!({"edits": 3})), [""; 0]);
    }
}
