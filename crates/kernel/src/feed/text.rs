//! Streamed text that is not part of a stored message yet.

use mainspring_api::{OpenBlock, OpenText};
use mainspring_core::{MessageId, RunId};

/// Consecutive streamed text of one block of one message.
#[derive(Debug)]
pub(super) struct Segment {
    /// Position of the first byte in the session's stream.
    pub(super) start: u64,
    pub(super) run: Option<RunId>,
    pub(super) message: MessageId,
    pub(super) block: u32,
    pub(super) text: String,
}

impl Segment {
    /// Position after the last byte.
    pub(super) fn end(&self) -> u64 {
        self.start + self.text.len() as u64
    }

    /// Text from stream position `from` to `to`. Both lie on character boundaries.
    pub(super) fn slice(&self, from: u64, to: u64) -> &str {
        let offset = |pos: u64| {
            usize::try_from(pos.saturating_sub(self.start)).unwrap_or(usize::MAX).min(self.text.len())
        };
        self.text.get(offset(from)..offset(to)).unwrap_or_default()
    }
}

/// Joins pieces of streamed text, given as message, block number and text, into one entry per message.
pub(crate) fn open_texts<'a>(pieces: impl Iterator<Item = (MessageId, u32, &'a str)>) -> Vec<OpenText> {
    let mut open: Vec<OpenText> = vec![];
    for (message, block, text) in pieces {
        if open.last().is_none_or(|last| last.message_id != message) {
            open.push(OpenText { message_id: message, blocks: vec![] });
        }
        let Some(last) = open.last_mut() else { continue };
        // Blocks are sorted by number, not by the order in which they began.
        match last.blocks.binary_search_by_key(&block, |open| open.block) {
            Ok(at) => last.blocks[at].text.push_str(text),
            Err(at) => last.blocks.insert(at, OpenBlock { block, text: text.to_owned() }),
        }
    }
    open
}
