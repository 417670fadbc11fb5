//! Claims on bytes: in this process, the bytes of a hash are not stored and removed at the same time.
//!
//! The claims of other processes that share the store are in the store (`Store::blob_claim`).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The hashes whose bytes are being stored or removed in this process.
#[derive(Debug, Default)]
pub(super) struct Claims {
    by_hash: Mutex<HashMap<String, Use>>,
    /// Notified when a removal ends.
    removed: Notify,
}

#[derive(Debug)]
enum Use {
    /// The bytes are being stored, by this number of uploads.
    Stored(usize),
    Removed,
}

/// A claim on the bytes of a hash, until it is dropped.
#[derive(Debug)]
pub(crate) struct ClaimedHash {
    claims: Arc<Claims>,
    hash: String,
}

impl Claims {
    /// Claims bytes in order to store them. Waits while they are being removed.
    pub(super) async fn claim_storing(self: &Arc<Self>, hash: &str) -> ClaimedHash {
        loop {
            let mut removed = std::pin::pin!(self.removed.notified());
            removed.as_mut().enable();
            if self.try_claim_storing(hash) {
                return self.claimed(hash);
            }
            removed.await;
        }
    }

    fn try_claim_storing(&self, hash: &str) -> bool {
        match self.by_hash.lock().entry(hash.to_owned()) {
            Entry::Vacant(entry) => drop(entry.insert(Use::Stored(1))),
            Entry::Occupied(mut entry) => match entry.get_mut() {
                Use::Stored(count) => *count += 1,
                Use::Removed => return false,
            },
        }
        true
    }

    /// Claims bytes in order to remove them, unless they are being stored or removed.
    pub(super) fn claim_removal(self: &Arc<Self>, hash: &str) -> Option<ClaimedHash> {
        match self.by_hash.lock().entry(hash.to_owned()) {
            Entry::Vacant(entry) => drop(entry.insert(Use::Removed)),
            Entry::Occupied(_) => return None,
        }
        Some(self.claimed(hash))
    }

    fn claimed(self: &Arc<Self>, hash: &str) -> ClaimedHash {
        ClaimedHash { claims: Arc::clone(self), hash: hash.to_owned() }
    }
}

impl Drop for ClaimedHash {
    fn drop(&mut self) {
        let mut by_hash = self.claims.by_hash.lock();
        match by_hash.get_mut(&self.hash) {
            Some(Use::Stored(count)) if *count > 1 => *count -= 1,
            _ => drop(by_hash.remove(&self.hash)),
        }
        drop(by_hash);
        self.claims.removed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bytes_are_not_stored_and_removed_at_the_same_time() {
        let claims = Arc::new(Claims::default());
        let stored = [claims.claim_storing("a").await, claims.claim_storing("a").await];
        assert!(claims.claim_removal("a").is_none());
        let other = claims.claim_removal("b").unwrap();
        let [first, second] = stored;
        drop(first);
        assert!(claims.claim_removal("a").is_none(), "another upload stores them");
        drop(second);
        let removal = claims.claim_removal("a").unwrap();
        assert!(claims.claim_removal("a").is_none(), "one removal at a time");
        let storing = claims.claim_storing("a");
        let mut storing = std::pin::pin!(storing);
        assert!(futures_util::poll!(storing.as_mut()).is_pending());
        drop(other);
        assert!(futures_util::poll!(storing.as_mut()).is_pending(), "the removal has not ended");
        drop(removal);
        drop(storing.await);
        assert!(claims.by_hash.lock().is_empty());
    }
}
