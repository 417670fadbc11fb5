//! Artifacts: what they are as JSON, what they hold as bytes.
//!
//! Bytes come from people and agents, so a browser is told to save them, never to show them as a page of this server.

use axum::body::Body;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, RequestPartsExt};
use futures_util::TryStreamExt;
use mainspring_api::{ArtifactListQuery, ArtifactQuery, Page};
use mainspring_core::{Artifact, ArtifactId, ArtifactRole, BadId};
use mainspring_kernel::Error;
use mainspring_kernel::kernel::{self, ArtifactsOf, NewArtifact};
use tokio::io::AsyncReadExt;
use tokio_util::io::{ReaderStream, StreamReader};
use utoipa::openapi::path::{Parameter, ParameterIn};
use utoipa::{IntoParams, ToSchema};

use crate::access::Known;
use crate::body::{Asked, Named, NamedRun, Once, PATIENCE, idempotency_key, in_path};
use crate::sessions::{page_of, place};
use crate::state::is_known;
use crate::{Http, Problem};

/// How much of an artifact that is too large is still read at most, so that whoever sends it learns why.
const DRAIN: u64 = 64 << 20;

/// The artifact that the path names.
pub(super) struct NamedArtifact(ArtifactId);

impl<S: Send + Sync> FromRequestParts<S> for NamedArtifact {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let Path(name): Path<String> =
            parts.extract().await.map_err(|_| Problem::invalid("the path names no artifact"))?;
        name.parse().map(Self).map_err(|bad: BadId| Problem::invalid(bad.to_string()))
    }
}

impl IntoParams for NamedArtifact {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![in_path("artifact", "The artifact.", "^art_[0-9a-f]{32}$")]
    }
}

/// Any bytes.
#[derive(ToSchema)]
#[schema(value_type = String, format = Binary)]
#[expect(dead_code, reason = "it documents a body")]
pub(super) struct Bytes(Vec<u8>);

/// Keeps the body as an artifact, of the `Content-Type` it says
#[utoipa::path(
    post, path = "/v1/sessions/{session}/artifacts", params(Named, ArtifactQuery, Once),
    request_body(content = Bytes, content_type = "application/octet-stream"),
    responses(
        (status = 200, description = "The same request made it before", body = Artifact, headers(("Location" = String))),
        (status = 201, description = "It is kept", body = Artifact, headers(("Location" = String))),
    ),
    extensions(("x-problems" = json!(["forbidden", "too_large", "request_conflict", "wrong_state"]))),
)]
pub(super) async fn artifact_put(
    State(http): State<Http>,
    Known(caller): Known,
    Named(by): Named,
    headers: HeaderMap,
    Asked(query): Asked<ArtifactQuery>,
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
    };
    let key = idempotency_key(&headers)?;
    let mut content = StreamReader::new(body.into_data_stream().map_err(std::io::Error::other));
    let put = http.kernel.artifact_put(&caller, &by, new, key, &mut content).await;
    if let Err(Error::TooLarge { limit, .. }) = &put {
        let patience = (limit.saturating_mul(PATIENCE) as u64).min(DRAIN);
        // Whoever has gone away needs no answer.
        let _ = tokio::io::copy(&mut content.take(patience), &mut tokio::io::sink()).await;
    }
    let (artifact, made) = put?;
    let status = if made { StatusCode::CREATED } else { StatusCode::OK };
    let place = HeaderValue::from_str(&format!("/v1/artifacts/{}", artifact.id));
    let mut response = (status, Json(artifact)).into_response();
    response.headers_mut().extend(place.into_iter().map(|place| (header::LOCATION, place)));
    Ok(response)
}

/// Artifacts of a session, the newest first
#[utoipa::path(
    get, path = "/v1/sessions/{session}/artifacts", params(Named, ArtifactListQuery),
    responses((status = 200, description = "A page", body = Page<Artifact>)),
)]
pub(super) async fn session_artifacts(
    State(http): State<Http>,
    Known(caller): Known,
    Named(by): Named,
    Asked(query): Asked<ArtifactListQuery>,
) -> Result<Json<Page<Artifact>>, Problem> {
    let (limit, before) = (query.limit, place(query.before)?);
    list(
        &http,
        http.kernel
            .artifact_list(&caller, kernel::ArtifactQuery { of: ArtifactsOf::Session(by), before, limit })
            .await,
        limit,
    )
}

/// Artifacts of a run, the newest first
#[utoipa::path(
    get, path = "/v1/runs/{run}/artifacts", params(NamedRun, ArtifactListQuery),
    responses((status = 200, description = "A page", body = Page<Artifact>)),
)]
pub(super) async fn run_artifacts(
    State(http): State<Http>,
    Known(caller): Known,
    NamedRun(run): NamedRun,
    Asked(query): Asked<ArtifactListQuery>,
) -> Result<Json<Page<Artifact>>, Problem> {
    let (limit, before) = (query.limit, place(query.before)?);
    list(
        &http,
        http.kernel
            .artifact_list(&caller, kernel::ArtifactQuery { of: ArtifactsOf::Run(run), before, limit })
            .await,
        limit,
    )
}

fn list(
    http: &Http,
    items: Result<Vec<Artifact>, Error>,
    limit: Option<usize>,
) -> Result<Json<Page<Artifact>>, Problem> {
    Ok(Json(page_of(http, items?, limit, |artifact| format!("{}.{}", artifact.created_at.0, artifact.id))))
}

/// One artifact, without its bytes
#[utoipa::path(
    get, path = "/v1/artifacts/{artifact}", params(NamedArtifact),
    responses((status = 200, description = "The artifact", body = Artifact)),
)]
pub(super) async fn artifact_get(
    State(http): State<Http>,
    Known(caller): Known,
    NamedArtifact(id): NamedArtifact,
) -> Result<Json<Artifact>, Problem> {
    Ok(Json(http.kernel.artifact_get(&caller, id).await?))
}

/// Deletes an artifact
#[utoipa::path(
    delete, path = "/v1/artifacts/{artifact}", params(NamedArtifact),
    responses((status = 204, description = "It is gone")),
    extensions(("x-problems" = json!(["forbidden", "wrong_state"]))),
)]
pub(super) async fn artifact_delete(
    State(http): State<Http>,
    Known(caller): Known,
    NamedArtifact(id): NamedArtifact,
) -> Result<StatusCode, Problem> {
    http.kernel.artifact_delete(&caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The bytes of an artifact, or the range of them that is asked for
#[utoipa::path(
    get, path = "/v1/artifacts/{artifact}/content",
    params(NamedArtifact, ("Range" = Option<String>, Header, description = "One range of bytes.")),
    responses(
        (status = 200, description = "The bytes, of the type they have", body = Bytes, content_type = "*/*", headers(("ETag" = String))),
        (status = 206, description = "The range of them", body = Bytes, content_type = "*/*", headers(("ETag" = String))),
        (status = 304, description = "They are as they were"),
    ),
    extensions(("x-problems" = json!(["range_not_satisfiable"]))),
)]
pub(super) async fn artifact_content(
    State(http): State<Http>,
    Known(caller): Known,
    NamedArtifact(id): NamedArtifact,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let artifact = http.kernel.artifact_get(&caller, id).await?;
    let tag = format!("\"{}\"", artifact.content_hash.as_deref().unwrap_or_default());
    if artifact.content_hash.is_some() && is_known(&headers, &tag) {
        return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response());
    }
    let size = artifact.size_bytes.unwrap_or(0);
    let (status, from, length) = match asked_range(&headers, &tag, size) {
        Asks::All => (StatusCode::OK, 0, size),
        Asks::Part { from, length } => (StatusCode::PARTIAL_CONTENT, from, length),
        Asks::Beyond => return Ok(beyond(size)),
    };
    let (artifact, bytes) = http.kernel.artifact_read(&caller, id, from, Some(length)).await?;
    let mut response = (status, Body::from_stream(ReaderStream::new(bytes))).into_response();
    let kind = artifact.mime_type.as_deref().unwrap_or("application/octet-stream");
    let mut told: Vec<(HeaderName, String)> = vec![
        (header::CONTENT_TYPE, kind.to_owned()),
        (header::CONTENT_LENGTH, length.to_string()),
        (header::CONTENT_DISPOSITION, disposition(&artifact)),
        (header::ETAG, tag),
        (header::ACCEPT_RANGES, "bytes".into()),
        (header::CACHE_CONTROL, "private, no-cache".into()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".into()),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox".into()),
    ];
    if status == StatusCode::PARTIAL_CONTENT {
        told.push((header::CONTENT_RANGE, format!("bytes {from}-{}/{size}", from + length - 1)));
    }
    let told = told.into_iter().filter_map(|(name, value)| Some((name, HeaderValue::try_from(value).ok()?)));
    response.headers_mut().extend(told);
    Ok(response)
}

/// What of the bytes is asked for.
#[derive(Debug, PartialEq, Eq)]
enum Asks {
    All,
    Part { from: u64, length: u64 },
    Beyond,
}

/// Reads `Range`. What is not one range of bytes, or is meant for other content (`If-Range`), asks for all.
fn asked_range(headers: &HeaderMap, tag: &str, size: u64) -> Asks {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?").trim());
    if text(header::IF_RANGE).is_some_and(|known| known != tag) {
        return Asks::All;
    }
    let range = text(header::RANGE).and_then(|range| range.strip_prefix("bytes=")?.trim().split_once('-'));
    let number =
        |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
    let (first, last) = match range.map(|(first, last)| (first.trim(), last.trim())) {
        Some(("", last)) => match number(last) {
            Some(count) => (Some(size.saturating_sub(count)), Some(u64::MAX)),
            None => return Asks::All,
        },
        Some((first, "")) => (number(first), Some(u64::MAX)),
        Some((first, last)) => (number(first), number(last)),
        None => return Asks::All,
    };
    match (first, last) {
        (Some(first), Some(last)) if first < size && first <= last => {
            Asks::Part { from: first, length: last.min(size - 1) - first + 1 }
        }
        (Some(first), Some(last)) if first <= last => Asks::Beyond,
        _ => Asks::All,
    }
}

fn beyond(size: u64) -> Response {
    let detail = format!("the content has {size} bytes");
    let mut response =
        Problem::new(StatusCode::RANGE_NOT_SATISFIABLE, "range_not_satisfiable", detail).into_response();
    let range = HeaderValue::try_from(format!("bytes */{size}"));
    response.headers_mut().extend(range.into_iter().map(|range| (header::CONTENT_RANGE, range)));
    response
}

/// To be saved, under a name that is a file name and nothing else anywhere.
fn disposition(artifact: &Artifact) -> String {
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
        let part = |from, length| Asks::Part { from, length };
        for (range, asks) in [
            ("bytes=0-3", part(0, 4)),
            ("bytes=4-", part(4, 6)),
            ("bytes=-3", part(7, 3)),
            ("bytes=-30", part(0, 10)),
            ("bytes=8-99", part(8, 2)),
            ("bytes=10-", Asks::Beyond),
            ("bytes=-0", Asks::Beyond),
            ("bytes=3-2", Asks::All),
            ("bytes=0-1,4-5", Asks::All),
            ("bytes=x-1", Asks::All),
            ("bytes=-", Asks::All),
            ("bytes", Asks::All),
            ("lines=1-2", Asks::All),
            ("bytes=99999999999999999999-", Asks::All),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::RANGE, HeaderValue::from_static(range));
            assert_eq!(asked_range(&headers, "\"t\"", 10), asks, "{range}");
            headers.insert(header::IF_RANGE, HeaderValue::from_static("\"other\""));
            assert_eq!(asked_range(&headers, "\"t\"", 10), Asks::All, "{range}");
        }
        let mut headers = HeaderMap::new();
        headers.insert(header::RANGE, HeaderValue::from_static("bytes=0-"));
        assert_eq!(asked_range(&headers, "", 0), Asks::Beyond);
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
            created_at: Time(0),
        };
        for (name, disposed) in [
            ("a b.txt", "attachment; filename=\"a b.txt\"; filename*=UTF-8''a%20b.txt"),
            ("ä\"; x=\"y", "attachment; filename=\"___ x__y\"; filename*=UTF-8''%C3%A4%22%3B%20x%3D%22y"),
            ("../../etc/passwd", "attachment; filename=\"_.._etc_passwd\"; filename*=UTF-8''_.._etc_passwd"),
        ] {
            assert_eq!(disposition(&artifact(name)), disposed);
        }
    }
}
