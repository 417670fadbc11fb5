//! Tool calls and content of ACP agents, converted into blocks of messages.

use agent_client_protocol::v1::schema::{
    ContentBlock, EmbeddedResourceResource, ToolCallContent, ToolCallLocation, ToolCallUpdateFields, ToolKind,
};
use mainspring_core::{Block, FileLocation, Time};
use mainspring_kernel::adapter::{AttemptHandle, HandleError};
use serde_json::Value;

use super::client::ClientServices;
use super::permission::{is_empty, kind_name};
use crate::driver::{FileContent, StartedCall, diff_block, file_name, output_blocks, store_file};

/// A tool call without an outcome.
#[derive(Default)]
pub(super) struct OpenToolCall {
    pub(super) name: Option<String>,
    pub(super) title: Option<String>,
    pub(super) kind: Option<ToolKind>,
    pub(super) input: Option<Value>,
    pub(super) locations: Vec<ToolCallLocation>,
    /// The latest content. Each report replaces it.
    content: Vec<ToolCallContent>,
    raw_output: Option<Value>,
    pub(super) started: bool,
    /// The time at which the output was last recorded.
    pub(super) reported_at: Option<Time>,
}

impl OpenToolCall {
    /// Applies a report of the agent. Absent fields have not changed.
    pub(super) fn update(&mut self, fields: ToolCallUpdateFields) {
        for (known, update) in [(&mut self.name, fields.name), (&mut self.title, fields.title)] {
            if let Some(update) = update.filter(|update| !update.is_empty()) {
                *known = Some(update);
            }
        }
        self.kind = fields.kind.or(self.kind);
        if let Some(input) = fields.raw_input.filter(|input| !is_empty(input)) {
            self.input = Some(input);
        }
        if let Some(locations) = fields.locations {
            self.locations = locations;
        }
        // The last report may hold the status alone.
        if let Some(content) = fields.content.filter(|content| !content.is_empty()) {
            self.content = content;
        }
        self.raw_output = fields.raw_output.or(self.raw_output.take());
    }

    /// Returns the call in the form in which its start is recorded.
    pub(super) fn start(&self, id: &str) -> StartedCall {
        let kind = self.kind.and_then(kind_name);
        let names = [self.name.as_deref(), self.title.as_deref(), kind];
        StartedCall {
            id: id.to_owned(),
            name: names.into_iter().flatten().next().unwrap_or("tool").to_owned(),
            title: self.title.clone(),
            kind: kind.map(str::to_owned),
            locations: self.locations.iter().map(location).collect(),
            input: self.input.clone(),
        }
    }

    /// The output so far as text.
    pub(super) fn output_text(&self, client: &ClientServices) -> String {
        let mut text = String::new();
        for content in &self.content {
            match content {
                ToolCallContent::Content(content) => text.push_str(&text_of(&content.content)),
                ToolCallContent::Terminal(terminal) => {
                    text.push_str(&client.terminal_text(&terminal.terminal_id.0).unwrap_or_default());
                }
                _ => {}
            }
        }
        if self.content.is_empty()
            && let Some(output) = &self.raw_output
        {
            text = output.as_str().map_or_else(|| output.to_string(), str::to_owned);
        }
        text
    }

    /// The output as text, and as the blocks of a result. Stores files and long texts as artifacts.
    pub(super) async fn output_blocks(
        &self,
        attempt: &AttemptHandle,
        client: &ClientServices,
    ) -> Result<(String, Vec<Block>), HandleError> {
        let text = self.output_text(client);
        let name = self.name.as_deref().or(self.title.as_deref()).unwrap_or("tool");
        let mut blocks = output_blocks(attempt, name, text.clone()).await?;
        for content in &self.content {
            if let ToolCallContent::Content(content) = content
                && let Some(file) = file_of(&content.content)
            {
                blocks.push(file.store(attempt).await?);
            }
        }
        blocks.extend(self.diff_blocks(attempt).await?);
        Ok((text, blocks))
    }

    /// The changes of files that the agent reports. Stores long texts as artifacts.
    pub(super) async fn diff_blocks(&self, attempt: &AttemptHandle) -> Result<Vec<Block>, HandleError> {
        let mut blocks = vec![];
        for content in &self.content {
            if let ToolCallContent::Diff(diff) = content {
                let path = diff.path.to_string_lossy().into_owned();
                let (before, after) = (diff.old_text.clone(), diff.new_text.clone());
                blocks.push(diff_block(attempt, path, before, after).await?);
            }
        }
        Ok(blocks)
    }
}

/// A place in a file, as the agent reports it.
pub(super) fn location(location: &ToolCallLocation) -> FileLocation {
    FileLocation { path: location.path.to_string_lossy().into_owned(), line: location.line }
}

/// A file that an agent sent.
pub(super) struct SentFile<'a> {
    content: FileContent<'a>,
    mime_type: &'a str,
    name: Option<&'a str>,
}

impl SentFile<'_> {
    pub(super) async fn store(self, attempt: &AttemptHandle) -> Result<Block, HandleError> {
        store_file(attempt, self.content, self.mime_type, self.name).await
    }
}

/// The file that a content block holds.
pub(super) fn file_of(content: &ContentBlock) -> Option<SentFile<'_>> {
    let (content, mime_type, uri) = match content {
        ContentBlock::Image(image) => {
            (FileContent::Base64(&image.data), image.mime_type.as_str(), image.uri.as_deref())
        }
        ContentBlock::Audio(audio) => (FileContent::Base64(&audio.data), audio.mime_type.as_str(), None),
        ContentBlock::Resource(resource) => match &resource.resource {
            EmbeddedResourceResource::TextResourceContents(text) => {
                let mime_type = text.mime_type.as_deref().unwrap_or("text/plain; charset=utf-8");
                (FileContent::Text(&text.text), mime_type, Some(text.uri.as_str()))
            }
            EmbeddedResourceResource::BlobResourceContents(blob) => {
                let mime_type = blob.mime_type.as_deref().unwrap_or("application/octet-stream");
                (FileContent::Base64(&blob.blob), mime_type, Some(blob.uri.as_str()))
            }
            _ => return None,
        },
        _ => return None,
    };
    Some(SentFile { content, mime_type, name: uri.map(file_name) })
}

/// The text of a content block; empty for a file.
pub(super) fn text_of(content: &ContentBlock) -> String {
    match content {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::ResourceLink(link) => format!("[{}]({})", link.name, link.uri),
        _ => String::new(),
    }
}
