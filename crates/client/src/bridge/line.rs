//! Lines of the protocol's version 2: what the process says, what it is told, and what they mean to a caller.

use mainspring_core::{AttemptId, Mode, RunId, RunStatus, SessionId, Usage};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{BridgeError, Surface};

/// What a query became. Canonical ids are mainspring's; the adapter's own is never one of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QueryIds {
    /// The canonical session.
    pub session_id: Option<SessionId>,
    /// The canonical run.
    pub run_id: Option<RunId>,
    /// The canonical attempt: the latest of the run.
    pub attempt_id: Option<AttemptId>,
    /// What the agent's runtime calls its own session. Not a session's id here.
    pub adapter_session_id: Option<String>,
}

impl QueryIds {
    /// Takes over what `newer` knows.
    pub(super) fn learn(&mut self, newer: &Self) {
        self.session_id = newer.session_id.or(self.session_id);
        self.run_id = newer.run_id.or(self.run_id);
        self.attempt_id = newer.attempt_id.or(self.attempt_id);
        if newer.adapter_session_id.is_some() {
            self.adapter_session_id.clone_from(&newer.adapter_session_id);
        }
    }
}

/// How a query ended that succeeded, or was cancelled.
#[derive(Debug, Clone, PartialEq)]
pub struct QueryResult {
    /// The canonical session: what continuity is kept by.
    pub session_id: SessionId,
    /// The canonical run.
    pub run_id: RunId,
    /// The canonical attempt; none if the run was cancelled before there was one.
    pub attempt_id: Option<AttemptId>,
    /// What the agent's runtime calls its own session, if it has one. Never a session's id here.
    pub adapter_session_id: Option<String>,
    /// `succeeded` or `cancelled`.
    pub terminal_status: RunStatus,
    /// Everything the agent said; of a cancelled run, what it had said.
    pub text: String,
    /// Tokens and cost of all attempts.
    pub usage: Usage,
}

impl QueryResult {
    /// What version 1 of the protocol called `sessionId`: the adapter's own where there is one, else the canonical one.
    /// For callers that keep it as they always did; new ones name the one they mean.
    pub fn legacy_session_id(&self) -> String {
        self.adapter_session_id.clone().unwrap_or_else(|| self.session_id.to_string())
    }
}

/// What became of a wish to stop: what was done, not what is hoped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CancelAck {
    /// The wish is recorded.
    pub accepted: bool,
    /// The adapter was told.
    pub dispatch_attempted: bool,
    /// The adapter confirmed.
    pub adapter_acknowledged: bool,
    /// Why it was not accepted: a stable code, and a sentence for people.
    pub refusal: Option<(String, String)>,
    /// What is to stop.
    pub ids: QueryIds,
}

/// How far a tool of the agent's is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// It runs.
    Started,
    /// It has succeeded.
    Completed,
    /// It has not.
    Failed,
}

/// What later queries of these session keys will want, unless they say otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Warmup {
    /// Their folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The keys.
    pub sessions: Vec<WarmupSession>,
}

/// What later queries of one session key will want.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WarmupSession {
    /// The key.
    pub key: String,
    /// Their model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Their instructions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
}

/// A line of the process.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Heard {
    #[serde(default)]
    pub(super) request_id: Option<String>,
    #[serde(default)]
    pub(super) client_id: Option<String>,
    #[serde(default)]
    session_id: Option<String>,
    #[serde(default)]
    run_id: Option<RunId>,
    #[serde(default)]
    attempt_id: Option<AttemptId>,
    #[serde(default)]
    adapter_session_id: Option<String>,
    #[serde(flatten)]
    pub(super) said: Said,
}

impl Heard {
    pub(super) fn ids(&self) -> QueryIds {
        QueryIds {
            // `init` has an empty one.
            session_id: self.session_id.as_ref().and_then(|id| id.parse().ok()),
            run_id: self.run_id,
            attempt_id: self.attempt_id,
            adapter_session_id: self.adapter_session_id.clone(),
        }
    }
}

/// What it says.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub(super) enum Said {
    Init {},
    TextDelta {
        text: String,
    },
    ThinkingDelta {
        text: String,
    },
    ToolUse {
        call_id: String,
        name: String,
        #[serde(default)]
        input: Value,
    },
    ToolActivity {
        name: String,
        status: Activity,
        #[serde(default)]
        tool_use_id: Option<String>,
        #[serde(default)]
        input: Option<Value>,
    },
    ToolResultDisplay {
        tool_use_id: String,
        name: String,
        output: String,
    },
    Result {
        text: String,
        terminal_status: RunStatus,
        #[serde(flatten)]
        usage: Usage,
    },
    Error {
        message: String,
        code: String,
        /// What mainspring itself calls it, where that says more.
        #[serde(default)]
        reason: Option<String>,
        #[serde(default)]
        call_id: Option<String>,
    },
    CancelAck {
        accepted: bool,
        dispatch_attempted: bool,
        adapter_acknowledged: bool,
        #[serde(default)]
        code: Option<String>,
        #[serde(default)]
        reason: Option<String>,
        #[serde(default)]
        message: Option<String>,
    },
    AuthRequired {
        #[serde(default)]
        methods: Vec<Value>,
        #[serde(default)]
        auth_url: Option<String>,
    },
    AuthSuccess {},
    /// Something that a newer process says and this client does not know.
    #[serde(other)]
    Unknown,
}

/// The result that a line tells.
pub(super) fn result(
    ids: QueryIds,
    text: String,
    terminal_status: RunStatus,
    usage: Usage,
) -> Result<QueryResult, BridgeError> {
    let QueryIds { session_id, run_id, attempt_id, adapter_session_id } = ids;
    let (Some(session_id), Some(run_id)) = (session_id, run_id) else {
        return Err(BridgeError::Protocol { what: "a result without its session or its run".into() });
    };
    Ok(QueryResult { session_id, run_id, attempt_id, adapter_session_id, terminal_status, text, usage })
}

/// A line to the process.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Tell<'a> {
    pub(super) protocol_version: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) request_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) client_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) owner_id: Option<&'a str>,
    #[serde(flatten)]
    pub(super) what: What<'a>,
}

/// What it is told.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub(super) enum What<'a> {
    Query(Box<QueryFields<'a>>),
    Interrupt {},
    InvalidateSession { session_key: &'a str },
    Warmup(&'a Warmup),
    ToolResult { call_id: &'a str, result: &'a str },
    RefreshToken { token: &'a str },
    Authenticate { method_id: &'a str },
    Stop {},
}

/// What a query says.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct QueryFields<'a> {
    pub(super) prompt: &'a str,
    pub(super) system_prompt: &'a str,
    pub(super) mode: Mode,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) adapter_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) session_id: Option<SessionId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) surface_kind: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) external_ref_kind: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) external_ref_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) legacy_client_scope: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) legacy_session_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) legacy_adapter_session_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cwd: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) image_base64: Option<&'a str>,
}

impl<'a> QueryFields<'a> {
    pub(super) fn on(mut self, surface: Option<&'a Surface>) -> Self {
        if let Some(Surface { kind, external_ref }) = surface {
            self.surface_kind = Some(kind);
            (self.external_ref_kind, self.external_ref_id) =
                (Some(external_ref.kind.as_str()), Some(external_ref.id.as_str()));
        }
        self
    }
}

impl<'a> From<What<'a>> for Tell<'a> {
    fn from(what: What<'a>) -> Self {
        Self { protocol_version: 2, request_id: None, client_id: None, owner_id: None, what }
    }
}

impl Tell<'_> {
    /// The line that says it, its end included.
    pub(super) fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(line: &str) -> Heard {
        serde_json::from_str(line).unwrap()
    }

    #[test]
    fn a_result_exposes_session_run_attempt_and_adapter_ids_separately() {
        let id = |kind: &str, digit: &str| {
            format!("{kind}_{}4{}8{}", digit.repeat(12), digit.repeat(3), digit.repeat(15))
        };
        let (session, run, attempt) = (id("ses", "1"), id("run", "2"), id("att", "3"));
        let line = heard(&format!(
            r#"{{"type":"result","protocolVersion":2,"requestId":"r","clientId":"c","sessionId":"{session}","runId":"{run}",
            "attemptId":"{attempt}","adapterSessionId":"native-7","terminalStatus":"succeeded","text":"hi","costUsd":0.12,
            "inputTokens":100,"outputTokens":80,"cacheReadTokens":0,"cacheWriteTokens":0}}"#
        ));
        let ids = line.ids();
        let Said::Result { text, terminal_status, usage } = line.said else { panic!("{line:?}") };
        let result = result(ids, text, terminal_status, usage).unwrap();
        assert_eq!(
            (
                result.session_id.to_string(),
                result.run_id.to_string(),
                result.attempt_id.map(|id| id.to_string())
            ),
            (session.clone(), run, Some(attempt))
        );
        assert_eq!(result.adapter_session_id.as_deref(), Some("native-7"));
        assert_eq!((result.usage.input_tokens, result.usage.cost.usd()), (100, Some(0.12)));
        // Version 1 knew one id: the adapter's own, where it has one.
        assert_eq!(result.legacy_session_id(), "native-7");
        let own = QueryResult { adapter_session_id: None, ..result };
        assert_eq!(own.legacy_session_id(), session);
    }

    #[test]
    fn a_cancellation_acknowledgement_parses_and_what_is_newer_is_no_error() {
        let line = heard(
            r#"{"type":"cancel_ack","requestId":"r","accepted":true,"dispatchAttempted":true,"adapterAcknowledged":false}"#,
        );
        assert!(matches!(
            line.said,
            Said::CancelAck {
                accepted: true,
                dispatch_attempted: true,
                adapter_acknowledged: false,
                code: None,
                ..
            }
        ));
        assert!(matches!(heard(r#"{"type":"hologram","depth":3}"#).said, Said::Unknown));
        assert!(matches!(heard(r#"{"type":"init","sessionId":""}"#).said, Said::Init {}));
    }

    #[test]
    fn what_is_told_is_a_line_of_version_2() {
        let surface = Surface::task_chat("42");
        let query = QueryFields { prompt: "hi", ..QueryFields::default() }.on(Some(&surface));
        let line =
            Tell { request_id: Some("r"), client_id: Some("c"), ..What::Query(Box::new(query)).into() }
                .line();
        let line = String::from_utf8(line).unwrap();
        assert_eq!(
            line,
            "{\"protocolVersion\":2,\"requestId\":\"r\",\"clientId\":\"c\",\"type\":\"query\",\"prompt\":\"hi\",\
             \"systemPrompt\":\"\",\"mode\":\"act\",\"surfaceKind\":\"task_chat\",\"externalRefKind\":\"task\",\
             \"externalRefId\":\"42\"}\n"
        );
    }
}
