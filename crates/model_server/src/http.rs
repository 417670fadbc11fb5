//! The HTTP routes, and how a reply is sent.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures_util::stream;
use serde_json::{Value, json};

use super::protocol::{Protocol, Writer, system_text};
use super::reply::{Action, Fault, Reply};
use super::script::Conversation;
use super::{RecordedRequest, Shared, script};

/// The maximum size of a request: a long conversation with files.
const MAX_REQUEST_BYTES: usize = 256 << 20;

pub(super) fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route(
            "/v1/messages",
            post(|state, uri, headers, body| serve(state, Protocol::Anthropic, uri, headers, body)),
        )
        .route(
            "/v1/chat/completions",
            post(|state, uri, headers, body| serve(state, Protocol::Chat, uri, headers, body)),
        )
        .route(
            "/v1/responses",
            post(|state, uri, headers, body| serve(state, Protocol::Responses, uri, headers, body)),
        )
        .route("/v1beta/models/{call}", post(gemini))
        .fallback(not_found)
        .layer(DefaultBodyLimit::max(MAX_REQUEST_BYTES))
        .with_state(shared)
}

/// Answers a request to an unknown path with the list of known ones.
async fn not_found(uri: Uri) -> Response {
    let message = format!(
        "unknown path {}; the paths are /v1/messages, /v1/chat/completions, /v1/responses and /v1beta/models/MODEL:streamGenerateContent, \
         each with POST",
        uri.path()
    );
    let body = json!({"error": {"type": "not_found_error", "code": "not_found", "message": message}});
    (StatusCode::NOT_FOUND, axum::Json(body)).into_response()
}

async fn gemini(
    state: State<Arc<Shared>>,
    Path(_call): Path<String>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    serve(state, Protocol::Gemini, uri, headers, body).await
}

async fn serve(
    State(shared): State<Arc<Shared>>,
    protocol: Protocol,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let Ok(body) = serde_json::from_slice::<Value>(&body) else {
        return fault(protocol, &Fault::Invalid, &headers);
    };
    let (model, streaming) = match uri.path().strip_prefix("/v1beta/models/") {
        Some(call) => {
            let (model, verb) = call.split_once(':').unwrap_or((call, ""));
            (model.to_owned(), verb.starts_with("stream"))
        }
        None => (body["model"].as_str().unwrap_or_default().to_owned(), body["stream"] == true),
    };
    let queued = shared.queue.lock().pop_front();
    let reply = queued.unwrap_or_else(|| {
        let conversation: Conversation = protocol.entries(&body).into_iter().collect();
        let conversation = conversation.with_system(&system_text(&body));
        script::reply(&conversation, &mut shared.memory.lock())
    });
    if let Some(recorded) = &shared.recorded {
        recorded.lock().push(RecordedRequest {
            protocol,
            path: uri.path().to_owned(),
            headers: headers
                .iter()
                .map(|(name, value)| (name.to_string(), value.to_str().unwrap_or_default().to_owned()))
                .collect(),
            body,
        });
    }
    shared.counts.send_modify(|counts| counts.received += 1);
    if let Some(Action::Fail(first)) = reply.actions.first() {
        return fault(protocol, first, &headers);
    }
    let outgoing = OutgoingReply::new(shared, protocol, &model, reply);
    if streaming { outgoing.stream() } else { outgoing.respond(&model).await }
}

fn fault(protocol: Protocol, fault: &Fault, headers: &HeaderMap) -> Response {
    let (status, mut body) = protocol.fault(fault);
    if *fault == Fault::Unauthorized {
        // Repeats the key, as a careless server might: clients must redact it.
        let names = ["x-api-key", "x-goog-api-key", "authorization"];
        let key = names.iter().find_map(|name| headers.get(*name)?.to_str().ok()).unwrap_or_default();
        let message = body["error"]["message"].as_str().unwrap_or_default();
        body["error"]["message"] = json!(format!("{message}: {key}"));
    }
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, axum::Json(body)).into_response();
    if let Fault::RateLimited { retry_after: Some(seconds) } = fault {
        response.headers_mut().insert(header::RETRY_AFTER, (*seconds).into());
    }
    response
}

/// A reply that is being sent. If it is dropped before it is complete, the client has disconnected.
struct OutgoingReply {
    shared: Arc<Shared>,
    protocol: Protocol,
    no: u64,
    reply: Reply,
    actions: VecDeque<Action>,
    writer: Box<dyn Writer>,
    stage: Stage,
}

#[derive(PartialEq)]
enum Stage {
    Opening,
    Streaming,
    Done,
}

impl OutgoingReply {
    fn new(shared: Arc<Shared>, protocol: Protocol, model: &str, mut reply: Reply) -> Self {
        let mut last_no = shared.last_no.lock();
        *last_no += 1;
        let no = *last_no;
        for action in &mut reply.actions {
            if let Action::Tool { id: id @ None, .. } = action {
                *last_no += 1;
                *id = Some(format!("call_{last_no}"));
            }
        }
        drop(last_no);
        let actions = reply.actions.iter().cloned().collect();
        Self {
            writer: protocol.writer(model, no),
            shared,
            protocol,
            no,
            reply,
            actions,
            stage: Stage::Opening,
        }
    }

    fn stream(self) -> Response {
        let pieces = stream::unfold(self, |mut outgoing| async move {
            let piece = outgoing.next().await?;
            Some((piece, outgoing))
        });
        ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(pieces)).into_response()
    }

    /// Returns the next piece of the stream; an error closes the connection.
    async fn next(&mut self) -> Option<Result<String, io::Error>> {
        match self.stage {
            Stage::Done => None,
            Stage::Opening => {
                self.stage = Stage::Streaming;
                Some(Ok(self.writer.open()))
            }
            Stage::Streaming => {
                let Some(action) = self.actions.pop_front() else {
                    self.stage = Stage::Done;
                    return Some(Ok(self.writer.close(self.reply.tokens, self.reply.stop_reason())));
                };
                self.perform(action).await
            }
        }
    }

    async fn perform(&mut self, action: Action) -> Option<Result<String, io::Error>> {
        match action {
            Action::Text(text) => Some(Ok(self.writer.text(&text))),
            Action::Think { text, signature } => Some(Ok(self.writer.think(&text, &signature))),
            Action::Tool { id, name, input } => {
                Some(Ok(self.writer.tool(id.as_deref().unwrap_or_default(), &name, &input)))
            }
            Action::Hold(_) | Action::Pause(_) | Action::Hang => {
                self.wait(&action).await;
                Some(Ok(String::new()))
            }
            Action::Fail(fault) => {
                self.stage = Stage::Done;
                Some(Ok(self.writer.fail(&fault)))
            }
            Action::Disconnect => {
                self.stage = Stage::Done;
                // Lets the connection flush the earlier text: it flushes while the stream is pending.
                tokio::task::yield_now().await;
                Some(Err(io::Error::other("disconnected by the script")))
            }
            Action::Garbage => {
                self.stage = Stage::Done;
                Some(Ok("data: {this is not JSON\n\n".into()))
            }
        }
    }

    /// Waits for the time or the gate that `action` names, or until the server stops. Other actions do not wait.
    async fn wait(&self, action: &Action) {
        let clock = &self.shared.clock;
        let done = async {
            match action {
                Action::Hold(gate) => gate.pass().await,
                Action::Pause(millis) => clock.sleep_for(*millis).await,
                Action::Hang => std::future::pending().await,
                _ => {}
            }
        };
        tokio::select! {
            () = done => {}
            () = self.shared.stop.cancelled() => {}
        }
    }

    async fn respond(mut self, model: &str) -> Response {
        for action in std::mem::take(&mut self.actions) {
            self.wait(&action).await;
            match action {
                Action::Disconnect => {
                    self.stage = Stage::Done;
                    let disconnected =
                        stream::iter([Err::<String, _>(io::Error::other("disconnected by the script"))]);
                    return ([(header::CONTENT_TYPE, "application/json")], Body::from_stream(disconnected))
                        .into_response();
                }
                Action::Garbage => {
                    self.stage = Stage::Done;
                    return ([(header::CONTENT_TYPE, "application/json")], "{this is not JSON")
                        .into_response();
                }
                Action::Fail(kind) => {
                    self.stage = Stage::Done;
                    return fault(self.protocol, &kind, &HeaderMap::new());
                }
                _ => {}
            }
        }
        self.stage = Stage::Done;
        axum::Json(json!(self.protocol.complete(model, self.no, &self.reply))).into_response()
    }
}

impl Drop for OutgoingReply {
    fn drop(&mut self) {
        if self.stage != Stage::Done {
            self.shared.counts.send_modify(|counts| counts.aborted += 1);
        }
    }
}
