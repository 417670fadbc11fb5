//! The HTTP side: routes, and an answer as it goes out.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures_util::stream;
use serde_json::{Value, json};

use super::reply::{Act, Fault, Reply};
use super::wire::{Wire, Writer};
use super::{Recorded, Shared, script};

pub(super) fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route(
            "/v1/messages",
            post(|state, uri, headers, body| serve(state, Wire::Anthropic, uri, headers, body)),
        )
        .route(
            "/v1/chat/completions",
            post(|state, uri, headers, body| serve(state, Wire::Chat, uri, headers, body)),
        )
        .route(
            "/v1/responses",
            post(|state, uri, headers, body| serve(state, Wire::Responses, uri, headers, body)),
        )
        .route("/v1beta/models/{call}", post(gemini))
        .with_state(shared)
}

async fn gemini(
    state: State<Arc<Shared>>,
    Path(_call): Path<String>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    serve(state, Wire::Gemini, uri, headers, body).await
}

async fn serve(
    State(shared): State<Arc<Shared>>,
    wire: Wire,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let Ok(body) = serde_json::from_slice::<Value>(&body) else {
        return fault(wire, &Fault::Invalid, &headers);
    };
    let (model, streams) = match uri.path().strip_prefix("/v1beta/models/") {
        Some(call) => {
            let (model, verb) = call.split_once(':').unwrap_or((call, ""));
            (model.to_owned(), verb.starts_with("stream"))
        }
        None => (body["model"].as_str().unwrap_or_default().to_owned(), body["stream"] == true),
    };
    let queued = shared.queue.lock().pop_front();
    let reply = queued.unwrap_or_else(|| {
        let asked = script::asked(wire.turns(&body));
        script::answer(&asked, || shared.failed.lock().insert(asked.prompt.clone()))
    });
    shared.recorded.lock().push(Recorded {
        wire,
        path: uri.path().to_owned(),
        headers: headers
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap_or_default().to_owned()))
            .collect(),
        body,
    });
    shared.counts.send_modify(|counts| counts.asked += 1);
    if let Some(Act::Fail(first)) = reply.acts.first() {
        return fault(wire, first, &headers);
    }
    let answer = Answer::new(shared, wire, &model, reply);
    if streams { answer.stream() } else { answer.whole(&model).await }
}

fn fault(wire: Wire, fault: &Fault, headers: &HeaderMap) -> Response {
    let (status, mut body) = wire.fault(fault);
    if *fault == Fault::Unauthorized {
        // As careless as a server can be: it repeats the key.
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

/// An answer on its way. If it is dropped before it is whole, its caller has given it up.
struct Answer {
    shared: Arc<Shared>,
    wire: Wire,
    no: u64,
    reply: Reply,
    acts: VecDeque<Act>,
    writer: Box<dyn Writer>,
    stage: Stage,
}

#[derive(PartialEq)]
enum Stage {
    Opening,
    Acting,
    Done,
}

impl Answer {
    fn new(shared: Arc<Shared>, wire: Wire, model: &str, mut reply: Reply) -> Self {
        let mut made = shared.made.lock();
        *made += 1;
        let no = *made;
        for act in &mut reply.acts {
            if let Act::Tool { id: id @ None, .. } = act {
                *made += 1;
                *id = Some(format!("call_{made}"));
            }
        }
        drop(made);
        let acts = reply.acts.iter().cloned().collect();
        Self { writer: wire.writer(model, no), shared, wire, no, reply, acts, stage: Stage::Opening }
    }

    fn stream(self) -> Response {
        let pieces = stream::unfold(self, |mut answer| async move {
            let piece = answer.next().await?;
            Some((piece, answer))
        });
        ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(pieces)).into_response()
    }

    /// The next piece of the stream; an error breaks the connection off.
    async fn next(&mut self) -> Option<Result<String, io::Error>> {
        match self.stage {
            Stage::Done => None,
            Stage::Opening => {
                self.stage = Stage::Acting;
                Some(Ok(self.writer.open()))
            }
            Stage::Acting => {
                let Some(act) = self.acts.pop_front() else {
                    self.stage = Stage::Done;
                    return Some(Ok(self.writer.close(self.reply.tokens, self.reply.stops())));
                };
                self.act(act).await
            }
        }
    }

    async fn act(&mut self, act: Act) -> Option<Result<String, io::Error>> {
        match act {
            Act::Text(text) => Some(Ok(self.writer.text(&text))),
            Act::Think { text, signature } => Some(Ok(self.writer.think(&text, &signature))),
            Act::Tool { id, name, input } => {
                Some(Ok(self.writer.tool(id.as_deref().unwrap_or_default(), &name, &input)))
            }
            Act::Hold(_) | Act::Rest(_) | Act::Hang => {
                self.stand(&act).await;
                Some(Ok(String::new()))
            }
            Act::Fail(fault) => {
                self.stage = Stage::Done;
                Some(Ok(self.writer.fail(&fault)))
            }
            Act::Break => {
                self.stage = Stage::Done;
                // What was said before goes out first: the connection is flushed while the stream has nothing.
                tokio::task::yield_now().await;
                Some(Err(io::Error::other("broken off")))
            }
            Act::Garbage => {
                self.stage = Stage::Done;
                Some(Ok("data: {this is not JSON\n\n".into()))
            }
        }
    }

    /// Stands still as `act` says, or until the server stops.
    async fn stand(&self, act: &Act) {
        let clock = &self.shared.clock;
        let still = async {
            match act {
                Act::Hold(gate) => gate.pass().await,
                Act::Rest(millis) => clock.sleep_until(clock.now().plus(*millis)).await,
                Act::Hang => std::future::pending().await,
                _ => {}
            }
        };
        tokio::select! {
            () = still => {}
            () = self.shared.stop.cancelled() => {}
        }
    }

    async fn whole(mut self, model: &str) -> Response {
        for act in std::mem::take(&mut self.acts) {
            self.stand(&act).await;
            match act {
                Act::Break => {
                    self.stage = Stage::Done;
                    let broken = stream::iter([Err::<String, _>(io::Error::other("broken off"))]);
                    return ([(header::CONTENT_TYPE, "application/json")], Body::from_stream(broken))
                        .into_response();
                }
                Act::Garbage => {
                    self.stage = Stage::Done;
                    return ([(header::CONTENT_TYPE, "application/json")], "{this is not JSON")
                        .into_response();
                }
                Act::Fail(what) => {
                    self.stage = Stage::Done;
                    return fault(self.wire, &what, &HeaderMap::new());
                }
                _ => {}
            }
        }
        self.stage = Stage::Done;
        axum::Json(json!(self.wire.whole(model, self.no, &self.reply))).into_response()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.stage != Stage::Done {
            self.shared.counts.send_modify(|counts| counts.aborted += 1);
        }
    }
}
