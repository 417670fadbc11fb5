//! State shared by the handles and the supervisor of the process.
//!
//! Logins, queries and interrupts stay here until they are answered, and are sent again to the next process in this
//! order, after the token and the hints: warmups, which announce settings of later queries. A request is recorded and
//! sent under one lock, so each process gets it exactly once.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mainspring_api::jsonl::{self, LineIds, Request, RequestLine, Warmup};
use tokio::sync::{Notify, broadcast, mpsc, oneshot, watch};

use super::BridgeError;
use super::launch::Launch;
use super::line::{CancelAck, QueryIds};
use super::process::{Health, Notice, Phase};
use super::route::{QueryEvent, Route};
use super::tail::Tail;

mod reply;

/// Maximum number of hints remembered for the next process; the oldest are dropped.
const MAX_HINTS: usize = 256;
/// Capacity of the channel of notices.
const NOTICE_CAPACITY: usize = 64;

/// Locks a mutex, even a poisoned one: no change under these locks can be left half done.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Encodes a hint.
fn warmup_line(owner: Option<&str>, warmup: &Warmup) -> Vec<u8> {
    let line = RequestLine { owner_id: owner.map(str::to_owned), ..Request::Warmup(warmup.clone()).into() };
    line.encode()
}

/// The state of the current process, and the requests that outlive a process.
pub(super) struct Shared {
    pub(super) launch: Launch,
    pub(super) health: watch::Sender<Health>,
    pub(super) stop: watch::Sender<bool>,
    /// Wakes the supervisor after it gave up.
    pub(super) restart_requested: Notify,
    pub(super) stderr: Mutex<Tail>,
    pub(super) notices: broadcast::Sender<Notice>,
    state: Mutex<RequestState>,
}

/// A login that has no answer yet.
struct PendingLogin {
    request: String,
    line: Vec<u8>,
    answer: oneshot::Sender<Result<(), BridgeError>>,
}

#[derive(Default)]
struct RequestState {
    /// The queue of lines to the process, if it is ready.
    stdin: Option<mpsc::UnboundedSender<Vec<u8>>>,
    /// The active query of each client, with its sequence number.
    routes: HashMap<String, (u64, Arc<Route>)>,
    last_query_no: u64,
    interrupts: VecDeque<PendingInterrupt>,
    logins: VecDeque<PendingLogin>,
    hints: VecDeque<(Option<String>, Warmup)>,
    token: Option<Vec<u8>>,
    /// Lines that get no reply, kept until a process is ready.
    unsent: Vec<Vec<u8>>,
    /// True if no restart follows until the next query, the next login or the next `RuntimeProcess::start`.
    given_up: bool,
    /// True once the process is stopped for good.
    stopped: bool,
    /// True once the process has answered a request.
    has_answered: bool,
    /// The error that the process reported before it was ready.
    reported_error: Option<String>,
}

/// An interrupt that has no answer yet.
struct PendingInterrupt {
    client: String,
    request: String,
    line: Vec<u8>,
    answer: oneshot::Sender<CancelAck>,
}

impl RequestState {
    fn send(&self, line: &[u8]) {
        if let Some(stdin) = &self.stdin {
            // Fails if the process has died: the next one gets every recorded request.
            let _ = stdin.send(line.to_vec());
        }
    }

    fn route(&self, line_ids: &LineIds) -> Option<Arc<Route>> {
        let (_, route) = self.routes.get(line_ids.client_id.as_ref()?)?;
        (line_ids.request_id.as_ref() == Some(&route.request)).then(|| route.clone())
    }

    /// Returns the routes in the order of their queries.
    fn in_order(&self) -> Vec<Arc<Route>> {
        let mut routes: Vec<_> = self.routes.values().cloned().collect();
        routes.sort_by_key(|(no, _)| *no);
        routes.into_iter().map(|(_, route)| route).collect()
    }
}

impl Shared {
    pub(super) fn new(launch: Launch) -> Self {
        Self {
            launch,
            health: watch::Sender::new(Health::default()),
            stop: watch::Sender::new(false),
            restart_requested: Notify::new(),
            stderr: Mutex::default(),
            notices: broadcast::Sender::new(NOTICE_CAPACITY),
            state: Mutex::default(),
        }
    }

    /// Sends a query now, or once a process is ready.
    pub(super) fn send_query(&self, route: Arc<Route>) -> Result<(), BridgeError> {
        let mut state = lock(&self.state);
        if state.stopped {
            return Err(BridgeError::Stopped);
        }
        if let Some((_, active)) = state.routes.get(&route.client) {
            return Err(BridgeError::Busy { request: active.request.clone() });
        }
        state.last_query_no += 1;
        let no = state.last_query_no;
        state.send(&route.line);
        state.routes.insert(route.client.clone(), (no, route));
        self.request_restart(&mut state);
        Ok(())
    }

    /// Restarts the process if the supervisor gave up.
    pub(super) fn restart_if_given_up(&self) {
        self.request_restart(&mut lock(&self.state));
    }

    fn request_restart(&self, state: &mut RequestState) {
        if std::mem::take(&mut state.given_up) {
            self.health.send_modify(|health| health.phase = Phase::Starting);
            self.restart_requested.notify_one();
        }
    }

    /// Returns the active query of a client.
    pub(super) fn active(&self, client: &str) -> Option<Arc<Route>> {
        lock(&self.state).routes.get(client).map(|(_, route)| route.clone())
    }

    /// Asks the active query of a client to stop.
    pub(super) fn interrupt(&self, client: &str) -> Result<oneshot::Receiver<CancelAck>, BridgeError> {
        let mut state = lock(&self.state);
        if state.stopped {
            return Err(BridgeError::Stopped);
        }
        let request = match state.routes.get(client) {
            Some((_, route)) => route.request.clone(),
            None => return Err(BridgeError::Idle),
        };
        let interrupt = RequestLine {
            request_id: Some(request.clone()),
            client_id: Some(client.to_owned()),
            ..Request::Interrupt(jsonl::Interrupt::default()).into()
        };
        let (line, (answer, receiver)) = (interrupt.encode(), oneshot::channel());
        state.send(&line);
        state.interrupts.push_back(PendingInterrupt { client: client.to_owned(), request, line, answer });
        Ok(receiver)
    }

    /// Sends a line that is not repeated to the next process.
    pub(super) fn send_line(&self, line: &[u8]) -> Result<(), BridgeError> {
        let state = lock(&self.state);
        if state.stopped {
            return Err(BridgeError::Stopped);
        }
        state.send(line);
        Ok(())
    }

    /// Announces the settings of later queries, also to the next process.
    pub(super) fn send_warmup(&self, owner: Option<&str>, warmup: Warmup) {
        let mut state = lock(&self.state);
        state.send(&warmup_line(owner, &warmup));
        let hint = (owner.map(str::to_owned), warmup);
        state.hints.retain(|known| *known != hint);
        state.hints.push_back(hint);
        if state.hints.len() > MAX_HINTS {
            state.hints.pop_front();
        }
    }

    /// Invalidates the binding of a session key, and forgets its hints. A hint that names no session stays.
    pub(super) fn invalidate(&self, owner: Option<&str>, key: &str, line: Vec<u8>) {
        let mut state = lock(&self.state);
        for (hint_owner, hint) in &mut state.hints {
            if hint_owner.as_deref() == owner {
                hint.sessions.iter_mut().for_each(|sessions| sessions.retain(|session| session.key != key));
            }
        }
        state.hints.retain(|(_, hint)| hint.sessions.as_ref().is_none_or(|sessions| !sessions.is_empty()));
        match &state.stdin {
            Some(_) => state.send(&line),
            None => state.unsent.push(line),
        }
    }

    /// Passes on a token, also to the next process.
    pub(super) fn refresh_token(&self, line: Vec<u8>) {
        let mut state = lock(&self.state);
        state.send(&line);
        state.token = Some(line);
    }

    /// Chooses the user's authentication method.
    pub(super) fn authenticate(
        &self,
        request: String,
        line: Vec<u8>,
    ) -> Result<oneshot::Receiver<Result<(), BridgeError>>, BridgeError> {
        let mut state = lock(&self.state);
        if state.stopped {
            return Err(BridgeError::Stopped);
        }
        let (answer, receiver) = oneshot::channel();
        state.send(&line);
        state.logins.push_back(PendingLogin { request, line, answer });
        self.request_restart(&mut state);
        Ok(receiver)
    }

    /// Resets the state for a new process.
    pub(super) fn process_started(&self, pid: Option<u32>) {
        let mut state = lock(&self.state);
        (state.has_answered, state.reported_error) = (false, None);
        lock(&self.stderr).clear();
        self.health.send_modify(|health| (health.phase, health.pid) = (Phase::Starting, pid));
    }

    /// Marks the process ready, and sends it every unanswered request.
    fn ready(&self, stdin: &mpsc::UnboundedSender<Vec<u8>>) {
        let mut state = lock(&self.state);
        state.stdin = Some(stdin.clone());
        if let Some(token) = &state.token {
            state.send(token);
        }
        for (owner, hint) in &state.hints {
            state.send(&warmup_line(owner.as_deref(), hint));
        }
        std::mem::take(&mut state.unsent).iter().for_each(|line| state.send(line));
        state.logins.iter().for_each(|login| state.send(&login.line));
        let is_restart = self.health.borrow().restarts > 0;
        for route in state.in_order() {
            if is_restart && route.ids() != QueryIds::default() {
                route.push_event(QueryEvent::Restarted);
            }
            state.send(&route.line);
        }
        for interrupt in &state.interrupts {
            state.send(&interrupt.line);
        }
        self.health.send_modify(|health| health.phase = Phase::Ready);
    }

    /// Marks the process ended. Returns true if the process had answered a request, and the error it reported.
    pub(super) fn process_ended(&self) -> (bool, Option<String>) {
        let mut state = lock(&self.state);
        state.stdin = None;
        (state.has_answered, state.reported_error.take())
    }

    /// Fails all pending requests; with `stopped`, all later ones too.
    pub(super) fn give_up(&self, error: &BridgeError, stopped: bool) {
        let routes = {
            let mut state = lock(&self.state);
            state.stdin = None;
            (state.given_up, state.stopped) = (!stopped, state.stopped || stopped);
            state.interrupts.clear();
            state.logins.clear();
            let routes = state.in_order();
            state.routes.clear();
            routes
        };
        for route in routes {
            route.end(Err(error.clone()));
        }
    }

    /// Returns the error of a login or an interrupt that gets no answer.
    pub(super) fn unanswered_error(&self) -> BridgeError {
        match lock(&self.state).stopped {
            true => BridgeError::Stopped,
            false => BridgeError::Lost { reason: self.health.borrow().reason.clone().unwrap_or_default() },
        }
    }
}

#[cfg(test)]
mod tests {
    use mainspring_api::jsonl::WarmupSession;

    use super::*;

    #[test]
    fn an_invalidation_forgets_the_hints_of_its_session_and_no_others() {
        let shared = Shared::new(Launch::new("mainspring", "state"));
        let of_folder = Warmup { cwd: Some("/src".into()), ..Warmup::default() };
        let of_session = |key: &str| {
            let session = WarmupSession { key: key.into(), ..WarmupSession::default() };
            Warmup { sessions: Some(vec![session]), ..Warmup::default() }
        };
        for (owner, hint) in
            [(None, of_folder.clone()), (None, of_session("a")), (Some("ada"), of_session("a"))]
        {
            shared.send_warmup(owner, hint);
        }
        shared.invalidate(None, "a", vec![]);
        let left: Vec<_> = lock(&shared.state).hints.iter().cloned().collect();
        assert_eq!(left, [(None, of_folder), (Some("ada".into()), of_session("a"))]);
    }
}
