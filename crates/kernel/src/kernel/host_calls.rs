//! Calls of tools that a host runs.
//!
//! ```text
//! agent ──call_host──▶ pending call of the run's host ──host_calls──▶ host ──host_call_answer──▶ agent
//! ```
//!
//! A host is a client that identifies itself with a secret of its own when it creates runs. A call goes to the host
//! of the calling run; a delegated run has the host of its parent. Everything here is in memory: a call ends with its
//! attempt, and so with this process.
//!
//! If kernels share a store, hosts ask the kernel that leads, and the other kernels send it the calls of their agents.

use std::collections::{BTreeMap, HashMap, VecDeque};

use mainspring_api::HostCall;
use mainspring_core::limits::check_text;
use mainspring_core::{AttemptId, Run, RunId, Time};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{oneshot, watch};

use super::reach::{AskError, HomeAnswer, HomeRequest};
use super::{Caller, Kernel, Shared};
use crate::clock::Moment;
use crate::error::Error;

/// Maximum number of runs whose host is remembered. The oldest are dropped.
const MAX_RUNS: usize = 16_384;
/// A host that has not asked for calls for this time is gone.
const HOST_TIMEOUT_MS: u64 = 10_000;
/// How long a host may wait for calls with one request.
const MAX_POLL_MS: u64 = 30_000;

/// A call that an agent makes.
pub(crate) struct NewHostCall {
    pub(crate) call_id: String,
    pub(crate) name: String,
    pub(crate) input: Value,
    pub(crate) attempt: AttemptId,
}

/// Why a tool of the host has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostCallError {
    /// The run has no host.
    #[error("no host serves the tools of this run")]
    NoHost,
    /// The host no longer asks for calls.
    #[error("the host is gone")]
    HostGone,
    /// The kernel failed.
    #[error(transparent)]
    Kernel(#[from] Error),
}

/// The hosts of runs and their pending calls.
pub(crate) struct HostCalls {
    state: Mutex<HostState>,
    /// Notified of each call and each request of a host.
    changed: watch::Sender<()>,
}

struct HostState {
    /// The number of the latest call.
    last: u64,
    hosts: HashMap<String, Host>,
    runs: HashMap<RunId, String>,
    /// The runs in the order of their registration.
    order: VecDeque<RunId>,
}

struct Host {
    calls: BTreeMap<u64, PendingCall>,
    /// The number of requests that wait for calls.
    waiting: usize,
    /// When the last such request ended; if none has ended yet, when this entry was made.
    seen_at: Moment,
}

impl Host {
    fn new(now: Moment) -> Self {
        Self { calls: BTreeMap::new(), waiting: 0, seen_at: now }
    }
}

struct PendingCall {
    call: HostCall,
    result: oneshot::Sender<Value>,
}

impl HostCalls {
    pub(crate) fn new(now: Time) -> Self {
        let state = HostState {
            // Numbers grow across restarts, so that a host which continues after its last call misses none.
            last: now.0.saturating_mul(1_000).unsigned_abs(),
            hosts: HashMap::new(),
            runs: HashMap::new(),
            order: VecDeque::new(),
        };
        Self { state: Mutex::new(state), changed: watch::Sender::new(()) }
    }

    /// Makes `host` the host of a run.
    pub(crate) fn register(&self, run: RunId, host: Option<&str>) {
        let Some(host) = host else { return };
        let state = &mut *self.state.lock();
        if state.runs.insert(run, host.to_owned()).is_none() {
            state.order.push_back(run);
        }
        if state.order.len() > MAX_RUNS
            && let Some(oldest) = state.order.pop_front()
        {
            state.runs.remove(&oldest);
        }
    }

    fn host_of(&self, run: RunId) -> Option<String> {
        self.state.lock().runs.get(&run).cloned()
    }

    /// Adds a call to those of `host`. Dropping the returned value withdraws the call.
    fn add(&self, host: String, now: Moment, call: HostCall) -> (PlacedCall<'_>, oneshot::Receiver<Value>) {
        let (result, received) = oneshot::channel();
        let no = {
            let state = &mut *self.state.lock();
            state.last += 1;
            let known = state.hosts.entry(host.clone()).or_insert_with(|| Host::new(now));
            let call = HostCall { no: state.last, ..call };
            known.calls.insert(state.last, PendingCall { call, result });
            state.last
        };
        self.changed.send_replace(());
        (PlacedCall { calls: self, host, no }, received)
    }

    /// When the host is considered gone; `None` while it waits for calls.
    fn gone_at(&self, host: &str) -> Option<Moment> {
        let state = self.state.lock();
        let host = state.hosts.get(host)?;
        (host.waiting == 0).then(|| host.seen_at.plus(HOST_TIMEOUT_MS))
    }

    fn pending(&self, host: &str, after: u64) -> Vec<HostCall> {
        let state = self.state.lock();
        let calls = state.hosts.get(host).map(|host| host.calls.range(after.saturating_add(1)..));
        calls.into_iter().flatten().map(|(_, pending)| pending.call.clone()).collect()
    }
}

/// A pending call, withdrawn on drop.
struct PlacedCall<'a> {
    calls: &'a HostCalls,
    host: String,
    no: u64,
}

impl Drop for PlacedCall<'_> {
    fn drop(&mut self) {
        let mut state = self.calls.state.lock();
        if let Some(host) = state.hosts.get_mut(&self.host) {
            host.calls.remove(&self.no);
            if host.calls.is_empty() && host.waiting == 0 {
                state.hosts.remove(&self.host);
            }
        }
    }
}

/// A host that waits for calls, until it is dropped.
struct WaitingHost<'a> {
    shared: &'a Shared,
    host: &'a str,
}

impl<'a> WaitingHost<'a> {
    fn new(shared: &'a Shared, host: &'a str) -> Self {
        let now = shared.clock.moment();
        let mut state = shared.host_calls.state.lock();
        state.hosts.entry(host.to_owned()).or_insert_with(|| Host::new(now)).waiting += 1;
        drop(state);
        shared.host_calls.changed.send_replace(());
        Self { shared, host }
    }
}

impl Drop for WaitingHost<'_> {
    fn drop(&mut self) {
        let now = self.shared.clock.moment();
        let mut state = self.shared.host_calls.state.lock();
        if let Some(host) = state.hosts.get_mut(self.host) {
            host.waiting -= 1;
            host.seen_at = now;
            if host.calls.is_empty() && host.waiting == 0 {
                state.hosts.remove(self.host);
            }
        }
        drop(state);
        self.shared.host_calls.changed.send_replace(());
    }
}

impl Shared {
    /// Gives a call of `run` to the host of the run and waits for its result.
    pub(crate) async fn call_host(&self, run: &Run, new: NewHostCall) -> Result<Value, HostCallError> {
        let (asked, host) = self.host_run(run).await?.ok_or(HostCallError::NoHost)?;
        let NewHostCall { call_id, name, input, attempt } = new;
        let call = HostCall {
            no: 0,
            call_id,
            name,
            input,
            host_run_id: asked.id,
            client_id: asked.request.client_id.clone(),
            request_id: asked.request.request_id.clone(),
            owner_id: run.owner.clone(),
            session_id: run.session,
            run_id: run.id,
            attempt_id: attempt,
        };
        let Some((leader, peers)) = self.leader_elsewhere() else {
            return self.host_call_place(host, call).await;
        };
        let request = HomeRequest::HostCall { host, call: Box::new(call) };
        match peers.ask(leader, request).await {
            Ok(HomeAnswer::HostResult(result)) => Ok(result),
            Err(AskError::Refused(refusal)) => Err(Error::from(refusal).into()),
            // The host no longer asks the leader, or the leader was not reached or has not answered. The host may have begun the
            // call, so it is not repeated.
            Ok(_) | Err(AskError::NotReached(_) | AskError::NotAnswered(_)) => Err(HostCallError::HostGone),
        }
    }

    /// Gives a call to a host that asks this kernel, and waits for its result. Dropping the future withdraws the call.
    pub(super) async fn host_call_place(&self, host: String, call: HostCall) -> Result<Value, HostCallError> {
        let mut changed = self.host_calls.changed.subscribe();
        let (_placed, mut result) = self.host_calls.add(host.clone(), self.clock.moment(), call);
        loop {
            let gone_at = self.host_calls.gone_at(&host);
            let gone = async {
                match gone_at {
                    Some(at) => self.clock.sleep_until_moment(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                result = &mut result => return result.map_err(|_| HostCallError::HostGone),
                () = gone => return Err(HostCallError::HostGone),
                // The sender lives as long as `self`.
                _ = changed.changed() => {}
            }
        }
    }

    /// Returns the host of `run`, and the run that the host created: `run`, or the run that delegated it.
    pub(super) async fn host_run(&self, run: &Run) -> Result<Option<(Run, String)>, Error> {
        let mut run = run.clone();
        loop {
            if let Some(host) = self.host_calls.host_of(run.id) {
                return Ok(Some((run, host)));
            }
            let Some(parent) = run.parent else { return Ok(None) };
            match self.store.run_get(parent).await? {
                Some(parent) => run = parent,
                None => return Ok(None),
            }
        }
    }
}

impl Kernel {
    /// Lists the pending calls of a host's tools after the call `after`. If there is none, waits for one, for at most
    /// `wait_ms`.
    pub async fn host_calls(
        &self,
        caller: &Caller,
        host: &str,
        after: u64,
        wait_ms: u64,
    ) -> Result<Vec<HostCall>, Error> {
        check_host(caller, host)?;
        if wait_ms > MAX_POLL_MS {
            return Err(Error::Invalid(format!("waitMs is at most {MAX_POLL_MS}")));
        }
        let shared = &self.shared;
        let until = shared.clock.moment().plus(wait_ms);
        let mut changed = shared.host_calls.changed.subscribe();
        let _waiting = WaitingHost::new(shared, host);
        loop {
            let calls = shared.host_calls.pending(host, after);
            if !calls.is_empty() || wait_ms == 0 {
                return Ok(calls);
            }
            tokio::select! {
                // The sender lives as long as `self`.
                _ = changed.changed() => {}
                () = shared.clock.sleep_until_moment(until) => return Ok(vec![]),
                () = shared.tasks.stopping() => return Err(Error::ShuttingDown),
            }
        }
    }

    /// Passes the result of a host's tool to the agent. Returns false if the call is not pending.
    pub fn host_call_answer(
        &self,
        caller: &Caller,
        host: &str,
        no: u64,
        result: Value,
    ) -> Result<bool, Error> {
        check_host(caller, host)?;
        let mut state = self.shared.host_calls.state.lock();
        let pending = state.hosts.get_mut(host).and_then(|host| host.calls.remove(&no));
        drop(state);
        Ok(pending.is_some_and(|pending| pending.result.send(result).is_ok()))
    }
}

/// Checks the name of a host. An agent cannot be a host.
fn check_host(caller: &Caller, host: &str) -> Result<(), Error> {
    caller.check_writes()?;
    Ok(check_text("the host that Mainspring-Host names", host)?)
}
