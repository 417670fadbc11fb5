//! What comes in: bodies and queries whose mistakes become problems, never plain text.

use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::{Json, RequestPartsExt};
use mainspring_core::RunId;
use mainspring_kernel::kernel::session_ref;
use mainspring_kernel::store::SessionRef;
use serde::de::DeserializeOwned;

use super::Problem;

/// A JSON body.
pub(super) struct Input<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Input<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        match Json::<T>::from_request(request, state).await {
            Ok(Json(input)) => Ok(Self(input)),
            Err(rejection) => Err(unreadable(&rejection)),
        }
    }
}

fn unreadable(rejection: &JsonRejection) -> Problem {
    let detail = rejection.body_text();
    match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "the body is too large")
        }
        StatusCode::UNSUPPORTED_MEDIA_TYPE => Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            "send the body as application/json",
        ),
        _ => Problem::invalid(detail),
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

/// The run that the path names.
pub(super) struct NamedRun(pub(super) RunId);

impl<S: Send + Sync> FromRequestParts<S> for NamedRun {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let name = path(parts).await?;
        name.parse().map(Self).map_err(|bad: mainspring_core::BadId| Problem::invalid(bad.to_string()))
    }
}

async fn path(parts: &mut Parts) -> Result<String, Problem> {
    let path: Result<Path<String>, PathRejection> = parts.extract().await;
    path.map(|Path(name)| name).map_err(|rejection| Problem::invalid(rejection.body_text()))
}
