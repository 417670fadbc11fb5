//! A host that uses pi under the name `pi-mono`.

use mainspring_test_support::jsonl::query;
use serde_json::{Value, json};

use super::Host;
use crate::kill::example;

/// Creates a folder configured with a scripted pi, which is not the default adapter.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let agent = dir.path().join("agent");
    std::fs::create_dir(&agent).unwrap();
    let command = json!([example("pi_agent"), agent, "keep"]);
    let file = format!("[adapters.coder]\nkind = \"pi\"\ncommand = {command}\npermissions = \"legacy\"\n");
    std::fs::write(dir.path().join("mainspring.toml"), file).unwrap();
    dir
}

fn send_query(host: &mut Host, request: &str, key: &str, prompt: &str) {
    let mut line = query(request, key, prompt);
    line["adapterId"] = "pi-mono".into();
    host.send(&line);
}

fn run_query(host: &mut Host, request: &str, key: &str, prompt: &str) -> Value {
    send_query(host, request, key, prompt);
    host.receive_query(request).pop().unwrap()
}

#[test]
fn fault_second_session_on_a_pi_worker() {
    let dir = folder();
    let mut host = Host::start(dir.path());
    let first = run_query(&mut host, "1", "a", "i am a; ask confirm May I?");
    assert_eq!((&first["type"], &first["text"]), (&"result".into(), &"i am a\ntrue\n".into()), "{first}");
    assert_eq!((&first["inputTokens"], &first["outputTokens"]), (&7.into(), &3.into()), "{first}");
    let native = first["adapterSessionId"].as_str().unwrap().to_owned();
    assert!(native.ends_with(".jsonl"), "{native}");
    assert_eq!(run_query(&mut host, "2", "b", "history")["text"], "history");
    host.close();
    let mut host = Host::start(dir.path());
    let next = run_query(&mut host, "3", "a", "history");
    assert_eq!(next["text"], "i am a; ask confirm May I?\nhistory");
    assert_eq!(next["adapterSessionId"], native);
    host.close();
}

#[test]
fn fault_cancelled_pi_run() {
    let dir = folder();
    let mut host = Host::start(dir.path());
    send_query(&mut host, "1", "a", "one; hang");
    host.receive_until(|line| line["text"].as_str().is_some_and(|text| text.contains("hanging")));
    host.send(&json!({"type": "interrupt", "protocolVersion": 2, "requestId": "1", "clientId": "test"}));
    let end = host.receive_query("1").pop().unwrap();
    assert_eq!(
        (&end["terminalStatus"], &end["text"]),
        (&"cancelled".into(), &"one\nhanging".into()),
        "{end}"
    );
    host.close();
}

#[test]
fn a_session_known_only_to_an_earlier_pi_process_is_reopened() {
    let dir = folder();
    let mut host = Host::start(dir.path());
    let mut line = query("1", "a", "history");
    line["adapterId"] = "pi-mono".into();
    line["legacyAdapterSessionId"] = "pi-session-7".into();
    host.send(&line);
    let end = host.receive_query("1").pop().unwrap();
    assert_eq!((&end["type"], &end["text"]), (&"result".into(), &"history".into()), "{end}");
    assert!(end["adapterSessionId"].as_str().unwrap().ends_with(".jsonl"), "{end}");
    host.close();
}
