//! The flusher: makes streamed text durable, at most every 100 ms, in one batch for all sessions.

use std::sync::Arc;

use tokio::sync::mpsc::UnboundedReceiver;

use crate::clock::Clock;
use crate::feed::Feed;
use crate::store::Store;
use crate::tasks::Tasks;

/// The shortest time between two batches, in milliseconds. Under load a batch takes longer, and so does the tick.
const TICK: u64 = 100;

/// Writes the text of every feed that says it has some, until the kernel is gone.
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
        // A process that stops writes what there is at once: a run that waits keeps the text it has streamed.
        tokio::select! {
            () = clock.sleep_until(clock.now().plus(TICK)) => {}
            () = tasks.stopping() => {}
        }
        while let Ok(feed) = dirty.try_recv() {
            feeds.push(feed);
        }
        let written: Vec<_> = feeds.drain(..).map(|feed| (feed.unflushed(), feed)).collect();
        let starts: Vec<_> = written
            .iter()
            .filter_map(|(chunks, feed)| chunks.first().map(|chunk| (chunk.pos, feed.clone())))
            .collect();
        let chunks: Vec<_> = written.into_iter().flat_map(|(chunks, _)| chunks).collect();
        if chunks.is_empty() {
            continue;
        }
        if let Err(error) = store.chunks_write(chunks).await {
            tracing::warn!(%error, "streamed text could not be written; trying again");
            for (pos, feed) in starts {
                feed.reflush(pos);
            }
            if tasks.is_stopping() {
                return;
            }
        }
    }
}
