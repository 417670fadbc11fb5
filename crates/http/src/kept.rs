//! Bodies that are kept while they are read, in case the request belongs to another server.
//!
//! The reader of the body decides how much of it is read, after it has authenticated the caller and admitted the
//! request. The part that was read is kept up to a limit, without a copy; the rest stays in the connection.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, BodyDataStream, Bytes};
use futures_util::{Stream, StreamExt};
use parking_lot::Mutex;

/// A body that can be sent again after a reader has read a part of it.
pub(super) struct KeptBody(Arc<Mutex<State>>);

struct State {
    /// The chunks that were read; `None` once they exceed the limit, or once the body cannot be sent again.
    read: Option<Vec<Bytes>>,
    /// The number of bytes that may still be kept.
    left: usize,
    rest: Option<BodyDataStream>,
}

/// Reads a body, and keeps what was read.
struct Reader(Arc<Mutex<State>>);

impl KeptBody {
    /// Returns a body with the same content, of which at most `limit` bytes are kept.
    pub(super) fn new(body: Body, limit: usize) -> (Body, Self) {
        let state = State { read: Some(vec![]), left: limit, rest: Some(body.into_data_stream()) };
        let state = Arc::new(Mutex::new(state));
        (Body::from_stream(Reader(Arc::clone(&state))), Self(state))
    }

    /// Returns the whole body again; `None` if more than the limit was read, or if reading failed.
    pub(super) fn whole(self) -> Option<Body> {
        let mut state = self.0.lock();
        let (read, rest) = (state.read.take()?, state.rest.take());
        let read = futures_util::stream::iter(read.into_iter().map(Ok));
        Some(match rest {
            Some(rest) => Body::from_stream(read.chain(rest)),
            None => Body::from_stream(read),
        })
    }
}

impl Drop for KeptBody {
    fn drop(&mut self) {
        self.0.lock().read = None;
    }
}

impl State {
    fn keep(&mut self, chunk: &Bytes) {
        match self.left.checked_sub(chunk.len()) {
            Some(left) => {
                self.left = left;
                self.read.iter_mut().for_each(|read| read.push(chunk.clone()));
            }
            None => self.read = None,
        }
    }
}

impl Stream for Reader {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut state = self.0.lock();
        let Some(rest) = &mut state.rest else { return Poll::Ready(None) };
        let next = rest.poll_next_unpin(context);
        match &next {
            Poll::Ready(Some(Ok(chunk))) => state.keep(chunk),
            // A body that failed cannot be sent again.
            Poll::Ready(Some(Err(_))) => (state.read, state.rest) = (None, None),
            Poll::Ready(None) => state.rest = None,
            Poll::Pending => {}
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body() -> Body {
        let chunks = ["one ", "two ", "three"].map(|chunk| Ok::<_, axum::Error>(Bytes::from(chunk)));
        Body::from_stream(futures_util::stream::iter(chunks))
    }

    async fn text(body: Body) -> String {
        String::from_utf8(axum::body::to_bytes(body, 1 << 10).await.unwrap().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn a_body_is_whole_again_however_much_of_it_was_read() {
        for read in 0..=4 {
            let (body, kept) = KeptBody::new(body(), 13);
            let mut chunks = body.into_data_stream();
            for _ in 0..read {
                let _ = chunks.next().await;
            }
            drop(chunks);
            assert_eq!(text(kept.whole().unwrap()).await, "one two three", "{read}");
        }
    }

    #[tokio::test]
    async fn no_more_than_the_limit_is_kept() {
        let (body, kept) = KeptBody::new(body(), 12);
        let mut chunks = body.into_data_stream();
        let _ = (chunks.next().await, chunks.next().await);
        assert_eq!(kept.0.lock().read.as_ref().unwrap().len(), 2);
        let _ = chunks.next().await;
        assert!(kept.whole().is_none());
    }

    #[tokio::test]
    async fn a_reader_keeps_nothing_once_the_kept_body_is_dropped() {
        let (body, kept) = KeptBody::new(body(), 13);
        let state = Arc::clone(&kept.0);
        drop(kept);
        assert_eq!(text(body).await, "one two three");
        assert!(state.lock().read.is_none());
    }
}
