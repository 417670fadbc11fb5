//! Bindings: the agents' own sessions that a session is or was tied to.

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::{Json, RequestPartsExt};
use mainspring_core::Binding;
use mainspring_kernel::kernel::{Adopted, SessionAdopted, SessionTarget, session_ref};
use mainspring_kernel::store::SessionRef;
use serde::Deserialize;
use utoipa::openapi::path::{Parameter, ParameterIn};
use utoipa::{IntoParams, ToSchema};

use crate::access::Known;
use crate::body::{Asked, Input, Named, in_path};
use crate::sessions::{Page, Target};
use crate::{Http, Problem};

/// The session and the adapter that the path names.
pub(super) struct NamedBinding {
    session: SessionRef,
    adapter: String,
}

impl<S: Send + Sync> FromRequestParts<S> for NamedBinding {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let path: Result<Path<(String, String)>, PathRejection> = parts.extract().await;
        let Path((session, adapter)) = path.map_err(|rejection| Problem::invalid(rejection.body_text()))?;
        Ok(Self { session: session_ref(&session)?, adapter })
    }
}

impl IntoParams for NamedBinding {
    fn into_params(within: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let mut params = Named::into_params(within);
        params.push(in_path("adapter", "The adapter, by its name.", "^[a-z][a-z0-9]*(-[a-z0-9]+)*$"));
        params
    }
}

/// Which bindings.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct BindingsQuery {
    /// The `next` of the page before.
    #[param(pattern = r"^[a-z][a-z0-9-]*\.[0-9]{1,9}$")]
    after: Option<String>,
    /// How many; 50 if not given.
    limit: Option<usize>,
}

impl BindingsQuery {
    fn after(&self) -> Result<Option<(&str, u32)>, Problem> {
        let Some(text) = &self.after else { return Ok(None) };
        let read = text.rsplit_once('.').and_then(|(adapter, no)| Some((adapter, no.parse().ok()?)));
        read.map(Some)
            .ok_or_else(|| Problem::invalid(format!("{text:?} is not the `next` of an earlier page")))
    }
}

/// Bindings of a session, by adapter and the newest generation first
#[utoipa::path(
    get, path = "/v1/sessions/{session}/bindings", params(Named, BindingsQuery),
    responses((status = 200, description = "A page", body = Page<Binding>)),
)]
pub(super) async fn binding_list(
    State(http): State<Http>,
    Known(caller): Known,
    Named(by): Named,
    Asked(query): Asked<BindingsQuery>,
) -> Result<Json<Page<Binding>>, Problem> {
    let items = http.kernel.binding_list(&caller, &by, query.after()?, query.limit).await?;
    let place = |binding: &Binding| format!("{}.{}", binding.adapter, binding.generation);
    Ok(Json(Page::of(&http, items, query.limit, place)))
}

/// An agent's own session that exists already.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = BindingAdoption)]
pub(super) struct Adoption {
    /// The adapter, by its name.
    adapter: String,
    /// The agent's own id of it.
    #[schema(min_length = 1, max_length = 512)]
    adapter_native_session_id: String,
    /// The folder it was opened in; the session's if not given.
    #[serde(default)]
    cwd: Option<String>,
    /// The instructions it was opened with; the session's if not given.
    #[serde(default)]
    system_prompt: Option<String>,
}

/// Ties a session to an agent's own session that exists already, unless it has been tied to one
#[utoipa::path(
    post, path = "/v1/sessions/{session}/bindings", params(Named), request_body = Adoption,
    responses((status = 201, description = "The binding, which the next run takes up", body = Binding)),
    extensions(("x-problems" = json!([
        "forbidden", "adapter_not_registered", "adapter_incompatible", "session_busy", "already_exists", "wrong_state"
    ]))),
)]
pub(super) async fn binding_adopt(
    State(http): State<Http>,
    Known(caller): Known,
    Named(by): Named,
    Input(adoption): Input<Adoption>,
) -> Result<(StatusCode, Json<Binding>), Problem> {
    let Adoption { adapter, adapter_native_session_id: native, cwd, system_prompt } = adoption;
    let adopted = Adopted { native, cwd, system_prompt };
    Ok((StatusCode::CREATED, Json(http.kernel.binding_adopt(&caller, &by, &adapter, adopted).await?)))
}

/// A session by what it stands for, and an agent's own session that exists already.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct SessionAdoption {
    /// Which session; if there is none, what the new one is like.
    session: Target,
    /// The adapter, by its name.
    adapter: String,
    /// The agent's own id of its session.
    #[schema(min_length = 1, max_length = 512)]
    adapter_native_session_id: String,
    /// The folder that was opened in; the session's if not given.
    #[serde(default)]
    cwd: Option<String>,
    /// The instructions that was opened with; the session's if not given.
    #[serde(default)]
    system_prompt: Option<String>,
}

/// Finds or makes a session and ties it to an agent's own session that exists already, unless it has been tied to one
#[utoipa::path(
    post, path = "/v1/adopt", request_body = SessionAdoption,
    responses(
        (status = 200, description = "It had been tied before, and stays so", body = SessionAdopted),
        (status = 201, description = "It is tied, and the next run takes it up", body = SessionAdopted),
    ),
    extensions(("x-problems" = json!([
        "forbidden", "adapter_not_registered", "adapter_incompatible", "session_busy", "wrong_state", "no_org"
    ]))),
)]
pub(super) async fn session_adopt(
    State(http): State<Http>,
    Known(caller): Known,
    Input(adoption): Input<SessionAdoption>,
) -> Result<(StatusCode, Json<SessionAdopted>), Problem> {
    let SessionAdoption { session, adapter, adapter_native_session_id: native, cwd, system_prompt } =
        adoption;
    if session.starts() {
        return Err(Problem::invalid("name the session by what it is found by, not by `new` or `load`"));
    }
    let mut target = SessionTarget::from(session);
    target.new.adapter.get_or_insert_with(|| adapter.clone());
    let adopted = Adopted { native, cwd, system_prompt };
    let done = http.kernel.session_adopt(&caller, &target, &adapter, adopted).await?;
    Ok((if done.adopted { StatusCode::CREATED } else { StatusCode::OK }, Json(done)))
}

/// Makes sure that the agent's own session is not used again
#[utoipa::path(
    delete, path = "/v1/sessions/{session}/bindings/{adapter}", params(NamedBinding),
    responses((status = 200, description = "The binding, which is invalid now; the session stays", body = Binding)),
    extensions(("x-problems" = json!([
        "forbidden", "adapter_not_registered", "adapter_incompatible", "session_busy", "wrong_state"
    ]))),
)]
pub(super) async fn binding_invalidate(
    State(http): State<Http>,
    Known(caller): Known,
    NamedBinding { session, adapter }: NamedBinding,
) -> Result<Json<Binding>, Problem> {
    Ok(Json(http.kernel.binding_invalidate(&caller, &session, &adapter).await?))
}
