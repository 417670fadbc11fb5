//! The connection to an agent: JSON-RPC lines over its standard input and output.
//!
//! Unknown notifications are ignored and unknown requests answered with "method not found". Only messages about the
//! native session that is being prompted reach its turn.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use agent_client_protocol::v1::schema::{
    PermissionOption, RequestPermissionRequest, SessionNotification, SessionUpdate,
};
use agent_client_protocol::{
    Agent, Builder, Client, ConnectionTo, Dispatch, ErrorCode, Handled, Lines, Responder, UntypedMessage,
    is_connection_terminated, is_incoming_transport_closed,
};
use futures_util::{StreamExt, sink, stream};
use mainspring_kernel::clock::Clock;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};
use tokio_util::sync::CancellationToken;

use super::client::{ClientFeatures, ClientRequest};
use crate::driver::{Cause, ModelError, ProcessContext};
use crate::process::{Log, OUTPUT_DRAIN_TIMEOUT_MS};

/// The longest line of an agent. The connection is closed at a longer one.
const MAX_LINE_BYTES: usize = 64 << 20;

/// The most native sessions whose reports are kept.
const MAX_REPORTED_SESSIONS: usize = 64;

/// A message about the native session that is being prompted.
pub(super) enum Inbound {
    /// A `session/update` notification.
    Update(Box<SessionUpdate>),
    /// A `session/request_permission` request.
    Permission(Box<(RequestPermissionRequest, Responder)>),
    /// A file or terminal request.
    Client(Box<ClientRequest>),
}

/// Why a request has no result.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum CallError {
    /// The agent answered with an error.
    #[error("{message}")]
    Refused {
        /// The error code of JSON-RPC or of the protocol.
        code: ErrorCode,
        /// The agent's message.
        message: String,
    },
    /// The connection is closed.
    #[error("the agent has closed the connection")]
    Disconnected,
    /// The result does not have the expected form.
    #[error("the agent's response to {method} is invalid: {reason}")]
    InvalidResponse {
        /// The method of the request.
        method: &'static str,
        /// The reason.
        reason: String,
    },
}

impl CallError {
    /// Classifies the error.
    pub(super) fn cause(&self) -> Cause {
        match self {
            Self::Refused { code: ErrorCode::AUTH_REQUIRED, .. } => {
                Cause::Reported(ModelError::Unauthenticated)
            }
            Self::Refused { code: ErrorCode::RESOURCE_NOT_FOUND, .. } => Cause::UnknownSession,
            Self::Refused { message, .. } => Cause::reported(message),
            Self::Disconnected => Cause::Disconnected,
            Self::InvalidResponse { .. } => Cause::Reported(ModelError::Other),
        }
    }
}

/// A connection to one agent.
pub(super) struct Connection {
    peer: ConnectionTo<Agent>,
    router: Arc<Mutex<Router>>,
    close: CancellationToken,
    fault: Arc<OnceLock<&'static str>>,
}

/// Routes messages to the turn they belong to.
#[derive(Default)]
struct Router {
    /// The native session that is being prompted, and the channel of its turn.
    prompted: Option<(String, mpsc::UnboundedSender<Inbound>)>,
    /// Reports on native sessions, kept whether a turn runs or not.
    reports: HashMap<String, SessionReport>,
}

/// The last reported properties of a native session that outlast its turns.
#[derive(Default)]
struct SessionReport {
    mode: Option<String>,
    config_options: Option<Vec<Value>>,
    cost: Option<f64>,
}

impl Router {
    /// Handles the response to a request of this method: ends the turn, or drops the reports that the response replaces.
    fn answered(&mut self, method: &str) {
        match method {
            // The turn has ended; later messages belong to no turn.
            "session/prompt" => self.prompted = None,
            // The result holds the current mode and options; earlier reports are out of date.
            "session/new" | "session/load" | "session/resume" | "session/fork" => {
                for report in self.reports.values_mut() {
                    (report.mode, report.config_options) = (None, None);
                }
            }
            _ => {}
        }
    }

    fn keep_report(&mut self, params: &Value) {
        let (Some(session), update) = (params["sessionId"].as_str(), &params["update"]) else { return };
        let kind = update["sessionUpdate"].as_str().unwrap_or_default();
        if !["current_mode_update", "config_option_update", "usage_update"].contains(&kind) {
            return;
        }
        if self.reports.len() >= MAX_REPORTED_SESSIONS && !self.reports.contains_key(session) {
            self.reports.clear();
        }
        let report = self.reports.entry(session.to_owned()).or_default();
        match kind {
            "current_mode_update" => report.mode = update["currentModeId"].as_str().map(str::to_owned),
            "config_option_update" => report.config_options = update["configOptions"].as_array().cloned(),
            _ if update["cost"]["currency"] == "USD" => {
                report.cost = update["cost"]["amount"].as_f64().or(report.cost);
            }
            _ => {}
        }
    }
}

impl Connection {
    /// Connects to an agent over its pipes, until they close or the connection is dropped. Counts the messages that belong
    /// to no current turn, cannot be parsed, or request a feature that was not offered. Lines that are not messages go
    /// into `log`.
    pub(super) async fn open(
        (stdin, stdout): (impl AsyncWrite + Send + Unpin + 'static, impl AsyncRead + Send + Unpin + 'static),
        log: Log,
        features: ClientFeatures,
        context: &ProcessContext,
    ) -> Result<Self, CallError> {
        let (ignored, clock) = (context.ignored.clone(), context.clock.clone());
        let router = Arc::<Mutex<Router>>::default();
        let close = CancellationToken::new();
        let fault = Arc::<OnceLock<&'static str>>::default();
        let (ready, peer) = oneshot::channel();
        let builder = Builder::new(Client).on_receive_dispatch(
            {
                let router = router.clone();
                async move |message: Dispatch, _peer| Ok(route(&router, features, &ignored, message))
            },
            agent_client_protocol::on_receive_dispatch!(),
        );
        let (closed, cause) = (close.clone(), fault.clone());
        context.tasks.spawn(async move {
            let transport = transport((stdin, stdout), log, cause, (clock, closed.clone()));
            let serve = builder.connect_with(transport, async move |peer: ConnectionTo<Agent>| {
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
        let peer = peer.await.map_err(|_| CallError::Disconnected)?;
        Ok(Self { peer, router, close, fault })
    }

    /// Describes the unreadable line of the agent that ended the connection, if one did.
    pub(super) fn fault(&self) -> Option<&'static str> {
        self.fault.get().copied()
    }

    /// Sends a request and waits for its result.
    pub(super) async fn call<T: DeserializeOwned>(
        &self,
        method: &'static str,
        params: impl Serialize,
    ) -> Result<T, CallError> {
        self.request(method, params).1.await
    }

    /// Sends a request. Returns its id on the wire, and a future of its result.
    pub(super) fn request<T: DeserializeOwned, P: Serialize>(
        &self,
        method: &'static str,
        params: P,
    ) -> (Option<String>, impl Future<Output = Result<T, CallError>> + use<T, P>) {
        let invalid = move |reason: String| CallError::InvalidResponse { method, reason };
        let sent = UntypedMessage::new(method, params).map(|message| self.peer.send_request(message));
        let id = sent.as_ref().ok().map(|sent| sent.id().to_string());
        let result = async move {
            let sent = sent.map_err(|error| invalid(error.message))?;
            let result = sent.block_task().await.map_err(|error| call_error(&error))?;
            serde_json::from_value(result).map_err(|error| invalid(error.to_string()))
        };
        (id, result)
    }

    /// Sends a notification. Returns false if the connection is closed.
    pub(super) fn notify(&self, method: &'static str, params: impl Serialize) -> bool {
        UntypedMessage::new(method, params).and_then(|message| self.peer.send_notification(message)).is_ok()
    }

    /// Receives the messages about one native session until [`Connection::unsubscribe`].
    pub(super) fn subscribe(&self, native: &str) -> mpsc::UnboundedReceiver<Inbound> {
        let (sender, inbound) = mpsc::unbounded_channel();
        self.router.lock().prompted = Some((native.to_owned(), sender));
        inbound
    }

    pub(super) fn unsubscribe(&self) {
        self.router.lock().prompted = None;
    }

    /// Takes the mode and config options of a native session, if reported since the last call.
    pub(super) fn take_changes(&self, native: &str) -> (Option<String>, Option<Vec<Value>>) {
        let mut router = self.router.lock();
        let report = router.reports.get_mut(native);
        report.map(|report| (report.mode.take(), report.config_options.take())).unwrap_or_default()
    }

    /// Takes the total cost of a native session in dollars, if reported since the last call.
    pub(super) fn take_cost(&self, native: &str) -> Option<f64> {
        self.router.lock().reports.get_mut(native)?.cost.take()
    }

    pub(super) fn is_open(&self) -> bool {
        self.peer.termination().is_none() && !self.peer.is_incoming_closed()
    }

    /// Waits until the connection is closed.
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

/// The lines to and from an agent. Reading ends with the output or at the first line that cannot be read. After a failed
/// write, the error is returned once reading has ended, `closed` is cancelled or [`OUTPUT_DRAIN_TIMEOUT_MS`] has passed.
fn transport(
    (stdin, stdout): (impl AsyncWrite + Send + Unpin + 'static, impl AsyncRead + Send + Unpin + 'static),
    log: Log,
    fault: Arc<OnceLock<&'static str>>,
    (clock, closed): (Clock, CancellationToken),
) -> Lines<
    impl futures_util::Sink<String, Error = std::io::Error> + Send + 'static,
    impl futures_util::Stream<Item = std::io::Result<String>> + Send + 'static,
> {
    let has_read = CancellationToken::new();
    let reading = has_read.clone().drop_guard();
    let outgoing = sink::unfold(stdin, move |mut stdin, mut line: String| {
        let (clock, closed, has_read) = (clock.clone(), closed.clone(), has_read.clone());
        async move {
            line.truncate(line.trim_end().len());
            line.push('\n');
            if let Err(error) = write(&mut stdin, line.as_bytes()).await {
                // The error ends the connection, but the last output of an agent that has ended is still in the pipe.
                tokio::select! {
                    () = has_read.cancelled() => {}
                    () = closed.cancelled() => {}
                    () = clock.sleep_for(OUTPUT_DRAIN_TIMEOUT_MS) => {}
                }
                return Err(error);
            }
            Ok(stdin)
        }
    });
    let lines = FramedRead::new(stdout, LinesCodec::new_with_max_length(MAX_LINE_BYTES));
    // Stop at the first error: the line boundary is lost.
    let state = (Some((lines, reading)), log, fault);
    let incoming = stream::unfold(state, |(lines, log, fault)| async move {
        let (mut lines, reading) = lines?;
        loop {
            match lines.next().await? {
                // Agents also print plain text, such as the reason for their exit.
                Ok(line) if !line.trim_start().starts_with('{') => log.push_line(&line),
                Ok(line) => return Some((Ok(line), (Some((lines, reading)), log, fault))),
                Err(error) => {
                    let _ = line_fault(&error).map(|cause| fault.set(cause));
                    return Some((Err(std::io::Error::other(error)), (None, log, fault)));
                }
            }
        }
    });
    Lines::new(Box::pin(outgoing), Box::pin(incoming))
}

async fn write(stdin: &mut (impl AsyncWrite + Unpin), line: &[u8]) -> std::io::Result<()> {
    stdin.write_all(line).await?;
    stdin.flush().await
}

/// The reason why a line cannot be read.
fn line_fault(error: &LinesCodecError) -> Option<&'static str> {
    match error {
        LinesCodecError::MaxLineLengthExceeded => Some("sent a line of more than 64 MB"),
        LinesCodecError::Io(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            Some("sent a line that is not UTF-8")
        }
        LinesCodecError::Io(_) => None,
    }
}

/// Sends a message about the prompted native session to its turn. The library answers the messages not handled here.
fn route(
    router: &Mutex<Router>,
    features: ClientFeatures,
    ignored: &AtomicU64,
    message: Dispatch,
) -> Handled<Dispatch> {
    let unhandled = |message| Handled::No { message, retry: false };
    let mut router = router.lock();
    match &message {
        Dispatch::Response(_, response) => {
            router.answered(response.method());
            return unhandled(message);
        }
        Dispatch::Notification(UntypedMessage { method, params }) if method == "session/update" => {
            router.keep_report(params);
        }
        _ => {}
    }
    let is_prompted = |params: &Value| {
        let session = params.get("sessionId").and_then(Value::as_str);
        session.is_some() && session == router.prompted.as_ref().map(|(native, _)| native.as_str())
    };
    let inbound = match message {
        Dispatch::Notification(UntypedMessage { method, params }) if method == "session/update" => {
            let update = is_prompted(&params).then(|| serde_json::from_value::<SessionNotification>(params));
            match update {
                Some(Ok(update)) => Inbound::Update(Box::new(update.update)),
                _ => {
                    ignored.fetch_add(1, Ordering::Relaxed);
                    return Handled::Yes;
                }
            }
        }
        Dispatch::Request(UntypedMessage { method, params }, responder)
            if method == "session/request_permission" && is_prompted(&params) =>
        {
            match serde_json::from_value(without_unknown_options(params)) {
                Ok(request) => Inbound::Permission(Box::new((request, responder))),
                Err(error) => {
                    let error = agent_client_protocol::Error::invalid_params().data(error.to_string());
                    let _ = responder.respond_with_error(error);
                    return Handled::Yes;
                }
            }
        }
        Dispatch::Request(UntypedMessage { method, params }, responder)
            if features.include(&method) && is_prompted(&params) =>
        {
            Inbound::Client(Box::new(ClientRequest { method, params, responder }))
        }
        other => {
            if matches!(other, Dispatch::Notification(_) | Dispatch::Request(..)) {
                ignored.fetch_add(1, Ordering::Relaxed);
            }
            return unhandled(other);
        }
    };
    if let Some((_, turn)) = &router.prompted {
        let _ = turn.send(inbound);
    }
    Handled::Yes
}

/// Removes the options of unknown kinds from a permission request.
fn without_unknown_options(mut request: Value) -> Value {
    if let Some(options) = request.get_mut("options").and_then(Value::as_array_mut) {
        options.retain(|option| PermissionOption::deserialize(option).is_ok());
    }
    request
}

fn call_error(error: &agent_client_protocol::Error) -> CallError {
    if is_connection_terminated(error) || is_incoming_transport_closed(error) {
        return CallError::Disconnected;
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

#[cfg(test)]
mod tests;
