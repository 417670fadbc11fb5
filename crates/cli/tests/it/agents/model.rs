//! A model for published agents: Chat Completions over HTTP, controlled by commands in the prompt.
//!
//! `RUN command` calls the agent's shell tool, `CALL tool {…}` any tool. `HANG` streams a word and then nothing.
//! `MODEL` answers with the requested model, `IMAGES` with the number of images. `FAIL status` fails. Any other prompt
//! is answered with all user messages so far.

use std::convert::Infallible;

use axum::Router;
use axum::extract::Json;
use axum::http::StatusCode;
use axum::response::sse::{Event, Sse};
use axum::routing::post;
use futures_util::stream::{self, Stream, StreamExt};
use mainspring_kernel::tasks::Tasks;
use serde_json::{Value, json};

/// Starts a model server on a free port and returns its base URL.
pub(crate) async fn serve(tasks: &Tasks) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}/v1", listener.local_addr().unwrap());
    let router = Router::new().route("/v1/chat/completions", post(complete));
    tasks.spawn(async move { axum::serve(listener, router).await.unwrap_or_default() });
    base
}

async fn complete(
    Json(body): Json<Value>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, (StatusCode, Json<Value>)> {
    let last_text = body["messages"].as_array().and_then(|messages| messages.last()).map(content);
    if let Some((_, status)) = last_text.as_deref().and_then(|text| text.split_once("FAIL ")) {
        let status = StatusCode::from_bytes(&status.as_bytes()[..3]).unwrap();
        return Err((
            status,
            Json(json!({"error": {"message": "failure requested by the prompt", "type": "requested"}})),
        ));
    }
    let (deltas, finish_reason) = answer(&body);
    let chunk = |delta: Value, reason: Value| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": reason});
        let chunk = json!({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "stub-1",
                           "choices": [choice]});
        Event::default().data(chunk.to_string())
    };
    let mut events: Vec<Event> = deltas.into_iter().map(|delta| chunk(delta, Value::Null)).collect();
    if let Some(reason) = finish_reason {
        events.push(chunk(json!({}), json!(reason)));
        let usage = json!({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10});
        let last = json!({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "stub-1",
                          "choices": [], "usage": usage});
        events.push(Event::default().data(last.to_string()));
        events.push(Event::default().data("[DONE]"));
    }
    let hangs = finish_reason.is_none();
    let rest = stream::once(async move {
        if hangs {
            std::future::pending::<()>().await;
        }
    });
    Ok(Sse::new(stream::iter(events).map(Ok).chain(rest.filter_map(async |()| None))))
}

/// Returns the streamed chunks and the finish reason; none if the stream never ends.
fn answer(body: &Value) -> (Vec<Value>, Option<&'static str>) {
    let messages = body["messages"].as_array().cloned().unwrap_or_default();
    let last = messages.last().cloned().unwrap_or_default();
    let text = |text: &str| json!({"role": "assistant", "content": text});
    let last_text = content(&last);
    // The replayed history before the message contains no commands.
    let prompt = last_text.rsplit("what follows is the next message.").next().unwrap_or_default();
    if last["role"] == "tool" {
        return (vec![text("the tool said: "), text(&last_text)], Some("stop"));
    }
    let has_tools = body["tools"].as_array().is_some_and(|tools| !tools.is_empty());
    let shell = prompt.split_once("RUN ").map(|(_, command)| {
        ("bash", json!({"command": command.trim(), "description": "runs it"}).to_string())
    });
    let any = prompt.split_once("CALL ").and_then(|(_, call)| call.trim().split_once(' '));
    let call = shell.or_else(|| any.map(|(name, arguments)| (name, arguments.to_owned())));
    if let Some((name, arguments)) = call.filter(|_| has_tools) {
        let call = json!({"index": 0, "id": "call_1", "type": "function",
                          "function": {"name": name, "arguments": arguments}});
        return (vec![json!({"role": "assistant", "tool_calls": [call]})], Some("tool_calls"));
    }
    if prompt.contains("HANG") && has_tools {
        return (vec![text("hanging")], None);
    }
    if prompt.contains("MODEL") {
        let model = body["model"].as_str().unwrap_or_default();
        return (vec![text(&format!("the model is {model}"))], Some("stop"));
    }
    if prompt.contains("IMAGES") {
        let parts = last["content"].as_array().into_iter().flatten();
        let images = parts.filter(|part| part["type"] == "image_url").count();
        return (vec![text(&format!("images: {images}"))], Some("stop"));
    }
    let prompts = messages.iter().filter(|message| message["role"] == "user").map(content);
    (vec![text("received: "), text(&prompts.collect::<Vec<_>>().join(" / "))], Some("stop"))
}

fn content(message: &Value) -> String {
    match &message["content"] {
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        other => other.as_str().unwrap_or_default().to_owned(),
    }
}
