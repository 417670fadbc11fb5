//! The tool relay: an agent's calls over its socket, answered by the kernel or by the host.

use std::os::unix::fs::PermissionsExt;

use insta::assert_snapshot;
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
    let mode = std::fs::metadata(host.relay()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "readable only by its owner");
    host.query("r", "k", "say here; hang");
    host.receive_until(|line| line["type"] == "text_delta");
    let mut agent = RelayAgent::connect(&host.relay());
    // With one active query, the call belongs to it.
    agent.call("omi-1", "execute_sql", &json!({"query": "SELECT 1"}));
    assert_snapshot!(transcript(&[host.receive()]), @r#"{"attemptId":"att_1","callId":"omi-1","clientId":"test","input":{"query":"SELECT 1"},"name":"execute_sql","protocolVersion":2,"requestId":"r","runId":"run_1","sessionId":"ses_1","type":"tool_use"}"#);
    host.send(&json!({"type": "tool_result", "callId": "omi-1", "result": "one row"}));
    assert_eq!(agent.receive(), ("omi-1".into(), "one row".into()));
    // A call may name its query; ids of unknown queries are passed on unchanged.
    host.query("r2", "k2", "say here too; hang");
    host.receive_until(|line| line["type"] == "text_delta");
    for (call, correlation) in [
        ("by request", json!({"requestId": "r2", "clientId": "test"})),
        (
            "unknown",
            json!({"requestId": "elsewhere", "clientId": "other", "protocolVersion": 2, "adapterSessionId": "n"}),
        ),
        ("ambiguous", json!({})),
    ] {
        let mut line = json!({"type": "tool_use", "callId": call, "name": "lookup", "input": {}});
        line.as_object_mut().unwrap().extend(correlation.as_object().unwrap().clone());
        agent.send(&line);
        let line = host.receive();
        assert_eq!((&line["type"], &line["callId"]), (&"tool_use".into(), &call.into()));
        let expected = correlation.get("requestId").cloned().unwrap_or_default();
        assert_eq!(line["requestId"], expected, "{line}");
        assert_eq!(line.get("runId").is_some(), call == "by request", "{line}");
        host.send(&json!({"type": "tool_result", "callId": call, "result": {"rows": [1]}}));
        assert_eq!(agent.receive(), (call.into(), "{\"rows\":[1]}".into()));
    }
}

#[test]
fn every_relay_call_gets_an_answer() {
    let mut host = Host::with(&Server::start(), |options| {
        options.tool_timeout_ms = 200;
        options.line_bytes = 4096;
    });
    let (mut agent, mut other) = (RelayAgent::connect(&host.relay()), RelayAgent::connect(&host.relay()));
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
    // A line that is too long is skipped, and the next line is read.
    agent.call("long", "tool", &json!("x".repeat(5_000)));
    let long: Value = serde_json::from_str(&agent.receive().1).unwrap();
    assert_eq!(
        (&long["error"]["code"], &long["error"]["message"]),
        (&"invalid_tool_input".into(), &"a line has at most 4096 bytes".into())
    );
    // The host leaves.
    agent.call("gone", "tool", &json!({}));
    assert_eq!(host.receive()["callId"], "gone");
    let relay = host.relay();
    host.close();
    assert_eq!(error_code(&agent.receive().1), "transport_interruption");
    assert!(!relay.exists(), "the socket is removed at exit");
}

#[test]
fn the_kernel_answers_the_control_tools() {
    let mut host = Host::start();
    host.query("done", "a", "say hello; usage 1 2 0.5");
    let done = host.receive_end("done");
    host.query("active", "b", "say here; hang");
    let active = host.receive_until(|line| line["type"] == "text_delta").pop().unwrap();
    let mut agent = RelayAgent::connect(&host.relay());

    let listed = agent.control("list_agent_sessions", &json!({"limit": 10, "surfaceKind": "legacy_jsonl"}));
    assert_eq!(listed["ok"], true, "{listed}");
    let sessions = listed["sessions"].as_array().unwrap();
    assert_eq!(sessions.len(), 2);
    let of = |id: &Value| sessions.iter().find(|listed| listed["session"]["omiSessionId"] == *id).unwrap();
    assert_eq!(of(&done["sessionId"])["latestRun"]["finalText"], "hello\n");
    assert_eq!(of(&done["sessionId"])["activeRun"], Value::Null);
    assert_eq!(of(&active["sessionId"])["activeRun"]["runId"], active["runId"]);
    assert_eq!(of(&active["sessionId"])["activeRun"]["finalText"], Value::Null, "it has no last word yet");
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

    let cancelled = agent.control("cancel_agent_run", &json!({"runId": active["runId"]}));
    assert_eq!(
        (&cancelled["cancellation"]["accepted"], &cancelled["run"]["runId"]),
        (&true.into(), &active["runId"])
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
    host.query("r", "a", "say here; hang");
    let mine = host.receive_until(|line| line["type"] == "text_delta").pop().unwrap();
    let mut agent = RelayAgent::connect(&host.relay());
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
    host.query("r2", "a", "say here; hang");
    host.receive_until(|line| line["type"] == "text_delta" && line["requestId"] == "r2");
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
    host.query("r", "a", "say here; hang");
    let mine = host.receive_until(|line| line["type"] == "text_delta").pop().unwrap();
    let mut agent = RelayAgent::connect(&host.relay());
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
    // An agent acts for the owner of its query and sees no other owner's sessions.
    let mut line = query("bens", "b", "say here; hang");
    line["ownerId"] = "ben".into();
    host.send(&line);
    host.receive_until(|line| line["requestId"] == "bens");
    let list = |agent: &mut RelayAgent, request: &str| {
        agent.send(&json!({"type": "tool_use", "callId": "x", "name": "list_agent_sessions", "input": {}, "requestId": request, "clientId": "test"}));
        let answer: Value = serde_json::from_str(&agent.receive().1).unwrap();
        let sessions = answer["sessions"].as_array().unwrap().clone();
        sessions
            .iter()
            .map(|listed| listed["session"]["ownerId"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(list(&mut agent, "r"), ["desktop-local-user"]);
    assert_eq!(list(&mut agent, "bens"), ["ben"]);
}

#[test]
fn a_call_of_an_ended_query_is_not_given_to_an_active_one() {
    let mut host = Host::start();
    let mut line = query("anns", "a", "say done");
    line["ownerId"] = "ann".into();
    host.send(&line);
    let ended = host.receive_end("anns");
    let mut agent = RelayAgent::connect(&host.relay());
    let list = |agent: &mut RelayAgent, of: Value| {
        let mut call = json!({"type": "tool_use", "callId": "x", "name": "list_agent_sessions", "input": {}});
        call.as_object_mut().unwrap().extend(of.as_object().unwrap().clone());
        agent.send(&call);
        serde_json::from_str::<Value>(&agent.receive().1).unwrap()
    };
    let owner = |answer: &Value| answer["sessions"][0]["session"]["ownerId"].clone();
    // While all of the host's queries have one owner, every call acts for that owner.
    assert_eq!(owner(&list(&mut agent, json!({"runId": ended["runId"]}))), "ann");
    let mut line = query("bens", "b", "say here; hang");
    line["ownerId"] = "ben".into();
    host.send(&line);
    host.receive_until(|line| line["type"] == "text_delta");
    // A call of an ended query is not given to the active query.
    agent.send(
        &json!({"type": "tool_use", "callId": "c", "name": "lookup", "input": {}, "runId": ended["runId"]}),
    );
    let line = host.receive();
    assert_eq!((&line["runId"], line.get("requestId")), (&ended["runId"], None), "{line}");
    for of in [json!({"runId": ended["runId"]}), json!({"requestId": "anns", "clientId": "test"})] {
        let refused = list(&mut agent, of);
        assert_eq!(refused["error"]["code"], "stale_owner", "{refused}");
    }
    // A call without ids belongs to the active query.
    assert_eq!(owner(&list(&mut agent, json!({}))), "ben");
}

#[test]
fn an_agent_with_many_pending_calls_has_to_wait() {
    const CALLS: usize = 600;
    let mut host = Host::start();
    let mut agent = RelayAgent::connect(&host.relay());
    let mut writer = agent.try_clone();
    let calls = move || (0..CALLS).for_each(|no| writer.call(&no.to_string(), "tool", &json!({})));
    let writes = std::thread::spawn(calls);
    let mut calls: Vec<Value> = (0..256).map(|_| host.receive()).collect();
    // No more calls arrive until one is answered.
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
