//! Streamed bytes: how many of them are stored, and which bytes a reader must discard if a crash lost some.
//!
//! ```text
//! 0 ────────── stored ─────────── taken ─────────── published
//!    durable           in a batch          in memory
//! ```
//!
//! Bytes are published at once. They become durable in batches, or together with the next commit, whichever is first.
//!
//! Invariant: the position of an event covers stored bytes only, since its commit stores the bytes before it.
//! Therefore, if a reader has received more bytes than the next event's position covers, a crash lost exactly the
//! bytes after that position.

use std::ops::Range;

/// How far a session's streamed bytes are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stored {
    stored: u64,
    taken: u64,
}

impl Stored {
    /// Starts with all bytes up to `pos` stored.
    pub fn up_to(pos: u64) -> Self {
        Self { stored: pos, taken: pos }
    }

    /// Takes the bytes for the next batch: those up to `published` that no batch has taken.
    pub fn take(&mut self, published: u64) -> Range<u64> {
        let from = self.taken;
        self.taken = from.max(published);
        from..self.taken
    }

    /// Records that the batch up to `to` is durable.
    pub fn batch_stored(&mut self, to: u64) {
        self.stored = self.stored.max(to);
    }

    /// Records that the batch from `from` on is not durable. The next batch takes its bytes again, except those that
    /// a commit has stored in the meantime.
    pub fn batch_failed(&mut self, from: u64) {
        self.taken = self.taken.min(from).max(self.stored);
    }

    /// Returns the bytes that a commit at `pos` must store. This includes bytes that a batch has taken: the outcome of
    /// the batch is not known yet, and commits overtake batches.
    pub fn needed_by_commit(&self, pos: u64) -> Range<u64> {
        self.stored.min(pos)..pos
    }

    /// Records that a commit at `pos` is durable.
    pub fn committed(&mut self, pos: u64) {
        self.stored = self.stored.max(pos);
        self.taken = self.taken.max(pos);
    }
}

/// Returns the position after which a reader has received bytes that are not stored; `None` if there are none.
/// `received` is the reader's position; `next` is the position of the next event, or the end of the stored bytes if
/// there is no next event.
pub fn truncated_at(received: u64, next: u64) -> Option<u64> {
    (received > next).then_some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_stores_what_a_batch_has_taken_but_not_stored() {
        let mut stored = Stored::up_to(10);
        assert_eq!(stored.take(15), 10..15);
        assert_eq!(stored.needed_by_commit(18), 10..18);
        stored.committed(18);
        stored.batch_failed(10);
        assert_eq!(stored.take(20), 18..20, "the commit has stored the bytes of the failed batch");
        stored.batch_stored(20);
        assert_eq!(stored.needed_by_commit(20), 20..20);
    }

    #[test]
    fn a_failed_batch_is_taken_again() {
        let mut stored = Stored::up_to(0);
        assert_eq!(stored.take(5), 0..5);
        stored.batch_failed(0);
        assert_eq!(stored.take(7), 0..7);
        stored.batch_stored(7);
        assert_eq!(stored, Stored::up_to(7));
    }

    #[test]
    fn only_bytes_beyond_the_next_event_are_lost() {
        assert_eq!([truncated_at(9, 10), truncated_at(10, 10), truncated_at(11, 10)], [None, None, Some(10)]);
    }
}
