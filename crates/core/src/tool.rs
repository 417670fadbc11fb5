//! Client tools: tools that the caller of a run executes. The run waits for their results.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::message::names;
use crate::message::text_of;
use crate::{Block, Decider, Failure, Limits, OnExpiry, Time, ToolOutcome};

/// A tool that the caller executes, as declared in a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClientTool {
    /// The tool's name: 1 to 64 letters, digits, underscores and hyphens. It must differ from the names of the
    /// agent's own tools.
    #[cfg_attr(feature = "schema", schema(pattern = "^[A-Za-z0-9_-]{1,64}$"))]
    pub name: String,
    /// A description for the model.
    #[serde(default)]
    pub description: String,
    /// The JSON Schema of the arguments, which must be an object.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub input_schema: Value,
    /// How long a run waits for the result of a call, in milliseconds. Absent: as long as for any other answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1))]
    pub timeout_ms: Option<u64>,
    /// The consequence of a call that gets no result in this time: the run ends as `timed_out`, or it continues and the
    /// call has an error as its result.
    #[serde(default, skip_serializing_if = "OnExpiry::is_default")]
    pub on_timeout: OnExpiry,
}

/// A tool call that the caller is asked to execute.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClientCall {
    /// The id of the call, which its result must name. Stable, so that the caller can recognise the call.
    pub tool_use_id: String,
    /// The name of the tool.
    pub name: String,
    /// The arguments, valid against the tool's schema.
    pub input: Value,
    /// True when the result of the call has been provided.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub answered: bool,
    /// The party that allowed the call; absent if another event records the decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<Decider>,
    /// When the run stops waiting for the result, if the tool has a time limit of its own.
    #[serde(rename = "expiresAtMs", default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// The consequence of `expiresAtMs` passing without a result.
    #[serde(default, skip_serializing_if = "OnExpiry::is_default")]
    pub on_expiry: OnExpiry,
}

/// The outcome of a tool call that the caller was asked to execute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ResultStatus {
    /// The tool was executed and returned a value.
    Success,
    /// The tool failed.
    Error,
    /// The caller refused to execute the tool.
    Declined,
}
names!(ResultStatus { Success => "success", Error => "error", Declined => "declined" });

/// The result of a tool call that the caller executed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClientResult {
    /// The id of the tool call.
    pub tool_use_id: String,
    /// The content sent to the model: a string as it is, any other value as JSON.
    pub content: Value,
    /// True when the call failed or was refused. Not needed beside `status`, which counts if both are given.
    #[serde(default)]
    pub is_error: bool,
    /// The outcome. Absent: `error` if `isError` is true, else `success`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ResultStatus>,
    /// How long the caller took to execute the tool, in milliseconds. Absent: the time since the call was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_ms: Option<u64>,
}

/// The text that the model gets for a declined call, if the caller gives none.
const DECLINED_TEXT: &str = "The call was declined.";

impl ClientResult {
    /// The text sent to the model.
    pub fn text(&self) -> String {
        match &self.content {
            Value::Null if self.is_declined() => DECLINED_TEXT.to_owned(),
            Value::String(text) if text.is_empty() && self.is_declined() => DECLINED_TEXT.to_owned(),
            Value::String(text) => text.clone(),
            value => value.to_string(),
        }
    }

    /// The outcome of the call.
    pub fn status(&self) -> ResultStatus {
        self.status.unwrap_or(match self.is_error {
            true => ResultStatus::Error,
            false => ResultStatus::Success,
        })
    }

    /// True when the call failed or was refused.
    pub fn is_error(&self) -> bool {
        self.status() != ResultStatus::Success
    }

    /// True when the caller refused to execute the call.
    pub fn is_declined(&self) -> bool {
        self.status() == ResultStatus::Declined
    }

    /// True when `other` reports the same outcome and value of the same call. Ignores the runtime: a caller that
    /// repeats a result may have measured a different runtime.
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.tool_use_id, &self.content, self.status())
            == (&other.tool_use_id, &other.content, other.status())
    }

    /// Returns the result in its recorded form, in which `isError` and `status` agree.
    pub(crate) fn normalized(&self) -> Self {
        let status = self.status();
        // Only `declined` is recorded: `isError` expresses the other statuses, as in records of earlier versions.
        let declined = (status == ResultStatus::Declined).then_some(status);
        Self { is_error: self.is_error(), status: declined, ..self.clone() }
    }

    /// Returns the id of the call, and the result in the form that messages hold.
    pub fn to_call_result(&self) -> (String, CallResult) {
        let result = CallResult {
            content: vec![Block::text(self.text())],
            is_error: self.is_error(),
            declined: self.is_declined(),
            runtime_ms: self.runtime_ms,
        };
        (self.tool_use_id.clone(), result)
    }
}

/// The result of a tool call, as messages hold it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallResult {
    /// The content.
    pub content: Vec<Block>,
    /// True when the call failed or was refused, or its outcome is unknown.
    #[serde(default)]
    pub is_error: bool,
    /// True when the caller of the run refused to execute the call.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub declined: bool,
    /// How long the call took, in milliseconds, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_ms: Option<u64>,
}

impl CallResult {
    /// The failure that a result from the caller reports: a declined call was rejected, any other one has failed.
    pub fn failure(&self) -> Option<(ToolOutcome, Failure)> {
        let (outcome, code) = match self.declined {
            true => (ToolOutcome::Rejected, "tool_declined"),
            false => (ToolOutcome::Failed, "tool_failed"),
        };
        self.is_error.then(|| (outcome, Failure::new(code, text_of(&self.content))))
    }

    /// Gives a result without content the message of `error` as its content.
    pub fn or_error_text(mut self, error: &Failure) -> Self {
        if self.content.is_empty() {
            self.content.push(Block::text(error.message.clone()));
        }
        self
    }

    /// Gives a result without a runtime the time that was measured.
    pub fn or_runtime(mut self, measured_ms: Option<u64>) -> Self {
        self.runtime_ms = self.runtime_ms.or(measured_ms);
        self
    }

    /// Adds the facts that `block`, a result of the same call, lacks: whether the call was declined, and how long it
    /// took.
    pub fn complete(&self, block: &mut Block) {
        if let Block::ToolResult { declined, runtime_ms, .. } = block {
            *declined |= self.declined;
            *runtime_ms = runtime_ms.or(self.runtime_ms);
        }
    }
}

/// Why the declaration of a client tool is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadTool {
    /// The name is not well-formed.
    #[error("the tool {0:?}: a name has 1 to 64 letters, digits, underscores and hyphens")]
    Name(String),
    /// Two tools have the same name.
    #[error("two tools are called {0:?}")]
    Duplicate(String),
    /// The schema does not describe an object.
    #[error(
        "the tool {0:?}: its inputSchema must be a JSON Schema for an object, such as {{\"type\":\"object\"}}"
    )]
    Schema(String),
    /// The time limit is not a valid duration.
    #[error("the tool {0:?}: its timeoutMs must be 1 or more")]
    Timeout(String),
    /// There are too many tools.
    #[error("there are {0} tools; at most {1} are allowed")]
    TooMany(usize, usize),
}

/// Returns the tools of `kept`, each replaced by the tool of the same name in `given`, then the other tools of `given`.
pub fn replaced(kept: &[ClientTool], given: &[ClientTool]) -> Vec<ClientTool> {
    let find = |tools: &'_ [ClientTool], name: &str| tools.iter().find(|tool| tool.name == name).cloned();
    let first = kept.iter().map(|tool| find(given, &tool.name).unwrap_or_else(|| tool.clone()));
    let others = given.iter().filter(|tool| find(kept, &tool.name).is_none()).cloned();
    first.chain(others).collect()
}

/// True when `name` is a well-formed tool name.
pub fn is_tool_name(name: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    (1..=64).contains(&name.len()) && name.bytes().all(is_allowed)
}

/// Checks the tools of a prompt, except for their size in bytes.
pub fn check_client_tools(tools: &[ClientTool], limits: &Limits) -> Result<(), BadTool> {
    if tools.len() > limits.client_tools {
        return Err(BadTool::TooMany(tools.len(), limits.client_tools));
    }
    let mut names = BTreeSet::new();
    for tool in tools {
        let name = || tool.name.chars().take(80).collect::<String>();
        if !is_tool_name(&tool.name) {
            return Err(BadTool::Name(name()));
        }
        if !names.insert(&tool.name) {
            return Err(BadTool::Duplicate(name()));
        }
        let kind = tool.input_schema.get("type");
        if !tool.input_schema.is_object() || kind.is_some_and(|kind| kind != "object") {
            return Err(BadTool::Schema(name()));
        }
        if tool.timeout_ms == Some(0) {
            return Err(BadTool::Timeout(name()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tool(name: &str, input_schema: Value) -> ClientTool {
        ClientTool { name: name.into(), input_schema, ..ClientTool::default() }
    }

    #[test]
    fn tools_need_distinct_names_and_object_schemas() {
        let schema = || json!({"type": "object"});
        let check = |tools: &[ClientTool]| {
            let limits = Limits { client_tools: 2, ..Limits::default() };
            check_client_tools(tools, &limits).map_err(|bad| bad.to_string()).err().unwrap_or_default()
        };
        assert_eq!(check(&[tool("client_a-1", schema()), tool("b", json!({}))]), "");
        for name in ["", "a b", "ä", "a.b", &"x".repeat(65)] {
            assert!(check(&[tool(name, schema())]).contains("1 to 64 letters"), "{name}");
        }
        assert_eq!(check(&[tool("a", schema()), tool("a", schema())]), "two tools are called \"a\"");
        for schema in [json!(null), json!([]), json!({"type": "string"})] {
            assert!(check(&[tool("a", schema)]).contains("inputSchema"));
        }
        let three = ["a", "b", "c"].map(|name| tool(name, schema()));
        assert_eq!(check(&three), "there are 3 tools; at most 2 are allowed");
    }

    #[test]
    fn a_string_result_is_sent_as_it_is_and_other_values_as_json() {
        let text = |content| ClientResult { content, ..ClientResult::default() }.text();
        assert_eq!(text(json!("12 °C")), "12 °C");
        assert_eq!(text(json!({"c": 12})), r#"{"c":12}"#);
        assert_eq!(text(json!(null)), "null");
    }

    #[test]
    fn a_declined_call_is_an_error_and_has_a_text_for_the_model() {
        let declined = |content| ClientResult {
            content,
            status: Some(ResultStatus::Declined),
            ..ClientResult::default()
        };
        assert_eq!(declined(json!(null)).text(), "The call was declined.");
        assert_eq!(declined(json!("")).text(), "The call was declined.");
        assert_eq!(declined(json!("not today")).text(), "not today");
        let (_, result) = declined(json!("no")).to_call_result();
        assert!(result.is_error && result.declined);
    }

    #[test]
    fn results_are_compared_by_status_and_not_by_runtime() {
        let result = |text: &str| serde_json::from_str::<ClientResult>(text).unwrap();
        let old = result(r#"{"toolUseId":"t1","content":"no","isError":true}"#);
        let new = result(r#"{"toolUseId":"t1","content":"no","status":"error","runtimeMs":12}"#);
        let declined = result(r#"{"toolUseId":"t1","content":"no","status":"declined"}"#);
        let success = result(r#"{"toolUseId":"t1","content":"no","status":"success","isError":true}"#);
        assert!(old.is_same(&new) && !old.is_same(&declined) && !old.is_same(&success));
        assert!(!success.normalized().is_error, "the status counts");
        assert!(new.normalized().is_error && declined.normalized().is_error);
        assert_eq!(new.normalized().runtime_ms, Some(12));
    }

    #[test]
    fn a_declined_result_is_a_rejection_and_any_other_error_a_failure() {
        for (is_error, declined, expected) in [
            (false, false, None),
            (true, false, Some((ToolOutcome::Failed, Failure::new("tool_failed", "no")))),
            (true, true, Some((ToolOutcome::Rejected, Failure::new("tool_declined", "no")))),
        ] {
            let result =
                CallResult { content: vec![Block::text("no")], is_error, declined, runtime_ms: None };
            assert_eq!(result.failure(), expected, "{is_error} {declined}");
        }
    }

    #[test]
    fn a_failed_result_without_content_gets_the_text_of_the_error() {
        let error = Failure::new("x", "it broke");
        for (content, expected) in [(vec![], "it broke"), (vec![Block::text("half")], "half")] {
            let result = CallResult { content, is_error: true, ..CallResult::default() };
            assert_eq!(text_of(&result.or_error_text(&error).content), expected);
        }
    }

    #[test]
    fn a_reported_runtime_takes_precedence_over_the_measured_one() {
        for (reported, measured, expected) in [
            (None, None, None),
            (None, Some(7), Some(7)),
            (Some(3), Some(7), Some(3)),
            (Some(3), None, Some(3)),
        ] {
            let result = CallResult { runtime_ms: reported, ..CallResult::default() };
            assert_eq!(result.or_runtime(measured).runtime_ms, expected, "{reported:?} {measured:?}");
        }
    }

    #[test]
    fn a_time_limit_of_a_tool_is_not_zero() {
        let with = |timeout_ms| ClientTool { timeout_ms, ..tool("a", json!({"type": "object"})) };
        let check = |timeout_ms| check_client_tools(&[with(timeout_ms)], &Limits::default());
        assert_eq!(check(Some(0)), Err(BadTool::Timeout("a".into())));
        assert_eq!((check(Some(1)), check(None)), (Ok(()), Ok(())));
    }
}
