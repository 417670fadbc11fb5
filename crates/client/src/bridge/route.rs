//! Routes: the queries of handles, and the events that a handle has not read yet.
//!
//! The reader of the process's lines never waits for a handle. Unread text is merged into fewer and longer events.
//! Beyond the limits, the oldest display-only events are dropped, and the handle gets their number. Unanswered tool
//! calls and the end of the query are never dropped.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use mainspring_api::control::ErrorAnswer;
use mainspring_api::jsonl::{Activity, Request, RequestLine, ToolResult};
use mainspring_core::{Approval, ApprovalRequest, AuthMethod, Time, WaitId, WaitRequest};
use serde_json::Value;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use super::BridgeError;
use super::line::{QueryIds, QueryResult};
use super::shared::lock;

/// Maximum bytes of unread text per handle.
const MAX_UNREAD_BYTES: usize = 1 << 20;
/// Maximum number of unread events per handle.
const MAX_UNREAD_EVENTS: usize = 1_024;
/// Size in bytes from which a text event is not merged further.
const MAX_MERGED_BYTES: usize = 64 << 10;

/// An event of an active query.
#[derive(Debug)]
pub enum QueryEvent {
    /// The agent streams text.
    TextDelta(String),
    /// The agent streams a thought: display-only, never stored.
    ThinkingDelta(String),
    /// The agent uses one of its own tools.
    ToolActivity {
        /// The tool's name.
        name: String,
        /// The state of the call.
        status: Activity,
        /// The id of the call.
        tool_use_id: Option<String>,
        /// The arguments of the call.
        input: Option<Value>,
    },
    /// The result of one of the agent's own tools.
    ToolResultDisplay {
        /// The id of the call.
        tool_use_id: String,
        /// The tool's name.
        name: String,
        /// The tool's output.
        output: String,
    },
    /// The agent calls a tool of the host, which must answer.
    ToolCall(ToolCall),
    /// The agent wants the user to authenticate.
    AuthRequired {
        /// The available methods.
        methods: Vec<AuthMethod>,
        /// The page on which to authenticate.
        auth_url: Option<String>,
    },
    /// The query is blocked for the moment, or continues.
    Status {
        /// False while the query is blocked.
        available: bool,
        /// Why the query is blocked.
        code: Option<String>,
        /// For people.
        message: String,
    },
    /// The agent waits for a person: answer with [`super::AgentBridge::answer`]. Only for queries with
    /// [`super::Query::questions`].
    Question(Box<Question>),
    /// A question was answered, here or elsewhere, or has expired.
    QuestionClosed {
        /// The question.
        wait_id: WaitId,
        /// The decision, if the question was an approval.
        decision: Option<Approval>,
    },
    /// An answer of this handle was accepted or refused.
    AnswerAck {
        /// The question.
        wait_id: WaitId,
        /// The reason for a refusal: a stable code, and a message for people.
        refusal: Option<(String, String)>,
    },
    /// The process died, and the query was sent again under its request id. If the run continues, its text is
    /// streamed again from the beginning.
    Restarted,
    /// The handle read too slowly, and display-only events were dropped. The result holds the whole text.
    Missed {
        /// Number of dropped events.
        events: usize,
        /// Number of dropped bytes of text.
        bytes: usize,
    },
}

impl QueryEvent {
    /// Returns the streamed text; empty for other events.
    pub fn text(&self) -> &str {
        match self {
            Self::TextDelta(text) => text,
            _ => "",
        }
    }

    /// Returns the bytes that count towards the limit.
    fn size_bytes(&self) -> usize {
        match self {
            Self::TextDelta(text) | Self::ThinkingDelta(text) => text.len(),
            Self::ToolResultDisplay { output, .. } => output.len(),
            Self::ToolActivity { input: Some(input), .. } => input.to_string().len(),
            _ => 0,
        }
    }

    /// True for display-only events, which may be dropped.
    fn is_display_only(&self) -> bool {
        !matches!(
            self,
            Self::ToolCall(_)
                | Self::AuthRequired { .. }
                | Self::Status { .. }
                | Self::Question(_)
                | Self::QuestionClosed { .. }
                | Self::AnswerAck { .. }
                | Self::Restarted
        )
    }
}

/// A question of the agent to a person.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// The id that an answer names.
    pub wait_id: WaitId,
    /// The kind of answer.
    pub request: WaitRequest,
    /// The question, for people.
    pub question: String,
    /// The requested action and the possible answers, if the question is an approval.
    pub approval: Option<ApprovalRequest>,
    /// When the question expires.
    pub expires_at_ms: Option<Time>,
}

/// A call of one of the host's tools. If the call is dropped without an answer, the agent gets an error as its result.
pub struct ToolCall {
    /// The tool's name.
    pub name: String,
    /// The arguments.
    pub input: Value,
    /// The ids of the calling query.
    pub ids: QueryIds,
    call_id: String,
    stdin: Option<mpsc::UnboundedSender<Vec<u8>>>,
}

impl fmt::Debug for ToolCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolCall")
            .field("name", &self.name)
            .field("input", &self.input)
            .finish_non_exhaustive()
    }
}

impl ToolCall {
    pub(super) fn new(
        call_id: String,
        name: String,
        input: Value,
        ids: QueryIds,
        stdin: mpsc::UnboundedSender<Vec<u8>>,
    ) -> Self {
        Self { name, input, ids, call_id, stdin: Some(stdin) }
    }

    /// Answers the call. Text is passed on as it is, any other value as JSON.
    pub fn answer(mut self, result: impl Into<Value>) {
        match result.into() {
            Value::String(text) => self.send(&text),
            other => self.send(&other.to_string()),
        }
    }

    /// Answers that the call failed.
    pub fn fail(mut self, code: &str, message: &str) {
        self.refuse(code, message);
    }

    fn refuse(&mut self, code: &str, message: &str) {
        self.send(&serde_json::to_string(&ErrorAnswer::of_host(code, message)).unwrap_or_default());
    }

    fn send(&mut self, result: &str) {
        if let Some(stdin) = self.stdin.take() {
            // If the process died, no caller waits for the answer.
            let answer = ToolResult { call_id: self.call_id.clone(), result: result.into() };
            let _ = stdin.send(RequestLine::from(Request::ToolResult(answer)).encode());
        }
    }
}

impl Drop for ToolCall {
    fn drop(&mut self) {
        self.refuse("unknown", "the host did not answer the call");
    }
}

/// A function that answers calls of the host's tools.
#[derive(Clone)]
pub struct Tools(Arc<AnswerCall>);

type AnswerCall = dyn Fn(ToolCall) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync;

impl Tools {
    /// Answers each call with `answer`, concurrently with the stream.
    pub fn new<F, A>(answer: F) -> Self
    where
        F: Fn(ToolCall) -> A + Send + Sync + 'static,
        A: Future<Output = ()> + Send + 'static,
    {
        Self(Arc::new(move |call| Box::pin(answer(call))))
    }
}

/// One query, from its request line to its end.
pub(super) struct Route {
    pub(super) client: String,
    pub(super) request: String,
    /// The request line, kept to be sent again to the next process.
    pub(super) line: Vec<u8>,
    tools: Option<Tools>,
    inbox: Mutex<Inbox>,
    wake: Notify,
}

#[derive(Default)]
struct Inbox {
    events: VecDeque<QueryEvent>,
    /// The bytes of `events` that count towards the limit.
    queued_bytes: usize,
    dropped_events: usize,
    dropped_bytes: usize,
    ids: QueryIds,
    end: Option<Result<QueryResult, BridgeError>>,
    /// The stream was dropped: no reader is left.
    abandoned: bool,
    answer_tasks: JoinSet<()>,
}

impl Route {
    pub(super) fn new(client: String, request: String, line: Vec<u8>, tools: Option<Tools>) -> Self {
        Self { client, request, line, tools, inbox: Mutex::default(), wake: Notify::new() }
    }

    /// Queues an event. Never waits.
    pub(super) fn push_event(&self, event: QueryEvent) {
        let dropped = lock(&self.inbox).push(event);
        self.wake.notify_one();
        // Dropped outside the lock: dropping an unanswered tool call sends its failure.
        drop(dropped);
    }

    /// Passes a tool call to the caller's function, or queues it as an event.
    pub(super) fn handle_tool_call(&self, call: ToolCall) {
        match &self.tools {
            Some(tools) => {
                let answer = (tools.0)(call);
                let mut inbox = lock(&self.inbox);
                while inbox.answer_tasks.try_join_next().is_some() {}
                inbox.answer_tasks.spawn(answer);
            }
            None => self.push_event(QueryEvent::ToolCall(call)),
        }
    }

    pub(super) fn update_ids(&self, ids: &QueryIds) {
        lock(&self.inbox).ids.update(ids);
    }

    pub(super) fn ids(&self) -> QueryIds {
        lock(&self.inbox).ids.clone()
    }

    pub(super) fn end(&self, end: Result<QueryResult, BridgeError>) {
        let answer_tasks = {
            let mut inbox = lock(&self.inbox);
            inbox.end = Some(end);
            std::mem::take(&mut inbox.answer_tasks)
        };
        self.wake.notify_one();
        drop(answer_tasks);
    }

    /// Waits for the next event; `None` once the query has ended and all events were read.
    pub(super) async fn next(&self) -> Option<QueryEvent> {
        loop {
            if let Some(next) = lock(&self.inbox).pop() {
                return next;
            }
            // There is only one reader, and `Notify` stores a wake-up sent in between.
            self.wake.notified().await;
        }
    }

    pub(super) fn take_end(&self) -> Option<Result<QueryResult, BridgeError>> {
        lock(&self.inbox).end.take()
    }

    /// Discards unread events and all later ones.
    pub(super) fn discard_events(&self) {
        let unread = {
            let mut inbox = lock(&self.inbox);
            inbox.abandoned = true;
            (inbox.queued_bytes, inbox.dropped_events, inbox.dropped_bytes) = (0, 0, 0);
            std::mem::take(&mut inbox.events)
        };
        drop(unread);
    }
}

impl Inbox {
    /// Queues an event; returns the events to drop.
    fn push(&mut self, event: QueryEvent) -> Vec<QueryEvent> {
        if self.abandoned {
            return vec![event];
        }
        self.queued_bytes += event.size_bytes();
        match (self.events.back_mut(), event) {
            (Some(QueryEvent::TextDelta(last)), QueryEvent::TextDelta(more))
            | (Some(QueryEvent::ThinkingDelta(last)), QueryEvent::ThinkingDelta(more))
                if last.len() < MAX_MERGED_BYTES =>
            {
                last.push_str(&more);
            }
            (_, event) => self.events.push_back(event),
        }
        let mut dropped = vec![];
        while self.queued_bytes > MAX_UNREAD_BYTES || self.events.len() > MAX_UNREAD_EVENTS {
            // The latest event stays whatever its size, so a reader that keeps up misses nothing.
            let droppable = self.events.len().saturating_sub(1);
            let Some(index) = self.events.iter().take(droppable).position(QueryEvent::is_display_only) else {
                break;
            };
            dropped.extend(self.events.remove(index).inspect(|event| {
                self.queued_bytes -= event.size_bytes();
                self.dropped_events += 1;
                self.dropped_bytes += event.size_bytes();
            }));
        }
        dropped
    }

    /// Returns the next event, `Some(None)` at the end, and `None` if there is nothing yet.
    fn pop(&mut self) -> Option<Option<QueryEvent>> {
        if self.dropped_events > 0 {
            let events = std::mem::take(&mut self.dropped_events);
            let bytes = std::mem::take(&mut self.dropped_bytes);
            return Some(Some(QueryEvent::Missed { events, bytes }));
        }
        match self.events.pop_front() {
            Some(event) => {
                self.queued_bytes -= event.size_bytes();
                Some(Some(event))
            }
            None => self.end.is_some().then_some(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route() -> Route {
        Route::new("c".into(), "r".into(), vec![], None)
    }

    #[tokio::test]
    async fn unread_text_is_merged_and_dropped_text_is_reported() {
        let route = route();
        for _ in 0..10 {
            route.push_event(QueryEvent::TextDelta("ab".into()));
        }
        assert_eq!(route.next().await.unwrap().text(), "ab".repeat(10));
        let (stdin, mut answers) = mpsc::unbounded_channel();
        route.handle_tool_call(ToolCall::new(
            "1".into(),
            "t".into(),
            Value::Null,
            QueryIds::default(),
            stdin,
        ));
        let piece = "x".repeat(1_000);
        for _ in 0..5_000 {
            route.push_event(QueryEvent::TextDelta(piece.clone()));
        }
        route.end(Err(BridgeError::Stopped));
        let (mut missed, mut text, mut calls) = (0, 0, 0);
        while let Some(event) = route.next().await {
            match event {
                QueryEvent::Missed { bytes, .. } => missed += bytes,
                QueryEvent::TextDelta(piece) => text += piece.len(),
                QueryEvent::ToolCall(call) => {
                    calls += 1;
                    call.answer("here");
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(text <= MAX_UNREAD_BYTES && missed > 0, "{text} bytes, {missed} missed");
        assert_eq!((missed + text, calls), (5_000_000, 1), "every byte is delivered or reported as missed");
        let answer = String::from_utf8(answers.recv().await.unwrap()).unwrap();
        assert!(answer.contains("\"result\":\"here\""), "{answer}");
        assert_eq!(route.take_end(), Some(Err(BridgeError::Stopped)));
    }

    #[tokio::test]
    async fn a_reader_that_keeps_up_misses_no_large_event() {
        let route = route();
        let long = "x".repeat(3 * MAX_UNREAD_BYTES);
        for _ in 0..2 {
            route.push_event(QueryEvent::ToolResultDisplay {
                tool_use_id: "t".into(),
                name: "read".into(),
                output: long.clone(),
            });
            let event = route.next().await.unwrap();
            assert!(matches!(event, QueryEvent::ToolResultDisplay { output, .. } if output == long));
        }
    }

    #[tokio::test]
    async fn tool_input_counts_towards_the_limit() {
        let route = route();
        for _ in 0..50 {
            route.push_event(QueryEvent::ToolActivity {
                name: "write".into(),
                status: Activity::Started,
                tool_use_id: None,
                input: Some(Value::String("x".repeat(100_000))),
            });
        }
        let QueryEvent::Missed { events, bytes } = route.next().await.unwrap() else {
            panic!("nothing was dropped")
        };
        assert!(events >= 39 && bytes >= 50 * 100_000 - MAX_UNREAD_BYTES, "{events} events, {bytes} bytes");
    }

    #[tokio::test]
    async fn a_tool_call_without_a_reader_is_answered() {
        let route = route();
        let (stdin, mut answers) = mpsc::unbounded_channel();
        route.handle_tool_call(ToolCall::new(
            "1".into(),
            "t".into(),
            Value::Null,
            QueryIds::default(),
            stdin.clone(),
        ));
        route.discard_events();
        route.handle_tool_call(ToolCall::new(
            "2".into(),
            "t".into(),
            Value::Null,
            QueryIds::default(),
            stdin,
        ));
        for call in ["1", "2"] {
            let answer = String::from_utf8(answers.recv().await.unwrap()).unwrap();
            assert!(
                answer.contains(&format!("\"callId\":\"{call}\"")) && answer.contains("did not answer"),
                "{answer}"
            );
        }
    }
}
