//! Control tools: list, inspect, message, delegate and cancel sessions and runs.
//!
//! The tools are written over [`ControlPlane`], so that they work in the kernel's process and in a client of it. Their
//! inputs and answers are defined in `mainspring_api::control`.

use std::collections::HashMap;

use mainspring_api::control::{
    Answer, CancelRun, ControlError, ControlPlane, DelegateWork, ErrorAnswer, GetRun, InspectArtifacts,
    ListSessions, SendMessage,
};
use mainspring_core::{AttemptId, RunId, SessionId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use utoipa::PartialSchema;
use utoipa::openapi::{RefOr, Schema};

mod delegate;
mod message;
mod runs;
mod sessions;

pub use message::is_final;

/// The client of requests that name none.
pub const CLIENT: &str = "omi-control-tools";
/// The name of the tool that delegates.
pub const DELEGATE: &str = "delegate_agent";
/// The name of the tool that sends a message.
pub const SEND: &str = "send_agent_message";

/// The public description of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    /// The name.
    pub name: &'static str,
    /// The description for the model.
    pub description: &'static str,
    /// The JSON Schema of the input.
    pub schema: Value,
}

/// Name, description and input schema of each tool.
type Table = [(&'static str, &'static str, fn() -> RefOr<Schema>); 6];
const TOOLS: Table = [
    (
        "list_agent_sessions",
        "Lists agent sessions, latest activity first, each with its latest and its active run.",
        ListSessions::schema,
    ),
    (
        "get_agent_run",
        "Returns a run with its session, attempts, artifacts and events, its prompt and its final text.",
        GetRun::schema,
    ),
    ("cancel_agent_run", "Cancels a run. Cancelled means stopped.", CancelRun::schema),
    (
        "inspect_agent_artifacts",
        "Lists the artifacts of a session, a run or an attempt: name exactly one.",
        InspectArtifacts::schema,
    ),
    (
        SEND,
        "Sends a prompt to another agent session and waits for its answer. The session must not be the caller's own.",
        SendMessage::schema,
    ),
    (
        DELEGATE,
        "Delegates work to a child agent session, which sees only the objective and the context you give it.",
        DelegateWork::schema,
    ),
];

/// Returns the descriptions of all tools.
pub fn tools() -> Vec<ToolSpec> {
    let spec = |(name, description, schema): (_, _, fn() -> RefOr<Schema>)| {
        let mut schema = serde_json::to_value(schema()).unwrap_or_default();
        // Drops Rust doc comments from the public schema.
        schema.as_object_mut().map(|schema| schema.remove("description"));
        ToolSpec { name, description, schema }
    };
    TOOLS.into_iter().map(spec).collect()
}

/// True for a control tool.
pub fn is_control_tool(name: &str) -> bool {
    TOOLS.iter().any(|(known, ..)| *known == name)
}

/// Builds the answer of a tool that failed.
pub fn error_answer(code: &str, message: &str) -> String {
    serde_json::to_string(&ErrorAnswer::new(code, message)).unwrap_or_default()
}

/// The context of a tool call.
pub struct ControlTools<'a> {
    /// The operations that the tools use.
    pub plane: &'a dyn ControlPlane,
    /// The session whose run makes the call.
    pub session: Option<SessionId>,
    /// The run that makes the call, if it is known; else it is the active run of `session`.
    pub run: Option<RunId>,
    /// Adapter names by the aliases that callers use.
    pub aliases: &'a HashMap<String, String>,
    /// The client of a request whose input names none.
    pub client_id: &'a str,
    /// The idempotency id of a request whose input names none.
    pub request_id: &'a str,
    /// Returns the run of an attempt, if known to this process.
    pub run_of: &'a (dyn Fn(AttemptId) -> Option<RunId> + Send + Sync),
}

impl ControlTools<'_> {
    /// Calls a tool. Returns its answer as JSON, as an error if the tool failed.
    pub async fn call(&self, name: &str, input: Value) -> Result<String, String> {
        let answer = match name {
            "list_agent_sessions" => encode(self.list(read(input)).await),
            "get_agent_run" => encode(self.get(read(input)).await),
            "cancel_agent_run" => encode(self.cancel(read(input)).await),
            "inspect_agent_artifacts" => encode(self.inspect(read(input)).await),
            SEND => encode(Box::pin(self.send(read(input))).await),
            DELEGATE => encode(Box::pin(self.delegate(read(input))).await),
            other => {
                let message = format!("there is no control tool {other:?}");
                Err(ControlError::new("unknown_control_tool", message))
            }
        };
        answer.map_err(|error| error_answer(&error.code, &error.message))
    }

    /// Refuses any owner but the one that the caller acts for, as not found.
    fn check_owner(&self, named: Option<&str>) -> Result<(), ControlError> {
        match named {
            Some(named) if named != self.plane.owner() => {
                Err(ControlError::not_found(format!("no owner {named:?}")))
            }
            _ => Ok(()),
        }
    }

    /// Resolves an alias of an adapter.
    fn adapter(&self, name: String) -> String {
        self.aliases.get(&name).cloned().unwrap_or(name)
    }

    /// Returns the client and the idempotency id of a request.
    fn request_name(
        &self,
        client: Option<String>,
        request: Option<String>,
    ) -> (Option<String>, Option<String>) {
        let client = client.unwrap_or_else(|| self.client_id.to_owned());
        let request = request.unwrap_or_else(|| self.request_id.to_owned());
        (Some(client), Some(request))
    }
}

/// The input of a tool, or why it cannot be read.
type Input<T> = Result<T, ControlError>;

fn read<T: DeserializeOwned>(input: Value) -> Input<T> {
    let input = if input.is_null() { Value::Object(Map::new()) } else { input };
    mainspring_api::request::convert(input).map_err(invalid)
}

fn encode<T: Serialize>(answer: Result<T, ControlError>) -> Result<String, ControlError> {
    let encoded = serde_json::to_string(&Answer::new(answer?));
    encoded.map_err(|error| ControlError::new("control_tool_failed", error.to_string()))
}

fn invalid(message: impl Into<String>) -> ControlError {
    ControlError::new("invalid_tool_input", message)
}

/// Checks a limit; `most` is its maximum.
fn limit(given: Option<usize>, default: usize, most: usize) -> Result<usize, ControlError> {
    match given {
        None => Ok(default),
        Some(limit) if (1..=most).contains(&limit) => Ok(limit),
        Some(_) => Err(invalid(format!("limit must be from 1 to {most}"))),
    }
}

fn run_id(text: &str) -> Result<RunId, ControlError> {
    text.parse().map_err(|_| ControlError::not_found(format!("no run {text:?}")))
}

fn session_id(text: &str) -> Result<SessionId, ControlError> {
    text.parse().map_err(|_| ControlError::not_found(format!("no session {text:?}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_control_tools_are_recognized() {
        assert!(TOOLS.iter().all(|(name, ..)| is_control_tool(name)));
        assert!(!is_control_tool("execute_sql"));
    }

    #[test]
    fn every_tool_has_an_input_schema() {
        let specs = tools();
        assert!(specs.iter().all(|tool| is_control_tool(tool.name)));
        let schema = |name: &str| &specs.iter().find(|tool| tool.name == name).unwrap().schema;
        let owner = "The owner; must be the one that the caller acts for.";
        assert!(specs.iter().all(|tool| tool.schema["additionalProperties"] == false));
        let cancel = json!({"type": "object", "required": ["runId"], "additionalProperties": false, "properties": {
            "ownerId": {"type": ["string", "null"], "description": owner},
            "runId": {"type": "string", "description": "The run."},
        }});
        assert_eq!(*schema("cancel_agent_run"), cancel);
        assert_eq!(schema("send_agent_message")["required"], json!(["sessionId", "prompt"]));
        let all = specs.iter().map(|tool| tool.schema.to_string()).collect::<String>();
        assert!(!all.contains("$ref"), "the schema must be self-contained: {all}");
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_nearest_known_one() {
        let input = json!({"sessionId": "s", "prompt": "p", "metadata": {"a": 1}});
        let refused = read::<SendMessage>(input).unwrap_err();
        assert_eq!(refused.code, "invalid_tool_input");
        assert!(
            refused.message.starts_with("unknown key `metadata`: there is sessionId, prompt"),
            "{}",
            refused.message
        );
        let refused = read::<ListSessions>(json!({"surfaceKnd": "x"})).unwrap_err();
        assert_eq!(refused.message, "unknown key `surfaceKnd`: did you mean `surfaceKind`?");
    }

    #[test]
    fn limits_are_refused_rather_than_cut() {
        assert_eq!(limit(None, 50, 200), Ok(50));
        assert_eq!(limit(Some(200), 50, 200), Ok(200));
        for beyond in [0, 201] {
            assert_eq!(limit(Some(beyond), 50, 200).unwrap_err().code, "invalid_tool_input");
        }
    }
}
