//! The web page at `/`: static files of the folder `page`, for browsers.
//!
//! Release builds embed the files; debug builds read them from disk, so a reload shows a change. The page uses the
//! public API like any other client. It is no part of the OpenAPI document and needs no credentials: the files are
//! the same for everybody and contain no data.

use std::collections::HashMap;
use std::io::Write;
use std::sync::LazyLock;

use axum::Router;
use axum::body::Bytes;
use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;
use parking_lot::Mutex;
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

const HEADERS: [(&str, &str); 8] = [
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    // Files keep their names across versions, so a browser asks each time and gets a 304.
    ("cache-control", "no-cache"),
    ("vary", "accept-encoding"),
];

/// The compressed files, by their hash. The files are few, so nothing is ever removed.
static COMPRESSED: LazyLock<Mutex<HashMap<[u8; 32], Bytes>>> = LazyLock::new(Mutex::default);

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
    let gzipped = accepts_gzip(headers).then(|| compressed(hash, &file.data)).flatten();
    let digits = hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let tag = if gzipped.is_some() { format!("\"{digits}-gzip\"") } else { format!("\"{digits}\"") };
    let body = match (matches_etag(headers, &tag), gzipped) {
        (true, _) => StatusCode::NOT_MODIFIED.into_response(),
        (false, None) => ([(header::CONTENT_TYPE, kind)], file.data).into_response(),
        (false, Some(bytes)) => {
            let headers = [(header::CONTENT_TYPE, kind), (header::CONTENT_ENCODING, "gzip")];
            (headers, bytes).into_response()
        }
    };
    (HEADERS, [(header::ETAG, tag)], body).into_response()
}

/// True if the browser takes compressed answers.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let mut codings = values.flat_map(|value| value.split(','));
    codings.any(|coding| {
        let (name, quality) = coding.split_once(';').unwrap_or((coding, ""));
        let quality = quality.trim().strip_prefix("q=").and_then(|q| q.parse::<f32>().ok());
        name.trim().eq_ignore_ascii_case("gzip") && quality.is_none_or(|quality| quality > 0.0)
    })
}

/// Returns a file compressed. Each content is compressed once.
fn compressed(hash: [u8; 32], data: &[u8]) -> Option<Bytes> {
    if let Some(known) = COMPRESSED.lock().get(&hash) {
        return Some(known.clone());
    }
    let mut encoder = GzEncoder::new(vec![], Compression::best());
    encoder.write_all(data).ok()?;
    let bytes = Bytes::from(encoder.finish().ok()?);
    COMPRESSED.lock().insert(hash, bytes.clone());
    Some(bytes)
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
