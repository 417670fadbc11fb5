//! `/v1/sessions/{session}/agent` and `/tools`: the agent of a session.

use axum::RequestPartsExt;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use mainspring_api::{AgentChange, NewTool, SessionAgent};
use mainspring_core::{ClientTool, Session};
use mainspring_kernel::kernel::session_ref;
use mainspring_kernel::store::SessionRef;
use utoipa::IntoParams;
use utoipa::openapi::path::{Parameter, ParameterIn};

use crate::access::Authenticated;
use crate::body::{Json, JsonObject, SessionPath, in_path};
use crate::sessions::{TaggedSession, if_match_version};
use crate::{Http, Problem};

/// Extracts a session and the name of one of its tools from the path.
pub(super) struct ToolPath(SessionRef, String);

impl<S: Send + Sync> FromRequestParts<S> for ToolPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let path: Result<Path<(String, String)>, PathRejection> = parts.extract().await;
        let Path((session, tool)) = path.map_err(|rejection| Problem::invalid(rejection.body_text()))?;
        Ok(Self(session_ref(&session)?, tool))
    }
}

impl IntoParams for ToolPath {
    fn into_params(within: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let mut params = SessionPath::into_params(within);
        params.push(in_path("tool", "The name of the tool.", "^[A-Za-z0-9_-]{1,64}$"));
        params
    }
}

/// Describes the agent that the next run of a session would use
#[utoipa::path(
    get, path = "/v1/sessions/{session}/agent", params(SessionPath),
    responses((status = 200, description = "The agent; each part says where it comes from", body = SessionAgent)),
)]
pub(super) async fn session_agent(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    SessionPath(by): SessionPath,
) -> Result<Json<SessionAgent>, Problem> {
    Ok(Json(http.kernel.session_agent(&caller, &by).await?))
}

/// Changes the agent of an idle session, and its conversation: everything in the body, or nothing
#[utoipa::path(
    patch, path = "/v1/sessions/{session}/agent", request_body = AgentChange,
    params(SessionPath, ("If-Match" = Option<String>, Header, description = "The ETag that the session must still have.")),
    responses((status = 200, description = "The changed session", body = Session, headers(("ETag" = String)))),
    extensions(("x-problems" = json!(["not_allowed_by_key", "forbidden", "session_busy", "session_closed", "option_not_used", "adapter_incompatible", "wrong_state", "version_conflict"]))),
)]
pub(super) async fn session_agent_set(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    SessionPath(by): SessionPath,
    headers: HeaderMap,
    JsonObject(change): JsonObject<AgentChange>,
) -> Result<TaggedSession, Problem> {
    let version = if_match_version(&headers)?;
    Ok(TaggedSession(http.kernel.session_agent_set(&caller, &by, change, version).await?))
}

/// Adds a tool that the caller executes to the later runs of a session, or replaces the tool with the same name
#[utoipa::path(
    put, path = "/v1/sessions/{session}/tools/{tool}", params(ToolPath), request_body = NewTool,
    responses((status = 200, description = "The session, with all of its tools", body = Session, headers(("ETag" = String)))),
    extensions(("x-problems" = json!(["not_allowed_by_key", "forbidden", "adapter_incompatible", "wrong_state"]))),
)]
pub(super) async fn session_tool_put(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    ToolPath(by, name): ToolPath,
    JsonObject(tool): JsonObject<NewTool>,
) -> Result<TaggedSession, Problem> {
    let NewTool { description, input_schema, timeout_ms, on_timeout } = tool;
    let on_timeout = on_timeout.unwrap_or_default();
    let tool = ClientTool { name, description, input_schema, timeout_ms, on_timeout };
    Ok(TaggedSession(http.kernel.session_tool_put(&caller, &by, tool).await?))
}

/// Removes a tool from the later runs of a session, if the session has it
#[utoipa::path(
    delete, path = "/v1/sessions/{session}/tools/{tool}", params(ToolPath),
    responses((status = 200, description = "The session, with its other tools", body = Session, headers(("ETag" = String)))),
    extensions(("x-problems" = json!(["forbidden", "wrong_state"]))),
)]
pub(super) async fn session_tool_delete(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    ToolPath(by, name): ToolPath,
) -> Result<TaggedSession, Problem> {
    Ok(TaggedSession(http.kernel.session_tool_delete(&caller, &by, &name).await?))
}
