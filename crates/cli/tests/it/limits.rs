//! Configured limits reach the server.

use std::time::Duration;

use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use crate::http::Server;

/// Sends raw bytes and reads until the server closes the connection.
async fn send_raw(mut stream: impl AsyncRead + AsyncWrite + Unpin, sent: &str) -> String {
    stream.write_all(sent.as_bytes()).await.unwrap();
    let mut read = String::new();
    let reading = stream.read_to_string(&mut read);
    tokio::time::timeout(Duration::from_secs(15), reading).await.expect("closed in time").unwrap();
    read
}

async fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(server.url.trim_start_matches("http://")).await.unwrap()
}

#[tokio::test]
async fn headers_are_limited_in_size_and_number() {
    let limits = [("MAINSPRING_HTTP_HEADER_BYTES", "2048"), ("MAINSPRING_HTTP_HEADERS", "10")];
    let server = Server::start_with(&limits);
    let get = |headers: &str| {
        format!("GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n")
    };
    let long = get(&format!("x: {}\r\n", "a".repeat(2048)));
    // A header without an end, as long as the read buffer.
    let mut endless = get("x: ");
    endless.truncate(endless.len() - 2);
    endless.extend(std::iter::repeat_n('a', (8 << 10) - endless.len()));
    let many = get(&"x: 1\r\n".repeat(10));
    for (name, sent, status) in [
        ("few", get(&"x: 1\r\n".repeat(8)), "200 OK"),
        ("long", long, "431 Request Header Fields Too Large"),
        ("endless", endless, "431 Request Header Fields Too Large"),
        ("many", many, "431 Request Header Fields Too Large"),
    ] {
        let over_tcp = send_raw(connect(&server).await, &sent).await;
        assert!(over_tcp.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{name}: {over_tcp}");
        let over_unix = send_raw(UnixStream::connect(server.socket()).await.unwrap(), &sent).await;
        assert!(over_unix.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{name}: {over_unix}");
    }
}

#[tokio::test]
async fn a_page_has_a_maximum_length_and_names_the_next_page() {
    let server = Server::start_with(&[("MAINSPRING_LIMITS_PAGE", "2")]);
    for key in ["a", "b", "c"] {
        server.post("/v1/sessions", json!({"key": key})).await;
    }
    let (_, first) = server.get("/v1/sessions").await;
    let (_, rest) = server.get(&format!("/v1/sessions?before={}", first["next"].as_str().unwrap())).await;
    let count = |page: &Value| page["items"].as_array().unwrap().len();
    assert_eq!((count(&first), count(&rest), rest.get("next")), (2, 1, None));
    let (status, problem) = server.get("/v1/sessions?limit=3").await;
    assert_eq!((status, &problem["code"]), (StatusCode::BAD_REQUEST, &json!("invalid_request")));
}

#[test]
fn a_server_raises_its_open_file_limit_for_its_streams() {
    let server = Server::start_with_open_files(256);
    let (allowed, maximum) = server.open_files();
    assert!(maximum > 256, "this machine allows too few open files for the test");
    assert_eq!(
        allowed,
        maximum.min(2 * (32_768 + 1_024)),
        "twice its streams and requests, up to the hard limit"
    );
}

#[tokio::test]
async fn a_deleted_state_directory_is_reported_and_prompts_are_refused() {
    let server = Server::start();
    let first = server.prompt("a", "say hi").await;
    server.wait_ended(&first).await;
    assert_eq!(server.get("/ready").await.0, StatusCode::OK);
    std::fs::remove_dir_all(server.dir.path().join("state")).unwrap();
    let body = json!({"prompt": "say lost", "session": {"key": "a"}});
    for (status, problem) in [server.get("/ready").await, server.post("/v1/runs", body).await] {
        assert_eq!((status, &problem["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("store_lost")));
        assert_eq!(problem["retryable"], false, "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains("state directory"), "{problem}");
    }
}
