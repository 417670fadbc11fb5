//! MCP over standard input and output: the control tools, for an agent or any other MCP client.
//!
//! This module only translates. It is a client of the server that owns the sessions, and acts for one owner.

use std::collections::HashMap;
use std::sync::Arc;

use mainspring_control::{CLIENT, ControlTools};
use mainspring_core::SessionId;
use mainspring_system::ids::Ids;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt};
use serde_json::Value;
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
    let tools = Tools { link, options, ids };
    let served = tools.serve((from, to)).await.map_err(|error| error.to_string())?;
    served.waiting().await.map(drop).map_err(|error| error.to_string())
}

struct Tools {
    link: Link,
    options: Options,
    ids: Ids,
}

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("mainspring", env!("CARGO_PKG_VERSION")))
            .with_instructions(
                "Durable agent sessions: list them, read their runs, send them messages, delegate work, cancel.",
            )
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tool = |tool: mainspring_control::ToolSpec| {
            let schema = match tool.schema {
                Value::Object(schema) => schema,
                _ => serde_json::Map::new(),
            };
            Tool::new(tool.name, tool.description, Arc::new(schema))
        };
        Ok(ListToolsResult::with_all_items(mainspring_control::tools().into_iter().map(tool).collect()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if !mainspring_control::is_control_tool(&request.name) {
            return Err(ErrorData::invalid_params(format!("there is no tool {:?}", request.name), None));
        }
        let tools = ControlTools {
            plane: &LinkPlane::new(&self.link, &self.options.owner),
            session: self.options.session,
            run: None,
            aliases: &HashMap::new(),
            client_id: CLIENT,
            request_id: &self.ids.secret(),
            run_of: &|_| None,
        };
        let input = request.arguments.map_or(Value::Null, Value::Object);
        let result = match tools.call(&request.name, input).await {
            Ok(answer) => CallToolResult::success(vec![ContentBlock::text(answer)]),
            Err(answer) => CallToolResult::error(vec![ContentBlock::text(answer)]),
        };
        Ok(result.into())
    }
}
