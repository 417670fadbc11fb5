//! The flusher: makes streamed text durable in one batch for all sessions, at most every 100 ms.

use std::sync::Arc;

use tokio::sync::mpsc::UnboundedReceiver;

use crate::clock::Clock;
use crate::feed::Feed;
use crate::store::Store;
use crate::tasks::Tasks;

/// Shortest time between two batches. Under load a batch takes longer.
const FLUSH_INTERVAL_MS: u64 = 100;

/// Writes the streamed text of every feed received from `dirty`, until the kernel stops.
pub(crate) async fn flush(
    store: Arc<dyn Store>,
    clock: Clock,
    mut dirty: UnboundedReceiver<Arc<Feed>>,
    tasks: Tasks,
) {
    let mut feeds = vec![];
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
            () = clock.sleep_until(clock.now().plus(FLUSH_INTERVAL_MS)) => {}
            () = tasks.stopping() => {}
        }
        while let Ok(feed) = dirty.try_recv() {
            feeds.push(feed);
        }
        let written: Vec<_> = feeds.drain(..).map(|feed| (feed.take_unflushed(), feed)).collect();
        let starts: Vec<_> = written
            .iter()
            .filter_map(|(chunks, feed)| chunks.first().map(|chunk| (chunk.pos, feed.clone())))
            .collect();
        let chunks: Vec<_> = written.into_iter().flat_map(|(chunks, _)| chunks).collect();
        if chunks.is_empty() {
            continue;
        }
        if let Err(error) = store.chunks_write(chunks).await {
            tracing::warn!(%error, "cannot write streamed text; retrying");
            for (pos, feed) in starts {
                feed.mark_unflushed(pos);
            }
            if tasks.is_stopping() {
                return;
            }
        }
    }
}
