//! The wire: JSON-RPC lines over an agent's standard input and output.
//!
//! Messages are read leniently: what is not understood is ignored if it is a notification, and answered "method not
//! found" if it is a request. Only what concerns the native session that is being prompted is passed on.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use agent_client_protocol::v1::schema::{
    PermissionOption, RequestPermissionRequest, SessionNotification, SessionUpdate,
};
use agent_client_protocol::{
    Agent, Builder, Client, ConnectionTo, Dispatch, ErrorCode, Handled, Lines, Responder, UntypedMessage,
    is_connection_terminated, is_incoming_transport_closed,
};
use futures_util::{StreamExt, sink, stream};
use mainspring_kernel::tasks::Tasks;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, oneshot};
use tokio_util::codec::{FramedRead, LinesCodec};
use tokio_util::sync::CancellationToken;

use super::client::{Offer, Request};
use crate::process::{Log, Pipes};

/// How long a line of an agent may be. Beyond it the connection is given up.
const LINE: usize = 64 << 20;

/// Of how many native sessions something is noted.
const ASIDES: usize = 64;

/// What an agent says of the native session that is being prompted.
pub(super) enum Inbound {
    /// Something happened.
    Update(Box<SessionUpdate>),
    /// It asks for a permission.
    Permission(Box<(RequestPermissionRequest, Responder)>),
    /// It asks for a file or a terminal.
    Client(Box<Request>),
}

/// Why a request has no result.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum CallError {
    /// The agent said no.
    #[error("{message}")]
    Refused {
        /// The code of JSON-RPC or of the protocol.
        code: ErrorCode,
        /// What the agent said.
        message: String,
    },
    /// The agent is gone.
    #[error("the agent has closed the connection")]
    Gone,
    /// What it answered is not an answer.
    #[error("the agent's answer to {method} makes no sense: {reason}")]
    Nonsense {
        /// The request.
        method: &'static str,
        /// What is wrong.
        reason: String,
    },
}

/// A connection to one agent.
pub(super) struct Connection {
    peer: ConnectionTo<Agent>,
    attention: Arc<Mutex<Attention>>,
    close: CancellationToken,
}

/// Whom the agent is listened to for.
#[derive(Default)]
struct Attention {
    /// The native session that is being prompted, and who listens.
    prompted: Option<(String, mpsc::UnboundedSender<Inbound>)>,
    /// What is noted of native sessions, whether anybody listens or not.
    asides: HashMap<String, Aside>,
}

/// What an agent says of a native session that holds beyond its turns.
#[derive(Default)]
struct Aside {
    mode: Option<String>,
    config_options: Option<Vec<Value>>,
    cost: Option<f64>,
}

impl Attention {
    fn note(&mut self, params: &Value) {
        let (Some(session), update) = (params["sessionId"].as_str(), &params["update"]) else { return };
        let kind = update["sessionUpdate"].as_str().unwrap_or_default();
        if !["current_mode_update", "config_option_update", "usage_update"].contains(&kind) {
            return;
        }
        if self.asides.len() >= ASIDES && !self.asides.contains_key(session) {
            self.asides.clear();
        }
        let aside = self.asides.entry(session.to_owned()).or_default();
        match kind {
            "current_mode_update" => aside.mode = update["currentModeId"].as_str().map(str::to_owned),
            "config_option_update" => aside.config_options = update["configOptions"].as_array().cloned(),
            _ if update["cost"]["currency"] == "USD" => {
                aside.cost = update["cost"]["amount"].as_f64().or(aside.cost);
            }
            _ => {}
        }
    }
}

impl Connection {
    /// Speaks over `pipes` until they close or the connection is dropped. Messages that concern nothing that is
    /// listened for, or are not understood, are counted in `ignored`; so are requests for what was not offered. What is
    /// no message goes into `log`.
    pub(super) async fn open(
        (pipes, log): (Pipes, Log),
        offer: Offer,
        ignored: Arc<AtomicU64>,
        tasks: &Tasks,
    ) -> Result<Self, CallError> {
        let attention = Arc::<Mutex<Attention>>::default();
        let close = CancellationToken::new();
        let (ready, peer) = oneshot::channel();
        let builder = Builder::new(Client).on_receive_dispatch(
            {
                let attention = attention.clone();
                async move |message: Dispatch, _peer| Ok(hear(&attention, offer, &ignored, message))
            },
            agent_client_protocol::on_receive_dispatch!(),
        );
        let closed = close.clone();
        tasks.spawn(async move {
            let serve =
                builder.connect_with(transport(pipes, log), async move |peer: ConnectionTo<Agent>| {
                    let _ = ready.send(peer.clone());
                    tokio::select! {
                        () = closed.cancelled() => {}
                        () = peer.incoming_closed() => {}
                    }
                    Ok(())
                });
            if let Err(error) = serve.await {
                tracing::debug!(code = ?error.code, "the connection to an agent has ended");
            }
        });
        let peer = peer.await.map_err(|_| CallError::Gone)?;
        Ok(Self { peer, attention, close })
    }

    /// Sends a request and waits for its result.
    pub(super) async fn call<T: DeserializeOwned>(
        &self,
        method: &'static str,
        params: impl Serialize,
    ) -> Result<T, CallError> {
        let nonsense = |reason: String| CallError::Nonsense { method, reason };
        let message = UntypedMessage::new(method, params).map_err(|error| nonsense(error.message))?;
        let result = self.peer.send_request(message).block_task().await.map_err(|error| refused(&error))?;
        serde_json::from_value(result).map_err(|error| nonsense(error.to_string()))
    }

    /// Sends a notification; false if the agent is gone.
    pub(super) fn notify(&self, method: &'static str, params: impl Serialize) -> bool {
        UntypedMessage::new(method, params).and_then(|message| self.peer.send_notification(message)).is_ok()
    }

    /// Listens for one native session, until told otherwise.
    pub(super) fn listen(&self, native: &str) -> mpsc::UnboundedReceiver<Inbound> {
        let (heard, inbound) = mpsc::unbounded_channel();
        self.attention.lock().prompted = Some((native.to_owned(), heard));
        inbound
    }

    /// Listens no more.
    pub(super) fn ignore(&self) {
        self.attention.lock().prompted = None;
    }

    /// What a native session is said to be like since this was asked last: its mode, and what can be chosen.
    pub(super) fn changes(&self, native: &str) -> (Option<String>, Option<Vec<Value>>) {
        let mut attention = self.attention.lock();
        let aside = attention.asides.get_mut(native);
        aside.map(|aside| (aside.mode.take(), aside.config_options.take())).unwrap_or_default()
    }

    /// What a native session is said to have cost so far, in dollars, since this was asked last.
    pub(super) fn cost(&self, native: &str) -> Option<f64> {
        self.attention.lock().asides.get_mut(native)?.cost.take()
    }

    /// False once the agent is gone.
    pub(super) fn is_open(&self) -> bool {
        self.peer.termination().is_none() && !self.peer.is_incoming_closed()
    }

    /// Resolves once the agent is gone.
    pub(super) async fn closed(&self) {
        tokio::select! {
            () = self.peer.incoming_closed() => {}
            _ = self.peer.terminated() => {}
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close.cancel();
    }
}

fn transport(
    pipes: Pipes,
    log: Log,
) -> Lines<
    impl futures_util::Sink<String, Error = std::io::Error> + Send + 'static,
    impl futures_util::Stream<Item = std::io::Result<String>> + Send + 'static,
> {
    let outgoing = sink::unfold(pipes.stdin, |mut stdin, mut line: String| async move {
        line.truncate(line.trim_end().len());
        line.push('\n');
        stdin.write_all(line.as_bytes()).await?;
        stdin.flush().await?;
        Ok(stdin)
    });
    let lines = FramedRead::new(pipes.stdout, LinesCodec::new_with_max_length(LINE));
    // After an error nothing that follows can be trusted.
    let incoming = stream::unfold((Some(lines), log), |(lines, log)| async move {
        let mut lines = lines?;
        loop {
            match lines.next().await? {
                // Agents print other things, too: among them why they end.
                Ok(line) if !line.trim_start().starts_with('{') => log.line(&line),
                Ok(line) => return Some((Ok(line), (Some(lines), log))),
                Err(error) => return Some((Err(std::io::Error::other(error)), (None, log))),
            }
        }
    });
    Lines::new(Box::pin(outgoing), Box::pin(incoming))
}

/// Passes on what concerns the native session that is listened for.
fn hear(
    attention: &Mutex<Attention>,
    offer: Offer,
    ignored: &AtomicU64,
    message: Dispatch,
) -> Handled<Dispatch> {
    let not_ours = |message| Handled::No { message, retry: false };
    let mut attention = attention.lock();
    match &message {
        Dispatch::Response(_, router) => {
            match router.method() {
                // The turn is over: what the agent says after that belongs to none.
                "session/prompt" => attention.prompted = None,
                // It says what the session is like now, whatever was said before.
                "session/new" | "session/load" | "session/resume" | "session/fork" => {
                    for aside in attention.asides.values_mut() {
                        (aside.mode, aside.config_options) = (None, None);
                    }
                }
                _ => {}
            }
            return not_ours(message);
        }
        Dispatch::Notification(UntypedMessage { method, params }) if method == "session/update" => {
            attention.note(params);
        }
        _ => {}
    }
    let concerns = |params: &Value| {
        let session = params.get("sessionId").and_then(Value::as_str);
        session.is_some() && session == attention.prompted.as_ref().map(|(native, _)| native.as_str())
    };
    let inbound = match message {
        Dispatch::Notification(UntypedMessage { method, params }) if method == "session/update" => {
            let update = concerns(&params).then(|| serde_json::from_value::<SessionNotification>(params));
            match update {
                Some(Ok(update)) => Inbound::Update(Box::new(update.update)),
                _ => {
                    ignored.fetch_add(1, Ordering::Relaxed);
                    return Handled::Yes;
                }
            }
        }
        Dispatch::Request(UntypedMessage { method, params }, responder)
            if method == "session/request_permission" && concerns(&params) =>
        {
            match serde_json::from_value(understood(params)) {
                Ok(request) => Inbound::Permission(Box::new((request, responder))),
                Err(error) => {
                    let error = agent_client_protocol::Error::invalid_params().data(error.to_string());
                    let _ = responder.respond_with_error(error);
                    return Handled::Yes;
                }
            }
        }
        Dispatch::Request(UntypedMessage { method, params }, responder)
            if offer.has(&method) && concerns(&params) =>
        {
            Inbound::Client(Box::new(Request { method, params, responder }))
        }
        other => {
            if matches!(other, Dispatch::Notification(_) | Dispatch::Request(..)) {
                ignored.fetch_add(1, Ordering::Relaxed);
            }
            return not_ours(other);
        }
    };
    if let Some((_, heard)) = &attention.prompted {
        let _ = heard.send(inbound);
    }
    Handled::Yes
}

/// A request for a permission without the options of a kind that is not known here.
fn understood(mut request: Value) -> Value {
    if let Some(options) = request.get_mut("options").and_then(Value::as_array_mut) {
        options.retain(|option| PermissionOption::deserialize(option).is_ok());
    }
    request
}

fn refused(error: &agent_client_protocol::Error) -> CallError {
    if is_connection_terminated(error) || is_incoming_transport_closed(error) {
        return CallError::Gone;
    }
    let detail = match &error.data {
        Some(Value::String(text)) => format!(": {text}"),
        Some(data) => match data.get("details").or_else(|| data.get("message")).and_then(Value::as_str) {
            Some(text) => format!(": {text}"),
            None => String::new(),
        },
        None => String::new(),
    };
    CallError::Refused { code: error.code, message: format!("{}{detail}", error.message) }
}
