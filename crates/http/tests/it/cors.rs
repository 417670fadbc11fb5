//! Web pages of other origins.

use std::collections::BTreeSet;

use axum::http::{Method, StatusCode};
use mainspring_test_support::TestNode;

use crate::world::{RequestBuilder, Response, Server};

const PAGE: &str = "https://app.example.com";

async fn server() -> Server {
    Server::with(TestNode::builder().edge(|http| http.with_origins(&[PAGE.to_owned()]))).await
}

fn preflight(server: &Server, origin: &str) -> RequestBuilder {
    let request = server.anonymous(Method::OPTIONS, "/v1/runs").header("origin", origin);
    request.header("access-control-request-method", "POST")
}

#[tokio::test]
async fn pages_of_configured_origins_may_call_the_api() {
    let server = server().await;
    let answer = preflight(&server, PAGE).send().await;
    assert_eq!(answer.status(), StatusCode::NO_CONTENT);
    let header = |name: &str| answer.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    assert_eq!(header("access-control-allow-origin").as_deref(), Some(PAGE));
    assert!(header("access-control-allow-headers").unwrap().contains("authorization"));
    assert!(header("access-control-allow-methods").unwrap().contains("PATCH"));
    assert_eq!(header("access-control-allow-credentials"), None);
    assert_eq!(header("vary").as_deref(), Some("origin"));
    let answer = server.request(Method::GET, "/v1/sessions").header("origin", PAGE).send().await;
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()["access-control-allow-origin"], PAGE);
    // A page sees why it is refused.
    let answer = server.anonymous(Method::GET, "/v1/sessions").header("origin", PAGE).send().await;
    assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(answer.headers()["access-control-allow-origin"], PAGE);
}

#[tokio::test]
async fn pages_of_other_origins_may_not_call_the_api() {
    let server = server().await;
    for origin in [
        "https://evil.example",
        "http://app.example.com",
        "https://app.example.com:8443",
        "https://app.example.com.evil.example",
        "https://app.example.com/",
        "null",
        "*",
    ] {
        for request in
            [preflight(&server, origin), server.request(Method::GET, "/v1/sessions").header("origin", origin)]
        {
            let answer = request.send().await;
            assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{origin}");
            assert!(!answer.headers().contains_key("access-control-allow-origin"), "{origin}");
        }
    }
    // An allowed origin does not allow a foreign Host header.
    let rebound = server.request(Method::GET, "/v1/sessions").header("host", "evil.example");
    let answer = rebound.header("origin", PAGE).send().await;
    assert_eq!(answer.status(), StatusCode::FORBIDDEN);
}

/// The names in a list of headers.
fn names(answer: &Response, header: &str) -> BTreeSet<String> {
    answer.headers()[header].to_str().unwrap().split(", ").map(str::to_owned).collect()
}

#[tokio::test]
async fn pages_of_other_origins_send_and_read_every_documented_header() {
    let server = server().await;
    let document = server.get("/openapi.json").await.1;
    let operations =
        document["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap());
    let (mut sent, mut read) = (BTreeSet::new(), BTreeSet::from(["mainspring-history".to_owned()]));
    for (_, operation) in operations {
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        let headers = parameters.filter(|parameter| parameter["in"] == "header");
        sent.extend(headers.map(|header| header["name"].as_str().unwrap().to_lowercase()));
        let answers = operation["responses"].as_object().unwrap().values();
        let headers = answers.flat_map(|answer| answer["headers"].as_object()).flatten();
        read.extend(headers.map(|(name, _)| name.to_lowercase()));
    }
    // No page of another origin has a sign-in of this server's page. A browser never shows it a cookie, and a refused
    // credential shows in the status.
    read.retain(|name| !["set-cookie", "www-authenticate"].contains(&name.as_str()));
    assert!(sent.contains("prefer") && read.contains("etag"), "{sent:?} {read:?}");
    let allowed = names(&preflight(&server, PAGE).send().await, "access-control-allow-headers");
    assert_eq!(sent.difference(&allowed).collect::<Vec<_>>(), [""; 0]);
    let answer = server.request(Method::GET, "/v1/sessions").header("origin", PAGE).send().await;
    let exposed = names(&answer, "access-control-expose-headers");
    assert_eq!(read.difference(&exposed).collect::<Vec<_>>(), [""; 0]);
}
