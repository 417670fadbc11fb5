//! A host whose queries are answered by an agent with sessions of its own.

use std::path::Path;

use serde_json::{Value, json};

use super::{Host, is_end, query};
use crate::kill::example;

/// A folder with a scripted ACP agent set up in it, under a name of its own.
pub(crate) fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let agent = dir.path().join("agent");
    std::fs::create_dir(&agent).unwrap();
    let command = json!([example("acp_agent"), agent, "resume"]);
    let file = format!(
        "adapter = \"claude\"\n[adapters.claude]\nkind = \"acp\"\ncommand = {command}\npermissions = \"legacy\"\n"
    );
    std::fs::write(dir.path().join("mainspring.toml"), file).unwrap();
    dir
}

fn asks(host: &mut Host, request: &str, prompt: &str, fields: &Value) -> Vec<Value> {
    let mut line = query(request, "k", prompt);
    line.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    host.say(&line);
    host.ended(request)
}

/// The agent's own session of a query's end.
fn native(heard: &[Value]) -> String {
    heard.last().unwrap()["adapterSessionId"].as_str().unwrap_or_else(|| panic!("{heard:?}")).to_owned()
}

#[test]
fn lines_name_the_agents_own_session_and_hosts_know_agents_by_their_kind() {
    let dir = folder();
    let mut host = Host::start(dir.path());
    let first = asks(&mut host, "1", "hello", &json!({"adapterId": "acp-claude"}));
    let own = native(&first);
    assert!(own.starts_with("native-"));
    for line in &first {
        assert_eq!(line["adapterSessionId"], own, "{line}");
        assert!(line["sessionId"].as_str().unwrap().starts_with("ses_"));
    }
    // The next query of the session goes on in it, also in another process, and also when it is told again.
    assert_eq!(native(&asks(&mut host, "2", "again", &json!({"adapterId": "acp"}))), own);
    host.close();
    let mut host = Host::start(dir.path());
    assert_eq!(native(&asks(&mut host, "3", "once more", &json!({}))), own);
    assert_eq!(native(&asks(&mut host, "2", "again", &json!({"adapterId": "acp"}))), own);
    // Version 1 knows no other.
    host.say(&json!({"type": "query", "id": "v1", "prompt": "old", "systemPrompt": "", "sessionKey": "k"}));
    let v1 = host.until(is_end).pop().unwrap();
    assert_eq!((&v1["sessionId"], v1.get("adapterSessionId")), (&own.into(), None));
}

#[test]
fn an_invalidated_session_is_opened_anew_and_stays_the_same_to_the_host() {
    let dir = folder();
    let mut host = Host::start(dir.path());
    let first = asks(&mut host, "1", "hello", &json!({}));
    host.say(&json!({"type": "invalidate_session", "sessionKey": "k"}));
    host.say(&json!({"type": "invalidate_session", "sessionKey": "nobody's"}));
    let second = asks(&mut host, "2", "hello again", &json!({}));
    assert_ne!(native(&second), native(&first));
    assert_eq!(second.last().unwrap()["sessionId"], first.last().unwrap()["sessionId"]);
    // While it is being used, it cannot be.
    host.query("3", "k", "hang");
    host.until(|line| line["type"] == "text_delta");
    host.say(&json!({"type": "invalidate_session", "sessionKey": "k", "protocolVersion": 2, "requestId": "i", "clientId": "test"}));
    let refused = host.hear();
    assert_eq!((&refused["code"], &refused["requestId"]), (&"session_busy".into(), &"i".into()));
}

#[test]
fn a_session_that_the_host_remembers_is_adopted_once() {
    let dir = folder();
    let known =
        |name: &str| std::fs::write(dir.path().join("agent").join(name), "what was said before\n").unwrap();
    known("native-old");
    known("native-other");
    let mut host = Host::start(dir.path());
    let adopted = asks(
        &mut host,
        "1",
        "history",
        &json!({"legacyAdapterSessionId": "native-old", "systemPrompt": "be kind"}),
    );
    assert_eq!(native(&adopted), "native-old");
    assert!(adopted.last().unwrap()["text"].as_str().unwrap().contains("what was said before"));
    // The session is tied by now: what the host remembers is old news.
    let next = asks(
        &mut host,
        "2",
        "more",
        &json!({"legacyAdapterSessionId": "native-other", "systemPrompt": "be kind"}),
    );
    assert_eq!(native(&next), "native-old");
    // One that the agent does not know any more is tried, and then another is opened, in the same run.
    host.say(&json!({"type": "query", "id": "v1", "prompt": "hello", "systemPrompt": "", "sessionKey": "other", "resume": "native-gone"}));
    let heard = host.until(is_end);
    assert_eq!(
        (&heard.last().unwrap()["type"], &heard.last().unwrap()["text"]),
        (&"result".into(), &"hello\n".into())
    );
    assert!(heard.last().unwrap()["sessionId"].as_str().unwrap().starts_with("native-"));
    let attempts = std::fs::read_dir(dir.path().join("agent")).unwrap().count();
    assert_eq!(attempts, 3, "one was opened");
}

#[test]
fn agents_find_the_relay_and_run_side_by_side() {
    let dir = folder();
    let mut host = Host::start(dir.path());
    let heard = asks(&mut host, "env", "env OMI_BRIDGE_PIPE", &json!({}));
    assert_eq!(Path::new(heard.last().unwrap()["text"].as_str().unwrap()), host.relay());
    let names = ["a", "b", "c", "d"];
    names.iter().for_each(|name| host.query(name, name, "noise; hang"));
    let mut here: Vec<String> = vec![];
    while here.len() < 4 {
        let line = host
            .until(|line| line["text"].as_str().is_some_and(|text| text.contains("hanging")))
            .pop()
            .unwrap();
        assert!(!line["text"].as_str().unwrap().contains("LEAK"));
        here.push(line["requestId"].as_str().unwrap().to_owned());
    }
    here.sort();
    assert_eq!(here, names);
    host.say(&json!({"type": "stop"}));
    let (rest, code) = host.rest();
    let cancelled = rest.iter().filter(|line| line["terminalStatus"] == "cancelled").count();
    assert_eq!((cancelled, code), (4, 0), "{rest:?}");
}

#[test]
fn a_tool_of_the_agent_is_shown_and_its_death_is_told() {
    let dir = folder();
    let mut host = Host::start(dir.path());
    let heard = asks(&mut host, "1", "tool edit", &json!({}));
    let shown: Vec<(&str, &Value)> = heard
        .iter()
        .filter_map(|line| match line["type"].as_str().unwrap() {
            "tool_activity" => Some(("activity", &line["status"])),
            "tool_result_display" => Some(("output", &line["output"])),
            _ => None,
        })
        .collect();
    assert_eq!(
        shown,
        [("activity", &json!("started")), ("activity", &json!("completed")), ("output", &json!("done it"))]
    );
    let dead = asks(&mut host, "2", "crash", &json!({}));
    assert_eq!(dead.last().unwrap()["code"], "transport_interruption", "{dead:?}");
    assert_eq!(asks(&mut host, "3", "hello", &json!({})).last().unwrap()["text"], "hello\n");
}
