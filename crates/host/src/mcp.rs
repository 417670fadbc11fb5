//! MCP over standard input and output: the control tools, for an agent or any other MCP client.
//!
//! This module only translates. It is a client of the server that owns the sessions, and acts for one owner.

use std::collections::HashMap;

use mainspring_control::mcp::{self, AnswerCalls, ToolServer};
use mainspring_control::{CLIENT, ControlTools, DEFAULT_BUDGET_USD};
use mainspring_core::SessionId;
use mainspring_system::clock::Clock;
use mainspring_system::ids::Ids;
use rmcp::model::{CallToolRequestParams, CallToolResult};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServiceExt};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::link::Link;
use crate::plane::LinkPlane;

/// Options of the MCP server.
pub struct Options {
    /// The owner that the tools act for.
    pub owner: String,
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
    let tools = Tools { link, options, ids, clock: Clock::system() };
    let served = ToolServer(tools).serve((from, to)).await.map_err(|error| error.to_string())?;
    served.waiting().await.map(drop).map_err(|error| error.to_string())
}

struct Tools {
    link: Link,
    options: Options,
    ids: Ids,
    clock: Clock,
}

impl AnswerCalls for Tools {
    async fn answer_call(
        &self,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, ErrorData> {
        let tools = ControlTools {
            plane: &LinkPlane::new(&self.link, &self.options.owner),
            session: self.options.session,
            run: None,
            aliases: &HashMap::new(),
            client_id: CLIENT,
            request_id: &self.ids.secret(),
            default_budget_usd: Some(DEFAULT_BUDGET_USD),
        };
        let name = request.name.clone();
        let call = mcp::call_tool(&tools, request);
        let sleep = |millis| self.clock.sleep_for(millis);
        Box::pin(mcp::with_progress(context, &name, sleep, call)).await
    }
}
