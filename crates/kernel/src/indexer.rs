//! The indexer: prepares what was written for search, a moment later and for all sessions at once.

use std::sync::Arc;

use tokio::sync::Notify;

use crate::clock::Clock;
use crate::store::Store;
use crate::tasks::Tasks;

/// How long what was written may wait, in milliseconds: meanwhile it is found by reading it.
const REST: u64 = 1_000;

/// Indexes what an earlier process left, then whatever is written, until the kernel stops.
pub(crate) async fn index(store: Arc<dyn Store>, clock: Clock, written: Arc<Notify>, tasks: Tasks) {
    loop {
        while !tasks.is_stopping() {
            match store.search_index().await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!(%error, "what was written is not prepared for search yet");
                    break;
                }
            }
        }
        tokio::select! {
            () = written.notified() => {}
            () = tasks.stopping() => return,
        }
        tokio::select! {
            () = clock.sleep_until(clock.now().plus(REST)) => {}
            () = tasks.stopping() => return,
        }
    }
}
