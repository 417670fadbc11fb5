//! The relay: a socket in the state directory through which agents call control tools and the host's tools.
//!
//! ```text
//! agent ──tool_use──▶ relay ──▶ a control tool: answered by the kernel
//!                       └────▶ any other name: tool_use to the host ──tool_result──▶ back to the agent
//! ```
//!
//! Invariant: every call gets exactly one result, at the latest on timeout or when the host disconnects.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::{File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainspring_api::jsonl::{Code, LineIds, Reply, ToolResult};
use mainspring_control::{CLIENT, ControlTools, DEFAULT_BUDGET_USD, error_answer, is_control_tool};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::OwnedReadHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use super::Shared;
use super::line::Envelope;
use super::live::Query;
use crate::plane::LinkPlane;

/// Maximum bytes of a tool result.
const RESULT_MAX_BYTES: usize = 16 << 20;
/// Maximum number of results queued for an agent.
const QUEUED_RESULTS: usize = 16;
/// Maximum number of concurrent calls of one agent.
const MAX_CONCURRENT_CALLS: usize = 256;
/// Chunk size for discarding the rest of a line over the limit.
const DISCARD_CHUNK_BYTES: u64 = 64 << 10;

/// Pending calls to the host, and the number of those whose result is not written yet.
#[derive(Default)]
pub(super) struct Calls(Mutex<CallState>, Arc<watch::Sender<usize>>);

/// A call of a host's tool, until its result is written.
struct Unanswered(Arc<watch::Sender<usize>>);

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

#[derive(Default)]
struct CallState {
    /// By the call id sent to the host.
    waiting: HashMap<String, oneshot::Sender<Value>>,
    owners: Owners,
    /// The socket and its lock, while this host holds them.
    socket: Option<(PathBuf, File)>,
    closed: bool,
}

/// The owner of agents whose query is unknown.
#[derive(Default)]
struct Owners {
    queried: QueriedOwners,
    /// The owner of the host's latest token.
    token: Option<String>,
}

/// The owners of the host's queries so far.
#[derive(Default)]
enum QueriedOwners {
    #[default]
    None,
    One(String),
    Several,
}

/// A tool call of an agent.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Call {
    r#type: String,
    call_id: String,
    name: String,
    #[serde(default)]
    input: Value,
    request_id: Option<String>,
    client_id: Option<String>,
    session_id: Option<String>,
    run_id: Option<String>,
    attempt_id: Option<String>,
    adapter_id: Option<String>,
    adapter_session_id: Option<String>,
    protocol_version: Option<u64>,
}

/// Listens for agents at `path`. Replaces the socket of a dead host; waits for a living one to exit.
pub(super) fn listen(shared: &Arc<Shared>, path: &Path) -> io::Result<()> {
    let lock = File::create(path.with_extension("lock"))?;
    match lock.try_lock() {
        Ok(()) => open(shared, path, lock),
        Err(TryLockError::WouldBlock) => {
            tracing::warn!(path = %path.display(), "another host serves the agents' tool calls; waiting for it to exit");
            open_later(shared, path, lock)
        }
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Opens the socket once the host that holds the lock has exited.
fn open_later(shared: &Arc<Shared>, path: &Path, lock: File) -> io::Result<()> {
    let (locked_sender, locked) = oneshot::channel();
    // Waiting for the lock blocks, so it has its own thread, which ends with the process at the latest.
    std::thread::Builder::new().name("jsonl-relay".into()).spawn(move || {
        let result = lock.lock();
        // The receiver is gone if this host has exited.
        let _ = locked_sender.send(result.map(|()| lock));
    })?;
    let (host, path) = (Arc::downgrade(shared), path.to_owned());
    shared.tasks.spawn(async move {
        let (Ok(Ok(lock)), Some(shared)) = (locked.await, host.upgrade()) else { return };
        if let Err(error) = open(&shared, &path, lock) {
            tracing::warn!(%error, "relay socket was not opened: agents cannot call the host's tools");
        }
    });
    Ok(())
}

/// Opens the socket. The caller holds the lock.
fn open(shared: &Arc<Shared>, path: &Path, lock: File) -> io::Result<()> {
    if shared.calls.0.lock().closed {
        return Ok(());
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = UnixListener::bind(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    shared.calls.0.lock().socket = Some((path.to_owned(), lock));
    let host = Arc::downgrade(shared);
    shared.tasks.spawn(async move {
        loop {
            match socket.accept().await {
                Ok((agent, _)) => {
                    let Some(shared) = host.upgrade() else { return };
                    shared.tasks.spawn(serve(shared.clone(), agent));
                }
                Err(error) => tracing::warn!(%error, "agent connection was not accepted"),
            }
        }
    });
    Ok(())
}

/// Serves the calls of one agent until it disconnects.
async fn serve(shared: Arc<Shared>, agent: UnixStream) {
    let (read, mut write) = agent.into_split();
    let (answers, mut waiting) = mpsc::channel::<Answer>(QUEUED_RESULTS);
    shared.tasks.spawn(async move {
        while let Some((line, unanswered)) = waiting.recv().await {
            if write.write_all(&line).await.is_err() {
                return;
            }
            drop(unanswered);
        }
    });
    let (mut lines, limit) = (BufReader::new(read), shared.options.line_bytes);
    let permits = Arc::new(Semaphore::new(MAX_CONCURRENT_CALLS));
    while let Some(line) = next(&mut lines, limit).await {
        let call = match read_call(line, limit) {
            Ok(call) => call,
            Err((call_id, why)) => {
                send(&answers, &call_id, failed("invalid_tool_input", why), None).await;
                continue;
            }
        };
        // At the limit, the agent waits until one of its calls has a result.
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        let (shared, answers) = (shared.clone(), answers.clone());
        let tasks = shared.tasks.clone();
        tasks.spawn(async move {
            let call_id = call.call_id.clone();
            // A control tool may take long, and the host does not wait for it when it leaves.
            let unanswered = (!is_control_tool(&call.name)).then(|| shared.calls.unanswered());
            let result = tokio::select! {
                result = run(&shared, call) => result,
                // The agent has disconnected.
                () = answers.closed() => return,
            };
            send(&answers, &call_id, result, unanswered).await;
            drop(permit);
        });
    }
}

/// Reads the next line, cut to one byte over the limit; `None` at the end of the input.
async fn next(lines: &mut BufReader<OwnedReadHalf>, limit: usize) -> Option<Vec<u8>> {
    loop {
        let mut line = vec![];
        (&mut *lines).take(limit as u64 + 1).read_until(b'\n', &mut line).await.ok()?;
        let mut rest = vec![];
        while line.len() > limit && !line.ends_with(b"\n") && !rest.ends_with(b"\n") {
            rest.clear();
            if (&mut *lines).take(DISCARD_CHUNK_BYTES).read_until(b'\n', &mut rest).await.ok()? == 0 {
                break;
            }
        }
        match line.trim_ascii().is_empty() {
            true if line.is_empty() => return None,
            true => {}
            false => return Some(line),
        }
    }
}

/// Parses a call. Fails with the call id, as far as readable, and the reason.
fn read_call(line: Vec<u8>, limit: usize) -> Result<Call, (String, String)> {
    if line.len() > limit {
        return Err((String::new(), format!("a line has at most {limit} bytes")));
    }
    let object = match serde_json::from_slice(&line) {
        Ok(Value::Object(object)) => object,
        Ok(_) => return Err((String::new(), "a line is a JSON object".into())),
        Err(error) => return Err((String::new(), format!("the line is not JSON: {error}"))),
    };
    drop(line);
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (call_id, kind) = (text("callId"), text("type"));
    match serde_json::from_value::<Call>(Value::Object(object)) {
        Ok(call) if call.r#type == "tool_use" => Ok(call),
        Ok(_) => Err((call_id, format!("no line of an agent has the type {kind:?}"))),
        Err(error) => Err((call_id, error.to_string())),
    }
}

/// A line for an agent, and its call if that is one of a host's tool.
type Answer = (Vec<u8>, Option<Unanswered>);

async fn send(answers: &mpsc::Sender<Answer>, call_id: &str, result: String, unanswered: Option<Unanswered>) {
    let mut line =
        json!({"type": "tool_result", "callId": call_id, "result": result}).to_string().into_bytes();
    line.push(b'\n');
    // An agent that has disconnected needs no result.
    let _ = answers.send((line, unanswered)).await;
}

/// Builds the result of a failed call.
fn failed(code: &str, message: impl Into<String>) -> String {
    error_answer(code, &message.into())
}

async fn run(shared: &Arc<Shared>, call: Call) -> String {
    let query = caller(shared, &call);
    let seconds = shared.options.tool_timeout_ms / 1_000;
    let timed_out =
        failed("timeout", format!("the tool {:?} did not answer within {seconds} seconds", call.name));
    let answer = async {
        if is_control_tool(&call.name) {
            let owner = match &query {
                Some(query) => Some(query.owner.clone()),
                None => shared.calls.owner(is_named(&call), &shared.options.owner),
            };
            let Some(owner) = owner else {
                let message = "the owner of this call is unknown: name the runId of a live query, or its requestId and \
                               clientId";
                return failed("stale_owner", message);
            };
            let details = query.as_ref().map(|query| query.details());
            let (session, run) = details.map_or((None, None), |details| (details.session, details.run));
            let tools = ControlTools {
                plane: &LinkPlane::new(&shared.link, &owner),
                session,
                run,
                aliases: &shared.options.aliases,
                client_id: CLIENT,
                request_id: &shared.ids.secret(),
                default_budget_usd: Some(DEFAULT_BUDGET_USD),
            };
            return tools.call(&call.name, call.input.clone()).await.unwrap_or_else(|failed| failed);
        }
        ask_host(shared, &call, query.as_deref()).await
    };
    tokio::select! {
        answer = answer => answer,
        () = shared.clock.sleep_for(shared.options.tool_timeout_ms) => timed_out,
    }
}

/// Asks the host to run a tool.
async fn ask_host(shared: &Shared, call: &Call, query: Option<&Query>) -> String {
    let Some((name, answer)) = shared.calls.begin(&call.call_id) else {
        return failed("transport_interruption", "the host is gone");
    };
    let _guard = PendingCall { calls: &shared.calls, name: &name };
    let line_ids = match query {
        Some(query) => query.line_ids(None),
        None => line_ids_of(call),
    };
    shared
        .reply(
            &Reply::ToolUse {
                call_id: (&name).into(),
                name: (&call.name).into(),
                input: Cow::Borrowed(&call.input),
            },
            &line_ids,
        )
        .await;
    match answer.await {
        Ok(Value::String(result)) if result.len() <= RESULT_MAX_BYTES => result,
        Ok(Value::String(result)) => too_long(result.len()),
        Ok(other) => match other.to_string() {
            result if result.len() <= RESULT_MAX_BYTES => result,
            result => too_long(result.len()),
        },
        Err(_) => failed("transport_interruption", "the host is gone"),
    }
}

fn too_long(size: usize) -> String {
    let message = format!("the tool result has {size} bytes; the limit is {RESULT_MAX_BYTES}");
    failed("malformed_or_oversized_tool_result", message)
}

/// Finds the query that a call belongs to: by the ids in the call, or because only one query matches.
fn caller(shared: &Shared, call: &Call) -> Option<Arc<Query>> {
    let live = &shared.live;
    let is = |given: &Option<String>, known: Option<String>| given.is_some() && *given == known;
    let by_run = call.run_id.is_some() || call.attempt_id.is_some();
    let found = live.latest(|query| {
        let details = query.details();
        is(&call.run_id, details.run.map(|id| id.to_string()))
            || is(&call.attempt_id, details.attempt.map(|id| id.to_string()))
    });
    // If the named run has ended, the call belongs to no other query.
    if found.is_some() || (by_run && call.request_id.is_none()) {
        return found;
    }
    if let Some(request) = &call.request_id {
        return live.only(|query| {
            query.request == *request && call.client_id.as_ref().is_none_or(|client| *client == query.client)
        });
    }
    let fits = |query: &Query| {
        let details = query.details();
        let adapter = call.adapter_id.as_ref().is_none_or(|adapter| {
            *adapter == query.adapter || shared.options.aliases.get(adapter) == Some(&query.adapter)
        });
        let session =
            call.session_id.is_none() || is(&call.session_id, details.session.map(|id| id.to_string()));
        let native = call.adapter_session_id.is_none() || is(&call.adapter_session_id, details.native);
        details.running && adapter && session && native
    };
    live.only(fits)
}

/// True for a call that names its query.
fn is_named(call: &Call) -> bool {
    let ids = [&call.run_id, &call.attempt_id, &call.request_id, &call.session_id, &call.adapter_session_id];
    ids.iter().any(|id| id.is_some())
}

/// Returns the ids in a call, for a call whose query is unknown.
fn line_ids_of(call: &Call) -> LineIds {
    fn id<T: std::str::FromStr>(text: Option<&String>) -> Option<T> {
        text.and_then(|text| text.parse().ok())
    }
    LineIds {
        protocol_version: call.protocol_version,
        request_id: call.request_id.clone(),
        client_id: call.client_id.clone(),
        session_id: id(call.session_id.as_ref()),
        run_id: id(call.run_id.as_ref()),
        attempt_id: id(call.attempt_id.as_ref()),
        event_id: None,
        adapter_session_id: call.adapter_session_id.clone(),
    }
}

/// Handles `tool_result`: the result of a tool that the host ran.
pub(super) async fn answer(shared: &Shared, envelope: &Envelope, line: ToolResult) {
    let waiting = shared.calls.0.lock().waiting.remove(&line.call_id);
    // An agent that has disconnected needs no result.
    if waiting.is_some_and(|waiting| waiting.send(line.result).is_ok()) {
        return;
    }
    // The error names only the call, so that the host does not take it for the end of the query.
    tracing::info!(
        call = line.call_id,
        request = envelope.request,
        "tool result for a call that is not pending"
    );
    let message =
        "no tool call with this callId is pending: it has a result, it timed out, or it never existed";
    let error = Reply::Error {
        message: message.into(),
        code: Code::new("not_found"),
        call_id: Some((&line.call_id).into()),
    };
    shared.reply(&error, &LineIds::default()).await;
}

impl Calls {
    /// Counts a call until the returned value is dropped.
    fn unanswered(&self) -> Unanswered {
        self.1.send_modify(|count| *count += 1);
        Unanswered(self.1.clone())
    }

    /// Resolves once every call of a host's tool has its result.
    pub(super) async fn answered(&self) {
        // The sender lives as long as `self`.
        let _ = self.1.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Records the owner of a query.
    pub(super) fn record_owner(&self, owner: &str) {
        let queried = &mut self.0.lock().owners.queried;
        match queried {
            QueriedOwners::None => *queried = QueriedOwners::One(owner.to_owned()),
            QueriedOwners::One(known) if known != owner => *queried = QueriedOwners::Several,
            QueriedOwners::One(_) | QueriedOwners::Several => {}
        }
    }

    /// Sets the owner of agents that do not name their query.
    pub(super) fn set_token_owner(&self, owner: &str) {
        self.0.lock().owners.token = Some(owner.to_owned());
    }

    /// Returns the owner of a call whose query is unknown; `None` if it is ambiguous. `named`: the call names a query.
    fn owner(&self, named: bool, default: &str) -> Option<String> {
        let Owners { queried, token } = &self.0.lock().owners;
        match (token, queried) {
            (Some(token), _) if !named => Some(token.clone()),
            (_, QueriedOwners::None) => Some(default.to_owned()),
            (_, QueriedOwners::One(owner)) => Some(owner.clone()),
            (_, QueriedOwners::Several) => None,
        }
    }

    /// Registers a pending call. Returns its id for the host: the agent's own, or a variant if another agent uses it.
    fn begin(&self, name: &str) -> Option<(String, oneshot::Receiver<Value>)> {
        let mut state = self.0.lock();
        if state.closed {
            return None;
        }
        let is_free = |name: &String| !state.waiting.contains_key(name);
        let other = (2..).map(|no: u32| format!("{name}~{no}"));
        let name = std::iter::once(name.to_owned()).chain(other).find(is_free)?;
        let (answer, waiting) = oneshot::channel();
        state.waiting.insert(name.clone(), answer);
        Some((name, waiting))
    }

    /// Fails all pending and future calls: the host has disconnected.
    pub(super) fn host_left(&self) {
        let mut state = self.0.lock();
        state.closed = true;
        state.waiting.clear();
    }

    /// Closes the socket to new agents.
    pub(super) fn close(&self) {
        if let Some((path, lock)) = self.0.lock().socket.take() {
            // Removes the socket before releasing the lock, so that the next host does not lose its new socket.
            let _ = std::fs::remove_file(path);
            drop(lock);
        }
    }
}

/// Removes a pending call on drop.
struct PendingCall<'a> {
    calls: &'a Calls,
    name: &'a str,
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        self.calls.0.lock().waiting.remove(self.name);
    }
}
