//! Events: JSON pages, or server-sent events that resume exactly where a reader was.
//!
//! The id of each server-sent event is the resume point `cursor.pos`; a reader that comes back with it as
//! `Last-Event-ID` or `after=` misses nothing and sees nothing twice.

use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use mainspring_api::{EventsQuery, Page, SubscriptionMode, Thought};
use mainspring_core::{Event, Position, RunId, SessionId};
use mainspring_kernel::Kernel;
use mainspring_kernel::feed::{Item, Subscription};
use mainspring_kernel::kernel::{Accepted, Caller};
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use utoipa::IntoParams;

use crate::access::{KeyOver, Known, key_over};
use crate::body::{Asked, Named, NamedRun};
use crate::sessions::page_of;
use crate::streams::Place;
use crate::{Http, Problem};

/// How often a silent stream shows that it lives.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Where a stream goes on.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "it documents a header; `resume_point` reads it")]
pub(super) struct Resume {
    /// Like `after`; browsers send it by themselves.
    #[param(rename = "Last-Event-ID", pattern = r"^[0-9]{1,19}\.[0-9]{1,19}$")]
    last_event_id: Option<String>,
}

/// Events of a session: a page, or a stream if the caller accepts `text/event-stream`
#[utoipa::path(
    get, path = "/v1/sessions/{session}/events", params(Named, EventsQuery, Resume),
    responses((status = 200, description = "Events, in order",
        content((Page<Event> = "application/json"), (String = "text/event-stream")))),
    extensions(("x-problems" = json!(["cursor_expired", "too_many_streams"]))),
)]
pub(super) async fn session_events(
    State(http): State<Http>,
    Known(caller): Known,
    Named(by): Named,
    headers: HeaderMap,
    Asked(query): Asked<EventsQuery>,
) -> Result<Response, Problem> {
    let after = resume_point(&headers, query.after.as_deref())?;
    if wants_stream(&headers) {
        let items = match query.mode.unwrap_or_default() {
            SubscriptionMode::Controller => http.kernel.session_subscribe(&caller, &by, after).await?,
            SubscriptionMode::Observer => http.kernel.session_observe(&caller, &by, after).await?,
        };
        return stream_of(&http, caller, items, None);
    }
    let cursor = after.unwrap_or(Position::START).cursor;
    Ok(page(&http, http.kernel.session_events(&caller, &by, cursor, query.limit).await?, query.limit))
}

/// Events of a run: a page, or a stream that ends with it
#[utoipa::path(
    get, path = "/v1/runs/{run}/events", params(NamedRun, EventsQuery, Resume),
    responses((status = 200, description = "Events, in order",
        content((Page<Event> = "application/json"), (String = "text/event-stream")))),
    extensions(("x-problems" = json!(["cursor_expired", "too_many_streams"]))),
)]
pub(super) async fn run_events(
    State(http): State<Http>,
    Known(caller): Known,
    NamedRun(run): NamedRun,
    headers: HeaderMap,
    Asked(query): Asked<EventsQuery>,
) -> Result<Response, Problem> {
    let after = resume_point(&headers, query.after.as_deref())?;
    let cursor = after.unwrap_or(Position::START).cursor;
    if !wants_stream(&headers) {
        let events = http.kernel.run_events(&caller, run, cursor, query.limit).await?;
        return Ok(page(&http, events, query.limit));
    }
    let items = http.kernel.run_observe(&caller, run, after).await?;
    stream_of(&http, caller, items, Some(run))
}

/// A run that was just accepted, as a stream that ends with it.
pub(super) async fn run_stream(
    http: &Http,
    caller: &Caller,
    accepted: &Accepted,
) -> Result<Response, Problem> {
    let items = http.kernel.run_observe(caller, accepted.run.id, begin(accepted)).await?;
    stream_of(http, caller.clone(), items, Some(accepted.run.id))
}

/// Where the stream of an accepted run begins: of one that was accepted before, everything is told.
fn begin(accepted: &Accepted) -> Option<Position> {
    (!accepted.replayed).then_some(accepted.position)
}

/// True when the caller asks for server-sent events.
pub(super) fn wants_stream(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accept.split(',').any(|kind| kind.trim().starts_with("text/event-stream"))
}

/// Where the reader was: `Last-Event-ID`, which a browser sends by itself, else `after`.
pub(super) fn resume_point(headers: &HeaderMap, after: Option<&str>) -> Result<Option<Position>, Problem> {
    let last = headers.get("last-event-id").map(|value| value.to_str().unwrap_or("?"));
    let Some(text) = last.or(after) else {
        return Ok(None);
    };
    text.parse().map(Some).map_err(|bad: mainspring_core::BadPosition| Problem::invalid(bad.to_string()))
}

fn page(http: &Http, events: Vec<Event>, limit: Option<usize>) -> Response {
    Json(page_of(http, events, limit, |event| event.position().to_string())).into_response()
}

fn stream_of(
    http: &Http,
    caller: Caller,
    items: Subscription,
    run: Option<RunId>,
) -> Result<Response, Problem> {
    let place = http.streams.place(&http.limits, Some(items.session()))?;
    let (kernel, over, stop) = (http.kernel.clone(), key_over(http, &caller), http.stop.clone());
    Ok(sse_of(frames(Reader { _place: place, kernel, caller, items, run, over, stop, done: false })))
}

/// Server-sent events, with a sign of life where they are silent.
pub(super) fn sse_of(
    frames: impl Stream<Item = Result<sse::Event, Infallible>> + Send + 'static,
) -> Response {
    Sse::new(frames).keep_alive(KeepAlive::new().interval(HEARTBEAT)).into_response()
}

struct Reader {
    _place: Place,
    kernel: Kernel,
    caller: Caller,
    items: Subscription,
    run: Option<RunId>,
    over: KeyOver,
    stop: CancellationToken,
    done: bool,
}

impl Reader {
    /// True after the item that is the last one of a run's stream.
    async fn is_last(&mut self, item: &Item) -> bool {
        match (item, self.run) {
            (Item::Event(event), Some(run)) => event.run == Some(run) && event.body.ends_run(),
            // Its end may be among what was pruned.
            (Item::Reset(_), Some(run)) => {
                let run = self.kernel.run_get(&self.caller, run).await;
                run.is_ok_and(|run| run.state.status().is_ended())
            }
            _ => false,
        }
    }
}

/// One frame per item, until the run ends (if it is one run's), the session is gone, the reader's key is over or the
/// server stops.
fn frames(reader: Reader) -> impl Stream<Item = Result<sse::Event, Infallible>> {
    stream::unfold(reader, |mut reader| async move {
        loop {
            if reader.done {
                return None;
            }
            let stop = reader.stop.clone();
            let item = tokio::select! {
                biased;
                () = &mut reader.over => return None,
                // What has happened is told before the stream ends.
                item = reader.items.next() => item?,
                () = stop.cancelled() => return None,
            };
            let item = match item {
                Ok(item) => item,
                Err(error) => {
                    // The reader comes back with its last id and finds out more.
                    tracing::warn!(%error, "a stream broke off");
                    return None;
                }
            };
            reader.done = reader.is_last(&item).await;
            if let Some(frame) = frame(&item, reader.items.session(), reader.run) {
                return Some((Ok(frame), reader));
            }
        }
    })
}

fn frame(item: &Item, session: SessionId, run: Option<RunId>) -> Option<sse::Event> {
    if let Some(live) = item.live(session) {
        let other = run.is_some() && live.run.is_some() && live.run != run;
        return (!other).then(|| data(&live).id(live.position.to_string()).event(live.body.kind()));
    }
    match item {
        Item::Event(event) if run.is_none() || event.run == run => {
            Some(data(&**event).id(event.position().to_string()).event(event.body.kind()))
        }
        // Its id is where the snapshot stands: whoever comes back with it goes on from there.
        Item::Reset(snapshot) => Some(data(&**snapshot).id(snapshot.position.to_string()).event("reset")),
        // A thought has no place in the order, so it carries no id.
        Item::Thought(thought) => {
            let thought = Thought { attempt_id: thought.attempt, text: (*thought.text).to_owned() };
            Some(data(&thought).event("thought"))
        }
        _ => None,
    }
}

pub(super) fn data(value: &impl Serialize) -> sse::Event {
    sse::Event::default().data(serde_json::to_string(value).unwrap_or_default())
}
