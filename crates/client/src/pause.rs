//! Delays before retries. The only module of the client that sleeps.

use std::time::Duration;

/// Waits before the next try: longer with each consecutive failure, not at all before the first try.
pub(crate) async fn pause(failures: u32, first: Duration, longest: Duration) {
    if let Some(doublings) = failures.checked_sub(1) {
        sleep(first.saturating_mul(1 << doublings.min(16)).min(longest)).await;
    }
}

/// Sleeps for a duration.
#[expect(
    clippy::disallowed_methods,
    reason = "a client has no kernel's clock; nothing depends on when it returns"
)]
pub(crate) async fn sleep(time: Duration) {
    tokio::time::sleep(time).await;
}
