//! Logins: authentication of the adapters' agents.

use axum::RequestPartsExt;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use mainspring_api::Login;
use mainspring_core::AuthMethod;
use utoipa::IntoParams;
use utoipa::openapi::path::{Parameter, ParameterIn};

use crate::access::Authenticated;
use crate::body::{Json, JsonObject, in_path};
use crate::{Http, Problem};

/// Extracts the adapter from the path.
pub(super) struct AdapterPath(String);

impl<S: Send + Sync> FromRequestParts<S> for AdapterPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let path: Result<Path<String>, PathRejection> = parts.extract().await;
        let Path(adapter) = path.map_err(|rejection| Problem::invalid(rejection.body_text()))?;
        Ok(Self(adapter))
    }
}

impl IntoParams for AdapterPath {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![in_path("adapter", "The adapter, by its name.", "^[a-z][a-z0-9]*(-[a-z0-9]+)*$")]
    }
}

/// Lists the login methods of an adapter's agent; empty until the agent has been started once
#[utoipa::path(
    get, path = "/v1/adapters/{adapter}/logins", params(AdapterPath),
    responses((status = 200, description = "All login methods", body = Vec<AuthMethod>)),
    extensions(("x-problems" = json!(["adapter_not_registered"]))),
)]
pub(super) async fn login_list(
    State(http): State<Http>,
    Authenticated(_): Authenticated,
    AdapterPath(adapter): AdapterPath,
) -> Result<Json<Vec<AuthMethod>>, Problem> {
    Ok(Json(http.kernel.login_list(&adapter)?))
}

/// Authenticates an adapter's agent, for all of its users
#[utoipa::path(
    post, path = "/v1/adapters/{adapter}/logins", params(AdapterPath), request_body = Login,
    responses((status = 204, description = "The agent is authenticated")),
    extensions(("x-problems" = json!([
        "forbidden", "adapter_not_registered", "adapter_incompatible", "login_failed"
    ]))),
)]
pub(super) async fn login_create(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    AdapterPath(adapter): AdapterPath,
    JsonObject(login): JsonObject<Login>,
) -> Result<StatusCode, Problem> {
    http.kernel.login_create(&caller, &adapter, &login.method_id).await?;
    Ok(StatusCode::NO_CONTENT)
}
