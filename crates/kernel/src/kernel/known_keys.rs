//! The keys of recent callers, so that a request need not read its key from the store.
//!
//! Invariant: after a key's revocation is durable and [`KnownKeys::forget`] has returned, no reader finds the key as it was
//! before. So a key that was read before the revocation is not kept after it.

use std::collections::HashMap;
use std::sync::Arc;

use mainspring_core::ApiKey;
use parking_lot::Mutex;

/// The maximum number of kept keys. When it is reached, all keys are dropped and read again.
const MAX_KEYS: usize = 1_024;

/// The hash of a key's secret.
type Hash = [u8; 32];

/// The kept keys. Expired ones may be among them.
#[derive(Debug, Default)]
pub(super) struct KnownKeys(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    keys: HashMap<Hash, Arc<ApiKey>>,
    /// Counts the calls of `forget`.
    forgotten: u64,
}

/// The number of calls of [`KnownKeys::forget`] before a key is read from the store.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadAt(u64);

impl KnownKeys {
    /// Finds a kept key. If there is none, the caller reads the key from the store and passes the returned [`ReadAt`]
    /// to [`Self::keep`].
    pub(super) fn find(&self, hash: &Hash) -> Result<Arc<ApiKey>, ReadAt> {
        let state = self.0.lock();
        state.keys.get(hash).cloned().ok_or(ReadAt(state.forgotten))
    }

    /// Keeps a key, unless keys were forgotten since it was read.
    pub(super) fn keep(&self, key: &Arc<ApiKey>, ReadAt(read_at): ReadAt) {
        let mut state = self.0.lock();
        if state.forgotten != read_at {
            return;
        }
        if state.keys.len() >= MAX_KEYS {
            state.keys.clear();
        }
        state.keys.insert(key.hash, key.clone());
    }

    /// Forgets all keys, because one of them may have changed.
    pub(super) fn forget(&self) {
        let mut state = self.0.lock();
        state.keys.clear();
        state.forgotten += 1;
    }
}

#[cfg(test)]
mod tests {
    use mainspring_core::{AccessRole, KeyId, Time};

    use super::*;

    fn key(n: u16) -> Arc<ApiKey> {
        let mut hash = [0; 32];
        hash[..2].copy_from_slice(&n.to_le_bytes());
        Arc::new(ApiKey {
            id: KeyId::from_random([1; 16]),
            name: "a".into(),
            owner: "ada".into(),
            org: None,
            role: AccessRole::Member,
            hash,
            created_at: Time(0),
            expires_at: None,
            revoked_at: None,
            folders: None,
            adapters: None,
            models: None,
            tools: None,
            spend_per_day: None,
        })
    }

    #[test]
    fn a_key_that_was_read_before_a_revocation_is_not_kept_after_it() {
        let (keys, known) = (KnownKeys::default(), key(1));
        let before = keys.find(&known.hash).unwrap_err();
        keys.forget();
        keys.keep(&known, before);
        let after = keys.find(&known.hash).unwrap_err();
        keys.keep(&known, after);
        assert_eq!(keys.find(&known.hash).unwrap(), known);
        keys.forget();
        assert!(keys.find(&known.hash).is_err());
    }

    #[test]
    fn the_number_of_kept_keys_is_bounded() {
        let keys = KnownKeys::default();
        for n in 0..=u16::try_from(MAX_KEYS).unwrap() {
            let read_at = keys.find(&key(n).hash).unwrap_err();
            keys.keep(&key(n), read_at);
        }
        assert_eq!(keys.0.lock().keys.len(), 1);
    }
}
