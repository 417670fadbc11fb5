//! Golden transcripts: typical queries in version 2, a conversation in version 1, and the errors of invalid lines.

use insta::assert_snapshot;
use mainspring_test_support::jsonl::{query, transcript};
use serde_json::{Value, json};

use crate::world::{Host, Server};

/// Runs `prompt` in version 2 and returns the transcript.
fn v2(prompt: &str) -> String {
    let mut host = Host::start();
    host.query("r", "k", prompt);
    transcript(&host.receive_query("r"))
}

#[test]
fn a_text_answer_in_version_2() {
    assert_snapshot!(v2("say hello world; usage 100 80 0.12"), @r#"
    {"attemptId":"att_1","clientId":"test","protocolVersion":2,"requestId":"r","runId":"run_1","sessionId":"ses_1","text":"hello world\n","type":"text_delta"}
    {"adapterSessionId":null,"attemptId":"att_1","cacheReadTokens":0,"cacheWriteTokens":0,"clientId":"test","costUsd":0.12,"eventId":"evt_1","inputTokens":100,"outputTokens":80,"protocolVersion":2,"requestId":"r","runId":"run_1","sessionId":"ses_1","terminalStatus":"succeeded","text":"hello world\n","type":"result"}
    "#);
}

#[test]
fn a_tool_call_in_version_2() {
    assert_snapshot!(v2(r#"say first; tool add {"a":19,"b":23}; say then"#), @r#"
    {"attemptId":"att_1","clientId":"test","protocolVersion":2,"requestId":"r","runId":"run_1","sessionId":"ses_1","text":"first\n","type":"text_delta"}
    {"attemptId":"att_1","clientId":"test","eventId":"evt_1","input":{"a":19,"b":23},"name":"add","protocolVersion":2,"requestId":"r","runId":"run_1","sessionId":"ses_1","status":"started","toolUseId":"att_1.1","type":"tool_activity"}
    {"attemptId":"att_1","clientId":"test","eventId":"evt_2","name":"add","protocolVersion":2,"requestId":"r","runId":"run_1","sessionId":"ses_1","status":"completed","toolUseId":"att_1.1","type":"tool_activity"}
    {"attemptId":"att_1","clientId":"test","eventId":"evt_3","name":"add","output":"42","protocolVersion":2,"requestId":"r","runId":"run_1","sessionId":"ses_1","toolUseId":"att_1.1","type":"tool_result_display"}
    {"attemptId":"att_1","clientId":"test","protocolVersion":2,"requestId":"r","runId":"run_1","sessionId":"ses_1","text":"then\n","type":"text_delta"}
    {"adapterSessionId":null,"attemptId":"att_1","cacheReadTokens":0,"cacheWriteTokens":0,"clientId":"test","costUsd":0.0,"eventId":"evt_4","inputTokens":0,"outputTokens":0,"protocolVersion":2,"requestId":"r","runId":"run_1","sessionId":"ses_1","terminalStatus":"succeeded","text":"first\nthen\n","type":"result"}
    "#);
}

#[test]
fn a_failing_tool_in_version_2() {
    assert_snapshot!(v2("tool nothing"), @r#"
    {"attemptId":"att_1","clientId":"test","eventId":"evt_1","input":{},"name":"nothing","protocolVersion":2,"requestId":"r","runId":"run_1","sessionId":"ses_1","status":"started","toolUseId":"att_1.0","type":"tool_activity"}
    {"attemptId":"att_1","clientId":"test","eventId":"evt_2","name":"nothing","protocolVersion":2,"requestId":"r","runId":"run_1","sessionId":"ses_1","status":"failed","toolUseId":"att_1.0","type":"tool_activity"}
    {"attemptId":"att_1","clientId":"test","eventId":"evt_3","name":"nothing","output":"no tool \"nothing\"; there is add, echo, upper","protocolVersion":2,"requestId":"r","runId":"run_1","sessionId":"ses_1","toolUseId":"att_1.0","type":"tool_result_display"}
    {"adapterSessionId":null,"attemptId":"att_1","cacheReadTokens":0,"cacheWriteTokens":0,"clientId":"test","costUsd":0.0,"eventId":"evt_4","inputTokens":0,"outputTokens":0,"protocolVersion":2,"requestId":"r","runId":"run_1","sessionId":"ses_1","terminalStatus":"succeeded","text":"","type":"result"}
    "#);
}

#[test]
fn a_failure_in_version_2() {
    assert_snapshot!(v2("say half of it; fail no luck"), @r#"
    {"attemptId":"att_1","clientId":"test","protocolVersion":2,"requestId":"r","runId":"run_1","sessionId":"ses_1","text":"half of it\n","type":"text_delta"}
    {"attemptId":"att_1","clientId":"test","code":"adapter_execution_failed","eventId":"evt_1","message":"no luck","protocolVersion":2,"reason":"script_failed","requestId":"r","runId":"run_1","sessionId":"ses_1","type":"error"}
    "#);
}

#[test]
fn a_thought_is_streamed_in_order() {
    let mut host = Host::start();
    // Thoughts of an active run stay in memory, however late they are read.
    host.query_followed("r", "k", "think of it; say it; hang");
    let received =
        host.receive_until(|line| line["text"].as_str().is_some_and(|text| text.ends_with("it\n")));
    host.send(&json!({"type": "interrupt", "protocolVersion": 2, "requestId": "r", "clientId": "test"}));
    host.receive_end("r");
    assert_snapshot!(transcript(&received), @r#"
    {"attemptId":"att_1","clientId":"test","protocolVersion":2,"requestId":"r","runId":"run_1","sessionId":"ses_1","text":"You answered: go\n","type":"text_delta"}
    {"attemptId":"att_1","clientId":"test","protocolVersion":2,"requestId":"r","runId":"run_1","sessionId":"ses_1","text":"of it","type":"thinking_delta"}
    {"attemptId":"att_1","clientId":"test","protocolVersion":2,"requestId":"r","runId":"run_1","sessionId":"ses_1","text":"it\n","type":"text_delta"}
    "#);
}

#[test]
fn a_cancellation_in_version_2() {
    let mut host = Host::start();
    host.query("r", "k", "say half of it; hang");
    let mut received = host.receive_until(|line| line["type"] == "text_delta");
    host.send(&json!({"type": "interrupt", "protocolVersion": 2, "requestId": "r", "clientId": "test"}));
    received.extend(host.receive_query("r"));
    assert_snapshot!(transcript(&received), @r#"
    {"attemptId":"att_1","clientId":"test","protocolVersion":2,"requestId":"r","runId":"run_1","sessionId":"ses_1","text":"half of it\n","type":"text_delta"}
    {"accepted":true,"adapterAcknowledged":false,"attemptId":"att_1","clientId":"test","dispatchAttempted":true,"protocolVersion":2,"requestId":"r","runId":"run_1","sessionId":"ses_1","type":"cancel_ack"}
    {"adapterSessionId":null,"attemptId":"att_1","cacheReadTokens":0,"cacheWriteTokens":0,"clientId":"test","costUsd":0.0,"eventId":"evt_1","inputTokens":0,"outputTokens":0,"protocolVersion":2,"requestId":"r","runId":"run_1","sessionId":"ses_1","terminalStatus":"cancelled","text":"half of it\n","type":"result"}
    "#);
}

#[test]
fn interrupts_of_unknown_queries_are_rejected() {
    let mut host = Host::start();
    let run = "run_00000000000040008000000000000000";
    let mut received = vec![];
    for line in [
        json!({"type": "interrupt", "protocolVersion": 2, "requestId": "nobody", "clientId": "test"}),
        json!({"type": "interrupt", "protocolVersion": 2, "requestId": "x", "clientId": "test", "runId": run}),
        json!({"type": "interrupt", "protocolVersion": 2, "requestId": "x", "clientId": "test", "runId": "run_?"}),
    ] {
        host.send(&line);
        received.push(host.receive());
    }
    assert_snapshot!(transcript(&received), @r#"
    {"accepted":false,"adapterAcknowledged":false,"clientId":"test","code":"not_found","dispatchAttempted":false,"message":"no query \"nobody\" is under way","protocolVersion":2,"requestId":"nobody","type":"cancel_ack"}
    {"accepted":false,"adapterAcknowledged":false,"clientId":"test","code":"not_found","dispatchAttempted":false,"message":"no run \"run_1\"","protocolVersion":2,"requestId":"x","runId":"run_1","type":"cancel_ack"}
    {"accepted":false,"adapterAcknowledged":false,"clientId":"test","code":"not_found","dispatchAttempted":false,"message":"no run \"run_?\"","protocolVersion":2,"requestId":"x","type":"cancel_ack"}
    "#);
}

#[test]
fn a_complete_conversation_in_version_1() {
    let mut host = Host::start();
    let mut received = vec![];
    for line in [
        json!({"type": "warmup", "cwd": "/tmp", "sessions": [{"key": "main", "model": "m"}]}),
        json!({"type": "query", "id": "1", "prompt": "say hello; tool upper {\"text\":\"loud\"}", "systemPrompt": "", "sessionKey": "main"}),
        json!({"type": "query", "id": "2", "prompt": "fail no luck", "systemPrompt": "", "sessionKey": "main"}),
        json!({"type": "query", "id": "3", "prompt": "say here; hang", "systemPrompt": "", "sessionKey": "main", "sessionId": "ses_ignored"}),
    ] {
        host.send(&line);
        let last = ["result", "error"];
        match line["id"].as_str() {
            None => {}
            Some("3") => {
                received.extend(host.receive_until(|line| line["type"] == "text_delta"));
                host.send(&json!({"type": "interrupt"}));
                received.extend(host.receive_until(|line| line["type"] == "result"));
            }
            Some(_) => {
                received.extend(host.receive_until(|line| last.contains(&line["type"].as_str().unwrap())));
            }
        }
    }
    assert_snapshot!(transcript(&received), @r#"
    {"text":"hello\n","type":"text_delta"}
    {"input":{"text":"loud"},"name":"upper","status":"started","toolUseId":"att_1.1","type":"tool_activity"}
    {"name":"upper","status":"completed","toolUseId":"att_1.1","type":"tool_activity"}
    {"name":"upper","output":"LOUD","toolUseId":"att_1.1","type":"tool_result_display"}
    {"cacheReadTokens":0,"cacheWriteTokens":0,"costUsd":0.0,"inputTokens":0,"outputTokens":0,"sessionId":"ses_1","terminalStatus":"succeeded","text":"hello\n","type":"result"}
    {"code":"adapter_execution_failed","message":"no luck","reason":"script_failed","type":"error"}
    {"text":"here\n","type":"text_delta"}
    {"cacheReadTokens":0,"cacheWriteTokens":0,"costUsd":0.0,"inputTokens":0,"outputTokens":0,"sessionId":"ses_1","terminalStatus":"cancelled","text":"here\n","type":"result"}
    "#);
}

#[test]
fn authenticating_an_adapter_without_login_is_an_error() {
    let mut host = Host::start();
    host.send(&json!({"type": "refresh_token", "token": "secret", "ownerId": "ann"}));
    host.send(&json!({"type": "authenticate", "protocolVersion": 2, "requestId": "a", "methodId": "login"}));
    assert_snapshot!(host.receive(), @r#"{"type":"error","message":"adapter \"script\" cannot be authenticated","code":"adapter_incompatible","protocolVersion":2,"requestId":"a"}"#);
}

#[test]
fn fault_unknown_type_bad_json_missing_prompt() {
    let mut host = Host::with(&Server::start(), |options| options.line_bytes = 1024);
    let mut received = vec![];
    let long = "x".repeat(2_000);
    for text in [
        "{\"type\":\"query\",\n".to_owned(),
        "[]\n".into(),
        "{\"type\":\"nonsense\",\"requestId\":\"r1\",\"clientId\":\"c\",\"protocolVersion\":2}\n".into(),
        "{\"type\":\"query\",\"protocolVersion\":2,\"requestId\":\"r2\",\"clientId\":\"c\"}\n".into(),
        "{\"type\":\"query\",\"protocolVersion\":2,\"requestId\":\"r3\",\"clientId\":\"c\",\"prompt\":\" \"}\n".into(),
        "{\"type\":\"query\",\"protocolVersion\":2,\"requestId\":\"r4\",\"clientId\":\"c\",\"prompt\":\"x\",\"mode\":\"both\"}\n".into(),
        "{\"type\":\"query\",\"protocolVersion\":7,\"requestId\":\"r5\",\"prompt\":\"x\"}\n".into(),
        "{\"type\":\"query\",\"protocolVersion\":2,\"requestId\":\"r6\",\"prompt\":\"x\",\"adapterId\":\"nope\"}\n".into(),
        "{\"type\":\"query\",\"protocolVersion\":2,\"requestId\":\"r7\",\"prompt\":\"x\",\"externalRefKind\":\"task\"}\n".into(),
        "{\"type\":\"query\",\"protocolVersion\":2,\"requestId\":\"r8\",\"prompt\":\"x\",\"sessionId\":\"ses_1\"}\n".into(),
        "{\"type\":\"query\",\"protocolVersion\":2,\"requestId\":\"r9\",\"prompt\":\"x\",\"imageBase64\":\"!\"}\n".into(),
        "{\"type\":\"query\",\"id\":\"1\"}\n".into(),
        "{\"type\":\"tool_result\",\"callId\":\"c1\",\"result\":\"x\",\"requestId\":\"r\"}\n".into(),
        "{\"type\":\"tool_result\",\"result\":\"x\"}\n".into(),
        "{\"type\":\"invalidate_session\"}\n".into(),
        format!("{long}\n"),
    ] {
        host.write(&text);
        let mut line = host.receive();
        if line["code"] == "adapter_not_registered" {
            // The list of adapters is not part of this protocol.
            let message = line["message"].as_str().unwrap();
            line["message"] = message.split(';').next().unwrap().into();
        }
        received.push(line);
    }
    assert_snapshot!(transcript(&received), @r#"
    {"code":"invalid_request","message":"the line is not JSON: EOF while parsing a value at line 1 column 16","reason":"invalid_json","type":"error"}
    {"code":"invalid_request","message":"a line is a JSON object","type":"error"}
    {"clientId":"c","code":"invalid_request","message":"no line has the type \"nonsense\"","protocolVersion":2,"requestId":"r1","type":"error"}
    {"clientId":"c","code":"invalid_request","message":"query: missing field `prompt`","protocolVersion":2,"requestId":"r2","type":"error"}
    {"clientId":"c","code":"invalid_request","message":"a prompt must not be empty","protocolVersion":2,"requestId":"r3","type":"error"}
    {"clientId":"c","code":"invalid_request","message":"query: unknown variant `both`, expected `ask` or `act`","protocolVersion":2,"requestId":"r4","type":"error"}
    {"code":"invalid_request","message":"protocolVersion 7 is not spoken here; 1 and 2 are","protocolVersion":7,"requestId":"r5","type":"error"}
    {"clientId":"legacy-jsonl-client","code":"adapter_not_registered","message":"no adapter \"nope\"","protocolVersion":2,"requestId":"r6","type":"error"}
    {"clientId":"legacy-jsonl-client","code":"invalid_request","message":"externalRefKind and externalRefId must be given together","protocolVersion":2,"requestId":"r7","type":"error"}
    {"clientId":"legacy-jsonl-client","code":"not_found","message":"no session \"ses_1\"","protocolVersion":2,"requestId":"r8","type":"error"}
    {"clientId":"legacy-jsonl-client","code":"invalid_request","message":"imageBase64: Invalid symbol 33, offset 0.","protocolVersion":2,"requestId":"r9","type":"error"}
    {"code":"invalid_request","message":"query: missing field `prompt`","type":"error"}
    {"callId":"c1","code":"not_found","message":"no tool call with this callId is pending: it has a result, it timed out, or it never existed","type":"error"}
    {"code":"invalid_request","message":"tool_result: missing field `callId`","type":"error"}
    {"code":"invalid_request","message":"invalidate_session: missing field `sessionKey`","type":"error"}
    {"code":"invalid_request","message":"a line has at most 1024 bytes","reason":"too_large","type":"error"}
    "#);
    // The process still works after all invalid lines.
    host.send(&query("fine", "k", "say fine"));
    assert_eq!(host.receive_end("fine")["text"], "fine\n");
    assert_eq!(host.close(), Vec::<Value>::new());
}
