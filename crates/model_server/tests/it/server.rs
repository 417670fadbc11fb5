//! Requests of a plain HTTP client in each protocol.

use mainspring_model_server::{Action, Fault, Gate, ModelServer, Protocol, Reply};
use serde_json::{Value, json};

/// Returns the URL and body of a request with `prompt`.
fn request(server: &ModelServer, protocol: Protocol, prompt: &str, stream: bool) -> (String, Value) {
    let base = server.base_url(protocol);
    match protocol {
        Protocol::Anthropic => (
            format!("{base}messages"),
            json!({"model": "m", "stream": stream, "messages": [{"role": "user", "content": prompt}]}),
        ),
        Protocol::Chat => (
            format!("{base}chat/completions"),
            json!({"model": "m", "stream": stream, "messages": [{"role": "user", "content": prompt}]}),
        ),
        Protocol::Responses => {
            (format!("{base}responses"), json!({"model": "m", "stream": stream, "input": prompt}))
        }
        Protocol::Gemini => {
            let verb = if stream { "streamGenerateContent?alt=sse" } else { "generateContent" };
            (
                format!("{base}models/m:{verb}"),
                json!({"contents": [{"role": "user", "parts": [{"text": prompt}]}]}),
            )
        }
    }
}

async fn send(server: &ModelServer, protocol: Protocol, prompt: &str, stream: bool) -> reqwest::Response {
    let (url, body) = request(server, protocol, prompt, stream);
    // reqwest is built with rustls but without a crypto provider: no client can be built before one is installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::new()
        .post(url)
        .header("x-api-key", "k")
        .json(&body)
        .send()
        .await
        .expect("the server answers")
}

#[tokio::test]
async fn the_prompt_is_played_as_a_script_in_every_protocol_streamed_or_not() {
    for protocol in Protocol::ALL {
        for stream in [false, true] {
            let server = ModelServer::start().await.unwrap();
            let response = send(&server, protocol, "think hm; say hello; tool add {\"a\":1}", stream).await;
            assert_eq!(response.status(), 200, "{protocol:?}");
            let text = response.text().await.unwrap();
            for expected in ["hello", "add", "call_"] {
                assert!(text.contains(expected), "{protocol:?} {stream}: {expected} is not in {text}");
            }
            let requests = server.requests();
            assert_eq!(requests.len(), 1);
            assert_eq!((requests[0].protocol, requests[0].header("x-api-key")), (protocol, Some("k")));
        }
    }
}

#[tokio::test]
async fn every_fault_has_a_status_in_every_protocol() {
    let faults = [
        (Fault::RateLimited { retry_after: Some(7) }, [429, 429, 429, 429]),
        (Fault::Overloaded, [529, 503, 503, 503]),
        (Fault::Internal, [500, 500, 500, 500]),
        (Fault::Unauthorized, [401, 401, 401, 400]),
        (Fault::Invalid, [400, 400, 400, 400]),
        (Fault::ContextTooLong, [400, 400, 400, 400]),
    ];
    let server = ModelServer::start().await.unwrap();
    for (fault, statuses) in faults {
        for (protocol, status) in Protocol::ALL.into_iter().zip(statuses) {
            server.enqueue(Reply::fail(fault.clone()));
            let response = send(&server, protocol, "say hi", true).await;
            assert_eq!(response.status(), status, "{protocol:?} {fault:?}");
            let after = response.headers().get("retry-after").map(|value| value.to_str().unwrap().to_owned());
            let expected = matches!(fault, Fault::RateLimited { .. }).then(|| "7".to_owned());
            assert_eq!(after, expected, "{protocol:?} {fault:?}");
            let body: Value = response.json().await.unwrap();
            assert!(body["error"]["message"].is_string(), "{protocol:?}: {body}");
        }
    }
}

#[tokio::test]
async fn crash_ends_the_stream_with_an_error_and_fail_once_succeeds_the_second_time() {
    let server = ModelServer::start().await.unwrap();
    for protocol in Protocol::ALL {
        let response = send(&server, protocol, "say half; crash", true).await;
        assert!(response.text().await.is_err(), "{protocol:?}");
    }
    assert_eq!(send(&server, Protocol::Chat, "fail once overload; say ok", true).await.status(), 503);
    assert_eq!(send(&server, Protocol::Chat, "fail once overload; say ok", true).await.status(), 200);
}

#[tokio::test]
async fn a_gate_holds_the_stream_and_a_client_that_disconnects_is_counted() {
    let server = ModelServer::start().await.unwrap();
    let gate = Gate::default();
    server.enqueue(Reply::text("one").and(Action::Hold(gate.clone())).and_text("two"));
    let mut response = send(&server, Protocol::Chat, "x", true).await;
    gate.reached().await;
    let mut received = String::new();
    while !received.contains("one") {
        received += std::str::from_utf8(&response.chunk().await.unwrap().unwrap()).unwrap();
    }
    assert!(!received.contains("two"));
    gate.open();
    assert!(response.text().await.unwrap().contains("two"));
    assert_eq!(server.counts().aborted, 0);

    server.enqueue(Reply::text("one").and(Action::Hang));
    let response = send(&server, Protocol::Chat, "x", true).await;
    drop(response);
    assert_eq!(server.wait(|counts| counts.aborted == 1).await.received, 2);
}
