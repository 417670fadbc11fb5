//! `/v1/feed`: the activity of the caller's sessions on the board, as server-sent events.
//!
//! The first event is a snapshot. A client that reconnects gets a new snapshot, so the events carry no id.

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use futures_util::stream::{self, Stream};
use mainspring_api::FeedSnapshot;
use mainspring_kernel::board::LiveFeed;
use tokio_util::sync::CancellationToken;

use crate::access::{Authenticated, KeyEnded, key_ended};
use crate::sse::{frame, sse_response};
use crate::streams::StreamPermit;
use crate::{Http, Problem};

/// Streams the activity of the caller's sessions in memory or waiting for a person: a snapshot, then changes
#[utoipa::path(
    get, path = "/v1/feed",
    responses((status = 200, description = "Server-sent events", body = String, content_type = "text/event-stream")),
)]
pub(super) async fn feed(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
) -> Result<Response, Problem> {
    let permit = http.streams.acquire(&http.kernel, &caller.owner, None)?;
    let (feed, key_ended) = (http.kernel.live_feed(&caller), key_ended(&http, &caller));
    let reader = Reader { _permit: permit, feed, key_ended, stop: http.stop.clone(), snapshot_sent: false };
    Ok(sse_response(&http.kernel, frames(reader)))
}

struct Reader {
    _permit: StreamPermit,
    feed: LiveFeed,
    key_ended: KeyEnded,
    stop: CancellationToken,
    snapshot_sent: bool,
}

/// Sends the snapshot, then one frame per change, until the caller's key ends or the server stops.
fn frames(reader: Reader) -> impl Stream<Item = Bytes> {
    stream::unfold(reader, |mut reader| async move {
        if !std::mem::replace(&mut reader.snapshot_sent, true) {
            let snapshot = FeedSnapshot { sessions: reader.feed.snapshot().to_vec() };
            return Some((frame(&snapshot, None, FeedSnapshot::KIND), reader));
        }
        let stop = reader.stop.clone();
        let change = tokio::select! {
            biased;
            () = &mut reader.key_ended => return None,
            // Changes that have already happened are sent before the stream ends.
            change = reader.feed.next() => change?,
            () = stop.cancelled() => return None,
        };
        Some((frame(&change, None, change.kind()), reader))
    })
}
