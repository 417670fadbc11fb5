//! The control tools as MCP tools, for the two MCP servers that offer them: `mainspring mcp` and `/mcp`.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;

use futures_util::future::{Either, select};
use mainspring_api::control::{ControlPlane, ControlTool};
use mainspring_core::{RunId, SessionId};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, ListToolsResult,
    PaginatedRequestParams, ProgressNotificationParam, ServerCapabilities, ServerConfig, Tool,
    ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::Value;

use crate::{ControlTools, DEFAULT_BUDGET_USD, DEFAULT_CLIENT_ID, is_control_tool, tools};

/// Answers calls of the control tools: the part in which the two MCP servers differ.
pub trait AnswerCalls: Send + Sync + 'static {
    /// Answers a call. The future is dropped if the caller cancels the request.
    fn answer_call(
        &self,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> impl Future<Output = Result<CallToolResult, ErrorData>> + Send;
}

/// An MCP server of the control tools.
#[derive(Debug, Clone)]
pub struct ToolServer<A>(pub A);

impl<A: AnswerCalls> ServerHandler for ToolServer<A> {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("mainspring", env!("CARGO_PKG_VERSION")))
            .with_instructions(
                "Durable agent sessions: list them, read their runs, send them messages, delegate work, cancel. Answers \
                 are JSON with ok; lists are bounded and have a cursor for the next page.",
            )
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools().iter().map(tool).collect()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools().iter().find(|known| known.name == name).map(tool)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let answer = pin!(self.0.answer_call(request, &context));
        match select(answer, pin!(context.ct.cancelled())).await {
            Either::Left((result, _)) => Ok(result?.into()),
            // Nobody reads the answer any more. Runs that the call started continue.
            Either::Right(_) => Err(ErrorData::internal_error("the request was cancelled", None)),
        }
    }
}

fn tool(known: &ControlTool) -> Tool {
    let hints = known.annotations;
    let annotations = ToolAnnotations::with_title(known.title.clone())
        .read_only(hints.read_only_hint)
        .destructive(hints.destructive_hint)
        .idempotent(hints.idempotent_hint)
        .open_world(hints.open_world_hint);
    Tool::new(known.name.clone(), known.description.clone(), Arc::new(known.input_schema.clone()))
        .with_title(known.title.clone())
        .with_raw_output_schema(Arc::new(known.output_schema.clone()))
        .with_annotations(annotations)
}

/// The duration of a call after which the first progress is reported.
const FIRST_PROGRESS_MS: u64 = 1_000;
/// The interval of later progress reports.
const PROGRESS_INTERVAL_MS: u64 = 10_000;

/// Waits for `call`. If the caller has sent a progress token, reports progress from time to time, so that the caller
/// does not give up: a delegation takes as long as the child's work. `sleep` waits for milliseconds.
pub async fn with_progress<T, S: Future<Output = ()>>(
    context: &RequestContext<RoleServer>,
    name: &str,
    sleep: impl Fn(u64) -> S,
    call: impl Future<Output = T>,
) -> T {
    let Some(token) = context.meta.get_progress_token() else { return call.await };
    let mut call = pin!(call);
    let (mut waited_ms, mut next_ms) = (0, FIRST_PROGRESS_MS);
    loop {
        match select(call.as_mut(), pin!(sleep(next_ms))).await {
            Either::Left((result, _)) => return result,
            Either::Right(((), _)) => waited_ms += next_ms,
        }
        next_ms = PROGRESS_INTERVAL_MS;
        let seconds = waited_ms / 1_000;
        let mut progress = ProgressNotificationParam::new(
            token.clone(),
            f64::from(u32::try_from(seconds).unwrap_or(u32::MAX)),
        );
        progress.message = Some(format!("{name} has been working for {seconds} s"));
        // A caller that has disconnected needs no progress; the call ends with its connection.
        let _ = context.peer.notify_progress(progress).await;
    }
}

/// The caller of control tools over MCP.
pub struct McpCaller<'a> {
    /// The operations that the tools use.
    pub plane: &'a dyn ControlPlane,
    /// The session of the agent that calls; `None` for other clients.
    pub session: Option<SessionId>,
    /// The run of the agent that calls, if it is known.
    pub run: Option<RunId>,
    /// The idempotency id of a request whose input has no request id.
    pub request_id: &'a str,
}

impl McpCaller<'_> {
    /// Calls a control tool, and reports progress as [`with_progress`] does.
    pub async fn call<S: Future<Output = ()>>(
        self,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
        sleep: impl Fn(u64) -> S,
    ) -> Result<CallToolResult, ErrorData> {
        let Self { plane, session, run, request_id } = self;
        let tools = ControlTools {
            plane,
            session,
            run,
            aliases: &HashMap::new(),
            client_id: DEFAULT_CLIENT_ID,
            request_id,
            default_budget_usd: Some(DEFAULT_BUDGET_USD),
        };
        let name = request.name.clone();
        let call = call_tool(&tools, request);
        Box::pin(with_progress(context, &name, sleep, call)).await
    }
}

/// Calls a control tool. The answer of a call that succeeds is both structured content and text. A call that fails is
/// an error for the model; only an unknown tool is an error of the protocol.
async fn call_tool(
    tools: &ControlTools<'_>,
    request: CallToolRequestParams,
) -> Result<CallToolResult, ErrorData> {
    if !is_control_tool(&request.name) {
        return Err(ErrorData::invalid_params(format!("there is no tool {:?}", request.name), None));
    }
    let input = request.arguments.map_or(Value::Null, Value::Object);
    Ok(match tools.answer(&request.name, input).await {
        Ok(answer) => {
            let mut result = CallToolResult::success(vec![ContentBlock::text(answer.to_string())]);
            result.structured_content = Some(answer);
            result
        }
        // The output schema describes answers of calls that succeed.
        Err(answer) => CallToolResult::error(vec![ContentBlock::text(answer.to_string())]),
    })
}
