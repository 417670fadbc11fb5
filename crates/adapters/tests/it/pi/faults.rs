//! A pi that hangs, crashes, ignores a cancellation, or does not start.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_run_keeps_its_partial_text_and_its_process() {
    let world = world("keep").await;
    for (script, text) in [("one; hang", "one\nhanging"), ("late", "hanging and late")] {
        let run = world.start("a", script).await;
        world.wait_for_text("a", "hanging").await;
        let outcome = world.cancel(run).await;
        assert!(outcome.accepted && outcome.dispatch_attempted && !outcome.adapter_acknowledged);
        assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Cancelled);
        assert_eq!(world.last_message("a").await.text(), text);
        let json = serde_json::to_string(&world.events("a").await).unwrap();
        assert!(json.contains(r#""proof":"ended""#) && !json.contains(r#""proof":"killed""#), "{json}");
    }
    assert_eq!(world.answer_to("a", "history").await, "one; hang\nlate\nhistory");
    assert_eq!(world.processes(), 2);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abort_before_the_agent_starts_is_repeated() {
    let world = world("keep").await;
    let run = world.start("a", "dawdle").await;
    world.wait_for_event("a", "progress.updated").await;
    world.cancel(run).await;
    assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Cancelled);
    let json = serde_json::to_string(&world.events("a").await).unwrap();
    assert!(json.contains(r#""proof":"ended""#), "it ended the turn itself: {json}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pi_that_ignores_a_cancellation_is_killed_with_its_process_tree() {
    let world = world("keep").await;
    world.answer_to("a", "my name is Ada").await;
    let run = world.start("a", "spawn; deaf").await;
    world.wait_for_text("a", "deaf").await;
    world.wait_for_processes(4).await;
    world.cancel(run).await;
    assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Cancelled);
    assert_eq!(world.processes(), 0, "cancelled means stopped");
    assert_eq!(world.last_message("a").await.text(), "deaf");
    let json = serde_json::to_string(&world.events("a").await).unwrap();
    assert!(json.contains(r#""proof":"killed""#), "{json}");
    // Pi did not store the turn in which it was killed, so it is repeated.
    let answer = world.answer_to("a", "history").await;
    assert!(answer.starts_with("my name is Ada\n<interrupted> | user: spawn; deaf | "), "{answer}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_fails_the_attempt_and_the_next_run_gets_a_new_process() {
    let world = world("keep").await;
    world.answer_to("a", "my name is Ada").await;
    let run = world.run("a", "one; tool read; crash").await;
    assert_eq!((run.state.status(), run.attempts), (RunStatus::Failed, 1));
    assert_eq!(failure_code(&run), "transport_interruption");
    let json = serde_json::to_string(&run).unwrap();
    assert!(json.contains("xout of memory") && json.len() < 4_000, "the end of its output: {}", json.len());
    assert_eq!(world.text_of("a", run.id).await, "one\n");
    // Pi did not store the turn, so it is repeated.
    let answer = world.answer_to("a", "history").await;
    assert!(answer.starts_with("my name is Ada\n<interrupted> | user: one; tool read; crash | "), "{answer}");
    assert_eq!(world.bindings("a").await.len(), 1);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_crash_in_its_first_turn_a_session_is_reconstructed() {
    let world = world("keep").await;
    let run = world.run("a", "my name is Ada; crash").await;
    assert_eq!(failure_code(&run), "transport_interruption");
    let run = world.run("a", "history").await;
    assert_eq!(
        (run.state.status(), run.attempts),
        (RunStatus::Succeeded, 2),
        "the first attempt found no session"
    );
    let answer = world.last_message("a").await.text();
    assert!(answer.contains("user: my name is Ada; crash"), "{answer}");
    let bindings = world.bindings("a").await;
    assert_eq!((bindings[0].generation, bindings[0].reconstructed), (2, true));
    // The process with the empty session is not reused, and ends.
    world.wait_for_processes(2).await;
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_fails_without_output_is_replaced_once() {
    for prompt in ["missing it broke", "missing 400: too long", "vanish"] {
        let mut world = world("keep").await;
        world.answer_to("a", "my name is Ada").await;
        world.restart().await;
        let run = world.run("a", prompt).await;
        assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 2), "{prompt}: {run:?}");
        let bindings = world.bindings("a").await;
        assert_eq!((bindings[0].generation, bindings[0].reconstructed), (2, true), "{prompt}");
        assert!(world.answer_to("a", "history").await.contains("user: my name is Ada"), "{prompt}");
        world.close().await;
    }
    let mut world = world("keep").await;
    world.answer_to("a", "my name is Ada").await;
    for (prompt, code) in [
        ("missing 401: bad key", "authentication"),
        ("missing 429: slow down", "quota_exceeded"),
        ("missing 529 overloaded", "transport_interruption"),
    ] {
        world.restart().await;
        let run = world.run("a", prompt).await;
        assert_eq!((failure_code(&run).as_str(), run.attempts), (code, 1), "{prompt}: {run:?}");
        assert_eq!(world.bindings("a").await.len(), 1, "{prompt}");
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_path_opens_another_native_session() {
    let world = world("keep").await;
    let first = world.start("a", "my name is Ada").await;
    let answer = world.wait_for_end(first).await.final_message.unwrap();
    world.answer_to("a", "my cat is Tom").await;
    let mut edit = request("a", "history");
    edit.place = mainspring_core::Place::Edit { message_id: answer };
    let run = world.start_request(edit).await;
    assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Succeeded);
    let answer = world.last_message("a").await.text();
    assert!(answer.contains("user: my name is Ada") && !answer.contains("Tom"), "{answer}");
    assert_eq!(world.bindings("a").await[0].generation, 2);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_line_is_reported() {
    let world = world("keep").await;
    let run = world.run("a", "hm; garble; hang").await;
    assert_eq!((failure_code(&run).as_str(), run.attempts), ("transport_interruption", 1), "{run:?}");
    let json = serde_json::to_string(&run).unwrap();
    assert!(json.contains("the agent sent a line that is not UTF-8"), "{json}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_regular_end_is_a_success() {
    let world = world("keep").await;
    for (script, status, code) in [
        ("stop length", RunStatus::Failed, "max_tokens"),
        ("stop deferred", RunStatus::Failed, "unknown_stop_reason"),
        ("stop aborted", RunStatus::Cancelled, ""),
        ("error 401: bad key", RunStatus::Failed, "authentication"),
        ("error 429: slow down", RunStatus::Failed, "quota_exceeded"),
        ("error 500: it broke", RunStatus::Failed, "transport_interruption"),
        ("error it broke", RunStatus::Failed, "adapter_execution_failed"),
    ] {
        let run = world.run("a", &format!("text; {script}")).await;
        assert_eq!((run.state.status(), failure_code(&run).as_str()), (status, code), "{script}");
        assert_eq!((run.attempts, world.last_message("a").await.text().as_str()), (1, "text\n"), "{script}");
    }
    let run = world.run("a", "refuse No API key found for acme.").await;
    assert_eq!((failure_code(&run).as_str(), run.attempts), ("authentication", 1));
    assert_eq!(world.processes(), 2, "all in one process");
    // Once more in the next generation.
    let run = world.run("a", "swallow").await;
    assert_eq!((failure_code(&run).as_str(), run.attempts), ("adapter_execution_failed", 2));
    assert_eq!(world.processes(), 0, "its state is unknown");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_pi_is_replaced() {
    let world = world("keep").await;
    let run = world.run("a", "refuse-once; done").await;
    assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 2), "{run:?}");
    assert_eq!(world.last_message("a").await.text(), "refuse-once\ndone\n");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_start_names_the_reason() {
    type Change = fn(&mut Setup);
    let cases: [(Change, &str, &str); 5] = [
        (|setup| setup.agent.command = vec!["/no/such/pi".into()], "adapter_unavailable", "was not found"),
        (
            |setup| setup.agent.command = vec!["sh".into(), "-c".into(), "echo no key >&2; exit 1".into()],
            "adapter_unavailable",
            "no key",
        ),
        (
            |setup| {
                setup.agent.command = vec!["sleep".into(), "1000".into()];
                setup.agent.start_timeout = Duration::from_millis(100);
            },
            "timeout",
            "did not start within 100 ms",
        ),
        (|setup| *setup.agent.command.last_mut().unwrap() = "refuses".into(), "binding_failed", "extension"),
        (|setup| *setup.agent.command.last_mut().unwrap() = "stuck".into(), "binding_failed", "kept the old"),
    ];
    for (change, code, says) in cases {
        let world = world_with("keep", change).await;
        let run = world.run("a", "hi").await;
        let json = serde_json::to_string(&run).unwrap();
        assert_eq!((run.state.status(), failure_code(&run).as_str()), (RunStatus::Failed, code), "{json}");
        assert!(json.contains(says), "{json}");
        world.close().await;
    }
}
