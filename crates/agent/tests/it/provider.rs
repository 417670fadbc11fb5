//! Providers: each protocol over real HTTP, with what it streams, demands back and refuses.

use futures_util::StreamExt;
use mainspring_agent::provider::{
    Answer, Call, Connections, ErrorKind, GenaiProvider, KeySource, Kind, ModelError, ModelOptions, Part,
    Piece, Provider, Request, ToolSpec, Turn,
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

/// A provider of `protocol` on `server`, and the folder that holds its key.
fn provider(server: &ModelServer, protocol: Protocol) -> (GenaiProvider, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("key");
    std::fs::write(&path, SECRET).expect("a key");
    let connections = Connections::default();
    let key = KeySource::File(path);
    (GenaiProvider::new("acme", kind(protocol), &server.base_url(protocol), key, &connections), dir)
}

fn user(text: &str) -> Turn {
    Turn { role: Role::User, parts: vec![Part::Text(text.into())], private: None }
}

fn asking(text: &str) -> Request {
    let add = ToolSpec {
        name: "add".into(),
        description: "Adds".into(),
        schema: json!({"type": "object", "properties": {"a": {"type": "number"}}}),
    };
    let options = ModelOptions { reasoning: Some("low".into()), ..ModelOptions::default() };
    Request {
        model: "m-1".into(),
        system: Some("be brief".into()),
        turns: vec![user(text)],
        tools: vec![add],
        options,
        call_prefix: "c".into(),
    }
}

/// The text, the thoughts, and how it ended.
async fn hear(provider: &GenaiProvider, request: Request) -> (String, String, Result<Answer, ModelError>) {
    let (mut text, mut thoughts) = (String::new(), String::new());
    let mut pieces = provider.ask(request).await;
    loop {
        match pieces.next().await.expect("an end") {
            Ok(Piece::Text(piece)) => text += &piece,
            Ok(Piece::Thought(piece)) => thoughts += &piece,
            Ok(Piece::Done(answer)) => return (text, thoughts, Ok(*answer)),
            Err(error) => return (text, thoughts, Err(error)),
        }
    }
}

#[tokio::test]
async fn every_protocol_streams_text_thoughts_calls_and_usage() {
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
        let (text, thoughts, answer) = hear(&provider, asking("the prompt")).await;
        let answer = answer.unwrap();
        assert_eq!((text.as_str(), thoughts.as_str()), ("one two", "let me see"), "{protocol:?}");
        let calls: Vec<_> =
            answer.calls.iter().map(|call| (call.name.as_str(), call.input.clone())).collect();
        assert_eq!(calls, [("add", json!({"a": 1, "b": "ü"})), ("echo", json!({}))], "{protocol:?}");
        assert_ne!(answer.calls[0].id, answer.calls[1].id);
        // Gemini does not count what it writes to its cache.
        let (input_tokens, cache_write_tokens) =
            if protocol == Protocol::Gemini { (107, 0) } else { (100, 7) };
        let usage = Usage {
            input_tokens,
            output_tokens: 20,
            cache_read_tokens: 30,
            cache_write_tokens,
            ..Usage::default()
        };
        assert_eq!(answer.usage, usage, "{protocol:?}");
        assert!(answer.raw_usage.is_object(), "{protocol:?}: {}", answer.raw_usage);
        assert!(!answer.cut_off);

        let asked = server.requests().remove(0);
        assert_eq!(model_of(&asked), "m-1", "{protocol:?}");
        for wanted in ["be brief", "the prompt"] {
            assert!(asked.body.to_string().contains(wanted), "{protocol:?}: {}", asked.body);
        }
        let header = match protocol {
            Protocol::Anthropic => asked.header("x-api-key").map(str::to_owned),
            Protocol::Gemini => asked.header("x-goog-api-key").map(str::to_owned),
            Protocol::Chat | Protocol::Responses => {
                asked.header("authorization").map(|value| value.trim_start_matches("Bearer ").to_owned())
            }
        };
        assert_eq!(header.as_deref(), Some(SECRET), "{protocol:?}");
    }
}

fn model_of(asked: &RecordedRequest) -> &str {
    match asked.protocol {
        Protocol::Gemini => {
            asked.path.trim_start_matches("/v1beta/models/").split(':').next().unwrap_or_default()
        }
        _ => asked.body["model"].as_str().unwrap_or_default(),
    }
}

#[tokio::test]
async fn what_a_provider_demands_back_goes_back_with_results_in_order() {
    for protocol in Protocol::ALL {
        let server = ModelServer::start().await.unwrap();
        let (provider, _dir) = provider(&server, protocol);
        server.enqueue(
            Reply::think("hm", "c2lnbmVk").and_tool("add", json!({"a": 1})).and_tool("add", json!({"a": 2})),
        );
        let (_, _, answer) = hear(&provider, asking("hi")).await;
        let answer = answer.unwrap();
        // It is kept as JSON meanwhile.
        let private: Option<Value> =
            answer.private.map(|private| serde_json::from_str(&private.to_string()).unwrap());
        let mut request = asking("hi");
        let calls = answer.calls.iter().cloned().map(Part::Call).collect();
        request.turns.push(Turn { role: Role::Assistant, parts: calls, private });
        let result = |call: &Call, text: &str, is_error| Part::Result {
            id: call.id.clone(),
            name: call.name.clone(),
            text: text.into(),
            is_error,
        };
        let results =
            vec![result(&answer.calls[0], "first", false), result(&answer.calls[1], "second", true)];
        request.turns.push(Turn { role: Role::User, parts: results, private: None });
        server.enqueue(Reply::text("done"));
        assert_eq!(hear(&provider, request).await.0, "done", "{protocol:?}");

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
async fn every_fault_has_its_kind_and_no_message_holds_the_key() {
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
        for (fault, wanted) in faults.clone() {
            server.enqueue(Reply::fail(fault.clone()));
            let error = hear(&provider, asking("hi")).await.2.unwrap_err();
            assert_eq!(error.kind, wanted, "{protocol:?} {fault:?}: {error}");
            let wait = matches!(fault, Fault::RateLimited { .. }).then_some(7000);
            assert_eq!(error.retry_after, wait, "{protocol:?}");
            // In the middle of a stream.
            server.enqueue(Reply::text("half").and(Action::Fail(fault.clone())));
            let (text, _, ended) = hear(&provider, asking("hi")).await;
            let error = ended.unwrap_err();
            assert_eq!(text, "half", "{protocol:?}");
            assert_eq!(
                error.kind.is_retryable(),
                wanted.is_retryable() || error.kind == ErrorKind::Broken,
                "{protocol:?}"
            );
            assert!(!format!("{error:?}").contains(SECRET));
        }
    }
}

#[tokio::test]
async fn what_ends_in_another_way_is_not_a_whole_answer() {
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
        for (reply, wanted) in cases {
            let shown = format!("{protocol:?} {reply:?}");
            server.enqueue(reply);
            let ended = hear(&provider, asking("hi")).await.2;
            assert_eq!(ended.map(|answer| answer.cut_off).map_err(|error| error.kind), wanted, "{shown}");
        }
    }
    let connections = Connections::default();
    let nobody =
        GenaiProvider::new("acme", Kind::OpenAi, "http://127.0.0.1:9/v1", KeySource::None, &connections);
    assert_eq!(hear(&nobody, asking("hi")).await.2.unwrap_err().kind, ErrorKind::Broken);
}

#[tokio::test]
async fn a_file_goes_along_and_a_dropped_answer_closes_its_connection() {
    for protocol in Protocol::ALL {
        let server = ModelServer::start().await.unwrap();
        let (provider, _dir) = provider(&server, protocol);
        let gate = Gate::default();
        server.enqueue(Reply::text("a").and(Action::Hold(gate.clone())));
        let mut request = asking("look");
        let image =
            Part::File { mime_type: "image/png".into(), data: "aGVsbG8=".into(), name: Some("x.png".into()) };
        request.turns[0].parts.push(image);
        let mut pieces = provider.ask(request).await;
        assert_eq!(pieces.next().await.unwrap().unwrap(), Piece::Text("a".into()));
        gate.reached().await;
        drop(pieces);
        server.wait(|counts| counts.aborted == 1).await;
        let body = server.requests().remove(0).body.to_string();
        assert!(body.contains("aGVsbG8=") && body.contains("image/png"), "{protocol:?}: {body}");
    }
}

#[tokio::test]
async fn a_name_is_not_a_wish() {
    let server = ModelServer::start().await.unwrap();
    let (provider, _dir) = provider(&server, Protocol::Chat);
    let mut request = asking("hi");
    request.model = "qwen-max".into();
    request.options.reasoning = None;
    hear(&provider, request).await.2.unwrap();
    let body = server.requests().remove(0).body;
    assert_eq!((&body["model"], &body["reasoning_effort"]), (&json!("qwen-max"), &Value::Null));
}
