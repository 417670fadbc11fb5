//! What the host is told: one JSON object per line.
//!
//! Lines of version 2 that belong to a query carry its [`Names`]; those of version 1 carry none.

use mainspring_core::{AttemptId, AuthMethod, EventId, RunId, RunStatus, SessionId, Usage};
use serde::Serialize;
use serde_json::Value;

use super::code::told;
use super::line::{Echo, Envelope, Version};

/// One thing to say.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub(super) enum Say<'a> {
    /// We are ready.
    Init { session_id: &'a str },
    /// Text of the agent.
    TextDelta { text: &'a str },
    /// A thought of the agent: shown, kept nowhere.
    ThinkingDelta { text: &'a str },
    /// A tool that the host runs.
    ToolUse { call_id: &'a str, name: &'a str, input: &'a Value },
    /// A tool that the agent runs.
    ToolActivity {
        name: &'a str,
        status: Activity,
        tool_use_id: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        input: Option<&'a Value>,
    },
    /// What a tool answered.
    ToolResultDisplay { tool_use_id: &'a str, name: &'a str, output: &'a str },
    /// The end of a query that succeeded, or was cancelled.
    Result {
        text: &'a str,
        session_id: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        adapter_session_id: Option<&'a str>,
        terminal_status: RunStatus,
        #[serde(flatten)]
        usage: Usage,
    },
    /// The end of a query that failed, or a line that makes no sense.
    Error {
        message: &'a str,
        #[serde(flatten)]
        code: Code<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        call_id: Option<&'a str>,
    },
    /// What became of a wish to stop; why, if it was not accepted.
    CancelAck {
        accepted: bool,
        dispatch_attempted: bool,
        adapter_acknowledged: bool,
        #[serde(flatten)]
        code: Option<Code<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        message: Option<&'a str>,
    },
    /// The agent wants the user to authenticate.
    AuthRequired { methods: &'a [AuthMethod] },
    /// The user has.
    AuthSuccess {},
}

impl<'a> Say<'a> {
    /// A line that makes no sense, or a query that failed.
    pub(super) fn error(code: &'a str, message: &'a str) -> Self {
        Self::Error { message, code: Code::of(code), call_id: None }
    }
}

/// What went wrong, in the protocol's words, and in ours where these say more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Code<'a> {
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

impl<'a> Code<'a> {
    /// What a host is told of one of our codes.
    pub(crate) fn of(ours: &'a str) -> Self {
        let (code, reason) = told(ours);
        Self { code, reason }
    }
}

/// How far a tool is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Activity {
    Started,
    Completed,
    Failed,
}

/// What a line belongs to.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Names {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) protocol_version: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) request_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) client_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) session_id: Option<SessionId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) run_id: Option<RunId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) attempt_id: Option<AttemptId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) event_id: Option<EventId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) adapter_session_id: Option<String>,
}

impl From<&Envelope> for Names {
    /// What the answer to a line that is no query carries: in version 1 nothing.
    fn from(envelope: &Envelope) -> Self {
        match envelope.version {
            Version::V1 => Self::default(),
            Version::V2 => Self {
                protocol_version: Some(2),
                request_id: envelope.request.clone(),
                client_id: envelope.client.clone(),
                ..Self::default()
            },
        }
    }
}

impl From<Echo> for Names {
    fn from(echo: Echo) -> Self {
        let Echo { version, request, client } = echo;
        Self { protocol_version: version, request_id: request, client_id: client, ..Self::default() }
    }
}

/// The line that says it, its end included.
pub(super) fn line(say: &Say<'_>, names: &Names) -> Vec<u8> {
    #[derive(Serialize)]
    struct Line<'a> {
        #[serde(flatten)]
        say: &'a Say<'a>,
        #[serde(flatten)]
        names: Names,
    }
    let mut names = names.clone();
    if let Say::Result { .. } = say {
        // A result has these itself.
        (names.session_id, names.adapter_session_id) = (None, None);
    }
    let mut bytes = serde_json::to_vec(&Line { say, names }).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(say: &Say<'_>, names: &Names) -> String {
        String::from_utf8(line(say, names)).unwrap()
    }

    #[test]
    fn a_line_is_its_type_what_it_says_and_what_it_belongs_to() {
        let names = Names {
            protocol_version: Some(2),
            request_id: Some("r".into()),
            session_id: Some(SessionId::from_random([1; 16])),
            adapter_session_id: Some("native".into()),
            ..Names::default()
        };
        insta::assert_snapshot!(shown(&Say::TextDelta { text: "a\nb" }, &names), @r#"{"type":"text_delta","text":"a\nb","protocolVersion":2,"requestId":"r","sessionId":"ses_01010101010141018101010101010101","adapterSessionId":"native"}"#);
        insta::assert_snapshot!(shown(&Say::Init { session_id: "" }, &Names::default()), @r#"{"type":"init","sessionId":""}"#);
        let result = Say::Result {
            text: "hi",
            session_id: "ses",
            adapter_session_id: Some("native"),
            terminal_status: RunStatus::Succeeded,
            usage: Usage::default(),
        };
        insta::assert_snapshot!(shown(&result, &names), @r#"{"type":"result","text":"hi","sessionId":"ses","adapterSessionId":"native","terminalStatus":"succeeded","inputTokens":0,"outputTokens":0,"cacheReadTokens":0,"cacheWriteTokens":0,"costUsd":0.0,"protocolVersion":2,"requestId":"r"}"#);
    }
}
