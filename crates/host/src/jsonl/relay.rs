//! The relay: a socket in the state directory by which agents reach tools that they do not have themselves.
//!
//! ```text
//! agent ──tool_use──▶ relay ──▶ a control tool: answered by the kernel
//!                       └────▶ any other name: tool_use to the host ──tool_result──▶ back to the agent
//! ```
//!
//! Invariant: every call has exactly one answer, at the latest when its time is up or the host is gone.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::{File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainspring_api::jsonl::{Code, Names, Reply, ToolResult};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::OwnedReadHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::Shared;
use super::line::Envelope;
use super::live::Query;
use crate::control::{self, Reach};

/// Bytes of what a tool answers.
const RESULT: usize = 16 << 20;
/// How many answers wait for an agent to read them.
const ANSWERS: usize = 16;
/// How many calls of one agent are under way at once.
const AT_ONCE: usize = 256;
/// How much of a line that is too long is read at a time.
const STRETCH: u64 = 64 << 10;

/// Calls that wait for the host.
#[derive(Default)]
pub(super) struct Calls(Mutex<State>);

#[derive(Default)]
struct State {
    /// By the name that the host knows.
    waiting: HashMap<String, oneshot::Sender<Value>>,
    owners: Owners,
    /// The socket, while it is ours, and the lock that says so.
    socket: Option<(PathBuf, File)>,
    closed: bool,
}

/// For whom an agent acts whose query is not known.
#[derive(Default)]
struct Owners {
    asked: Asked,
    /// Of whom the host has handed over a token last.
    token: Option<String>,
}

/// For whom the host has asked so far.
#[derive(Default)]
enum Asked {
    #[default]
    Nobody,
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

/// Lets agents in at `path`. What a dead host left there is replaced; a living one keeps it as long as it lives.
pub(super) fn listen(shared: &Arc<Shared>, path: &Path) -> io::Result<()> {
    let lock = File::create(path.with_extension("lock"))?;
    match lock.try_lock() {
        Ok(()) => open(shared, path, lock),
        Err(TryLockError::WouldBlock) => {
            tracing::warn!(path = %path.display(), "another host answers the tool calls of agents, as long as it lives");
            succeed(shared, path, lock)
        }
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Takes the place of the host that lets agents in, once that has left.
fn succeed(shared: &Arc<Shared>, path: &Path, lock: File) -> io::Result<()> {
    let (left, leaves) = oneshot::channel();
    // Who waits for a lock is blocked: a thread of its own, which ends with the process at the latest.
    std::thread::Builder::new().name("jsonl-relay".into()).spawn(move || {
        let locked = lock.lock();
        // A host that has left itself does not wait any more.
        let _ = left.send(locked.map(|()| lock));
    })?;
    let (host, path) = (Arc::downgrade(shared), path.to_owned());
    shared.tasks.spawn(async move {
        let (Ok(Ok(lock)), Some(shared)) = (leaves.await, host.upgrade()) else { return };
        if let Err(error) = open(&shared, &path, lock) {
            tracing::warn!(%error, "agents cannot reach the tools of this host");
        }
    });
    Ok(())
}

/// Lets agents in, under a lock that is held.
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
                Err(error) => tracing::warn!(%error, "an agent could not be let in"),
            }
        }
    });
    Ok(())
}

/// Answers the calls of one agent until it leaves.
async fn serve(shared: Arc<Shared>, agent: UnixStream) {
    let (read, mut write) = agent.into_split();
    let (answers, mut waiting) = mpsc::channel::<Vec<u8>>(ANSWERS);
    shared.tasks.spawn(async move {
        while let Some(line) = waiting.recv().await {
            if write.write_all(&line).await.is_err() {
                return;
            }
        }
    });
    let (mut lines, limit) = (BufReader::new(read), shared.options.line_bytes);
    let places = Arc::new(Semaphore::new(AT_ONCE));
    while let Some(line) = next(&mut lines, limit).await {
        let call = match read_call(line, limit) {
            Ok(call) => call,
            Err((call_id, why)) => {
                send(&answers, &call_id, failed("invalid_tool_input", why)).await;
                continue;
            }
        };
        // An agent that calls without end waits until some have their answers, which all of them get.
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let (shared, answers) = (shared.clone(), answers.clone());
        let tasks = shared.tasks.clone();
        tasks.spawn(async move {
            let call_id = call.call_id.clone();
            let result = tokio::select! {
                result = run(&shared, call) => result,
                // Nobody is there to hear it.
                () = answers.closed() => return,
            };
            send(&answers, &call_id, result).await;
            drop(place);
        });
    }
}

/// The next line, of which no more than one byte beyond the limit is kept; none at the end.
async fn next(lines: &mut BufReader<OwnedReadHalf>, limit: usize) -> Option<Vec<u8>> {
    loop {
        let mut line = vec![];
        (&mut *lines).take(limit as u64 + 1).read_until(b'\n', &mut line).await.ok()?;
        let mut rest = vec![];
        while line.len() > limit && !line.ends_with(b"\n") && !rest.ends_with(b"\n") {
            rest.clear();
            if (&mut *lines).take(STRETCH).read_until(b'\n', &mut rest).await.ok()? == 0 {
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

/// The call that a line is; else the name of the call, as far as it can be read, and what is wrong with it.
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

async fn send(answers: &mpsc::Sender<Vec<u8>>, call_id: &str, result: String) {
    let mut line =
        json!({"type": "tool_result", "callId": call_id, "result": result}).to_string().into_bytes();
    line.push(b'\n');
    // An agent that has left needs no answer.
    let _ = answers.send(line).await;
}

/// What a call is answered with, whatever happens.
fn failed(code: &str, message: impl Into<String>) -> String {
    control::refused(code, &message.into()).to_string()
}

async fn run(shared: &Arc<Shared>, call: Call) -> String {
    let query = caller(shared, &call);
    let seconds = shared.options.tool_timeout / 1_000;
    let late = failed("timeout", format!("the tool {:?} did not answer within {seconds} seconds", call.name));
    let answer = async {
        if control::is_control_tool(&call.name) {
            let owner = match &query {
                Some(query) => Some(query.owner.clone()),
                None => shared.calls.owner(is_named(&call), &shared.options.owner),
            };
            let Some(owner) = owner else {
                let message = "for whom it is called is not known: name the runId of a query that is under way, or its \
                               requestId and clientId";
                return failed("stale_owner", message);
            };
            let session = query.as_ref().and_then(|query| query.known().session);
            let tools = Reach {
                link: &shared.link,
                owner: &owner,
                session,
                aliases: &shared.options.aliases,
                ids: &shared.ids,
                run_of: &|attempt| shared.attempts.run_of(attempt),
            };
            return control::call(&tools, &call.name, call.input.clone()).await.0;
        }
        ask_host(shared, &call, query.as_deref()).await
    };
    tokio::select! {
        answer = answer => answer,
        () = shared.clock.sleep_until(shared.clock.now().plus(shared.options.tool_timeout)) => late,
    }
}

/// Has the host run a tool.
async fn ask_host(shared: &Shared, call: &Call, query: Option<&Query>) -> String {
    let Some((name, answer)) = shared.calls.begin(&call.call_id) else {
        return failed("transport_interruption", "the host is gone");
    };
    let _waits = Waits { calls: &shared.calls, name: &name };
    let names = match query {
        Some(query) => query.names(None),
        None => named(call),
    };
    shared
        .say(
            &Reply::ToolUse {
                call_id: (&name).into(),
                name: (&call.name).into(),
                input: Cow::Borrowed(&call.input),
            },
            &names,
        )
        .await;
    match answer.await {
        Ok(Value::String(result)) if result.len() <= RESULT => result,
        Ok(Value::String(result)) => too_long(result.len()),
        Ok(other) => match other.to_string() {
            result if result.len() <= RESULT => result,
            result => too_long(result.len()),
        },
        Err(_) => failed("transport_interruption", "the host is gone"),
    }
}

fn too_long(size: usize) -> String {
    let message = format!("the tool answered {size} bytes; at most {RESULT} are allowed");
    failed("malformed_or_oversized_tool_result", message)
}

/// The query that an agent works on, by what it says of it, or because there is only one.
fn caller(shared: &Shared, call: &Call) -> Option<Arc<Query>> {
    let live = &shared.live;
    let is = |given: &Option<String>, known: Option<String>| given.is_some() && *given == known;
    let by_run = call.run_id.is_some() || call.attempt_id.is_some();
    let found = live.latest(|query| {
        let known = query.known();
        is(&call.run_id, known.run.map(|id| id.to_string()))
            || is(&call.attempt_id, known.attempt.map(|id| id.to_string()))
    });
    // One that has ended leaves its calls to nobody: the query that happens to be under way is not theirs.
    if found.is_some() || (by_run && call.request_id.is_none()) {
        return found;
    }
    if let Some(request) = &call.request_id {
        return live.only(|query| {
            query.request == *request && call.client_id.as_ref().is_none_or(|client| *client == query.client)
        });
    }
    let fits = |query: &Query| {
        let known = query.known();
        let adapter = call.adapter_id.as_ref().is_none_or(|adapter| {
            *adapter == query.adapter || shared.options.aliases.get(adapter) == Some(&query.adapter)
        });
        let session =
            call.session_id.is_none() || is(&call.session_id, known.session.map(|id| id.to_string()));
        let native = call.adapter_session_id.is_none() || is(&call.adapter_session_id, known.native);
        known.running && adapter && session && native
    };
    live.only(fits)
}

/// True for a call that says which query it belongs to.
fn is_named(call: &Call) -> bool {
    let names =
        [&call.run_id, &call.attempt_id, &call.request_id, &call.session_id, &call.adapter_session_id];
    names.iter().any(|name| name.is_some())
}

/// What a call says of itself, if it names a query that is not known here.
fn named(call: &Call) -> Names {
    fn id<T: std::str::FromStr>(text: Option<&String>) -> Option<T> {
        text.and_then(|text| text.parse().ok())
    }
    Names {
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

/// `tool_result`: what a tool of the host answered.
pub(super) async fn answer(shared: &Shared, envelope: &Envelope, line: ToolResult) {
    let waiting = shared.calls.0.lock().waiting.remove(&line.call_id);
    // An agent that has left needs no answer.
    if waiting.is_some_and(|waiting| waiting.send(line.result).is_ok()) {
        return;
    }
    // Its request goes on: the answer names the call alone, so that it is not taken for the query's end.
    tracing::info!(
        call = line.call_id,
        request = envelope.request,
        "an answer came for a call that waits no more"
    );
    let message = "no tool call of this name waits: it has its answer, its time was up, or there was none";
    let error = Reply::Error {
        message: message.into(),
        code: Code::of("not_found"),
        call_id: Some((&line.call_id).into()),
    };
    shared.say(&error, &Names::default()).await;
}

impl Calls {
    /// The host asks for `owner`.
    pub(super) fn asked_for(&self, owner: &str) {
        let asked = &mut self.0.lock().owners.asked;
        match asked {
            Asked::Nobody => *asked = Asked::One(owner.to_owned()),
            Asked::One(known) if known != owner => *asked = Asked::Several,
            Asked::One(_) | Asked::Several => {}
        }
    }

    /// Agents that do not say which query they work on act for `owner`.
    pub(super) fn act_for(&self, owner: &str) {
        self.0.lock().owners.token = Some(owner.to_owned());
    }

    /// For whom a call is whose query is not known, by its own name or by nothing; none if it could be several.
    fn owner(&self, named: bool, default: &str) -> Option<String> {
        let Owners { asked, token } = &self.0.lock().owners;
        match (token, asked) {
            (Some(token), _) if !named => Some(token.clone()),
            (_, Asked::Nobody) => Some(default.to_owned()),
            (_, Asked::One(owner)) => Some(owner.clone()),
            (_, Asked::Several) => None,
        }
    }

    /// A call that the host knows by the name given back: the agent's own, unless another agent has given it.
    fn begin(&self, name: &str) -> Option<(String, oneshot::Receiver<Value>)> {
        let mut state = self.0.lock();
        if state.closed {
            return None;
        }
        let taken = |name: &String| !state.waiting.contains_key(name);
        let other = (2..).map(|no: u32| format!("{name}~{no}"));
        let name = std::iter::once(name.to_owned()).chain(other).find(taken)?;
        let (answer, waiting) = oneshot::channel();
        state.waiting.insert(name.clone(), answer);
        Some((name, waiting))
    }

    /// The host says nothing more: who waits for it is told so, and who calls from now on too.
    pub(super) fn host_left(&self) {
        let mut state = self.0.lock();
        state.closed = true;
        state.waiting.clear();
    }

    /// Lets no agent in any more.
    pub(super) fn close(&self) {
        if let Some((path, lock)) = self.0.lock().socket.take() {
            // Gone with its file, in this order, so that the next host finds neither or both.
            let _ = std::fs::remove_file(path);
            drop(lock);
        }
    }
}

/// Forgets a call when nobody waits for it any more.
struct Waits<'a> {
    calls: &'a Calls,
    name: &'a str,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.calls.0.lock().waiting.remove(self.name);
    }
}
