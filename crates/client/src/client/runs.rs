//! Runs.

use mainspring_api::{
    AcceptedRun, AttemptStderr, CancelOutcome, EventsQuery, OpenWait, Page, Prompt, RetryOptions,
    RunListQuery, RunRoute, StepResult, UsageQuery, UsageReport, WaitAnswer, WaitListQuery,
};
use mainspring_core::{
    Answer, Attempt, AttemptId, Event, Grant, LeftProcess, Position, Rows, Run, RunId, Step, WaitId,
};
use serde_json::json;

use super::Client;
use crate::{Error, Events};

impl Client {
    /// Sends a prompt. A prompt sent again under the same idempotency key creates no second run.
    pub async fn run_create(&self, prompt: &Prompt) -> Result<AcceptedRun, Error> {
        self.post_idempotent(&["v1", "runs"], prompt, prompt.idempotency_key.as_deref()).await
    }

    /// Sends a prompt to a session given by id or key.
    pub async fn run_create_in(&self, session: &str, prompt: &Prompt) -> Result<AcceptedRun, Error> {
        let path = ["v1", "sessions", session, "runs"];
        self.post_idempotent(&path, prompt, prompt.idempotency_key.as_deref()).await
    }

    /// Reads a run.
    pub async fn run_get(&self, run: RunId) -> Result<Run, Error> {
        self.get(&["v1", "runs", &run.to_string()], &()).await
    }

    /// Lists runs, the newest first.
    pub async fn run_list(&self, query: &RunListQuery) -> Result<Page<Run>, Error> {
        self.get(&["v1", "runs"], query).await
    }

    /// Lists the grants of a run and of its session, the oldest first.
    pub async fn run_grants(&self, run: RunId) -> Result<Vec<Grant>, Error> {
        let page: Page<Grant> = self.get(&["v1", "runs", &run.to_string(), "grants"], &()).await?;
        Ok(page.items)
    }

    /// Lists the model calls of a run, the first one first.
    pub async fn run_steps(&self, run: RunId) -> Result<Rows<Step>, Error> {
        let page: Page<Step> = self.get(&["v1", "runs", &run.to_string(), "steps"], &()).await?;
        Ok(page.rows())
    }

    /// Reads the route of a run through its network of agents.
    pub async fn run_route(&self, run: RunId) -> Result<RunRoute, Error> {
        self.get(&["v1", "runs", &run.to_string(), "route"], &()).await
    }

    /// Reads one model call of a run, with its input, its answer and the results of its tools.
    pub async fn run_step(&self, run: RunId, no: u32) -> Result<StepResult, Error> {
        self.get(&["v1", "runs", &run.to_string(), "steps", &no.to_string()], &()).await
    }

    /// Lists the processes that the turns of a run left running and that still run.
    pub async fn run_processes(&self, run: RunId) -> Result<Vec<LeftProcess>, Error> {
        let page: Page<LeftProcess> = self.get(&["v1", "runs", &run.to_string(), "processes"], &()).await?;
        Ok(page.items)
    }

    /// Ends the processes that the turns of a run left running. Returns those that could not be ended.
    pub async fn run_processes_end(&self, run: RunId) -> Result<Vec<LeftProcess>, Error> {
        let path = ["v1", "runs", &run.to_string(), "processes", "end"];
        let page: Page<LeftProcess> = self.post(&path, &json!({})).await?;
        Ok(page.items)
    }

    /// Lists the attempts of a run, the first one first.
    pub async fn run_attempts(&self, run: RunId) -> Result<Rows<Attempt>, Error> {
        let page: Page<Attempt> = self.get(&["v1", "runs", &run.to_string(), "attempts"], &()).await?;
        Ok(page.rows())
    }

    /// Reads an attempt, which names its run.
    pub async fn attempt_get(&self, attempt: AttemptId) -> Result<Attempt, Error> {
        self.get(&["v1", "attempts", &attempt.to_string()], &()).await
    }

    /// Reads what the process of an attempt's agent wrote to its standard error.
    pub async fn attempt_stderr(&self, attempt: AttemptId) -> Result<AttemptStderr, Error> {
        self.get(&["v1", "attempts", &attempt.to_string(), "stderr"], &()).await
    }

    /// Lists the open waits of all sessions that the caller may read, the oldest first.
    pub async fn wait_list(&self, query: &WaitListQuery) -> Result<Page<OpenWait>, Error> {
        self.get(&["v1", "waits"], query).await
    }

    /// Sums tokens and cost of the caller's runs in a span of time.
    pub async fn usage_report(&self, query: &UsageQuery) -> Result<UsageReport, Error> {
        self.get(&["v1", "usage"], query).await
    }

    /// Reads a page of a run's events.
    pub async fn run_events_page(&self, run: RunId, query: &EventsQuery) -> Result<Page<Event>, Error> {
        self.get(&["v1", "runs", &run.to_string(), "events"], query).await
    }

    /// Follows a run until it ends: the events after `from`, or all of its events if `from` is `None`.
    pub fn run_events(&self, run: RunId, from: Option<Position>) -> Events {
        Events::of_run(self.clone(), run, from)
    }

    /// Cancels a run. Returns the steps that were done; the run's end follows as an event.
    pub async fn run_cancel(&self, run: RunId) -> Result<CancelOutcome, Error> {
        self.post(&["v1", "runs", &run.to_string(), "cancel"], &json!({})).await
    }

    /// Retries a failed, timed-out or orphaned run, with changed options if there are any.
    pub async fn run_retry(&self, run: RunId, options: &RetryOptions) -> Result<Run, Error> {
        self.post(&["v1", "runs", &run.to_string(), "retry"], options).await
    }

    /// Answers a wait of a run.
    pub async fn run_answer(&self, run: RunId, wait: WaitId, answer: &Answer) -> Result<Run, Error> {
        let body = WaitAnswer { wait_id: wait, answer: answer.clone() };
        self.post(&["v1", "runs", &run.to_string(), "answer"], &body).await
    }
}
