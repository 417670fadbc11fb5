//! Locks on native sessions, so that no session is forked while a turn runs in it.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The native sessions in use. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct SessionLocks(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    locked: Mutex<HashSet<String>>,
    released: Notify,
}

/// Exclusive use of one native session until it is dropped.
#[derive(Debug)]
pub(super) struct SessionLock {
    locks: SessionLocks,
    native: String,
}

impl SessionLocks {
    /// Locks a native session, waiting until it is free.
    pub(super) async fn lock(&self, native: &str) -> SessionLock {
        loop {
            let released = self.0.released.notified();
            match self.try_lock(native) {
                Some(lock) => return lock,
                None => released.await,
            }
        }
    }

    /// Locks a native session if it is free.
    pub(super) fn try_lock(&self, native: &str) -> Option<SessionLock> {
        let free = self.0.locked.lock().insert(native.to_owned());
        free.then(|| SessionLock { locks: self.clone(), native: native.to_owned() })
    }
}

impl Drop for SessionLock {
    fn drop(&mut self) {
        self.locks.0.locked.lock().remove(&self.native);
        self.locks.0.released.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_session_has_one_holder_at_a_time() {
        let locks = SessionLocks::default();
        let first = locks.lock("a").await;
        assert!(locks.try_lock("a").is_none());
        assert!(locks.try_lock("b").is_some(), "another session is free");
        let second = locks.lock("a");
        tokio::pin!(second);
        assert!(futures_util::poll!(&mut second).is_pending());
        drop(first);
        let _second = second.await;
        assert!(locks.try_lock("a").is_none());
    }
}
