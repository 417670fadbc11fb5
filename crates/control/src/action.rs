//! The actions of control tools, as policy rules match them: an operation and a resource of the capability `control`.

use mainspring_core::{DelegationMode, RunId, SessionId};
use serde_json::Value;

use crate::{CANCEL, DELEGATE, SEND};

/// The action of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlAction {
    /// The operation: the name of a control tool. Delegation to an existing session counts as sending a message to it.
    pub operation: &'static str,
    /// The run, the session or the mode of delegation that the call concerns.
    pub resource: String,
}

/// Returns the action of a call of the tool `name`. `None` if the tool only reads, or if the input does not
/// name the run or session by a valid id.
pub fn control_action(name: &str, input: &Value) -> Option<ControlAction> {
    let text = |field: &str| input[field].as_str();
    let session = |field: &str| {
        let session: SessionId = text(field)?.parse().ok()?;
        Some(ControlAction { operation: SEND, resource: session.to_string() })
    };
    match name {
        CANCEL => {
            let run: RunId = text("runId")?.parse().ok()?;
            Some(ControlAction { operation: CANCEL, resource: run.to_string() })
        }
        SEND => session("sessionId"),
        DELEGATE if !input["childSessionId"].is_null() => session("childSessionId"),
        DELEGATE => {
            let mode = text("mode").and_then(DelegationMode::from_name).unwrap_or(DelegationMode::Call);
            Some(ControlAction { operation: DELEGATE, resource: mode.name().to_owned() })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn delegation_to_an_existing_session_counts_as_sending_a_message() {
        let (run, session) =
            (RunId::from_bytes([1; 16]).to_string(), SessionId::from_bytes([2; 16]).to_string());
        for (name, input, expected) in [
            (CANCEL, json!({"runId": run}), Some((CANCEL, run.as_str()))),
            (CANCEL, json!({"runId": "x"}), None),
            (SEND, json!({"sessionId": session}), Some((SEND, session.as_str()))),
            (DELEGATE, json!({"objective": "o"}), Some((DELEGATE, "call"))),
            (DELEGATE, json!({"mode": "spawn"}), Some((DELEGATE, "spawn"))),
            (
                DELEGATE,
                json!({"mode": "continue", "childSessionId": session}),
                Some((SEND, session.as_str())),
            ),
            ("list_agent_sessions", json!({}), None),
        ] {
            let found = control_action(name, &input);
            assert_eq!(
                found.as_ref().map(|action| (action.operation, action.resource.as_str())),
                expected,
                "{name}"
            );
        }
    }
}
