//! Artifacts: metadata as JSON, content as bytes.
//!
//! The content is untrusted (users and agents upload it), so the headers make a browser download it instead of rendering
//! it as a page of this server.

use axum::RequestPartsExt;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::TryStreamExt;
use mainspring_api::{ArtifactListQuery, ArtifactQuery, Page};
use mainspring_core::{Artifact, ArtifactId, ArtifactRole, BadId};
use mainspring_kernel::Error;
use mainspring_kernel::kernel::{self, ArtifactsOf, Caller, NewArtifact};
use serde_json::{Map, Value};
use tokio::io::AsyncReadExt;
use tokio_util::io::{ReaderStream, StreamReader};
use utoipa::openapi::path::{Parameter, ParameterIn};
use utoipa::{IntoParams, ToSchema};

use crate::access::Authenticated;
use crate::body::{
    DRAIN_FACTOR, IdempotencyHeader, Json, QueryParams, RunPath, SessionPath, idempotency_key, in_path,
};
use crate::sessions::{page_of, page_start};
use crate::state::matches_etag;
use crate::{Http, Problem};

/// Maximum bytes of an oversized artifact that are still read, so that the client gets the problem.
const DRAIN_MAX_BYTES: u64 = 64 << 20;

/// Extracts the artifact from the path.
pub(super) struct ArtifactPath(ArtifactId);

impl<S: Send + Sync> FromRequestParts<S> for ArtifactPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let Path(name): Path<String> =
            parts.extract().await.map_err(|_| Problem::invalid("the path names no artifact"))?;
        name.parse().map(Self).map_err(|bad: BadId| Problem::invalid(bad.to_string()))
    }
}

impl IntoParams for ArtifactPath {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![in_path("artifact", "The artifact.", "^art_[0-9a-f]{32}$")]
    }
}

/// Arbitrary bytes.
#[derive(ToSchema)]
#[schema(value_type = String, format = Binary)]
#[expect(dead_code, reason = "documents a body")]
pub(super) struct Bytes(Vec<u8>);

/// Stores the body as an artifact with the request's `Content-Type`
#[utoipa::path(
    post, path = "/v1/sessions/{session}/artifacts", params(SessionPath, ArtifactQuery, IdempotencyHeader),
    request_body(content = Bytes, content_type = "application/octet-stream"),
    responses(
        (status = 200, description = "The artifact that the same request created before", body = Artifact, headers(("Location" = String))),
        (status = 201, description = "The new artifact", body = Artifact, headers(("Location" = String))),
    ),
    extensions(("x-problems" = json!(["folder_not_allowed", "not_allowed_by_key", "forbidden", "too_large", "request_conflict", "wrong_state"]))),
)]
pub(super) async fn artifact_put(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    SessionPath(by): SessionPath,
    headers: HeaderMap,
    QueryParams(query): QueryParams<ArtifactQuery>,
    body: Body,
) -> Result<Response, Problem> {
    let mime_type = match headers.get(header::CONTENT_TYPE).map(HeaderValue::to_str) {
        None => None,
        Some(Ok(kind)) => Some(kind.to_owned()),
        Some(Err(_)) => return Err(Problem::invalid("the Content-Type must be plain text")),
    };
    let new = NewArtifact {
        kind: query.kind.unwrap_or_else(|| NewArtifact::default().kind),
        role: query.role.unwrap_or(ArtifactRole::Input),
        name: query.name,
        mime_type,
        metadata: artifact_metadata(query.metadata.as_deref())?,
        run: query.run,
    };
    let key = idempotency_key(&headers)?;
    let mut content = StreamReader::new(body.into_data_stream().map_err(std::io::Error::other));
    let put = http.kernel.artifact_put(&caller, &by, new, key, &mut content).await;
    if let Err(Error::TooLarge { limit, .. }) = &put {
        let drain_bytes = (limit.saturating_mul(DRAIN_FACTOR) as u64).min(DRAIN_MAX_BYTES);
        // A client that has disconnected needs no response.
        let _ = tokio::io::copy(&mut content.take(drain_bytes), &mut tokio::io::sink()).await;
    }
    let (artifact, made) = put?;
    let status = if made { StatusCode::CREATED } else { StatusCode::OK };
    let location = HeaderValue::from_str(&format!("/v1/artifacts/{}", artifact.id));
    let mut response = (status, Json(artifact)).into_response();
    response.headers_mut().extend(location.into_iter().map(|location| (header::LOCATION, location)));
    Ok(response)
}

/// Parses the metadata of an artifact: an object as JSON.
fn artifact_metadata(metadata: Option<&str>) -> Result<Map<String, Value>, Problem> {
    let parsed = metadata.map(serde_json::from_str).transpose();
    parsed.map(Option::unwrap_or_default).map_err(|_| {
        Problem::invalid("metadata must be a JSON object, percent-encoded: metadata=%7B%22page%22%3A1%7D")
    })
}

/// Lists the artifacts of a session, newest first
#[utoipa::path(
    get, path = "/v1/sessions/{session}/artifacts", params(SessionPath, ArtifactListQuery),
    responses((status = 200, description = "A page of artifacts", body = Page<Artifact>)),
)]
pub(super) async fn session_artifacts(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    SessionPath(by): SessionPath,
    QueryParams(query): QueryParams<ArtifactListQuery>,
) -> Result<Json<Page<Artifact>>, Problem> {
    list(&http, &caller, ArtifactsOf::Session(by), query).await
}

/// Lists the artifacts of a run, newest first
#[utoipa::path(
    get, path = "/v1/runs/{run}/artifacts", params(RunPath, ArtifactListQuery),
    responses((status = 200, description = "A page of artifacts", body = Page<Artifact>)),
)]
pub(super) async fn run_artifacts(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    RunPath(run): RunPath,
    QueryParams(query): QueryParams<ArtifactListQuery>,
) -> Result<Json<Page<Artifact>>, Problem> {
    list(&http, &caller, ArtifactsOf::Run(run), query).await
}

async fn list(
    http: &Http,
    caller: &Caller,
    of: ArtifactsOf,
    query: ArtifactListQuery,
) -> Result<Json<Page<Artifact>>, Problem> {
    let (limit, before) = (query.limit, page_start(query.before)?);
    let artifacts = http.kernel.artifact_list(caller, kernel::ArtifactQuery { of, before, limit }).await?;
    let position = |artifact: &Artifact| format!("{}.{}", artifact.created_at.0, artifact.id);
    Ok(Json(page_of(http, artifacts, limit, position)))
}

/// Returns an artifact without its content
#[utoipa::path(
    get, path = "/v1/artifacts/{artifact}", params(ArtifactPath),
    responses((status = 200, description = "The artifact", body = Artifact)),
)]
pub(super) async fn artifact_get(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    ArtifactPath(id): ArtifactPath,
) -> Result<Json<Artifact>, Problem> {
    Ok(Json(http.kernel.artifact_get(&caller, id).await?))
}

/// Deletes an artifact
#[utoipa::path(
    delete, path = "/v1/artifacts/{artifact}", params(ArtifactPath),
    responses((status = 204, description = "The artifact is deleted")),
    extensions(("x-problems" = json!(["folder_not_allowed", "not_allowed_by_key", "forbidden", "wrong_state"]))),
)]
pub(super) async fn artifact_delete(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    ArtifactPath(id): ArtifactPath,
) -> Result<StatusCode, Problem> {
    http.kernel.artifact_delete(&caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns the content of an artifact, or the requested range of it
#[utoipa::path(
    get, path = "/v1/artifacts/{artifact}/content",
    params(ArtifactPath, ("Range" = Option<String>, Header, description = "One range of bytes.")),
    responses(
        (status = 200, description = "The content, with the artifact's media type", body = Bytes, content_type = "*/*", headers(("ETag" = String))),
        (status = 206, description = "The requested range", body = Bytes, content_type = "*/*", headers(("ETag" = String))),
        (status = 304, description = "The content is unchanged"),
    ),
    extensions(("x-problems" = json!(["range_not_satisfiable"]))),
)]
pub(super) async fn artifact_content(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    ArtifactPath(id): ArtifactPath,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let artifact = http.kernel.artifact_get(&caller, id).await?;
    let tag = format!("\"{}\"", artifact.content_hash.as_deref().unwrap_or_default());
    if artifact.content_hash.is_some() && matches_etag(&headers, &tag) {
        return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response());
    }
    let size = artifact.size_bytes.unwrap_or(0);
    let (status, from, length) = match requested_range(&headers, &tag, size) {
        RangeRequest::All => (StatusCode::OK, 0, size),
        RangeRequest::Part { from, length } => (StatusCode::PARTIAL_CONTENT, from, length),
        RangeRequest::Unsatisfiable => return Ok(unsatisfiable(size)),
    };
    let (artifact, bytes) = http.kernel.artifact_read(&caller, id, from, Some(length)).await?;
    let mut response = (status, Body::from_stream(ReaderStream::new(bytes))).into_response();
    let kind = artifact.mime_type.as_deref().unwrap_or("application/octet-stream");
    let mut values: Vec<(HeaderName, String)> = vec![
        (header::CONTENT_TYPE, kind.to_owned()),
        (header::CONTENT_LENGTH, length.to_string()),
        (header::CONTENT_DISPOSITION, content_disposition(&artifact)),
        (header::ETAG, tag),
        (header::ACCEPT_RANGES, "bytes".into()),
        (header::CACHE_CONTROL, "private, no-cache".into()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".into()),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox".into()),
    ];
    if status == StatusCode::PARTIAL_CONTENT {
        values.push((header::CONTENT_RANGE, format!("bytes {from}-{}/{size}", from + length - 1)));
    }
    let values =
        values.into_iter().filter_map(|(name, value)| Some((name, HeaderValue::try_from(value).ok()?)));
    response.headers_mut().extend(values);
    Ok(response)
}

/// The part of the content that a request asks for.
#[derive(Debug, PartialEq, Eq)]
enum RangeRequest {
    All,
    Part { from: u64, length: u64 },
    Unsatisfiable,
}

/// Parses `Range`. Anything but a single byte range, and an `If-Range` for other content, requests everything.
fn requested_range(headers: &HeaderMap, tag: &str, size: u64) -> RangeRequest {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?").trim());
    if text(header::IF_RANGE).is_some_and(|known| known != tag) {
        return RangeRequest::All;
    }
    let range = text(header::RANGE).and_then(|range| range.strip_prefix("bytes=")?.trim().split_once('-'));
    let number =
        |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
    let (first, last) = match range.map(|(first, last)| (first.trim(), last.trim())) {
        Some(("", last)) => match number(last) {
            Some(count) => (Some(size.saturating_sub(count)), Some(u64::MAX)),
            None => return RangeRequest::All,
        },
        Some((first, "")) => (number(first), Some(u64::MAX)),
        Some((first, last)) => (number(first), number(last)),
        None => return RangeRequest::All,
    };
    match (first, last) {
        (Some(first), Some(last)) if first < size && first <= last => {
            RangeRequest::Part { from: first, length: last.min(size - 1) - first + 1 }
        }
        (Some(first), Some(last)) if first <= last => RangeRequest::Unsatisfiable,
        _ => RangeRequest::All,
    }
}

fn unsatisfiable(size: u64) -> Response {
    let detail = format!("the content has {size} bytes");
    let mut response =
        Problem::new(StatusCode::RANGE_NOT_SATISFIABLE, "range_not_satisfiable", detail).into_response();
    let range = HeaderValue::try_from(format!("bytes */{size}"));
    response.headers_mut().extend(range.into_iter().map(|range| (header::CONTENT_RANGE, range)));
    response
}

/// Makes browsers download the content, under a name that is a plain file name on every system.
fn content_disposition(artifact: &Artifact) -> String {
    let id = artifact.id.to_string();
    let name = artifact.name.as_deref().unwrap_or(&id);
    let name: String = name.chars().map(|c| if matches!(c, '/' | '\\') { '_' } else { c }).collect();
    let name = name.trim_start_matches('.');
    let plain: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || "._- ".contains(c) { c } else { '_' }).collect();
    let exact: String = name
        .bytes()
        .map(|b| match b {
            b if b.is_ascii_alphanumeric() || b"._-".contains(&b) => char::from(b).to_string(),
            b => format!("%{b:02X}"),
        })
        .collect();
    format!("attachment; filename=\"{plain}\"; filename*=UTF-8''{exact}")
}

#[cfg(test)]
mod tests {
    use mainspring_core::{SessionId, Time};

    use super::*;

    #[test]
    fn ranges_of_ten_bytes() {
        let part = |from, length| RangeRequest::Part { from, length };
        for (range, requested) in [
            ("bytes=0-3", part(0, 4)),
            ("bytes=4-", part(4, 6)),
            ("bytes=-3", part(7, 3)),
            ("bytes=-30", part(0, 10)),
            ("bytes=8-99", part(8, 2)),
            ("bytes=10-", RangeRequest::Unsatisfiable),
            ("bytes=-0", RangeRequest::Unsatisfiable),
            ("bytes=3-2", RangeRequest::All),
            ("bytes=0-1,4-5", RangeRequest::All),
            ("bytes=x-1", RangeRequest::All),
            ("bytes=-", RangeRequest::All),
            ("bytes", RangeRequest::All),
            ("lines=1-2", RangeRequest::All),
            ("bytes=99999999999999999999-", RangeRequest::All),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::RANGE, HeaderValue::from_static(range));
            assert_eq!(requested_range(&headers, "\"t\"", 10), requested, "{range}");
            headers.insert(header::IF_RANGE, HeaderValue::from_static("\"other\""));
            assert_eq!(requested_range(&headers, "\"t\"", 10), RangeRequest::All, "{range}");
        }
        let mut headers = HeaderMap::new();
        headers.insert(header::RANGE, HeaderValue::from_static("bytes=0-"));
        assert_eq!(requested_range(&headers, "", 0), RangeRequest::Unsatisfiable);
    }

    #[test]
    fn a_name_cannot_break_out_of_its_header() {
        let artifact = |name: &str| Artifact {
            id: ArtifactId::from_random([1; 16]),
            session: SessionId::from_random([2; 16]),
            run: None,
            attempt: None,
            kind: "file".into(),
            role: ArtifactRole::Result,
            uri: String::new(),
            name: Some(name.into()),
            mime_type: None,
            content_hash: None,
            size_bytes: None,
            metadata: serde_json::Map::new(),
            created_at: Time(0),
        };
        for (name, expected) in [
            ("a b.txt", "attachment; filename=\"a b.txt\"; filename*=UTF-8''a%20b.txt"),
            ("ä\"; x=\"y", "attachment; filename=\"___ x__y\"; filename*=UTF-8''%C3%A4%22%3B%20x%3D%22y"),
            ("../../etc/passwd", "attachment; filename=\"_.._etc_passwd\"; filename*=UTF-8''_.._etc_passwd"),
        ] {
            assert_eq!(content_disposition(&artifact(name)), expected);
        }
    }
}
