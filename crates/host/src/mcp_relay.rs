//! MCP over standard input and output for an agent: passes each tool call to the endpoint of the agent's process,
//! which knows the agent's live attempt.

use std::path::{Path, PathBuf};

use mainspring_api::jsonl::endpoint::{AgentLine, ToolResult, ToolUse};
use mainspring_control::error_answer;
use mainspring_control::mcp::{self, AnswerCalls, ToolServer};
use mainspring_core::SessionId;
use mainspring_system::clock::Clock;
use rmcp::model::{CallToolRequestParams, CallToolResult, ContentBlock};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServiceExt};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

/// Serves the tools until the client disconnects. Calls go to the endpoint at `socket`; they are refused while the
/// agent works for another session than `session`.
pub async fn serve(
    socket: PathBuf,
    session: Option<SessionId>,
    from: impl AsyncRead + Send + Unpin + 'static,
    to: impl AsyncWrite + Send + Unpin + 'static,
) -> Result<(), String> {
    let tools = RelayTools { socket, session, clock: Clock::system() };
    let served = ToolServer(tools).serve((from, to)).await.map_err(|error| error.to_string())?;
    served.waiting().await.map(drop).map_err(|error| error.to_string())
}

struct RelayTools {
    socket: PathBuf,
    session: Option<SessionId>,
    clock: Clock,
}

impl AnswerCalls for RelayTools {
    async fn answer_call(
        &self,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, ErrorData> {
        let name = request.name.into_owned();
        if !mainspring_control::is_control_tool(&name) {
            return Err(ErrorData::invalid_params(format!("there is no tool {name:?}"), None));
        }
        let call = AgentLine::ToolUse(ToolUse {
            call_id: "mcp".into(),
            name: name.clone(),
            input: Value::Object(request.arguments.unwrap_or_default()),
            session_id: self.session.map(|session| session.to_string()),
            run_id: None,
            attempt_id: None,
        });
        let answer = call_endpoint(&self.socket, &call);
        let sleep = |millis| self.clock.sleep_for(millis);
        // If the MCP client cancels the call, this future is dropped, and the endpoint sees the connection close.
        let answer = mcp::with_progress(context, &name, sleep, answer).await;
        let answer = answer.unwrap_or_else(|error| {
            let message = format!("the agent's process cannot call tools: {error}");
            error_answer("transport_interruption", &message)
        });
        let answered = serde_json::from_str::<Value>(&answer).unwrap_or_default();
        let content = vec![ContentBlock::text(answer)];
        if answered["ok"] == false {
            return Ok(CallToolResult::error(content));
        }
        let mut result = CallToolResult::success(content);
        result.structured_content = Some(answered).filter(Value::is_object);
        Ok(result)
    }
}

/// Makes one call on a new connection and returns the text of its result.
async fn call_endpoint(socket: &Path, call: &AgentLine) -> std::io::Result<String> {
    let mut endpoint = BufReader::new(UnixStream::connect(socket).await?);
    endpoint.write_all(&call.encode()).await?;
    let mut line = String::new();
    endpoint.read_line(&mut line).await?;
    if line.is_empty() {
        return Err(std::io::Error::other("the endpoint has closed the connection"));
    }
    let answer = serde_json::from_str::<ToolResult>(&line);
    answer.map(|answer| answer.result).map_err(|_| std::io::Error::other("the endpoint sent no tool result"))
}
