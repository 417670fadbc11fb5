//! Token estimates for content that no provider has counted: about four bytes per token.

use mainspring_core::{Block, Message, MessageStatus, Role};

use crate::provider::ToolSpec;

/// The overhead of a message or block beside its content.
const OVERHEAD_TOKENS: u64 = 4;

/// The estimate for an image or another file. Providers count files by size; here every file counts as a large one.
const FILE_TOKENS: u64 = 1_600;

/// Estimates a text.
pub(super) fn text(text: &str) -> u64 {
    tokens(text.len())
}

/// Estimates a tool's description.
pub(super) fn tool(spec: &ToolSpec) -> u64 {
    OVERHEAD_TOKENS + text(&spec.name) + text(&spec.description) + tokens(spec.schema.to_string().len())
}

/// Estimates a message; 0 if it is not part of requests.
pub(super) fn message(message: &Message) -> u64 {
    if message.role == Role::Assistant && message.status != MessageStatus::Completed {
        return 0;
    }
    OVERHEAD_TOKENS + message.content.iter().map(block).sum::<u64>()
}

fn block(block: &Block) -> u64 {
    match block {
        Block::Text { text: content } => text(content),
        Block::Attachment { .. } => FILE_TOKENS,
        Block::ToolUse { name, input, .. } => OVERHEAD_TOKENS + text(name) + tokens(input.to_string().len()),
        Block::ToolResult { content, .. } => OVERHEAD_TOKENS + content.iter().map(self::block).sum::<u64>(),
        // A result names the files it changed.
        Block::Diff { path, .. } => OVERHEAD_TOKENS + text(path),
        Block::Thinking {} | Block::Error { .. } => 0,
    }
}

fn tokens(bytes: usize) -> u64 {
    u64::try_from(bytes.div_ceil(4)).unwrap_or(u64::MAX)
}
