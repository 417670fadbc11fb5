//! Bodies of requests that must arrive at a minimum rate.
//!
//! A request holds one of its owner's permits while its body arrives, so a body must not take for ever.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Error;
use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use mainspring_kernel::Kernel;

use crate::HttpLimits;

/// Whether the body of a request was too slow.
#[derive(Debug, Clone, Default)]
pub(super) struct TooSlow(Arc<AtomicBool>);

impl TooSlow {
    pub(super) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A body that ends with an error if it is too slow: after `body_ms` it must have `body_rate` bytes for each further
/// second.
pub(super) struct SlowBody {
    body: Body,
    kernel: Kernel,
    started: Duration,
    limits: HttpLimits,
    received: u64,
    /// Resolves when the body is too slow, unless more bytes have arrived. Created when the body first has to be waited
    /// for.
    deadline: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    too_slow: TooSlow,
}

impl SlowBody {
    pub(super) fn new(body: Body, kernel: Kernel, limits: HttpLimits, too_slow: TooSlow) -> Self {
        let started = kernel.elapsed();
        Self { body, kernel, started, limits, received: 0, deadline: None, too_slow }
    }

    /// The time that the received bytes may take.
    fn allowed(&self) -> Duration {
        let earned = self.received.saturating_mul(1000) / self.limits.body_rate.max(1);
        Duration::from_millis(self.limits.body_ms.saturating_add(earned))
    }
}

impl HttpBody for SlowBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            if let Some(Ok(data)) = &frame {
                this.received += data.data_ref().map_or(0, |data| data.len() as u64);
            }
            return Poll::Ready(frame);
        }
        loop {
            let left = this.allowed().saturating_sub(this.kernel.elapsed().saturating_sub(this.started));
            let deadline = match &mut this.deadline {
                Some(deadline) => deadline,
                none => {
                    let kernel = this.kernel.clone();
                    none.insert(Box::pin(async move { kernel.sleep(left).await }))
                }
            };
            ready!(deadline.as_mut().poll(context));
            this.deadline = None;
            let taken = this.kernel.elapsed().saturating_sub(this.started);
            if taken >= this.allowed() {
                this.too_slow.0.store(true, Ordering::Relaxed);
                return Poll::Ready(Some(Err(Error::new("the body arrives too slowly"))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
