//! A pi that hangs, dies, ignores, lies or is not there.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_run_keeps_its_partial_text_and_the_process_goes_on() {
    let world = world("keep").await;
    for (script, text) in [("one; hang", "one\nhanging"), ("late", "hanging and late")] {
        let run = world.prompt("a", script).await;
        world.streams("a", "hanging").await;
        let outcome = soon(world.node().kernel().run_cancel(&world.me, run)).await.unwrap();
        assert!(outcome.accepted && outcome.dispatch_attempted && !outcome.adapter_acknowledged);
        assert_eq!(world.ended(run).await.state.status(), RunStatus::Cancelled);
        assert_eq!(world.last("a").await.text(), text);
        let json = serde_json::to_string(&world.events("a").await).unwrap();
        assert!(json.contains(r#""proof":"ended""#) && !json.contains(r#""proof":"killed""#), "{json}");
    }
    assert_eq!(world.say("a", "history").await, "one; hang\nlate\nhistory");
    assert_eq!(world.processes(), 2);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn told_to_stop_before_it_has_begun_it_is_told_again() {
    let world = world("keep").await;
    let run = world.prompt("a", "dawdle").await;
    world.happens("a", "progress.updated").await;
    soon(world.node().kernel().run_cancel(&world.me, run)).await.unwrap();
    assert_eq!(world.ended(run).await.state.status(), RunStatus::Cancelled);
    let json = serde_json::to_string(&world.events("a").await).unwrap();
    assert!(json.contains(r#""proof":"ended""#), "it ended by itself: {json}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_ignores_a_cancellation_is_killed_with_all_it_started() {
    let world = world("keep").await;
    world.say("a", "my name is Ada").await;
    let run = world.prompt("a", "spawn; deaf").await;
    world.streams("a", "deaf").await;
    world.grows_to(4).await;
    soon(world.node().kernel().run_cancel(&world.me, run)).await.unwrap();
    assert_eq!(world.ended(run).await.state.status(), RunStatus::Cancelled);
    assert_eq!(world.processes(), 0, "cancelled means stopped");
    assert_eq!(world.last("a").await.text(), "deaf");
    let json = serde_json::to_string(&world.events("a").await).unwrap();
    assert!(json.contains(r#""proof":"killed""#), "{json}");
    // The turn in which it died was not kept; what was said before it is.
    assert_eq!(world.say("a", "history").await, "my name is Ada\nhistory");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_dies_in_a_turn_fails_its_attempt_and_the_next_gets_a_fresh_one() {
    let world = world("keep").await;
    world.say("a", "my name is Ada").await;
    let run = world.play("a", "one; tool read; crash").await;
    assert_eq!((run.state.status(), run.attempts), (RunStatus::Failed, 1));
    assert_eq!(failure(&run), "transport_interruption");
    let json = serde_json::to_string(&run).unwrap();
    assert!(
        json.contains("xout of memory") && json.len() < 4_000,
        "its last words, and not all: {}",
        json.len()
    );
    assert!(world.last("a").await.text().starts_with("one\n"));
    // It has not kept the turn, and is told of it.
    let heard = world.say("a", "history").await;
    assert!(heard.starts_with("my name is Ada\n<interrupted> | user: one; tool read; crash | "), "{heard}");
    assert_eq!(world.bindings("a").await.len(), 1);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_dies_in_its_first_turn_has_kept_nothing_and_is_told_what_was_said() {
    let world = world("keep").await;
    let run = world.play("a", "my name is Ada; crash").await;
    assert_eq!(failure(&run), "transport_interruption");
    let run = world.play("a", "history").await;
    assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 2), "the first found nothing");
    let heard = world.last("a").await.text();
    assert!(heard.contains("user: my name is Ada; crash"), "{heard}");
    let bindings = world.bindings("a").await;
    assert_eq!((bindings[0].generation, bindings[0].reconstructed), (2, true));
    assert_eq!(world.processes(), 2, "the one that had begun anew is not used again");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_the_native_session_is_not_on_is_another_session() {
    let world = world("keep").await;
    let first = world.prompt("a", "my name is Ada").await;
    let answer = world.ended(first).await.final_message.unwrap();
    world.say("a", "my cat is Tom").await;
    let mut edit = request("a", "history");
    edit.place = mainspring::core::Place::Edit { message_id: answer };
    let run = world.send(edit).await;
    assert_eq!(world.ended(run).await.state.status(), RunStatus::Succeeded);
    let heard = world.last("a").await.text();
    assert!(heard.contains("user: my name is Ada") && !heard.contains("Tom"), "{heard}");
    assert_eq!(world.bindings("a").await[0].generation, 2);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_is_no_success_and_neither_is_an_odd_end() {
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
        let run = world.play("a", &format!("text; {script}")).await;
        assert_eq!((run.state.status(), failure(&run).as_str()), (status, code), "{script}");
        assert_eq!((run.attempts, world.last("a").await.text().as_str()), (1, "text\n"), "{script}");
    }
    let run = world.play("a", "refuse No API key found for acme.").await;
    assert_eq!((failure(&run).as_str(), run.attempts), ("authentication", 1));
    assert_eq!(world.processes(), 2, "all in one process");
    let run = world.play("a", "swallow").await;
    assert_eq!((failure(&run).as_str(), run.attempts), ("adapter_execution_failed", 1));
    assert_eq!(world.processes(), 0, "what it does now is not known");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_busy_with_something_else_is_replaced() {
    let mut world = world("keep").await;
    world.config.retry.base_ms = 1;
    world.reopen().await;
    let run = world.play("a", "refuse-once; done").await;
    assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 2), "{run:?}");
    assert_eq!(world.last("a").await.text(), "refuse-once\ndone\n");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_not_there_or_does_not_speak_says_why() {
    type Change = fn(&mut AdapterConfig);
    let cases: [(Change, &str, &str); 5] = [
        (|it| it.command = Some(vec!["/no/such/pi".into()]), "adapter_unavailable", "could not be started"),
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
        (
            |it| *it.command.as_mut().unwrap().last_mut().unwrap() = "refuses".into(),
            "binding_failed",
            "extension",
        ),
        (
            |it| *it.command.as_mut().unwrap().last_mut().unwrap() = "stuck".into(),
            "binding_failed",
            "kept the old",
        ),
    ];
    for (change, code, says) in cases {
        let mut world = world_with("keep", change).await;
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
