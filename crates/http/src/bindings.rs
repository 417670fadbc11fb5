//! Bindings: the agents' native sessions that a session uses or used.

use axum::RequestPartsExt;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::Response;
use mainspring_api::{BindingAdoption, BindingListQuery, Page, SessionAdopted, SessionAdoption};
use mainspring_core::Binding;
use mainspring_kernel::kernel::{Adopted, SessionTarget, session_ref};
use mainspring_kernel::store::SessionRef;
use utoipa::IntoParams;
use utoipa::openapi::path::{Parameter, ParameterIn};

use crate::access::Authenticated;
use crate::audit::About;
use crate::body::{Json, JsonObject, QueryParams, SessionPath, in_path};
use crate::sessions::page_of;
use crate::{Http, Problem};

/// Extracts the session and the adapter from the path.
pub(super) struct BindingPath {
    session: SessionRef,
    adapter: String,
}

impl<S: Send + Sync> FromRequestParts<S> for BindingPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let path: Result<Path<(String, String)>, PathRejection> = parts.extract().await;
        let Path((session, adapter)) = path.map_err(|rejection| Problem::invalid(rejection.body_text()))?;
        Ok(Self { session: session_ref(&session)?, adapter })
    }
}

impl IntoParams for BindingPath {
    fn into_params(within: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let mut params = SessionPath::into_params(within);
        params.push(in_path("adapter", "The adapter, by its name.", "^[a-z][a-z0-9]*(-[a-z0-9]+)*$"));
        params
    }
}

/// Parses the start of a page: `ADAPTER.GENERATION`.
fn page_start(text: Option<&str>) -> Result<Option<(&str, u32)>, Problem> {
    let Some(text) = text else { return Ok(None) };
    let read = text.rsplit_once('.').and_then(|(adapter, no)| Some((adapter, no.parse().ok()?)));
    read.map(Some).ok_or_else(|| Problem::invalid(format!("{text:?} is not the `next` of an earlier page")))
}

/// Lists the bindings of a session, by adapter, newest generation first
#[utoipa::path(
    get, path = "/v1/sessions/{session}/bindings", params(SessionPath, BindingListQuery),
    responses((status = 200, description = "A page of bindings", body = Page<Binding>)),
)]
pub(super) async fn binding_list(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    SessionPath(by): SessionPath,
    QueryParams(query): QueryParams<BindingListQuery>,
) -> Result<Json<Page<Binding>>, Problem> {
    let items =
        http.kernel.binding_list(&caller, &by, page_start(query.after.as_deref())?, query.limit).await?;
    let next = |binding: &Binding| format!("{}.{}", binding.adapter, binding.generation);
    Ok(Json(page_of(&http, items, query.limit, next)))
}

/// Splits an adoption into the adapter and the native session.
fn adopted(adoption: BindingAdoption) -> (String, Adopted) {
    let BindingAdoption { adapter, adapter_native_session_id: native, cwd, system_prompt } = adoption;
    (adapter, Adopted { native, cwd, system_prompt })
}

/// Binds a session to a native session of an agent, unless it has a binding of that adapter
#[utoipa::path(
    post, path = "/v1/sessions/{session}/bindings", params(SessionPath), request_body = BindingAdoption,
    responses((status = 201, description = "The binding, which the next run uses", body = Binding)),
    extensions(("x-problems" = json!([
        "folder_not_allowed", "not_allowed_by_key", "forbidden", "adapter_not_registered", "adapter_incompatible", "session_busy",
        "already_exists", "wrong_state"
    ]))),
)]
pub(super) async fn binding_adopt(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    SessionPath(by): SessionPath,
    JsonObject(adoption): JsonObject<BindingAdoption>,
) -> Result<(StatusCode, Json<Binding>), Problem> {
    let (adapter, adopted) = adopted(adoption);
    Ok((StatusCode::CREATED, Json(http.kernel.binding_adopt(&caller, &by, &adapter, adopted).await?)))
}

/// Finds or creates a session and binds it to a native session of an agent, unless it has a binding of that adapter
#[utoipa::path(
    post, path = "/v1/adopt", request_body = SessionAdoption,
    responses(
        (status = 200, description = "The session was already bound; its binding is unchanged", body = SessionAdopted),
        (status = 201, description = "The session is bound; the next run uses the native session", body = SessionAdopted),
    ),
    extensions(("x-problems" = json!([
        "folder_not_allowed", "not_allowed_by_key", "forbidden", "adapter_not_registered", "adapter_incompatible", "session_busy",
        "wrong_state", "no_org"
    ]))),
)]
pub(super) async fn session_adopt(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    JsonObject(adoption): JsonObject<SessionAdoption>,
) -> Result<Response, Problem> {
    let (session, adoption) = adoption.into_parts();
    let (adapter, adopted) = adopted(adoption);
    if session.has_start_fields() {
        return Err(Problem::invalid(
            "name the session by id, key, reference or alias, not by `new` or `load`",
        ));
    }
    let mut target = SessionTarget::from(session);
    target.new.adapter.get_or_insert_with(|| adapter.clone());
    let done = http.kernel.session_adopt(&caller, &target, &adapter, adopted).await?;
    let about = About::ids([&done.session.id]);
    Ok(about.with((if done.adopted { StatusCode::CREATED } else { StatusCode::OK }, Json(done))))
}

/// Invalidates a binding, so that the agent's native session is not used again
#[utoipa::path(
    delete, path = "/v1/sessions/{session}/bindings/{adapter}", params(BindingPath),
    responses((status = 200, description = "The invalidated binding; the session is unchanged", body = Binding)),
    extensions(("x-problems" = json!([
        "folder_not_allowed", "not_allowed_by_key", "forbidden", "adapter_not_registered", "adapter_incompatible", "session_busy",
        "wrong_state"
    ]))),
)]
pub(super) async fn binding_invalidate(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    BindingPath { session, adapter }: BindingPath,
) -> Result<Json<Binding>, Problem> {
    Ok(Json(http.kernel.binding_invalidate(&caller, &session, &adapter).await?))
}
