//! Calls of the host's tools, by agents of the host's own queries.
//!
//! ```text
//! server ──host_call_list──▶ relay ──tool_use──▶ host ──tool_result──▶ relay ──host_call_answer──▶ server
//! ```
//!
//! The server knows which attempt made a call, and gives a host the calls of the runs that the host created.
//!
//! Invariant: every call gets exactly one result, at the latest on timeout or when the host disconnects.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

use mainspring_api::jsonl::{Code, LineIds, Reply, ToolResult, without_connection};
use mainspring_api::{HostCall, HostCallQuery, HostCallResult};
use mainspring_client::{Client, Error};
use mainspring_control::error_answer;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{oneshot, watch};

use super::Shared;
use super::line::Envelope;
use super::live::Query;

/// Maximum bytes of a tool result.
const RESULT_MAX_BYTES: usize = 16 << 20;
/// How long one request waits for calls.
const POLL_MS: u64 = 20_000;
/// The pause after a request that failed.
const RETRY_MS: u64 = 1_000;

/// Pending calls to the host, and the number of calls whose result is not sent yet.
#[derive(Default)]
pub(super) struct Calls(Mutex<CallState>, Arc<watch::Sender<usize>>);

/// A call of a host's tool, until its result is sent.
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
    closed: bool,
}

/// Passes the calls of agents to the host, from its first query on, until the host is dropped.
pub(super) async fn serve(host: Weak<Shared>) {
    let Some(mut queries) = host.upgrade().map(|shared| shared.live.count()) else { return };
    // Fails only if the host is dropped.
    let _ = queries.wait_for(|count| *count > 0).await;
    let mut after = None;
    loop {
        let Some((client, server_no)) = host.upgrade().map(|shared| {
            let (client, server_no) = shared.link.client(&shared.options.owner);
            (client.for_host(&shared.host), server_no)
        }) else {
            return;
        };
        let polled = client.host_call_list(&HostCallQuery { after, wait_ms: Some(POLL_MS) }).await;
        let Some(shared) = host.upgrade() else { return };
        match polled {
            Ok(calls) => {
                after = calls.last().map(|call| call.no).or(after);
                for call in calls {
                    let unanswered = shared.calls.unanswered();
                    shared.tasks.spawn(answer_call(shared.clone(), call, unanswered));
                }
            }
            Err(error) if error.is_gone() => {
                let link = shared.link.clone();
                drop(shared);
                if !link.renewed(server_no).await {
                    return;
                }
            }
            // A server of an earlier version has no host calls.
            Err(error) if error.is_not_found() => return,
            Err(error) => {
                tracing::debug!(%error, "cannot ask for the calls of agents");
                let clock = shared.clock.clone();
                drop(shared);
                clock.sleep_for(RETRY_MS).await;
            }
        }
    }
}

/// Asks the host to run a tool, and sends the result to the agent.
async fn answer_call(shared: Arc<Shared>, call: HostCall, _unanswered: Unanswered) {
    let timeout_ms = shared.options.tool_timeout_ms;
    let result = tokio::select! {
        result = ask_host(&shared, &call) => result,
        () = shared.clock.sleep_for(timeout_ms) => {
            let seconds = timeout_ms / 1_000;
            error_answer("timeout", &format!("the tool {:?} did not answer within {seconds} seconds", call.name))
        }
    };
    let size = result.len();
    match send_result(&shared, &HostCallResult { no: call.no, result: result.into() }).await {
        Err(Error::Refused(problem)) => {
            tracing::info!(call = call.call_id, why = problem.detail, "tool result was refused");
            let result = too_long(size).into();
            // The agent waits until its timeout if this fails, too.
            let _ = send_result(&shared, &HostCallResult { no: call.no, result }).await;
        }
        // The server that runs the agent is gone, or its answer cannot be read.
        Err(error) => tracing::info!(call = call.call_id, %error, "tool result was not sent"),
        Ok(_) => {}
    }
}

/// Sends the result of a call to the server. A result that is sent again has no effect.
async fn send_result(shared: &Shared, result: &HostCallResult) -> Result<(), Error> {
    let send = |client: Client| {
        let client = client.for_host(&shared.host);
        async move { client.host_call_answer(result).await }
    };
    shared.link.ask(&shared.options.owner, send).await.map(drop)
}

async fn ask_host(shared: &Shared, call: &HostCall) -> String {
    let Some((name, answer)) = shared.calls.begin(&call.call_id) else {
        return error_answer("transport_interruption", "the host is gone");
    };
    let _guard = PendingCall { calls: &shared.calls, name: &name };
    let line = Reply::ToolUse {
        call_id: (&name).into(),
        name: (&call.name).into(),
        input: Cow::Borrowed(&call.input),
    };
    shared.reply(&line, &line_ids(shared, call)).await;
    match answer.await {
        Ok(Value::String(result)) if result.len() <= RESULT_MAX_BYTES => result,
        Ok(Value::String(result)) => too_long(result.len()),
        Ok(other) => match other.to_string() {
            result if result.len() <= RESULT_MAX_BYTES => result,
            result => too_long(result.len()),
        },
        Err(_) => error_answer("transport_interruption", "the host is gone"),
    }
}

fn too_long(size: usize) -> String {
    let message = format!("the tool result has {size} bytes; the limit is {RESULT_MAX_BYTES}");
    error_answer("malformed_or_oversized_tool_result", &message)
}

/// Returns the ids of a call: those of the query, and those of the calling run and attempt.
fn line_ids(shared: &Shared, call: &HostCall) -> LineIds {
    let client = call.client_id.as_deref().map(|client| without_connection(client).to_owned());
    let is_query_of_call = |query: &Query| {
        // The call may arrive before the query knows its run.
        let is_named =
            call.request_id.as_ref() == Some(&query.request) && client.as_ref() == Some(&query.client);
        query.details().run == Some(call.host_run_id) || is_named
    };
    let ids = match shared.live.latest(is_query_of_call) {
        Some(query) => query.line_ids(None),
        // The query has ended before a run that it spawned.
        None => LineIds {
            protocol_version: Some(2),
            request_id: call.request_id.clone(),
            client_id: client,
            ..LineIds::default()
        },
    };
    if ids.protocol_version.is_none() {
        return ids;
    }
    LineIds {
        session_id: Some(call.session_id),
        run_id: Some(call.run_id),
        attempt_id: Some(call.attempt_id),
        ..ids
    }
}

/// Handles `tool_result`: the result of a tool that the host ran.
pub(super) async fn answer(shared: &Shared, envelope: &Envelope, line: ToolResult) {
    let waiting = shared.calls.0.lock().waiting.remove(&line.call_id);
    // A call that has timed out needs no result.
    if waiting.is_some_and(|waiting| waiting.send(line.result).is_ok()) {
        return;
    }
    // The error names only the call, so that the host does not interpret it as the end of the query.
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
    /// Counts a call as unanswered until the returned value is dropped.
    fn unanswered(&self) -> Unanswered {
        self.1.send_modify(|count| *count += 1);
        Unanswered(self.1.clone())
    }

    /// Resolves once the result of every call is sent.
    pub(super) async fn answered(&self) {
        // The sender lives as long as `self`.
        let _ = self.1.subscribe().wait_for(|count| *count == 0).await;
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
