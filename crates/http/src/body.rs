//! Extractors for bodies, queries and paths, and the JSON response. Invalid input becomes a problem, never plain text.

use std::time::Duration;

use axum::RequestPartsExt;
use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use mainspring_api::{ToJson, header_name};
use mainspring_core::{AttemptId, BadId, DelegationId, GrantId, KeyId, MessageId, RunId, WebhookId};
use mainspring_kernel::kernel::session_ref;
use mainspring_kernel::store::SessionRef;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use utoipa::IntoParams;
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::Type;
use utoipa::openapi::{ObjectBuilder, Required};

use crate::{Http, Problem};

/// A body that is too large is still read up to this multiple of its limit, so that the sender gets the problem
/// instead of a reset connection.
pub(super) const DRAIN_FACTOR: usize = 8;

/// The largest body of this request, if it is smaller than that of other requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct BodyLimit(pub(super) usize);

/// Extracts any JSON value from the body.
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Http> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, http: &Http) -> Result<Self, Problem> {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let is_json = kind
            .is_some_and(|kind| kind.split(';').next().is_some_and(|kind| kind.trim() == "application/json"));
        let limit = request.extensions().get().map_or(http.body_bytes, |BodyLimit(limit)| *limit);
        let bytes = read_up_to(http, request.into_body(), limit).await?;
        if !is_json {
            let detail = "send the body as application/json";
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", detail));
        }
        serde_json::from_slice(&bytes)
            .map(Self)
            .map_err(|error| Problem::invalid(format!("the body: {error}")))
    }
}

/// Extracts a JSON object from the body. Serde alone would also read an array, field by field.
pub(super) struct JsonObject<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Http> for JsonObject<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, http: &Http) -> Result<Self, Problem> {
        let JsonBody(text) = JsonBody::<Box<RawValue>>::from_request(request, http).await?;
        if !text.get().starts_with('{') {
            return Err(Problem::invalid("the body: expected an object"));
        }
        mainspring_api::request::parse(text.get())
            .map(Self)
            .map_err(|error| Problem::invalid(format!("the body: {error}")))
    }
}

/// Extracts a JSON object from the body, or the default from an empty body.
pub(super) struct OptionalJsonObject<T>(pub(super) T);

impl<T: DeserializeOwned + Default> FromRequest<Http> for OptionalJsonObject<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, http: &Http) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let bytes = read(http, body).await?;
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        let request = Request::from_parts(parts, Body::from(bytes));
        JsonObject::from_request(request, http).await.map(|JsonObject(object)| Self(object))
    }
}

/// A response with a JSON body.
pub(super) struct Json<T>(pub(super) T);

impl<T: ToJson> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        json_response(&self.0)
    }
}

/// Builds a response with a JSON body.
pub(super) fn json_response(body: &impl ToJson) -> Response {
    match body.to_json() {
        Ok(json) => ([(header::CONTENT_TYPE, "application/json")], json).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Reads the whole body, within the size and time limits.
pub(super) async fn read(http: &Http, body: Body) -> Result<Vec<u8>, Problem> {
    read_up_to(http, body, http.body_bytes).await
}

async fn read_up_to(http: &Http, body: Body, limit: usize) -> Result<Vec<u8>, Problem> {
    let timeout_ms = http.limits.body_ms;
    tokio::select! {
        bytes = collect(body, limit) => bytes,
        () = http.kernel.sleep(Duration::from_millis(timeout_ms)) => Err(Problem::slow_body(&http.limits)),
    }
}

async fn collect(body: Body, limit: usize) -> Result<Vec<u8>, Problem> {
    let mut chunks = body.into_data_stream();
    let (mut bytes, mut size) = (vec![], 0);
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| Problem::invalid(format!("the body ended early: {error}")))?;
        size += chunk.len();
        match size {
            _ if size <= limit => bytes.extend_from_slice(&chunk),
            _ if size > limit.saturating_mul(DRAIN_FACTOR) => break,
            _ => bytes.clear(),
        }
    }
    match size > limit {
        true => Err(mainspring_kernel::Error::TooLarge { what: "the body", size, limit }.into()),
        false => Ok(bytes),
    }
}

/// Extracts the query string.
pub(super) struct QueryParams<T>(pub(super) T);

impl<T: DeserializeOwned + Send + 'static, S: Send + Sync> FromRequestParts<S> for QueryParams<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let query: Result<Query<T>, QueryRejection> = parts.extract().await;
        query.map(|Query(query)| Self(query)).map_err(|rejection| invalid_query(&rejection, &parts.uri))
    }
}

/// Names the parameter of a query that cannot be read, and its value.
fn invalid_query(rejection: &QueryRejection, uri: &Uri) -> Problem {
    let text = rejection.body_text();
    // A cause that concerns one parameter begins with the name of that parameter.
    let cause = text.split_once(": ").map_or(text.as_str(), |(_, cause)| cause);
    let pairs =
        Query::<Vec<(String, String)>>::try_from_uri(uri).map(|Query(pairs)| pairs).unwrap_or_default();
    let found = pairs.iter().find_map(|(name, value)| {
        Some((name, value, cause.strip_prefix(name.as_str())?.strip_prefix(": ")?))
    });
    let quoted = |prefix: &str| cause.strip_prefix(prefix)?.split('`').next();
    if let Some((name, value, reason)) = found {
        let value: String = value.chars().take(64).collect();
        return Problem::invalid(format!("the query parameter `{name}` cannot be {value:?}: {reason}"));
    }
    if let Some(name) = quoted("missing field `") {
        return Problem::invalid(format!("the query parameter `{name}` is missing"));
    }
    match quoted("duplicate field `") {
        Some(name) => Problem::invalid(format!("the query parameter `{name}` is given twice")),
        None => Problem::invalid(format!("the query cannot be read: {cause}")),
    }
}

/// Extracts the session from the path: its id or key.
pub(super) struct SessionPath(pub(super) SessionRef);

impl<S: Send + Sync> FromRequestParts<S> for SessionPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let name = path(parts).await?;
        Ok(Self(session_ref(&name)?))
    }
}

/// Extracts a session and one of its messages from the path.
pub(super) struct MessagePath(pub(super) SessionRef, pub(super) MessageId);

impl<S: Send + Sync> FromRequestParts<S> for MessagePath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let path: Result<Path<(String, String)>, PathRejection> = parts.extract().await;
        let Path((session, message)) = path.map_err(|_| invalid_path())?;
        let message = message.parse().map_err(|bad: BadId| Problem::invalid(bad.to_string()))?;
        Ok(Self(session_ref(&session)?, message))
    }
}

impl IntoParams for SessionPath {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let key = "^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}$";
        vec![in_path("session", "The session: its id (`ses_…`) or the caller's own key.", key)]
    }
}

impl IntoParams for MessagePath {
    fn into_params(within: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let mut params = SessionPath::into_params(within);
        params.push(in_path("message", "The message.", "^msg_[0-9a-f]{32}$"));
        params
    }
}

/// Defines extractors for a path with one id.
macro_rules! id_paths {
    ($($(#[$doc:meta])* $name:ident($id:ident): $part:literal, $description:literal, $prefix:literal;)*) => {
        $(
            $(#[$doc])*
            pub(super) struct $name(pub(super) $id);

            impl<S: Send + Sync> FromRequestParts<S> for $name {
                type Rejection = Problem;

                async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
                    let name = path(parts).await?;
                    name.parse().map(Self).map_err(|bad: BadId| Problem::invalid(bad.to_string()))
                }
            }

            impl IntoParams for $name {
                fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
                    vec![in_path($part, $description, concat!("^", $prefix, "_[0-9a-f]{32}$"))]
                }
            }
        )*
    };
}

id_paths! {
    /// Extracts the run from the path.
    RunPath(RunId): "run", "The run.", "run";
    /// Extracts the attempt from the path.
    AttemptPath(AttemptId): "attempt", "The attempt.", "att";
    /// Extracts the API key from the path.
    KeyPath(KeyId): "key", "The API key.", "key";
    /// Extracts the grant from the path.
    GrantPath(GrantId): "grant", "The grant.", "grant";
    /// Extracts the delegation from the path.
    DelegationPath(DelegationId): "delegation", "The delegation.", "del";
    /// Extracts the webhook from the path.
    WebhookPath(WebhookId): "webhook", "The webhook.", "hook";
}

/// Describes a path parameter that matches `pattern`.
pub(super) fn in_path(name: &str, description: &str, pattern: &str) -> Parameter {
    let text = ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern));
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Path)
        .required(Required::True)
        .description(Some(description))
        .schema(Some(text))
        .build()
}

/// Documents the header that makes a creating request idempotent.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "documents a header; `idempotency_key` reads it")]
pub(super) struct IdempotencyHeader {
    /// Repeating the request with this key within 24 hours returns the first response.
    #[param(rename = "Idempotency-Key", min_length = 1, max_length = 512)]
    idempotency_key: Option<String>,
}

/// Reads the `Idempotency-Key` header.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let key = headers.get(header_name::IDEMPOTENCY_KEY).map(HeaderValue::to_str).transpose();
    key.map_err(|_| Problem::invalid("the Idempotency-Key must be plain text"))
}

/// Extracts the path's only parameter.
pub(super) async fn path(parts: &mut Parts) -> Result<String, Problem> {
    let path: Result<Path<String>, PathRejection> = parts.extract().await;
    path.map(|Path(name)| name).map_err(|_| invalid_path())
}

fn invalid_path() -> Problem {
    Problem::invalid("the path cannot be read: its parts are UTF-8, percent-encoded where necessary")
}
