//! A reader of server-sent events, independent of the one in the client.

use std::collections::HashMap;
use std::fmt::Debug;
use std::pin::Pin;

use futures_util::{Stream, StreamExt};
use serde_json::Value;

/// One server-sent event.
#[derive(Debug, Clone, PartialEq)]
pub struct SseFrame {
    /// The resume point.
    pub id: Option<String>,
    /// The type.
    pub event: String,
    /// The payload.
    pub data: Value,
}

/// The server-sent events of one response.
pub struct EventStream {
    pieces: Pin<Box<dyn Stream<Item = Vec<u8>> + Send>>,
    buffer: Vec<u8>,
}

impl EventStream {
    /// Reads the body of a response. A broken connection fails the test.
    pub fn new<B: AsRef<[u8]>, E: Debug>(body: impl Stream<Item = Result<B, E>> + Send + 'static) -> Self {
        Self { pieces: Box::pin(body.map(|piece| piece.unwrap().as_ref().to_vec())), buffer: vec![] }
    }

    /// Waits for the next event with data; `None` at the end of the response.
    pub async fn next(&mut self) -> Option<SseFrame> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let frame: Vec<u8> = self.buffer.drain(..end + 2).collect();
                let frame = String::from_utf8(frame).unwrap();
                let fields: HashMap<&str, &str> =
                    frame.lines().filter_map(|line| line.split_once(": ")).collect();
                let Some(data) = fields.get("data") else { continue };
                let id = fields.get("id").map(|id| (*id).to_owned());
                let event = fields.get("event").copied().unwrap_or_default().to_owned();
                return Some(SseFrame { id, event, data: serde_json::from_str(data).unwrap() });
            }
            self.buffer.extend(self.pieces.next().await?);
        }
    }

    /// Waits for the next event of this type and drops the events before it.
    pub async fn next_of(&mut self, event: &str) -> SseFrame {
        loop {
            let frame = self.next().await.unwrap_or_else(|| panic!("the stream ended without {event}"));
            if frame.event == event {
                return frame;
            }
        }
    }
}
