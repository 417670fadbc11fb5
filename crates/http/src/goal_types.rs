//! `/v1/goal-types`: kinds of goals, each with a name and a JSON Schema. Also the goals and tasks of a session.

use axum::extract::{FromRequestParts, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::Response;
use mainspring_api::{GoalTypeRecord, GoalsQuery, GoalsSnapshot, Page};
use mainspring_core::goal::is_goal_type_name;
use mainspring_core::{Cursor, GoalType};
use utoipa::IntoParams;
use utoipa::openapi::path::{Parameter, ParameterIn};

use crate::access::Authenticated;
use crate::audit::About;
use crate::body::{Json, JsonObject, QueryParams, SessionPath, in_path, path};
use crate::{Http, Problem};

/// Extracts the name of a goal type from the path.
pub(super) struct GoalTypePath(String);

impl<S: Send + Sync> FromRequestParts<S> for GoalTypePath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let name = path(parts).await?;
        match is_goal_type_name(&name) {
            true => Ok(Self(name)),
            false => Err(Problem::invalid(
                "a goal type is named by 1 to 48 lower-case letters, digits and underscores, starting with a letter",
            )),
        }
    }
}

impl IntoParams for GoalTypePath {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![in_path("goal_type", "The name of the goal type.", "^[a-z][a-z0-9_]{0,47}$")]
    }
}

/// Lists the goal types by name: the caller's own and the shared ones
#[utoipa::path(
    get, path = "/v1/goal-types",
    responses((status = 200, description = "All goal types of the caller", body = Page<GoalTypeRecord>)),
)]
pub(super) async fn goal_type_list(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
) -> Result<Json<Page<GoalTypeRecord>>, Problem> {
    Ok(Json(Page::single(http.kernel.goal_type_list(&caller).await?)))
}

/// Creates a goal type, or replaces the caller's type of that name; runs keep the type that they were accepted with
#[utoipa::path(
    post, path = "/v1/goal-types", request_body = GoalType,
    responses(
        (status = 200, description = "The type, whose name existed before", body = GoalTypeRecord),
        (status = 201, description = "The new type", body = GoalTypeRecord),
    ),
    extensions(("x-problems" = json!(["forbidden", "goal_type_taken", "too_many"]))),
)]
pub(super) async fn goal_type_create(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    JsonObject(goal_type): JsonObject<GoalType>,
) -> Result<Response, Problem> {
    let (record, is_new) = http.kernel.goal_type_create(&caller, goal_type).await?;
    let about = About::ids([&record.goal_type.name]);
    Ok(about.with((if is_new { StatusCode::CREATED } else { StatusCode::OK }, Json(record))))
}

/// Returns a goal type
#[utoipa::path(
    get, path = "/v1/goal-types/{goal_type}", params(GoalTypePath),
    responses((status = 200, description = "The goal type", body = GoalTypeRecord)),
)]
pub(super) async fn goal_type_get(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    GoalTypePath(name): GoalTypePath,
) -> Result<Json<GoalTypeRecord>, Problem> {
    Ok(Json(http.kernel.goal_type_get(&caller, &name).await?))
}

/// Returns the goals and tasks of a session; with `after`, null for those that have not changed since
#[utoipa::path(
    get, path = "/v1/sessions/{session}/goals", params(SessionPath, GoalsQuery),
    responses((status = 200, description = "The goals and tasks", body = GoalsSnapshot)),
)]
pub(super) async fn session_goals(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    SessionPath(by): SessionPath,
    QueryParams(query): QueryParams<GoalsQuery>,
) -> Result<Json<GoalsSnapshot>, Problem> {
    Ok(Json(http.kernel.session_goals(&caller, &by, query.after.map(Cursor)).await?))
}
