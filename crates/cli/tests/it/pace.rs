//! The pause between two checks of a condition that sends no event when it is met.

use mainspring_kernel::clock::Clock;

const PAUSE_MS: u64 = 10;

/// Lets the servers work before the next check. Without a pause, the test and the server that answers it take
/// turns on the processors, and the scheduler of Linux 6.18 then starves other processes, such as PostgreSQL,
/// for seconds.
pub(crate) async fn pause() {
    Clock::system().sleep_for(PAUSE_MS).await;
}
