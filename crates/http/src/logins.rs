//! Logins: how the runtimes of adapters are authenticated.

use axum::Json;
use axum::RequestPartsExt;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use mainspring_api::Login;
use mainspring_core::AuthMethod;
use utoipa::IntoParams;
use utoipa::openapi::path::{Parameter, ParameterIn};

use crate::access::Known;
use crate::body::{Input, in_path};
use crate::{Http, Problem};

/// The adapter that the path names.
pub(super) struct NamedAdapter(String);

impl<S: Send + Sync> FromRequestParts<S> for NamedAdapter {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let path: Result<Path<String>, PathRejection> = parts.extract().await;
        let Path(adapter) = path.map_err(|rejection| Problem::invalid(rejection.body_text()))?;
        Ok(Self(adapter))
    }
}

impl IntoParams for NamedAdapter {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![in_path("adapter", "The adapter, by its name.", "^[a-z][a-z0-9]*(-[a-z0-9]+)*$")]
    }
}

/// The ways to authenticate that an adapter's agent has named, once one has been started
#[utoipa::path(
    get, path = "/v1/adapters/{adapter}/logins", params(NamedAdapter),
    responses((status = 200, description = "All of them", body = Vec<AuthMethod>)),
    extensions(("x-problems" = json!(["adapter_not_registered"]))),
)]
pub(super) async fn login_list(
    State(http): State<Http>,
    Known(_): Known,
    NamedAdapter(adapter): NamedAdapter,
) -> Result<Json<Vec<AuthMethod>>, Problem> {
    Ok(Json(http.kernel.login_list(&adapter)?))
}

/// Authenticates an adapter's agent, for everybody who uses it
#[utoipa::path(
    post, path = "/v1/adapters/{adapter}/logins", params(NamedAdapter), request_body = Login,
    responses((status = 204, description = "It is done")),
    extensions(("x-problems" = json!([
        "forbidden", "adapter_not_registered", "adapter_incompatible", "login_failed"
    ]))),
)]
pub(super) async fn login_create(
    State(http): State<Http>,
    Known(caller): Known,
    NamedAdapter(adapter): NamedAdapter,
    Input(login): Input<Login>,
) -> Result<StatusCode, Problem> {
    http.kernel.login_create(&caller, &adapter, &login.method_id).await?;
    Ok(StatusCode::NO_CONTENT)
}
