//! Waiting for a run.

use std::time::Duration;

use mainspring_core::{Body, Run, RunId};

use super::{Caller, Kernel};
use crate::error::Error;
use crate::feed::{Item, Subscription, SubscriptionMode};

impl Kernel {
    /// Waits until the run has ended or asks something, at most for `timeout`, and returns the run as it is then.
    ///
    /// Reads the store when it begins, when the run pauses and when the time is up: streamed text and other events
    /// cost no reads.
    pub async fn run_wait(&self, caller: &Caller, run: RunId, timeout: Duration) -> Result<Run, Error> {
        let found = self.run_get(caller, run).await?;
        if has_paused(&found) {
            return Ok(found);
        }
        let subscription = self.shared.subscribe(found.session, SubscriptionMode::Observer).await?;
        let now = subscription.feed().position();
        let events = subscription.with_guest(caller.owner != found.owner).resume(now).events_only();
        // The subscription exists before the run is read again, so no event is missed between the two.
        tokio::select! {
            biased;
            paused = self.run_paused(caller, run, events) => paused,
            () = self.sleep(timeout) => self.run_get(caller, run).await,
        }
    }

    async fn run_paused(&self, caller: &Caller, run: RunId, mut events: Subscription) -> Result<Run, Error> {
        loop {
            let now = self.run_get(caller, run).await?;
            if has_paused(&now) {
                return Ok(now);
            }
            loop {
                match events.next().await.transpose()? {
                    Some(Item::Event(event)) if event.run == Some(run) && pauses(&event.body) => break,
                    // Pruned events may have ended the run.
                    Some(Item::Reset(_)) => break,
                    Some(_) => {}
                    // The stream ends with its session or with the process: no more events come.
                    None => return self.run_get(caller, run).await,
                }
            }
        }
    }
}

/// True when the run goes on only after an answer or a retry.
fn has_paused(run: &Run) -> bool {
    run.state.status().is_ended() || run.state.wait().is_some_and(|wait| wait.answer.is_none())
}

fn pauses(body: &Body) -> bool {
    body.ends_run() || matches!(body, Body::RunWaitingInput { .. } | Body::RunWaitingApproval { .. })
}
