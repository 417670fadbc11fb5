//! Against rebinding: a page of somebody else's must not reach a server on this machine.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Problem;

/// Refuses requests that a browser sends for another site: a `Host` that is no address of this machine, or an
/// `Origin` that is not the host itself.
pub(super) async fn check_origin(request: Request, next: Next) -> Response {
    match foreign(request.headers()) {
        Some(problem) => problem.into_response(),
        None => next.run(request).await,
    }
}

fn foreign(headers: &HeaderMap) -> Option<Problem> {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = text(header::HOST);
    if let Some(name) = host.filter(|host| !is_local(host)) {
        let detail = format!("the host {name:?} is not this machine: use localhost or a loopback address");
        return Some(Problem::new(StatusCode::FORBIDDEN, "forbidden_host", detail));
    }
    let same = |origin: &&str| origin.split_once("://").map(|(_, rest)| rest) == host;
    let origin = text(header::ORIGIN).filter(|origin| !same(origin))?;
    let detail = format!("the origin {origin:?} is another site");
    Some(Problem::new(StatusCode::FORBIDDEN, "forbidden_origin", detail))
}

fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        // A bare IPv6 address has colons of its own and no port.
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || name.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_local() {
        for host in [
            "localhost",
            "localhost:7070",
            "LOCALHOST:1",
            "127.0.0.1",
            "127.0.0.1:80",
            "127.9.9.9",
            "[::1]:80",
            "::1",
        ] {
            assert!(is_local(host), "{host}");
        }
        for host in [
            "example.com",
            "localhost.example.com",
            "127.0.0.1.example.com",
            "10.0.0.1",
            "0.0.0.0",
            "",
            "[::2]:80",
        ] {
            assert!(!is_local(host), "{host}");
        }
    }
}
