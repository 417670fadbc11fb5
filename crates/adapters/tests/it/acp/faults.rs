//! Agents that hang, crash, ignore a cancellation, or do not start.

use mainspring_adapters::KeepLog;
use mainspring_core::{ArtifactRole, Run, RunChange};
use mainspring_kernel::kernel::{ArtifactQuery, ArtifactsOf, NewArtifact};
use tokio::io::AsyncReadExt;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_agent_ends_its_turn_and_its_partial_text_is_kept() {
    let world = world("resume").await;
    let run = world.start("a", "one; hang").await;
    world.wait_for_text("a", "hanging").await;
    let outcome = world.cancel(run).await;
    assert!(outcome.accepted && outcome.dispatch_attempted && !outcome.adapter_acknowledged);
    assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Cancelled);
    assert_eq!(world.last_message("a").await.text(), "one\nhanging");
    let json = serde_json::to_string(&world.events("a").await).unwrap();
    assert!(json.contains(r#""proof":"ended""#), "it ended by itself: {json}");
    // The same process continues the same native session.
    let answer = world.answer_to("a", "history").await;
    assert!(answer.starts_with("one; hang\n<interrupted> | user: one; hang | "), "{answer}");
    assert_eq!(world.processes(), 2);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_ignores_a_cancellation_is_killed_with_its_process_tree() {
    let world = world("resume").await;
    let run = world.start("a", "spawn; deaf").await;
    world.wait_for_text("a", "deaf").await;
    world.wait_for_processes(4).await;
    world.cancel(run).await;
    assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Cancelled);
    assert_eq!(world.processes(), 0, "cancelled means stopped");
    let json = serde_json::to_string(&world.events("a").await).unwrap();
    assert!(json.contains(r#""proof":"killed""#), "{json}");
    let answer = world.answer_to("a", "history").await;
    assert!(answer.starts_with("spawn; deaf\n<interrupted> | user: spawn; deaf | "), "{answer}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn text_before_the_late_end_of_a_cancelled_turn_is_kept_and_later_text_dropped() {
    let world = world_with("resume", |setup| setup.agent.max_processes = 1).await;
    let run = world.start("a", "late but here").await;
    world.wait_for_text("a", "late").await;
    world.cancel(run).await;
    assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Cancelled);
    assert_eq!(world.last_message("a").await.text(), "late\nbut here", "text before the end is kept");
    // The same process, another session.
    assert_eq!(world.answer_to("b", "history").await, "history\n");
    assert_eq!(world.last_message("a").await.text(), "late\nbut here");
    assert_eq!(world.processes(), 2);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_waits_for_a_permission_can_be_cancelled() {
    let world = world("resume").await;
    let run = world.start("a", "ask write").await;
    world.wait_for_question(run).await;
    world.cancel(run).await;
    assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Cancelled);
    assert_eq!(world.last_message("a").await.text(), "\"cancelled\" null\n");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_fails_the_attempt_and_the_next_run_gets_a_new_process() {
    let world = world("resume").await;
    let run = world.run("a", "one; tool read; crash").await;
    assert_eq!((run.state.status(), run.attempts), (RunStatus::Failed, 1));
    assert_eq!(failure_code(&run), "transport_interruption");
    let json = serde_json::to_string(&run).unwrap();
    assert!(json.contains(r"its last output: acp_agent ready\nout of memory"), "{json}");
    assert_eq!(world.text_of("a", run.id).await, "one\n");
    let answer = world.answer_to("a", "history").await;
    assert!(
        answer.contains(r#"assistant called the tool read {"path":"/x"} | the tool read returned: done it"#)
    );
    assert!(
        answer.starts_with("one; tool read; crash\n<interrupted>") && answer.ends_with("\nhistory\n"),
        "{answer}"
    );
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retried_run_gets_the_checkpoint_of_the_attempt_before() {
    let world = world("resume").await;
    let run = world.run("a", "history; crash").await;
    for (name, content) in [("old", &b"step 1"[..]), ("text", b"step 2"), ("bytes", &[0xff, 0xfe])] {
        let new = NewArtifact {
            role: ArtifactRole::Checkpoint,
            name: Some(name.into()),
            run: Some(run.id),
            ..NewArtifact::default()
        };
        let session = session_ref("a").unwrap();
        let put = world.kernel().artifact_put(&world.me, &session, new, None, &mut { content }).await;
        let checkpoint = put.unwrap().0.id;
        let attempts = world.kernel().run_get(&world.me, run.id).await.unwrap().attempts;
        world.kernel().run_retry(&world.me, run.id, RunChange::default()).await.unwrap();
        let is_over = |run: &Run| run.attempts > attempts && run.state.status() == RunStatus::Failed;
        world.wait_until(run.id, is_over).await;
        let seen = world.last_message("a").await.text();
        let content = match name {
            "bytes" => "(its content is not text, too long or unreadable)".to_owned(),
            _ => format!(" | {} | ", String::from_utf8_lossy(content)),
        };
        let begin = format!("<checkpoint artifact=\"{checkpoint}\" name=\"{name}\">{content}</checkpoint>");
        assert!(seen.contains(&begin), "{seen}");
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_native_session_is_reconstructed_in_the_second_attempt() {
    for resumes in ["resume", "load"] {
        let mut world = world(resumes).await;
        world.answer_to("a", "my name is Ada").await;
        let native = world.bindings("a").await[0].native.clone().unwrap();
        std::fs::remove_file(world.folder.path().join("agent").join(native)).unwrap();
        world.restart().await;
        let run = world.run("a", "history").await;
        assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 2), "{resumes}");
        assert!(world.last_message("a").await.text().contains("user: my name is Ada"), "{resumes}");
        let bindings = world.bindings("a").await;
        assert_eq!((bindings[0].generation, bindings[0].reconstructed), (2, true), "{resumes}");
        world.close().await;
    }
    // The process that had the session is still there, but has forgotten it.
    let world = world("resume").await;
    world.answer_to("a", "my name is Ada").await;
    let native = world.bindings("a").await[0].native.clone().unwrap();
    std::fs::remove_file(world.folder.path().join("agent").join(native)).unwrap();
    let run = world.run("a", "history").await;
    assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 2));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_line_is_reported() {
    let world = world("resume").await;
    for (prompt, fault) in [
        ("hm; garble; hang", "the agent sent a line that is not UTF-8"),
        ("hm; stretch; hang", "the agent sent a line of more than 64 MB"),
    ] {
        let run = world.run("a", prompt).await;
        assert_eq!(failure_code(&run), "transport_interruption", "{run:?}");
        let json = serde_json::to_string(&run).unwrap();
        assert!(json.contains(fault), "{json}");
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_regular_end_is_a_success() {
    let world = world("none").await;
    for (reason, status, code) in [
        ("max_tokens", RunStatus::Failed, "max_tokens"),
        ("refusal", RunStatus::Failed, "refusal"),
        ("vendor_reason", RunStatus::Failed, "unknown_stop_reason"),
        ("cancelled", RunStatus::Cancelled, ""),
    ] {
        let run = world.run("a", &format!("text; stop {reason}")).await;
        assert_eq!((run.state.status(), failure_code(&run).as_str()), (status, code), "{reason}");
        assert_eq!(world.last_message("a").await.text(), "text\n", "{reason}: the text is kept");
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_does_not_exist_is_refused_with_the_prompt() {
    let world = world("none").await;
    let options = mainspring_core::RunOptions { cwd: Some("/no/such/folder".into()), ..Default::default() };
    let refused = world.kernel().run_create(&world.me, RunRequest { options, ..request("a", "hi") }).await;
    let error = refused.unwrap_err();
    assert_eq!(error.code(), "invalid_request");
    assert!(error.to_string().contains("/no/such/folder does not exist"), "{error}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_start_names_the_reason() {
    type Change = fn(&mut Setup);
    let cases: [(Change, &str, &str); 3] = [
        (
            |setup| setup.agent.command = vec!["/no/such/agent".into()],
            "adapter_unavailable",
            r#"the command \"/no/such/agent\" was not found"#,
        ),
        (|setup| setup.run_shell("echo no key >&2; exit 1"), "adapter_unavailable", "no key"),
        (|setup| setup.agent.cwd = "/no/such/folder".into(), "invalid_request", "does not exist"),
    ];
    for (change, code, says) in cases {
        let world = world_with("none", change).await;
        let run = world.run("a", "hi").await;
        let json = serde_json::to_string(&run).unwrap();
        assert_eq!((run.state.status(), failure_code(&run).as_str()), (RunStatus::Failed, code), "{json}");
        assert!(json.contains(says), "{json}");
        let is_missing = says.contains("was not found");
        let listed = world.kernel().adapters().remove(0).unavailable;
        let expected = "there is no program \"/no/such/agent\"; install it, or change the adapter's command";
        assert_eq!(listed.as_deref(), is_missing.then_some(expected));
        assert!(!is_missing || run.attempts == 1, "a missing command is not tried again: {json}");
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_cancelled_while_starting_ends_before_its_run() {
    let world = world_with("none", |setup| setup.run_shell("exec sleep 1000")).await;
    let run = world.start("a", "hi").await;
    world.wait_for_processes(2).await;
    world.cancel(run).await;
    assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Cancelled);
    assert_eq!(world.processes(), 0, "cancelled means stopped");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_processes_are_stopped() {
    let world = world_with("resume", |setup| setup.agent.idle = Duration::from_millis(1)).await;
    world.answer_to("a", "one").await;
    world.wait_for_no_process().await;
    assert_eq!(world.answer_to("a", "history").await, "one\nhistory\n");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_stops_running_agents_and_leaves_no_process() {
    let world = world("resume").await;
    world.start("a", "spawn; hang").await;
    world.wait_for_text("a", "hanging").await;
    world.close().await;
}

/// The kept logs of a run, newest first.
async fn logs(world: &World, run: RunId) -> Vec<String> {
    let kernel = world.kernel();
    let query = ArtifactQuery { of: ArtifactsOf::Run(run), before: None, limit: None };
    let mut logs = vec![];
    for artifact in kernel.artifact_list(&world.me, query).await.unwrap().items {
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
async fn the_log_of_a_failed_attempt_is_kept_without_secrets() {
    let secret = |setup: &mut Setup| {
        setup.agent.env.push(("TOKEN".into(), "hunter2-hunter2".into()));
    };
    let world = world_with("resume", secret).await;
    // The log of a successful attempt is not kept, and not mixed into the next one.
    let succeeded = world.run("a", "warn all is well; hi").await;
    assert_eq!(logs(&world, succeeded.id).await, [""; 0]);
    let run = world.run("a", "hm; warn the key is hunter2-hunter2; crash").await;
    assert_eq!(logs(&world, run.id).await, ["the key is ${TOKEN}\nout of memory\n"]);
    let json = serde_json::to_string(&run).unwrap();
    assert!(json.contains("the key is ${TOKEN}") && !json.contains("hunter2"), "{json}");
    let run = world.run("a", "warn too much; stop max_tokens").await;
    assert_eq!(logs(&world, run.id).await, ["acp_agent ready\ntoo much\n"]);
    world.close().await;
    // A failed start has a log, too.
    let world = world_with("none", |setup| {
        secret(setup);
        setup.run_shell("echo bad $TOKEN >&2; exit 1");
    })
    .await;
    let run = world.start("a", "hi").await;
    world.wait_for_event("a", "attempt.failed").await;
    assert_eq!(logs(&world, run).await.last().unwrap(), "bad ${TOKEN}\n");
    world.close().await;
    let world = world_with("none", |setup| setup.agent.keep_log = KeepLog::Always).await;
    let run = world.run("a", "warn all is well; hi").await;
    assert_eq!(logs(&world, run.id).await, ["acp_agent ready\nall is well\n"]);
    world.close().await;
}
