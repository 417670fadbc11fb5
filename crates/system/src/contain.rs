//! Containing panics: a panic ends the work that panicked, and nothing else.

use std::any::Any;
use std::fmt;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

/// The maximum length of a kept panic message; longer messages are cut.
const MAX_MESSAGE_CHARS: usize = 500;

/// A panic that was contained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Panic {
    /// The message of the panic. It may quote data, so it is logged and never sent to a caller.
    pub message: String,
}

impl fmt::Display for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Panic {
    fn of(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        Self { message: text.unwrap_or("unknown").chars().take(MAX_MESSAGE_CHARS).collect() }
    }
}

/// Runs `future`, and returns its panic if it panics. After a panic, data that the future shares with others may be
/// half changed: the caller must drop the data, or know that it is consistent.
pub async fn contain<F: Future>(future: F) -> Result<F::Output, Panic> {
    let mut future = pin!(future);
    poll_fn(move |context| match contain_call(|| future.as_mut().poll(context)) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(done)) => Poll::Ready(Ok(done)),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// Calls `call`, and returns its panic if it panics, like [`contain`].
pub fn contain_call<T>(call: impl FnOnce() -> T) -> Result<T, Panic> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|payload| Panic::of(&*payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_before_and_after_a_wait_is_returned() {
        assert_eq!(contain(async { 1 }).await, Ok(1));
        let early = contain(async { panic!("early") }).await;
        assert_eq!(early.map(|()| 0).unwrap_err().message, "early");
        let late = contain(async {
            tokio::task::yield_now().await;
            panic!("late {}", 2)
        });
        assert_eq!(late.await.map(|()| 0).unwrap_err().message, "late 2");
    }
}
