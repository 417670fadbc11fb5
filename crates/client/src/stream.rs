//! Server-sent events over connections that reconnect.

use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use mainspring_core::Position;
use sse_stream::{Sse, SseByteStream};

use crate::pause::pause;
use crate::{Client, Error};

/// The delays between reconnects: the first, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(5));

/// One connection.
pub(crate) type Open = Pin<Box<dyn Stream<Item = Result<Sse, sse_stream::Error>> + Send>>;

/// The frames of one address, across reconnects.
pub(crate) struct Frames {
    pub(crate) client: Client,
    path: Vec<String>,
    open: Option<Open>,
    failures: u32,
    pub(crate) tries: u32,
}

impl Frames {
    pub(crate) fn of(client: Client, path: &[&str]) -> Self {
        let path = path.iter().map(|part| (*part).to_owned()).collect();
        Self { client, path, open: None, failures: 0, tries: u32::MAX }
    }

    /// Waits for the next frame; a new connection starts after `at`. Cancel-safe.
    pub(crate) async fn next(&mut self, at: Option<Position>) -> Result<Sse, Error> {
        loop {
            let Some(open) = &mut self.open else {
                self.connect(at).await?;
                continue;
            };
            match open.next().await {
                Some(Ok(frame)) => {
                    self.failures = 0;
                    return Ok(frame);
                }
                // The connection broke, or the server is stopping.
                Some(Err(_)) | None => self.open = None,
            }
        }
    }

    /// Connects if there is no connection.
    pub(crate) async fn open(&mut self, at: Option<Position>) -> Result<(), Error> {
        if self.open.is_none() { self.connect(at).await } else { Ok(()) }
    }

    async fn connect(&mut self, at: Option<Position>) -> Result<(), Error> {
        loop {
            pause(self.failures, PAUSE.0, PAUSE.1).await;
            let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
            let connected = self.client.stream(&path, &[], at).await;
            // Counted as a failure until a frame arrives: a connection without frames is one too.
            self.failures += 1;
            match connected {
                Ok(response) => {
                    self.open = Some(Box::pin(SseByteStream::new(response.bytes_stream())));
                    return Ok(());
                }
                Err(error) if error.is_retryable() && self.failures < self.tries => {}
                Err(error) => return Err(error),
            }
        }
    }
}
