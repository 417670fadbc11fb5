//! The wire: JSON, one record a line, over pi's standard input and output.
//!
//! Commands have an id, and so have their responses; everything else that comes is an event. A record ends with a line
//! feed and nothing else does. Lines that are no records are passed over. While a turn listens, it hears events and the
//! responses to its own commands in the order in which pi wrote them; a turn that is slow makes pi wait.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::StreamExt;
use mainspring_kernel::tasks::Tasks;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::{mpsc, oneshot};
use tokio_util::codec::{AnyDelimiterCodec, FramedRead};
use tokio_util::sync::CancellationToken;

use super::dialog;
use crate::process::Pipes;

/// How long a record may be. Beyond it the connection is given up.
const LINE: usize = 64 << 20;
/// How many records a turn may be behind.
const BEHIND: usize = 256;

/// Why a command has no result.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum CallError {
    /// Pi said no.
    #[error("{0}")]
    Refused(String),
    /// Pi is gone.
    #[error("the agent has closed the connection")]
    Gone,
}

/// The number of a command.
pub(super) type CommandId = u64;

/// A connection to one pi.
pub(super) struct Connection {
    outgoing: mpsc::UnboundedSender<String>,
    shared: Arc<Shared>,
    /// Cancelled once nothing more is read.
    closed: CancellationToken,
    /// Cancelled when the connection is dropped.
    close: CancellationToken,
    commands: AtomicU64,
}

#[derive(Default)]
struct Shared {
    /// Commands whose result somebody awaits; none once nothing more is read.
    awaited: Mutex<Option<HashMap<CommandId, oneshot::Sender<Value>>>>,
    /// Whoever listens.
    heard: Mutex<Option<mpsc::Sender<Value>>>,
}

impl Connection {
    /// Speaks over `pipes` until they close or the connection is dropped. What nobody listens for, or is not
    /// understood, is counted in `ignored`.
    pub(super) fn open(pipes: Pipes, ignored: Arc<AtomicU64>, tasks: &Tasks) -> Self {
        let shared = Arc::new(Shared { awaited: Mutex::new(Some(HashMap::new())), heard: Mutex::default() });
        let (outgoing, lines) = mpsc::unbounded_channel();
        let (closed, close) = (CancellationToken::new(), CancellationToken::new());
        let read = read(pipes.stdout, shared.clone(), outgoing.clone(), ignored);
        let (over, dropped) = (closed.clone(), close.clone());
        let ended = shared.clone();
        tasks.spawn(async move {
            tokio::select! {
                () = read => {}
                () = dropped.cancelled() => {}
            }
            // Whoever awaits a result learns that there will be none.
            ended.awaited.lock().take();
            ended.heard.lock().take();
            over.cancel();
        });
        let dropped = close.clone();
        tasks.spawn(async move {
            tokio::select! {
                () = write(pipes.stdin, lines) => {}
                () = dropped.cancelled() => {}
            }
        });
        Self { outgoing, shared, closed, close, commands: AtomicU64::new(1) }
    }

    /// Sends a command and waits for its result.
    pub(super) async fn call(&self, command: Value) -> Result<Value, CallError> {
        let id = self.next();
        let (result, awaited) = oneshot::channel();
        self.shared.awaited.lock().as_mut().ok_or(CallError::Gone)?.insert(id, result);
        self.write(command, id);
        result_of(awaited.await.map_err(|_| CallError::Gone)?)
    }

    /// Sends a command whose response is heard like an event, if anybody listens.
    pub(super) fn send(&self, command: Value) -> CommandId {
        let id = self.next();
        self.write(command, id);
        id
    }

    /// Sends what is no command, such as an answer.
    pub(super) fn tell(&self, record: &Value) {
        let _ = self.outgoing.send(record.to_string());
    }

    /// Something that tells, for whoever outlives a borrow.
    pub(super) fn teller(&self) -> impl Fn(&Value) + Send + Sync + use<> {
        let outgoing = self.outgoing.clone();
        move |record| {
            let _ = outgoing.send(record.to_string());
        }
    }

    /// Listens until told otherwise.
    pub(super) fn listen(&self) -> mpsc::Receiver<Value> {
        let (heard, inbound) = mpsc::channel(BEHIND);
        // Of a connection that has ended, the end is heard.
        if self.is_open() {
            *self.shared.heard.lock() = Some(heard);
        }
        inbound
    }

    /// Listens no more.
    pub(super) fn ignore(&self) {
        self.shared.heard.lock().take();
    }

    /// False once pi is gone.
    pub(super) fn is_open(&self) -> bool {
        !self.closed.is_cancelled()
    }

    /// Resolves once pi is gone.
    pub(super) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    fn next(&self) -> CommandId {
        self.commands.fetch_add(1, Ordering::Relaxed)
    }

    fn write(&self, mut command: Value, id: CommandId) {
        command["id"] = id.to_string().into();
        self.tell(&command);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close.cancel();
    }
}

/// The number of the command that `record` answers.
pub(super) fn answers(record: &Value) -> Option<CommandId> {
    (record["type"] == "response").then(|| record["id"].as_str()?.parse().ok()).flatten()
}

/// What a response says.
pub(super) fn result_of(mut response: Value) -> Result<Value, CallError> {
    if response["success"] == true {
        return Ok(response["data"].take());
    }
    let why = response["error"].as_str().unwrap_or("the agent refused without saying why");
    Err(CallError::Refused(why.to_owned()))
}

async fn write(mut stdin: ChildStdin, mut lines: mpsc::UnboundedReceiver<String>) {
    while let Some(mut line) = lines.recv().await {
        line.push('\n');
        // One that no longer reads has closed its output, too, or is killed in time.
        if stdin.write_all(line.as_bytes()).await.is_err() || stdin.flush().await.is_err() {
            return;
        }
    }
}

async fn read(
    stdout: ChildStdout,
    shared: Arc<Shared>,
    outgoing: mpsc::UnboundedSender<String>,
    ignored: Arc<AtomicU64>,
) {
    let codec = AnyDelimiterCodec::new_with_max_length(b"\n".to_vec(), vec![], LINE);
    let mut lines = FramedRead::new(stdout, codec);
    // After an error nothing that follows can be trusted.
    while let Some(Ok(line)) = lines.next().await {
        // Programs print other things, too.
        let Some(record) = serde_json::from_slice::<Value>(&line).ok().filter(Value::is_object) else {
            ignored.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        let awaited = answers(&record).and_then(|id| shared.awaited.lock().as_mut()?.remove(&id));
        if let Some(awaited) = awaited {
            let _ = awaited.send(record);
            continue;
        }
        let heard = shared.heard.lock().clone();
        let unheard = match heard {
            Some(heard) => heard.send(record).await.err().map(|unheard| unheard.0),
            None => Some(record),
        };
        if let Some(record) = unheard {
            ignored.fetch_add(1, Ordering::Relaxed);
            // An extension that asks when nobody is there must not wait for ever.
            if let Some(answer) = dialog::dismissed(&record) {
                let _ = outgoing.send(answer.to_string());
            }
        }
    }
}

/// A command without arguments.
pub(super) fn command(name: &str) -> Value {
    json!({"type": name})
}
