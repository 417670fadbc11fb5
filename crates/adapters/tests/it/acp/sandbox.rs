//! The sandbox of a run: recorded with its attempt, and never shared with runs of another sandbox.

use mainspring_core::{Enforcement, Sandbox};

use super::*;

/// The sandboxes of the session's attempts, oldest first.
async fn sandboxes(world: &World, key: &str) -> Vec<Sandbox> {
    let events = world.events(key).await;
    let confined = events.iter().filter_map(|event| match &event.body {
        Body::AttemptConfined { sandbox } => Some(sandbox.clone()),
        _ => None,
    });
    confined.collect()
}

async fn profiles(world: &World, key: &str) -> Vec<&'static str> {
    sandboxes(world, key).await.iter().map(|sandbox| sandbox.profile.name()).collect()
}

fn ask(key: &str, prompt: &str) -> RunRequest {
    RunRequest { mode: Mode::Ask, ..request(key, prompt) }
}

/// Runs a request and returns the text of the answer.
async fn answer(world: &World, key: &str, request: RunRequest) -> String {
    let run = world.start_request(request).await;
    let run = world.wait_for_end(run).await;
    assert_eq!(run.state.status(), RunStatus::Succeeded, "{run:?}");
    world.text_of(key, run.id).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_may_only_answer_cannot_write_even_if_its_agent_never_asks() {
    for permissions in [Permissions::Ask, Permissions::Legacy, Permissions::Deny] {
        let world = world_with("resume", |setup| {
            setup.agent.permissions = permissions;
            setup.agent.cwd = setup.folder.clone();
        })
        .await;
        let file = world.folder.path().join("file");
        let write = format!("shell echo written > {}", file.display());
        answer(&world, "a", ask("a", &write)).await;
        assert!(!file.exists(), "{permissions:?}");
        assert_eq!(profiles(&world, "a").await, ["read_only"], "{permissions:?}");
        if permissions != Permissions::Deny {
            answer(&world, "a", request("a", &write)).await;
            assert!(file.exists(), "{permissions:?}");
            let acting = if permissions == Permissions::Legacy { "off" } else { "workspace" };
            assert_eq!(profiles(&world, "a").await, ["read_only", acting]);
        }
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_another_profile_continues_the_session_in_another_process() {
    for features in ["resume", "load", "resume,locks"] {
        let world = world_with(features, |_| {}).await;
        let first = answer(&world, "a", request("a", "pid")).await;
        let asking = answer(&world, "a", ask("a", "pid")).await;
        assert_ne!(first, asking, "{features}: a confinement cannot be changed");
        assert_eq!(answer(&world, "a", ask("a", "pid")).await, asking, "{features}: the process is reused");
        let history = answer(&world, "a", request("a", "history")).await;
        assert!(history.contains("pid"), "{features}: {history}");
        let bindings = world.bindings("a").await;
        assert_eq!(bindings.len(), 1, "{features}: the session was resumed each time");
        assert_eq!(profiles(&world, "a").await, ["workspace", "read_only", "read_only", "workspace"]);
        world.close().await;
    }
    let world = world_with("", |_| {}).await;
    answer(&world, "a", request("a", "remember this")).await;
    answer(&world, "a", ask("a", "hello")).await;
    let bindings = world.bindings("a").await;
    assert!(bindings.len() == 2 && bindings[0].reconstructed, "{bindings:?}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_cannot_be_confined_is_refused_unless_the_sandbox_is_waived() {
    let refused = |sandbox: Option<SandboxProfile>| {
        world_with("resume", move |setup| {
            setup.agent.sandbox.landlock = None;
            setup.agent.sandbox.profile = sandbox;
        })
    };
    let world = refused(None).await;
    let run = world.start_request(ask("a", "hello")).await;
    let run = world.wait_for_end(run).await;
    assert_eq!((failure_code(&run).as_str(), run.attempts), ("sandbox_unavailable", 1), "{run:?}");
    answer(&world, "b", request("b", "hello")).await;
    let unconfined = &sandboxes(&world, "b").await[0];
    assert_eq!((unconfined.profile, unconfined.enforcement), (SandboxProfile::Off, Enforcement::None));
    assert!(unconfined.note.is_some(), "{unconfined:?}");
    world.close().await;
    let world = refused(Some(SandboxProfile::Off)).await;
    answer(&world, "a", ask("a", "hello")).await;
    assert_eq!(sandboxes(&world, "a").await[0].enforcement, Enforcement::None);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_serves_one_owner() {
    let mut world = world("resume").await;
    let of_ada = world.answer_to("a", "pid").await;
    world.me = Caller::new("eve");
    assert_ne!(world.answer_to("b", "pid").await, of_ada, "data of one owner may be in its memory");
    world.me = Caller::new("ada");
    assert_eq!(world.answer_to("c", "pid").await, of_ada);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_works_in_the_folder_that_was_checked() {
    let world = world("resume").await;
    let root = world.folder.path().canonicalize().unwrap();
    let (first, second, link) = (root.join("first"), root.join("second"), root.join("link"));
    std::fs::create_dir(&first).unwrap();
    std::fs::create_dir(&second).unwrap();
    std::os::unix::fs::symlink(&first, &link).unwrap();
    let mut in_link = request("a", "shell touch here; pid");
    in_link.options.cwd = Some(link.display().to_string());
    let process = answer(&world, "a", in_link.clone()).await;
    assert!(first.join("here").exists());
    // An agent that can write the parent folder replaces the link.
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&second, &link).unwrap();
    in_link.session = request("b", "").session;
    assert_ne!(answer(&world, "b", in_link).await, process, "the process of another folder is not reused");
    assert!(second.join("here").exists());
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limited_run_does_not_work_in_a_folder_that_was_not_configured() {
    for (is_cwd_configured, code) in [(true, ""), (false, "folder_not_allowed")] {
        let mut world = world_with("resume", |setup| setup.agent.is_cwd_configured = is_cwd_configured).await;
        assert_eq!(failure_code(&world.run("a", "pid").await), "");
        world.me = Caller { folders: Some(vec![]), ..Caller::new("eve") };
        assert_eq!(failure_code(&world.run("b", "pid").await), code);
        world.close().await;
    }
}
