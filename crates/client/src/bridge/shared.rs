//! State shared by the handles and the supervisor of the process.
//!
//! Every request stays here until it is answered, so that it can be sent again to the next process: hints first, then
//! queries in their order, then interrupts. A line is sent under the same lock as its record is made, so each process
//! gets each request exactly once.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mainspring_api::jsonl::{self, Names, Reply, ReplyLine, Request, RequestLine, Warmup};
use tokio::sync::{Notify, broadcast, mpsc, oneshot, watch};

use super::BridgeError;
use super::launch::Launch;
use super::line::{self, CancelAck, QueryIds};
use super::process::{Health, Notice, Phase};
use super::route::{QueryEvent, Route, ToolCall};
use super::tail::Tail;

/// Maximum number of hints remembered for the next process; the oldest are dropped.
const HINTS: usize = 256;
/// Capacity of the channel of notices.
const NOTICES: usize = 64;

/// Locks a mutex, even a poisoned one: no change under these locks can be left half done.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Encodes an announcement of the settings of later queries.
fn warmup_line(owner: Option<&str>, warmup: &Warmup) -> Vec<u8> {
    let line = RequestLine { owner_id: owner.map(str::to_owned), ..Request::Warmup(warmup.clone()).into() };
    line.encode()
}

/// The state of one process after another, and their requests.
pub(super) struct Shared {
    pub(super) launch: Launch,
    pub(super) health: watch::Sender<Health>,
    pub(super) stop: watch::Sender<bool>,
    /// Wakes the supervisor after it gave up.
    pub(super) wanted: Notify,
    pub(super) stderr: Mutex<Tail>,
    pub(super) notices: broadcast::Sender<Notice>,
    state: Mutex<State>,
}

/// A login that has no answer yet.
struct Login {
    request: String,
    line: Vec<u8>,
    answer: oneshot::Sender<Result<(), BridgeError>>,
}

fn failed(code: String, message: String, ids: QueryIds) -> BridgeError {
    BridgeError::Failed { code, message, ids: Box::new(ids) }
}

#[derive(Default)]
struct State {
    /// The queue to the process, if it is ready.
    to: Option<mpsc::UnboundedSender<Vec<u8>>>,
    /// The active query of each client, with its sequence number.
    routes: HashMap<String, (u64, Arc<Route>)>,
    last: u64,
    interrupts: VecDeque<Interrupt>,
    logins: VecDeque<Login>,
    hints: VecDeque<(Option<String>, Warmup)>,
    token: Option<Vec<u8>>,
    /// Lines that get no reply, kept until a process is ready.
    unsaid: Vec<Vec<u8>>,
    /// True if no restart follows until the next request.
    given_up: bool,
    over: bool,
    /// True once the process has answered a request.
    useful: bool,
    /// The error that the process reported before it was ready.
    complaint: Option<String>,
}

struct Interrupt {
    client: String,
    request: String,
    line: Vec<u8>,
    answer: oneshot::Sender<CancelAck>,
}

impl State {
    fn send(&self, line: &[u8]) {
        if let Some(to) = &self.to {
            // If the process died, the next one gets the line from the records.
            let _ = to.send(line.to_vec());
        }
    }

    fn route(&self, names: &Names) -> Option<Arc<Route>> {
        let (_, route) = self.routes.get(names.client_id.as_ref()?)?;
        (names.request_id.as_ref() == Some(&route.request)).then(|| route.clone())
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
            wanted: Notify::new(),
            stderr: Mutex::default(),
            notices: broadcast::Sender::new(NOTICES),
            state: Mutex::default(),
        }
    }

    /// Sends a query now, or once a process is ready.
    pub(super) fn ask(&self, route: Arc<Route>) -> Result<(), BridgeError> {
        let mut state = lock(&self.state);
        if state.over {
            return Err(BridgeError::Stopped);
        }
        if let Some((_, active)) = state.routes.get(&route.client) {
            return Err(BridgeError::Busy { request: active.request.clone() });
        }
        state.last += 1;
        let no = state.last;
        state.send(&route.line);
        state.routes.insert(route.client.clone(), (no, route));
        self.want_in(&mut state);
        Ok(())
    }

    /// Restarts the process if the supervisor gave up.
    pub(super) fn want(&self) {
        self.want_in(&mut lock(&self.state));
    }

    fn want_in(&self, state: &mut State) {
        if std::mem::take(&mut state.given_up) {
            self.health.send_modify(|health| health.phase = Phase::Starting);
            self.wanted.notify_one();
        }
    }

    /// Returns the active query of a client.
    pub(super) fn active(&self, client: &str) -> Option<Arc<Route>> {
        lock(&self.state).routes.get(client).map(|(_, route)| route.clone())
    }

    /// Asks the active query of a client to stop.
    pub(super) fn interrupt(&self, client: &str) -> Result<oneshot::Receiver<CancelAck>, BridgeError> {
        let mut state = lock(&self.state);
        if state.over {
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
        let (line, (answer, heard)) = (interrupt.encode(), oneshot::channel());
        state.send(&line);
        state.interrupts.push_back(Interrupt { client: client.to_owned(), request, line, answer });
        Ok(heard)
    }

    /// Announces the settings of later queries, also to the next process.
    pub(super) fn warm(&self, owner: Option<&str>, warmup: Warmup) {
        let mut state = lock(&self.state);
        state.send(&warmup_line(owner, &warmup));
        let hint = (owner.map(str::to_owned), warmup);
        state.hints.retain(|known| *known != hint);
        state.hints.push_back(hint);
        if state.hints.len() > HINTS {
            state.hints.pop_front();
        }
    }

    /// Invalidates the binding of a session key, and forgets its hints.
    pub(super) fn invalidate(&self, owner: Option<&str>, key: &str, line: Vec<u8>) {
        let mut state = lock(&self.state);
        for (of, hint) in &mut state.hints {
            if of.as_deref() == owner {
                hint.sessions.iter_mut().for_each(|sessions| sessions.retain(|session| session.key != key));
            }
        }
        state.hints.retain(|(_, hint)| hint.sessions.as_ref().is_some_and(|sessions| !sessions.is_empty()));
        match &state.to {
            Some(_) => state.send(&line),
            None => state.unsaid.push(line),
        }
    }

    /// Passes on a token, also to the next process.
    pub(super) fn token(&self, line: Vec<u8>) {
        let mut state = lock(&self.state);
        state.send(&line);
        state.token = Some(line);
    }

    /// Chooses the user's authentication method.
    pub(super) fn log_in(
        &self,
        request: String,
        line: Vec<u8>,
    ) -> Result<oneshot::Receiver<Result<(), BridgeError>>, BridgeError> {
        let mut state = lock(&self.state);
        if state.over {
            return Err(BridgeError::Stopped);
        }
        let (answer, heard) = oneshot::channel();
        state.send(&line);
        state.logins.push_back(Login { request, line, answer });
        Ok(heard)
    }

    /// Resets the state for a new process.
    pub(super) fn begin(&self, pid: Option<u32>) {
        let mut state = lock(&self.state);
        (state.useful, state.complaint) = (false, None);
        lock(&self.stderr).clear();
        self.health.send_modify(|health| (health.phase, health.pid) = (Phase::Starting, pid));
    }

    /// Marks the process ready, and sends it every unanswered request.
    fn ready(&self, to: &mpsc::UnboundedSender<Vec<u8>>) {
        let mut state = lock(&self.state);
        state.to = Some(to.clone());
        if let Some(token) = &state.token {
            state.send(token);
        }
        for (owner, hint) in &state.hints {
            state.send(&warmup_line(owner.as_deref(), hint));
        }
        std::mem::take(&mut state.unsaid).iter().for_each(|line| state.send(line));
        state.logins.iter().for_each(|login| state.send(&login.line));
        let again = self.health.borrow().restarts > 0;
        for route in state.in_order() {
            if again && route.ids() != QueryIds::default() {
                route.tell(QueryEvent::Restarted);
            }
            state.send(&route.line);
        }
        for interrupt in &state.interrupts {
            state.send(&interrupt.line);
        }
        self.health.send_modify(|health| health.phase = Phase::Ready);
    }

    /// Marks the process ended. Returns true if the process had answered a request, and the error it reported.
    pub(super) fn ended(&self) -> (bool, Option<String>) {
        let mut state = lock(&self.state);
        state.to = None;
        (state.useful, state.complaint.take())
    }

    /// Fails all pending requests; with `over`, all later ones too.
    pub(super) fn give_up(&self, error: &BridgeError, over: bool) {
        let routes = {
            let mut state = lock(&self.state);
            state.to = None;
            (state.given_up, state.over) = (!over, state.over || over);
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

    /// Returns the error of a request, other than a query, that gets no answer.
    pub(super) fn unanswered(&self) -> BridgeError {
        match lock(&self.state).over {
            true => BridgeError::Stopped,
            false => BridgeError::Lost { why: self.health.borrow().why.clone().unwrap_or_default() },
        }
    }

    /// Handles a line of the process. Never waits.
    pub(super) fn hear(&self, line: &[u8], to: &mpsc::UnboundedSender<Vec<u8>>) {
        let Ok(ReplyLine { names, reply }) = serde_json::from_slice(line) else {
            let what = String::from_utf8_lossy(&line[..line.len().min(200)]).trim_end().to_owned();
            lock(&self.state).complaint = Some(format!("it said {what:?}, which is no line of the protocol"));
            return;
        };
        let ids = QueryIds::from(&names);
        let route = lock(&self.state).route(&names);
        if let Some(route) = &route {
            route.learn(&ids);
        }
        let show = |event| {
            if let Some(route) = &route {
                route.tell(event);
            }
        };
        match reply {
            Reply::Init { .. } => self.ready(to),
            Reply::TextDelta { text } => show(QueryEvent::TextDelta(text.into_owned())),
            Reply::ThinkingDelta { text } => show(QueryEvent::ThinkingDelta(text.into_owned())),
            Reply::ToolActivity { name, status, tool_use_id, input } => {
                show(QueryEvent::ToolActivity {
                    name: name.into_owned(),
                    status,
                    tool_use_id: tool_use_id.map(Cow::into_owned),
                    input: input.map(Cow::into_owned),
                });
            }
            Reply::ToolResultDisplay { tool_use_id, name, output } => {
                show(QueryEvent::ToolResultDisplay {
                    tool_use_id: tool_use_id.into_owned(),
                    name: name.into_owned(),
                    output: output.into_owned(),
                });
            }
            Reply::ToolUse { call_id, name, input } => {
                let call = ToolCall::new(
                    call_id.into_owned(),
                    name.into_owned(),
                    input.into_owned(),
                    ids,
                    to.clone(),
                );
                match route.or_else(|| self.only(names.request_id.is_some())) {
                    Some(route) => route.call(call),
                    None => call.fail(
                        "invalid_request",
                        "which query calls is not known to the host: name it by its runId, or by its requestId and clientId",
                    ),
                }
            }
            Reply::Result { text, terminal_status, usage, .. } => {
                self.end(route, |ids| line::result(ids, text.into_owned(), terminal_status, usage));
            }
            // A tool's answer arrived too late; its query continues.
            Reply::Error { call_id: Some(_), .. } => {}
            Reply::Error { code, message, .. } => match (route, &names.request_id) {
                (Some(route), _) => {
                    self.end(Some(route), |ids| Err(failed(code.into_specific(), message.into_owned(), ids)));
                }
                (None, None) => lock(&self.state).complaint = Some(message.into_owned()),
                (None, Some(request)) => {
                    let (code, message) = (code.into_specific(), message.into_owned());
                    match self.login(Some(request)) {
                        // The caller may have stopped waiting.
                        Some(login) => {
                            drop(login.answer.send(Err(failed(code, message, QueryIds::default()))));
                        }
                        None => self.notice(Notice::Refused {
                            request_id: request.clone(),
                            client_id: names.client_id.unwrap_or_default(),
                            code,
                            message,
                        }),
                    }
                }
            },
            Reply::CancelAck { accepted, dispatch_attempted, adapter_acknowledged, code, message } => {
                let refusal =
                    code.map(|code| (code.into_specific(), message.unwrap_or_default().into_owned()));
                let ack = CancelAck { accepted, dispatch_attempted, adapter_acknowledged, refusal, ids };
                self.acknowledge(names.client_id, names.request_id, ack);
            }
            Reply::AuthRequired { methods, auth_url } => {
                let (methods, auth_url) = (methods.into_owned(), auth_url.map(Cow::into_owned));
                let event =
                    || QueryEvent::AuthRequired { methods: methods.clone(), auth_url: auth_url.clone() };
                // A line without a query may concern any of them.
                let about = route.map_or_else(|| lock(&self.state).in_order(), |route| vec![route]);
                about.iter().for_each(|route| route.tell(event()));
                self.notice(Notice::AuthRequired { methods, auth_url });
            }
            Reply::AuthSuccess {} => {
                if let Some(login) = self.login(names.request_id.as_deref()) {
                    // The caller may have stopped waiting.
                    let _ = login.answer.send(Ok(()));
                }
                self.notice(Notice::AuthSuccess);
            }
            Reply::Unknown => {}
        }
    }

    /// Removes and returns the login with this request id, or the oldest one.
    fn login(&self, request: Option<&str>) -> Option<Login> {
        let logins = &mut lock(&self.state).logins;
        let at = logins.iter().position(|login| request.is_none_or(|request| login.request == request))?;
        logins.remove(at)
    }

    /// Returns the only active query, for a tool call that names none.
    fn only(&self, named: bool) -> Option<Arc<Route>> {
        let state = lock(&self.state);
        let mut routes = state.routes.values();
        let first = routes.next().filter(|_| !named)?;
        routes.next().is_none().then(|| first.1.clone())
    }

    fn end(
        &self,
        route: Option<Arc<Route>>,
        end: impl FnOnce(QueryIds) -> Result<super::QueryResult, BridgeError>,
    ) {
        let Some(route) = route else { return };
        {
            let mut state = lock(&self.state);
            state.useful = true;
            // Free the handle before it learns of the end, so that its next query is not refused as busy.
            state.routes.remove(&route.client);
        }
        route.end(end(route.ids()));
    }

    fn acknowledge(&self, client: Option<String>, request: Option<String>, ack: CancelAck) {
        let (Some(client), Some(request)) = (client, request) else { return };
        let mut state = lock(&self.state);
        state.useful = true;
        let at = state.interrupts.iter().position(|wish| wish.client == client && wish.request == request);
        if let Some(wish) = at.and_then(|at| state.interrupts.remove(at)) {
            // The caller may have stopped waiting.
            let _ = wish.answer.send(ack);
        }
    }

    fn notice(&self, notice: Notice) {
        // Fails if there is no subscriber.
        let _ = self.notices.send(notice);
    }
}
