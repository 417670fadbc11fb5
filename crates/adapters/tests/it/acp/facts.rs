//! Facts about executions: the process, the model and the agent, in attempts, bindings and grants.

use mainspring_kernel::kernel::ForkRequest;
use serde_json::json;

use super::*;

/// Runs a prompt with this model, and returns its run.
async fn run_with_model(world: &World, prompt: &str, model: Option<&str>) -> RunId {
    let mut request = request("a", prompt);
    request.options.model = model.map(str::to_owned);
    let run = world.start_request(request).await;
    world.wait_for_end(run).await;
    run
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_and_bindings_name_the_process_the_model_and_the_agent() {
    let mut world = world("resume").await;
    let run = run_with_model(&world, "hello", None).await;
    let (first, binding) = (world.attempts(run).await.remove(0), world.bindings("a").await.remove(0));
    assert!(first.instance.as_ref().is_some_and(|name| name.starts_with("worker_")), "{first:?}");
    assert_eq!(binding.instance, first.instance);
    assert_eq!(binding.model.as_deref(), Some("m1"), "as the agent reports it");
    let agent = json!({"name": "scripted", "version": "0.7"});
    assert_eq!(binding.metadata["agent"], agent);
    assert_eq!((&first.metadata["agent"], &first.metadata["stopReason"]), (&agent, &json!("end_turn")));
    assert!(binding.last_used_at >= first.completed_at && first.completed_at.is_some());

    let run = run_with_model(&world, "again", Some("m2")).await;
    let (second, binding) = (world.attempts(run).await.remove(0), world.bindings("a").await.remove(0));
    assert_eq!(second.instance, first.instance, "the same process");
    assert!(second.native_run.is_some() && second.native_run != first.native_run, "{second:?}");
    assert_eq!(binding.model.as_deref(), Some("m2"));

    // An attempt that fails before its session is ready names its process too.
    let run = run_with_model(&world, "third", Some("m3")).await;
    let failed = world.attempts(run).await.remove(0);
    assert_eq!((failed.status, &failed.instance), (RunStatus::Failed, &first.instance));
    assert_eq!(failed.native_run, None, "the agent was not prompted");

    world.restart().await;
    let run = run_with_model(&world, "fourth", None).await;
    let (fourth, binding) = (world.attempts(run).await.remove(0), world.bindings("a").await.remove(0));
    assert!(fourth.instance.is_some() && fourth.instance != first.instance);
    assert_eq!(binding.instance, fourth.instance);
    assert_eq!(world.attempts(run).await.len(), 1);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_name_the_actions_they_were_given_for() {
    for (permissions, mode, policy) in
        [(Permissions::Legacy, Mode::Act, "legacy"), (Permissions::Legacy, Mode::Ask, "deny")]
    {
        let world = world_with("none", |setup| setup.agent.permissions = permissions).await;
        let run = world.start_request(RunRequest { mode, ..request("a", "ask write") }).await;
        world.wait_for_end(run).await;
        let grants = world.kernel().run_grants(&world.me, run).await.unwrap();
        let expected = json!({"policy": policy, "adapter": "agent", "mode": mode.name()});
        assert_eq!(json!(grants[0].constraints), expected);
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_names_the_native_session_it_comes_from() {
    let world = world("resume,fork").await;
    world.answer_to("a", "my name is Ada").await;
    let message = world.last_message("a").await.id;
    let fork = ForkRequest { key: Some("b".into()), message, title: None };
    world.kernel().session_fork(&world.me, &session_ref("a").unwrap(), fork, None).await.unwrap();
    world.answer_to("b", "history").await;
    let (from, to) = (world.bindings("a").await.remove(0), world.bindings("b").await.remove(0));
    assert_eq!(to.metadata["forkedFrom"], json!(from.native));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_plan_of_an_agent_becomes_the_tasks_of_its_run() {
    let world = world("none").await;
    let run = world.run("a", "plan write;plan check").await;
    let tasks: Vec<_> =
        run.tasks.iter().map(|task| (task.id, task.position, &*task.title, task.status.name())).collect();
    // The first entry is recognised by its text; the second one is another task.
    assert_eq!(tasks, [(1, 0, "look", "completed"), (3, 1, "check", "in_progress")]);
    let events =
        world.kernel().run_events(&world.me, run.id, mainspring_core::Cursor::START, None).await.unwrap();
    let kinds = event_types(&events);
    let count = |kind: &str| kinds.iter().filter(|other| **other == kind).count();
    assert_eq!((count("tasks.updated"), count("progress.updated")), (2, 2), "{kinds:?}");
    world.close().await;
}
