//! A host with an agent that keeps native sessions.

use std::io::Write;
use std::process::Stdio;

use mainspring_test_support::jsonl::{is_end, query};
use serde_json::{Value, json};

use super::Host;
use crate::cli::{json_lines, run};
use crate::kill::example;

/// Creates a folder configured with a scripted ACP agent.
pub(crate) fn folder() -> tempfile::TempDir {
    folder_with("")
}

/// Like [`folder`], with more settings of the agent.
pub(crate) fn folder_with(more: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let agent = dir.path().join("agent");
    std::fs::create_dir(&agent).unwrap();
    let command = json!([example("acp_agent"), agent, "resume"]);
    let file = format!(
        "adapter = \"claude\"\n[adapters.claude]\nkind = \"acp\"\ncommand = {command}\npermissions = \"legacy\"\n{more}\n"
    );
    std::fs::write(dir.path().join("mainspring.toml"), file).unwrap();
    dir
}

fn run_query(host: &mut Host, request: &str, prompt: &str, fields: &Value) -> Vec<Value> {
    let mut line = query(request, "k", prompt);
    line.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    host.send(&line);
    host.receive_query(request)
}

/// Returns the native session id of a query's result.
fn native_session(received: &[Value]) -> String {
    received.last().unwrap()["adapterSessionId"].as_str().unwrap_or_else(|| panic!("{received:?}")).to_owned()
}

#[test]
fn lines_carry_the_native_session_and_aliases_name_adapters_by_kind() {
    let dir = folder();
    let mut host = Host::start(dir.path());
    let first = run_query(&mut host, "1", "hello", &json!({"adapterId": "acp-claude"}));
    let own = native_session(&first);
    assert!(own.starts_with("native-"));
    for line in &first {
        assert_eq!(line["adapterSessionId"], own, "{line}");
        assert!(line["sessionId"].as_str().unwrap().starts_with("ses_"));
    }
    // The session's next query continues in the native session, also in another process, and also when a query is
    // repeated.
    assert_eq!(native_session(&run_query(&mut host, "2", "again", &json!({"adapterId": "acp"}))), own);
    host.close();
    let mut host = Host::start(dir.path());
    assert_eq!(native_session(&run_query(&mut host, "3", "once more", &json!({}))), own);
    assert_eq!(native_session(&run_query(&mut host, "2", "again", &json!({"adapterId": "acp"}))), own);
    // Version 1 reports the native session as its only session id.
    host.send(&json!({"type": "query", "id": "v1", "prompt": "old", "systemPrompt": "", "sessionKey": "k"}));
    let v1 = host.receive_until(is_end).pop().unwrap();
    assert_eq!((&v1["sessionId"], v1.get("adapterSessionId")), (&own.into(), None));
}

#[test]
fn an_invalidated_binding_is_replaced_within_the_same_session() {
    let dir = folder();
    let mut host = Host::start(dir.path());
    let first = run_query(&mut host, "1", "hello", &json!({}));
    host.send(&json!({"type": "invalidate_session", "sessionKey": "k"}));
    host.send(&json!({"type": "invalidate_session", "sessionKey": "nobody's"}));
    let second = run_query(&mut host, "2", "hello again", &json!({}));
    assert_ne!(native_session(&second), native_session(&first));
    assert_eq!(second.last().unwrap()["sessionId"], first.last().unwrap()["sessionId"]);
    // A busy session cannot be invalidated.
    host.query("3", "k", "hang");
    host.receive_until(|line| line["type"] == "text_delta");
    host.send(&json!({"type": "invalidate_session", "sessionKey": "k", "protocolVersion": 2, "requestId": "i", "clientId": "test"}));
    let refused = host.receive();
    assert_eq!((&refused["reason"], &refused["requestId"]), (&"session_busy".into(), &"i".into()));
}

#[test]
fn a_native_session_remembered_by_the_host_is_adopted_once() {
    let dir = folder();
    let known =
        |name: &str| std::fs::write(dir.path().join("agent").join(name), "what was said before\n").unwrap();
    known("native-old");
    known("native-other");
    let mut host = Host::start(dir.path());
    let adopted = run_query(
        &mut host,
        "1",
        "history",
        &json!({"legacyAdapterSessionId": "native-old", "systemPrompt": "be kind"}),
    );
    assert_eq!(native_session(&adopted), "native-old");
    assert!(adopted.last().unwrap()["text"].as_str().unwrap().contains("what was said before"));
    // The session is bound now, so the native session id from the host is ignored.
    let next = run_query(
        &mut host,
        "2",
        "more",
        &json!({"legacyAdapterSessionId": "native-other", "systemPrompt": "be kind"}),
    );
    assert_eq!(native_session(&next), "native-old");
    // A native session unknown to the agent is tried, and then a new one is opened in the same run.
    host.send(&json!({"type": "query", "id": "v1", "prompt": "hello", "systemPrompt": "", "sessionKey": "other", "resume": "native-gone"}));
    let received = host.receive_until(is_end);
    assert_eq!(
        (&received.last().unwrap()["type"], &received.last().unwrap()["text"]),
        (&"result".into(), &"hello\n".into())
    );
    assert!(received.last().unwrap()["sessionId"].as_str().unwrap().starts_with("native-"));
    let attempts = std::fs::read_dir(dir.path().join("agent")).unwrap().count();
    assert_eq!(attempts, 3, "a new session was opened");
}

#[test]
fn agents_find_the_relay() {
    let dir = folder();
    let mut host = Host::start(dir.path());
    let received = run_query(&mut host, "env", "env OMI_BRIDGE_PIPE", &json!({}));
    let socket = received.last().unwrap()["text"].as_str().unwrap();
    assert!(socket.ends_with("/relay.sock"), "{socket}");
    // The variables hold the context of the run that started the process; a later run asks for its own.
    let told = run_query(&mut host, "env2", "env MAINSPRING_CONTEXT_REQUEST_ID", &json!({}));
    assert_eq!(told.last().unwrap()["text"], "env");
    let told = run_query(&mut host, "ask", r#"relay {"type":"context","callId":"c"}"#, &json!({}));
    let end = told.last().unwrap();
    let context: Value = serde_json::from_str(end["text"].as_str().unwrap()).unwrap();
    assert_eq!((&context["requestId"], &context["clientId"]), (&"ask".into(), &"test".into()), "{context}");
    assert_eq!((&context["runId"], &context["attemptId"]), (&end["runId"], &end["attemptId"]));
}

#[test]
fn fault_update_for_another_native_session() {
    let dir = folder();
    let mut host = Host::start(dir.path());
    let received = run_query(&mut host, "1", "noise; and on", &json!({}));
    let text = received.last().unwrap()["text"].as_str().unwrap();
    assert!(text.contains("and on"), "{received:?}");
    assert!(received.iter().all(|line| !line.to_string().contains("LEAK")), "{received:?}");
}

#[test]
fn fault_four_sessions_on_acp_at_once() {
    let dir = folder();
    let mut host = Host::start(dir.path());
    let names = ["a", "b", "c", "d"];
    names.iter().for_each(|name| host.query(name, name, "hang"));
    let mut here: Vec<String> = vec![];
    while here.len() < 4 {
        let line = host
            .receive_until(|line| line["text"].as_str().is_some_and(|text| text.contains("hanging")))
            .pop()
            .unwrap();
        here.push(line["requestId"].as_str().unwrap().to_owned());
    }
    here.sort();
    assert_eq!(here, names);
    host.send(&json!({"type": "stop"}));
    let (rest, code) = host.wait_ended();
    let cancelled = rest.iter().filter(|line| line["terminalStatus"] == "cancelled").count();
    assert_eq!((cancelled, code), (4, 0), "{rest:?}");
}

#[test]
fn an_agents_tool_call_is_reported() {
    let dir = folder();
    let mut host = Host::start(dir.path());
    let received = run_query(&mut host, "1", "tool edit", &json!({}));
    let shown: Vec<(&str, &Value)> = received
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
}

#[test]
fn fault_agent_process_crash() {
    let dir = folder();
    let mut host = Host::start(dir.path());
    let dead = run_query(&mut host, "2", "crash", &json!({}));
    assert_eq!(dead.last().unwrap()["code"], "transport_interruption", "{dead:?}");
    assert_eq!(run_query(&mut host, "3", "hello", &json!({})).last().unwrap()["text"], "hello\n");
}

/// Makes the agent refuse work before a login.
pub(crate) const LOCKED: &str = "env = { ACP_AGENT_LOCKED = \"1\" }";

fn authenticate(method: &str) -> Value {
    json!({"type": "authenticate", "protocolVersion": 2, "requestId": method, "methodId": method})
}

#[test]
fn a_query_goes_on_as_the_next_attempt_of_its_run_after_a_login() {
    let dir = folder_with(LOCKED);
    let mut host = Host::start(dir.path());
    host.send(&query("early", "k", "hello"));
    let required = host.receive();
    let way = json!({"id": "token", "type": "agent", "displayName": "by a token", "args": [], "env": {}});
    assert_eq!((&required["type"], &required["methods"]), (&json!("auth_required"), &json!([way])));
    host.send(&authenticate("magic"));
    let refused = host.receive();
    assert_eq!(
        (&refused["type"], &refused["code"], &refused["reason"], &refused["requestId"]),
        (&json!("error"), &json!("authentication"), &json!("login_failed"), &json!("magic")),
    );
    assert!(refused["message"].as_str().unwrap().contains("it has token"), "{refused}");
    // A version 1 host gets `auth_required` again: it would interpret an error as the end of a query.
    host.send(&json!({"type": "authenticate", "methodId": "magic"}));
    assert_eq!(host.receive()["type"], "auth_required");
    host.send(&authenticate("token"));
    let lines = host.receive_query("early");
    assert!(lines.contains(&json!({"type": "auth_success", "protocolVersion": 2, "requestId": "token"})));
    let end = lines.last().unwrap();
    assert_eq!((&end["terminalStatus"], &end["text"]), (&json!("succeeded"), &json!("hello\n")), "{lines:?}");
    for id in ["protocolVersion", "requestId", "clientId", "sessionId", "runId"] {
        assert_eq!(required[id], end[id], "{id}: {required}");
        assert!(!required[id].is_null(), "{id}: {required}");
    }
    let shown = run(
        dir.path(),
        &["run", "show", end["runId"].as_str().unwrap(), "--json", "--owner", "desktop-local-user"],
    );
    let attempts = &json_lines(&shown)[0]["attemptList"];
    let told: Vec<_> = attempts
        .as_array()
        .unwrap()
        .iter()
        .map(|attempt| {
            (attempt["attemptId"].clone(), attempt["status"].clone(), attempt["retryReason"].clone())
        })
        .collect();
    let expected = [
        (required["attemptId"].clone(), json!("failed"), Value::Null),
        (end["attemptId"].clone(), json!("succeeded"), json!("authentication")),
    ];
    assert_eq!(told, expected, "{attempts}");
    assert_eq!(run_query(&mut host, "late", "hello", &json!({})).last().unwrap()["text"], "hello\n");
}

#[test]
fn a_query_without_its_login_ends_with_the_error_when_the_host_gives_up() {
    for how in ["interrupt", "stop", "end of input", "another query"] {
        let dir = folder_with(LOCKED);
        let mut host = Host::start(dir.path());
        host.send(&query("early", "k", "hello"));
        assert_eq!(host.receive()["type"], "auth_required", "{how}");
        let lines = match how {
            "interrupt" => {
                host.send(
                    &json!({"type": "interrupt", "protocolVersion": 2, "requestId": "early", "clientId": "test"}),
                );
                let lines = host.receive_query("early");
                assert_eq!((&lines[0]["type"], &lines[0]["accepted"]), (&json!("cancel_ack"), &json!(false)));
                lines
            }
            "stop" => {
                host.send(&json!({"type": "stop"}));
                host.wait_ended().0
            }
            "end of input" => host.close().0,
            _ => {
                host.send(&query("next", "k", "hello"));
                host.receive_query("early")
            }
        };
        let ends: Vec<_> =
            lines.iter().filter(|line| line["requestId"] == "early" && line["type"] == "error").collect();
        let [end] = &ends[..] else { panic!("{how}: {lines:?}") };
        assert_eq!(end["code"], "authentication", "{how}: {end}");
        assert!(end["message"].as_str().unwrap().contains("mainspring adapter login claude token"), "{end}");
    }
}

#[test]
fn an_ended_query_without_its_login_is_answered_with_its_end() {
    let dir = folder_with(LOCKED);
    let mut host = Host::start(dir.path());
    host.send(&query("early", "k", "hello"));
    assert_eq!(host.receive()["type"], "auth_required");
    host.close();
    let mut host = Host::start(dir.path());
    let lines = run_query(&mut host, "early", "hello", &json!({}));
    let kinds: Vec<_> = lines.iter().map(|line| line["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["auth_required", "error"], "{lines:?}");
}

#[test]
fn a_chat_goes_on_after_a_login() {
    let dir = folder_with(LOCKED);
    let mut child = crate::cli::command(dir.path());
    child
        .args(["chat", "-s", "talk", "--adapter", "claude"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"hello\n/login magic\n/login\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(out, "hello\n", "{err}");
    for wanted in ["/login logs in, and the answer goes on", "login_failed", "logged in to claude with token"]
    {
        assert!(err.contains(wanted), "{wanted}: {err}");
    }
    let runs = json_lines(&run(dir.path(), &["run", "list", "--json", "--session", "talk"]));
    assert_eq!((runs.len(), &runs[0]["status"], &runs[0]["attempts"]), (1, &json!("succeeded"), &json!(2)));
}

#[test]
fn the_command_line_lists_login_methods_and_can_log_in() {
    let dir = folder_with(LOCKED);
    let locked = run(dir.path(), &["prompt", "hello"]);
    assert_eq!(locked.code, 1, "{}", locked.err);
    assert!(locked.err.contains("mainspring adapter login claude token"), "{}", locked.err);
    assert!(locked.err.contains("(authentication)"), "{}", locked.err);
    let wrong = run(dir.path(), &["adapter", "login", "claude", "magic"]);
    assert_eq!(wrong.code, 4, "{}", wrong.err);
    assert!(wrong.err.contains("error[login_failed]"), "{}", wrong.err);
    let done = run(dir.path(), &["adapter", "login", "claude", "token"]);
    assert_eq!((done.code, done.out.as_str()), (0, "logged in to claude with token\n"), "{}", done.err);
    let nothing = run(dir.path(), &["adapter", "login", "script", "token"]);
    assert_eq!(nothing.code, 2, "{}", nothing.err);
    let listed = run(dir.path(), &["adapter", "list"]);
    assert!(listed.out.contains("claude"), "{}", listed.out);
    // With a configured method, the login happens at every start of the agent.
    let dir = folder_with(&format!("{LOCKED}\nauth_method = \"token\""));
    let open = run(dir.path(), &["prompt", "hello"]);
    assert_eq!(open.code, 0, "{}", open.err);
}

#[test]
fn a_permission_answered_by_policy_is_not_logged_as_waiting() {
    let dir = folder();
    let log = |prompt: &str| {
        let mut child = crate::cli::command(dir.path());
        child.arg("stdio").env("MAINSPRING_DRAIN_MS", if prompt.contains("Tea") { "500" } else { "60000" });
        let [stdin, stdout, stderr] = [(); 3].map(|()| Stdio::piped());
        let mut child = child.stdin(stdin).stdout(stdout).stderr(stderr).spawn().unwrap();
        let mut line = query(prompt, "k", prompt);
        line["adapterId"] = if prompt.contains("Tea") { "script" } else { "acp" }.into();
        writeln!(child.stdin.take().unwrap(), "{line}").unwrap();
        let output = child.wait_with_output().unwrap();
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (out, err) = log("ask write a file");
    assert!(out.contains("\"terminalStatus\":\"succeeded\""), "{out}");
    assert!(!err.contains("waits for a person"), "{err}");
    let (_, err) = log("ask Tea?");
    // The question may hold the input of a tool, so it is not in the log.
    assert!(err.contains("waits for a person") && !err.contains("Tea?"), "{err}");
}

#[test]
fn fault_grants_approvals() {
    let dir = folder();
    let mut host = Host::start(dir.path());
    let shown = |verb: &str, run_id: &Value, more: &[&str]| {
        let owner = ["--owner", "desktop-local-user"];
        run(dir.path(), &[&["run", verb, run_id.as_str().unwrap()][..], &owner, more].concat())
    };
    // One prompt asks for a permission, the other does not: both have a grant, visible through the server and on the
    // command line.
    for (request, prompt) in [("asks", "ask write a file"), ("asks not", "hello")] {
        let end = run_query(&mut host, request, prompt, &json!({})).pop().unwrap();
        let run = &json_lines(&shown("show", &end["runId"], &["--json"]))[0];
        let grants = run["grantList"].as_array().unwrap();
        assert_eq!(grants.len(), 1, "{run:#}");
        let grant = &grants[0];
        assert_eq!((&grant["source"], &grant["effect"]), (&json!("legacy_default"), &json!("allow")));
        assert_eq!((&grant["runId"], &grant["capability"]), (&end["runId"], &json!("*")));
        assert!(shown("show", &end["runId"], &[]).out.contains("grant     allow * * * (legacy_default)"));
        let events = json_lines(&shown("events", &end["runId"], &["--json"]));
        let decided: Vec<&Value> =
            events.iter().filter(|event| event["type"] == "approval.resolved").collect();
        assert_eq!(decided.len(), usize::from(request == "asks"), "an event for each decision");
        for event in decided {
            assert_eq!(event["payload"]["grantId"], grant["grantId"], "which names the grant");
            assert_eq!(event["payload"]["decision"], "allowed");
        }
    }
}
