//! Translates a run's events into the lines of its query.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use mainspring_api::jsonl::{Activity, Reply};
use mainspring_control::is_final;
use mainspring_core::{
    ApprovalRequest, BindingId, Block, Body, Cost, Event, Failure, FailureCode, Message, MessageId, Role,
    Run, RunStatus, Time, Usage, WaitId, WaitRequest,
};
use serde_json::Value;

use super::line::Version;
use super::live::Query;

/// Translates the events of one query's run.
pub(super) struct Translator {
    pub(super) query: Arc<Query>,
    /// Bytes of each message that were already sent as deltas.
    streamed: HashMap<MessageId, usize>,
    /// The agent's complete text so far.
    text: String,
    /// True when `text` is not the complete text: events were missed, or the agents of a network have answered.
    pub(super) gap: bool,
    /// Inputs of the tool calls in messages; the results of these calls also come in messages.
    message_calls: HashMap<String, Value>,
    /// The latest output of other tool calls.
    outputs: HashMap<String, String>,
    /// The text of the agent's latest question.
    question: String,
    /// The latest question, until it is sent. The run may never wait for it: a policy may answer.
    asked: Option<Asked>,
    /// The question that was sent to the host and is still open.
    open_question: Option<WaitId>,
}

/// A question of the agent: the request, if it is an approval, and when it expires.
type Asked = (WaitId, Option<Box<ApprovalRequest>>, Option<Time>);

/// The translation of an event.
#[derive(Default)]
pub(super) struct Translation {
    /// Lines to write, in order.
    pub(super) lines: Vec<Vec<u8>>,
    /// The run's end, if the event is one.
    pub(super) end: Option<End>,
    /// The binding that the run uses from now on.
    pub(super) bound: Option<BindingId>,
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct End {
    pub(super) status: RunStatus,
    pub(super) error: Option<Failure>,
    pub(super) usage: Usage,
}

impl End {
    /// Returns the end of a run; `None` if the run has not ended.
    pub(super) fn of(run: &Run) -> Option<Self> {
        let (status, error) = (run.state.status(), run.state.error().cloned());
        status.is_ended().then_some(Self { status, error, usage: run.usage })
    }

    fn from_body(body: &Body) -> Option<Self> {
        let (status, error, close) = match body {
            Body::RunSucceeded { close } => (RunStatus::Succeeded, None, close),
            Body::RunCancelled { close, .. } => (RunStatus::Cancelled, None, close),
            Body::RunFailed { error, close } => (RunStatus::Failed, Some(error), close),
            Body::RunTimedOut { error, close } => (RunStatus::TimedOut, Some(error), close),
            Body::RunOrphaned { error, close } => (RunStatus::Orphaned, Some(error), close),
            _ => return None,
        };
        Some(Self { status, error: error.cloned(), usage: close.usage })
    }

    /// Returns the usage with an unknown cost as 0, and `at_least` if anything is unknown: hosts expect a number.
    fn reported_usage(&self) -> Usage {
        let cost = if self.usage.cost.is_known() { self.usage.cost } else { Cost::default() };
        Usage { cost, at_least: !self.usage.is_known(), ..self.usage }
    }

    /// True when the agent requires a login.
    pub(super) fn wants_login(&self) -> bool {
        self.error.as_ref().is_some_and(|error| error.code == FailureCode::Authentication)
    }

    /// Builds the line that ends the query.
    pub(super) fn line(&self, query: &Query, text: &str, event: Option<mainspring_core::EventId>) -> Vec<u8> {
        let line_ids = query.line_ids(event);
        if let Some(Failure { code, message }) = &self.error {
            return Reply::error(code.as_str(), message).encode(&line_ids);
        }
        let details = query.details();
        let canonical = details.session.map(|id| id.to_string()).unwrap_or_default();
        let session_id = match query.version {
            Version::V1 => details.native.as_deref().unwrap_or(&canonical),
            Version::V2 => &canonical,
        };
        let native = (query.version == Version::V2).then(|| details.native.as_deref().map(Into::into));
        let result = Reply::Result {
            text: text.into(),
            session_id: session_id.into(),
            adapter_session_id: native,
            terminal_status: self.status,
            usage: self.reported_usage(),
        };
        result.encode(&line_ids)
    }
}

impl Translator {
    pub(super) fn new(query: Arc<Query>) -> Self {
        Self {
            query,
            streamed: HashMap::new(),
            text: String::new(),
            gap: false,
            message_calls: HashMap::new(),
            outputs: HashMap::new(),
            question: String::new(),
            asked: None,
            open_question: None,
        }
    }

    /// Returns the agent's text, incomplete if there is a gap.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Records that `bytes` of a message were sent as a delta.
    pub(super) fn record_streamed(&mut self, message: MessageId, bytes: usize) {
        *self.streamed.entry(message).or_default() += bytes;
    }

    /// Translates an event of the run.
    pub(super) fn event(&mut self, event: &Event) -> Translation {
        let query = self.query.clone();
        query.update(|known| known.attempt = event.attempt.or(known.attempt));
        let mut translation = Translation::default();
        let mut send = |reply: &Reply<'_>| {
            // Text has no event id, so that it looks the same whether it was streamed or not.
            let event = (!matches!(reply, Reply::TextDelta { .. })).then_some(event.id);
            translation.lines.push(reply.encode(&query.line_ids(event)));
        };
        match &event.body {
            Body::AttemptStarted {} | Body::RunRunning {} => query.update(|known| known.running = true),
            Body::MessageCompleted { message, .. } => self.message(message, &mut send),
            // The complete text is read at the end of the run. In a network only the server knows its paragraphs.
            Body::EventDamaged { .. } | Body::RunRouted { .. } => self.gap = true,
            Body::ToolStarted { tool_use_id, name, input, .. } => {
                let input = input.as_ref().or_else(|| self.message_calls.get(tool_use_id));
                send(&tool_activity(tool_use_id, name, Activity::Started, input));
            }
            Body::ToolUpdated { tool_use_id, text } if !self.message_calls.contains_key(tool_use_id) => {
                self.outputs.insert(tool_use_id.clone(), text.clone());
            }
            Body::ToolCompleted { tool_use_id, name, end } => {
                send(&tool_activity(tool_use_id, name, Activity::Completed, None));
                let progress = self.outputs.remove(tool_use_id);
                let text = result_text(&end.content);
                // If a message holds the call, the output is sent with the message of the tool results.
                let output = if end.message_id.is_some() || text.is_empty() { progress } else { Some(text) };
                if let Some(output) = output {
                    send(&tool_output(tool_use_id, name, &output));
                }
            }
            Body::ToolFailed { tool_use_id, name, error, .. } => {
                send(&tool_activity(tool_use_id, name, Activity::Failed, None));
                self.outputs.remove(tool_use_id);
                if !self.message_calls.contains_key(tool_use_id) {
                    send(&tool_output(tool_use_id, name, &error.message));
                }
            }
            Body::InputRequested { .. }
            | Body::ApprovalRequested { .. }
            | Body::ApprovalResolved { .. }
            | Body::InputProvided { .. } => self.question(&event.body, &mut send),
            Body::RunWaitingInput { wait_id } | Body::RunWaitingApproval { wait_id }
                if query.details().questions && self.is_asked(*wait_id) =>
            {
                self.open_question(&mut send);
            }
            Body::RunWaitingInput { .. } | Body::RunWaitingApproval { .. } => {
                // The host did not opt in to questions; the question can be answered elsewhere.
                let run = event.run.map(|run| run.to_string()).unwrap_or_default();
                // Without the question, which may hold the input of a tool.
                tracing::warn!(
                    run,
                    "query waits for a person: answer with `mainspring approval` or `mainspring run answer`"
                );
            }
            Body::BindingCreated { binding_id, .. } | Body::BindingResumed { binding_id } => {
                translation.bound = Some(*binding_id);
            }
            body => {
                translation.end = End::from_body(body);
                if translation.end.is_some() {
                    query.update(|known| known.running = false);
                }
            }
        }
        translation
    }

    /// Remembers a question, or reports that the question that the run waits for is closed.
    fn question(&mut self, body: &Body, send: &mut impl FnMut(&Reply<'_>)) {
        let (closed, decision) = match body {
            Body::InputRequested { wait_id, question, expires_at_ms } => {
                self.question.clone_from(question);
                self.asked = Some((*wait_id, None, *expires_at_ms));
                return;
            }
            Body::ApprovalRequested { wait_id, question, approval, expires_at_ms, .. } => {
                self.question.clone_from(question);
                self.asked = Some((*wait_id, approval.clone(), *expires_at_ms));
                return;
            }
            Body::ApprovalResolved { wait_id, decision, .. } => (*wait_id, Some(*decision)),
            Body::InputProvided { wait_id, .. } => (*wait_id, None),
            _ => return,
        };
        if self.open_question == Some(closed) {
            self.open_question = None;
            send(&Reply::QuestionClosed { wait_id: closed.to_string().into(), decision });
        }
    }

    /// Sends the question that the run waits for.
    fn open_question(&mut self, send: &mut impl FnMut(&Reply<'_>)) {
        let Some((wait_id, approval, expires_at_ms)) = self.asked.take() else { return };
        self.open_question = Some(wait_id);
        send(&Reply::Question {
            wait_id: wait_id.to_string().into(),
            request: if approval.is_some() { WaitRequest::Approval } else { WaitRequest::Input },
            question: self.question.as_str().into(),
            approval,
            expires_at_ms,
        });
    }

    fn is_asked(&self, wait: WaitId) -> bool {
        self.asked.as_ref().is_some_and(|(asked, ..)| *asked == wait)
    }

    /// Sends the part of a completed message that was not streamed.
    fn message(&mut self, message: &Message, send: &mut impl FnMut(&Reply<'_>)) {
        let sent = self.streamed.remove(&message.id).unwrap_or_default();
        if message.role == Role::Assistant {
            let text = message.text();
            if let Some(rest) = text.get(sent..).filter(|rest| !rest.is_empty()) {
                send(&Reply::TextDelta { text: rest.into() });
            }
            if is_final(message) {
                self.text.push_str(&text);
            }
        }
        for block in &message.content {
            match block {
                Block::ToolUse { id, input, .. } => {
                    drop(self.message_calls.insert(id.clone(), input.clone()));
                }
                Block::ToolResult { tool_use_id, name, content, .. } => {
                    send(&tool_output(tool_use_id, name, &result_text(content)));
                }
                _ => {}
            }
        }
    }
}

fn tool_activity<'a>(call: &'a str, name: &'a str, status: Activity, input: Option<&'a Value>) -> Reply<'a> {
    Reply::ToolActivity {
        name: name.into(),
        status,
        tool_use_id: Some(call.into()),
        input: input.map(Cow::Borrowed),
    }
}

fn tool_output<'a>(call: &'a str, name: &'a str, output: &'a str) -> Reply<'a> {
    Reply::ToolResultDisplay { tool_use_id: call.into(), name: name.into(), output: output.into() }
}

/// Returns a tool result as text; other blocks as JSON.
fn result_text(content: &[Block]) -> String {
    let part = |block: &Block| match block {
        Block::Text { text } => text.clone(),
        other => serde_json::to_string(other).unwrap_or_default(),
    };
    content.iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use mainspring_core::{AttemptId, Cursor, EventId, RunId, SessionId, Time, ToolEnd, ToolOutcome};
    use serde_json::json;

    use super::*;
    use crate::jsonl::live::Live;

    /// Returns the lines of `bodies`, without ids.
    fn lines_of(bodies: Vec<Body>) -> Vec<Value> {
        let live = Live::default();
        let begun = live.begin(Version::V1, "c", "o", "r".into(), "acp".into());
        let mut translator = Translator::new(begun.unwrap_or_else(|query| query));
        let event = |body| Event {
            id: EventId::from_random([1; 16]),
            cursor: Cursor(1),
            pos: 0,
            session: SessionId::from_random([2; 16]),
            run: Some(RunId::from_random([3; 16])),
            attempt: Some(AttemptId::from_random([4; 16])),
            request: None,
            at: Time(0),
            body,
        };
        let lines = bodies.into_iter().flat_map(|body| translator.event(&event(body)).lines);
        lines.map(|line| serde_json::from_slice(&line).unwrap()).collect()
    }

    #[test]
    fn a_tool_call_outside_messages_reports_its_latest_output() {
        let (tool_use_id, name) = ("t".to_owned(), "edit".to_owned());
        let started = Body::ToolStarted {
            tool_use_id: tool_use_id.clone(),
            name: name.clone(),
            input: Some(json!({"path": "a"})),
            decided_by: None,
        };
        let updated = |text: &str| Body::ToolUpdated { tool_use_id: tool_use_id.clone(), text: text.into() };
        let done = |text: &str| {
            let content = vec![Block::text(text)];
            let end = ToolEnd { content, ..ToolEnd::default() };
            Body::ToolCompleted { tool_use_id: tool_use_id.clone(), name: name.clone(), end }
        };
        let lines = lines_of(vec![started.clone(), updated("half"), done("whole")]);
        assert_eq!(
            lines,
            [
                json!({"type": "tool_activity", "name": "edit", "status": "started", "toolUseId": "t", "input": {"path": "a"}}),
                json!({"type": "tool_activity", "name": "edit", "status": "completed", "toolUseId": "t"}),
                json!({"type": "tool_result_display", "toolUseId": "t", "name": "edit", "output": "whole"}),
            ]
        );
        let error = Failure::new("tool_failed", "no such file");
        let failed = Body::ToolFailed {
            tool_use_id: tool_use_id.clone(),
            name,
            outcome: ToolOutcome::Failed,
            error,
            end: ToolEnd::default(),
        };
        let lines = lines_of(vec![started, failed]);
        assert_eq!((&lines[1]["status"], &lines[2]["output"]), (&json!("failed"), &json!("no such file")));
    }
}
