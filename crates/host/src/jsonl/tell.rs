//! What a run's events mean to the host that asked for it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use mainspring_api::jsonl::{Activity, Reply};
use mainspring_core::{
    BindingId, Block, Body, Cost, Event, Failure, Message, MessageId, MessageStatus, Role, Run, RunStatus,
    Usage,
};
use serde_json::Value;

use super::line::Version;
use super::live::Query;

/// Tells one query what happens.
pub(super) struct Teller {
    pub(super) query: Arc<Query>,
    /// How many bytes of a message were told as they came.
    streamed: HashMap<MessageId, usize>,
    /// Everything the agent has said.
    text: String,
    /// True when some of what it said was not seen, so that `text` is not all of it.
    pub(super) gap: bool,
    /// Tool calls that a message asked for, with their input: a message answers them.
    asked: HashMap<String, Value>,
    /// What tools that no message asked for have said last.
    said: HashMap<String, String>,
    /// What the agent has asked last: by itself that does not mean that the run waits, for a policy may answer it.
    question: String,
}

/// What an event comes to.
#[derive(Default)]
pub(super) struct Told {
    /// Lines to say, in order.
    pub(super) lines: Vec<Vec<u8>>,
    /// How the run ended.
    pub(super) end: Option<End>,
    /// The native session that the run uses.
    pub(super) bound: Option<BindingId>,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct End {
    pub(super) status: RunStatus,
    pub(super) error: Option<Failure>,
    pub(super) usage: Usage,
}

impl End {
    /// How a run has ended; none if it has not.
    pub(super) fn of(run: &Run) -> Option<Self> {
        let (status, error) = (run.state.status(), run.state.error().cloned());
        status.is_ended().then_some(Self { status, error, usage: run.usage })
    }

    fn by(body: &Body) -> Option<Self> {
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

    /// What was used, in numbers: the protocol has no word for a cost that nobody knows.
    fn shown_usage(&self) -> Usage {
        let cost = if self.usage.cost.is_known() { self.usage.cost } else { Cost::default() };
        Usage { cost, ..self.usage }
    }

    /// True when the agent wants the user to authenticate first.
    pub(super) fn wants_login(&self) -> bool {
        self.error.as_ref().is_some_and(|error| error.code == Failure::AUTHENTICATION)
    }

    /// The line that ends the query.
    pub(super) fn line(&self, query: &Query, text: &str, event: Option<mainspring_core::EventId>) -> Vec<u8> {
        let names = query.names(event);
        if let Some(Failure { code, message }) = &self.error {
            return Reply::error(code, message).encode(&names);
        }
        let known = query.known();
        let canonical = known.session.map(|id| id.to_string()).unwrap_or_default();
        let session_id = match query.version {
            Version::V1 => known.native.as_deref().unwrap_or(&canonical),
            Version::V2 => &canonical,
        };
        let native = known.native.as_deref().filter(|_| query.version == Version::V2);
        let result = Reply::Result {
            text: text.into(),
            session_id: session_id.into(),
            adapter_session_id: native.map(Into::into),
            terminal_status: self.status,
            usage: self.shown_usage(),
        };
        result.encode(&names)
    }
}

impl Teller {
    pub(super) fn new(query: Arc<Query>) -> Self {
        Self {
            query,
            streamed: HashMap::new(),
            text: String::new(),
            gap: false,
            asked: HashMap::new(),
            said: HashMap::new(),
            question: String::new(),
        }
    }

    /// Everything the agent has said, as far as it was seen.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Text was told as it came.
    pub(super) fn streamed(&mut self, message: MessageId, bytes: usize) {
        *self.streamed.entry(message).or_default() += bytes;
    }

    /// Something happened in its run.
    pub(super) fn event(&mut self, event: &Event) -> Told {
        let query = self.query.clone();
        query.learn(|known| known.attempt = event.attempt.or(known.attempt));
        let mut told = Told::default();
        let mut say = |say: &Reply<'_>| {
            // Text is told as it was streamed, whichever way it came.
            let event = (!matches!(say, Reply::TextDelta { .. })).then_some(event.id);
            told.lines.push(say.encode(&query.names(event)));
        };
        match &event.body {
            Body::AttemptStarted {} | Body::RunRunning {} => query.learn(|known| known.running = true),
            Body::MessageCompleted { message, .. } => self.message(message, &mut say),
            Body::ToolStarted { tool_use_id, name, input } => {
                let input = input.as_ref().or_else(|| self.asked.get(tool_use_id));
                say(&tool_activity(tool_use_id, name, Activity::Started, input));
            }
            Body::ToolUpdated { tool_use_id, text } if !self.asked.contains_key(tool_use_id) => {
                self.said.insert(tool_use_id.clone(), text.clone());
            }
            Body::ToolCompleted { tool_use_id, name } => {
                say(&tool_activity(tool_use_id, name, Activity::Completed, None));
                if let Some(output) = self.said.remove(tool_use_id) {
                    say(&tool_output(tool_use_id, name, &output));
                }
            }
            Body::ToolFailed { tool_use_id, name, error, .. } => {
                say(&tool_activity(tool_use_id, name, Activity::Failed, None));
                self.said.remove(tool_use_id);
                if !self.asked.contains_key(tool_use_id) {
                    say(&tool_output(tool_use_id, name, &error.message));
                }
            }
            Body::InputRequested { question, .. } | Body::ApprovalRequested { question, .. } => {
                self.question.clone_from(question);
            }
            Body::RunWaitingInput { .. } | Body::RunWaitingApproval { .. } => {
                // The protocol has no line for a question: somebody else may answer it.
                let run = event.run.map(|run| run.to_string()).unwrap_or_default();
                tracing::warn!(
                    run,
                    question = self.question,
                    "a query waits for a person: answer with `mainspring run answer`"
                );
            }
            Body::BindingCreated { binding_id, .. } | Body::BindingResumed { binding_id } => {
                told.bound = Some(*binding_id);
            }
            body => {
                told.end = End::by(body);
                if told.end.is_some() {
                    query.learn(|known| known.running = false);
                }
            }
        }
        told
    }

    /// A message is whole: what of it has not been told yet is told now.
    fn message(&mut self, message: &Message, say: &mut impl FnMut(&Reply<'_>)) {
        let seen = self.streamed.remove(&message.id).unwrap_or_default();
        if message.role == Role::Assistant {
            let text = message.text();
            if let Some(rest) = text.get(seen..).filter(|rest| !rest.is_empty()) {
                say(&Reply::TextDelta { text: rest.into() });
            }
            if is_spoken(message) {
                self.text.push_str(&text);
            }
        }
        for block in &message.content {
            match block {
                Block::ToolUse { id, input, .. } => drop(self.asked.insert(id.clone(), input.clone())),
                Block::ToolResult { tool_use_id, name, content, .. } => {
                    say(&tool_output(tool_use_id, name, &shown(content)));
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

/// True for what the agent said, to its end or until it was stopped; what a failed attempt left is not part of it.
fn is_spoken(message: &Message) -> bool {
    let kept = matches!(message.status, MessageStatus::Completed | MessageStatus::Cancelled);
    message.role == Role::Assistant && kept
}

/// What the agent said, if the event is that it has.
pub(super) fn spoken(body: &Body) -> Option<String> {
    match body {
        Body::MessageCompleted { message, .. } if is_spoken(message) => Some(message.text()),
        _ => None,
    }
}

/// What a tool answered, as text; what is no text, as JSON.
fn shown(content: &[Block]) -> String {
    let part = |block: &Block| match block {
        Block::Text { text } => text.clone(),
        other => serde_json::to_string(other).unwrap_or_default(),
    };
    content.iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use mainspring_core::{AttemptId, Cursor, EventId, RunId, SessionId, Time, ToolOutcome};
    use serde_json::json;

    use super::*;
    use crate::jsonl::live::Live;

    /// What a query is told of `bodies`, without its names.
    fn told(bodies: Vec<Body>) -> Vec<Value> {
        let live = Live::default();
        let begun = live.begin(Version::V1, "c", "o", "r".into(), "acp".into());
        let mut teller = Teller::new(begun.unwrap_or_else(|query| query));
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
        let lines = bodies.into_iter().flat_map(|body| teller.event(&event(body)).lines);
        lines.map(|line| serde_json::from_slice(&line).unwrap()).collect()
    }

    #[test]
    fn a_tool_that_no_message_asked_for_shows_what_it_said_last() {
        let (tool_use_id, name) = ("t".to_owned(), "edit".to_owned());
        let started = Body::ToolStarted {
            tool_use_id: tool_use_id.clone(),
            name: name.clone(),
            input: Some(json!({"path": "a"})),
        };
        let says = |text: &str| Body::ToolUpdated { tool_use_id: tool_use_id.clone(), text: text.into() };
        let done = Body::ToolCompleted { tool_use_id: tool_use_id.clone(), name: name.clone() };
        let lines = told(vec![started.clone(), says("half"), says("whole"), done]);
        assert_eq!(
            lines,
            [
                json!({"type": "tool_activity", "name": "edit", "status": "started", "toolUseId": "t", "input": {"path": "a"}}),
                json!({"type": "tool_activity", "name": "edit", "status": "completed", "toolUseId": "t"}),
                json!({"type": "tool_result_display", "toolUseId": "t", "name": "edit", "output": "whole"}),
            ]
        );
        let error = Failure::new("tool_failed", "no such file");
        let failed =
            Body::ToolFailed { tool_use_id: tool_use_id.clone(), name, outcome: ToolOutcome::Failed, error };
        let lines = told(vec![started, failed]);
        assert_eq!((&lines[1]["status"], &lines[2]["output"]), (&json!("failed"), &json!("no such file")));
    }
}
