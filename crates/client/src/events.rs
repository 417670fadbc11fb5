//! Event streams that reconnect.
//!
//! A stream remembers the position of what it has given last. When the connection breaks, it comes back with that
//! position, so the caller gets each event and each streamed byte once, however often that happens.

use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use mainspring_core::{AttemptId, Body, Event, Live, Position, RunId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sse_stream::{Sse, SseByteStream};

use crate::{Client, Error, Snapshot};

/// The pauses between tries to come back: the first, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(5));

type Frames = Pin<Box<dyn Stream<Item = Result<Sse, sse_stream::Error>> + Send>>;

/// What happens in a session or a run, in order.
pub struct Events {
    client: Client,
    path: Vec<String>,
    run: Option<RunId>,
    at: Option<Position>,
    frames: Option<Frames>,
    failures: u32,
    tries: u32,
    over: bool,
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// A durable event.
    Event(Box<Event>),
    /// Streamed text, or that a crash lost some that had been shown.
    Live(Live),
    /// A thought: shown live, never again.
    Thought(Thought),
    /// What lay between is not kept any more: the session as it is now, from which the stream goes on.
    Reset(Box<Snapshot>),
    /// Something that a newer server says and this client does not know.
    Unknown {
        /// Its type.
        kind: String,
        /// What it says.
        data: Value,
    },
}

/// Something the agent thought.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Thought {
    /// Who thought it.
    pub attempt_id: AttemptId,
    /// The text.
    pub text: String,
}

impl Item {
    /// The streamed text, if it is some.
    pub fn text(&self) -> &str {
        match self {
            Self::Live(Live { body: Body::MessageDelta { text, .. }, .. }) => text,
            _ => "",
        }
    }
}

impl Events {
    pub(crate) fn of_session(client: Client, session: &str, from: Position) -> Self {
        let path = ["v1", "sessions", session, "events"].map(str::to_owned).to_vec();
        Self::new(client, path, None, Some(from))
    }

    pub(crate) fn of_run(client: Client, run: RunId, from: Option<Position>) -> Self {
        let path = ["v1", "runs", &run.to_string(), "events"].map(str::to_owned).to_vec();
        Self::new(client, path, Some(run), from)
    }

    fn new(client: Client, path: Vec<String>, run: Option<RunId>, at: Option<Position>) -> Self {
        Self { client, path, run, at, frames: None, failures: 0, tries: u32::MAX, over: false }
    }

    /// Gives up after `tries` failed tries in a row to come back; without this, never.
    pub fn give_up_after(self, tries: u32) -> Self {
        Self { tries, ..self }
    }

    /// The resume point: everything up to here has been given.
    pub fn position(&self) -> Option<Position> {
        self.at
    }

    /// The next thing; none once the run has ended or the session is gone. May be dropped and called again.
    pub async fn next(&mut self) -> Option<Result<Item, Error>> {
        while !self.over {
            let Some(frames) = &mut self.frames else {
                match self.connect().await {
                    Ok(()) => continue,
                    Err(error) => return Some(Err(error)),
                }
            };
            match frames.next().await {
                Some(Ok(frame)) => {
                    self.failures = 0;
                    match self.read(frame) {
                        Ok(Some(item)) => return Some(Ok(item)),
                        Ok(None) => {}
                        Err(error) => {
                            self.over = true;
                            return Some(Err(error));
                        }
                    }
                }
                // It broke, or the server stops: what comes next is known by the position.
                Some(Err(_)) | None => self.frames = None,
            }
        }
        None
    }

    async fn connect(&mut self) -> Result<(), Error> {
        loop {
            self.pause().await;
            let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
            match self.client.stream(&path, self.at).await {
                Ok(response) => {
                    self.failures += 1;
                    self.frames = Some(Box::pin(SseByteStream::new(response.bytes_stream())));
                    return Ok(());
                }
                Err(error) if error.is_retryable() => {
                    self.failures += 1;
                    if self.failures >= self.tries {
                        return Err(error);
                    }
                }
                Err(error) => {
                    self.over = true;
                    return Err(error);
                }
            }
        }
    }

    /// Doubles with each failure in a row.
    #[expect(
        clippy::disallowed_methods,
        reason = "a client has no kernel's clock; nothing depends on when it returns"
    )]
    async fn pause(&self) {
        if let Some(doublings) = self.failures.checked_sub(1) {
            tokio::time::sleep(PAUSE.0.saturating_mul(1 << doublings.min(10)).min(PAUSE.1)).await;
        }
    }

    fn read(&mut self, frame: Sse) -> Result<Option<Item>, Error> {
        let position = match frame.id.as_deref().map(str::parse::<Position>) {
            None => None,
            Some(Ok(position)) => Some(position),
            Some(Err(bad)) => return Err(self.client.protocol(bad.to_string())),
        };
        let Some(data) = frame.data else {
            // An id alone says where the stream stands.
            self.at = position.or(self.at);
            return Ok(None);
        };
        let item = item(frame.event.as_deref().unwrap_or("message"), &data)
            .map_err(|error| self.client.protocol(format!("{error} in {data:?}")))?;
        self.at = position.or(self.at);
        self.over = match &item {
            Item::Event(event) if self.run.is_some() => event.run == self.run && event.body.ends_run(),
            Item::Event(event) => matches!(event.body, Body::SessionDeleted {}),
            _ => false,
        };
        Ok(Some(item))
    }
}

fn item(kind: &str, data: &str) -> Result<Item, serde_json::Error> {
    Ok(match kind {
        "thought" => Item::Thought(serde_json::from_str(data)?),
        "reset" => Item::Reset(serde_json::from_str(data)?),
        "message.delta" | "message.truncated" => Item::Live(serde_json::from_str(data)?),
        kind if Body::TYPES.contains(&kind) => Item::Event(serde_json::from_str(data)?),
        kind => Item::Unknown { kind: kind.to_owned(), data: serde_json::from_str(data)? },
    })
}
