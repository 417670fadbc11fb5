//! `/v1/agents`: agent definitions.

use axum::extract::{FromRequestParts, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::Response;
use mainspring_api::{Agent, AgentListQuery, NewAgent, Page};
use mainspring_core::{AgentDefinition, AgentName};
use mainspring_kernel::kernel::AgentQuery;
use utoipa::IntoParams;
use utoipa::openapi::path::{Parameter, ParameterIn};

use crate::access::Authenticated;
use crate::audit::About;
use crate::body::{Json, JsonObject, QueryParams, in_path, path};
use crate::sessions::page_of;
use crate::{Http, Problem};

/// Extracts the agent from the path.
pub(super) struct AgentPath(AgentName);

/// The pattern of an agent's name, with or without a version.
const NAME_PATTERN: &str = "^[A-Za-z0-9._-]{1,128}(@[1-9][0-9]{0,8})?$";

impl<S: Send + Sync> FromRequestParts<S> for AgentPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let name = path(parts).await?.parse::<AgentName>();
        name.map(Self).map_err(|bad| Problem::invalid(bad.to_string()))
    }
}

impl IntoParams for AgentPath {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![in_path("agent", "The agent: `ID@VERSION`, or `ID` for its latest version.", NAME_PATTERN)]
    }
}

/// Lists agents by id and version: the caller's own and the shared ones
#[utoipa::path(
    get, path = "/v1/agents", params(AgentListQuery),
    responses((status = 200, description = "A page of agents", body = Page<Agent>)),
)]
pub(super) async fn agent_list(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    QueryParams(query): QueryParams<AgentListQuery>,
) -> Result<Json<Page<Agent>>, Problem> {
    let after = query.after.map(|after| after.parse::<AgentName>()).transpose();
    let after = after.map_err(|bad| Problem::invalid(format!("after: {bad}")))?;
    let limit = query.limit;
    let items = http.kernel.agent_list(&caller, AgentQuery { after, limit }).await?;
    Ok(Json(page_of(&http, items, limit, |agent| agent.definition.name().to_string())))
}

/// Creates a version of an agent. Versions are immutable; repeating the same request has no effect
#[utoipa::path(
    post, path = "/v1/agents", request_body = AgentDefinition,
    responses(
        (status = 200, description = "The identical version, which existed before", body = Agent),
        (status = 201, description = "The new version", body = Agent),
    ),
    extensions(("x-problems" = json!(["forbidden", "agent_taken", "too_many"]))),
)]
pub(super) async fn agent_create(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    JsonObject(NewAgent(definition)): JsonObject<NewAgent>,
) -> Result<Response, Problem> {
    let (agent, made) = http.kernel.agent_create(&caller, definition).await?;
    let about = About::ids([&format_args!("{}@{}", agent.definition.id, agent.definition.version)]);
    Ok(about.with((if made { StatusCode::CREATED } else { StatusCode::OK }, Json(agent))))
}

/// Returns a version of an agent, or the latest one
#[utoipa::path(
    get, path = "/v1/agents/{agent}", params(AgentPath),
    responses((status = 200, description = "The agent", body = Agent)),
)]
pub(super) async fn agent_get(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    AgentPath(name): AgentPath,
) -> Result<Json<Agent>, Problem> {
    Ok(Json(http.kernel.agent_get(&caller, &name).await?))
}

/// Deletes a version of an agent that the caller's owner created; its name and version cannot be reused
#[utoipa::path(
    delete, path = "/v1/agents/{agent}", params(AgentPath),
    responses((status = 204, description = "The version is deleted")),
    extensions(("x-problems" = json!(["forbidden"]))),
)]
pub(super) async fn agent_delete(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    AgentPath(name): AgentPath,
) -> Result<StatusCode, Problem> {
    http.kernel.agent_delete(&caller, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}
