//! Agent runtime multiplexing.

use std::collections::HashSet;

use mainspring::core::RunStatus;
use mainspring_client::bridge::{
    BridgeError, Launch, Notice, Phase, Query, QueryEvent, RuntimeProcess, Surface, Tools,
};
use serde_json::{Value, json};

use super::{launch, read_rest, read_until, start, start_query};
use crate::jsonl::acp::folder;

/// The prompt of an agent that calls one of the host's tools.
fn call(name: &str, input: &Value) -> String {
    format!("relay {}", json!({"type": "tool_use", "callId": "1", "name": name, "input": input}))
}

#[tokio::test]
async fn two_agent_bridge_handles_share_one_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (start(dir.path()).await, start(dir.path()).await);
    let (one, other) = (first.bridge(), second.bridge());
    assert_ne!(one.client_id(), other.client_id());
    assert!(first.health().borrow().pid.is_some());
    assert_eq!(first.health().borrow().pid, second.health().borrow().pid, "one process");
    // Both queries run concurrently.
    let mut a = start_query(&one, Surface::main_chat(None), "say one; hang");
    let mut b = start_query(&other, Surface::task_chat("7"), "say other; hang");
    read_until(&mut a, "one\n").await;
    read_until(&mut b, "other\n").await;
    // A different launch would need a second daemon, and a state directory has only one.
    let otherwise = Launch { args: vec!["--model".into(), "x".into()], ..launch(dir.path()) };
    let refused = RuntimeProcess::start(otherwise).await.err().unwrap();
    assert_eq!(refused.code(), "process_conflict", "{refused}");
    // Dropping one handle does not end the shared process.
    drop((a, one, first));
    other.interrupt().await.unwrap();
    assert_eq!(b.result().await.unwrap().text, "other\n");
    let health = second.health();
    second.stop().await;
    assert_eq!((health.borrow().phase, health.borrow().pid), (Phase::Stopped, None));
    let stopped = other.query(Query::new(Surface::main_chat(None), "say late")).err().unwrap();
    assert_eq!(stopped, BridgeError::Stopped);
}

#[tokio::test]
async fn events_are_routed_by_request_id() {
    let dir = tempfile::tempdir().unwrap();
    let process = start(dir.path()).await;
    // Main chat, task chat and two pills concurrently, each with its own prompt, three times.
    let surfaces = [
        Surface::main_chat(None),
        Surface::task_chat("task-1"),
        Surface::floating_pill("pill-1"),
        Surface::floating_pill("pill-2"),
    ];
    let bridges: Vec<_> = surfaces.iter().map(|_| process.bridge()).collect();
    let mut sessions = HashSet::new();
    for round in 0..3 {
        let mut streams = vec![];
        for (no, (bridge, surface)) in bridges.iter().zip(&surfaces).enumerate() {
            let script = format!("stream 200 w{round}x{no}; tool add {{\"a\":{no},\"b\":{round}}}");
            streams.push(start_query(bridge, surface.clone(), &script));
        }
        for (no, mut stream) in streams.into_iter().enumerate() {
            let (text, events) = read_rest(&mut stream).await;
            assert_eq!(text, format!("w{round}x{no} ").repeat(200));
            let answers: Vec<&str> = events
                .iter()
                .filter_map(|event| match event {
                    QueryEvent::ToolResultDisplay { output, .. } => Some(output.as_str()),
                    _ => None,
                })
                .collect();
            assert_eq!(answers, [(no + round).to_string()], "{events:?}");
            let ids = stream.ids();
            let result = stream.result().await.unwrap();
            assert_eq!((Some(result.run_id), result.attempt_id), (ids.run_id, ids.attempt_id));
            assert_eq!(result.text, text);
            sessions.insert(result.session_id);
        }
    }
    assert_eq!(sessions.len(), 4, "each surface has its session, the same each time");
}

#[tokio::test]
async fn interrupting_one_request_does_not_interrupt_another() {
    let dir = tempfile::tempdir().unwrap();
    let process = start(dir.path()).await;
    let (one, other) = (process.bridge(), process.bridge());
    assert_eq!(one.interrupt().await.unwrap_err(), BridgeError::Idle);
    let mut stopped = start_query(&one, Surface::main_chat(None), "say half; hang");
    let mut goes_on = start_query(&other, Surface::task_chat("1"), "say here; sleep 200ms; say and there");
    read_until(&mut stopped, "half").await;
    read_until(&mut goes_on, "here").await;
    // A handle runs one query at a time.
    let busy = one.query(Query::new(Surface::task_chat("2"), "say more")).err().unwrap();
    assert_eq!(busy.code(), "request_active", "{busy}");
    let ack = one.interrupt().await.unwrap();
    assert!(ack.accepted && ack.dispatch_attempted, "{ack:?}");
    assert_eq!(ack.ids.run_id, stopped.ids().run_id);
    let cancelled = stopped.result().await.unwrap();
    assert_eq!((cancelled.terminal_status, cancelled.text.as_str()), (RunStatus::Cancelled, "half\n"));
    let whole = goes_on.result().await.unwrap();
    assert_eq!((whole.terminal_status, whole.text.as_str()), (RunStatus::Succeeded, "here\nand there\n"));
    // The handle is free again.
    assert_eq!(
        start_query(&one, Surface::main_chat(None), "say again").result().await.unwrap().text,
        "again\n"
    );
}

#[tokio::test]
async fn a_slow_handle_delays_no_other_and_gets_the_complete_result() {
    let dir = tempfile::tempdir().unwrap();
    let process = start(dir.path()).await;
    let (slow, quick) = (process.bridge(), process.bridge());
    let word = "x".repeat(999);
    let mut unread = start_query(&slow, Surface::main_chat(None), &format!("stream 4000 {word}"));
    let read = start_query(&quick, Surface::task_chat("1"), &format!("stream 1000 {word}"));
    assert_eq!(read.result().await.unwrap().text.len(), 1_000_000);
    // Wait for the end of the query without reading its stream.
    while slow.active().is_some() {
        crate::pace::pause().await;
    }
    let (mut pieces, mut missed) = (vec![], 0);
    while let Some(event) = unread.next().await {
        match event {
            QueryEvent::TextDelta(text) => pieces.push(text.len()),
            QueryEvent::Missed { bytes, .. } => missed += bytes,
            other => panic!("{other:?}"),
        }
    }
    // A daemon that lags sends large deltas, and the latest delta is kept even if it is large.
    let streamed: usize = pieces.iter().sum();
    assert!(streamed <= 1 << 20 || pieces.len() == 1, "{pieces:?}");
    assert_eq!(streamed + missed, 4_000_000);
    assert_eq!(unread.result().await.unwrap().text.len(), 4_000_000);
}

#[tokio::test]
async fn login_and_invalidation_results_reach_the_handle_that_sent_them() {
    let dir = folder();
    let process = start(dir.path()).await;
    let bridge = process.bridge();
    bridge.refresh_token("secret");
    let refused = bridge.authenticate("browser").await.unwrap_err();
    assert_eq!(refused.code(), "login_failed", "{refused}");
    bridge.authenticate("token").await.unwrap();
    let query =
        |prompt: &str| Query { legacy_key: Some("k".into()), prompt: prompt.into(), ..Query::default() };
    let first = bridge.query(query("hello")).unwrap().result().await.unwrap();
    bridge.invalidate_session("k");
    let mut second = bridge.query(query("hang")).unwrap();
    read_until(&mut second, "hanging").await;
    let ids = second.ids();
    assert_eq!(ids.session_id, Some(first.session_id), "the session stays");
    assert_ne!(ids.adapter_session_id, first.adapter_session_id, "the agent's own does not");
    // A busy session cannot be invalidated, and the caller is notified.
    let mut notices = process.notices();
    let request = bridge.invalidate_session("k");
    let refused = notices.recv().await.unwrap();
    let Notice::Refused { request_id, client_id, code, .. } = refused else { panic!("{refused:?}") };
    assert_eq!((request_id.as_str(), client_id.as_str()), (request.as_str(), bridge.client_id()));
    assert_eq!(code, "session_busy");
    bridge.interrupt().await.unwrap();
    assert_eq!(
        second.result().await.unwrap().terminal_status,
        RunStatus::Cancelled,
        "the refusal was not its end"
    );
}

#[tokio::test]
async fn a_host_tool_call_goes_to_the_handle_of_its_query() {
    let dir = folder();
    let process = start(dir.path()).await;
    let (one, other) = (process.bridge(), process.bridge());
    let mut hanging = start_query(&other, Surface::task_chat("1"), "say here;hang");
    read_until(&mut hanging, "here").await;
    // Answered by the caller's function.
    let tools = Tools::new(|call| async move {
        let answer = json!({"is": call.input["of"], "by": call.name});
        call.answer(answer);
    });
    let prompt = call("colour", &json!({"of": "sky"}));
    let query = Query { tools: Some(tools), ..Query::new(Surface::main_chat(None), prompt) };
    let text = one.query(query).unwrap().result().await.unwrap().text;
    let result: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(result["result"], json!({"is": "sky", "by": "colour"}).to_string());
    // Answered by the reader of the event.
    let third = process.bridge();
    let mut asking = start_query(&third, Surface::task_chat("2"), &call("name", &json!({})));
    loop {
        match asking.next().await {
            Some(QueryEvent::ToolCall(call)) => break call.answer("ada"),
            Some(_) => {}
            None => panic!("the query has ended without its call"),
        }
    }
    assert!(asking.result().await.unwrap().text.contains(r#""result":"ada""#));
    other.interrupt().await.unwrap();
    assert_eq!(hanging.result().await.unwrap().terminal_status, RunStatus::Cancelled);
}
