//! The messages of a thread's path, as a list whose common beginning is shared between views.
//!
//! Messages are kept in chunks. A view that continues an earlier one copies only the pointers to the full chunks and to
//! the messages of the last chunk. So the cost of an event grows with the thread by one pointer per 256 messages only.

use std::sync::Arc;

use mainspring_api::threads::AgentMessage;
use mainspring_core::{Message, MessageId, RunId};

use super::token::digest;
use super::view::of_message;

/// Messages in a chunk.
const CHUNK: usize = 256;

/// A message with the hash by which tokens recognise it.
#[derive(Debug)]
pub(super) struct Numbered {
    /// The id and the run of a stored message; none for streamed text and for results that a waiting run has received.
    pub(super) id: Option<MessageId>,
    pub(super) run: Option<RunId>,
    pub(super) message: AgentMessage,
    /// The hash of the roles and contents of all messages up to this one.
    pub(super) prefix: u64,
    /// The size of the message, in bytes.
    pub(super) bytes: usize,
}

impl Numbered {
    /// Numbers a message that is not stored. `before` is the hash of the messages before it.
    pub(super) fn live(message: AgentMessage, before: u64) -> Self {
        let (prefix, bytes) = digest(&message, before);
        Self { id: None, run: None, message, prefix, bytes }
    }

    fn stored(message: &Message, before: u64) -> Self {
        let numbered = Self::live(of_message(message), before);
        Self { id: Some(message.id), run: message.run, ..numbered }
    }
}

/// The stored messages of a path, root first.
#[derive(Debug, Clone, Default)]
pub(super) struct Path {
    /// All but the last are full.
    chunks: Vec<Arc<Vec<Arc<Numbered>>>>,
    bytes: usize,
}

impl Path {
    /// Builds the path that has the first `kept` messages of this one and then `new`.
    pub(super) fn continued(&self, kept: usize, new: &[Arc<Message>]) -> Self {
        let mut path = self.clone();
        path.truncate(kept);
        for message in new {
            let before = path.last().map_or(0, |last| last.prefix);
            path.push(Arc::new(Numbered::stored(message, before)));
        }
        path
    }

    fn truncate(&mut self, kept: usize) {
        while self.len() > kept
            && let Some(mut last) = self.chunks.pop()
        {
            let start = CHUNK * self.chunks.len();
            let dropped = Arc::make_mut(&mut last).split_off(kept.saturating_sub(start));
            self.bytes -= dropped.iter().map(|message| message.bytes).sum::<usize>();
            if !last.is_empty() {
                self.chunks.push(last);
            }
        }
    }

    fn push(&mut self, message: Arc<Numbered>) {
        self.bytes += message.bytes;
        match self.chunks.last_mut().filter(|last| last.len() < CHUNK) {
            Some(last) => Arc::make_mut(last).push(message),
            None => self.chunks.push(Arc::new(vec![message])),
        }
    }

    pub(super) fn len(&self) -> usize {
        let full = self.chunks.len().saturating_sub(1) * CHUNK;
        full + self.chunks.last().map_or(0, |last| last.len())
    }

    /// The size of all messages, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn get(&self, number: usize) -> Option<&Arc<Numbered>> {
        self.chunks.get(number / CHUNK)?.get(number % CHUNK)
    }

    pub(super) fn last(&self) -> Option<&Arc<Numbered>> {
        self.chunks.last()?.last()
    }

    /// The messages from a number on.
    pub(super) fn starting_at(&self, start: usize) -> impl Iterator<Item = &Arc<Numbered>> {
        let chunks = self.chunks.iter().skip(start / CHUNK);
        chunks.flat_map(|chunk| chunk.iter()).skip(start % CHUNK)
    }
}

#[cfg(test)]
mod tests {
    use mainspring_core::{Block, MessageStatus, Role, SessionId, Time};

    use super::*;

    fn message(number: usize) -> Arc<Message> {
        let mut id = [1; 16];
        id[..8].copy_from_slice(&number.to_le_bytes());
        Arc::new(Message {
            id: MessageId::from_random(id),
            session: SessionId::from_random([1; 16]),
            run: None,
            role: Role::User,
            status: MessageStatus::Completed,
            content: vec![Block::text(number.to_string())],
            usage: None,
            created_at: Time(1),
            agent: None,
            external_id: None,
        })
    }

    fn texts(path: &Path, start: usize) -> Vec<String> {
        path.starting_at(start).map(|numbered| numbered.message.all_text()).collect()
    }

    #[test]
    fn a_path_continues_another_from_any_message() {
        let all: Vec<_> = (0..3 * CHUNK).map(message).collect();
        let whole = Path::default().continued(0, &all);
        for kept in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK - 1, 3 * CHUNK] {
            let new: Vec<_> = (9000..9000 + CHUNK + 7).map(message).collect();
            let other = whole.continued(kept, &new);
            let expected: Vec<_> = (0..kept).chain(9000..9000 + CHUNK + 7).map(|no| no.to_string()).collect();
            assert_eq!(texts(&other, 0), expected, "{kept}");
            assert_eq!(texts(&other, kept), expected[kept..], "{kept}");
            assert_eq!((other.len(), other.get(kept).is_some()), (expected.len(), true));
            let fresh: Vec<_> = all[..kept].iter().chain(&new).cloned().collect();
            let fresh = Path::default().continued(0, &fresh);
            let end = |path: &Path| path.last().map(|last| last.prefix);
            assert_eq!((end(&other), other.bytes()), (end(&fresh), fresh.bytes()), "{kept}");
        }
        assert_eq!(
            (whole.len(), texts(&whole, 0).len()),
            (3 * CHUNK, 3 * CHUNK),
            "the first path has not changed"
        );
    }

    #[test]
    fn a_longer_path_shares_the_messages_of_the_shorter_one() {
        let all: Vec<_> = (0..CHUNK + 3).map(message).collect();
        let path = Path::default().continued(0, &all);
        let longer = path.continued(path.len(), &[message(5000)]);
        assert!(Arc::ptr_eq(&path.chunks[0], &longer.chunks[0]));
        assert!((0..path.len()).all(|no| Arc::ptr_eq(path.get(no).unwrap(), longer.get(no).unwrap())));
    }
}
