//! Migration of legacy task chats: the native session ids that a host remembers become bindings, once and in the right
//! session.

use std::path::Path;

use mainspring::core::{BindingStatus, Fidelity};
use mainspring_client::bridge::{Query, RuntimeProcess, Surface};
use mainspring_client::{BindingAdoption, SessionAdopted, SessionTarget};

use super::{start, start_query};
use crate::cli::{json_lines, run};
use crate::jsonl::Host;
use crate::jsonl::acp::folder;

/// Creates earlier native sessions with these ids in the agent of `dir`.
fn known(dir: &Path, natives: &[&str]) {
    natives
        .iter()
        .for_each(|native| std::fs::write(dir.join("agent").join(native), "said before\n").unwrap());
}

/// Adopts the host's latest native session for task 42.
async fn adopt(process: &RuntimeProcess, dir: &Path, native: &str) -> SessionAdopted {
    let adoption = BindingAdoption {
        adapter: "claude".into(),
        adapter_native_session_id: native.into(),
        cwd: Some(dir.to_str().unwrap().to_owned()),
        ..BindingAdoption::default()
    };
    let target = SessionTarget::from(&Surface::task_chat("42"));
    process.client().unwrap().session_adopt(&target, &adoption).await.unwrap()
}

#[tokio::test]
async fn the_latest_acp_session_id_becomes_an_acp_binding() {
    let dir = folder();
    known(dir.path(), &["native-older", "native-latest"]);
    let process = start(dir.path()).await;
    let adopted = adopt(&process, dir.path(), "native-latest").await;
    let binding = &adopted.binding;
    assert_eq!((binding.adapter.as_str(), binding.generation), ("claude", 1));
    assert_eq!((binding.fidelity, binding.status), (Fidelity::Native, BindingStatus::Active));
    assert_eq!((adopted.adopted, binding.native.as_deref()), (true, Some("native-latest")));
    // The first query continues in the adopted session; older ids in the query are ignored.
    let query = Query {
        legacy_adapter_session_id: Some("native-older".into()),
        ..Query::new(Surface::task_chat("42"), "history")
    };
    let result = process.bridge().query(query).unwrap().result().await.unwrap();
    assert_eq!(result.adapter_session_id.as_deref(), Some("native-latest"));
    assert!(result.text.contains("said before"), "{}", result.text);
    let bindings = process.client().unwrap().binding_list(&result.session_id.to_string()).await.unwrap();
    assert_eq!(bindings.len(), 1, "older ids are not imported");
}

#[tokio::test]
async fn the_canonical_session_is_resolved_by_task_id() {
    let dir = folder();
    known(dir.path(), &["native-1"]);
    let process = start(dir.path()).await;
    let first = adopt(&process, dir.path(), "native-1").await;
    let again = adopt(&process, dir.path(), "native-1").await;
    assert_eq!((again.adopted, again.session.id), (false, first.session.id));
    assert_eq!(again.binding.id, first.binding.id);
    let result = start_query(&process.bridge(), Surface::task_chat("42"), "hello").result().await.unwrap();
    assert_eq!(result.session_id, first.session.id);
    let other = start_query(&process.bridge(), Surface::task_chat("43"), "hello").result().await.unwrap();
    assert_ne!((other.session_id, other.adapter_session_id), (first.session.id, result.adapter_session_id));
    assert_eq!(first.session.surface_kind, "task_chat");
}

#[tokio::test]
async fn a_canonical_session_id_is_never_written_into_the_adapters_id_field() {
    let dir = folder();
    let process = start(dir.path()).await;
    let bridge = process.bridge();
    let main = start_query(&bridge, Surface::main_chat(None), "hello").result().await.unwrap();
    // A session id in the field for a native id is ignored: the agent opens a new native session.
    let mixed = Query {
        legacy_adapter_session_id: Some(main.session_id.to_string()),
        ..Query::new(Surface::task_chat("42"), "hello")
    };
    let task = bridge.query(mixed).unwrap().result().await.unwrap();
    for result in [&main, &task] {
        let native = result.adapter_session_id.as_deref().unwrap();
        assert!(native.starts_with("native-"), "{native}");
        let bindings = process.client().unwrap().binding_list(&result.session_id.to_string()).await.unwrap();
        assert_eq!(
            bindings.iter().map(|binding| binding.native.as_deref()).collect::<Vec<_>>(),
            [Some(native)]
        );
    }
    let adoption = BindingAdoption {
        adapter: "claude".into(),
        adapter_native_session_id: main.session_id.to_string(),
        ..BindingAdoption::default()
    };
    let target = SessionTarget::from(&Surface::task_chat("new"));
    let refused = process.client().unwrap().session_adopt(&target, &adoption).await.unwrap_err();
    assert_eq!(refused.code(), "invalid_request", "{refused}");
}

#[tokio::test]
async fn a_stale_acp_resume_retains_the_same_session() {
    let dir = folder();
    let process = start(dir.path()).await;
    let adopted = adopt(&process, dir.path(), "native-forgotten").await;
    let result = start_query(&process.bridge(), Surface::task_chat("42"), "hello").result().await.unwrap();
    assert_eq!((result.session_id, result.text.as_str()), (adopted.session.id, "hello\n"));
    let client = process.client().unwrap();
    let attempts = client.run_attempts(result.run_id).await.unwrap().items;
    assert_eq!(
        (attempts.len(), Some(attempts[1].id)),
        (2, result.attempt_id),
        "a failed resume, then a new session"
    );
    let bindings = client.binding_list(&result.session_id.to_string()).await.unwrap();
    let shown: Vec<_> = bindings.iter().map(|binding| (binding.generation, binding.status)).collect();
    assert_eq!(shown, [(2, BindingStatus::Active), (1, BindingStatus::Stale)]);
    assert_eq!(bindings[0].native, result.adapter_session_id);
}

#[test]
fn a_hosts_first_query_continues_in_a_session_adopted_by_a_command() {
    let dir = folder();
    known(dir.path(), &["native-1"]);
    let adopt = ["session", "adopt", "native-1", "--adapter", "claude", "--task", "42"];
    let output = run(dir.path(), &[&adopt[..], &["--owner", "desktop-local-user"]].concat());
    assert_eq!(output.code, 0, "{}", output.err);
    let mut host = Host::start(dir.path());
    host.send(&serde_json::json!({
        "type": "query", "protocolVersion": 2, "requestId": "r", "clientId": "c", "surfaceKind": "task_chat",
        "externalRefKind": "task", "externalRefId": "42", "prompt": "history", "systemPrompt": "",
    }));
    let end = host.receive_end("r");
    assert_eq!(end["adapterSessionId"], "native-1", "{end}");
    assert!(end["text"].as_str().unwrap().contains("said before"), "{end}");
}

#[test]
fn adopting_and_listing_bindings_have_commands() {
    let dir = folder();
    known(dir.path(), &["native-1"]);
    let adopt = ["session", "adopt", "native-1", "--adapter", "claude", "--task", "42"];
    let output = run(dir.path(), &adopt);
    assert_eq!(output.code, 0, "{}", output.err);
    assert!(
        output.out.starts_with("ses_")
            && output.out.ends_with(" bound to native-1 of claude, generation 1\n")
    );
    let again = run(dir.path(), &adopt);
    assert!(again.out.contains(" was already bound to native-1"), "{}", again.out);
    let session = output.out.split(' ').next().unwrap();
    let listed = run(dir.path(), &["binding", "list", session]);
    assert!(listed.out.contains("native-1") && listed.out.contains("active"), "{}", listed.out);
    let invalid = run(dir.path(), &["binding", "invalidate", session, "claude"]);
    assert_eq!((invalid.code, invalid.out.as_str()), (0, "claude invalid\n"), "{}", invalid.err);
    let answer = run(dir.path(), &["prompt", "--session", session, "hello"]);
    assert_eq!(answer.code, 0, "{}", answer.err);
    let page = run(dir.path(), &["binding", "list", session, "--limit", "1"]);
    assert!(page.err.contains("--after claude.2"), "{}", page.err);
    let rest = json_lines(&run(dir.path(), &["binding", "list", session, "--after", "claude.2", "--json"]));
    assert_eq!((rest.len(), &rest[0]["adapterNativeSessionId"]), (1, &"native-1".into()));
    let nobody = run(dir.path(), &["session", "adopt", "n", "--adapter", "claude"]);
    assert_eq!(nobody.code, 2, "a session selector is required: {}", nobody.err);
}
