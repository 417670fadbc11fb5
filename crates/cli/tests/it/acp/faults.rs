//! Agents that hang, die, ignore, lie or are not there.

use std::process::{Command, Stdio};

use mainspring::core::ArtifactRole;
use mainspring_adapters::KeepLog;
use mainspring_kernel::kernel::ArtifactQuery;
use tokio::io::AsyncReadExt;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_agent_ends_its_turn_and_its_partial_text_is_kept() {
    let world = world("resume").await;
    let run = world.prompt("a", "one; hang").await;
    world.streams("a", "hanging").await;
    let outcome = soon(world.node().kernel().run_cancel(&world.me, run)).await.unwrap();
    assert!(outcome.accepted && outcome.dispatch_attempted && !outcome.adapter_acknowledged);
    assert_eq!(world.ended(run).await.state.status(), RunStatus::Cancelled);
    assert_eq!(world.last("a").await.text(), "one\nhanging");
    let json = serde_json::to_string(&world.events("a").await).unwrap();
    assert!(json.contains(r#""proof":"ended""#), "it ended by itself: {json}");
    // The same process goes on with the same native session.
    assert_eq!(world.say("a", "history").await, "one; hang\nhistory\n");
    assert_eq!(world.processes(), 2);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_ignores_a_cancellation_is_killed_with_all_it_started() {
    let world = world("resume").await;
    let run = world.prompt("a", "spawn; deaf").await;
    world.streams("a", "deaf").await;
    world.grows_to(4).await;
    soon(world.node().kernel().run_cancel(&world.me, run)).await.unwrap();
    assert_eq!(world.ended(run).await.state.status(), RunStatus::Cancelled);
    assert_eq!(world.processes(), 0, "cancelled means stopped");
    let json = serde_json::to_string(&world.events("a").await).unwrap();
    assert!(json.contains(r#""proof":"killed""#), "{json}");
    assert_eq!(world.say("a", "history").await, "spawn; deaf\nhistory\n");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_answers_late_was_cancelled_and_what_it_says_after_its_turn_is_nobodys() {
    let world = world_with("resume", |adapter| adapter.max_processes = Some(1)).await;
    let run = world.prompt("a", "late but here").await;
    world.streams("a", "late").await;
    soon(world.node().kernel().run_cancel(&world.me, run)).await.unwrap();
    assert_eq!(world.ended(run).await.state.status(), RunStatus::Cancelled);
    assert_eq!(world.last("a").await.text(), "late\nbut here", "what it said before its end is kept");
    // The same process, another session.
    assert_eq!(world.say("b", "history").await, "history\n");
    assert_eq!(world.last("a").await.text(), "late\nbut here");
    assert_eq!(world.processes(), 2);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_waits_for_a_permission_is_cancelled() {
    let world = world("resume").await;
    let run = world.prompt("a", "ask write").await;
    world.asked(run).await;
    soon(world.node().kernel().run_cancel(&world.me, run)).await.unwrap();
    assert_eq!(world.ended(run).await.state.status(), RunStatus::Cancelled);
    assert_eq!(world.last("a").await.text(), "\"cancelled\" null\n");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_crashes_fails_its_attempt_and_the_next_gets_a_fresh_one() {
    let world = world("resume").await;
    let run = world.play("a", "one; tool read; crash").await;
    assert_eq!((run.state.status(), run.attempts), (RunStatus::Failed, 1));
    assert_eq!(failure(&run), "transport_interruption");
    let json = serde_json::to_string(&run).unwrap();
    assert!(json.contains(r"its last output: acp_agent ready\nout of memory"), "{json}");
    assert!(world.last("a").await.text().starts_with("one\n"));
    let heard = world.say("a", "history").await;
    assert!(
        heard.starts_with("one; tool read; crash\n<interrupted>") && heard.ends_with("\nhistory\n"),
        "{heard}"
    );
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_native_session_that_is_gone_is_reconstructed_in_the_second_attempt() {
    for resumes in ["resume", "load"] {
        let mut world = world(resumes).await;
        world.say("a", "my name is Ada").await;
        let native = world.bindings("a").await[0].native.clone().unwrap();
        std::fs::remove_file(world.folder.path().join("agent").join(native)).unwrap();
        world.reopen().await;
        let run = world.play("a", "history").await;
        assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 2), "{resumes}");
        assert!(world.last("a").await.text().contains("user: my name is Ada"), "{resumes}");
        let bindings = world.bindings("a").await;
        assert_eq!((bindings[0].generation, bindings[0].reconstructed), (2, true), "{resumes}");
        world.close().await;
    }
    // The process that knew it is still there, and says that it does not any more.
    let world = world("resume").await;
    world.say("a", "my name is Ada").await;
    let native = world.bindings("a").await[0].native.clone().unwrap();
    std::fs::remove_file(world.folder.path().join("agent").join(native)).unwrap();
    let run = world.play("a", "history").await;
    assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 2));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_is_no_success_and_neither_is_an_odd_end() {
    let world = world("none").await;
    for (reason, status, code) in [
        ("max_tokens", RunStatus::Failed, "max_tokens"),
        ("refusal", RunStatus::Failed, "refusal"),
        ("vendor_reason", RunStatus::Failed, "unknown_stop_reason"),
        ("cancelled", RunStatus::Cancelled, ""),
    ] {
        let run = world.play("a", &format!("text; stop {reason}")).await;
        assert_eq!((run.state.status(), failure(&run).as_str()), (status, code), "{reason}");
        assert_eq!(world.last("a").await.text(), "text\n", "{reason}: what was said is kept");
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_not_there_or_does_not_speak_says_why() {
    type Change = fn(&mut AdapterConfig);
    let cases: [(Change, &str, &str); 4] = [
        (
            |it| it.command = Some(vec!["/no/such/agent".into()]),
            "adapter_unavailable",
            "could not be started",
        ),
        (
            |it| it.command = Some(vec!["sh".into(), "-c".into(), "echo no key >&2; exit 1".into()]),
            "adapter_unavailable",
            "no key",
        ),
        (
            |it| {
                it.command = Some(vec!["sleep".into(), "1000".into()]);
                it.start_timeout_ms = Some(100);
            },
            "timeout",
            "did not start within 100 ms",
        ),
        (|it| it.cwd = Some("/no/such/folder".into()), "invalid_request", "does not exist"),
    ];
    for (change, code, says) in cases {
        let mut world = world_with("none", change).await;
        world.config.retry.base_ms = 1;
        world.config.retry.max_ms = 1;
        world.reopen().await;
        let run = world.play("a", "hi").await;
        let json = serde_json::to_string(&run).unwrap();
        assert_eq!((run.state.status(), failure(&run).as_str()), (RunStatus::Failed, code), "{json}");
        assert!(json.contains(says), "{json}");
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_cancelled_while_it_starts_has_ended_when_its_run_has() {
    let world = world_with("none", |it| it.command = Some(vec!["sleep".into(), "1000".into()])).await;
    let run = world.prompt("a", "hi").await;
    world.grows_to(2).await;
    soon(world.node().kernel().run_cancel(&world.me, run)).await.unwrap();
    assert_eq!(world.ended(run).await.state.status(), RunStatus::Cancelled);
    assert_eq!(world.processes(), 0, "cancelled means stopped");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_processes_are_shut_down() {
    let world = world_with("resume", |adapter| adapter.idle_ms = Some(1)).await;
    world.say("a", "one").await;
    world.nothing_left().await;
    assert_eq!(world.say("a", "history").await, "one\nhistory\n");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_stops_what_runs_and_leaves_nothing() {
    let world = world("resume").await;
    world.prompt("a", "spawn; hang").await;
    world.streams("a", "hanging").await;
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_daemon_leaves_no_agent_and_the_session_goes_on_after_it() {
    let mut world = world("load").await;
    world.node.take().unwrap().close().await;
    let file = world.folder.path().join("mainspring.toml");
    let adapter = &world.config.adapters["agent"];
    let text = format!(
        "adapter = \"agent\"\nowner = \"ada\"\n[adapters.agent]\nkind = \"acp\"\ncwd = \"/\"\ncommand = {:?}\nenv = {{ {FOLDER} = {:?} }}\n",
        adapter.command.as_ref().unwrap(),
        world.folder.path().to_string_lossy(),
    );
    std::fs::write(&file, text).unwrap();
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_mainspring"))
        .args(["prompt", "--session", "a", "my name is Ada; spawn; hang", "--state-dir"])
        .arg(&world.config.state_dir)
        .arg("--config")
        .arg(&file)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut out = daemon.stdout.take().unwrap();
    let heard = tokio::task::spawn_blocking(move || {
        let (mut heard, mut byte) = (String::new(), [0]);
        while !heard.contains("hanging") && std::io::Read::read(&mut out, &mut byte).unwrap() > 0 {
            heard.push(byte[0].into());
        }
        heard
    });
    let heard = soon(heard).await.unwrap();
    assert!(heard.contains("hanging"), "{heard}");
    world.grows_to(4).await;
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    world.reopen().await;
    assert_eq!(world.processes(), 0, "nothing is said to be orphaned while it still acts");
    let events = world.events("a").await;
    assert_eq!(events.last().unwrap().body.kind(), "run.orphaned");
    let heard = world.say("a", "history").await;
    let known = "my name is Ada; spawn; hang\n<interrupted>";
    assert!(heard.starts_with(known) && heard.ends_with("\nhistory\n"), "{heard}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_opens_once_nothing_acts_that_an_earlier_one_had_started() {
    let mut world = world("none").await;
    world.node.take().unwrap().close().await;
    let mark = format!("{}#of-an-earlier-one", world.config.state_dir.display());
    let done = world.folder.path().join("done");
    let act = format!("sleep 0.5; touch {}", done.display());
    let mark = (mainspring_adapters::process::MARK_VARIABLE, mark);
    let mut left = Command::new("sh").args(["-c", &act]).env(mark.0, mark.1).spawn().unwrap();
    world.reopen().await;
    assert!(done.exists(), "it still acted when the node had opened");
    left.wait().unwrap();
    world.close().await;
}

/// What was kept of what agents wrote to their standard error, the newest first.
async fn logs(world: &World, run: RunId) -> Vec<String> {
    let kernel = world.node().kernel();
    let query = ArtifactQuery { of: Err(run), before: None, limit: None };
    let mut logs = vec![];
    for artifact in kernel.artifact_list(&world.me, query).await.unwrap() {
        assert_eq!((artifact.role, artifact.name.as_deref()), (ArtifactRole::Log, Some("stderr.log")));
        assert!(artifact.attempt.is_some());
        let (_, mut bytes) = kernel.artifact_read(&world.me, artifact.id, 0, None).await.unwrap();
        let mut text = String::new();
        bytes.read_to_string(&mut text).await.unwrap();
        logs.push(text);
    }
    logs
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_agent_wrote_to_its_standard_error_is_kept_when_its_attempt_fails_without_its_secrets() {
    let secret = |adapter: &mut AdapterConfig| {
        adapter.env.as_mut().unwrap().insert("TOKEN".into(), "hunter2-hunter2".into());
    };
    let world = world_with("resume", secret).await;
    // What went well is not kept, and does not end up with what did not.
    let well = world.play("a", "warn all is well; hi").await;
    assert_eq!(logs(&world, well.id).await, [""; 0]);
    let run = world.play("a", "warn the key is hunter2-hunter2; crash").await;
    assert_eq!(logs(&world, run.id).await, ["the key is ${TOKEN}\nout of memory\n"]);
    let json = serde_json::to_string(&run).unwrap();
    assert!(json.contains("the key is ${TOKEN}") && !json.contains("hunter2"), "{json}");
    let run = world.play("a", "warn too much; stop max_tokens").await;
    assert_eq!(logs(&world, run.id).await, ["acp_agent ready\ntoo much\n"]);
    world.close().await;
    // One that does not start says why.
    let world = world_with("none", |adapter| {
        secret(adapter);
        adapter.command = Some(vec!["sh".into(), "-c".into(), "echo bad $TOKEN >&2; exit 1".into()]);
    })
    .await;
    let run = world.prompt("a", "hi").await;
    world.happens("a", "attempt.failed").await;
    assert_eq!(logs(&world, run).await.last().unwrap(), "bad ${TOKEN}\n");
    world.close().await;
    let world = world_with("none", |adapter| adapter.keep_log = Some(KeepLog::Always)).await;
    let run = world.play("a", "warn all is well; hi").await;
    assert_eq!(logs(&world, run.id).await, ["acp_agent ready\nall is well\n"]);
    world.close().await;
}
