//! What extensions ask, and who answers.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_person_decides_and_answers() {
    let world = world("keep").await;
    for (decision, told) in [(Approval::Allowed, "true"), (Approval::Denied, "false")] {
        let run = world.prompt("a", "ask confirm Write it?; done").await;
        let (wait, question) = world.asked(run).await;
        assert_eq!(question, "Write it?");
        assert_eq!(world.reaches(run, |_| true).await.state.status(), RunStatus::WaitingApproval);
        world.answer(run, wait, decision).await;
        assert_eq!(world.ended(run).await.state.status(), RunStatus::Succeeded);
        assert_eq!(world.last("a").await.text(), format!("{told}\ndone\n"));
    }
    for (asked, question, given, told) in [
        ("input Name?", "Name?", "Ada", "\"Ada\""),
        ("editor Text?", "Text?", "a\nb", "\"a\\nb\""),
        ("select Which?|red|blue", "Which?\n1. red\n2. blue", "Blue", "\"blue\""),
        ("select Go?|Allow|Block", "Go?\n1. Allow\n2. Block", "2", "\"Block\""),
    ] {
        let run = world.prompt("a", &format!("ask {asked}")).await;
        let (wait, put) = world.asked(run).await;
        assert_eq!(put, question);
        assert_eq!(world.reaches(run, |_| true).await.state.status(), RunStatus::WaitingInput);
        input(&world, run, wait, given).await;
        assert_eq!(world.ended(run).await.state.status(), RunStatus::Succeeded);
        assert_eq!(world.last("a").await.text(), format!("{told}\n"), "{asked}");
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_option_that_there_is_not_is_asked_for_again() {
    let world = world("keep").await;
    let run = world.prompt("a", "ask select Which?|red|blue").await;
    let (wait, _) = world.asked(run).await;
    input(&world, run, wait, "green").await;
    let another = world
        .reaches(run, |run| run.state.wait().is_some_and(|now| now.id != wait && now.answer.is_none()))
        .await;
    let again = another.state.wait().unwrap();
    assert_eq!(again.question, "\"green\" is none of these. Which?\n1. red\n2. blue");
    input(&world, run, again.id, "1").await;
    assert_eq!(world.ended(run).await.state.status(), RunStatus::Succeeded);
    assert_eq!(world.last("a").await.text(), "\"red\"\n");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_pi_does_not_wait_for_is_withdrawn_and_the_run_goes_on() {
    let world = world("keep").await;
    for asked in ["confirm", "input"] {
        let run = world.play("a", &format!("ask {asked} within 50 Really?; on")).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded, "{run:?}");
        let text = world.last("a").await.text();
        assert!(text.ends_with("on\n"), "{text}");
    }
    let events = serde_json::to_string(&world.events("a").await).unwrap();
    assert!(events.contains(r#""decision":"expired""#), "{events}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_decided_without_asking_is_recorded_and_names_its_grant() {
    for (permissions, mode, asked, told) in [
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
        let world = world_with("keep", |adapter| adapter.permissions = Some(permissions)).await;
        let run = world.send(RunRequest { mode, ..request("a", &format!("ask {asked}")) }).await;
        let Some(told) = told else {
            // No permission is an answer to that.
            let (wait, _) = world.asked(run).await;
            input(&world, run, wait, "red").await;
            assert_eq!(world.ended(run).await.state.status(), RunStatus::Succeeded);
            assert_eq!(world.last("a").await.text(), "\"red\"\n");
            world.close().await;
            continue;
        };
        assert_eq!(world.ended(run).await.state.status(), RunStatus::Succeeded);
        assert_eq!(world.last("a").await.text(), format!("{told}\n"), "{permissions:?} {asked}");
        let events = world.events("a").await;
        let grant = events.iter().find_map(|event| match &event.body {
            Body::ApprovalResolved { grant_id, .. } => Some(*grant_id),
            _ => None,
        });
        assert!(grant.unwrap().is_some());
        let waits = ["run.waiting_approval", "run.waiting_input"];
        assert!(!kinds(&events).iter().any(|kind| waits.contains(kind)), "{asked}");
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_waits_for_an_answer_is_cancelled() {
    let world = world("keep").await;
    for asked in ["confirm", "input", "select"] {
        let run = world.prompt("a", &format!("ask {asked} Really?|a|b; stop aborted")).await;
        world.asked(run).await;
        soon(world.node().kernel().run_cancel(&world.me, run)).await.unwrap();
        assert_eq!(world.ended(run).await.state.status(), RunStatus::Cancelled);
        assert_eq!(world.last("a").await.text(), "true\n", "it was told that the question is void");
    }
    assert_eq!(world.processes(), 2, "it ended its turns itself");
    world.close().await;
}
