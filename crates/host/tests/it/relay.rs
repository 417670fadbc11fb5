//! Calls of agents over the endpoint of their run, answered by the kernel or by the host.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use insta::assert_snapshot;
use mainspring_client::Client;
use mainspring_core::RunId;
use mainspring_test_support::jsonl::{RelayAgent, is_end, query, transcript};
use serde_json::{Value, json};

use crate::world::{Host, Server};

/// Returns the error code of an answer.
fn error_code(answer: &str) -> String {
    let answer: Value = serde_json::from_str(answer).unwrap();
    assert_eq!(answer["ok"], false);
    answer["error"]["code"].as_str().unwrap().to_owned()
}

#[test]
fn a_host_tool_is_called_and_answered() {
    let mut host = Host::start();
    let (line, mut agent) = host.agent("r", "k");
    let path = PathBuf::from(line["text"].as_str().unwrap().trim());
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700), "only its user reaches it");
    agent.call("omi-1", "execute_sql", &json!({"query": "SELECT 1"}));
    assert_snapshot!(transcript(&[host.receive()]), @r#"{"attemptId":"att_1","callId":"omi-1","clientId":"test","input":{"query":"SELECT 1"},"name":"execute_sql","protocolVersion":2,"requestId":"r","runId":"run_1","sessionId":"ses_1","type":"tool_use"}"#);
    host.send(&json!({"type": "tool_result", "callId": "omi-1", "result": "one row"}));
    assert_eq!(agent.receive(), ("omi-1".into(), "one row".into()));
    // A call may name its own run, and no other.
    let (other, _) = host.agent("r2", "k2");
    for (field, of, is_own) in
        [("runId", &line, true), ("runId", &other, false), ("sessionId", &other, false)]
    {
        agent.send(
            &json!({"type": "tool_use", "callId": "named", "name": "lookup", "input": {}, field: of[field]}),
        );
        if is_own {
            assert_eq!(host.receive()["requestId"], "r");
            host.send(&json!({"type": "tool_result", "callId": "named", "result": {"rows": [1]}}));
            assert_eq!(agent.receive(), ("named".into(), "{\"rows\":[1]}".into()));
        } else {
            assert_eq!(error_code(&agent.receive().1), "stale_owner");
        }
    }
    // The request id of another query is ignored.
    agent.send(&json!({"type": "tool_use", "callId": "x", "name": "y", "input": {}, "requestId": "r2", "clientId": "test"}));
    let call = host.receive();
    assert_eq!((&call["requestId"], &call["runId"]), (&"r".into(), &line["runId"]), "{call}");
    agent.send(&json!({"type": "context", "callId": "c"}));
    let context = agent.receive_line();
    let expected = json!({"type": "context", "callId": "c", "ownerId": "desktop-local-user", "sessionId": line["sessionId"],
        "runId": line["runId"], "attemptId": line["attemptId"], "requestId": "r", "clientId": "test"});
    assert_eq!(context, expected);
}

#[test]
fn two_hosts_of_one_server_get_the_calls_of_their_own_queries() {
    let server = Server::start();
    let (mut first, mut second) = (Host::of(&server), Host::of(&server));
    let (_, mut of_first) = first.agent("same", "a");
    let mut line = query("other", "b", "relay; hang");
    line["ownerId"] = "ben".into();
    let (_, mut of_second) = second.agent_of(&line);
    for (agent, host, request) in
        [(&mut of_second, &mut second, "other"), (&mut of_first, &mut first, "same")]
    {
        agent.call("c", "tool", &json!({}));
        let call = host.receive();
        assert_eq!((&call["type"], &call["requestId"]), (&"tool_use".into(), &request.into()), "{call}");
        host.send(&json!({"type": "tool_result", "callId": call["callId"], "result": request}));
        assert_eq!(agent.receive().1, request);
    }
    let owner = |agent: &mut RelayAgent| {
        agent.control("list_agent_sessions", &json!({}))["sessions"][0]["session"]["ownerId"].clone()
    };
    assert_eq!((owner(&mut of_first), owner(&mut of_second)), ("desktop-local-user".into(), "ben".into()));
}

#[test]
fn the_tools_of_a_host_serve_the_children_of_its_runs() {
    let mut host = Host::start();
    let (mine, mut agent) = host.agent("r", "a");
    let client = host.server.client();
    let input = json!({"mode": "spawn", "objective": "relay; hang"});
    let spawned = agent.control("delegate_agent", &input);
    let child: RunId = spawned["childRun"]["runId"].as_str().unwrap().parse().unwrap();
    let path = host.server.runtime.block_on(streamed_text(&client, child));
    let mut of_child = RelayAgent::connect(path.trim().as_ref());
    of_child.call("c", "tool", &json!({}));
    let call = host.receive();
    assert_eq!((&call["requestId"], &call["runId"]), (&"r".into(), &spawned["childRun"]["runId"]), "{call}");
    host.send(&json!({"type": "tool_result", "callId": "c", "result": "for the child"}));
    assert_eq!(of_child.receive().1, "for the child");
    // A child has no other parent than its own run.
    let input = json!({"mode": "spawn", "objective": "say x", "parentRunId": mine["runId"]});
    assert_eq!(of_child.control("delegate_agent", &input)["error"]["code"], "not_found");
}

/// Follows a run until its agent has streamed a line.
async fn streamed_text(client: &Client, run: RunId) -> String {
    let (mut events, mut text) = (client.run_events(run, None), String::new());
    while !text.ends_with('\n') {
        text.push_str(events.next().await.unwrap().unwrap().text());
    }
    text
}

#[test]
fn every_relay_call_gets_an_answer() {
    let mut host = Host::with(&Server::start(), |options| options.tool_timeout_ms = 200);
    let ((_, mut agent), (_, mut other)) = (host.agent("a", "a"), host.agent("b", "b"));
    // A call without an answer times out, and a late answer is rejected.
    agent.call("late", "slow_tool", &json!({}));
    assert_eq!(host.receive()["callId"], "late");
    let (call, answer) = agent.receive();
    assert_eq!((call.as_str(), error_code(&answer).as_str()), ("late", "timeout"));
    host.send(&json!({"type": "tool_result", "callId": "late", "result": "x", "protocolVersion": 2, "requestId": "r"}));
    let late = host.receive();
    assert_eq!(
        (&late["code"], &late["callId"], late.get("requestId")),
        (&"not_found".into(), &"late".into(), None)
    );
    // Two agents with the same call id each get their own answer.
    agent.call("same", "tool", &json!({"from": "agent"}));
    let first = host.receive();
    other.call("same", "tool", &json!({"from": "other"}));
    let second = host.receive();
    for line in [second, first] {
        host.send(&json!({"type": "tool_result", "callId": line["callId"], "result": line["input"]["from"]}));
    }
    assert_eq!(agent.receive(), ("same".into(), "agent".into()));
    assert_eq!(other.receive(), ("same".into(), "other".into()));
    // Invalid lines.
    agent.send(&json!({"type": "tool_use", "callId": "no name"}));
    assert_eq!(error_code(&agent.receive().1), "invalid_tool_input");
    agent.send(&json!({"type": "other", "callId": "x", "name": "y"}));
    assert_eq!(error_code(&agent.receive().1), "invalid_tool_input");
    agent.write("nonsense\n");
    assert_eq!(error_code(&agent.receive().1), "invalid_tool_input");
    agent.write("[]\n");
    let object: Value = serde_json::from_str(&agent.receive().1).unwrap();
    assert_eq!(object["error"]["message"], "a line is a JSON object");
    // The host leaves.
    agent.call("gone", "tool", &json!({}));
    assert_eq!(host.receive()["callId"], "gone");
    drop(host.input.take());
    assert_eq!(error_code(&agent.receive().1), "transport_interruption");
    agent.call("later", "tool", &json!({}));
    assert_eq!(error_code(&agent.receive().1), "transport_interruption");
}

#[test]
fn an_endpoint_ends_with_its_run() {
    let mut host = Host::start();
    let (line, mut agent) = host.agent("r", "a");
    let path = PathBuf::from(line["text"].as_str().unwrap().trim());
    agent.call("pending", "tool", &json!({}));
    assert_eq!(host.receive()["callId"], "pending");
    host.send(&json!({"type": "interrupt", "requestId": "r", "clientId": "test", "protocolVersion": 2}));
    assert_eq!(host.receive_end("r")["terminalStatus"], "cancelled");
    assert!(!path.exists(), "the socket is removed");
    assert_eq!(error_code(&agent.receive().1), "stale_owner");
    assert!(agent.is_closed(), "the connection is closed");
    // The next query of the session has an endpoint of its own.
    let (_, mut next) = host.agent("r2", "a");
    assert_eq!(next.control("list_agent_sessions", &json!({}))["ok"], true);
}

#[test]
fn the_kernel_answers_the_control_tools() {
    let mut host = Host::start();
    host.query("done", "a", "say hello; usage 1 2 0.5");
    let done = host.receive_end("done");
    let (active, mut agent) = host.agent("active", "b");

    let listed = agent.control("list_agent_sessions", &json!({"limit": 10, "surfaceKind": "legacy_jsonl"}));
    assert_eq!(listed["ok"], true, "{listed}");
    let sessions = listed["sessions"].as_array().unwrap();
    assert_eq!(sessions.len(), 2);
    let of = |id: &Value| sessions.iter().find(|listed| listed["session"]["omiSessionId"] == *id).unwrap();
    assert_eq!(of(&done["sessionId"])["latestRun"]["finalText"], "hello\n");
    assert_eq!(of(&done["sessionId"])["activeRun"], Value::Null);
    assert_eq!(of(&active["sessionId"])["activeRun"]["runId"], active["runId"]);
    assert_eq!(
        of(&active["sessionId"])["activeRun"]["finalText"],
        Value::Null,
        "the run has no final text yet"
    );
    let before = of(&done["sessionId"])["session"]["lastActivityAtMs"].as_i64().unwrap();
    let none = agent.control("list_agent_sessions", &json!({"beforeUpdatedAtMs": before}));
    assert_eq!(none["sessions"], json!([]));

    let got = agent.control("get_agent_run", &json!({"runId": done["runId"]}));
    assert_eq!(got["run"]["input"], json!({"prompt": "say hello; usage 1 2 0.5"}));
    assert_eq!((&got["run"]["status"], &got["run"]["clientId"]), (&"succeeded".into(), &"test".into()));
    assert_eq!(
        (&got["run"]["usage"]["costUsd"], &got["run"]["omiSessionId"]),
        (&0.5.into(), &done["sessionId"])
    );
    assert_eq!(got["session"]["legacySessionKey"], "a");
    assert_eq!(got["attempts"][0]["attemptId"], done["attemptId"]);
    let types: Vec<&str> =
        got["events"].as_array().unwrap().iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!((types.first(), types.last()), (Some(&"run.queued"), Some(&"run.succeeded")));
    for absent in ["adapterBindings", "artifacts", "parentDelegations", "childDelegations"] {
        assert_eq!(got[absent], json!([]), "{absent}");
    }
    let last = agent.control("get_agent_run", &json!({"runId": done["runId"], "eventLimit": 1}));
    assert_eq!(last["events"][0]["type"], "run.succeeded");
    let without = agent.control("get_agent_run", &json!({"runId": done["runId"], "includeEvents": false}));
    assert_eq!(without["events"], json!([]));

    let sent =
        agent.control("send_agent_message", &json!({"sessionId": done["sessionId"], "prompt": "say again"}));
    assert_eq!((&sent["text"], &sent["terminalStatus"]), (&"again\n".into(), &"succeeded".into()), "{sent}");
    assert_eq!(
        (&sent["run"]["mode"], &sent["run"]["clientId"]),
        (&"ask".into(), &"omi-control-tools".into())
    );
    assert_eq!(sent["attempt"]["runId"], sent["run"]["runId"]);

    for of in ["sessionId", "runId", "attemptId"] {
        let found = agent.control("inspect_agent_artifacts", &json!({of: done[of]}));
        assert_eq!(found, json!({"ok": true, "artifacts": [], "nextCursor": null}), "{of}");
    }

    host.query("other", "c", "say here; hang");
    let other = host.receive_until(|line| line["type"] == "text_delta").pop().unwrap();
    let cancelled = agent.control("cancel_agent_run", &json!({"runId": other["runId"]}));
    assert_eq!(
        (&cancelled["cancellation"]["accepted"], &cancelled["run"]["runId"]),
        (&true.into(), &other["runId"])
    );
    assert_eq!(host.receive_until(is_end).pop().unwrap()["terminalStatus"], "cancelled");
}

/// Builds the input of `delegate_agent` for the run of a line.
fn delegate(line: &Value, mode: &str, more: &Value) -> Value {
    let mut input = json!({"mode": mode, "parentRunId": line["runId"], "objective": "say counted"});
    input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    input
}

#[test]
fn an_agent_delegates_and_receives_the_result() {
    let mut host = Host::start();
    let (mine, mut agent) = host.agent("r", "a");
    let more = json!({"context": "of the day", "childTitle": "Counting", "metadata": {"x": 1}, "requestId": "c1",
        "childExternalRefKind": "task", "childExternalRefId": "t1"});
    let called = agent.control("delegate_agent", &delegate(&mine, "call", &more));
    assert_eq!(called["ok"], true, "{called}");
    let (delegation, child) = (&called["delegation"], &called["childRun"]);
    assert_eq!((&delegation["status"], &delegation["mode"]), (&"succeeded".into(), &"call".into()));
    assert_eq!((&delegation["parentRunId"], &child["parentRunId"]), (&mine["runId"], &mine["runId"]));
    assert_eq!((&delegation["childRunId"], &child["mode"]), (&child["runId"], &"ask".into()));
    assert_eq!(delegation["request"]["context"], "of the day");
    assert_eq!(called["terminalStatus"], "succeeded");
    assert_eq!(called["childAttempt"]["runId"], child["runId"]);
    let session = &called["childSession"];
    assert_eq!(
        (&session["surfaceKind"], &session["title"], &session["externalRefId"], &session["metadata"]["x"]),
        (&"delegated_agent".into(), &"Counting".into(), &"t1".into(), &1.into())
    );
    let result = &called["result"];
    assert_eq!(result["summary"], "counted\nYou said: Context:\nYou said: of the day\n");
    for list in ["artifacts", "verifiedEffects", "openQuestions"] {
        assert_eq!(result[list], json!([]), "{list}");
    }
    assert!(result["usage"]["inputTokens"].is_number(), "{result}");

    // The calling agent determines the parent run.
    let input = json!({"mode": "spawn", "objective": "say mine"});
    assert_eq!(agent.control("delegate_agent", &input)["delegation"]["parentRunId"], mine["runId"]);

    // A repeated call returns the same child.
    let again = agent.control("delegate_agent", &delegate(&mine, "call", &more));
    assert_eq!(again["childRun"]["runId"], child["runId"]);

    let more = json!({"childSessionId": session["omiSessionId"]});
    let gone_on = agent.control("delegate_agent", &delegate(&mine, "continue", &more));
    assert_eq!(gone_on["childSession"]["omiSessionId"], session["omiSessionId"]);
    assert_eq!(gone_on["delegation"]["mode"], "continue");

    let spawned = agent.control("delegate_agent", &delegate(&mine, "spawn", &json!({"objective": "hang"})));
    assert_eq!((&spawned["terminalStatus"], &spawned["result"]), (&Value::Null, &Value::Null), "{spawned}");

    let seen = agent.control("get_agent_run", &json!({"runId": mine["runId"], "includeEvents": false}));
    assert_eq!(seen["childDelegations"].as_array().unwrap().len(), 4, "{seen}");
    assert_eq!(seen["parentDelegations"], json!([]));
    let seen = agent.control("get_agent_run", &json!({"runId": child["runId"]}));
    assert_eq!(seen["parentDelegations"][0]["delegationId"], delegation["delegationId"]);

    // Cancelling the parent cancels its spawned children.
    host.send(&json!({"type": "interrupt", "requestId": "r", "clientId": "test", "protocolVersion": 2}));
    assert_eq!(host.receive_until(is_end).pop().unwrap()["terminalStatus"], "cancelled");
    let child = json!({"runId": spawned["childRun"]["runId"]});
    let (_, mut agent) = host.agent("r2", "a");
    let stopped = loop {
        let seen = agent.control("get_agent_run", &child);
        if seen["run"]["completedAtMs"].is_number() {
            break seen;
        }
    };
    assert_eq!(stopped["run"]["status"], "cancelled", "{stopped}");
}

#[test]
fn control_tools_refuse_invalid_input_and_foreign_sessions() {
    let mut host = Host::start();
    let (mine, mut agent) = host.agent("r", "a");
    let unknown = "run_00000000000040008000000000000000";
    for (tool, input, code) in [
        ("get_agent_run", json!({}), "invalid_tool_input"),
        ("get_agent_run", json!({"runId": unknown}), "not_found"),
        ("get_agent_run", json!({"runId": "1; DROP TABLE runs"}), "not_found"),
        ("get_agent_run", json!({"runId": unknown, "eventLimit": 501}), "invalid_tool_input"),
        ("cancel_agent_run", json!({"runId": unknown}), "not_found"),
        ("list_agent_sessions", json!({"limit": 201}), "invalid_tool_input"),
        ("list_agent_sessions", json!({"ownerId": "somebody else"}), "not_found"),
        ("inspect_agent_artifacts", json!({}), "invalid_tool_input"),
        ("inspect_agent_artifacts", json!({"runId": unknown, "sessionId": "x"}), "invalid_tool_input"),
        ("send_agent_message", json!({"sessionId": mine["sessionId"]}), "invalid_tool_input"),
        ("send_agent_message", json!({"sessionId": mine["sessionId"], "prompt": "say x"}), "invalid_request"),
        ("delegate_agent", json!({"mode": "call", "parentRunId": mine["runId"]}), "invalid_tool_input"),
        ("delegate_agent", delegate(&mine, "call", &json!({"parentRunId": unknown})), "not_found"),
        ("delegate_agent", delegate(&mine, "call", &json!({"maxBudgetUsd": 11})), "invalid_tool_input"),
        ("delegate_agent", delegate(&mine, "call", &json!({"maxDepth": 6})), "invalid_request"),
        ("delegate_agent", delegate(&mine, "continue", &json!({})), "invalid_request"),
        (
            "delegate_agent",
            delegate(&mine, "call", &json!({"adapterId": "nobody"})),
            "adapter_not_registered",
        ),
        (
            "delegate_agent",
            delegate(&mine, "call", &json!({"childExternalRefKind": "x"})),
            "invalid_tool_input",
        ),
        ("delegate_agent", delegate(&mine, "spawn", &json!({"ownerId": "somebody else"})), "not_found"),
    ] {
        let answer = agent.control(tool, &input);
        assert_eq!(
            (&answer["ok"], &answer["error"]["code"]),
            (&false.into(), &code.into()),
            "{tool} {input}: {answer}"
        );
    }
}

#[test]
fn an_agent_with_many_pending_calls_has_to_wait() {
    const CALLS: usize = 600;
    let mut host = Host::start();
    let (_, mut agent) = host.agent("r", "a");
    let mut writer = agent.try_clone();
    let calls = move || (0..CALLS).for_each(|no| writer.call(&no.to_string(), "tool", &json!({})));
    let writes = std::thread::spawn(calls);
    let mut calls: Vec<Value> = (0..256).map(|_| host.receive()).collect();
    // The endpoint reads no more calls until one is answered.
    host.send(&json!({"type": "nonsense"}));
    assert_eq!(host.receive()["type"], "error");
    let mut answered = 0;
    while answered < CALLS {
        let call = calls.pop().unwrap_or_else(|| host.receive());
        assert_eq!(call["type"], "tool_use");
        host.send(&json!({"type": "tool_result", "callId": call["callId"], "result": "x"}));
        assert_eq!(agent.receive().0, call["callId"].as_str().unwrap());
        answered += 1;
    }
    writes.join().unwrap();
}
