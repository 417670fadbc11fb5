//! Protocol v2 parsing, on the lines of a real process.

use mainspring::core::RunStatus;
use mainspring_client::bridge::{BridgeError, Query, Surface};
use mainspring_test_support::jsonl::is_end;

use super::{read_until, start, start_query};
use crate::jsonl::Host;
use crate::jsonl::acp::folder;

#[tokio::test]
async fn a_result_exposes_session_run_attempt_and_adapter_ids_separately() {
    let dir = folder();
    let process = start(dir.path()).await;
    let bridge = process.bridge();
    let result = start_query(&bridge, Surface::task_chat("1"), "hello").result().await.unwrap();
    assert_eq!((result.terminal_status, result.text.as_str()), (RunStatus::Succeeded, "hello\n"));
    let native = result.adapter_session_id.clone().unwrap();
    assert!(native.starts_with("native-"), "{native}");
    let client = process.client().unwrap();
    let run = client.run_get(result.run_id).await.unwrap();
    assert_eq!((run.session, run.last_attempt), (result.session_id, result.attempt_id));
    let session = client.session_get(&result.session_id.to_string()).await.unwrap();
    assert_eq!(
        (session.surface_kind.as_str(), session.external_ref),
        ("task_chat", Some(Surface::task_chat("1").external_ref))
    );
    let bindings = client.binding_list(&result.session_id.to_string()).await.unwrap();
    assert_eq!(bindings[0].native, Some(native), "the adapter's own id is in its binding and nowhere else");
}

#[tokio::test]
async fn a_cancellation_acknowledgement_parses() {
    let dir = folder();
    let process = start(dir.path()).await;
    let bridge = process.bridge();
    let mut stream = start_query(&bridge, Surface::main_chat(None), "hang");
    read_until(&mut stream, "hanging").await;
    let ack = bridge.interrupt().await.unwrap();
    // The cancellation is sent to the agent, and the agent's protocol has no acknowledgement for it.
    assert_eq!(
        (ack.accepted, ack.dispatch_attempted, ack.adapter_acknowledged, &ack.refusal),
        (true, true, false, &None)
    );
    assert_eq!(ack.ids, stream.ids());
    assert_eq!(stream.result().await.unwrap().terminal_status, RunStatus::Cancelled);
}

#[tokio::test]
async fn the_legacy_session_id_retains_native_behaviour() {
    let dir = folder();
    let process = start(dir.path()).await;
    let bridge = process.bridge();
    let query = Query { legacy_key: Some("k".into()), prompt: "hello".into(), ..Query::default() };
    let result = bridge.query(query).unwrap().result().await.unwrap();
    assert_eq!(Some(result.legacy_session_id()), result.adapter_session_id);
    process.stop().await;
    // The field names of protocol version 1.
    let mut host = Host::start(dir.path());
    host.send(&serde_json::json!({"type": "query", "id": "v1", "prompt": "old", "systemPrompt": "", "sessionKey": "k"}));
    let v1 = host.receive_until(is_end).pop().unwrap();
    assert_eq!(v1["sessionId"], result.legacy_session_id());
}

#[tokio::test]
async fn a_failure_has_a_code_and_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let process = start(dir.path()).await;
    let bridge = process.bridge();
    let failed = start_query(&bridge, Surface::main_chat(None), "fail no luck").result().await.unwrap_err();
    let BridgeError::Failed { code, message, ids } = &failed else { panic!("{failed:?}") };
    assert_eq!((code.as_str(), message.as_str()), ("script_failed", "no luck"));
    let run = process.client().unwrap().run_get(ids.run_id.unwrap()).await.unwrap();
    assert_eq!(run.state.status(), RunStatus::Failed);
    let nowhere = Query { adapter: Some("nobody".into()), ..Query::new(Surface::main_chat(None), "say x") };
    assert_eq!(bridge.query(nowhere).unwrap().result().await.unwrap_err().code(), "adapter_not_registered");
}
