//! `/v1/events`: the events of all of the caller's sessions in one order, as JSON pages or server-sent events.
//!
//! The id of each server-sent event is the resume point. Where the reader has been given everything there was, it is told so
//! (`caught_up`): what it has built from the events is the present then.

use std::convert::Infallible;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response, sse};
use futures_util::stream::{self, Stream};
use mainspring_api::{CaughtUp, OwnerEventsQuery, Page};
use mainspring_core::{Body, Cursor, Event, Position};
use mainspring_kernel::owner_events::{OwnerEvents, OwnerItem};
use tokio_util::sync::CancellationToken;

use crate::access::{KeyOver, Known, key_over};
use crate::body::Asked;
use crate::events::{Resume, data, resume_point, sse_of, wants_stream};
use crate::sessions::page_of;
use crate::streams::Place;
use crate::{Http, Problem};

/// Events of all of the caller's sessions: a page, or a stream if the caller accepts `text/event-stream`
#[utoipa::path(
    get, path = "/v1/events", params(OwnerEventsQuery, Resume),
    responses((status = 200, description = "Events, in order",
        content((Page<Event> = "application/json"), (String = "text/event-stream")))),
)]
pub(super) async fn owner_events(
    State(http): State<Http>,
    Known(caller): Known,
    headers: HeaderMap,
    Asked(query): Asked<OwnerEventsQuery>,
) -> Result<Response, Problem> {
    let after = resume_point(&headers, query.after.as_deref())?.map(|position| position.cursor);
    let types = query.types.as_deref().map(types).transpose()?;
    if wants_stream(&headers) {
        let place = http.streams.place(&http.limits, None)?;
        let events = http.kernel.owner_events(&caller, types, after).await?;
        let (over, stop) = (key_over(&http, &caller), http.stop);
        return Ok(sse_of(frames(Reader { _place: place, events, over, stop })));
    }
    let after = after.unwrap_or(Cursor::START);
    let events = http.kernel.owner_history(&caller, types, after, query.limit).await?;
    Ok(Json(page_of(&http, events, query.limit, |event| resume(event.cursor))).into_response())
}

/// The types of events that begin with one of these words.
fn types(words: &str) -> Result<Vec<&'static str>, Problem> {
    let mut types = vec![];
    for word in words.split(',') {
        let of_word = |kind: &&str| kind.split('.').next() == Some(word);
        let known = types.len();
        types.extend(Body::TYPES.iter().copied().filter(of_word));
        if types.len() == known {
            return Err(Problem::invalid(format!("no event's type begins with {word:?}")));
        }
    }
    Ok(types)
}

/// Where a reader goes on. Streamed text has no place here, so neither has its count.
fn resume(cursor: Cursor) -> String {
    Position { cursor, pos: 0 }.to_string()
}

struct Reader {
    _place: Place,
    events: OwnerEvents,
    over: KeyOver,
    stop: CancellationToken,
}

/// One frame per item, until the reader's key is over or the server stops.
fn frames(reader: Reader) -> impl Stream<Item = Result<sse::Event, Infallible>> {
    stream::unfold(reader, |mut reader| async move {
        let stop = reader.stop.clone();
        let item = tokio::select! {
            biased;
            () = &mut reader.over => return None,
            // What has happened is told before the stream ends.
            item = reader.events.next() => item,
            () = stop.cancelled() => return None,
        };
        let frame = match item {
            Ok(OwnerItem::Event(event)) => data(&*event).id(resume(event.cursor)).event(event.body.kind()),
            Ok(OwnerItem::CaughtUp(cursor)) => {
                let position = Position { cursor, pos: 0 };
                data(&CaughtUp { position }).id(position.to_string()).event("caught_up")
            }
            Err(error) => {
                // The reader comes back with its last id and finds out more.
                tracing::warn!(%error, "a stream broke off");
                return None;
            }
        };
        Some((Ok(frame), reader))
    })
}
