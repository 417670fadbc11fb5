//! What comes in: bodies and queries whose mistakes become problems, never plain text.

use axum::RequestPartsExt;
use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use futures_util::StreamExt;
use mainspring_core::{BadId, KeyId, MessageId, RunId};
use mainspring_kernel::kernel::session_ref;
use mainspring_kernel::store::SessionRef;
use serde::de::DeserializeOwned;

use super::{Http, Problem};

/// How much of a body that is too large is still read, in multiples of what is allowed: whoever sends it then learns
/// why it was refused, instead of a connection that breaks.
pub(super) const PATIENCE: usize = 8;

/// A JSON body.
pub(super) struct Input<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Http> for Input<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, http: &Http) -> Result<Self, Problem> {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let is_json = kind
            .is_some_and(|kind| kind.split(';').next().is_some_and(|kind| kind.trim() == "application/json"));
        let bytes = read(request.into_body(), http.body_bytes).await?;
        if !is_json {
            let detail = "send the body as application/json";
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", detail));
        }
        serde_json::from_slice(&bytes)
            .map(Self)
            .map_err(|error| Problem::invalid(format!("the body: {error}")))
    }
}

async fn read(body: Body, limit: usize) -> Result<Vec<u8>, Problem> {
    let mut chunks = body.into_data_stream();
    let (mut bytes, mut size) = (vec![], 0);
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| Problem::invalid(format!("the body broke off: {error}")))?;
        size += chunk.len();
        match size {
            _ if size <= limit => bytes.extend_from_slice(&chunk),
            _ if size > limit.saturating_mul(PATIENCE) => break,
            _ => bytes.clear(),
        }
    }
    match size > limit {
        true => Err(mainspring_kernel::Error::TooLarge { what: "the body", size, limit }.into()),
        false => Ok(bytes),
    }
}

/// The query of the address.
pub(super) struct Asked<T>(pub(super) T);

impl<T: DeserializeOwned + Send + 'static, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let query: Result<Query<T>, QueryRejection> = parts.extract().await;
        query.map(|Query(query)| Self(query)).map_err(|rejection| Problem::invalid(rejection.body_text()))
    }
}

/// The session that the path names, by id or key.
pub(super) struct Named(pub(super) SessionRef);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let name = path(parts).await?;
        Ok(Self(session_ref(&name)?))
    }
}

/// The session and the message of it that the path names.
pub(super) struct NamedMessage(pub(super) SessionRef, pub(super) MessageId);

impl<S: Send + Sync> FromRequestParts<S> for NamedMessage {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let path: Result<Path<(String, String)>, PathRejection> = parts.extract().await;
        let Path((session, message)) = path.map_err(|rejection| Problem::invalid(rejection.body_text()))?;
        let message = message.parse().map_err(|bad: BadId| Problem::invalid(bad.to_string()))?;
        Ok(Self(session_ref(&session)?, message))
    }
}

/// The run that the path names.
pub(super) struct NamedRun(pub(super) RunId);

impl<S: Send + Sync> FromRequestParts<S> for NamedRun {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let name = path(parts).await?;
        name.parse().map(Self).map_err(|bad: BadId| Problem::invalid(bad.to_string()))
    }
}

/// The API key that the path names.
pub(super) struct NamedKey(pub(super) KeyId);

impl<S: Send + Sync> FromRequestParts<S> for NamedKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let name = path(parts).await?;
        name.parse().map(Self).map_err(|bad: BadId| Problem::invalid(bad.to_string()))
    }
}

/// The key under which the same request gets the same answer.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let key = headers.get("idempotency-key").map(HeaderValue::to_str).transpose();
    key.map_err(|_| Problem::invalid("the Idempotency-Key must be plain text"))
}

async fn path(parts: &mut Parts) -> Result<String, Problem> {
    let path: Result<Path<String>, PathRejection> = parts.extract().await;
    path.map(|Path(name)| name).map_err(|rejection| Problem::invalid(rejection.body_text()))
}
