//! Events as JSON pages or as resumable server-sent events.
//!
//! The id of a server-sent event is its position `cursor.pos`; a thought has none. A client that reconnects
//! with a position as `Last-Event-ID` or `after=` gets every later event exactly once.

use std::pin::Pin;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use mainspring_api::{EventsQuery, Page, Snapshot, SubscriptionMode, Thought, header_name};
use mainspring_core::{Body, Cursor, Event, Position, RunId, RunStatus};
use mainspring_kernel::feed::{Item, Subscription};
use mainspring_kernel::kernel::{Accepted, Caller};
use mainspring_kernel::{Error, Kernel};
use tokio_util::sync::WaitForCancellationFutureOwned;
use utoipa::IntoParams;

use crate::access::{Authenticated, KeyEnded, key_ended};
use crate::body::{Json, QueryParams, RunPath, SessionPath};
use crate::sessions::page_of;
use crate::sse::{frame, sse_response};
use crate::streams::StreamPermit;
use crate::{Http, Problem};

/// Documents the header that resumes a stream.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "documents a header; `resume_point` reads it")]
pub(super) struct ResumeHeader {
    /// Like `after`; browsers send it automatically on reconnect.
    #[param(rename = "Last-Event-ID", pattern = r"^[0-9]{1,19}\.[0-9]{1,19}$")]
    last_event_id: Option<String>,
}

/// Returns a page of a session's events, or streams them if the client accepts `text/event-stream`
#[utoipa::path(
    get, path = "/v1/sessions/{session}/events", params(SessionPath, EventsQuery, ResumeHeader),
    responses((status = 200, description = "Events in order",
        content((Page<Event> = "application/json"), (String = "text/event-stream")))),
    extensions(("x-problems" = json!(["cursor_expired", "too_many_streams"]))),
)]
pub(super) async fn session_events(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    SessionPath(by): SessionPath,
    headers: HeaderMap,
    QueryParams(query): QueryParams<EventsQuery>,
) -> Result<Response, Problem> {
    let after = resume_point(&headers, query.after.as_deref())?;
    if wants_stream(&headers) {
        let items = match query.mode.unwrap_or_default() {
            SubscriptionMode::Controller => http.kernel.session_subscribe(&caller, &by, after).await?,
            SubscriptionMode::Observer => http.kernel.session_observe(&caller, &by, after).await?,
        };
        let items = in_history(&http, items, after, &query);
        return stream_response(&http, caller, items, None);
    }
    let cursor = after.unwrap_or(Position::START).cursor;
    http.kernel.check_in_history(cursor, query.history.as_deref()).await?;
    Ok(page(&http, http.kernel.session_events(&caller, &by, cursor, query.limit).await?, query.limit))
}

/// Returns a page of a run's events, or streams them until the run ends if the client accepts `text/event-stream`
#[utoipa::path(
    get, path = "/v1/runs/{run}/events", params(RunPath, EventsQuery, ResumeHeader),
    responses((status = 200, description = "Events in order",
        content((Page<Event> = "application/json"), (String = "text/event-stream")))),
    extensions(("x-problems" = json!(["cursor_expired", "too_many_streams"]))),
)]
pub(super) async fn run_events(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    RunPath(run): RunPath,
    headers: HeaderMap,
    QueryParams(query): QueryParams<EventsQuery>,
) -> Result<Response, Problem> {
    let after = resume_point(&headers, query.after.as_deref())?;
    let cursor = after.unwrap_or(Position::START).cursor;
    if !wants_stream(&headers) {
        http.kernel.check_in_history(cursor, query.history.as_deref()).await?;
        let events = http.kernel.run_events(&caller, run, cursor, query.limit).await?;
        return Ok(page(&http, events, query.limit));
    }
    let items = http.kernel.run_observe(&caller, run, after).await?;
    let items = in_history(&http, items, after, &query);
    // A client that resumes may have read the event that ended the run: no later item would end the stream.
    if after.is_some() && !items.is_restarting() && is_over(&http.kernel, &caller, run, cursor).await {
        return Ok(sse_response(&http.kernel, stream::empty()));
    }
    stream_response(&http, caller, items, Some(run))
}

/// True if a run has ended and none of its events follows `cursor`.
async fn is_over(kernel: &Kernel, caller: &Caller, run: RunId, cursor: Cursor) -> bool {
    let later = kernel.run_events(caller, run, cursor, Some(1)).await;
    later.is_ok_and(|events| events.is_empty()) && has_ended(kernel, caller, run).await
}

async fn has_ended(kernel: &Kernel, caller: &Caller, run: RunId) -> bool {
    kernel.run_status(caller, run).await.is_ok_and(RunStatus::is_ended)
}

/// Begins the stream with a reset if the client has read another history.
fn in_history(
    http: &Http,
    items: Subscription,
    after: Option<Position>,
    query: &EventsQuery,
) -> Subscription {
    let is_known = |after: Position| http.kernel.is_in_history(after.cursor, query.history.as_deref());
    if after.is_none_or(is_known) { items } else { items.restarted() }
}

/// Streams a run that was just accepted, until the run ends.
pub(super) async fn run_stream(
    http: &Http,
    caller: &Caller,
    accepted: &Accepted,
) -> Result<Response, Problem> {
    let items = http.kernel.run_observe(caller, accepted.run.id, stream_start(accepted)).await?;
    stream_response(http, caller.clone(), items, Some(accepted.run.id))
}

/// Returns where the stream of an accepted run starts: at the run's first event if the request is a replay.
fn stream_start(accepted: &Accepted) -> Option<Position> {
    (!accepted.replayed).then_some(accepted.position)
}

/// True when the client accepts server-sent events.
pub(super) fn wants_stream(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accept.split(',').any(|kind| kind.trim().starts_with("text/event-stream"))
}

/// Reads the resume position: `Last-Event-ID`, which browsers send automatically, else `after`.
pub(super) fn resume_point(headers: &HeaderMap, after: Option<&str>) -> Result<Option<Position>, Problem> {
    let last = headers.get(header_name::LAST_EVENT_ID).map(|value| value.to_str().unwrap_or("?"));
    let Some(text) = last.or(after) else {
        return Ok(None);
    };
    text.parse().map(Some).map_err(|bad: mainspring_core::BadPosition| Problem::invalid(bad.to_string()))
}

fn page(http: &Http, events: Vec<Event>, limit: Option<usize>) -> Response {
    Json(page_of(http, events, limit, |event| event.position().to_string())).into_response()
}

fn stream_response(
    http: &Http,
    caller: Caller,
    items: Subscription,
    run: Option<RunId>,
) -> Result<Response, Problem> {
    let permit = http.streams.acquire(&http.kernel, &caller.owner, Some(items.session()))?;
    let (kernel, key_ended) = (http.kernel.clone(), key_ended(http, &caller));
    let reader = Reader {
        permit,
        kernel,
        caller,
        items,
        run,
        key_ended,
        stopped: Box::pin(http.stop.clone().cancelled_owned()),
        done: false,
    };
    Ok(sse_response(&http.kernel, frames(reader)))
}

struct Reader {
    permit: StreamPermit,
    kernel: Kernel,
    caller: Caller,
    items: Subscription,
    run: Option<RunId>,
    key_ended: KeyEnded,
    /// Created once: creating it for each frame would lock the token, which all streams share.
    stopped: Pin<Box<WaitForCancellationFutureOwned>>,
    done: bool,
}

impl Reader {
    /// True if `item` is the last one of a run's stream. Rarely used futures are boxed, to keep the future of a waiting
    /// reader small.
    async fn is_last(&mut self, item: &Item) -> bool {
        match (item, self.run) {
            // The event may be the one that ended the run.
            (Item::Event(event), Some(run)) if is_of_unknown_run(event) => {
                Box::pin(is_over(&self.kernel, &self.caller, run, event.cursor)).await
            }
            (Item::Event(event), Some(run)) => event.run == Some(run) && event.body.ends_run(),
            // The event that ended the run may have been pruned.
            (Item::Reset(_), Some(run)) => Box::pin(has_ended(&self.kernel, &self.caller, run)).await,
            _ => false,
        }
    }

    /// Returns the frame of an item, unless it is about another run.
    fn frame(&self, item: &Item) -> Option<Bytes> {
        let (session, run) = (self.items.session(), self.run);
        match item {
            Item::Delta(delta) => {
                let is_other = run.is_some() && delta.run.is_some() && delta.run != run;
                if is_other { None } else { self.permit.shared_frame()?.delta(item, delta, session) }
            }
            Item::Truncated(position) | Item::Store(position, _) => {
                let live = item.live(session)?;
                Some(frame(&live, Some(position), live.body.kind()))
            }
            Item::Event(event) if run.is_none() || event.run == run || is_of_unknown_run(event) => {
                Some(frame(&**event, Some(&event.position()), event.body.kind()))
            }
            Item::Event(_) => None,
            // The id is the snapshot's position: a client that reconnects with it continues from there.
            Item::Reset(snapshot) => Some(frame(&**snapshot, Some(&snapshot.position), Snapshot::RESET)),
            // A thought has no position, so it carries no id.
            Item::Thought(thought) => {
                let thought = Thought { attempt_id: thought.attempt, text: (*thought.text).to_owned() };
                Some(frame(&thought, None, Thought::KIND))
            }
        }
    }
}

/// True for a damaged event of which not even the run is known: it may be of any run of the session.
fn is_of_unknown_run(event: &Event) -> bool {
    event.run.is_none() && matches!(event.body, Body::EventDamaged { .. })
}

/// Sends one frame per item, until the run ends (in a run's stream), the session is deleted, the caller's key ends or
/// the server stops.
fn frames(reader: Reader) -> impl Stream<Item = Bytes> {
    // Boxed: the reader moves into a future and back with each frame.
    stream::unfold(Box::new(reader), |mut reader| async move {
        loop {
            if reader.done {
                return None;
            }
            let item = tokio::select! {
                biased;
                () = &mut reader.key_ended => return None,
                // Events that have already happened are sent before the stream ends.
                item = reader.items.next() => item?,
                () = &mut reader.stopped => return None,
            };
            let item = match item {
                Ok(item) => item,
                // The client reconnects with its last id, and reads on at the new home of the session.
                Err(Error::Elsewhere { .. }) => return None,
                Err(error) => {
                    // The client reconnects with its last id and gets the error as a response.
                    tracing::warn!(%error, "stream ended with an error");
                    return None;
                }
            };
            reader.done = reader.is_last(&item).await;
            if let Some(frame) = reader.frame(&item) {
                return Some((frame, reader));
            }
        }
    })
}
