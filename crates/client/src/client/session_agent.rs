//! The agent of a session, and its tools.

use mainspring_api::{AgentChange, NewTool, SessionAgent};
use mainspring_core::Session;
use reqwest::Method;

use super::{Client, if_version, with_json};
use crate::Error;

impl Client {
    /// Describes the agent that the next run of a session would use.
    pub async fn session_agent(&self, session: &str) -> Result<SessionAgent, Error> {
        self.get(&["v1", "sessions", session, "agent"], &()).await
    }

    /// Changes the agent of an idle session, and its conversation: everything in `change`, or nothing. With `version`, only
    /// if that is still the session's version.
    pub async fn session_agent_set(
        &self,
        session: &str,
        change: &AgentChange,
        version: Option<u64>,
    ) -> Result<Session, Error> {
        let request = self.request(Method::PATCH, &["v1", "sessions", session, "agent"]);
        self.read(self.send(if_version(with_json(request, change)?, version)).await?).await
    }

    /// Adds a tool that the caller executes to the later runs of a session, or replaces the tool with that name.
    pub async fn session_tool_put(
        &self,
        session: &str,
        name: &str,
        tool: &NewTool,
    ) -> Result<Session, Error> {
        let request = self.request(Method::PUT, &["v1", "sessions", session, "tools", name]);
        self.read(self.send(with_json(request, tool)?).await?).await
    }

    /// Removes a tool from the later runs of a session, if the session has it.
    pub async fn session_tool_delete(&self, session: &str, name: &str) -> Result<Session, Error> {
        let request = self.request(Method::DELETE, &["v1", "sessions", session, "tools", name]);
        self.read(self.send(request).await?).await
    }
}
