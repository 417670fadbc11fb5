//! The caller's view of queries: their ids, results and acknowledgements.

use mainspring_api::jsonl::LineIds;
use mainspring_core::{AttemptId, RunId, RunStatus, SessionId, Usage};

use super::BridgeError;

/// The ids of a query. Mainspring assigns the ids of session, run and attempt; the agent's runtime assigns the
/// adapter's session id.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QueryIds {
    /// The canonical session.
    pub session_id: Option<SessionId>,
    /// The canonical run.
    pub run_id: Option<RunId>,
    /// The canonical attempt: the latest one of the run.
    pub attempt_id: Option<AttemptId>,
    /// The native session's id in the agent's runtime. Not a session id of mainspring.
    pub adapter_session_id: Option<String>,
}

impl QueryIds {
    /// Overwrites the ids with those known to `newer`.
    pub(super) fn update(&mut self, newer: &Self) {
        self.session_id = newer.session_id.or(self.session_id);
        self.run_id = newer.run_id.or(self.run_id);
        self.attempt_id = newer.attempt_id.or(self.attempt_id);
        if newer.adapter_session_id.is_some() {
            self.adapter_session_id.clone_from(&newer.adapter_session_id);
        }
    }
}

/// The end of a query that succeeded or was cancelled.
#[derive(Debug, Clone, PartialEq)]
pub struct QueryResult {
    /// The canonical session, in which the conversation continues.
    pub session_id: SessionId,
    /// The canonical run.
    pub run_id: RunId,
    /// The canonical attempt; `None` if the run was cancelled before its first attempt.
    pub attempt_id: Option<AttemptId>,
    /// The native session's id in the agent's runtime, if it has one. Not a session id of mainspring.
    pub adapter_session_id: Option<String>,
    /// `succeeded` or `cancelled`.
    pub terminal_status: RunStatus,
    /// The agent's whole text; for a cancelled run, the text up to its end.
    pub text: String,
    /// Tokens and cost of all attempts.
    pub usage: Usage,
}

impl QueryResult {
    /// Returns the `sessionId` of protocol version 1: the native session's id if there is one, else the canonical id.
    /// Only for callers of version 1: new callers read the two ids separately.
    pub fn legacy_session_id(&self) -> String {
        self.adapter_session_id.clone().unwrap_or_else(|| self.session_id.to_string())
    }
}

/// The actual outcome of a request to cancel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CancelAck {
    /// The request was recorded.
    pub accepted: bool,
    /// The request was sent to the adapter.
    pub dispatch_attempted: bool,
    /// The adapter confirmed the request.
    pub adapter_acknowledged: bool,
    /// The reason for a refusal: a stable code, and a message for people.
    pub refusal: Option<(String, String)>,
    /// The ids of the query to cancel.
    pub ids: QueryIds,
}

impl From<&LineIds> for QueryIds {
    fn from(line_ids: &LineIds) -> Self {
        Self {
            session_id: line_ids.session_id,
            run_id: line_ids.run_id,
            attempt_id: line_ids.attempt_id,
            adapter_session_id: line_ids.adapter_session_id.clone(),
        }
    }
}

/// Converts a result line.
pub(super) fn query_result(
    ids: QueryIds,
    text: String,
    terminal_status: RunStatus,
    usage: Usage,
) -> Result<QueryResult, BridgeError> {
    let QueryIds { session_id, run_id, attempt_id, adapter_session_id } = ids;
    let (Some(session_id), Some(run_id)) = (session_id, run_id) else {
        return Err(BridgeError::Protocol { problem: "a result without its session or its run".into() });
    };
    Ok(QueryResult { session_id, run_id, attempt_id, adapter_session_id, terminal_status, text, usage })
}

#[cfg(test)]
mod tests {
    use mainspring_api::jsonl::{self, Reply, ReplyLine, Request, RequestLine};
    use mainspring_core::Mode;

    use super::super::Surface;
    use super::*;

    fn parse(line: &str) -> ReplyLine {
        serde_json::from_str(line).unwrap()
    }

    #[test]
    fn a_result_exposes_session_run_attempt_and_adapter_ids_separately() {
        let id = |kind: &str, digit: &str| {
            format!("{kind}_{}4{}8{}", digit.repeat(12), digit.repeat(3), digit.repeat(15))
        };
        let (session, run, attempt) = (id("ses", "1"), id("run", "2"), id("att", "3"));
        let line = parse(&format!(
            r#"{{"type":"result","protocolVersion":2,"requestId":"r","clientId":"c","sessionId":"{session}","runId":"{run}",
            "attemptId":"{attempt}","adapterSessionId":"native-7","terminalStatus":"succeeded","text":"hi","costUsd":0.12,
            "inputTokens":100,"outputTokens":80,"cacheReadTokens":0,"cacheWriteTokens":0}}"#
        ));
        let ids = QueryIds::from(&line.line_ids);
        let Reply::Result { text, terminal_status, usage, .. } = line.reply else { panic!("{line:?}") };
        let result = query_result(ids, text.into_owned(), terminal_status, usage).unwrap();
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
        // Version 1 has one id: the adapter's own, if there is one.
        assert_eq!(result.legacy_session_id(), "native-7");
        let without_native = QueryResult { adapter_session_id: None, ..result };
        assert_eq!(without_native.legacy_session_id(), session);
    }

    #[test]
    fn a_cancellation_acknowledgement_parses() {
        let line = parse(
            r#"{"type":"cancel_ack","requestId":"r","accepted":true,"dispatchAttempted":true,"adapterAcknowledged":false}"#,
        );
        let ack = Reply::CancelAck {
            accepted: true,
            dispatch_attempted: true,
            adapter_acknowledged: false,
            code: None,
            message: None,
        };
        assert_eq!(line.reply, ack);
    }

    #[test]
    fn a_query_is_a_line_of_version_2() {
        let query = jsonl::Query {
            prompt: "hi".into(),
            system_prompt: Some(String::new()),
            mode: Some(Mode::Act),
            ..Surface::task_chat("42").query()
        };
        let line = RequestLine {
            request_id: Some("r".into()),
            client_id: Some("c".into()),
            ..Request::Query(Box::new(query)).into()
        };
        assert_eq!(
            String::from_utf8(line.encode()).unwrap(),
            "{\"protocolVersion\":2,\"requestId\":\"r\",\"clientId\":\"c\",\"type\":\"query\",\"prompt\":\"hi\",\
             \"systemPrompt\":\"\",\"mode\":\"act\",\"surfaceKind\":\"task_chat\",\"externalRefKind\":\"task\",\
             \"externalRefId\":\"42\"}\n"
        );
    }
}
