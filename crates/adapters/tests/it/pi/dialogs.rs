//! Dialogs of extensions.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_person_decides_and_answers() {
    let world = world("keep").await;
    for (asked, put, decision, answer) in [
        ("confirm Write it?", "Write it?", Approval::Allowed, "true"),
        ("confirm Write it?", "Write it?", Approval::Denied, "false"),
        ("select Go?|Allow|Block", "Go?\n1. Allow\n2. Block", Approval::Allowed, "\"Allow\""),
        ("select Go?|Allow|Block", "Go?\n1. Allow\n2. Block", Approval::Denied, "\"Block\""),
    ] {
        let run = world.start("a", &format!("ask {asked}; done")).await;
        let (wait, question) = world.wait_for_question(run).await;
        assert_eq!(question, put);
        assert_eq!(world.wait_until(run, |_| true).await.state.status(), RunStatus::WaitingApproval);
        world.decide(run, wait, decision).await;
        assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Succeeded);
        assert_eq!(world.last_message("a").await.text(), format!("{answer}\ndone\n"));
    }
    for (asked, question, given, answer) in [
        ("input Name?", "Name?", "Ada", "\"Ada\""),
        ("editor Text?", "Text?", "a\nb", "\"a\\nb\""),
        ("select Which?|red|blue", "Which?\n1. red\n2. blue", "Blue", "\"blue\""),
        ("select Go?|Allow|Block|Later", "Go?\n1. Allow\n2. Block\n3. Later", "2", "\"Block\""),
    ] {
        let run = world.start("a", &format!("ask {asked}")).await;
        let (wait, put) = world.wait_for_question(run).await;
        assert_eq!(put, question);
        assert_eq!(world.wait_until(run, |_| true).await.state.status(), RunStatus::WaitingInput);
        input(&world, run, wait, given).await;
        assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Succeeded);
        assert_eq!(world.last_message("a").await.text(), format!("{answer}\n"), "{asked}");
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn asks_again_after_an_invalid_option() {
    let world = world("keep").await;
    let run = world.start("a", "ask select Which?|red|blue").await;
    let (wait, _) = world.wait_for_question(run).await;
    input(&world, run, wait, "green").await;
    let another = world
        .wait_until(run, |run| run.state.wait().is_some_and(|now| now.id != wait && now.answer.is_none()))
        .await;
    let again = another.state.wait().unwrap();
    assert_eq!(again.question, "\"green\" is none of these. Which?\n1. red\n2. blue");
    input(&world, run, again.id, "1").await;
    assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Succeeded);
    assert_eq!(world.last_message("a").await.text(), "\"red\"\n");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dialog_with_a_timeout_expires_and_the_run_continues() {
    let world = world("keep").await;
    for asked in ["confirm", "input"] {
        let run = world.run("a", &format!("ask {asked} within 50 Really?; on")).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{run:?}");
        let text = world.last_message("a").await.text();
        assert!(text.ends_with("on\n"), "{text}");
    }
    let events = serde_json::to_string(&world.events("a").await).unwrap();
    assert!(events.contains(r#""decision":"expired""#), "{events}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_by_policy_is_recorded_with_its_grant() {
    for (permissions, mode, asked, answer) in [
        (Permissions::Legacy, Mode::Act, "confirm Go?", Some("true")),
        (Permissions::Legacy, Mode::Act, "select Go?|Block it|Allow it", Some("\"Allow it\"")),
        (Permissions::Legacy, Mode::Act, "input Name?", None),
        (Permissions::Legacy, Mode::Act, "select Which?|red|blue", None),
        (Permissions::Deny, Mode::Act, "confirm Go?", Some("false")),
        (Permissions::Deny, Mode::Act, "select Go?|Allow|Block", Some("\"Block\"")),
        (Permissions::Deny, Mode::Act, "select Which?|red|blue", Some("true")),
        (Permissions::Deny, Mode::Act, "input Name?", Some("true")),
        (Permissions::Legacy, Mode::Ask, "confirm Go?", Some("false")),
    ] {
        let world = world_with("keep", |setup| setup.agent.permissions = permissions).await;
        let run = world.start_request(RunRequest { mode, ..request("a", &format!("ask {asked}")) }).await;
        let Some(answer) = answer else {
            // Only a person can answer.
            let (wait, _) = world.wait_for_question(run).await;
            input(&world, run, wait, "red").await;
            assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Succeeded);
            assert_eq!(world.last_message("a").await.text(), "\"red\"\n");
            world.close().await;
            continue;
        };
        assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Succeeded);
        assert_eq!(world.last_message("a").await.text(), format!("{answer}\n"), "{permissions:?} {asked}");
        let events = world.events("a").await;
        let grant = events.iter().find_map(|event| match &event.body {
            Body::ApprovalResolved { grant_id, .. } => Some(*grant_id),
            _ => None,
        });
        assert!(grant.unwrap().is_some());
        let waits = ["run.waiting_approval", "run.waiting_input"];
        assert!(!event_types(&events).iter().any(|kind| waits.contains(kind)), "{asked}");
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_waits_for_an_answer_can_be_cancelled() {
    let world = world("keep").await;
    for asked in ["confirm", "input", "select"] {
        let run = world.start("a", &format!("ask {asked} Really?|a|b; stop aborted")).await;
        world.wait_for_question(run).await;
        world.cancel(run).await;
        assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Cancelled);
        assert_eq!(world.last_message("a").await.text(), "true\n", "its dialog was dismissed");
    }
    assert_eq!(world.processes(), 2, "it ended the turns itself");
    world.close().await;
}
