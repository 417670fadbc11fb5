//! Providers: each protocol over real HTTP.

use futures_util::StreamExt;
use mainspring_agent::provider::{
    Completion, Connections, ErrorKind, GenaiProvider, KeySource, Kind, ModelError, ModelOptions, Part,
    Piece, Provider, Request, RequestMessage, ToolSpec, ToolUse,
};
use mainspring_core::{Role, Usage};
use mainspring_model_server::{
    Action, Fault, Gate, ModelServer, Protocol, RecordedRequest, Reply, StopReason, Tokens,
};
use serde_json::{Value, json};

const SECRET: &str = "sk-planted-0123456789";

pub(crate) const fn kind(protocol: Protocol) -> Kind {
    match protocol {
        Protocol::Anthropic => Kind::Anthropic,
        Protocol::Chat => Kind::OpenAi,
        Protocol::Responses => Kind::OpenAiResponses,
        Protocol::Gemini => Kind::Gemini,
    }
}

/// Creates a provider of `protocol` for `server`, and the folder that holds its key.
fn provider(server: &ModelServer, protocol: Protocol) -> (GenaiProvider, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("key");
    std::fs::write(&path, SECRET).expect("a key");
    let connections = Connections::default();
    let key = KeySource::File(path);
    (GenaiProvider::new("acme", kind(protocol), &server.base_url(protocol), key, &connections), dir)
}

fn request(text: &str) -> Request {
    let add = ToolSpec {
        name: "add".into(),
        description: "Adds".into(),
        schema: json!({"type": "object", "properties": {"a": {"type": "number"}}}),
    };
    let options = ModelOptions { reasoning: Some("low".into()), ..ModelOptions::default() };
    Request {
        model: "m-1".into(),
        system: Some("be brief".into()),
        messages: vec![RequestMessage::user(text)],
        tools: vec![add],
        options,
        call_prefix: "c".into(),
    }
}

/// Sends a request and returns the text, the thinking and the outcome.
async fn send(
    provider: &GenaiProvider,
    request: Request,
) -> (String, String, Result<Completion, ModelError>) {
    let (mut text, mut thinking) = (String::new(), String::new());
    let mut pieces = provider.stream(request).await;
    loop {
        match pieces.next().await.expect("an end") {
            Ok(Piece::Text(piece)) => text += &piece,
            Ok(Piece::Thinking(piece)) => thinking += &piece,
            Ok(Piece::Done(completion)) => return (text, thinking, Ok(*completion)),
            Err(error) => return (text, thinking, Err(error)),
        }
    }
}

#[tokio::test]
async fn every_protocol_streams_text_thinking_calls_and_usage() {
    for protocol in Protocol::ALL {
        let server = ModelServer::start().await.unwrap();
        let (provider, _dir) = provider(&server, protocol);
        let tokens = Tokens { input: 100, output: 20, cache_read: 30, cache_write: 7 };
        server.enqueue(
            Reply::think("let me see", "c2lnbmVk")
                .and_text("one two")
                .and_tool("add", json!({"a": 1, "b": "ü"}))
                .and_tool("echo", json!({}))
                .with_tokens(tokens),
        );
        let (text, thinking, completion) = send(&provider, request("the prompt")).await;
        let completion = completion.unwrap();
        assert_eq!((text.as_str(), thinking.as_str()), ("one two", "let me see"), "{protocol:?}");
        let calls: Vec<_> =
            completion.calls.iter().map(|call| (call.name.as_str(), call.input.clone())).collect();
        assert_eq!(calls, [("add", json!({"a": 1, "b": "ü"})), ("echo", json!({}))], "{protocol:?}");
        assert_ne!(completion.calls[0].id, completion.calls[1].id);
        // Gemini does not report tokens written to its cache.
        let (input_tokens, cache_write_tokens) =
            if protocol == Protocol::Gemini { (107, 0) } else { (100, 7) };
        let usage = Usage {
            input_tokens,
            output_tokens: 20,
            cache_read_tokens: 30,
            cache_write_tokens,
            ..Usage::default()
        };
        assert_eq!(completion.usage, usage, "{protocol:?}");
        assert!(completion.raw_usage.is_object(), "{protocol:?}: {}", completion.raw_usage);
        assert!(!completion.cut_off);

        let request = server.requests().remove(0);
        assert_eq!(model_of(&request), "m-1", "{protocol:?}");
        for expected in ["be brief", "the prompt"] {
            assert!(request.body.to_string().contains(expected), "{protocol:?}: {}", request.body);
        }
        let header = match protocol {
            Protocol::Anthropic => request.header("x-api-key").map(str::to_owned),
            Protocol::Gemini => request.header("x-goog-api-key").map(str::to_owned),
            Protocol::Chat | Protocol::Responses => {
                request.header("authorization").map(|value| value.trim_start_matches("Bearer ").to_owned())
            }
        };
        assert_eq!(header.as_deref(), Some(SECRET), "{protocol:?}");
    }
}

fn model_of(request: &RecordedRequest) -> &str {
    match request.protocol {
        Protocol::Gemini => {
            request.path.trim_start_matches("/v1beta/models/").split(':').next().unwrap_or_default()
        }
        _ => request.body["model"].as_str().unwrap_or_default(),
    }
}

#[tokio::test]
async fn private_data_and_results_are_sent_back_in_order() {
    for protocol in Protocol::ALL {
        let server = ModelServer::start().await.unwrap();
        let (provider, _dir) = provider(&server, protocol);
        server.enqueue(
            Reply::think("hm", "c2lnbmVk").and_tool("add", json!({"a": 1})).and_tool("add", json!({"a": 2})),
        );
        let (_, _, completion) = send(&provider, request("hi")).await;
        let completion = completion.unwrap();
        // Between two calls the private data is stored as JSON.
        let private: Option<Value> =
            completion.private.map(|private| serde_json::from_str(&private.to_string()).unwrap());
        let mut request = request("hi");
        let calls = completion.calls.iter().cloned().map(Part::ToolUse).collect();
        request.messages.push(RequestMessage { role: Role::Assistant, parts: calls, private });
        let result = |call: &ToolUse, text: &str, is_error| Part::ToolResult {
            id: call.id.clone(),
            name: call.name.clone(),
            text: text.into(),
            is_error,
        };
        let results =
            vec![result(&completion.calls[0], "first", false), result(&completion.calls[1], "second", true)];
        request.messages.push(RequestMessage { role: Role::User, parts: results, private: None });
        server.enqueue(Reply::text("done"));
        assert_eq!(send(&provider, request).await.0, "done", "{protocol:?}");

        let body = server.requests().remove(1).body;
        let text = body.to_string();
        let (first, second) = (text.find("first").unwrap(), text.find("second").unwrap());
        assert!(first < second, "{protocol:?}: {text}");
        match protocol {
            Protocol::Anthropic => {
                let thinking = json!({"type": "thinking", "thinking": "hm", "signature": "c2lnbmVk"});
                assert_eq!(body["messages"][1]["content"][0], thinking);
                assert_eq!(body["messages"][2]["content"][1]["is_error"], true);
                assert_eq!(body["messages"].as_array().unwrap().len(), 3);
            }
            Protocol::Responses => assert_eq!(body["input"][1]["encrypted_content"], "c2lnbmVk"),
            Protocol::Gemini => assert!(text.contains(r#""thoughtSignature":"c2lnbmVk""#), "{text}"),
            Protocol::Chat => assert_eq!(body["messages"][2]["reasoning_content"], "hm", "{text}"),
        }
    }
}

#[tokio::test]
async fn calls_of_one_response_have_different_ids() {
    let server = ModelServer::start().await.unwrap();
    let (provider, _dir) = provider(&server, Protocol::Chat);
    // The second id is used already, and the one that is generated for the second call is the first call's own.
    let call = || Action::Tool { id: Some("c_1".into()), name: "add".into(), input: json!({}) };
    server.enqueue(Reply::default().and(call()).and(call()));
    let calls = send(&provider, request("hi")).await.2.unwrap().calls;
    let ids: Vec<&str> = calls.iter().map(|call| call.id.as_str()).collect();
    assert_eq!(ids, ["c_1", "c_2"]);
}

#[tokio::test]
async fn every_fault_has_its_kind_and_no_error_contains_the_key() {
    let faults = [
        (Fault::RateLimited { retry_after: Some(7) }, ErrorKind::RateLimited),
        (Fault::Overloaded, ErrorKind::Overloaded),
        (Fault::Internal, ErrorKind::Overloaded),
        (Fault::Unauthorized, ErrorKind::Unauthorized),
        (Fault::Invalid, ErrorKind::Invalid),
        (Fault::ContextTooLong, ErrorKind::ContextTooLong),
    ];
    for protocol in Protocol::ALL {
        let server = ModelServer::start().await.unwrap();
        let (provider, _dir) = provider(&server, protocol);
        for (fault, expected) in faults.clone() {
            server.enqueue(Reply::fail(fault.clone()));
            let error = send(&provider, request("hi")).await.2.unwrap_err();
            assert_eq!(error.kind, expected, "{protocol:?} {fault:?}: {error}");
            let wait = matches!(fault, Fault::RateLimited { .. }).then_some(7000);
            assert_eq!(error.retry_after_ms, wait, "{protocol:?}");
            assert!(!format!("{error:?}").contains(SECRET), "{protocol:?} {fault:?}: {error:?}");
            // The same fault in the middle of a stream.
            server.enqueue(Reply::text("half").and(Action::Fail(fault.clone())));
            let (text, _, ended) = send(&provider, request("hi")).await;
            let error = ended.unwrap_err();
            assert_eq!(text, "half", "{protocol:?}");
            assert_eq!(
                error.kind.is_retryable(),
                expected.is_retryable() || error.kind == ErrorKind::Broken,
                "{protocol:?}"
            );
            assert!(!format!("{error:?}").contains(SECRET));
        }
    }
}

#[tokio::test]
async fn incomplete_and_refused_responses_are_recognized() {
    for protocol in Protocol::ALL {
        let server = ModelServer::start().await.unwrap();
        let (provider, _dir) = provider(&server, protocol);
        let cases = [
            (Reply::text("half").and(Action::Disconnect), Err(ErrorKind::Broken)),
            (Reply::text("half").and(Action::Garbage), Err(ErrorKind::Broken)),
            (Reply::refuse(), Err(ErrorKind::Refused)),
            (Reply::text("long").with_stop(StopReason::Length), Ok(true)),
            (Reply::text("whole"), Ok(false)),
        ];
        for (reply, expected) in cases {
            let case = format!("{protocol:?} {reply:?}");
            server.enqueue(reply);
            let ended = send(&provider, request("hi")).await.2;
            assert_eq!(
                ended.map(|completion| completion.cut_off).map_err(|error| error.kind),
                expected,
                "{case}"
            );
        }
    }
    let connections = Connections::default();
    let unreachable =
        GenaiProvider::new("acme", Kind::OpenAi, "http://127.0.0.1:9/v1", KeySource::None, &connections);
    assert_eq!(send(&unreachable, request("hi")).await.2.unwrap_err().kind, ErrorKind::Broken);
}

#[tokio::test]
async fn files_are_sent_and_dropping_a_stream_closes_its_connection() {
    for protocol in Protocol::ALL {
        let server = ModelServer::start().await.unwrap();
        let (provider, _dir) = provider(&server, protocol);
        let gate = Gate::default();
        server.enqueue(Reply::text("a").and(Action::Hold(gate.clone())));
        let mut request = request("look");
        let image =
            Part::File { mime_type: "image/png".into(), data: "aGVsbG8=".into(), name: Some("x.png".into()) };
        request.messages[0].parts.push(image);
        let mut pieces = provider.stream(request).await;
        assert_eq!(pieces.next().await.unwrap().unwrap(), Piece::Text("a".into()));
        gate.reached().await;
        drop(pieces);
        server.wait(|counts| counts.aborted == 1).await;
        let body = server.requests().remove(0).body.to_string();
        assert!(body.contains("aGVsbG8=") && body.contains("image/png"), "{protocol:?}: {body}");
    }
}

#[tokio::test]
async fn a_model_name_does_not_set_the_reasoning_effort() {
    let server = ModelServer::start().await.unwrap();
    let (provider, _dir) = provider(&server, Protocol::Chat);
    let mut request = request("hi");
    request.model = "qwen-max".into();
    request.options.reasoning = None;
    send(&provider, request).await.2.unwrap();
    let body = server.requests().remove(0).body;
    assert_eq!((&body["model"], &body["reasoning_effort"]), (&json!("qwen-max"), &Value::Null));
}
