//! The bridge over the pipes of a scripted process. The real program is tested in its own crate.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mainspring_client::bridge::{
    AgentBridge, BridgeOptions, Launch, Phase, Query, QueryEvent, QueryStream, Restart, RuntimeProcess,
    Surface,
};
use mainspring_core::RunStatus;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Records each line, answers a query with the file `replies`, and dies after the lines of the file `poison`, if
/// there is one.
const PROGRAM: &str = r#"#!/bin/sh
echo '{"type":"init","sessionId":""}'
while read -r line; do
    printf '%s\n' "$line" >> "$3/lines"
    case "$line" in
    *'"type":"query"'*)
        if [ -e "$3/poison" ]; then
            cat "$3/poison"
            rm "$3/poison"
            echo 'out of order' >&2
            exit 7
        fi
        cat "$3/replies"
        ;;
    *'"type":"authenticate"'*) echo '{"type":"auth_success"}' ;;
    *'"type":"stop"'*) exit 0 ;;
    esac
done
"#;

struct World {
    dir: TempDir,
    bridge: AgentBridge,
}

impl World {
    /// Starts a process that answers each query with these lines.
    async fn start(replies: &[Value]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let launch = launch(dir.path(), replies);
        let process = RuntimeProcess::start(launch).await.unwrap();
        let options = BridgeOptions { client_id: Some("c".into()), ..BridgeOptions::default() };
        Self { bridge: process.bridge_with(options), dir }
    }

    fn query(&self) -> QueryStream {
        let query = Query { request_id: Some("r".into()), ..Query::new(Surface::main_chat(None), "hello") };
        self.bridge.query(query).unwrap()
    }

    /// The lines that the process has received.
    fn lines(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.dir.path().join("lines")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn launch(dir: &Path, replies: &[Value]) -> Launch {
    let program: PathBuf = dir.join("program");
    std::fs::write(&program, PROGRAM).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let text: String = replies.iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(dir.join("replies"), text).unwrap();
    let restart = Restart { initial_delay: Duration::from_millis(1), ..Restart::default() };
    Launch { restart, ..Launch::new(program, dir) }
}

/// Builds a line about the query `r` of the client `c`.
fn reply(kind: &str, fields: &Value) -> Value {
    let mut line = json!({
        "type": kind, "protocolVersion": 2, "requestId": "r", "clientId": "c",
        "sessionId": "ses_00000000000040008000000000000001", "runId": "run_00000000000040008000000000000002",
        "attemptId": "att_00000000000040008000000000000003",
    });
    line.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    line
}

fn result(text: &str) -> Value {
    let fields = json!({
        "text": text, "terminalStatus": "succeeded", "inputTokens": 3, "outputTokens": 2, "cacheReadTokens": 0,
        "cacheWriteTokens": 0, "costUsd": 0.5, "adapterSessionId": "native-1",
    });
    reply("result", &fields)
}

#[tokio::test]
async fn the_lines_of_a_query_are_its_events_and_its_result() {
    let delta = |text: &str| reply("text_delta", &json!({"text": text}));
    // A line about an unknown query belongs to no handle.
    let mut other = delta("not mine");
    other["requestId"] = "other".into();
    let world = World::start(&[delta("hel"), other, delta("lo"), result("hello")]).await;
    let mut stream = world.query();
    let mut text = String::new();
    while let Some(event) = stream.next().await {
        text.push_str(event.text());
    }
    let ids = stream.ids();
    let result = stream.result().await.unwrap();
    assert_eq!(
        (text.as_str(), result.text.as_str(), result.terminal_status),
        ("hello", "hello", RunStatus::Succeeded)
    );
    assert_eq!((ids.session_id, ids.run_id), (Some(result.session_id), Some(result.run_id)));
    assert_eq!((result.legacy_session_id().as_str(), result.usage.input_tokens), ("native-1", 3));
    let sent = &world.lines()[0];
    assert_eq!((&sent["prompt"], &sent["surfaceKind"]), (&json!("hello"), &json!("main_chat")), "{sent}");
}

#[tokio::test]
async fn an_error_line_fails_the_query_with_its_reason_and_ids() {
    let fields = json!({"code": "adapter_execution_failed", "reason": "script_failed", "message": "no luck"});
    let world = World::start(&[reply("error", &fields)]).await;
    let error = world.query().result().await.unwrap_err();
    assert_eq!((error.code(), error.to_string().as_str()), ("script_failed", "no luck"));
    let mut incomplete = result("");
    incomplete.as_object_mut().unwrap().remove("runId");
    let world = World::start(&[incomplete]).await;
    assert_eq!(world.query().result().await.unwrap_err().code(), "protocol");
}

#[tokio::test]
async fn a_handle_has_one_query_at_a_time() {
    let world = World::start(&[]).await;
    assert_eq!(world.bridge.interrupt().await.unwrap_err().code(), "no_request");
    let _stream = world.query();
    let second = world.bridge.query(Query::new(Surface::main_chat(None), "again")).err().unwrap();
    assert_eq!(second.code(), "request_active");
    assert_eq!(world.bridge.active().unwrap().0, "r");
}

#[tokio::test]
async fn a_query_is_sent_again_to_the_next_process() {
    let world = World::start(&[result("hello")]).await;
    let process = world.bridge.process();
    let before = reply("text_delta", &json!({"text": "hel"}));
    std::fs::write(world.dir.path().join("poison"), format!("{before}\n")).unwrap();
    let first = process.health().borrow().pid;
    let mut stream = world.query();
    assert_eq!(stream.next().await.unwrap().text(), "hel");
    assert!(matches!(stream.next().await, Some(QueryEvent::Restarted)));
    assert_eq!(stream.result().await.unwrap().text, "hello");
    assert_ne!(process.health().borrow().pid, first);
    assert_eq!(process.health().borrow().restarts, 1);
    let lines = world.lines();
    assert_eq!((lines.len(), &lines[0]), (2, &lines[1]), "the same request, so it is executed once");
}

#[tokio::test]
async fn a_process_that_never_becomes_ready_fails_with_its_last_line_of_stderr() {
    let dir = tempfile::tempdir().unwrap();
    let mut launch = launch(dir.path(), &[]);
    std::fs::write(&launch.program, "#!/bin/sh\necho 'no configuration' >&2\nexit 3\n").unwrap();
    launch.restart.max_failures = 2;
    let error = RuntimeProcess::start(launch).await.err().unwrap();
    assert_eq!(error.code(), "process_lost");
    assert!(error.to_string().contains("no configuration"), "{error}");
}

#[tokio::test]
async fn a_process_is_shared_by_its_state_directory_and_stops_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    let launch = launch(dir.path(), &[]);
    let process = RuntimeProcess::start(launch.clone()).await.unwrap();
    let same = RuntimeProcess::start(launch.clone()).await.unwrap();
    assert_eq!(same.health().borrow().pid, process.health().borrow().pid);
    let other = Launch { owner: Some("ben".into()), ..launch };
    assert_eq!(RuntimeProcess::start(other).await.err().unwrap().code(), "process_conflict");
    process.stop().await;
    assert_eq!(process.health().borrow().phase, Phase::Stopped);
    let late = same.bridge().query(Query::new(Surface::main_chat(None), "late"));
    let code = match late {
        Ok(stream) => stream.result().await.unwrap_err().code().to_owned(),
        Err(error) => error.code().to_owned(),
    };
    assert_eq!(code, "process_stopped");
}

#[tokio::test]
async fn a_result_that_lacks_fields_fails_its_query() {
    let world = World::start(&[reply("result", &json!({"text": "all"}))]).await;
    let error = world.query().result().await.unwrap_err();
    assert_eq!(error.code(), "protocol", "{error}");
    assert!(error.to_string().contains("no line of the protocol"), "{error}");
}

#[tokio::test]
async fn a_query_reports_that_it_is_blocked_and_that_it_continues() {
    let stopped =
        json!({"available": false, "code": "runtime_not_ready", "reason": "not_responding", "message": "no"});
    let goes_on = json!({"available": true, "message": "yes"});
    let lines = [reply("status", &stopped), reply("status", &goes_on), result("all")];
    let world = World::start(&lines).await;
    let mut query = world.query();
    let mut told = vec![];
    while let Some(event) = query.next().await {
        if let QueryEvent::Status { available, code, .. } = event {
            told.push((available, code));
        }
    }
    assert_eq!(told, [(false, Some("not_responding".to_owned())), (true, None)]);
    assert_eq!(query.result().await.unwrap().text, "all");
}

#[tokio::test]
async fn a_login_starts_a_process_again_that_was_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let mut launch = launch(dir.path(), &[]);
    launch.restart.max_failures = 1;
    std::fs::write(dir.path().join("poison"), "").unwrap();
    let process = RuntimeProcess::start(launch).await.unwrap();
    let bridge = process.bridge();
    let query = bridge.query(Query::new(Surface::main_chat(None), "hello")).unwrap();
    assert_eq!(query.result().await.unwrap_err().code(), "process_lost");
    assert_eq!(process.health().borrow().phase, Phase::Failed);
    let login = tokio::time::timeout(Duration::from_secs(30), bridge.authenticate("oauth"));
    login.await.expect("the login has no answer").unwrap();
    assert_eq!(process.health().borrow().phase, Phase::Ready);
}
