//! Key-value state of sessions, runs and owners: the same five operations for each.

use std::collections::HashMap;

use axum::RequestPartsExt;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use mainspring_api::{Page, StateHistoryQuery, StateListQuery, StateQuery};
use mainspring_core::{BadId, Expect, MessageId, StateChange, StateEntry};
use mainspring_kernel::kernel::{StateOf, session_ref};
use serde_json::Value;
use utoipa::IntoParams;
use utoipa::openapi::path::{Parameter, ParameterIn};

use crate::access::Authenticated;
use crate::body::{self, Json, QueryParams, RunPath, SessionPath, in_path};
use crate::sessions::{page_of, tag, tagged};
use crate::{Http, Problem};

/// The state's scope (session, run or owner) and the key, both from the path.
pub(super) struct StatePath {
    of: StateOf,
    key: String,
}

impl<S: Send + Sync> FromRequestParts<S> for StatePath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let path: Result<Path<HashMap<String, String>>, PathRejection> = parts.extract().await;
        let Path(mut path) = path.map_err(|rejection| Problem::invalid(rejection.body_text()))?;
        let of = match (path.get("session"), path.get("run")) {
            (Some(session), _) => StateOf::Session(session_ref(session)?, None),
            (None, Some(run)) => {
                StateOf::Run(run.parse().map_err(|bad: BadId| Problem::invalid(bad.to_string()))?)
            }
            (None, None) => StateOf::Owner,
        };
        Ok(Self { of, key: path.remove("key").unwrap_or_default() })
    }
}

/// Documents the path parameter `key`.
struct KeyParam;

impl IntoParams for KeyParam {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![in_path("key", "The key of the entry.", "^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}$")]
    }
}

/// Documents that there are no path parameters: the state of an owner is always that of the caller's owner.
struct NoParams;

impl IntoParams for NoParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![]
    }
}

/// Documents the precondition headers of a change.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "documents headers; `precondition` reads them")]
struct PreconditionHeaders {
    /// The ETag that the entry must still have, or `*`: the entry must exist.
    #[param(rename = "If-Match")]
    if_match: Option<String>,
    /// `*`: the entry must not exist.
    #[param(rename = "If-None-Match")]
    if_none_match: Option<String>,
}

/// Defines the operations of one kind of state: list, get, set, delete and history.
macro_rules! state_endpoints {
    (
        $of:ident, $all:literal, $one:literal, $changes:literal, $list:ident, $get:ident, $set:ident, $delete:ident,
        $history:ident
    ) => {
        /// Lists state entries, sorted by key
        #[utoipa::path(
            get, path = $all, params($of, StateListQuery),
            responses((status = 200, description = "A page of state entries", body = Page<StateEntry>)),
        )]
        pub(super) async fn $list(
            http: State<Http>,
            caller: Authenticated,
            path: StatePath,
            query: QueryParams<StateListQuery>,
        ) -> Result<Json<Page<StateEntry>>, Problem> {
            state_list(http, caller, path, query).await
        }

        /// Returns a state entry; with `If-None-Match`, 304 while it is unchanged
        #[utoipa::path(
            get, path = $one, params($of, KeyParam, StateQuery),
            responses(
                (status = 200, description = "The state entry", body = StateEntry, headers(("ETag" = String))),
                (status = 304, description = "The entry is unchanged"),
            ),
        )]
        pub(super) async fn $get(
            http: State<Http>,
            caller: Authenticated,
            path: StatePath,
            headers: HeaderMap,
            query: QueryParams<StateQuery>,
        ) -> Result<Response, Problem> {
            state_get(http, caller, path, headers, query).await
        }

        /// Sets a state entry to the value in the body
        #[utoipa::path(
            put, path = $one, params($of, KeyParam, PreconditionHeaders), request_body = Value,
            responses(
                (status = 200, description = "The changed entry", body = StateEntry, headers(("ETag" = String))),
                (status = 201, description = "The new entry", body = StateEntry, headers(("ETag" = String))),
            ),
            extensions(("x-problems" = json!([
                "folder_not_allowed", "not_allowed_by_key", "forbidden",
                "version_conflict", "too_many", "session_busy", "run_ended", "run_merged", "wrong_state"
            ]))),
        )]
        pub(super) async fn $set(
            http: State<Http>,
            caller: Authenticated,
            path: StatePath,
            headers: HeaderMap,
            value: body::JsonBody<Value>,
        ) -> Result<Response, Problem> {
            state_set(http, caller, path, headers, value).await
        }

        /// Deletes a state entry; succeeds also if there is none
        #[utoipa::path(
            delete, path = $one, params($of, KeyParam, PreconditionHeaders),
            responses((status = 204, description = "The entry is deleted")),
            extensions(("x-problems" = json!([
                "folder_not_allowed", "not_allowed_by_key", "forbidden",
                "version_conflict", "session_busy", "run_ended", "run_merged", "wrong_state"
            ]))),
        )]
        pub(super) async fn $delete(
            http: State<Http>,
            caller: Authenticated,
            path: StatePath,
            headers: HeaderMap,
        ) -> Result<StatusCode, Problem> {
            state_delete(http, caller, path, headers).await
        }

        /// Lists the last changes of a state entry and who made them, newest first
        #[utoipa::path(
            get, path = $changes, params($of, KeyParam, StateHistoryQuery),
            responses((status = 200, description = "A page of changes", body = Page<StateChange>)),
        )]
        pub(super) async fn $history(
            http: State<Http>,
            caller: Authenticated,
            path: StatePath,
            query: QueryParams<StateHistoryQuery>,
        ) -> Result<Json<Page<StateChange>>, Problem> {
            state_history(http, caller, path, query).await
        }
    };
}

state_endpoints!(
    SessionPath,
    "/v1/sessions/{session}/state",
    "/v1/sessions/{session}/state/{key}",
    "/v1/sessions/{session}/state/{key}/history",
    session_state_list,
    session_state_get,
    session_state_set,
    session_state_delete,
    session_state_history
);
state_endpoints!(
    RunPath,
    "/v1/runs/{run}/state",
    "/v1/runs/{run}/state/{key}",
    "/v1/runs/{run}/state/{key}/history",
    run_state_list,
    run_state_get,
    run_state_set,
    run_state_delete,
    run_state_history
);
state_endpoints!(
    NoParams,
    "/v1/state",
    "/v1/state/{key}",
    "/v1/state/{key}/history",
    owner_state_list,
    owner_state_get,
    owner_state_set,
    owner_state_delete,
    owner_state_history
);

fn as_of(of: StateOf, at: Option<MessageId>) -> Result<StateOf, Problem> {
    match (of, at) {
        (StateOf::Session(by, _), at) => Ok(StateOf::Session(by, at)),
        (_, Some(_)) => Err(Problem::invalid("only the state of a session is kept as of each message")),
        (of, None) => Ok(of),
    }
}

async fn state_list(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    path: StatePath,
    QueryParams(query): QueryParams<StateListQuery>,
) -> Result<Json<Page<StateEntry>>, Problem> {
    let of = as_of(path.of, query.at)?;
    let items = http.kernel.state_list(&caller, &of, query.after.as_deref(), query.limit).await?;
    Ok(Json(page_of(&http, items, query.limit, |entry| entry.key.clone())))
}

async fn state_get(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    path: StatePath,
    headers: HeaderMap,
    QueryParams(query): QueryParams<StateQuery>,
) -> Result<Response, Problem> {
    let of = as_of(path.of, query.at)?;
    let entry = http.kernel.state_get(&caller, &of, &path.key).await?;
    let tag = tag(entry.version);
    Ok(match matches_etag(&headers, &tag) {
        true => (StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response(),
        false => tagged(entry.version, &entry),
    })
}

/// True when `If-None-Match` names `tag`.
pub(super) fn matches_etag(headers: &HeaderMap, tag: &str) -> bool {
    let values = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut tags = values.flat_map(|value| value.split(',')).map(str::trim);
    tags.any(|known| known == "*" || known.trim_start_matches("W/") == tag)
}

async fn state_set(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    path: StatePath,
    headers: HeaderMap,
    body::JsonBody(value): body::JsonBody<Value>,
) -> Result<Response, Problem> {
    let expect = precondition(&headers)?;
    let outcome = http.kernel.state_set(&caller, &path.of, &path.key, Some(value), expect).await?;
    let status = if outcome.created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(match outcome.entry {
        Some(entry) => (status, tagged(entry.version, &entry)).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    })
}

async fn state_delete(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    path: StatePath,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    let expect = precondition(&headers)?;
    http.kernel.state_set(&caller, &path.of, &path.key, None, expect).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn state_history(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    path: StatePath,
    QueryParams(query): QueryParams<StateHistoryQuery>,
) -> Result<Json<Page<StateChange>>, Problem> {
    let changes = http.kernel.state_history(&caller, &path.of, &path.key, query.before, query.limit).await?;
    Ok(Json(page_of(&http, changes, query.limit, |change| change.version.to_string())))
}

fn precondition(headers: &HeaderMap) -> Result<Expect, Problem> {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?").trim());
    match (text(header::IF_MATCH), text(header::IF_NONE_MATCH)) {
        (None, None) => Ok(Expect::Any),
        (Some("*"), None) => Ok(Expect::Present),
        (None, Some("*")) => Ok(Expect::Absent),
        (Some(tag), None) => {
            let version = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
            let version = version.unwrap_or(tag).parse().ok();
            version
                .map(Expect::Version)
                .ok_or_else(|| Problem::invalid("If-Match takes the ETag of the entry, or *"))
        }
        (None, Some(_)) => {
            Err(Problem::invalid("on a change, If-None-Match takes only `*`: the entry must not exist"))
        }
        (Some(_), Some(_)) => Err(Problem::invalid("send If-Match or If-None-Match, not both")),
    }
}
