//! `/v1/feed`: what all of the caller's sessions do, as server-sent events.
//!
//! The first event is a snapshot; a reader that comes back gets another one, so the events carry no id.

use std::convert::Infallible;

use axum::extract::State;
use axum::response::{Response, sse};
use futures_util::stream::{self, Stream};
use mainspring_api::FeedSnapshot;
use mainspring_kernel::board::LiveFeed;
use tokio_util::sync::CancellationToken;

use crate::access::{KeyOver, Known, key_over};
use crate::events::{data, sse_of};
use crate::streams::Place;
use crate::{Http, Problem};

/// What all of the caller's sessions in memory do, as a stream: a snapshot, then each change
#[utoipa::path(
    get, path = "/v1/feed",
    responses((status = 200, description = "Server-sent events", body = String, content_type = "text/event-stream")),
)]
pub(super) async fn feed(State(http): State<Http>, Known(caller): Known) -> Result<Response, Problem> {
    let place = http.streams.place(&http.limits, None)?;
    let (feed, over) = (http.kernel.live_feed(&caller), key_over(&http, &caller));
    Ok(sse_of(frames(Reader { _place: place, feed, over, stop: http.stop, begun: false })))
}

struct Reader {
    _place: Place,
    feed: LiveFeed,
    over: KeyOver,
    stop: CancellationToken,
    begun: bool,
}

/// The snapshot, then one frame per change, until the reader's key is over or the server stops.
fn frames(reader: Reader) -> impl Stream<Item = Result<sse::Event, Infallible>> {
    stream::unfold(reader, |mut reader| async move {
        if !std::mem::replace(&mut reader.begun, true) {
            let snapshot =
                data(&FeedSnapshot { sessions: reader.feed.snapshot().to_vec() }).event("snapshot");
            return Some((Ok(snapshot), reader));
        }
        let stop = reader.stop.clone();
        let change = tokio::select! {
            biased;
            () = &mut reader.over => return None,
            // What has happened is told before the stream ends.
            change = reader.feed.next() => change?,
            () = stop.cancelled() => return None,
        };
        Some((Ok(data(&change).event(change.kind())), reader))
    })
}
