//! The flusher: makes streamed text durable in one batch for all sessions, at most every 100 ms.

use std::sync::Arc;

use tokio::sync::mpsc::UnboundedReceiver;

use crate::clock::Clock;
use crate::feed::Feed;
use crate::store::Store;
use crate::store_health::StoreHealth;
use crate::tasks::Tasks;

/// Shortest time between two batches. Under load a batch takes longer.
const FLUSH_INTERVAL_MS: u64 = 100;

/// Writes the streamed text of every feed received from `dirty`, until the kernel stops.
pub(crate) async fn flush(
    store: Arc<dyn Store>,
    clock: Clock,
    mut dirty: UnboundedReceiver<Arc<Feed>>,
    health: Arc<StoreHealth>,
    tasks: Tasks,
) {
    let mut feeds = vec![];
    // The error that was logged last: a store that is gone fails every batch in the same way.
    let mut logged = None;
    loop {
        let received = tokio::select! {
            biased;
            received = dirty.recv_many(&mut feeds, usize::MAX) => received,
            () = tasks.stopping() => 0,
        };
        if received == 0 {
            return;
        }
        // A stopping process writes at once, so that a waiting run keeps the text it has streamed.
        tokio::select! {
            () = clock.sleep_for(FLUSH_INTERVAL_MS) => {}
            () = tasks.stopping() => {}
        }
        while let Ok(feed) = dirty.try_recv() {
            feeds.push(feed);
        }
        let (mut chunks, mut batches) = (vec![], vec![]);
        for feed in feeds.drain(..) {
            let batch = feed.take_unflushed();
            if !batch.chunks.is_empty() {
                chunks.extend(batch.chunks);
                batches.push((feed, batch.range, batch.actor_generation));
            }
        }
        if chunks.is_empty() {
            continue;
        }
        let written = store.chunks_write(chunks).await;
        for (feed, range, actor_generation) in batches {
            feed.batch_ended(&range, actor_generation, written.is_ok());
        }
        let Err(error) = written else {
            logged = None;
            continue;
        };
        health.report(&error);
        if health.failure().is_none() && logged.as_ref() != Some(&error) {
            tracing::warn!(%error, "cannot write streamed text; retrying");
            logged = Some(error);
        }
        if tasks.is_stopping() {
            return;
        }
    }
}
