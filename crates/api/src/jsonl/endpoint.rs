//! Lines between an agent process and its endpoint, the socket through which the process calls tools.
//!
//! An agent sends [`AgentLine`]s and gets one [`EndpointLine`] for each. docs/jsonl.md describes the endpoint.

use std::borrow::Cow;

use mainspring_core::{AttemptId, RunId, SessionId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::encode;

/// A line of an agent.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum AgentLine {
    /// Calls a tool.
    ToolUse(ToolUse),
    /// Asks for the run that the process works for.
    Context {
        /// Identifies the line in the answer.
        call_id: String,
    },
}

impl AgentLine {
    /// Encodes the line, its end included.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }
}

/// A call of a control tool or of a tool of the host. The ids of the session, the run and the attempt are optional and
/// must equal those of the live attempt: they cannot select another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolUse {
    /// Identifies the call in the answer.
    pub call_id: String,
    /// The tool.
    pub name: String,
    /// The tool's input.
    #[serde(default)]
    pub input: Value,
    /// The session of the live attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The run of the live attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// The live attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt_id: Option<String>,
}

/// A line to an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum EndpointLine {
    /// Answers a call.
    ToolResult(ToolResult),
    /// Answers a line that asks for the context.
    Context {
        /// The line that asked.
        call_id: String,
        /// The run, or the reason why there is none.
        #[serde(flatten)]
        context: Context,
    },
}

impl EndpointLine {
    /// Encodes the line, its end included.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }
}

/// The answer to a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolResult {
    /// The call.
    #[serde(default)]
    pub call_id: String,
    /// The result as text.
    pub result: String,
}

/// The run that a process works for, or the reason why there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Context {
    /// The process works for this run.
    Run(RunContext),
    /// The process works for no run.
    Unavailable {
        /// The reason.
        error: NoContext,
    },
}

/// The ids of the run that a process works for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunContext {
    /// The owner of the session.
    pub owner_id: String,
    /// The session.
    pub session_id: SessionId,
    /// The run.
    pub run_id: RunId,
    /// The attempt.
    pub attempt_id: AttemptId,
    /// The host's id of the request; null if the run has none.
    pub request_id: Option<String>,
    /// The client within the host; null if the run has none.
    pub client_id: Option<String>,
}

/// Why a process has no context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NoContext {
    /// The protocol's code.
    pub code: Cow<'static, str>,
    /// A sentence for people.
    pub message: Cow<'static, str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(line: Vec<u8>) -> String {
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn a_call_is_encoded_with_the_ids_that_it_names() {
        let call = ToolUse {
            call_id: "c".into(),
            name: "lookup".into(),
            input: serde_json::json!({"of": "x"}),
            session_id: None,
            run_id: None,
            attempt_id: None,
        };
        insta::assert_snapshot!(text(AgentLine::ToolUse(call.clone()).encode()), @r#"{"type":"tool_use","callId":"c","name":"lookup","input":{"of":"x"}}"#);
        let named = ToolUse { session_id: Some("ses_1".into()), ..call };
        insta::assert_snapshot!(text(AgentLine::ToolUse(named.clone()).encode()), @r#"{"type":"tool_use","callId":"c","name":"lookup","input":{"of":"x"},"sessionId":"ses_1"}"#);
        let read: ToolUse = serde_json::from_slice(&AgentLine::ToolUse(named.clone()).encode()).unwrap();
        assert_eq!(read, named);
        let read: ToolUse = serde_json::from_str(r#"{"callId":"c","name":"n","newer":1}"#).unwrap();
        assert_eq!((read.input, read.run_id), (Value::Null, None));
        insta::assert_snapshot!(text(AgentLine::Context { call_id: "c".into() }.encode()), @r#"{"type":"context","callId":"c"}"#);
    }

    #[test]
    fn an_answer_is_encoded_as_one_object() {
        let result = ToolResult { call_id: "c".into(), result: "done\n".into() };
        let line = EndpointLine::ToolResult(result.clone()).encode();
        assert_eq!(serde_json::from_slice::<ToolResult>(&line).unwrap(), result);
        insta::assert_snapshot!(text(line), @r#"{"type":"tool_result","callId":"c","result":"done\n"}"#);
        let run = RunContext {
            owner_id: "ada".into(),
            session_id: SessionId::from_random([1; 16]),
            run_id: RunId::from_random([2; 16]),
            attempt_id: AttemptId::from_random([3; 16]),
            request_id: Some("r".into()),
            client_id: None,
        };
        let line = EndpointLine::Context { call_id: "c".into(), context: Context::Run(run) };
        insta::assert_snapshot!(text(line.encode()), @r#"{"type":"context","callId":"c","ownerId":"ada","sessionId":"ses_01010101010141018101010101010101","runId":"run_02020202020242028202020202020202","attemptId":"att_03030303030343038303030303030303","requestId":"r","clientId":null}"#);
        let error = NoContext { code: "stale_owner".into(), message: "no run".into() };
        let line = EndpointLine::Context { call_id: "c".into(), context: Context::Unavailable { error } };
        insta::assert_snapshot!(text(line.encode()), @r#"{"type":"context","callId":"c","error":{"code":"stale_owner","message":"no run"}}"#);
    }
}
