//! `/v1/agents`

use axum::Json;
use axum::extract::{FromRequestParts, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use mainspring_api::{Agent, AgentListQuery, Page};
use mainspring_core::{AgentDefinition, AgentName};
use mainspring_kernel::kernel::AgentQuery;
use utoipa::IntoParams;
use utoipa::openapi::path::{Parameter, ParameterIn};

use crate::access::Known;
use crate::body::{Asked, Input, in_path, path};
use crate::sessions::page_of;
use crate::{Http, Problem};

/// The agent that the path names.
pub(super) struct NamedAgent(AgentName);

/// What an agent's name looks like, with or without its version.
const NAME: &str = "^[A-Za-z0-9._-]{1,128}(@[1-9][0-9]{0,8})?$";

impl<S: Send + Sync> FromRequestParts<S> for NamedAgent {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let name = path(parts).await?.parse::<AgentName>();
        name.map(Self).map_err(|bad| Problem::invalid(bad.to_string()))
    }
}

impl IntoParams for NamedAgent {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![in_path("agent", "The agent: `ID@VERSION`, or `ID` for its latest version.", NAME)]
    }
}

/// Agents by id and version: the caller's own, and those that are everybody's
#[utoipa::path(
    get, path = "/v1/agents", params(AgentListQuery),
    responses((status = 200, description = "A page", body = Page<Agent>)),
)]
pub(super) async fn agent_list(
    State(http): State<Http>,
    Known(caller): Known,
    Asked(query): Asked<AgentListQuery>,
) -> Result<Json<Page<Agent>>, Problem> {
    let after = query.after.map(|after| after.parse::<AgentName>()).transpose();
    let after = after.map_err(|bad| Problem::invalid(format!("after: {bad}")))?;
    let limit = query.limit;
    let items = http.kernel.agent_list(&caller, AgentQuery { after, limit }).await?;
    Ok(Json(page_of(&http, items, limit, |agent| agent.definition.name().to_string())))
}

/// Makes a version of an agent, which never changes; the same again is the same
#[utoipa::path(
    post, path = "/v1/agents", request_body = AgentDefinition,
    responses(
        (status = 200, description = "The very same was there", body = Agent),
        (status = 201, description = "It was made", body = Agent),
    ),
    extensions(("x-problems" = json!(["forbidden", "agent_taken", "too_many"]))),
)]
pub(super) async fn agent_create(
    State(http): State<Http>,
    Known(caller): Known,
    Input(definition): Input<AgentDefinition>,
) -> Result<(StatusCode, Json<Agent>), Problem> {
    let (agent, made) = http.kernel.agent_create(&caller, definition).await?;
    Ok((if made { StatusCode::CREATED } else { StatusCode::OK }, Json(agent)))
}

/// One agent: a version of it, or the latest
#[utoipa::path(
    get, path = "/v1/agents/{agent}", params(NamedAgent),
    responses((status = 200, description = "The agent", body = Agent)),
)]
pub(super) async fn agent_get(
    State(http): State<Http>,
    Known(caller): Known,
    NamedAgent(name): NamedAgent,
) -> Result<Json<Agent>, Problem> {
    Ok(Json(http.kernel.agent_get(&caller, &name).await?))
}

/// Deletes a version of an agent that the caller's owner made; its name never means anything else
#[utoipa::path(
    delete, path = "/v1/agents/{agent}", params(NamedAgent),
    responses((status = 204, description = "It is gone")),
    extensions(("x-problems" = json!(["forbidden"]))),
)]
pub(super) async fn agent_delete(
    State(http): State<Http>,
    Known(caller): Known,
    NamedAgent(name): NamedAgent,
) -> Result<StatusCode, Problem> {
    http.kernel.agent_delete(&caller, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}
