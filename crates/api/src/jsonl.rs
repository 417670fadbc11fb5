//! JSON lines: the protocol between a host and `mainspring stdio`, one object per line.
//!
//! A host sends a [`Request`] within an envelope and gets [`Reply`] lines, each with the [`LineIds`] of its request and run.
//! docs/jsonl.md describes the protocol. Replies borrow their texts, so that a streamed delta is not copied to be sent.
//! [`endpoint`] has the lines between an agent process and the socket through which it calls tools.

use std::borrow::Cow;

use mainspring_core::{
    Answer, Approval, ApprovalRequest, AttemptId, AuthMethod, EventId, Mode, RunId, RunStatus, SessionId,
    Time, Usage, WaitId, WaitRequest,
};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// The client id of lines without one.
pub const DEFAULT_CLIENT_ID: &str = "legacy-jsonl-client";

/// Removes the connection from the stored client id of a run. `#…` scopes the requests of a client without an id to its
/// connection; an id that a client has chosen may contain `#`.
pub fn without_connection(client_id: &str) -> &str {
    match client_id.split_once('#') {
        Some((DEFAULT_CLIENT_ID, _)) => DEFAULT_CLIENT_ID,
        _ => client_id,
    }
}

/// A line of the host, in version 2 of the protocol.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestLine {
    /// Always 2.
    pub protocol_version: u8,
    /// The host's id of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The client within the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// The owner that the host acts for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner_id: Option<String>,
    /// The request.
    #[serde(flatten)]
    pub request: Request,
}

impl RequestLine {
    /// Encodes the line, its end included.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }
}

impl From<Request> for RequestLine {
    fn from(request: Request) -> Self {
        Self { protocol_version: 2, request_id: None, client_id: None, owner_id: None, request }
    }
}

/// A request of the host.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Request {
    /// Sends a prompt.
    Query(Box<Query>),
    /// Stops a query: the named one, else the latest.
    Interrupt(Interrupt),
    /// Invalidates the agent's own session that belongs to a session key.
    InvalidateSession(InvalidateSession),
    /// Announces the settings of later queries.
    Warmup(Warmup),
    /// Answers a call of one of the host's tools.
    ToolResult(ToolResult),
    /// Answers a question of a query that has `questions` set.
    Answer(AnswerLine),
    /// Replaces the owner's token.
    RefreshToken(RefreshToken),
    /// Chooses how to log in to the agent.
    Authenticate(Authenticate),
    /// Ends the conversation.
    Stop {},
}

/// A prompt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Query {
    /// The text.
    pub prompt: String,
    /// The instructions.
    #[serde(default, deserialize_with = "non_empty", skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// Whether the agent may act.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// The adapter, by the alias that the host uses.
    #[serde(default, deserialize_with = "non_empty", skip_serializing_if = "Option::is_none")]
    pub adapter_id: Option<String>,
    /// The session, by id.
    #[serde(default, deserialize_with = "non_empty", skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The kind of surface.
    #[serde(default, deserialize_with = "non_empty", skip_serializing_if = "Option::is_none")]
    pub surface_kind: Option<String>,
    /// The kind of thing that the session stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_ref_kind: Option<String>,
    /// The id of the thing that the session stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_ref_id: Option<String>,
    /// The scope of a compatibility alias.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub legacy_client_scope: Option<String>,
    /// The key of a compatibility alias.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub legacy_session_key: Option<String>,
    /// An existing native session of the agent.
    #[serde(default, deserialize_with = "non_empty", skip_serializing_if = "Option::is_none")]
    pub legacy_adapter_session_id: Option<String>,
    /// The key of a compatibility alias, as version 1 names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_key: Option<String>,
    /// The folder.
    #[serde(default, deserialize_with = "non_empty", skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The model.
    #[serde(default, deserialize_with = "non_empty", skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The logical model profile. An explicit model takes precedence.
    #[serde(default, deserialize_with = "non_empty", skip_serializing_if = "Option::is_none")]
    pub model_profile: Option<String>,
    /// An existing native session of the agent, as version 1 names it.
    #[serde(default, deserialize_with = "non_empty", skip_serializing_if = "Option::is_none")]
    pub resume: Option<String>,
    /// True if the host answers the questions of the query: it gets the line `question` for each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub questions: Option<bool>,
    /// An image.
    #[serde(default, deserialize_with = "non_empty", skip_serializing_if = "Option::is_none")]
    pub image_base64: Option<String>,
}

/// Stops a query: the named one, else the latest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Interrupt {
    /// The session of the query.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The run of the query.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// The attempt of the query's run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt_id: Option<String>,
}

/// Invalidates the agent's own session that belongs to a session key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InvalidateSession {
    /// The key.
    pub session_key: String,
}

/// Announces defaults for the settings of later queries.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warmup {
    /// The folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
    /// The session keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions: Option<Vec<WarmupSession>>,
}

/// Announces the settings of later queries of one session key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WarmupSession {
    /// The key.
    pub key: String,
    /// The model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The instructions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
}

/// Answers a call of one of the host's tools.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolResult {
    /// The call.
    pub call_id: String,
    /// The result.
    pub result: Value,
}

/// Answers a question of a query.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AnswerLine {
    /// The question.
    pub wait_id: WaitId,
    /// The answer.
    pub answer: Answer,
}

/// A newer token of the owner.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefreshToken {
    /// The token.
    pub token: String,
}

impl std::fmt::Debug for RefreshToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RefreshToken(…)")
    }
}

/// Chooses how to log in to the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Authenticate {
    /// One of the agent's login methods.
    pub method_id: String,
}

/// A line to the host.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ReplyLine {
    /// The ids that the line belongs to.
    #[serde(flatten)]
    pub line_ids: LineIds,
    /// The reply.
    #[serde(flatten)]
    pub reply: Reply<'static>,
}

/// A reply to the host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum Reply<'a> {
    /// Mainspring is ready.
    Init {
        /// Always empty; hosts of version 1 expect the field.
        #[serde(default)]
        session_id: Cow<'a, str>,
    },
    /// Streamed text of the agent.
    TextDelta {
        /// The text.
        text: Cow<'a, str>,
    },
    /// A thought of the agent: streamed live, stored nowhere.
    ThinkingDelta {
        /// The text.
        text: Cow<'a, str>,
    },
    /// A call of one of the host's tools.
    ToolUse {
        /// Identifies the call in the answer.
        call_id: Cow<'a, str>,
        /// The tool.
        name: Cow<'a, str>,
        /// The tool's input.
        #[serde(default)]
        input: Cow<'a, Value>,
    },
    /// The progress of a tool that the agent runs.
    ToolActivity {
        /// The tool.
        name: Cow<'a, str>,
        /// The progress.
        status: Activity,
        /// The tool call.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tool_use_id: Option<Cow<'a, str>>,
        /// The tool's input.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<Cow<'a, Value>>,
    },
    /// The output of a tool that the agent ran.
    ToolResultDisplay {
        /// The tool call.
        tool_use_id: Cow<'a, str>,
        /// The tool.
        name: Cow<'a, str>,
        /// The output.
        output: Cow<'a, str>,
    },
    /// The end of a query that succeeded, or was cancelled.
    Result {
        /// The agent's whole text.
        text: Cow<'a, str>,
        /// The session. A reader finds it in [`LineIds`].
        #[serde(default)]
        session_id: Cow<'a, str>,
        /// The agent's own session; null if there is none. Absent in version 1. A reader finds it in [`LineIds`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        adapter_session_id: Option<Option<Cow<'a, str>>>,
        /// `succeeded` or `cancelled`.
        terminal_status: RunStatus,
        /// Tokens and cost of all attempts.
        #[serde(flatten)]
        usage: Usage,
    },
    /// The end of a query that failed, or a line that was not understood.
    Error {
        /// The message for people.
        message: Cow<'a, str>,
        /// The codes.
        #[serde(flatten)]
        code: Code<'a>,
        /// The call of a host's tool that the error is about.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        call_id: Option<Cow<'a, str>>,
    },
    /// The outcome of an interrupt.
    CancelAck {
        /// True if the request to stop is recorded.
        accepted: bool,
        /// True if the adapter was asked to stop.
        dispatch_attempted: bool,
        /// True if the adapter has confirmed the request.
        adapter_acknowledged: bool,
        /// Why the request was not accepted.
        #[serde(flatten)]
        code: Option<Code<'a>>,
        /// Why the request was not accepted, for people.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<Cow<'a, str>>,
    },
    /// The agent needs a login.
    AuthRequired {
        /// The login methods.
        #[serde(default)]
        methods: Cow<'a, [AuthMethod]>,
        /// The address of a login page.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        auth_url: Option<Cow<'a, str>>,
    },
    /// The login succeeded.
    AuthSuccess {},
    /// The agent waits for a person. Sent only for queries that have `questions` set.
    Question {
        /// The question.
        wait_id: Cow<'a, str>,
        /// The kind of answer.
        request: WaitRequest,
        /// The question, for people.
        question: Cow<'a, str>,
        /// The requested action and the possible answers, if the question is an approval.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        approval: Option<Box<ApprovalRequest>>,
        /// When the question expires.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expires_at_ms: Option<Time>,
    },
    /// A question is closed: it was answered, here or elsewhere, or has expired.
    QuestionClosed {
        /// The question.
        wait_id: Cow<'a, str>,
        /// The decision, if the question was an approval.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        decision: Option<Approval>,
    },
    /// Whether an answer was accepted.
    AnswerAck {
        /// The question.
        wait_id: Cow<'a, str>,
        /// True if the answer is recorded.
        accepted: bool,
        /// Why the answer was refused.
        #[serde(flatten)]
        code: Option<Code<'a>>,
        /// Why the answer was refused, for people.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<Cow<'a, str>>,
    },
    /// The query is blocked, or continues. A blocked query stays open and continues by itself.
    Status {
        /// False while the query is blocked.
        available: bool,
        /// Why the query is blocked.
        #[serde(flatten)]
        code: Option<Code<'a>>,
        /// The message for people.
        message: Cow<'a, str>,
    },
    /// A reply of a newer mainspring that this reader does not know.
    #[serde(other)]
    Unknown,
}

impl<'a> Reply<'a> {
    /// Builds an error with one of our codes.
    pub fn error(code: &'a str, message: &'a str) -> Self {
        Self::Error { message: message.into(), code: Code::new(code), call_id: None }
    }

    /// Encodes the line, its end included.
    pub fn encode(&self, line_ids: &LineIds) -> Vec<u8> {
        #[derive(Serialize)]
        struct Line<'a> {
            #[serde(flatten)]
            reply: &'a Reply<'a>,
            #[serde(flatten)]
            line_ids: LineIds,
            /// Adds `attemptId: null` to a result whose run had no attempt.
            #[serde(rename = "attemptId", skip_serializing_if = "Option::is_none")]
            no_attempt: Option<()>,
        }
        let mut line_ids = line_ids.clone();
        let mut no_attempt = None;
        if let Self::Result { .. } = self {
            // A result has its own fields for these two ids.
            (line_ids.session_id, line_ids.adapter_session_id) = (None, None);
            no_attempt = (line_ids.run_id.is_some() && line_ids.attempt_id.is_none()).then_some(());
        }
        encode(&Line { reply: self, line_ids, no_attempt })
    }
}

/// The progress of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// The tool runs.
    Started,
    /// The tool has succeeded.
    Completed,
    /// The tool has failed.
    Failed,
}

/// An error code from the protocol's closed list, with our own code where ours is more specific.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Code<'a> {
    /// The protocol's code.
    pub code: Cow<'a, str>,
    /// Our own code, where it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Cow<'a, str>>,
}

impl<'a> Code<'a> {
    /// Maps one of our codes to the protocol's.
    pub fn new(ours: &'a str) -> Self {
        let (code, reason) = codes::protocol_code(ours);
        Self { code: code.into(), reason: reason.map(Cow::Borrowed) }
    }

    /// Returns the more specific of the two codes.
    pub fn into_specific(self) -> String {
        self.reason.unwrap_or(self.code).into_owned()
    }
}

/// The ids that a line belongs to.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LineIds {
    /// The protocol's version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol_version: Option<u64>,
    /// The host's id of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The client within the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// The session.
    #[serde(default, deserialize_with = "session_id_or_none", skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// The run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// The attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_id: Option<AttemptId>,
    /// The event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<EventId>,
    /// The agent's own session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter_session_id: Option<String>,
}

fn encode(line: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(line).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// Reads an empty text as `None`.
fn non_empty<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<String>::deserialize(from)?.filter(|text| !text.is_empty()))
}

/// Reads the id of a session; `None` if it is not valid, such as the empty id of the reply `init`.
fn session_id_or_none<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SessionId>, D::Error> {
    Ok(Option::<String>::deserialize(from)?.and_then(|id| id.parse().ok()))
}

pub mod codes;
pub mod endpoint;

#[cfg(test)]
mod tests;
