//! Calls of agents, with several hosts on one state directory.

use mainspring_test_support::jsonl::query;
use serde_json::{Value, json};

use super::Host;
use super::acp::folder;

/// The prompt of an agent that calls a tool through its own endpoint.
fn call(name: &str, input: &Value) -> String {
    format!("relay {}", json!({"type": "tool_use", "callId": "c", "name": name, "input": input}))
}

/// The tool result that an agent repeats in its answer.
fn tool_result(line: &Value) -> String {
    let answer: Value =
        serde_json::from_str(line["text"].as_str().unwrap()).unwrap_or_else(|_| panic!("{line}"));
    answer["result"].as_str().unwrap().to_owned()
}

#[test]
fn each_host_gets_the_calls_of_its_own_queries() {
    let dir = folder();
    // The first one owns the state directory, the second is its guest.
    let (mut owner, mut guest) = (Host::start(dir.path()), Host::start(dir.path()));
    let mut line = query("guests", "g", &call("lookup", &json!({"of": "guest"})));
    line["ownerId"] = "ben".into();
    guest.send(&line);
    owner.query("owners", "o", &call("lookup", &json!({"of": "owner"})));
    for (host, of) in [(&mut guest, "guest"), (&mut owner, "owner")] {
        let call = host.receive_until(|line| line["type"] == "tool_use").pop().unwrap();
        let request = format!("{of}s");
        assert_eq!(
            (&call["input"]["of"], &call["requestId"]),
            (&of.into(), &request.clone().into()),
            "{call}"
        );
        host.send(
            &json!({"type": "tool_result", "callId": call["callId"], "result": format!("for the {of}")}),
        );
        let end = host.receive_end(&request);
        assert_eq!((&end["runId"], &end["attemptId"]), (&call["runId"], &call["attemptId"]));
        assert_eq!(tool_result(&end), format!("for the {of}"));
    }
    // Each agent acts for its own owner.
    for (host, request, owner, key) in
        [(&mut guest, "g2", "ben", "g"), (&mut owner, "o2", "desktop-local-user", "o")]
    {
        let mut line = query(request, key, &call("list_agent_sessions", &json!({})));
        line["ownerId"] = owner.into();
        host.send(&line);
        let listed: Value = serde_json::from_str(&tool_result(&host.receive_end(request))).unwrap();
        let sessions = listed["sessions"].as_array().unwrap();
        assert!(sessions.len() == 1 && sessions[0]["session"]["ownerId"] == owner, "{listed}");
    }
    // A host that leaves takes its calls with it, and no other host gets them.
    guest.query("left", "g3", &call("lookup", &json!({})));
    guest.receive_until(|line| line["type"] == "tool_use");
    guest.close();
    owner.query("o3", "o", "still here");
    assert_eq!(owner.receive_end("o3")["text"], "still here\n");
}

#[test]
fn an_agent_cannot_use_the_endpoint_of_another() {
    let dir = folder();
    let mut host = Host::start(dir.path());
    host.query("path", "a", "env OMI_BRIDGE_PIPE");
    let socket = host.receive_end("path")["text"].as_str().unwrap().to_owned();
    assert!(!socket.starts_with(dir.path().join("state").to_str().unwrap()), "{socket}");
    host.query("victim", "a", "hang");
    host.receive_until(|line| line["requestId"] == "victim" && line["type"] == "text_delta");
    let line = json!({"type": "tool_use", "callId": "c", "name": "list_agent_sessions", "input": {}});
    host.query("thief", "b", &format!("relay-at {socket} {line}"));
    assert_eq!(host.receive_end("thief")["text"], "closed\n");
    assert!(!dir.path().join("state/relay.sock").exists(), "no socket is shared");
}
