//! Cross-origin requests: web pages of configured origins may call the API.
//!
//! A page sends its key or token itself, as every client does. Nothing that a browser adds by itself authenticates a
//! request, so credentials are never allowed for other origins.

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};

const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, PUT, PATCH, DELETE");
const REQUEST_HEADERS: HeaderValue = HeaderValue::from_static(
    "authorization, content-type, idempotency-key, if-match, if-none-match, last-event-id, mainspring-owner, \
     mainspring-host, mcp-protocol-version, mcp-session-id, prefer, range",
);
const RESPONSE_HEADERS: HeaderValue = HeaderValue::from_static(
    "content-disposition, content-range, etag, location, mainspring-history, mcp-session-id, retry-after",
);
/// Seconds that a browser remembers the answer to a preflight.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");

/// The `Origin` of a request, if it is one of `origins`.
pub(super) fn allowed_origin(headers: &HeaderMap, origins: &[String]) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    let text = origin.to_str().ok()?;
    origins.iter().any(|known| known.eq_ignore_ascii_case(text)).then(|| origin.clone())
}

/// The answer to a preflight of an allowed origin; none for another request.
pub(super) fn preflight(method: &Method, headers: &HeaderMap) -> Option<Response> {
    let is_preflight =
        method == Method::OPTIONS && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    is_preflight.then(|| {
        let allowed = [
            (header::ACCESS_CONTROL_ALLOW_METHODS, METHODS),
            (header::ACCESS_CONTROL_ALLOW_HEADERS, REQUEST_HEADERS),
            (header::ACCESS_CONTROL_MAX_AGE, MAX_AGE),
        ];
        (StatusCode::NO_CONTENT, allowed).into_response()
    })
}

/// Lets the page of `origin` read `response`.
pub(super) fn allow(mut response: Response, origin: HeaderValue) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, RESPONSE_HEADERS);
    headers.append(header::VARY, HeaderValue::from_static("origin"));
    response
}
