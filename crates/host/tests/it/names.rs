//! Addressing: an answer names only its own subject, and a request affects only the query it names.

use mainspring_test_support::jsonl::query;
use serde_json::{Value, json};

use crate::world::Host;

/// Sends a client's version 2 query that says `here` and hangs.
fn start_hanging_query(host: &mut Host, client: &str, request: &str) {
    let mut line = query(request, client, "say here; hang");
    line["clientId"] = client.into();
    host.send(&line);
    host.receive_until(|line| line["type"] == "text_delta" && line["clientId"] == client);
}

/// Sends an interrupt with `fields` and returns its acknowledgement.
fn send_interrupt(host: &mut Host, fields: &Value) -> Value {
    let mut line = json!({"type": "interrupt", "protocolVersion": 2});
    line.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    host.send(&line);
    host.receive_until(|line| line["type"] == "cancel_ack").pop().unwrap()
}

#[test]
fn an_interrupt_never_reaches_another_clients_query() {
    let mut host = Host::start();
    ["one", "two"].iter().for_each(|client| start_hanging_query(&mut host, client, "r"));
    let none = send_interrupt(&mut host, &json!({"clientId": "three"}));
    assert_eq!((&none["accepted"], &none["code"]), (&false.into(), &"not_found".into()));
    assert_eq!(none["message"], "client \"three\" has no query under way");
    // Both clients have a query with this id, so the interrupt is ambiguous.
    let both = send_interrupt(&mut host, &json!({"requestId": "r"}));
    assert_eq!((&both["accepted"], &both["code"]), (&false.into(), &"invalid_request".into()));
    assert!(both["message"].as_str().unwrap().contains("name the clientId"), "{both}");
    // The client's id alone selects the query of that client; no id at all selects the latest query, as in version 1.
    for (fields, client) in [(json!({"clientId": "one"}), "one"), (json!({}), "two")] {
        let done = send_interrupt(&mut host, &fields);
        assert_eq!((&done["accepted"], &done["clientId"]), (&true.into(), &client.into()));
        assert_eq!(host.receive_end("r")["clientId"], client);
    }
}

#[test]
fn an_unrelated_error_does_not_end_a_query() {
    let mut host = Host::start();
    start_hanging_query(&mut host, "c", "r");
    // An invalid interrupt is acknowledged like a valid one.
    let named = json!({"requestId": "r", "clientId": "c", "sessionId": 5});
    let bad = send_interrupt(&mut host, &named);
    assert_eq!((&bad["accepted"], &bad["code"]), (&false.into(), &"invalid_request".into()));
    assert_eq!((&bad["requestId"], &bad["clientId"]), (&"r".into(), &"c".into()));
    // An invalid tool result names only its call.
    host.send(&json!({"type": "tool_result", "protocolVersion": 2, "requestId": "r", "clientId": "c", "callId": "x"}));
    let message = "tool_result: missing field `result`";
    let expected = json!({"type": "error", "code": "invalid_request", "message": message, "callId": "x"});
    assert_eq!(host.receive(), expected);
    // The error of a conflicting use of a request id does not carry the id: a host would assume that the query has
    // ended.
    host.send(
        &json!({"type": "query", "protocolVersion": 2, "requestId": "r", "clientId": "c", "prompt": "say x"}),
    );
    let conflict = host.receive();
    assert_eq!((&conflict["type"], &conflict["reason"]), (&"error".into(), &"request_conflict".into()));
    assert!(conflict["message"].as_str().unwrap().contains(r#"request "r" of client "c""#), "{conflict}");
    for field in ["requestId", "clientId", "sessionId", "runId", "attemptId"] {
        assert_eq!(conflict.get(field), None, "{conflict}");
    }
    assert_eq!(send_interrupt(&mut host, &json!({"requestId": "r", "clientId": "c"}))["accepted"], true);
    assert_eq!(host.receive_end("r")["text"], "here\n");
}

#[test]
fn a_query_can_name_a_model_profile() {
    let mut host = Host::start();
    let mut line = query("r", "k", "say hello");
    line["modelProfile"] = "worker".into();
    host.send(&line);
    let end = host.receive_end("r");
    let run = end["runId"].as_str().unwrap().parse().unwrap();
    let run = host.server.runtime.block_on(host.server.client().run_get(run)).unwrap();
    assert_eq!((run.options.model_profile.as_deref(), run.options.model), (Some("worker"), None));
}

#[test]
fn empty_fields_count_as_absent_and_the_version_is_a_number() {
    let mut host = Host::start();
    let mut line = query("r", "k", "say hello");
    for field in [
        "sessionId",
        "adapterId",
        "surfaceKind",
        "cwd",
        "model",
        "modelProfile",
        "legacyAdapterSessionId",
        "imageBase64",
    ] {
        line[field] = "".into();
    }
    line["protocolVersion"] = 2.0.into();
    host.send(&line);
    let end = host.receive_end("r");
    assert_eq!((&end["text"], &end["protocolVersion"]), (&"hello\n".into(), &2.into()), "{end}");
    let session = end["sessionId"].as_str().unwrap();
    let snapshot = host.server.runtime.block_on(host.server.client().session_snapshot(session)).unwrap();
    assert_eq!(snapshot.session.surface_kind, "legacy_jsonl");
    assert_eq!(snapshot.messages[0].content.len(), 1, "no attachment");
    // An unknown session id is no error if the key, under either field name, resolves.
    line["requestId"] = "again".into();
    line["sessionId"] = "ses_00000000000040008000000000000000".into();
    line["sessionKey"] = line.as_object_mut().unwrap().remove("legacySessionKey").unwrap();
    host.send(&line);
    assert_eq!(host.receive_end("again")["sessionId"], end["sessionId"]);
}

#[test]
fn owners_are_never_confused() {
    let mut host = Host::start();
    for (owner, why) in [
        (" ann", "an owner must not begin or end with a space"),
        ("ann ", "an owner must not begin or end with a space"),
        ("an\nn", "an owner must not hold control characters"),
        (&"a".repeat(513), "an owner has at most 512 bytes"),
    ] {
        let mut line = query("r", "k", "say x");
        line["ownerId"] = owner.into();
        host.send(&line);
        let refused = host.receive_end("r");
        assert_eq!((&refused["code"], &refused["message"]), (&"invalid_request".into(), &why.into()));
    }
    let mut line = query("r", "k", "say x");
    line["ownerId"] = "Żaneta".into();
    host.send(&line);
    assert_eq!(host.receive_end("r")["text"], "x\n");
}
