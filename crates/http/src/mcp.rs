//! `/mcp`: the control tools over MCP's streamable HTTP.
//!
//! The transport keeps no sessions: each request carries its own credential, so a caller is authenticated as in the
//! rest of the API. A response is a stream that stays open until its tool call has ended, the server stops or the
//! caller's key ends. The runs that the call started go on.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode, header};
use axum::response::Response;
use futures_util::StreamExt;
use mainspring_api::{AuditKind, AuditOrigin, AuditRecord};
use mainspring_control::mcp::{AnswerCalls, McpCaller, ToolServer};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::ids::Ids;
use mainspring_kernel::kernel::{Caller, KernelPlane};
use mainspring_kernel::{Error, Kernel};
use rmcp::model::{CallToolRequestParams, CallToolResult};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer};
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use crate::access::{Authenticated, key_ended};
use crate::watch::RequestSlot;
use crate::{Http, Problem, body};

/// The path of the endpoint.
pub(super) const PATH: &str = "/mcp";
/// The name of the endpoint in metrics. The OpenAPI document does not contain this endpoint.
pub(super) const OPERATION: &str = "mcp";

/// The MCP server of all callers.
pub(super) type Service = StreamableHttpService<ToolServer<Tools>, NeverSessionManager>;

/// Creates the MCP server. Cancelling `stop` ends its streams.
pub(super) fn service(kernel: &Kernel, body_bytes: usize, stop: CancellationToken) -> Service {
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_cancellation_token(stop)
        .with_max_request_body_bytes(body_bytes)
        // The middleware of the router checks Host and Origin of every request.
        .disable_allowed_hosts();
    let tools = ToolServer(Tools { kernel: kernel.clone(), ids: Ids::system(), clock: Clock::system() });
    StreamableHttpService::new(move || Ok(tools.clone()), Arc::default(), config)
}

/// Answers one MCP message.
pub(super) async fn mcp_message(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    slot: RequestSlot,
    request: Request,
) -> Result<Response, Problem> {
    let permit = http.streams.acquire(&http.kernel, &caller.owner, None)?;
    let (mut parts, content) = request.into_parts();
    let content = body::read(&http, content).await?;
    if parts.method == Method::POST {
        check_message(&content)?;
    }
    // A tool may wait for a run.
    slot.release();
    let mut key_ended = key_ended(&http, &caller);
    parts.extensions.insert(caller);
    let request = Request::from_parts(parts, Body::from(content));
    let response = tokio::select! {
        biased;
        () = http.stop.cancelled() => return Err(Error::ShuttingDown.into()),
        () = &mut key_ended => {
            let detail = "the key of this request was revoked or has expired";
            return Err(Problem::new(StatusCode::UNAUTHORIZED, "authentication", detail));
        }
        response = http.mcp.handle(request) => response,
    };
    if let Some(problem) = refused_message(&response) {
        return Err(problem);
    }
    let stop = http.stop.clone().cancelled_owned();
    Ok(response.map(|content| {
        let chunks = Body::new(content).into_data_stream().take_until(key_ended).take_until(stop);
        // The permit is held until the response ends.
        Body::from_stream(chunks.map(move |chunk| {
            let _permit = &permit;
            chunk
        }))
    }))
}

/// Refuses a body that is not one JSON object, before the transport answers it without a problem document.
fn check_message(content: &[u8]) -> Result<(), Problem> {
    let text = serde_json::from_slice::<&RawValue>(content);
    let text = text.map_err(|error| Problem::invalid(format!("the body: {error}")))?.get();
    match text.as_bytes().first() {
        Some(b'{') => Ok(()),
        Some(b'[') => Err(Problem::invalid("the body: MCP has no batches; send one message per request")),
        _ => Err(Problem::invalid("the body: expected a message of JSON-RPC, which is an object")),
    }
}

/// Returns the problem that replaces a response which refuses a message in plain text.
fn refused_message(response: &Response<impl Sized>) -> Option<Problem> {
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let is_text = kind.is_none_or(|kind| kind.starts_with("text/plain"));
    match response.status() {
        StatusCode::UNSUPPORTED_MEDIA_TYPE if is_text => Some(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            "send one message of JSON-RPC 2.0 as application/json: an object with jsonrpc, method and, for a request, id",
        )),
        _ => None,
    }
}

/// The control tools on the kernel. The caller of each request is an extension of that request.
#[derive(Clone)]
pub(super) struct Tools {
    kernel: Kernel,
    ids: Ids,
    clock: Clock,
}

impl Tools {
    /// Records a call for another owner than the caller's. The tool refuses it without asking the kernel.
    fn audit_owner(&self, request: &CallToolRequestParams, caller: &Caller, from: AuditOrigin) {
        let owner = request.arguments.as_ref().and_then(|arguments| arguments.get("ownerId")?.as_str());
        if let Some(audit) = self.kernel.audit()
            && owner.is_some_and(|owner| owner != caller.owner)
        {
            audit.append_refusal(AuditRecord {
                from: Some(from),
                org_id: caller.org.clone(),
                code: Some("not_found".into()),
                ..AuditRecord::new(AuditKind::Refusal, OPERATION, caller.into())
            });
        }
    }
}

impl AnswerCalls for Tools {
    async fn answer_call(
        &self,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, ErrorData> {
        let parts = context.extensions.get::<Parts>();
        let from = parts.and_then(|parts| parts.extensions.get().copied());
        let from = from.unwrap_or(AuditOrigin::Inside {});
        let caller = parts.and_then(|parts| parts.extensions.get::<Caller>());
        let caller = caller.ok_or_else(|| ErrorData::internal_error("the request has no caller", None))?;
        self.audit_owner(&request, caller, from);
        let caller = McpCaller {
            plane: &KernelPlane::new(self.kernel.clone(), caller.clone()).with_origin(from),
            // An agent acts for the run that it executes.
            session: caller.agent.map(|agent| agent.session),
            run: caller.agent.map(|agent| agent.run),
            request_id: &self.ids.secret(),
        };
        caller.call(request, context, |millis| self.clock.sleep_for(millis)).await
    }
}
