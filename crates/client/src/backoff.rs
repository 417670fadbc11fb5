//! Delays before retries. The only module of the client that sleeps.

use std::time::Duration;

/// The delays between tries: they double from `initial` up to `max`.
#[derive(Clone, Copy)]
pub(crate) struct Backoff {
    pub(crate) initial: Duration,
    pub(crate) max: Duration,
}

impl Backoff {
    /// Waits before the next try: longer with each consecutive failure, not at all before the first try.
    pub(crate) async fn wait(self, failures: u32) {
        if let Some(doublings) = failures.checked_sub(1) {
            sleep(self.initial.saturating_mul(1 << doublings.min(16)).min(self.max)).await;
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a client does not have the kernel's clock; nothing depends on when the sleep ends"
)]
pub(crate) async fn sleep(time: Duration) {
    tokio::time::sleep(time).await;
}
