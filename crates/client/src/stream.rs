//! Server-sent events over connections that reconnect.

use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use mainspring_api::{EventsQuery, header_name};
use mainspring_core::Position;
use sse_stream::{Sse, SseByteStream};

use crate::backoff::Backoff;
use crate::{Client, Error};

const RECONNECT_BACKOFF: Backoff =
    Backoff { initial: Duration::from_millis(10), max: Duration::from_secs(5) };

/// The frames of one connection.
pub(crate) type Connection = Pin<Box<dyn Stream<Item = Result<Sse, sse_stream::Error>> + Send>>;

/// The frames of one path, across reconnects.
pub(crate) struct Frames {
    pub(crate) client: Client,
    path: Vec<String>,
    connection: Option<Connection>,
    /// The history in which the frames so far were read, and the mode.
    pub(crate) query: EventsQuery,
    failures: u32,
    /// The number of consecutive failures after which `next` returns the error.
    pub(crate) max_failures: u32,
}

impl Frames {
    pub(crate) fn new(client: Client, path: &[&str]) -> Self {
        let path = path.iter().map(|segment| (*segment).to_owned()).collect();
        Self {
            client,
            path,
            connection: None,
            query: EventsQuery::default(),
            failures: 0,
            max_failures: u32::MAX,
        }
    }

    /// Waits for the next frame; `None` if the connection has ended. The next call connects again, after `after`.
    /// Cancel-safe.
    pub(crate) async fn next(&mut self, after: Option<Position>) -> Result<Option<Sse>, Error> {
        loop {
            let Some(connection) = &mut self.connection else {
                self.connect(after).await?;
                continue;
            };
            let frame = connection.next().await.and_then(Result::ok);
            match &frame {
                Some(_) => self.failures = 0,
                // The connection broke, the server is stopping, or nothing follows.
                None => self.connection = None,
            }
            return Ok(frame);
        }
    }

    /// Connects if there is no connection.
    pub(crate) async fn ensure_connected(&mut self, after: Option<Position>) -> Result<(), Error> {
        if self.connection.is_none() { self.connect(after).await } else { Ok(()) }
    }

    async fn connect(&mut self, after: Option<Position>) -> Result<(), Error> {
        loop {
            RECONNECT_BACKOFF.wait(self.failures).await;
            let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
            // Sent only with a position: the server checks that the position belongs to its stored history.
            let history = self.query.history.clone().filter(|_| after.is_some());
            let query = EventsQuery { history, ..self.query.clone() };
            let response = self.client.stream(&path, &query, after).await;
            // A connection counts as a failure until its first frame arrives: it may end without one.
            self.failures += 1;
            match response {
                Ok(response) => {
                    self.query.history = history_of(&response).or(self.query.history.take());
                    self.connection = Some(Box::pin(SseByteStream::new(response.bytes_stream())));
                    return Ok(());
                }
                Err(error) if error.is_retryable() && self.failures < self.max_failures => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Returns the history that a response names.
pub(crate) fn history_of(response: &reqwest::Response) -> Option<String> {
    response.headers().get(header_name::HISTORY)?.to_str().ok().map(str::to_owned)
}
