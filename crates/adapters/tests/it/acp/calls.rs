//! Calls of agents through the endpoints of their processes.

use std::os::unix::net::UnixStream;
use std::path::Path;

use mainspring_core::AttemptId;
use serde_json::{Value, json};

use super::*;

/// The prompt that calls a tool through the endpoint of the agent's own process.
fn relay(name: &str, input: &Value) -> String {
    format!("relay {}", json!({"type": "tool_use", "callId": "c", "name": name, "input": input}))
}

/// The answer of a control tool to an agent.
fn answer(text: &str) -> Value {
    let line: Value = serde_json::from_str(text.trim()).unwrap_or_else(|error| panic!("{error}: {text}"));
    serde_json::from_str(line["result"].as_str().unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_an_agent_belong_to_the_run_that_its_process_executes() {
    let world = world("resume").await;
    let context = |text: String| serde_json::from_str::<Value>(text.trim()).unwrap();
    let ask = r#"relay {"type":"context","callId":"c"}"#;
    let [first, second] = [world.start("a", ask).await, {
        world.answer_to("a", "pid").await;
        world.start("a", ask).await
    }];
    for run in [first, second] {
        let described = context(world.text_of("a", world.wait_for_end(run).await.id).await);
        let attempt: AttemptId = world.attempts(run).await[0].id;
        assert_eq!(
            (&described["ownerId"], &described["runId"], &described["attemptId"]),
            (&"ada".into(), &run.to_string().into(), &attempt.to_string().into())
        );
    }
    // The variables describe the run that started the process, which serves later runs as well.
    let described = world.answer_to("a", "env MAINSPRING_CONTEXT_RUN_ID").await;
    assert_eq!(described.trim(), first.to_string());
    assert_eq!(world.answer_to("a", "env MAINSPRING_CONTEXT_OWNER_ID").await.trim(), "ada");
    assert_eq!(world.adapter().processes().0, 1);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_over_the_limit_is_refused_and_the_next_one_is_read() {
    let world = world_with("resume", |setup| setup.agent.relay.line_bytes = 4_096).await;
    // A line of this many bytes, with its end.
    let line = |bytes: usize| {
        let call = |padding: &str| {
            json!({"type": "tool_use", "callId": "c", "name": "list_agent_sessions", "input": {}, "x": padding})
                .to_string()
        };
        call(&"x".repeat(bytes - 1 - call("").len()))
    };
    let fits = answer(&world.answer_to("a", &format!("relay {}", line(4_096))).await);
    assert_eq!(fits["ok"], true, "{fits}");
    for bytes in [4_097, 200_000] {
        let refused = answer(&world.answer_to("a", &format!("relay {}", line(bytes))).await);
        assert_eq!(refused["error"]["code"], "invalid_tool_input", "{refused}");
        assert_eq!(refused["error"]["message"], "a line has at most 4096 bytes", "{refused}");
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_processes_of_an_agent_use_its_endpoint() {
    let world = world("resume").await;
    let socket = world.answer_to("a", "env OMI_BRIDGE_PIPE").await;
    let own = world.start("a", "hang").await;
    world.wait_for_text("a", "hanging").await;
    let line = json!({"type": "tool_use", "callId": "c", "name": "list_agent_sessions", "input": {}});
    // Neither another agent nor another process of the user can call through the endpoint.
    assert_eq!(world.answer_to("b", &format!("relay-at {socket} {line}")).await.trim(), "closed");
    let mut stranger = UnixStream::connect(&socket).unwrap();
    assert_eq!(std::io::Read::read(&mut stranger, &mut [0]).unwrap(), 0);
    world.cancel(own).await;
    world.wait_for_end(own).await;
    world.close().await;
    assert!(!Path::new(&socket).exists(), "the folder goes with its process");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_between_attempts_is_refused() {
    let world = world("resume").await;
    let socket = world.answer_to("a", "env OMI_BRIDGE_PIPE").await;
    // A process that the turn has left running calls after its end.
    let result = world.folder.path().join("late");
    let line = json!({"type": "tool_use", "callId": "c", "name": "list_agent_sessions", "input": {}});
    let (python, ready) = (world.folder.path().join("late.py"), world.folder.path().join("go"));
    std::fs::write(&python, LATE_CALL).unwrap();
    let late = format!("shell setsid python3 {python:?} {socket:?} '{line}' {ready:?} {result:?} &");
    world.run("a", &late.replace(';', "")).await;
    std::fs::write(&ready, "").unwrap();
    let read = async {
        loop {
            match std::fs::read_to_string(&result) {
                Ok(text) if text.ends_with('\n') => return text,
                _ => tokio::task::yield_now().await,
            }
        }
    };
    let refused = answer(&with_timeout(read).await);
    assert_eq!(
        (&refused["error"]["code"], &refused["error"]["reason"]),
        (&"stale_owner".into(), &"no_authority".into())
    );
    world.close().await;
}

/// Waits for a file, then sends a line to a socket and writes the answer to another file.
const LATE_CALL: &str = "import os, socket, sys
path, line, ready, result = sys.argv[1:]
while not os.path.exists(ready): os.sched_yield()
agent = socket.socket(socket.AF_UNIX)
agent.connect(path.strip())
agent.sendall((line + '\\n').encode())
open(result, 'w').write(agent.makefile().readline())
";

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_may_only_answer_cannot_start_acting_runs() {
    let world = world("resume").await;
    let other = world.run("other", "hi").await;
    let acting = world.start("acting", "hang").await;
    world.wait_for_text("acting", "hanging").await;
    let ask = |prompt: String| RunRequest { mode: Mode::Ask, ..request("ask", &prompt) };
    for (name, input, code) in [
        (
            "send_agent_message",
            json!({"sessionId": other.session, "prompt": "hi", "mode": "act"}),
            "policy_denied",
        ),
        ("delegate_agent", json!({"mode": "spawn", "objective": "hi", "runMode": "act"}), "policy_denied"),
        (
            "delegate_agent",
            json!({"mode": "spawn", "objective": "hi", "runMode": "act", "parentRunId": acting}),
            "not_found",
        ),
    ] {
        // A call in the name of a run that does not exist is refused too: it does not escape the limits of its own run.
        for made_up in [None, Some("run_00000000000040008000000000000000")] {
            let mut line = json!({"type": "tool_use", "callId": "c", "name": name, "input": input});
            if let Some(run) = made_up {
                line["runId"] = run.into();
            }
            let run = world.start_request(ask(format!("relay {line}"))).await;
            let refused = answer(&world.text_of("ask", world.wait_for_end(run).await.id).await);
            let expected = if made_up.is_some() { "stale_owner" } else { code };
            assert_eq!(
                (&refused["ok"], &refused["error"]["code"]),
                (&false.into(), &expected.into()),
                "{refused}"
            );
        }
    }
    world.cancel(acting).await;
    world.wait_for_end(acting).await;
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_tool_without_a_host_fails() {
    let world = world("resume").await;
    let refused = answer(&world.answer_to("a", &relay("lookup", &json!({}))).await);
    assert_eq!(refused["error"]["code"], "transport_interruption");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_works_where_its_parent_may_write_and_is_confined_like_it() {
    let world = world_with("resume", |setup| setup.agent.cwd = setup.folder.clone()).await;
    if world.setup.agent.sandbox.landlock.is_none() {
        return world.close().await;
    }
    let other = tempfile::tempdir().unwrap();
    let work = |more: Value| {
        let mut input = json!({"mode": "call", "objective": "hi", "runMode": "act"});
        input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        relay("delegate_agent", &input)
    };
    let refused = answer(&world.answer_to("a", &work(json!({"cwd": other.path()}))).await);
    assert_eq!(refused["error"]["reason"], "folder_not_allowed", "{refused}");
    let made = answer(&world.answer_to("a", &work(json!({}))).await);
    let child: RunId = made["childRun"]["runId"].as_str().unwrap().parse().unwrap();
    let attempts = world.attempts(child).await;
    let sandbox = attempts[0].sandbox.as_ref().unwrap();
    assert_eq!(sandbox.profile, SandboxProfile::Workspace);
    // Each of the two calls was decided in the session of the agent.
    let events = world.events("a").await;
    assert_eq!(event_types(&events).iter().filter(|event| **event == "approval.resolved").count(), 2);
    world.close().await;
}
