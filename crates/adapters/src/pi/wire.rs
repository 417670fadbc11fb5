//! The connection to a pi process: one JSON record per line over its standard input and output.
//!
//! A command and its response have the same id; every other incoming record is an event. Only a line feed ends a record.
//! Lines that are not records are ignored. A turn receives events and the responses to its own commands in the order in
//! which pi wrote them. A slow turn makes pi wait.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use futures_util::StreamExt;
use mainspring_kernel::tasks::Tasks;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio_util::codec::{AnyDelimiterCodec, AnyDelimiterCodecError, FramedRead};
use tokio_util::sync::CancellationToken;

use super::dialog;

/// The longest record. The connection is closed at a longer one.
const MAX_RECORD_BYTES: usize = 64 << 20;
/// How many records are queued for a turn before pi has to wait.
const MAX_QUEUED_RECORDS: usize = 256;

/// Why a command has no result.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum CallError {
    /// Pi answered with an error.
    #[error("{0}")]
    Refused(String),
    /// The connection is closed.
    #[error("the agent has closed the connection")]
    Disconnected,
}

/// The number of a command.
pub(super) type CommandId = u64;

/// A connection to one pi process.
pub(super) struct Connection {
    outgoing: mpsc::UnboundedSender<String>,
    router: Arc<Router>,
    /// Cancelled when the reader has ended.
    closed: CancellationToken,
    /// Cancelled when the connection is dropped.
    close: CancellationToken,
    fault: Arc<OnceLock<&'static str>>,
    next_id: AtomicU64,
}

/// The destinations of incoming records.
struct Router {
    /// The calls that wait for a response. `None` once the reader has ended.
    pending: Mutex<Option<HashMap<CommandId, oneshot::Sender<Value>>>>,
    /// The queue of the current turn.
    turn: Mutex<Option<mpsc::Sender<Value>>>,
}

impl Connection {
    /// Connects to a pi process over its pipes, until they close or the connection is dropped. `ignored` counts the
    /// records that no turn receives and the lines that are not records.
    pub(super) fn open(
        (stdin, stdout): (impl AsyncWrite + Send + Unpin + 'static, impl AsyncRead + Send + Unpin + 'static),
        ignored: Arc<AtomicU64>,
        tasks: &Tasks,
    ) -> Self {
        let router = Arc::new(Router { pending: Mutex::new(Some(HashMap::new())), turn: Mutex::default() });
        let (outgoing, lines) = mpsc::unbounded_channel();
        let (closed, close) = (CancellationToken::new(), CancellationToken::new());
        let fault = Arc::<OnceLock<&'static str>>::default();
        let read = read_records(stdout, router.clone(), outgoing.clone(), ignored, fault.clone());
        let (ended, dropped) = (closed.clone(), close.clone());
        let routes = router.clone();
        tasks.spawn(async move {
            tokio::select! {
                () = read => {}
                () = dropped.cancelled() => {}
            }
            // Dropping the senders ends the calls that wait for a response.
            routes.pending.lock().take();
            routes.turn.lock().take();
            ended.cancel();
        });
        let dropped = close.clone();
        tasks.spawn(async move {
            tokio::select! {
                () = write_lines(stdin, lines) => {}
                () = dropped.cancelled() => {}
            }
        });
        Self { outgoing, router, closed, close, fault, next_id: AtomicU64::new(1) }
    }

    /// Sends a command and waits for its result.
    pub(super) async fn call(&self, command: Value) -> Result<Value, CallError> {
        let id = self.next_id();
        let (sender, response) = oneshot::channel();
        self.router.pending.lock().as_mut().ok_or(CallError::Disconnected)?.insert(id, sender);
        self.write(command, id);
        response_result(response.await.map_err(|_| CallError::Disconnected)?)
    }

    /// Sends a command whose response the current turn receives like an event.
    pub(super) fn send(&self, command: Value) -> CommandId {
        let id = self.next_id();
        self.write(command, id);
        id
    }

    /// Returns a function that sends records that are not commands, such as the answers to dialogs.
    pub(super) fn record_sender(&self) -> impl Fn(&Value) + Send + Sync + use<> {
        let outgoing = self.outgoing.clone();
        move |record| {
            let _ = outgoing.send(record.to_string());
        }
    }

    /// Receives events until [`Connection::unsubscribe`].
    pub(super) fn subscribe(&self) -> mpsc::Receiver<Value> {
        let (sender, inbound) = mpsc::channel(MAX_QUEUED_RECORDS);
        // On a closed connection the dropped sender ends the queue at once.
        if self.is_open() {
            *self.router.turn.lock() = Some(sender);
        }
        inbound
    }

    pub(super) fn unsubscribe(&self) {
        self.router.turn.lock().take();
    }

    /// Describes the output of pi that ended the connection.
    pub(super) fn fault(&self) -> Option<&'static str> {
        self.fault.get().copied()
    }

    pub(super) fn is_open(&self) -> bool {
        !self.closed.is_cancelled()
    }

    /// Waits until the connection is closed.
    pub(super) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    fn next_id(&self) -> CommandId {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    fn write(&self, mut command: Value, id: CommandId) {
        command["id"] = id.to_string().into();
        let _ = self.outgoing.send(command.to_string());
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close.cancel();
    }
}

/// The number of the command that `record` responds to.
pub(super) fn response_id(record: &Value) -> Option<CommandId> {
    (record["type"] == "response").then(|| record["id"].as_str()?.parse().ok()).flatten()
}

/// The data or the error of a response.
pub(super) fn response_result(mut response: Value) -> Result<Value, CallError> {
    if response["success"] == true {
        return Ok(response["data"].take());
    }
    let message = response["error"].as_str().unwrap_or("the agent refused without saying why");
    Err(CallError::Refused(message.to_owned()))
}

async fn write_lines(mut stdin: impl AsyncWrite + Unpin, mut lines: mpsc::UnboundedReceiver<String>) {
    while let Some(mut line) = lines.recv().await {
        line.push('\n');
        // If pi stops reading, it also closes its output, or is killed later.
        if stdin.write_all(line.as_bytes()).await.is_err() || stdin.flush().await.is_err() {
            return;
        }
    }
}

async fn read_records(
    stdout: impl AsyncRead + Unpin,
    router: Arc<Router>,
    outgoing: mpsc::UnboundedSender<String>,
    ignored: Arc<AtomicU64>,
    fault: Arc<OnceLock<&'static str>>,
) {
    let codec = AnyDelimiterCodec::new_with_max_length(b"\n".to_vec(), vec![], MAX_RECORD_BYTES);
    let mut lines = FramedRead::new(stdout, codec);
    // Stop at the first error: the record boundary is lost.
    while let Some(line) = lines.next().await {
        let line = match line {
            Ok(line) => line,
            Err(error) => {
                if matches!(error, AnyDelimiterCodecError::MaxChunkLengthExceeded) {
                    let _ = fault.set("sent a line of more than 64 MB");
                }
                return;
            }
        };
        // A record that cannot be read may be the one that the turn waits for.
        if line.starts_with(b"{") && std::str::from_utf8(&line).is_err() {
            let _ = fault.set("sent a line that is not UTF-8");
            return;
        }
        // Extensions may print plain text.
        let Some(record) = serde_json::from_slice::<Value>(&line).ok().filter(Value::is_object) else {
            ignored.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        let call = response_id(&record).and_then(|id| router.pending.lock().as_mut()?.remove(&id));
        if let Some(call) = call {
            let _ = call.send(record);
            continue;
        }
        let turn = router.turn.lock().clone();
        let unrouted = match turn {
            Some(turn) => turn.send(record).await.err().map(|unsent| unsent.0),
            None => Some(record),
        };
        if let Some(record) = unrouted {
            ignored.fetch_add(1, Ordering::Relaxed);
            // A dialog without a turn must not wait for ever.
            if let Some(dismissal) = dialog::dismissal_of(&record) {
                let _ = outgoing.send(dismissal.to_string());
            }
        }
    }
}

/// Builds a command without arguments.
pub(super) fn command(name: &str) -> Value {
    json!({"type": name})
}

#[cfg(test)]
mod tests;
