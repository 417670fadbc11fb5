//! Regression tests for faults seen in the protocol's first implementation. Tests that need a real agent are
//! in `acp` and `pi` of `crates/cli/tests/it/jsonl`, tests that need a kill in `restart` there;
//! docs/acceptance.md lists all of them.

use mainspring_client::SessionListQuery;
use mainspring_test_support::jsonl::{is_end, query, streamed_text};
use serde_json::{Value, json};

use crate::world::{Host, Server};

fn interrupt(request: &str) -> Value {
    json!({"type": "interrupt", "protocolVersion": 2, "requestId": request, "clientId": "test"})
}

#[test]
fn four_sessions_run_concurrently() {
    let mut host = Host::start();
    let names = ["a", "b", "c", "d"];
    names.iter().for_each(|name| host.query(name, name, &format!("say {name} is here; hang")));
    let mut here = vec![];
    while here.len() < 4 {
        let line = host.receive();
        assert_eq!(line["type"], "text_delta", "all of them work before any of them ends");
        here.push(line["requestId"].as_str().unwrap().to_owned());
    }
    here.sort();
    assert_eq!(here, names);
    names.iter().for_each(|name| host.send(&interrupt(name)));
    let mut ended = 0;
    while ended < 4 {
        ended += usize::from(host.receive()["terminalStatus"] == "cancelled");
    }
}

#[test]
fn fault_agent_ignores_cancel() {
    let server = Server::with(|node| node.options(|options| options.cancel_grace_ms = 50));
    let mut host = Host::of(&server);
    host.query("deaf", "k", "say half; ignore-cancel; hang");
    host.receive_until(|line| line["type"] == "text_delta");
    host.query("next", "k", "say next");
    host.send(&interrupt("deaf"));
    let received = host.receive_query("deaf");
    let types: Vec<&str> = received.iter().map(|line| line["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["cancel_ack", "result"]);
    assert_eq!(
        (&received[1]["terminalStatus"], &received[1]["text"]),
        (&"cancelled".into(), &"half\n".into())
    );
    assert_eq!(host.receive_end("next")["text"], "next\n");
}

#[test]
fn fault_queued_run_cancelled() {
    let mut host = Host::start();
    host.query("active", "k", "say here; hang");
    host.receive_until(|line| line["type"] == "text_delta");
    host.query("queued", "k", "say never");
    host.send(&interrupt("queued"));
    let received = host.receive_query("queued");
    assert_eq!(received.len(), 2, "{received:?}");
    assert_eq!((&received[0]["accepted"], &received[0]["dispatchAttempted"]), (&true.into(), &false.into()));
    assert_eq!((&received[1]["terminalStatus"], &received[1]["text"]), (&"cancelled".into(), &"".into()));
    assert_eq!(received[1].get("attemptId"), Some(&Value::Null), "no attempt was made");
    let fields =
        ["sessionId", "adapterSessionId", "costUsd", "inputTokens", "outputTokens", "cacheReadTokens"];
    for field in fields.into_iter().chain(["cacheWriteTokens", "runId", "requestId", "clientId"]) {
        assert!(received[1].get(field).is_some(), "{field}: {:?}", received[1]);
    }
    host.send(&interrupt("active"));
    host.receive_end("active");
}

#[test]
fn a_crash_is_reported_and_the_next_query_runs() {
    let server = Server::with(|node| node.options(|options| options.limits.attempts = 1));
    let mut host = Host::of(&server);
    host.query("crash", "k", "say half; crash");
    host.query("next", "k", "say next");
    let received = host.receive_query("crash");
    assert_eq!(received.last().unwrap()["type"], "error");
    assert_eq!(streamed_text(&received, "crash"), "half\n");
    assert_eq!(host.receive_end("next")["text"], "next\n");
}

#[test]
fn fault_duplicate_request_id() {
    let mut host = Host::start();
    let line = query("r", "k", "say once; sleep 50ms; say more");
    host.send(&line);
    // While the run is active, both queries get one answer.
    host.send(&line);
    let first = host.receive_end("r");
    // Afterwards the answer is repeated.
    host.send(&line);
    let again = host.receive();
    for field in ["type", "text", "runId", "attemptId", "sessionId", "terminalStatus"] {
        assert_eq!(again[field], first[field], "{field}");
    }
    host.send(&query("r", "k", "say something else"));
    let other = host.receive();
    assert_eq!(
        (&other["type"], &other["reason"], &other["requestId"]),
        (&"error".into(), &"request_conflict".into(), &"r".into())
    );
    let server = host.server.clone();
    assert_eq!(host.close(), Vec::<Value>::new());
    assert_eq!(server.runs().len(), 1);
}

#[test]
fn request_ids_without_a_client_id_are_scoped_to_the_connection() {
    let server = Server::start();
    for text in ["one", "two"] {
        let mut host = Host::of(&server);
        host.send(&json!({"type": "query", "id": "1", "prompt": format!("say {text}"), "systemPrompt": ""}));
        let received = host.receive_until(is_end);
        assert_eq!(received.last().unwrap()["text"], format!("{text}\n"));
    }
}

#[test]
fn fault_usage() {
    let server = Server::with(|node| node.options(|options| options.retry.base_ms = 1));
    let mut host = Host::of(&server);
    host.query("r", "k", "usage 10 20 0.25; say try; fail once no luck; say done");
    let received = host.receive_query("r");
    let last = received.last().unwrap();
    assert_eq!(
        (&last["inputTokens"], &last["outputTokens"], &last["costUsd"]),
        (&20.into(), &40.into(), &0.5.into())
    );
    assert_eq!(last["text"], "try\ndone\n", "text of the failed attempt is not part of the answer");
    let attempts: std::collections::BTreeSet<_> =
        received.iter().map(|line| line["attemptId"].to_string()).collect();
    assert_eq!(attempts.len(), 2, "each line names the attempt it belongs to");
}

#[test]
fn sessions_are_resolved_by_their_references_per_owner() {
    let mut host = Host::start();
    let mut no = 0;
    let mut session_of = |fields: Value| {
        no += 1;
        let mut line = json!({
            "type": "query", "protocolVersion": 2, "requestId": no.to_string(), "clientId": "test", "prompt": "say x",
        });
        line.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        host.send(&line);
        let end = host.receive_end(&no.to_string());
        end["sessionId"].as_str().unwrap_or_else(|| end["code"].as_str().unwrap()).to_owned()
    };
    let task = session_of(json!({"externalRefKind": "task", "externalRefId": "7", "legacySessionKey": "t"}));
    assert_eq!(session_of(json!({"externalRefKind": "task", "externalRefId": "7"})), task);
    assert_eq!(session_of(json!({"sessionId": task})), task);
    // An explicit reference is independent of the alias.
    let alias = session_of(json!({"legacySessionKey": "t"}));
    assert_ne!(alias, task);
    assert_eq!(session_of(json!({"sessionKey": "t"})), alias);
    assert_eq!(session_of(json!({"model": "t"})), alias, "the model's name is the default session key");
    assert_ne!(session_of(json!({"legacySessionKey": "t", "legacyClientScope": "pill"})), alias);
    assert_eq!(session_of(json!({})), session_of(json!({})));
    // Another owner's session id is not found; the same external reference resolves to the caller's own session.
    assert_eq!(session_of(json!({"sessionId": task, "ownerId": "jürgen"})), "not_found");
    let others = session_of(
        json!({"sessionId": task, "ownerId": "jürgen", "externalRefKind": "task", "externalRefId": "7"}),
    );
    assert!(others != task && others.starts_with("ses_"), "{others}");
    let listed = host.server.client_of("jürgen");
    let listed = host.server.runtime.block_on(listed.session_list(&SessionListQuery::default())).unwrap();
    assert_eq!(listed.items.len(), 1);
}

#[test]
fn fault_unknown_run_id() {
    let mut host = Host::start();
    for name in ["run_00000000000040008000000000000000", "run_1", "'; DROP TABLE runs"] {
        host.send(&json!({"type": "interrupt", "protocolVersion": 2, "requestId": "x", "clientId": "test", "runId": name}));
        let ack = host.receive();
        assert_eq!((&ack["accepted"], &ack["code"]), (&false.into(), &"not_found".into()), "{ack}");
        let message = ack["message"].as_str().unwrap();
        assert!(!message.contains("SELECT") && !message.contains("SQL"), "{ack}");
    }
}
