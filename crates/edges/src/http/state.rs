//! State of sessions, runs and owners: the same four verbs for all of them.

use std::collections::HashMap;

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, RequestPartsExt};
use mainspring_core::{BadId, Expect, MessageId, StateEntry};
use mainspring_kernel::kernel::{StateOf, session_ref};
use serde::Deserialize;
use serde_json::Value;

use super::access::Known;
use super::body::{Asked, Input};
use super::sessions::Page;
use super::{Http, Problem};

/// Whose state the path names, and which key of it.
pub(super) struct Place {
    of: StateOf,
    key: String,
}

impl<S: Send + Sync> FromRequestParts<S> for Place {
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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    /// As of this message; where the path ends if not given.
    at: Option<MessageId>,
    /// Only keys after this one.
    after: Option<String>,
    limit: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GetQuery {
    at: Option<MessageId>,
}

fn as_of(of: StateOf, at: Option<MessageId>) -> Result<StateOf, Problem> {
    match (of, at) {
        (StateOf::Session(by, _), at) => Ok(StateOf::Session(by, at)),
        (_, Some(_)) => Err(Problem::invalid("only the state of a session is kept as of each message")),
        (of, None) => Ok(of),
    }
}

/// `GET /v1/sessions/{session}/state`, `GET /v1/runs/{run}/state`, `GET /v1/state`
pub(super) async fn state_list(
    State(http): State<Http>,
    Known(caller): Known,
    place: Place,
    Asked(query): Asked<ListQuery>,
) -> Result<Json<Page<StateEntry>>, Problem> {
    let of = as_of(place.of, query.at)?;
    let items = http.kernel.state_list(&caller, &of, query.after.as_deref(), query.limit).await?;
    Ok(Json(Page::of(items, query.limit, |entry| entry.key.clone())))
}

/// An entry with its version as an entity tag.
struct Tagged(StateEntry);

impl IntoResponse for Tagged {
    fn into_response(self) -> Response {
        let tag = HeaderValue::from_str(&tag(self.0.version));
        let mut response = Json(self.0).into_response();
        response.headers_mut().extend(tag.into_iter().map(|tag| (header::ETAG, tag)));
        response
    }
}

fn tag(version: u64) -> String {
    format!("\"{version}\"")
}

/// `GET …/state/{key}`: with `If-None-Match`, 304 while it is as it was.
pub(super) async fn state_get(
    State(http): State<Http>,
    Known(caller): Known,
    place: Place,
    headers: HeaderMap,
    Asked(query): Asked<GetQuery>,
) -> Result<Response, Problem> {
    let of = as_of(place.of, query.at)?;
    let entry = http.kernel.state_get(&caller, &of, &place.key).await?;
    let tag = tag(entry.version);
    Ok(match is_known(&headers, &tag) {
        true => (StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response(),
        false => Tagged(entry).into_response(),
    })
}

/// True when `If-None-Match` names `tag`.
pub(super) fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    let values = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut tags = values.flat_map(|value| value.split(',')).map(str::trim);
    tags.any(|known| known == "*" || known.trim_start_matches("W/") == tag)
}

/// `PUT …/state/{key}`: the body is the value. With `If-Match` only over what the caller has read, with
/// `If-None-Match: *` only if there is none.
pub(super) async fn state_set(
    State(http): State<Http>,
    Known(caller): Known,
    place: Place,
    headers: HeaderMap,
    Input(value): Input<Value>,
) -> Result<Response, Problem> {
    let expect = expect(&headers)?;
    let outcome = http.kernel.state_set(&caller, &place.of, &place.key, Some(value), expect).await?;
    let status = if outcome.created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(match outcome.entry {
        Some(entry) => (status, Tagged(entry)).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    })
}

/// `DELETE …/state/{key}`: gone afterwards, whether it was there or not; with `If-Match` only what the caller has read.
pub(super) async fn state_delete(
    State(http): State<Http>,
    Known(caller): Known,
    place: Place,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    let expect = expect(&headers)?;
    http.kernel.state_set(&caller, &place.of, &place.key, None, expect).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn expect(headers: &HeaderMap) -> Result<Expect, Problem> {
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
            Err(Problem::invalid("to change state, If-None-Match takes * only: there must be none"))
        }
        (Some(_), Some(_)) => Err(Problem::invalid("send If-Match or If-None-Match, not both")),
    }
}
