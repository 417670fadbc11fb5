//! The model server, asked by a plain HTTP client in each protocol.

use mainspring_testkit::model::{Act, Fault, Gate, ModelServer, Reply, Wire};
use serde_json::{Value, json};

/// A prompt in the words of `wire`, and where it goes.
fn request(server: &ModelServer, wire: Wire, prompt: &str, stream: bool) -> (String, Value) {
    let base = server.base_url(wire);
    match wire {
        Wire::Anthropic => (
            format!("{base}messages"),
            json!({"model": "m", "stream": stream, "messages": [{"role": "user", "content": prompt}]}),
        ),
        Wire::Chat => (
            format!("{base}chat/completions"),
            json!({"model": "m", "stream": stream, "messages": [{"role": "user", "content": prompt}]}),
        ),
        Wire::Responses => {
            (format!("{base}responses"), json!({"model": "m", "stream": stream, "input": prompt}))
        }
        Wire::Gemini => {
            let verb = if stream { "streamGenerateContent?alt=sse" } else { "generateContent" };
            (
                format!("{base}models/m:{verb}"),
                json!({"contents": [{"role": "user", "parts": [{"text": prompt}]}]}),
            )
        }
    }
}

async fn ask(server: &ModelServer, wire: Wire, prompt: &str, stream: bool) -> reqwest::Response {
    let (url, body) = request(server, wire, prompt, stream);
    // Within the workspace the client has TLS, and wants to know whose.
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
async fn the_prompt_is_the_script_in_every_protocol_whole_and_in_pieces() {
    for wire in Wire::ALL {
        for stream in [false, true] {
            let server = ModelServer::start().await.unwrap();
            let answer = ask(&server, wire, "think hm; say hello; tool add {\"a\":1}", stream).await;
            assert_eq!(answer.status(), 200, "{wire:?}");
            let text = answer.text().await.unwrap();
            for wanted in ["hello", "add", "call_"] {
                assert!(text.contains(wanted), "{wire:?} {stream}: {wanted} is not in {text}");
            }
            let asked = server.requests();
            assert_eq!(asked.len(), 1);
            assert_eq!((asked[0].wire, asked[0].header("x-api-key")), (wire, Some("k")));
        }
    }
}

#[tokio::test]
async fn every_fault_has_its_status_in_every_protocol() {
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
        for (wire, status) in Wire::ALL.into_iter().zip(statuses) {
            server.then(Reply::fail(fault.clone()));
            let answer = ask(&server, wire, "say hi", true).await;
            assert_eq!(answer.status(), status, "{wire:?} {fault:?}");
            let after = answer.headers().get("retry-after").map(|value| value.to_str().unwrap().to_owned());
            let wanted = matches!(fault, Fault::RateLimited { .. }).then(|| "7".to_owned());
            assert_eq!(after, wanted, "{wire:?} {fault:?}");
            let body: Value = answer.json().await.unwrap();
            assert!(body["error"]["message"].is_string(), "{wire:?}: {body}");
        }
    }
}

#[tokio::test]
async fn a_broken_stream_is_an_error_and_what_fails_once_succeeds_then() {
    let server = ModelServer::start().await.unwrap();
    for wire in Wire::ALL {
        let broken = ask(&server, wire, "say half; crash", true).await;
        assert!(broken.text().await.is_err(), "{wire:?}");
    }
    assert_eq!(ask(&server, Wire::Chat, "fail once overload; say ok", true).await.status(), 503);
    assert_eq!(ask(&server, Wire::Chat, "fail once overload; say ok", true).await.status(), 200);
}

#[tokio::test]
async fn a_gate_holds_the_stream_and_a_caller_that_leaves_is_counted() {
    let server = ModelServer::start().await.unwrap();
    let gate = Gate::default();
    server.then(Reply::say("one").and(Act::Hold(gate.clone())).and_say("two"));
    let mut answer = ask(&server, Wire::Chat, "x", true).await;
    gate.reached().await;
    let mut seen = String::new();
    while !seen.contains("one") {
        seen += std::str::from_utf8(&answer.chunk().await.unwrap().unwrap()).unwrap();
    }
    assert!(!seen.contains("two"));
    gate.open();
    assert!(answer.text().await.unwrap().contains("two"));
    assert_eq!(server.counts().aborted, 0);

    server.then(Reply::say("one").and(Act::Hang));
    let answer = ask(&server, Wire::Chat, "x", true).await;
    drop(answer);
    assert_eq!(server.wait(|counts| counts.aborted == 1).await.asked, 2);
}
