//! The lines of the process, routed to the requests that they belong to.

use std::borrow::Cow;
use std::sync::Arc;

use mainspring_api::jsonl::{Code, LineIds, Reply, ReplyLine};
use tokio::sync::mpsc;

use super::super::line::{self, CancelAck, QueryIds};
use super::super::process::Notice;
use super::super::route::{QueryEvent, Question, Route, ToolCall};
use super::super::{BridgeError, QueryResult};
use super::{PendingLogin, Shared, lock};

impl Shared {
    /// Handles a line of the process. Never waits.
    pub(in crate::bridge) fn handle_line(&self, line: &[u8], stdin: &mpsc::UnboundedSender<Vec<u8>>) {
        let Ok(ReplyLine { line_ids, reply }) = serde_json::from_slice(line) else {
            return self.handle_unreadable(line);
        };
        let ids = QueryIds::from(&line_ids);
        let route = lock(&self.state).route(&line_ids);
        if let Some(route) = &route {
            route.update_ids(&ids);
        }
        match reply {
            Reply::Init { .. } => self.ready(stdin),
            Reply::TextDelta { .. }
            | Reply::ThinkingDelta { .. }
            | Reply::ToolActivity { .. }
            | Reply::ToolResultDisplay { .. } => {
                if let Some((route, event)) = route.zip(display_event(reply)) {
                    route.push_event(event);
                }
            }
            Reply::ToolUse { call_id, name, input } => {
                let (call_id, name, input) = (call_id.into_owned(), name.into_owned(), input.into_owned());
                let call = ToolCall::new(call_id, name, input, ids, stdin.clone());
                match route.or_else(|| self.only_route(line_ids.request_id.is_some())) {
                    Some(route) => route.handle_tool_call(call),
                    None => call.fail(
                        "invalid_request",
                        "the host does not know which query calls: name it by its runId, or by its requestId and clientId",
                    ),
                }
            }
            Reply::Result { text, terminal_status, usage, .. } => {
                self.end(route, |ids| line::query_result(ids, text.into_owned(), terminal_status, usage));
            }
            // A tool's answer arrived too late. The query of the tool call continues.
            Reply::Error { call_id: Some(_), .. } => {}
            Reply::Error { code, message, .. } => {
                self.handle_error(route, line_ids, code.into_specific(), message.into_owned());
            }
            Reply::CancelAck { accepted, dispatch_attempted, adapter_acknowledged, code, message } => {
                let refusal =
                    code.map(|code| (code.into_specific(), message.unwrap_or_default().into_owned()));
                let ack = CancelAck { accepted, dispatch_attempted, adapter_acknowledged, refusal, ids };
                self.acknowledge(line_ids.client_id, line_ids.request_id, ack);
            }
            Reply::AuthRequired { methods, auth_url } => {
                let (methods, auth_url) = (methods.into_owned(), auth_url.map(Cow::into_owned));
                let event =
                    || QueryEvent::AuthRequired { methods: methods.clone(), auth_url: auth_url.clone() };
                // A line that names no query may concern any query.
                let routes = route.map_or_else(|| lock(&self.state).in_order(), |route| vec![route]);
                routes.iter().for_each(|route| route.push_event(event()));
                self.send_notice(Notice::AuthRequired { methods, auth_url });
            }
            Reply::AuthSuccess {} => {
                if let Some(login) = self.take_login(line_ids.request_id.as_deref()) {
                    // The caller may have stopped waiting.
                    let _ = login.answer.send(Ok(()));
                }
                self.send_notice(Notice::AuthSuccess);
            }
            Reply::Status { available, code, message } => {
                if let Some(route) = route {
                    let (code, message) = (code.map(Code::into_specific), message.into_owned());
                    route.push_event(QueryEvent::Status { available, code, message });
                }
            }
            Reply::Question { .. } | Reply::QuestionClosed { .. } | Reply::AnswerAck { .. } => {
                if let Some((route, event)) = route.zip(question_event(reply)) {
                    route.push_event(event);
                }
            }
            Reply::Unknown => {}
        }
    }

    /// Handles a line that cannot be read. If the line ends a query, the query fails: no other end will follow.
    fn handle_unreadable(&self, line: &[u8]) {
        let start = String::from_utf8_lossy(&line[..line.len().min(200)]).trim_end().to_owned();
        let message = format!("the process wrote {start:?}, which is no line of the protocol");
        #[derive(serde::Deserialize)]
        struct Ended {
            r#type: String,
            #[serde(flatten)]
            line_ids: LineIds,
        }
        let ends = |line: &Ended| matches!(line.r#type.as_str(), "result" | "error");
        let ended = serde_json::from_slice(line).ok().filter(ends);
        match ended.and_then(|ended| lock(&self.state).route(&ended.line_ids)) {
            Some(route) => {
                self.end(Some(route), |ids| Err(failed("protocol".into(), message, ids)));
            }
            None => lock(&self.state).reported_error = Some(message),
        }
    }

    /// Handles an error: ends the query, fails the login or reports the refused request that the error is about.
    fn handle_error(&self, route: Option<Arc<Route>>, line_ids: LineIds, code: String, message: String) {
        if route.is_some() {
            return self.end(route, |ids| Err(failed(code, message, ids)));
        }
        let Some(request_id) = line_ids.request_id else {
            lock(&self.state).reported_error = Some(message);
            return;
        };
        match self.take_login(Some(&request_id)) {
            // The caller may have stopped waiting.
            Some(login) => drop(login.answer.send(Err(failed(code, message, QueryIds::default())))),
            None => {
                let client_id = line_ids.client_id.unwrap_or_default();
                self.send_notice(Notice::Refused { request_id, client_id, code, message });
            }
        }
    }

    /// Removes and returns the login with this request id, or the oldest one.
    fn take_login(&self, request: Option<&str>) -> Option<PendingLogin> {
        let logins = &mut lock(&self.state).logins;
        let index = logins.iter().position(|login| request.is_none_or(|request| login.request == request))?;
        logins.remove(index)
    }

    /// Returns the query of a tool call that names no query: the active query, if there is only one. `None` if the call
    /// has a request id, because no query was found for that id.
    fn only_route(&self, has_request_id: bool) -> Option<Arc<Route>> {
        let state = lock(&self.state);
        let mut routes = state.routes.values();
        let first = routes.next().filter(|_| !has_request_id)?;
        routes.next().is_none().then(|| first.1.clone())
    }

    fn end(&self, route: Option<Arc<Route>>, end: impl FnOnce(QueryIds) -> Result<QueryResult, BridgeError>) {
        let Some(route) = route else { return };
        {
            let mut state = lock(&self.state);
            state.has_answered = true;
            // Free the handle before it learns of the end, so that its next query is not refused as busy.
            state.routes.remove(&route.client);
        }
        route.end(end(route.ids()));
    }

    fn acknowledge(&self, client: Option<String>, request: Option<String>, ack: CancelAck) {
        let (Some(client), Some(request)) = (client, request) else { return };
        let mut state = lock(&self.state);
        state.has_answered = true;
        let index = state
            .interrupts
            .iter()
            .position(|interrupt| interrupt.client == client && interrupt.request == request);
        if let Some(interrupt) = index.and_then(|index| state.interrupts.remove(index)) {
            // The caller may have stopped waiting.
            let _ = interrupt.answer.send(ack);
        }
    }

    fn send_notice(&self, notice: Notice) {
        // Fails if there is no subscriber.
        let _ = self.notices.send(notice);
    }
}

/// Converts a line about a question; `None` if its id is not valid.
fn question_event(reply: Reply<'static>) -> Option<QueryEvent> {
    Some(match reply {
        Reply::Question { wait_id, request, question, approval, expires_at_ms } => {
            QueryEvent::Question(Box::new(Question {
                wait_id: wait_id.parse().ok()?,
                request,
                question: question.into_owned(),
                approval: approval.map(|approval| *approval),
                expires_at_ms,
            }))
        }
        Reply::QuestionClosed { wait_id, decision } => {
            QueryEvent::QuestionClosed { wait_id: wait_id.parse().ok()?, decision }
        }
        Reply::AnswerAck { wait_id, code, message, .. } => QueryEvent::AnswerAck {
            wait_id: wait_id.parse().ok()?,
            refusal: code.map(|code| (code.into_specific(), message.unwrap_or_default().into_owned())),
        },
        _ => return None,
    })
}

/// Converts a display-only reply to the event of its query; `None` for other replies.
fn display_event(reply: Reply<'_>) -> Option<QueryEvent> {
    match reply {
        Reply::TextDelta { text } => Some(QueryEvent::TextDelta(text.into_owned())),
        Reply::ThinkingDelta { text } => Some(QueryEvent::ThinkingDelta(text.into_owned())),
        Reply::ToolActivity { name, status, tool_use_id, input } => Some(QueryEvent::ToolActivity {
            name: name.into_owned(),
            status,
            tool_use_id: tool_use_id.map(Cow::into_owned),
            input: input.map(Cow::into_owned),
        }),
        Reply::ToolResultDisplay { tool_use_id, name, output } => Some(QueryEvent::ToolResultDisplay {
            tool_use_id: tool_use_id.into_owned(),
            name: name.into_owned(),
            output: output.into_owned(),
        }),
        _ => None,
    }
}

fn failed(code: String, message: String, ids: QueryIds) -> BridgeError {
    BridgeError::Failed { code, message, ids: Box::new(ids) }
}
