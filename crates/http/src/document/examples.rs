//! Examples of the operations that are used most. A test checks each against the schemas of its operation.

use serde_json::{Value, json};

const SESSION: &str = "ses_a2cac5bfa7a945adbf5f07e9971e6fd1";
const RUN: &str = "run_164871663965440da63da37d1bbde5ec";
const ATTEMPT: &str = "att_7374ed7c859b4ee5bdadd070d870a0e8";
const PROMPT: &str = "msg_a53ffb965a934f3198190b0a8c3682f3";
const ANSWER: &str = "msg_309d2edd6ab24b4f8c545d23ac679f76";
const WAIT: &str = "wait_f809dc42322e4dbc8679a4f3edfc84dd";

/// A request body, if the operation has one, and the answer to it.
type Example = (Option<Value>, Value);

/// Adds the example of the operation, if it has one.
pub(super) fn add(operation: &mut Value) {
    let Some((request, answer)) = operation["operationId"].as_str().and_then(example) else { return };
    if let Some(request) = request {
        operation["requestBody"]["content"]["application/json"]["example"] = request;
    }
    for status in ["200", "201", "202"] {
        if let Some(content) =
            operation.pointer_mut(&format!("/responses/{status}/content/application~1json"))
        {
            content["example"] = answer;
            return;
        }
    }
}

fn example(operation: &str) -> Option<Example> {
    let prompt =
        || json!({"prompt": "What changed since the last release?", "session": {"key": "release-notes"}});
    Some(match operation {
        "session_resolve" => {
            let opened = merged(session(), json!({"opening": "created"}));
            (Some(json!({"key": "release-notes", "title": "Release notes"})), opened)
        }
        "session_get" => (None, merged(session(), json!({"liveStatus": "idle", "usage": run()["usage"]}))),
        "session_list" => (None, page(&merged(session(), json!({"latestRun": run(), "liveStatus": "idle"})))),
        "session_patch" => (Some(json!({"title": "Release notes", "pinned": true})), session()),
        "session_messages" => {
            let messages = json!({"items": [
                message(PROMPT, "user", "What changed since the last release?"),
                message(ANSWER, "assistant", "Three things changed."),
            ]});
            (None, messages)
        }
        "session_events" => (None, json!({"items": [queued()], "next": "2.0"})),
        "run_create" => (Some(prompt()), accepted()),
        "run_create_in" => (Some(json!({"prompt": "What changed since the last release?"})), accepted()),
        "run_get" => (None, merged(run(), json!({"finalText": "Three things changed."}))),
        "run_list" => (None, page(&run())),
        "run_events" => (None, json!({"items": [queued()], "next": "2.0"})),
        "run_cancel" => {
            let outcome = json!({
                "accepted": true, "runId": RUN, "attemptId": ATTEMPT, "dispatchAttempted": true,
                "adapterAcknowledged": false, "status": "cancelling",
            });
            (None, outcome)
        }
        "run_answer" => {
            let answer = json!({"waitId": WAIT, "answer": {"kind": "approval", "decision": "allowed"}});
            (Some(answer), merged(run(), json!({"status": "running", "activeAttemptId": ATTEMPT})))
        }
        _ => return None,
    })
}

fn session() -> Value {
    json!({
        "sessionId": SESSION, "ownerId": "local", "visibility": "private", "key": "release-notes",
        "title": "Release notes", "titleSource": "manual", "pinned": false, "status": "open", "surfaceKind": "api",
        "agentDefinition": "mainspring.generalist@1", "adapter": "native", "metadata": {}, "tipMessageId": ANSWER,
        "version": 2, "createdAtMs": 1_794_842_883_814_u64, "updatedAtMs": 1_794_842_886_107_u64,
        "lastActivityAtMs": 1_794_842_886_107_u64,
    })
}

fn run() -> Value {
    json!({
        "runId": RUN, "sessionId": SESSION, "ownerId": "local", "runNo": 1, "adapter": "native", "mode": "act",
        "promptMessageId": PROMPT, "options": {"model": "anthropic/claude-sonnet-5"}, "place": {"kind": "tip"},
        "status": "succeeded", "attempts": 1, "lastAttemptId": ATTEMPT, "finalMessageId": ANSWER,
        "usage": {
            "inputTokens": 1204, "outputTokens": 31, "cacheReadTokens": 0, "cacheWriteTokens": 0, "costUsd": 0.0041,
        },
        "createdAtMs": 1_794_842_883_833_u64, "startedAtMs": 1_794_842_883_834_u64,
        "completedAtMs": 1_794_842_886_107_u64, "updatedAtMs": 1_794_842_886_107_u64,
    })
}

fn accepted() -> Value {
    let more = json!({"finalText": "Three things changed.", "policy": "enqueue", "position": "1.0", "replayed": false});
    merged(run(), more)
}

fn message(id: &str, role: &str, text: &str) -> Value {
    json!({
        "messageId": id, "sessionId": SESSION, "runId": RUN, "role": role, "status": "completed",
        "content": [{"type": "text", "text": text}], "createdAtMs": 1_794_842_883_833_u64,
    })
}

fn queued() -> Value {
    json!({
        "protocolVersion": 2, "eventId": "evt_41182a89bb874655bc928bdabaa5cbb2", "cursor": 2, "pos": 0,
        "sessionId": SESSION, "runId": RUN, "timestampMs": 1_794_842_883_833_u64, "type": "run.queued",
        "payload": {"adapter": "native", "mode": "act", "policy": "enqueue"},
    })
}

fn page(item: &Value) -> Value {
    json!({"items": [item]})
}

/// Adds the fields of `more` to `object`.
fn merged(mut object: Value, more: Value) -> Value {
    if let (Some(fields), Value::Object(more)) = (object.as_object_mut(), more) {
        fields.extend(more);
    }
    object
}
