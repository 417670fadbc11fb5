//! An agent that answers at once, and streams and ends when its gates are opened.

use std::sync::Arc;

use async_trait::async_trait;
use mainspring_core::AttemptId;
use mainspring_kernel::adapter::{Adapter, AttemptHandle, Capabilities, Death, Dispatch, End, Executed};
use tokio::sync::Semaphore;

pub(crate) const NAME: &str = "gated";
const DELTA: &str = "jumping ";

/// The gates of all attempts. A permit of `delta` lets one attempt stream a delta, a permit of `end` ends one attempt.
pub(crate) struct Gates {
    pub(crate) delta: Semaphore,
    pub(crate) end: Semaphore,
}

impl Default for Gates {
    fn default() -> Self {
        Self { delta: Semaphore::new(0), end: Semaphore::new(0) }
    }
}

pub(crate) struct Agent {
    pub(crate) gates: Arc<Gates>,
    pub(crate) answer: String,
}

#[async_trait]
impl Adapter for Agent {
    fn capabilities(&self) -> Capabilities {
        Capabilities { supports_cancellation: true, ..Capabilities::minimal(NAME) }
    }

    async fn execute(&self, attempt: AttemptHandle) -> Executed {
        attempt.delta(0, &self.answer).unwrap();
        loop {
            tokio::select! {
                biased;
                permit = self.gates.end.acquire() => {
                    permit.unwrap().forget();
                    return End::succeeded();
                }
                permit = self.gates.delta.acquire() => {
                    permit.unwrap().forget();
                    attempt.delta(0, DELTA).unwrap();
                }
            }
        }
    }

    async fn cancel(&self, _attempt: AttemptId) -> Dispatch {
        Dispatch { dispatched: true, acknowledged: false }
    }

    async fn kill(&self, _attempt: AttemptId) -> Death {
        Death::Proven
    }

    fn forget(&self, _native: &str) {}
}
