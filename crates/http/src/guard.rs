//! Protection against DNS rebinding and cross-site requests: a foreign web page must not reach a local server.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use mainspring_api::header_name;

use crate::sign_in::{PAGE_HEADER, SITE_HEADER};
use crate::{Http, Problem, cors};

/// Headers that determine the sender of a request, the owner that it acts for, the request that it repeats, or the data
/// that it reads and changes. If a header is sent twice, some proxies and programs read the first and some the last, so a
/// repeated header is refused.
const DECIDING: [&str; 11] = [
    "authorization",
    header_name::OWNER,
    PAGE_HEADER,
    SITE_HEADER,
    header_name::HOST,
    header_name::IDEMPOTENCY_KEY,
    "host",
    "origin",
    "if-match",
    header_name::LAST_EVENT_ID,
    "content-type",
];

/// How this server is reached.
#[derive(Debug, Clone, Copy)]
pub(super) struct Site<'a> {
    /// Host names besides those of this machine.
    pub(super) hosts: &'a [String],
    /// True if the server speaks HTTPS itself.
    pub(super) is_tls: bool,
}

impl Site<'_> {
    fn is_allowed(self, host: &str) -> bool {
        self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name_of(host)))
    }

    /// True for the origin of pages that this server itself serves as `host`.
    pub(super) fn is_own_origin(self, origin: &str, host: &str) -> bool {
        let Some((scheme, rest)) = origin.split_once("://") else { return false };
        rest == host && self.is_own_scheme(scheme, self.is_allowed(host))
    }

    /// True for a scheme of this server's pages. A server without TLS cannot know whether a proxy for an
    /// allowed name has TLS, so it accepts `https` there too.
    fn is_own_scheme(self, scheme: &str, is_allowed: bool) -> bool {
        match scheme {
            "https" => self.is_tls || is_allowed,
            "http" => !self.is_tls,
            _ => false,
        }
    }
}

/// Refuses requests that a browser sends for another site: the `Host` must be local or allowed, and the `Origin`, if
/// there is one, must be that host, an allowed one, or an origin whose pages may call this server.
pub(super) async fn check_origin(State(http): State<Http>, request: Request, next: Next) -> Response {
    checked(http.site(), &http.origins, request, |request| next.run(request)).await
}

/// Answers a request with `answer`, unless a browser sends it for another site.
pub(super) async fn checked<F: Future<Output = Response>>(
    site: Site<'_>,
    origins: &[String],
    request: Request,
    answer: impl FnOnce(Request) -> F,
) -> Response {
    let origin = cors::allowed_origin(request.headers(), origins);
    let refusal =
        repeated_header(request.headers()).or_else(|| refusal(request.headers(), site, origin.is_some()));
    let response = match refusal {
        Some(problem) => problem.into_response(),
        None => match origin.as_ref().and_then(|_| cors::preflight(request.method(), request.headers())) {
            Some(preflight) => preflight,
            None => answer(request).await,
        },
    };
    match origin {
        Some(origin) => cors::allow(response, origin),
        None => response,
    }
}

/// Refuses a request that has one of the [`DECIDING`] headers twice.
fn repeated_header(headers: &HeaderMap) -> Option<Problem> {
    let repeated = DECIDING.into_iter().find(|name| headers.get_all(*name).iter().count() > 1)?;
    Some(Problem::invalid(format!("the header {repeated} is there twice: send it once")))
}

fn refusal(headers: &HeaderMap, site: Site<'_>, is_origin_allowed: bool) -> Option<Problem> {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = text(header::HOST);
    if let Some(name) = host.filter(|host| !is_local(host) && !site.is_allowed(host)) {
        let detail = format!(
            "the host {name:?} is not this machine: use localhost or a loopback address, or name it in allowed_hosts"
        );
        return Some(Problem::new(StatusCode::FORBIDDEN, "forbidden_host", detail));
    }
    // A proxy may forward a `Host` that differs from its public name.
    let is_public = |origin: &str| {
        let parts = origin.split_once("://");
        parts.is_some_and(|(scheme, rest)| site.is_allowed(rest) && site.is_own_scheme(scheme, true))
    };
    let same = |origin: &&str| host.is_some_and(|host| site.is_own_origin(origin, host)) || is_public(origin);
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
        let refused_by = |is_tls: bool, host: &str, origin: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            origin.map(|origin| headers.insert(header::ORIGIN, origin.parse().unwrap()));
            refusal(&headers, Site { hosts: &hosts, is_tls }, false).map(|problem| problem.code)
        };
        let refused = |host: &str, origin: Option<&str>| refused_by(false, host, origin);
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
        // The scheme is a part of the origin.
        for (is_tls, host, origin, is_own) in [
            (false, "localhost:7433", "http://localhost:7433", true),
            (false, "localhost:7433", "https://localhost:7433", false),
            (false, "localhost:7433", "ftp://localhost:7433", false),
            (true, "localhost:7433", "https://localhost:7433", true),
            (true, "localhost:7433", "http://localhost:7433", false),
            (true, "agents.example.com", "http://agents.example.com", false),
            (true, "localhost:7433", "http://agents.example.com", false),
            (true, "agents.example.com", "https://agents.example.com", true),
        ] {
            assert_eq!(refused_by(is_tls, host, Some(origin)).is_none(), is_own, "{is_tls} {host} {origin}");
        }
    }

    #[test]
    fn a_repeated_deciding_header_is_refused() {
        for name in DECIDING {
            let mut headers = HeaderMap::new();
            headers.append(name, "a".parse().unwrap());
            assert!(repeated_header(&headers).is_none(), "{name}");
            headers.append(name, "b".parse().unwrap());
            assert_eq!(
                repeated_header(&headers).map(|problem| problem.code),
                Some("invalid_request"),
                "{name}"
            );
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
