//! `/v1/events`: the events of all of the caller's sessions in one order, as JSON pages or server-sent events.
//!
//! The id of each server-sent event is the resume position. `caught_up` is sent once the client has received all events so
//! far: from then on its own view is current.

use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use mainspring_api::{CaughtUp, OwnerEventsQuery, Page, StoreNotice};
use mainspring_core::{Body, Cursor, Event, Position};
use mainspring_kernel::owner_events::{OwnerEvents, OwnerItem};
use tokio_util::sync::CancellationToken;

use crate::access::{Authenticated, KeyEnded, key_ended};
use crate::body::{Json, QueryParams};
use crate::events::{ResumeHeader, resume_point, wants_stream};
use crate::sessions::page_of;
use crate::sse::{frame, sse_response};
use crate::streams::StreamPermit;
use crate::{Http, Problem};

/// Returns a page of the events of all of the caller's sessions, or streams them if the client accepts `text/event-stream`
#[utoipa::path(
    get, path = "/v1/events", params(OwnerEventsQuery, ResumeHeader),
    responses((status = 200, description = "Events in order",
        content((Page<Event> = "application/json"), (String = "text/event-stream")))),
    extensions(("x-problems" = json!(["cursor_expired", "too_many_streams"]))),
)]
pub(super) async fn owner_events(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    headers: HeaderMap,
    QueryParams(query): QueryParams<OwnerEventsQuery>,
) -> Result<Response, Problem> {
    let after = resume_point(&headers, query.after.as_deref())?.map(|position| position.cursor);
    let types = query.types.as_deref().map(types).transpose()?;
    if let Some(after) = after {
        http.kernel.check_in_history(after, query.history.as_deref()).await?;
    }
    if wants_stream(&headers) {
        let permit = http.streams.acquire(&http.kernel, &caller.owner, None)?;
        let events = http.kernel.owner_events(&caller, types, after).await?;
        let (key_ended, stop) = (key_ended(&http, &caller), http.stop.clone());
        return Ok(sse_response(&http.kernel, frames(Reader { _permit: permit, events, key_ended, stop })));
    }
    let after = after.unwrap_or(Cursor::START);
    let events = http.kernel.owner_history(&caller, types, after, query.limit).await?;
    Ok(Json(page_of(&http, events, query.limit, |event| resume(event.cursor))).into_response())
}

/// Returns the event types whose first part is one of these comma-separated words.
fn types(words: &str) -> Result<Vec<&'static str>, Problem> {
    let mut types = vec![];
    for word in words.split(',') {
        let of_word = |kind: &&str| kind.split('.').next() == Some(word);
        let before = types.len();
        types.extend(Body::TYPES.iter().copied().filter(of_word));
        if types.len() == before {
            return Err(Problem::invalid(format!("no event type starts with {word:?}")));
        }
    }
    Ok(types)
}

/// Formats the resume position. This stream has no text deltas, so `pos` is always 0.
fn resume(cursor: Cursor) -> String {
    Position { cursor, pos: 0 }.to_string()
}

struct Reader {
    _permit: StreamPermit,
    events: OwnerEvents,
    key_ended: KeyEnded,
    stop: CancellationToken,
}

/// Sends one frame per item, until the caller's key ends or the server stops.
fn frames(reader: Reader) -> impl Stream<Item = Bytes> {
    stream::unfold(reader, |mut reader| async move {
        let stop = reader.stop.clone();
        let item = tokio::select! {
            biased;
            () = &mut reader.key_ended => return None,
            // Events that have already happened are sent before the stream ends.
            item = reader.events.next() => item,
            () = stop.cancelled() => return None,
        };
        let frame = match item {
            Ok(OwnerItem::Event(event)) => frame(&*event, Some(&resume(event.cursor)), event.body.kind()),
            Ok(OwnerItem::CaughtUp(cursor)) => {
                let position = Position { cursor, pos: 0 };
                frame(&CaughtUp { position }, Some(&position), CaughtUp::KIND)
            }
            Ok(OwnerItem::Store(cursor, change)) => {
                let notice = StoreNotice { position: Position { cursor, pos: 0 }, body: change.body() };
                frame(&notice, Some(&notice.position), notice.body.kind())
            }
            Err(error) => {
                // The client reconnects with its last id and gets the error as a response.
                tracing::warn!(%error, "stream ended with an error");
                return None;
            }
        };
        Some((frame, reader))
    })
}
