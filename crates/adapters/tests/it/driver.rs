//! The driver: deadlines, deaths and limits that do not depend on the agent's protocol. Deadlines pass on a manual clock.

use std::path::Path;

use mainspring_core::{Body, Fidelity, RunStatus, Time};
use mainspring_kernel::adapter::{Adapter as _, RestartBehavior};
use mainspring_kernel::clock::Clock;

use crate::world::{Kind, Setup, World, event_types, failure_code, with_timeout};

const NOW: Time = Time(1_800_000_000_000);

/// A world with a scripted ACP agent and a manual clock.
async fn world(features: &str, change: impl Fn(&mut Setup)) -> World {
    let set_up = |setup: &mut Setup| {
        setup.run_example("scripted_acp_agent", features);
        setup.clock = Clock::manual(NOW);
        change(setup);
    };
    World::open(Kind::Acp, set_up).await
}

/// Waits until the agent has written this file.
async fn wait_for_file(path: &Path) {
    let written = async {
        while !path.exists() {
            tokio::task::yield_now().await;
        }
    };
    with_timeout(written).await;
}

/// The code, message and retryability of the first failed attempt in the session.
async fn first_failure(world: &World, key: &str) -> (String, String, bool) {
    world.wait_for_event(key, "attempt.failed").await;
    let events = world.events(key).await;
    let failed = events.iter().find_map(|event| match &event.body {
        Body::AttemptFailed { error, retryable, .. } => {
            Some((error.code.to_string(), error.message.clone(), *retryable))
        }
        _ => None,
    });
    failed.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_does_not_start_in_time_is_killed() {
    let world = world("", |setup| setup.run_shell("exec sleep 1000")).await;
    world.start("a", "hi").await;
    world.wait_for_processes(2).await;
    world.setup.clock.advance(59_999);
    assert!(!event_types(&world.events("a").await).contains(&"attempt.failed"));
    world.setup.clock.advance(1);
    let (code, message, retryable) = first_failure(&world, "a").await;
    assert_eq!((code.as_str(), retryable), ("timeout", true));
    assert_eq!(message, "the agent did not start within 60000 ms, its start_timeout_ms");
    world.wait_for_no_process().await;
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_does_not_open_its_session_in_time_is_killed() {
    let world = world("silent", |_| {}).await;
    world.start("a", "hi").await;
    wait_for_file(&world.folder.path().join("agent/silent")).await;
    world.setup.clock.advance(60_000);
    let (code, message, retryable) = first_failure(&world, "a").await;
    assert_eq!((code.as_str(), retryable), ("timeout", true));
    assert!(message.starts_with("the agent did not open its session within 60000 ms"), "{message}");
    assert!(message.contains("its last output: acp_agent ready"), "{message}");
    world.wait_for_no_process().await;
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_cancelled_while_its_session_opens_ends_with_its_process() {
    let world = world("silent", |_| {}).await;
    let run = world.start("a", "hi").await;
    wait_for_file(&world.folder.path().join("agent/silent")).await;
    world.cancel(run).await;
    assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Cancelled);
    assert_eq!(world.processes(), 0, "cancelled means stopped");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_dies_before_its_turn_is_started_again() {
    let world = world("dies-once", |setup| setup.clock = Clock::system()).await;
    let run = world.run("a", "hi").await;
    assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 2), "{run:?}");
    let (code, message, retryable) = first_failure(&world, "a").await;
    assert_eq!((code.as_str(), retryable), ("transport_interruption", true));
    assert!(message.contains("the agent's process has ended"), "{message}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_agent_has_the_grace_period_and_is_then_killed() {
    let world = world("resume", |_| {}).await;
    let run = world.start("a", "spawn; deaf").await;
    world.wait_for_text("a", "deaf").await;
    world.wait_for_processes(4).await;
    world.cancel(run).await;
    world.setup.clock.advance(1_999);
    let status = world.kernel().run_get(&world.me, run).await.unwrap().state.status();
    assert_eq!(
        (status, world.processes()),
        (RunStatus::Cancelling, 4),
        "the agent was asked to stop but has not stopped"
    );
    world.setup.clock.advance(1);
    assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Cancelled);
    assert_eq!(world.processes(), 0);
    let json = serde_json::to_string(&world.events("a").await).unwrap();
    assert!(json.contains(r#""proof":"killed""#), "{json}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_process_is_stopped_when_its_time_is_over() {
    let world = world("resume", |_| {}).await;
    assert_eq!(world.answer_to("a", "one").await, "one\n");
    world.setup.clock.advance(299_999);
    assert_eq!((world.adapter().processes(), world.processes()), ((1, 1), 2));
    world.setup.clock.advance(1);
    world.wait_for_no_process().await;
    assert_eq!(world.answer_to("a", "history").await, "one\nhistory\n", "the session is resumed");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_adapter_starts_no_process() {
    let world = world("resume", |_| {}).await;
    world.answer_to("a", "one").await;
    with_timeout(world.adapter().close()).await;
    assert_eq!(world.processes(), 0);
    let run = world.run("a", "two").await;
    assert_eq!((failure_code(&run).as_str(), run.attempts), ("adapter_unavailable", 1), "{run:?}");
    let json = serde_json::to_string(&run).unwrap();
    assert!(json.contains("mainspring is shutting down"), "{json}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn capabilities_are_known_after_the_first_start() {
    for (features, fidelity) in [("resume", Fidelity::Native), ("", Fidelity::Reconstructed)] {
        let world = world(features, |_| {}).await;
        let before = world.adapter().capabilities();
        assert!(!before.supports_native_resume && before.requires_pinned_worker);
        assert!(world.login().methods().is_empty());
        world.answer_to("a", "hi").await;
        let after = world.adapter().capabilities();
        let resumes = fidelity == Fidelity::Native;
        assert_eq!((after.resume_fidelity, after.supports_native_resume), (fidelity, resumes), "{features}");
        assert_eq!(after.requires_pinned_worker, !resumes, "{features}");
        let restart = match resumes {
            true => RestartBehavior::NativeBindingsSurvive,
            false => RestartBehavior::ProcessLocalBindingsStale,
        };
        assert_eq!(after.restart_behavior, restart, "{features}");
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_in_another_folder_has_another_process() {
    let world = world("resume", |_| {}).await;
    world.answer_to("a", "one").await;
    let mut elsewhere = crate::world::request("b", "two");
    elsewhere.options.cwd = Some(world.folder.path().to_string_lossy().into_owned());
    let run = world.start_request(elsewhere).await;
    assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Succeeded);
    assert_eq!(world.adapter().processes(), (2, 2));
    world.answer_to("c", "three").await;
    assert_eq!(world.adapter().processes(), (2, 2), "an idle process of the folder is reused");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_has_ten_minutes() {
    let world = world("", |setup| setup.run_shell("exec sleep 1000")).await;
    let mut login = Box::pin(world.login().authenticate("token"));
    assert!(futures_util::poll!(&mut login).is_pending());
    world.wait_for_processes(2).await;
    world.setup.clock.advance(10 * 60 * 1_000 - 1);
    assert!(futures_util::poll!(&mut login).is_pending());
    world.setup.clock.advance(1);
    let failure = with_timeout(login).await.unwrap_err();
    assert_eq!(failure.code.as_str(), "timeout");
    world.wait_for_no_process().await;
    world.close().await;
}
