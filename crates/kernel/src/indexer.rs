//! The indexer: adds new messages and titles to the search index, in the background and for all sessions at once.

use std::sync::Arc;

use tokio::sync::Notify;

use crate::clock::Clock;
use crate::store::Store;
use crate::tasks::Tasks;

/// Pause before indexing after a write. Meanwhile search finds unindexed text by scanning it.
const INDEX_DELAY_MS: u64 = 1_000;

/// Indexes text that an earlier process left unindexed, then indexes after every notification of `stale`, until the
/// kernel stops.
pub(crate) async fn index(store: Arc<dyn Store>, clock: Clock, stale: Arc<Notify>, tasks: Tasks) {
    loop {
        while !tasks.is_stopping() {
            match store.search_index().await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!(%error, "cannot update the search index; retrying after the next write");
                    break;
                }
            }
        }
        tokio::select! {
            () = stale.notified() => {}
            () = tasks.stopping() => return,
        }
        tokio::select! {
            () = clock.sleep_for(INDEX_DELAY_MS) => {}
            () = tasks.stopping() => return,
        }
    }
}
