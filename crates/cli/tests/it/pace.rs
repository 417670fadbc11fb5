//! The pause between two looks at something that a test waits for and that sends no event.

use mainspring_kernel::clock::Clock;

const PAUSE_MS: u64 = 10;

/// Lets the servers work before the next look. Without a pause, the test and the server that answers it take turns on the
/// processors, and the scheduler of Linux 6.18 then starves other processes, such as PostgreSQL, for seconds.
pub(crate) async fn pause() {
    Clock::system().sleep_for(PAUSE_MS).await;
}
