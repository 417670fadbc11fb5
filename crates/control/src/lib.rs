//! Control tools: list, inspect, message, delegate and cancel sessions and runs.
//!
//! The tools are written over [`ControlPlane`], so that they work in the kernel's process and in a client of it. Their
//! inputs and answers are defined in `mainspring_api::control`.

use std::collections::HashMap;

use mainspring_api::control::{Answer, ControlError, ControlPlane, ErrorAnswer};
use mainspring_core::{RunId, SessionId, Time};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

mod action;
mod artifacts;
mod bounds;
mod damaged;
mod delegate;
mod document;
mod manifest;
pub mod mcp;
mod message;
mod runs;
mod schema;
mod sessions;

pub use action::{ControlAction, control_action};
pub use bounds::ANSWER_MAX_BYTES;
pub use delegate::DEFAULT_BUDGET_USD;
pub use document::document;
pub use manifest::{
    CANCEL, ControlToolSpec, DELEGATE, GET, INSPECT, LIST, SEND, is_control_tool, specs, tools,
};
pub use message::is_final;

use bounds::Bounds;

/// The client id of a request whose input has no client id.
pub const DEFAULT_CLIENT_ID: &str = "omi-control-tools";

/// Builds the answer of a tool that failed.
pub fn error_answer(code: &str, message: &str) -> String {
    error_value(code, message).to_string()
}

fn error_value(code: &str, message: &str) -> Value {
    serde_json::to_value(ErrorAnswer::new(code, message)).unwrap_or_default()
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
    /// The client id of a request whose input has no client id.
    pub client_id: &'a str,
    /// The idempotency id of a request whose input has no request id.
    pub request_id: &'a str,
    /// The budget in US dollars of delegated work whose input has no budget. `None` sets no budget.
    pub default_budget_usd: Option<f64>,
}

impl ControlTools<'_> {
    /// Calls a tool. Returns its answer as the text of a JSON object; `Err` if the tool failed.
    pub async fn call(&self, name: &str, input: Value) -> Result<String, String> {
        let answer = self.answer(name, input).await;
        answer.map(|answer| answer.to_string()).map_err(|answer| answer.to_string())
    }

    /// Calls a tool. Returns its answer; `Err` if the tool failed.
    pub async fn answer(&self, name: &str, input: Value) -> Result<Value, Value> {
        let answer = match name {
            LIST => encode_bounded(self.list(read(input)).await, &bounds::SESSIONS),
            GET => encode_bounded(self.get(read(input)).await, &bounds::RUN),
            CANCEL => encode(self.cancel(read(input)).await),
            INSPECT => encode_bounded(self.inspect(read(input)).await, &bounds::ARTIFACTS),
            SEND => encode(Box::pin(self.send(read(input))).await),
            DELEGATE => encode(Box::pin(self.delegate(read(input))).await),
            other => {
                let message = format!("there is no control tool {other:?}");
                Err(ControlError::new("unknown_control_tool", message))
            }
        };
        answer.map_err(|error| error_value(&error.code, &error.message))
    }

    /// Answers "not found" if the input names another owner than the one that the caller acts for.
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

    /// Returns the client id and the idempotency id of a request, with defaults for missing ones.
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

fn encode<T: Serialize>(answer: Result<T, ControlError>) -> Result<Value, ControlError> {
    let encoded = serde_json::to_value(Answer::new(answer?));
    encoded.map_err(|error| ControlError::new("control_tool_failed", error.to_string()))
}

/// Encodes an answer and cuts its texts, objects and lists to `bounds`.
fn encode_bounded<T: Serialize>(
    answer: Result<T, ControlError>,
    bounds: &Bounds,
) -> Result<Value, ControlError> {
    let mut encoded = encode(answer)?;
    let cut = bounds.cut(&mut encoded);
    if !cut.is_empty() {
        encoded["truncated"] = cut.into();
    }
    Ok(encoded)
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

/// Reads the cursor of a page: the time and the id of the last item before it.
fn cursor<I: std::str::FromStr>(text: &str) -> Result<(Time, I), ControlError> {
    let read = text.split_once('.').and_then(|(time, id)| Some((Time(time.parse().ok()?), id.parse().ok()?)));
    read.ok_or_else(|| invalid(format!("cursor: {text:?} is not the nextCursor of an earlier answer")))
}

fn run_id(text: &str) -> Result<RunId, ControlError> {
    text.parse().map_err(|_| ControlError::not_found(format!("no run {text:?}")))
}

fn session_id(text: &str) -> Result<SessionId, ControlError> {
    text.parse().map_err(|_| ControlError::not_found(format!("no session {text:?}")))
}

#[cfg(test)]
mod tests {
    use mainspring_api::control::{ListSessions, SendMessage};
    use serde_json::json;

    use super::*;

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
