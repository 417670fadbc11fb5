//! MCP over standard input and output: the control tools, for an agent or any other MCP client.
//!
//! This module only translates. It is a client of the server that owns the sessions, and acts for one owner.

use mainspring_client::Error;
use mainspring_control::mcp::{AnswerCalls, McpCaller, ToolServer};
use mainspring_core::SessionId;
use mainspring_system::clock::Clock;
use mainspring_system::ids::Ids;
use rmcp::model::{CallToolRequestParams, CallToolResult};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServiceExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OnceCell;

use crate::link::Link;
use crate::plane::LinkPlane;

/// Options of the MCP server.
pub struct Options {
    /// The owner that the tools act for; `None` for the owner of the client's API key.
    pub owner: Option<String>,
    /// The session of the agent that calls the tools; `None` for other clients.
    pub session: Option<SessionId>,
}

/// Serves the tools until the client disconnects.
pub async fn serve(
    link: Link,
    options: Options,
    ids: Ids,
    from: impl AsyncRead + Send + Unpin + 'static,
    to: impl AsyncWrite + Send + Unpin + 'static,
) -> Result<(), String> {
    let Options { owner, session } = options;
    let tools = Tools { link, owner: OnceCell::new_with(owner), session, ids, clock: Clock::system() };
    let served = ToolServer(tools).serve((from, to)).await.map_err(|error| error.to_string())?;
    served.waiting().await.map(drop).map_err(|error| error.to_string())
}

struct Tools {
    link: Link,
    /// The owner, once it is known.
    owner: OnceCell<String>,
    session: Option<SessionId>,
    ids: Ids,
    clock: Clock,
}

impl Tools {
    /// Returns the owner that the tools act for. Asks the server if the API key determines it.
    async fn owner(&self) -> Result<&str, ErrorData> {
        let ask = async || Ok(self.link.ask("", |client| async move { client.me().await }).await?.owner_id);
        let owner = self.owner.get_or_try_init(ask).await;
        owner.map(String::as_str).map_err(|error: Error| ErrorData::internal_error(error.to_string(), None))
    }
}

impl AnswerCalls for Tools {
    async fn answer_call(
        &self,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, ErrorData> {
        let caller = McpCaller {
            plane: &LinkPlane::new(&self.link, self.owner().await?),
            session: self.session,
            run: None,
            request_id: &self.ids.secret(),
        };
        caller.call(request, context, |millis| self.clock.sleep_for(millis)).await
    }
}
