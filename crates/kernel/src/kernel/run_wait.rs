//! Waiting for a run. The home of the run's session follows its events; any other kernel reads the state of the run
//! whenever other processes may have written to the store.

use std::time::Duration;

use mainspring_core::{Body, Position, Run, RunId};

use super::{Caller, Kernel};
use crate::error::Error;
use crate::feed::{Item, Subscription, SubscriptionMode};

/// Shortest time between two reads of a run whose home is another kernel.
const READ_PAUSE: Duration = Duration::from_millis(50);

/// The condition that a caller waits for.
#[derive(Clone, Copy)]
enum Until {
    /// The run continues only after an answer or a retry.
    Paused,
    /// The run has ended.
    Ended,
}

impl Until {
    fn is_met(self, run: &Run) -> bool {
        let asks = || run.state.wait().is_some_and(|wait| wait.answer.is_none());
        run.state.status().is_ended() || (matches!(self, Self::Paused) && asks())
    }

    /// True for events that may fulfil the condition.
    fn is_met_by(self, body: &Body) -> bool {
        let asks = || matches!(body, Body::RunWaitingInput { .. } | Body::RunWaitingApproval { .. });
        body.ends_run() || (matches!(self, Self::Paused) && asks())
    }
}

impl Kernel {
    /// Waits until the run has ended or asks something, at most for `timeout`, and returns the run as it is then.
    ///
    /// Reads the store at the beginning, when the run pauses and when the time is up: streamed text and other
    /// events cost no reads.
    pub async fn run_wait(&self, caller: &Caller, run: RunId, timeout: Duration) -> Result<Run, Error> {
        let found = self.run_readable(caller, run).await?;
        if Until::Paused.is_met(&found) {
            return self.shared.with_final_text(found).await;
        }
        let events = self.run_changes(caller, &found, None).await?;
        let now = tokio::select! {
            biased;
            paused = self.run_reaches(caller, run, events, Until::Paused) => paused,
            () = self.sleep(timeout) => self.run_readable(caller, run).await,
        };
        self.shared.with_final_text(now?).await
    }

    /// Waits like [`Kernel::run_wait`] for a run that was just accepted, and follows it from the position before its
    /// acceptance. So the run is read only when it pauses and when the time is up.
    pub async fn run_wait_from(
        &self,
        caller: &Caller,
        accepted: &Run,
        position: Position,
        timeout: Duration,
    ) -> Result<Run, Error> {
        let run = accepted.id;
        let mut events = self.run_changes(caller, accepted, Some(position)).await?;
        let paused = async {
            if let Some(first) = &mut events {
                match next_met(first, run, Until::Paused).await {
                    // The session has moved to another kernel.
                    Err(Error::Elsewhere { .. }) => events = None,
                    met => drop(met?),
                }
            }
            self.run_reaches(caller, run, events, Until::Paused).await
        };
        let now = tokio::select! {
            biased;
            paused = paused => paused,
            () = self.sleep(timeout) => self.run_readable(caller, run).await,
        };
        self.shared.with_final_text(now?).await
    }

    /// Waits until the run has ended, and returns it. Fails if this process stops before.
    pub async fn run_wait_ended(&self, caller: &Caller, run: RunId) -> Result<Run, Error> {
        let found = self.run_readable(caller, run).await?;
        if Until::Ended.is_met(&found) {
            return self.shared.with_final_text(found).await;
        }
        let events = self.run_changes(caller, &found, None).await?;
        let run = self.run_reaches(caller, run, events, Until::Ended).await?;
        match Until::Ended.is_met(&run) {
            true => self.shared.with_final_text(run).await,
            false => Err(Error::ShuttingDown),
        }
    }

    /// Subscribes to the events of a run's session: after `from`, or from now on. Returns `None` if another kernel is the
    /// session's home.
    async fn run_changes(
        &self,
        caller: &Caller,
        run: &Run,
        from: Option<Position>,
    ) -> Result<Option<Subscription>, Error> {
        let subscription = match self.shared.subscribe(run.session, SubscriptionMode::Observer).await {
            Err(Error::Elsewhere { .. }) => return Ok(None),
            subscription => subscription?,
        };
        let from = from.unwrap_or_else(|| subscription.feed().position());
        let reader = subscription.with_reader(&caller.owner, caller.owner != run.owner);
        Ok(Some(reader.resume(from).events_only()))
    }

    /// Waits until the run meets the condition. `events` was subscribed before the first read here, so no event is missed
    /// in between.
    async fn run_reaches(
        &self,
        caller: &Caller,
        run: RunId,
        events: Option<Subscription>,
        until: Until,
    ) -> Result<Run, Error> {
        let Some(mut events) = events else {
            return self.run_reaches_elsewhere(caller, run, until).await;
        };
        loop {
            let now = self.run_readable(caller, run).await?;
            if until.is_met(&now) {
                return Ok(now);
            }
            match next_met(&mut events, run, until).await {
                Ok(true) => {}
                Ok(false) => return self.run_readable(caller, run).await,
                // The session has moved to another kernel.
                Err(Error::Elsewhere { .. }) => return self.run_reaches_elsewhere(caller, run, until).await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until a run whose home is another kernel meets the condition. Reads the state from the store, so the home may
    /// change meanwhile. If this process stops before, returns the run as it is.
    async fn run_reaches_elsewhere(&self, caller: &Caller, run: RunId, until: Until) -> Result<Run, Error> {
        loop {
            let written = self.shared.elsewhere.written();
            tokio::pin!(written);
            // Registers for notifications before the read, so that no write is missed.
            written.as_mut().enable();
            let now = self.run_readable(caller, run).await?;
            if until.is_met(&now) {
                return Ok(now);
            }
            tokio::select! {
                () = written => self.sleep(READ_PAUSE).await,
                () = self.shared.tasks.stopping() => return Ok(now),
            }
        }
    }
}

/// Reads events until one may fulfil the condition. Returns false if no more events come: the stream ends with its session
/// or with the process.
async fn next_met(events: &mut Subscription, run: RunId, until: Until) -> Result<bool, Error> {
    while let Some(item) = events.next().await {
        match item? {
            Item::Event(event) if event.run == Some(run) && until.is_met_by(&event.body) => return Ok(true),
            // Pruned events may have ended the run.
            Item::Reset(_) => return Ok(true),
            _ => {}
        }
    }
    Ok(false)
}
