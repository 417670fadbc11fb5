//! Server-sent events: a response whose frames are bytes, so that readers of one session can share them.
//!
//! A delta is serialized once per session, not once per reader. Sending a frame sets no timer and takes no
//! lock that all streams share: a thousand readers would do so a thousand times per delta.

use std::convert::Infallible;
use std::fmt::Display;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream::{Stream, StreamExt};
use mainspring_api::ToJson;
use mainspring_core::{MessageId, Position, SessionId};
use mainspring_kernel::Kernel;
use mainspring_kernel::feed::{Delta, Item};
use parking_lot::Mutex;

/// A comment is sent after an idle time between this interval and twice this interval.
const IDLE_INTERVAL: Duration = Duration::from_millis(7_500);
const COMMENT: Bytes = Bytes::from_static(b":\n\n");

/// Builds a frame whose data is `value`. A client that reconnects sends `id` as `Last-Event-ID`.
pub(super) fn frame(value: &impl ToJson, id: Option<&dyn Display>, event: &str) -> Bytes {
    // Serialized JSON is one line, so one `data` field holds it.
    let data = value.to_json().unwrap_or_default();
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    Bytes::from(format!("data: {data}\n{id}event: {event}\n\n"))
}

/// Builds a response of frames. Sends comments while there are no frames.
pub(super) fn sse_response(kernel: &Kernel, frames: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    let frames =
        KeptAlive { frames: frames.boxed(), idle: idle(kernel), has_sent: false, kernel: kernel.clone() };
    (headers, Body::from_stream(frames.map(Ok::<_, Infallible>))).into_response()
}

type Idle = Pin<Box<dyn Future<Output = ()> + Send>>;

fn idle(kernel: &Kernel) -> Idle {
    let kernel = kernel.clone();
    Box::pin(async move { kernel.sleep(IDLE_INTERVAL).await })
}

/// Frames, and comments between them. A frame does not reset the timer, which would lock the timers of the process.
struct KeptAlive {
    frames: Pin<Box<dyn Stream<Item = Bytes> + Send>>,
    idle: Idle,
    /// True if a frame was sent since the timer was set.
    has_sent: bool,
    kernel: Kernel,
}

impl Stream for KeptAlive {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = this.frames.as_mut().poll_next(context) {
            this.has_sent = true;
            return Poll::Ready(frame);
        }
        while this.idle.as_mut().poll(context).is_ready() {
            this.idle = idle(&this.kernel);
            if !std::mem::replace(&mut this.has_sent, false) {
                return Poll::Ready(Some(COMMENT));
            }
        }
        Poll::Pending
    }
}

/// The delta of a session that was serialized last, and its frame.
#[derive(Debug, Default)]
pub(super) struct SharedFrame(Mutex<Option<(DeltaKey, Bytes)>>);

/// Two deltas of a session with the same key are equal: they end at the same position of its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DeltaKey {
    position: Position,
    bytes: usize,
    message: MessageId,
    block: u32,
}

impl SharedFrame {
    /// Returns the frame of a delta of `session`. Reuses the last frame if it is of an equal delta.
    pub(super) fn delta(&self, item: &Item, delta: &Delta, session: SessionId) -> Option<Bytes> {
        let (position, bytes) = (delta.position, delta.text.len());
        let key = DeltaKey { position, bytes, message: delta.message, block: delta.block };
        let mut last = self.0.lock();
        if let Some((_, frame)) = last.as_ref().filter(|(of, _)| *of == key) {
            return Some(frame.clone());
        }
        let live = item.live(session)?;
        let frame = frame(&live, Some(&position), live.body.kind());
        *last = Some((key, frame.clone()));
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use mainspring_api::Thought;
    use mainspring_core::{AttemptId, Cursor};

    use super::*;

    fn delta(text: &str, pos: u64) -> Delta {
        Delta {
            run: None,
            message: MessageId::from_bytes([1; 16]),
            block: 0,
            text: text.into(),
            position: Position { cursor: Cursor(7), pos },
        }
    }

    #[test]
    fn equal_deltas_share_a_frame_and_others_do_not() {
        let (shared, session) = (SharedFrame::default(), SessionId::from_bytes([2; 16]));
        let frame = |delta: Delta| shared.delta(&Item::Delta(delta.clone()), &delta, session).unwrap();
        let first = frame(delta("hello", 5));
        let same = frame(delta("hello", 5));
        assert_eq!(first.as_ptr(), same.as_ptr(), "serialized once");
        let text = std::str::from_utf8(&first).unwrap();
        assert!(text.starts_with("data: {"), "{text}");
        assert!(text.ends_with("\nid: 7.5\nevent: message.delta\n\n"), "{text}");
        // A reader that is behind gets more text up to the same position.
        let longer = frame(delta("oh, hello", 5));
        assert!(std::str::from_utf8(&longer).unwrap().contains("oh, hello"));
        assert!(std::str::from_utf8(&frame(delta("hello", 5))).unwrap().contains(r#""hello""#));
    }

    #[test]
    fn a_frame_without_a_position_has_no_id() {
        let thought = Thought { attempt_id: AttemptId::from_bytes([3; 16]), text: "a\nb".into() };
        let frame = frame(&thought, None, Thought::KIND);
        let text = std::str::from_utf8(&frame).unwrap();
        let lines: Vec<_> = text.split('\n').map(|line| line.split(':').next().unwrap()).collect();
        assert_eq!(lines, ["data", "event", "", ""], "{text}");
    }
}
