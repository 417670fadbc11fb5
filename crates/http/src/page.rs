//! The web page at `/`: static files of the folder `page`, for browsers.
//!
//! Release builds embed the files; debug builds read them from disk, so a reload shows a change. The page uses the
//! public API like any other client. It is no part of the OpenAPI document and needs no credentials: the files are
//! the same for everybody and contain no data.

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use rust_embed::Embed;

use crate::state::matches_etag;
use crate::{Http, problem};

#[derive(Embed)]
#[folder = "page"]
struct Files;

/// Scripts, styles and requests only from this server, nothing inline, no frames: text that an agent wrote cannot run
/// or load anything, even if it became markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
    connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HEADERS: [(&str, &str); 7] = [
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    // Files keep their names across versions, so a browser asks each time and gets a 304.
    ("cache-control", "no-cache"),
];

/// Builds the routes of the page. They are outside of `/v1`, so they hide no endpoint.
pub(super) fn router() -> Router<Http> {
    let folder = |folder: &'static str| {
        get(move |Path(name): Path<String>, headers: HeaderMap| async move {
            file(&format!("{folder}/{name}"), &headers).await
        })
    };
    let top = |name: &'static str| get(move |headers: HeaderMap| async move { file(name, &headers).await });
    Router::new()
        .route("/", top("index.html"))
        .route("/icon.svg", top("icon.svg"))
        .route("/style.css", top("style.css"))
        .route("/views.css", top("views.css"))
        .route("/app/{*name}", folder("app"))
        .route("/vendor/{*name}", folder("vendor"))
}

/// Answers with a file of the page, or 304 if the browser has it; 404 if there is none.
async fn file(name: &str, headers: &HeaderMap) -> Response {
    let (Some(kind), Some(file)) = (content_type(name), Files::get(name)) else {
        return problem::no_such_endpoint().await.into_response();
    };
    let hash = file.metadata.sha256_hash();
    let tag = format!("\"{}\"", hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    let body = match matches_etag(headers, &tag) {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => ([(header::CONTENT_TYPE, kind)], file.data).into_response(),
    };
    (HEADERS, [(header::ETAG, tag)], body).into_response()
}

/// Returns the content type of a file that the page loads; other files of the folder are not served.
fn content_type(name: &str) -> Option<&'static str> {
    // A debug build reads from disk: no name may lead to another folder.
    if name.split('/').any(|part| part.is_empty() || part.starts_with('.')) {
        return None;
    }
    match name.rsplit_once('.')?.1 {
        "html" => Some("text/html; charset=utf-8"),
        "js" => Some("text/javascript; charset=utf-8"),
        "css" => Some("text/css; charset=utf-8"),
        "svg" => Some("image/svg+xml"),
        "txt" => Some("text/plain; charset=utf-8"),
        _ => None,
    }
}
