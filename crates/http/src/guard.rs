//! Protection against DNS rebinding and cross-site requests: a foreign web page must not reach a local server.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::{Http, Problem, cors};

/// Refuses requests that a browser sends for another site: the `Host` must be local or allowed, and the `Origin`, if
/// there is one, must be that host, an allowed one, or an origin whose pages may call this server.
pub(super) async fn check_origin(State(http): State<Http>, request: Request, next: Next) -> Response {
    let origin = cors::allowed_origin(request.headers(), &http.origins);
    let response = match refusal(request.headers(), &http.hosts, origin.is_some()) {
        Some(problem) => problem.into_response(),
        None => match origin.as_ref().and_then(|_| cors::preflight(request.method(), request.headers())) {
            Some(answer) => answer,
            None => next.run(request).await,
        },
    };
    match origin {
        Some(origin) => cors::allow(response, origin),
        None => response,
    }
}

fn refusal(headers: &HeaderMap, hosts: &[String], is_origin_allowed: bool) -> Option<Problem> {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = text(header::HOST);
    let is_allowed = |host: &str| hosts.iter().any(|known| known.eq_ignore_ascii_case(name_of(host)));
    if let Some(name) = host.filter(|host| !is_local(host) && !is_allowed(host)) {
        let detail = format!(
            "the host {name:?} is not this machine: use localhost or a loopback address, or name it in allowed_hosts"
        );
        return Some(Problem::new(StatusCode::FORBIDDEN, "forbidden_host", detail));
    }
    // A proxy may forward a `Host` that differs from its public name.
    let same = |origin: &&str| {
        origin.split_once("://").is_some_and(|(_, rest)| Some(rest) == host || is_allowed(rest))
    };
    let origin = text(header::ORIGIN).filter(|origin| !is_origin_allowed && !same(origin))?;
    let detail = format!(
        "the origin {origin:?} is another site: name it in cors_origins if its pages may call this server"
    );
    Some(Problem::new(StatusCode::FORBIDDEN, "forbidden_origin", detail))
}

/// Returns the name in `NAME:PORT`.
fn name_of(host: &str) -> &str {
    let name = match host.rsplit_once(':') {
        // A bare IPv6 address has colons of its own and no port.
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    };
    name.trim_start_matches('[').trim_end_matches(']')
}

fn is_local(host: &str) -> bool {
    let name = name_of(host);
    name.eq_ignore_ascii_case("localhost")
        || name.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_names_are_accepted_as_hosts_and_origins() {
        let hosts = ["agents.example.com".to_owned(), "10.0.0.7".to_owned()];
        let refused = |host: &str, origin: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            origin.map(|origin| headers.insert(header::ORIGIN, origin.parse().unwrap()));
            refusal(&headers, &hosts, false).map(|problem| problem.code)
        };
        for (host, origin, code) in [
            ("agents.example.com", None, None),
            ("Agents.Example.com:8443", None, None),
            ("10.0.0.7:7433", None, None),
            ("example.com", None, Some("forbidden_host")),
            ("evil.agents.example.com", None, Some("forbidden_host")),
            ("10.0.0.8", None, Some("forbidden_host")),
            ("agents.example.com", Some("https://agents.example.com"), None),
            ("127.0.0.1:7433", Some("https://agents.example.com"), None),
            ("agents.example.com", Some("https://evil.example"), Some("forbidden_origin")),
            ("agents.example.com", Some("http://localhost:3000"), Some("forbidden_origin")),
            ("localhost:7433", Some("null"), Some("forbidden_origin")),
        ] {
            assert_eq!(refused(host, origin), code, "{host} {origin:?}");
        }
    }

    #[test]
    fn only_localhost_and_loopback_addresses_are_local() {
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
