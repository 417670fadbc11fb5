//! Authentication of agents.

use super::*;

/// A world whose agent refuses to open sessions before it is authenticated.
async fn locked(change: impl Fn(&mut Setup)) -> World {
    world_with("resume", |setup| {
        setup.agent.env.push(("ACP_AGENT_LOCKED".into(), "1".into()));
        change(setup);
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_authenticates_with_the_configured_method() {
    let world = locked(|setup| setup.acp.auth_method = Some("token".into())).await;
    assert_eq!(world.answer_to("a", "hi").await, "hi\n");
    world.close().await;
    let world = locked(|setup| setup.acp.auth_method = Some("magic".into())).await;
    let run = serde_json::to_string(&world.run("a", "hi").await).unwrap();
    assert!(run.contains("authentication") && run.contains("it has token"), "{run}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_without_a_login_says_how_to_log_in() {
    let world = locked(|_| {}).await;
    let run = world.run("a", "hi").await;
    assert_eq!((failure_code(&run).as_str(), run.attempts), ("authentication", 1), "{run:?}");
    let json = serde_json::to_string(&run).unwrap();
    assert!(json.contains("log in with `mainspring adapter login agent token`"), "{json}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_lasts_for_every_later_process() {
    let mut world = locked(|setup| setup.agent.max_processes = 2).await;
    let failure = with_timeout(world.login().authenticate("magic")).await.unwrap_err();
    assert_eq!(failure.code.as_str(), "authentication");
    assert!(failure.message.contains("it has token"), "{}", failure.message);
    let methods: Vec<String> = world.login().methods().into_iter().map(|method| method.id).collect();
    assert_eq!(methods, ["token"], "they are known after the first start");
    with_timeout(world.login().authenticate("token")).await.unwrap();
    assert_eq!(world.processes(), 0, "a login ends its process");
    for key in ["a", "b"] {
        world.start(key, "hang").await;
        world.wait_for_text(key, "hanging").await;
    }
    assert_eq!(world.adapter().processes(), (2, 0));
    world.restart().await;
    assert_eq!(failure_code(&world.run("c", "hi").await), "authentication", "the next adapter starts anew");
    world.close().await;
}
