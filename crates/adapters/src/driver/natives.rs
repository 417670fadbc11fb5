//! Which native sessions are being used, so that none is forked while it goes on.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The native sessions in use. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Natives(Arc<(Mutex<HashSet<String>>, Notify)>);

/// The use of one native session, until it is dropped.
#[derive(Debug)]
pub(super) struct Held {
    natives: Natives,
    native: String,
}

impl Natives {
    /// Uses it, once nobody else does.
    pub(super) async fn hold(&self, native: &str) -> Held {
        loop {
            let freed = self.0.1.notified();
            match self.try_hold(native) {
                Some(held) => return held,
                None => freed.await,
            }
        }
    }

    /// Uses it, unless somebody else does.
    pub(super) fn try_hold(&self, native: &str) -> Option<Held> {
        let free = self.0.0.lock().insert(native.to_owned());
        free.then(|| Held { natives: self.clone(), native: native.to_owned() })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.natives.0.0.lock().remove(&self.native);
        self.natives.0.1.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_native_session_is_used_by_one_at_a_time() {
        let natives = Natives::default();
        let first = natives.hold("a").await;
        assert!(natives.try_hold("a").is_none());
        assert!(natives.try_hold("b").is_some(), "another one is another matter");
        let second = natives.hold("a");
        tokio::pin!(second);
        assert!(futures_util::poll!(&mut second).is_pending());
        drop(first);
        let _second = second.await;
        assert!(natives.try_hold("a").is_none());
    }
}
