//! One call of an agent: parsed, checked against the live attempt, and answered.

use std::sync::Arc;

use mainspring_api::jsonl::endpoint::{AgentLine, Context, EndpointLine, NoContext, RunContext, ToolUse};
use mainspring_control::{
    ControlTools, DEFAULT_BUDGET_USD, DEFAULT_CLIENT_ID, error_answer, is_control_tool,
};
use mainspring_kernel::adapter::{AttemptHandle, HandleError};
use mainspring_kernel::ids::Ids;
use mainspring_kernel::kernel::HostCallError;
use serde_json::Value;

use super::Shared;

/// Maximum bytes of a tool result.
const RESULT_MAX_BYTES: usize = 16 << 20;

/// Parses a line. Fails with the call id (empty if it cannot be read) and the reason.
pub(super) fn read(line: Vec<u8>, limit: usize) -> Result<AgentLine, (String, String)> {
    if line.len() > limit {
        return Err((String::new(), format!("a line has at most {limit} bytes")));
    }
    let object = match serde_json::from_slice(&line) {
        Ok(Value::Object(object)) => object,
        Ok(_) => return Err((String::new(), "a line is a JSON object".into())),
        Err(error) => return Err((String::new(), format!("the line is not JSON: {error}"))),
    };
    drop(line);
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (call_id, kind) = (text("callId"), text("type"));
    match kind.as_str() {
        // Ignores fields of newer agents.
        "tool_use" => match serde_json::from_value(Value::Object(object)) {
            Ok(call) => Ok(AgentLine::ToolUse(call)),
            Err(error) => Err((call_id, error.to_string())),
        },
        "context" => Ok(AgentLine::Context { call_id }),
        _ => Err((call_id, format!("no line of an agent has the type {kind:?}"))),
    }
}

/// Builds the answer to a line that asks for the context.
pub(super) fn context_line(shared: &Shared, call_id: String) -> EndpointLine {
    let context = match &*shared.live.borrow() {
        Some(attempt) => Context::Run(run_context(attempt)),
        None => Context::Unavailable {
            error: NoContext { code: "stale_owner".into(), message: NO_LIVE_ATTEMPT.into() },
        },
    };
    EndpointLine::Context { call_id, context }
}

/// The ids of the run that an attempt works for.
pub(super) fn run_context(attempt: &AttemptHandle) -> RunContext {
    let run = &attempt.assignment().run;
    RunContext {
        owner_id: run.owner.clone(),
        session_id: run.session,
        run_id: run.id,
        attempt_id: attempt.id(),
        request_id: run.request.request_id.clone(),
        client_id: run.request.client_id.clone(),
    }
}

const NO_LIVE_ATTEMPT: &str =
    "the agent works on no run at the moment: an agent calls only while its turn runs";

/// Runs a call for the live attempt. Returns the result as text.
pub(super) async fn run(shared: &Arc<Shared>, call: ToolUse) -> String {
    let mut live = shared.live.subscribe();
    let Some(attempt) = live.borrow_and_update().clone() else {
        return error_answer("no_authority", NO_LIVE_ATTEMPT);
    };
    if let Err(message) = check_ids(&attempt, &call) {
        return error_answer("stale_attempt", &message);
    }
    let timeout_ms = shared.options.timeout_ms;
    let name = call.name.clone();
    tokio::select! {
        answer = answer(shared, &attempt, call) => answer,
        () = attempt.sleep_for(timeout_ms) => {
            error_answer("timeout", &format!("the tool {name:?} did not answer within {} seconds", timeout_ms / 1_000))
        }
        // The sender lives as long as `shared`.
        _ = live.changed() => error_answer("no_authority", "the run of this call has ended"),
    }
}

/// Refuses a call that names another session, run or attempt than the live one.
fn check_ids(attempt: &AttemptHandle, call: &ToolUse) -> Result<(), String> {
    let run = &attempt.assignment().run;
    let ids = [
        (&call.session_id, run.session.to_string()),
        (&call.run_id, run.id.to_string()),
        (&call.attempt_id, attempt.id().to_string()),
    ];
    match ids.iter().find_map(|(named, live)| named.as_ref().filter(|named| *named != live)) {
        Some(other) => Err(format!("{other} is not what this agent works for: it works for {}", run.id)),
        None => Ok(()),
    }
}

async fn answer(shared: &Shared, attempt: &AttemptHandle, call: ToolUse) -> String {
    if is_control_tool(&call.name) {
        return control(shared, attempt, &call.name, call.input).await;
    }
    match attempt.call_host(&call.call_id, &call.name, call.input).await {
        Ok(result) => {
            let text = match result {
                Value::String(text) => text,
                other => other.to_string(),
            };
            match text.len() {
                size if size > RESULT_MAX_BYTES => {
                    let message =
                        format!("the tool result has {size} bytes; the limit is {RESULT_MAX_BYTES}");
                    error_answer("malformed_or_oversized_tool_result", &message)
                }
                _ => text,
            }
        }
        Err(HostCallError::Kernel(error)) => error_answer(error.code(), &error.to_string()),
        Err(error) => error_answer("transport_interruption", &error.to_string()),
    }
}

/// Calls a control tool for the owner, the session and the run of the attempt.
async fn control(shared: &Shared, attempt: &AttemptHandle, name: &str, input: Value) -> String {
    let plane = match attempt.control() {
        Ok(plane) => plane,
        Err(HandleError::Revoked) => return error_answer("no_authority", "the run of this call has ended"),
        Err(HandleError::Kernel(error)) => return error_answer(error.code(), &error.to_string()),
    };
    let run = &attempt.assignment().run;
    let tools = ControlTools {
        plane: &plane,
        session: Some(run.session),
        run: Some(run.id),
        aliases: &shared.options.aliases,
        client_id: DEFAULT_CLIENT_ID,
        request_id: &Ids::system().secret(),
        default_budget_usd: Some(DEFAULT_BUDGET_USD),
    };
    tools.call(name, input).await.unwrap_or_else(|failed| failed)
}
