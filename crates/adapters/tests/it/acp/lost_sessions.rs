//! Agents whose native session is gone, and which report the loss in different ways.

use super::*;

/// Removes the agent's file of the session, as if the agent had cleaned up.
async fn forget(world: &World, key: &str) {
    let native = world.bindings(key).await[0].native.clone().unwrap();
    std::fs::remove_file(world.folder.path().join("agent").join(native)).unwrap();
}

/// Asserts that the run succeeded in its second attempt, with the next generation and the text of the path.
async fn assert_reconstructed(world: &World, run: RunId, case: &str) {
    let run = world.wait_for_end(run).await;
    assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 2), "{case}: {run:?}");
    let bindings = world.bindings("a").await;
    assert_eq!((bindings[0].generation, bindings[0].reconstructed), (2, true), "{case}");
    let answer = world.answer_to("a", "history").await;
    assert!(answer.contains("user: my name is Ada"), "{case}: {answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_session_is_replaced_no_matter_how_the_agent_reports_it() {
    for features in [
        "resume",
        "load",
        "lazy,resume",
        "load-crashes,load",
        "load-hangs,load",
        "boast-load",
        "resume-fails,resume",
    ] {
        let mut world = world_with(features, |setup| {
            if features.contains("hangs") {
                setup.agent.start_timeout = Duration::from_secs(3);
            }
        })
        .await;
        world.answer_to("a", "my name is Ada").await;
        forget(&world, "a").await;
        world.restart().await;
        let run = world.start("a", "and now?").await;
        assert_reconstructed(&world, run, features).await;
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_method_is_tried_where_the_other_fails() {
    for features in ["resume-fails,resume,load", "boast-load,resume", "boast,load"] {
        let mut world = world(features).await;
        world.answer_to("a", "my name is Ada").await;
        world.restart().await;
        assert_eq!(world.answer_to("a", "history").await, "my name is Ada\nhistory\n", "{features}");
        assert_eq!(world.bindings("a").await.len(), 1, "{features}");
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_fails_without_output_leads_to_the_next_generation_once() {
    for prompt in ["missing Internal error", "missing Method not found", "missing 400: too long", "vanish"] {
        let mut world = world("resume").await;
        world.answer_to("a", "my name is Ada").await;
        world.restart().await;
        let run = world.start("a", prompt).await;
        assert_reconstructed(&world, run, prompt).await;
        world.close().await;
    }
    // A session that the run has opened is not replaced again.
    let world = world("resume").await;
    let run = world.run("a", "crash").await;
    assert_eq!((failure_code(&run).as_str(), run.attempts), ("transport_interruption", 3), "{run:?}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_with_other_causes_keep_the_session() {
    let mut world = world("resume").await;
    world.answer_to("a", "my name is Ada").await;
    for (prompt, code) in [
        ("missing Authentication required", "authentication"),
        ("missing API Error: 429 rate limit", "quota_exceeded"),
        ("missing API Error: 529 overloaded", "transport_interruption"),
        ("missing the model refused to answer", "refusal"),
    ] {
        world.restart().await;
        let run = world.run("a", prompt).await;
        assert_eq!((failure_code(&run).as_str(), run.attempts), (code, 1), "{prompt}: {run:?}");
        assert_eq!(world.bindings("a").await.len(), 1, "{prompt}");
    }
    world.restart().await;
    assert!(world.answer_to("a", "history").await.starts_with("my name is Ada\n"));
    world.close().await;
}
