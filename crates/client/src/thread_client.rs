//! A client of the threads API under `/v1/ai`, for Rust programs that are written for threads. Other programs
//! use sessions and runs.

use mainspring_api::threads::{
    AgentRecord, AgentThreadDelta, AgentThreadRecord, AgentThreadStatus, ChangedThread, CreateAgentRequest,
    Data, DeletedAgent, ForkAgentThreadRequest, LaunchAgentRequest, ModelProfileResponse, PinThreadRequest,
    SearchThreadsRequest, SendMessageRequest, StartAgentThreadRequest, SubmitFeedbackRequest,
    SubmitToolResultsRequest, ThreadAgentListQuery, ThreadDeltaQuery, ThreadFeedbackRecord, ThreadGetQuery,
    ThreadListQuery, ThreadPage, ThreadVisibility, UpdateAgentRequest, UpdateThreadVisibilityRequest,
};
use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Client, Error};

const NO_BODY: Option<&()> = None;

/// The threads of a client.
#[derive(Clone, Copy)]
pub struct Threads<'a>(&'a Client);

impl Client {
    /// Returns the threads API, which the server has if `threads = true`.
    pub const fn threads(&self) -> Threads<'_> {
        Threads(self)
    }
}

impl Threads<'_> {
    /// Starts a thread.
    pub async fn start(&self, start: &StartAgentThreadRequest) -> Result<AgentThreadRecord, Error> {
        self.call(Method::POST, &["threads"], &(), Some(start)).await
    }

    /// Reads a thread.
    pub async fn get(&self, thread: &str) -> Result<AgentThreadRecord, Error> {
        self.call(Method::GET, &["threads", thread], &(), NO_BODY).await
    }

    /// Reads a thread without its messages. The delta from its token has all of them.
    pub async fn get_head(&self, thread: &str) -> Result<AgentThreadRecord, Error> {
        let query = ThreadGetQuery { load_messages: Some("false".into()) };
        self.call(Method::GET, &["threads", thread], &query, NO_BODY).await
    }

    /// Lists the caller's threads, the latest activity first. `page_token` is the `next_token` of the previous page.
    pub async fn list(&self, page_token: Option<&str>) -> Result<ThreadPage<AgentThreadRecord>, Error> {
        let query =
            ThreadListQuery { page_token: page_token.map(str::to_owned), ..ThreadListQuery::default() };
        self.call(Method::GET, &["threads"], &query, NO_BODY).await
    }

    /// Searches threads by the words of their title and messages.
    pub async fn search(
        &self,
        search: &SearchThreadsRequest,
    ) -> Result<ThreadPage<AgentThreadRecord>, Error> {
        self.call(Method::POST, &["threads", "search"], &(), Some(search)).await
    }

    /// Deletes a thread.
    pub async fn delete(&self, thread: &str) -> Result<(), Error> {
        self.call::<ChangedThread>(Method::DELETE, &["threads", thread], &(), NO_BODY).await.map(drop)
    }

    /// Reads what has changed since a continuation token. Waits some seconds for a change while the agent works.
    pub async fn delta(&self, thread: &str, token: &str) -> Result<AgentThreadDelta, Error> {
        let query = ThreadDeltaQuery { next_token: Some(token.to_owned()) };
        self.call(Method::GET, &["threads", thread, "delta"], &query, NO_BODY).await
    }

    /// Follows a thread until the agent's turn has ended.
    pub async fn follow(&self, record: &mut AgentThreadRecord) -> Result<(), Error> {
        loop {
            let delta = self.delta(&record.thread_id, &record.continuation_token).await?;
            record.apply(delta);
            if record.status != AgentThreadStatus::RobotoTurn {
                return Ok(());
            }
        }
    }

    /// Sends a message, goals, or both.
    pub async fn send(&self, thread: &str, send: &SendMessageRequest) -> Result<(), Error> {
        self.call::<ChangedThread>(Method::POST, &["threads", thread, "messages"], &(), Some(send))
            .await
            .map(drop)
    }

    /// Submits results of client tools.
    pub async fn submit(&self, thread: &str, results: &SubmitToolResultsRequest) -> Result<(), Error> {
        self.call::<ChangedThread>(Method::POST, &["threads", thread, "tool-results"], &(), Some(results))
            .await
            .map(drop)
    }

    /// Cancels the agent's turn.
    pub async fn cancel(&self, thread: &str) -> Result<AgentThreadRecord, Error> {
        self.call(Method::POST, &["threads", thread, "cancel"], &(), NO_BODY).await
    }

    /// Forks a thread after a message.
    pub async fn fork(
        &self,
        thread: &str,
        fork: &ForkAgentThreadRequest,
    ) -> Result<AgentThreadRecord, Error> {
        self.call(Method::POST, &["threads", thread, "fork"], &(), Some(fork)).await
    }

    /// Sets the readers of a thread.
    pub async fn set_visibility(&self, thread: &str, visibility: ThreadVisibility) -> Result<(), Error> {
        let change = UpdateThreadVisibilityRequest { visibility };
        self.call::<AgentThreadRecord>(Method::POST, &["threads", thread, "visibility"], &(), Some(&change))
            .await
            .map(drop)
    }

    /// Pins a thread, or removes the pin.
    pub async fn set_pinned(&self, thread: &str, pinned: bool) -> Result<(), Error> {
        let pin = PinThreadRequest { pinned };
        self.call::<ChangedThread>(Method::POST, &["threads", thread, "pin"], &(), Some(&pin)).await.map(drop)
    }

    /// Gives feedback on a message.
    pub async fn give_feedback(
        &self,
        thread: &str,
        message: usize,
        feedback: &SubmitFeedbackRequest,
    ) -> Result<ThreadFeedbackRecord, Error> {
        let path = ["threads", thread, "messages", &message.to_string(), "feedback"];
        self.call(Method::POST, &path, &(), Some(feedback)).await
    }

    /// Lists the model profiles.
    pub async fn profiles(&self) -> Result<Vec<ModelProfileResponse>, Error> {
        self.call(Method::GET, &["model-profiles"], &(), NO_BODY).await
    }

    /// Creates an agent from which threads can be started.
    pub async fn agent_create(&self, new: &CreateAgentRequest) -> Result<AgentRecord, Error> {
        self.call(Method::POST, &["agents"], &(), Some(new)).await
    }

    /// Lists the agents to launch, the newest first. `page_token` is the `next_token` of the previous page.
    pub async fn agent_list(&self, page_token: Option<&str>) -> Result<ThreadPage<AgentRecord>, Error> {
        let query = ThreadAgentListQuery { page_token: page_token.map(str::to_owned) };
        self.call(Method::GET, &["agents"], &query, NO_BODY).await
    }

    /// Reads an agent to launch.
    pub async fn agent_get(&self, agent: &str) -> Result<AgentRecord, Error> {
        self.call(Method::GET, &["agents", agent], &(), NO_BODY).await
    }

    /// Finds an agent to launch by its name.
    pub async fn agent_find(&self, name: &str) -> Result<AgentRecord, Error> {
        self.call(Method::GET, &["agents", "name", name], &(), NO_BODY).await
    }

    /// Changes an agent to launch.
    pub async fn agent_update(&self, agent: &str, change: &UpdateAgentRequest) -> Result<AgentRecord, Error> {
        self.call(Method::PUT, &["agents", agent], &(), Some(change)).await
    }

    /// Deletes an agent to launch.
    pub async fn agent_delete(&self, agent: &str) -> Result<(), Error> {
        self.call::<DeletedAgent>(Method::DELETE, &["agents", agent], &(), NO_BODY).await.map(drop)
    }

    /// Starts a thread from an agent.
    pub async fn agent_launch(
        &self,
        agent: &str,
        launch: &LaunchAgentRequest,
    ) -> Result<AgentThreadRecord, Error> {
        self.call(Method::POST, &["agents", agent, "launch"], &(), Some(launch)).await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &[&str],
        query: &impl Serialize,
        body: Option<&impl Serialize>,
    ) -> Result<T, Error> {
        let path: Vec<_> = ["v1", "ai"].iter().chain(path).copied().collect();
        let body = body.map(serde_json::to_value).transpose();
        let body = body.map_err(|error| Error::Invalid(format!("the body: {error}")))?;
        let text = self.0.call_text(method, &path, query, body.map(|body| body.to_string())).await?;
        let answer: Data<T> =
            serde_json::from_str(&text).map_err(|error| self.0.protocol_error(error.to_string()))?;
        Ok(answer.data)
    }
}
