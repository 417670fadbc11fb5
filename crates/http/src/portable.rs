//! Export and import of sessions as files: `/v1/sessions/{session}/export`, `/v1/import`.

use axum::body::{Body, BodyDataStream};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use mainspring_core::Session;
use mainspring_kernel::kernel::Caller;

use crate::access::Authenticated;
use crate::body::SessionPath;
use crate::sessions::TaggedSession;
use crate::{Http, Problem};

const JSONL_MEDIA_TYPE: &str = "application/jsonl";
/// Bytes of a refused file that are still read, so that the client gets the problem.
const DRAIN_MAX_BYTES: usize = 64 << 20;

/// Exports a session as JSON Lines; an incomplete file has no `end` line
#[utoipa::path(
    get, path = "/v1/sessions/{session}/export", params(SessionPath),
    responses((status = 200, description = "The exported session", body = String, content_type = "application/jsonl")),
    extensions(("x-problems" = json!(["session_busy"]))),
)]
pub(super) async fn session_export(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    SessionPath(by): SessionPath,
) -> Result<Response, Problem> {
    let export = http.kernel.session_export(&caller, &by).await?;
    let name = format!("attachment; filename=\"{}.jsonl\"", export.session().id);
    let chunks = stream::try_unfold(export, async |mut export| match export.next().await {
        Ok(Some(lines)) => Ok(Some((lines, export))),
        Ok(None) => Ok(None),
        Err(error) => {
            tracing::warn!(%error, session = %export.session().id, "export ended with an error");
            Err(error)
        }
    });
    let mut response = Body::from_stream(chunks).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(JSONL_MEDIA_TYPE));
    headers.extend(HeaderValue::from_str(&name).into_iter().map(|name| (header::CONTENT_DISPOSITION, name)));
    Ok(response)
}

async fn import(http: &Http, caller: &Caller, chunks: &mut BodyDataStream) -> Result<Session, Problem> {
    let mut import = http.kernel.session_import(caller)?;
    let limit = http.kernel.limits().import_bytes;
    let mut size = 0_usize;
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| Problem::invalid(format!("the body ended early: {error}")))?;
        size = size.saturating_add(chunk.len());
        if size > limit {
            return Err(mainspring_kernel::Error::TooLarge { what: "the file", size, limit }.into());
        }
        import.push(&chunk).await?;
    }
    Ok(import.finish().await?)
}

/// Imports a session from a file, completely or not at all
#[utoipa::path(
    post, path = "/v1/import", request_body(content = String, content_type = "application/jsonl"),
    responses((status = 201, description = "The new session", body = Session, headers(("ETag" = String), ("Location" = String)))),
    extensions(("x-problems" = json!(["forbidden", "invalid_import", "already_exists"]))),
)]
pub(super) async fn session_import(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Problem> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if ![JSONL_MEDIA_TYPE, "application/x-ndjson", "application/x-jsonlines"].contains(&kind) {
        let detail = format!("send the file as {JSONL_MEDIA_TYPE}");
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", detail));
    }
    let mut chunks = request.into_body().into_data_stream();
    let session = match import(&http, &caller, &mut chunks).await {
        Ok(session) => session,
        Err(problem) => {
            // Clients read the response only after sending the whole file, so the rest is drained up to a limit.
            let mut left = DRAIN_MAX_BYTES;
            while let Some(Ok(chunk)) = chunks.next().await {
                left = left.saturating_sub(chunk.len());
                if left == 0 {
                    break;
                }
            }
            return Err(problem);
        }
    };
    let location = HeaderValue::from_str(&format!("/v1/sessions/{}", session.id));
    let mut response = (StatusCode::CREATED, TaggedSession(session)).into_response();
    response.headers_mut().extend(location.into_iter().map(|location| (header::LOCATION, location)));
    Ok(response)
}
