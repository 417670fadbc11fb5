//! Estimates of tokens where nobody has counted them: four bytes are a token, by and large.

use mainspring_core::{Block, Message, MessageStatus, Role};

use crate::provider::ToolSpec;

/// What a message costs beside its content.
const FRAME: u64 = 4;

/// What an image or another file comes to; providers count them by size, and this is a large one.
const FILE: u64 = 1_600;

/// What a text comes to.
pub(super) fn text(text: &str) -> u64 {
    bytes(text.len())
}

/// What a tool's description comes to.
pub(super) fn tool(spec: &ToolSpec) -> u64 {
    FRAME + text(&spec.name) + text(&spec.description) + bytes(spec.schema.to_string().len())
}

/// What a message comes to; nothing if it is not shown.
pub(super) fn of(message: &Message) -> u64 {
    if message.role == Role::Assistant && message.status != MessageStatus::Completed {
        return 0;
    }
    FRAME + message.content.iter().map(block).sum::<u64>()
}

fn block(block: &Block) -> u64 {
    match block {
        Block::Text { text: said } => text(said),
        Block::Attachment { .. } => FILE,
        Block::ToolUse { name, input, .. } => FRAME + text(name) + bytes(input.to_string().len()),
        Block::ToolResult { content, .. } => FRAME + content.iter().map(self::block).sum::<u64>(),
        Block::Thinking {} | Block::Error { .. } => 0,
    }
}

fn bytes(bytes: usize) -> u64 {
    u64::try_from(bytes.div_ceil(4)).unwrap_or(u64::MAX)
}
