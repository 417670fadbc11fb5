//! Event streams that reconnect.
//!
//! A stream remembers the position of the last item it returned. When the connection breaks, the stream reconnects at
//! that position, so the caller gets each event and each streamed byte exactly once.

use mainspring_api::{EventsQuery, Snapshot, SubscriptionMode, Thought};
use mainspring_core::{Body, Event, LiveEvent, Position, RunId};
use serde_json::Value;
use sse_stream::Sse;

use crate::json::FromJson;
use crate::stream::Frames;
use crate::{Client, Error};

/// The events of a session or a run, in order.
pub struct Events {
    frames: Frames,
    run: Option<RunId>,
    position: Option<Position>,
    /// A reset of a run's stream that was received and not returned yet.
    reset: Option<Box<Snapshot>>,
    /// The run of a run's stream may have ended: the last event was damaged, or the connection has ended.
    may_have_ended: bool,
    ended: bool,
}

/// One item of a stream.
#[allow(
    clippy::large_enum_variant,
    reason = "streamed text is the most frequent item and costs no allocation"
)]
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// A durable event.
    Event(Box<Event>),
    /// Streamed text, or the notice that a crash lost text already streamed.
    Live(LiveEvent),
    /// A thought: display-only, never replayed.
    Thought(Thought),
    /// Events after the resume point were pruned, or the point is of another history. The stream continues after this
    /// snapshot of the session.
    Reset(Box<Snapshot>),
    /// An item of a newer server that this client does not know.
    Unknown {
        /// The type of the item.
        kind: String,
        /// The payload of the item.
        data: Value,
    },
}

impl Item {
    /// Returns the streamed text; empty for other items.
    pub fn text(&self) -> &str {
        match self {
            Self::Live(LiveEvent { body: Body::MessageDelta { text, .. }, .. }) => text,
            _ => "",
        }
    }
}

impl Events {
    pub(crate) fn of_session(client: Client, session: &str, from: Position) -> Self {
        let frames = Frames::new(client, &["v1", "sessions", session, "events"]);
        Self { frames, run: None, position: Some(from), reset: None, may_have_ended: false, ended: false }
    }

    pub(crate) fn of_run(client: Client, run: RunId, from: Option<Position>) -> Self {
        let frames = Frames::new(client, &["v1", "runs", &run.to_string(), "events"]);
        Self { frames, run: Some(run), position: from, reset: None, may_have_ended: false, ended: false }
    }

    /// Gives up after `failures` consecutive failures to reconnect; by default never.
    pub fn give_up_after(mut self, failures: u32) -> Self {
        self.frames.max_failures = failures;
        self
    }

    /// Connects now instead of at the first call of [`Self::next`], so that display-only items are received from now
    /// on.
    pub async fn connect(&mut self) -> Result<(), Error> {
        self.frames.ensure_connected(self.position).await
    }

    /// Returns the resume point: all items up to here were returned.
    pub fn position(&self) -> Option<Position> {
        self.position
    }

    /// Returns the history that the position belongs to. Store it together with the position.
    pub fn history(&self) -> Option<&str> {
        self.frames.query.history.as_deref()
    }

    /// Sets the history in which the position was read. If the server has another history now, the stream begins with a
    /// reset.
    pub fn in_history(mut self, history: Option<String>) -> Self {
        self.frames.query.history = history;
        self
    }

    /// Follows a session without keeping it in memory: the stream pauses while the session is unloaded. The stream of a
    /// run never keeps its session in memory.
    pub fn observing(mut self) -> Self {
        self.frames.query.mode = self.run.is_none().then_some(SubscriptionMode::Observer);
        self
    }

    /// Waits for the next item; `None` once the run has ended, the session is deleted, or an error that is not
    /// retryable was returned. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Item, Error>> {
        while !self.ended {
            if let Some(run) = self.run.filter(|_| self.may_have_ended) {
                self.ended = self.has_ended(run).await;
                // Reset after the await: a caller may drop the future.
                self.may_have_ended = false;
                continue;
            }
            if let (Some(run), true) = (self.run, self.reset.is_some()) {
                // The event that ended the run may have been pruned.
                let run = Box::pin(self.frames.client.run_get(run)).await;
                self.ended = run.is_ok_and(|run| run.state.status().is_ended());
                return self.reset.take().map(|snapshot| Ok(Item::Reset(snapshot)));
            }
            let item = match self.frames.next(self.position).await {
                Ok(Some(frame)) => self.read_frame(frame),
                Ok(None) => {
                    // The server ends the stream of a run with the run, also one that resumes after the end.
                    self.may_have_ended = true;
                    continue;
                }
                // The server may come back: the caller can try again.
                Err(error) if error.is_retryable() => return Some(Err(error)),
                Err(error) => Err(error),
            };
            self.ended |= item.is_err();
            if let Some(item) = item.transpose() {
                return Some(item);
            }
        }
        None
    }

    /// True if the run has ended and none of its events follows.
    async fn has_ended(&mut self, run: RunId) -> bool {
        let client = &self.frames.client;
        let after = EventsQuery::after(self.position.unwrap_or(Position::START), Some(1));
        let query = EventsQuery { history: self.frames.query.history.clone(), ..after };
        let later = Box::pin(client.run_events_page(run, &query)).await;
        later.is_ok_and(|page| page.items.is_empty())
            && match Box::pin(client.run_get(run)).await {
                Ok(run) => run.state.status().is_ended(),
                // The row of the run is damaged: reading the run reports the error.
                Err(error) => error.is_corrupt(),
            }
    }

    fn read_frame(&mut self, frame: Sse) -> Result<Option<Item>, Error> {
        let position = match frame.id.as_deref().map(str::parse::<Position>) {
            None => None,
            Some(Ok(position)) => Some(position),
            Some(Err(bad)) => return Err(self.frames.client.protocol_error(bad.to_string())),
        };
        let Some(data) = frame.data else {
            // A frame with only an id moves the position.
            self.position = position.or(self.position);
            return Ok(None);
        };
        let item = parse_item(frame.event.as_deref().unwrap_or("message"), &data)
            .map_err(|error| self.frames.client.protocol_error(format!("{error} in {data:?}")))?;
        self.position = position.or(self.position);
        let item = match item {
            Item::Reset(snapshot) if self.run.is_some() => {
                self.reset = Some(snapshot);
                return Ok(None);
            }
            item => item,
        };
        self.ended = match &item {
            Item::Event(event) if self.run.is_some() => {
                self.may_have_ended = event.run.is_none() && matches!(event.body, Body::EventDamaged { .. });
                event.run == self.run && event.body.ends_run()
            }
            Item::Event(event) => matches!(event.body, Body::SessionDeleted {}),
            _ => false,
        };
        Ok(Some(item))
    }
}

fn parse_item(kind: &str, data: &str) -> Result<Item, serde_json::Error> {
    Ok(match kind {
        Thought::KIND => Item::Thought(Thought::from_json(data)?),
        Snapshot::RESET => Item::Reset(Snapshot::from_json(data)?.into()),
        "message.delta" | "message.truncated" | "store.failed" | "store.recovered" => {
            Item::Live(LiveEvent::from_json(data)?)
        }
        kind if Body::TYPES.contains(&kind) => Item::Event(Event::from_json(data)?.into()),
        kind => Item::Unknown { kind: kind.to_owned(), data: Value::from_json(data)? },
    })
}
