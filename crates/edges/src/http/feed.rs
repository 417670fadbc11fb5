//! `/v1/feed`: what all of the caller's sessions do, as server-sent events.
//!
//! The first event is a snapshot; a reader that comes back gets another one, so the events carry no id.

use std::convert::Infallible;

use axum::extract::State;
use axum::response::{Response, sse};
use futures_util::stream::{self, Stream};
use mainspring_kernel::board::{LiveFeed, LiveSession};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::Http;
use super::access::Known;
use super::events::{data, sse_of};

/// `GET /v1/feed`
pub(super) async fn feed(State(http): State<Http>, Known(caller): Known) -> Response {
    let feed = http.kernel.feed(&caller);
    sse_of(frames(Reader { feed, stop: http.stop, begun: false }))
}

struct Reader {
    feed: LiveFeed,
    stop: CancellationToken,
    begun: bool,
}

#[derive(Serialize)]
struct Snapshot<'a> {
    sessions: &'a [LiveSession],
}

/// The snapshot, then one frame per change, until the server stops.
fn frames(reader: Reader) -> impl Stream<Item = Result<sse::Event, Infallible>> {
    stream::unfold(reader, |mut reader| async move {
        if !std::mem::replace(&mut reader.begun, true) {
            let snapshot = data(&Snapshot { sessions: reader.feed.snapshot() }).event("snapshot");
            return Some((Ok(snapshot), reader));
        }
        let stop = reader.stop.clone();
        let change = tokio::select! {
            // What has happened is told before the stream ends.
            biased;
            change = reader.feed.next() => change?,
            () = stop.cancelled() => return None,
        };
        Some((Ok(data(&change).event(change.kind())), reader))
    })
}
