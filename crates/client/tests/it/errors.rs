//! Errors: each failure has its code, and says whether the same request may succeed later.

use std::time::Duration;

use mainspring_client::{Client, Error, Prompt, SessionListQuery};
use mainspring_test_support::{TOKEN, TestNode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::world::World;

#[tokio::test]
async fn client_errors_have_codes() {
    let World { client, listening, .. } = World::start().await;
    let missing = client.session_get("no/such session?").await.unwrap_err();
    assert_eq!(missing.code(), "invalid_request", "{missing}");
    assert_eq!(client.session_get("nobody").await.unwrap_err().code(), "not_found");
    let unauthorized = Client::over_tcp(&listening.url(), "guess").unwrap();
    assert_eq!(unauthorized.session_get("nobody").await.unwrap_err().code(), "authentication");
    drop(listening);
    let gone = client.session_get("nobody").await.unwrap_err();
    assert!(gone.is_gone() && gone.is_retryable(), "{gone}");
    assert!(Client::over_tcp("not an address", "x").is_err());
}

#[tokio::test]
async fn a_refusal_keeps_the_code_and_the_message_of_the_server() {
    let world = World::with(TestNode::builder().options(|options| options.limits.queue_total = 1)).await;
    let refused = world.client.run_create(&Prompt::text("bad key", "say hi")).await.unwrap_err();
    let Error::Refused(problem) = &refused else { panic!("{refused:?}") };
    assert_eq!((problem.status, problem.code.as_str(), problem.retryable), (400, "invalid_request", false));
    assert_eq!(refused.to_string(), problem.detail);
    assert!(!refused.is_retryable() && !refused.is_gone() && !refused.is_not_found());
    // One run is active, one waits: a third finds the queue full.
    world.prompt("a", "hang").await;
    world.prompt("a", "hang").await;
    let full = world.client.run_create(&Prompt::text("a", "hang")).await.unwrap_err();
    assert!(full.is_retryable() && !full.is_gone(), "{full:?}");
}

/// Answers every connection with `bytes` and closes it. Stops when the returned task is dropped.
async fn answer_with(bytes: &'static str) -> (Client, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::over_tcp(&format!("http://{}", listener.local_addr().unwrap()), TOKEN).unwrap();
    let mut task = JoinSet::new();
    task.spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let read = stream.read(&mut [0; 4096]).await.unwrap();
            assert!(read > 0);
            stream.write_all(bytes.as_bytes()).await.unwrap();
        }
    });
    (client, task)
}

#[tokio::test]
async fn a_response_that_is_not_from_mainspring_is_a_protocol_error() {
    for (answer, code, is_gone) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", "protocol", false),
        ("HTTP/1.1 502 Bad Gateway\r\ncontent-length: 4\r\n\r\noops", "protocol", false),
        ("HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\n{\"items\"", "connection_broken", true),
        ("", "connection_broken", true),
    ] {
        let (client, _task) = answer_with(answer).await;
        let error = client.session_list(&SessionListQuery::default()).await.unwrap_err();
        assert_eq!((error.code(), error.is_gone()), (code, is_gone), "{answer:?}: {error}");
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_in_time_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::over_tcp(&format!("http://{}", listener.local_addr().unwrap()), TOKEN).unwrap();
    let client = client.with_response_timeout(Duration::from_millis(20));
    let error = client.session_list(&SessionListQuery::default()).await.unwrap_err();
    let found = (error.code(), error.is_gone(), error.is_retryable());
    assert_eq!(found, ("not_responding", false, true), "{error}");
}
