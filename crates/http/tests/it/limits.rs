//! Limits on concurrent requests and streams, on headers, on time and on bytes.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{Method, StatusCode};
use futures_util::stream;
use mainspring_http::HttpLimits;
use mainspring_test_support::{TOKEN, TestNode};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::world::{Response, Server, send_request};

/// Repeats a request until its status is `wanted`.
async fn retry_until(server: &Server, path: &str, wanted: StatusCode) -> Response {
    let retried = async {
        loop {
            let response = server.request(Method::GET, path).send().await;
            if response.status() == wanted {
                return response;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), retried).await.unwrap()
}

/// Sends raw bytes and reads until the server closes the connection.
async fn send_raw(mut stream: impl AsyncRead + AsyncWrite + Unpin, sent: &str) -> String {
    stream.write_all(sent.as_bytes()).await.unwrap();
    let mut read = String::new();
    let reading = stream.read_to_string(&mut read);
    tokio::time::timeout(Duration::from_secs(15), reading).await.expect("closed in time").unwrap();
    read
}

async fn with_limits(limits: HttpLimits) -> Server {
    Server::with(TestNode::builder().limits(limits)).await
}

#[tokio::test]
async fn concurrent_requests_are_limited() {
    let server = with_limits(HttpLimits { requests: 1, ..HttpLimits::default() }).await;
    server.prompt("a", "say begun; hang").await;
    // A stream does not count as a request once it has begun.
    let _stream = server.stream("/v1/sessions/a/events", Some("0.0")).await;
    assert_eq!(server.get("/v1/sessions").await.0, StatusCode::OK);

    let slow = async {
        loop {
            let body = Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
            let request = server.request(Method::POST, "/v1/runs").header("content-type", "application/json");
            // A concurrent probe may have taken the free place.
            let status = request.body(body).send().await.status();
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "the body never ends");
        }
    };
    let refused = tokio::select! {
        () = slow => unreachable!(),
        refused = retry_until(&server, "/v1/sessions", StatusCode::SERVICE_UNAVAILABLE) => {
            for open in ["/health", "/ready", "/metrics", "/openapi.json"] {
                assert_eq!(server.get(open).await.0, StatusCode::OK, "{open} still answers");
            }
            refused
        }
    };
    assert_eq!(refused.headers()["retry-after"], "1");
    let problem = refused.json().await;
    assert_eq!((&problem["code"], &problem["retryable"]), (&json!("overloaded"), &json!(true)));
    // The request that was under way was dropped.
    retry_until(&server, "/v1/sessions", StatusCode::OK).await;
}

#[tokio::test]
async fn streams_are_limited_per_session_and_in_total() {
    let limits = HttpLimits { streams: 2, session_streams: 1, ..HttpLimits::default() };
    let server = with_limits(limits).await;
    for key in ["a", "b", "c"] {
        server.prompt(key, "say hi").await;
    }
    let open =
        |path: &str| send_request(server.request(Method::GET, path).header("accept", "text/event-stream"));
    let first = server.stream("/v1/sessions/a/events", None).await;
    let (status, problem) = open("/v1/sessions/a/events?after=0.0").await;
    assert_eq!((status, &problem["code"]), (StatusCode::TOO_MANY_REQUESTS, &json!("too_many_streams")));
    let _second = server.stream("/v1/sessions/b/events", None).await;
    for path in ["/v1/sessions/c/events?after=0.0", "/v1/feed"] {
        let (status, problem) = open(path).await;
        assert_eq!(
            (status, &problem["code"]),
            (StatusCode::SERVICE_UNAVAILABLE, &json!("overloaded")),
            "{path}"
        );
    }
    let (_, metrics) = server.get("/metrics").await;
    assert!(metrics.as_str().unwrap().contains("mainspring_http_streams 2.0\n"), "{metrics}");
    // A reader that disconnects frees its place.
    drop(first);
    let opened = async {
        while open_status(&server, "/v1/sessions/c/events").await != StatusCode::OK {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), opened).await.unwrap();
}

async fn open_status(server: &Server, path: &str) -> StatusCode {
    server.request(Method::GET, path).header("accept", "text/event-stream").send().await.status()
}

#[tokio::test]
async fn a_slow_request_times_out() {
    let limits = HttpLimits { header_ms: 200, body_ms: 200, ..HttpLimits::default() };
    let server = Server::with(TestNode::builder().limits(limits).system_clock()).await;
    let listening = server.node.listen().await;
    let connect = || async { TcpStream::connect(&listening.address).await.unwrap() };
    for slow in ["", "GET /health HT", "GET /health HTTP/1.1\r\nhost: localhost\r\n"] {
        assert_eq!(send_raw(connect().await, slow).await, "", "{slow:?}");
    }
    let sent = format!(
        "POST /v1/runs HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n\
         content-type: application/json\r\ncontent-length: 100\r\n\r\n{{"
    );
    let answered = send_raw(connect().await, &sent).await;
    assert!(answered.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{answered}");
    assert!(answered.contains(r#""code":"request_timeout""#), "{answered}");
    assert_eq!(server.get("/v1/runs").await.1["items"], json!([]));
}
