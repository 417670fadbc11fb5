//! Sessions as files: `/v1/sessions/{session}/export`, `/v1/import`.

use axum::body::{Body, BodyDataStream};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use mainspring_core::Session;
use mainspring_kernel::kernel::Caller;

use crate::access::Known;
use crate::body::Named;
use crate::sessions::Tagged;
use crate::{Http, Problem};

const JSONL: &str = "application/jsonl";
/// How many bytes of a file that was refused are still read.
const PATIENCE: usize = 64 << 20;

/// A session as a file of JSON Lines; one that breaks off has no `end` line
#[utoipa::path(
    get, path = "/v1/sessions/{session}/export", params(Named),
    responses((status = 200, description = "The file", body = String, content_type = "application/jsonl")),
    extensions(("x-problems" = json!(["session_busy"]))),
)]
pub(super) async fn session_export(
    State(http): State<Http>,
    Known(caller): Known,
    Named(by): Named,
) -> Result<Response, Problem> {
    let export = http.kernel.session_export(&caller, &by).await?;
    let name = format!("attachment; filename=\"{}.jsonl\"", export.session().id);
    let chunks = stream::try_unfold(export, async |mut export| match export.next().await {
        Ok(Some(lines)) => Ok(Some((lines, export))),
        Ok(None) => Ok(None),
        Err(error) => {
            tracing::warn!(%error, session = %export.session().id, "an export broke off");
            Err(error)
        }
    });
    let mut response = Body::from_stream(chunks).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(JSONL));
    headers.extend(HeaderValue::from_str(&name).into_iter().map(|name| (header::CONTENT_DISPOSITION, name)));
    Ok(response)
}

async fn read(http: &Http, caller: &Caller, chunks: &mut BodyDataStream) -> Result<Session, Problem> {
    let mut import = http.kernel.session_import(caller)?;
    let limit = http.kernel.limits().import_bytes;
    let mut size = 0_usize;
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| Problem::invalid(format!("the body broke off: {error}")))?;
        size = size.saturating_add(chunk.len());
        if size > limit {
            return Err(mainspring_kernel::Error::TooLarge { what: "the file", size, limit }.into());
        }
        import.push(&chunk).await?;
    }
    Ok(import.finish().await?)
}

/// Makes a session of a file, all of it or nothing
#[utoipa::path(
    post, path = "/v1/import", request_body(content = String, content_type = "application/jsonl"),
    responses((status = 201, description = "It was made", body = Session, headers(("ETag" = String), ("Location" = String)))),
    extensions(("x-problems" = json!(["forbidden", "invalid_import", "already_exists"]))),
)]
pub(super) async fn session_import(
    State(http): State<Http>,
    Known(caller): Known,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Problem> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if ![JSONL, "application/x-ndjson", "application/x-jsonlines"].contains(&kind) {
        let detail = format!("send the file as {JSONL}");
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", detail));
    }
    let mut chunks = request.into_body().into_data_stream();
    let session = match read(&http, &caller, &mut chunks).await {
        Ok(session) => session,
        Err(problem) => {
            // Whoever sends a file reads the answer once it is sent: what is left of it is read, up to a point.
            let mut left = PATIENCE;
            while let Some(Ok(chunk)) = chunks.next().await {
                left = left.saturating_sub(chunk.len());
                if left == 0 {
                    break;
                }
            }
            return Err(problem);
        }
    };
    let place = HeaderValue::from_str(&format!("/v1/sessions/{}", session.id));
    let mut response = (StatusCode::CREATED, Tagged(session)).into_response();
    response.headers_mut().extend(place.into_iter().map(|place| (header::LOCATION, place)));
    Ok(response)
}
