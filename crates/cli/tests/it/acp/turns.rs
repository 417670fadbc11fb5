//! Turns that go well: text, tools, permissions, sessions that go on.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_with_text_thoughts_tools_and_progress() {
    let world = world("resume").await;
    let text = world.say("a", "hello; think tea; tool read; plan write; spend 0.25; bye").await;
    assert_eq!(text, "hello\nbye\n");
    let events = world.events("a").await;
    insta::assert_snapshot!(kinds(&events).join("\n"), @r"
    session.created
    run.queued
    attempt.created
    run.starting
    message.completed
    binding.created
    attempt.started
    run.running
    tool.started
    tool.updated
    tool.completed
    progress.updated
    usage.updated
    message.completed
    session.updated
    run.succeeded
    ");
    let json = serde_json::to_string(&events).unwrap();
    assert!(!json.contains("thinking about"), "thoughts are stored nowhere");
    assert!(json.contains(r#""name":"read","input":{"path":"/x"}"#), "{json}");
    assert!(json.contains("[x] look\\n[>] write"), "{json}");
    let message = world.last("a").await;
    assert_eq!(message.content.len(), 2, "text before and after a tool are two blocks: {message:?}");
    let run = world.play("a", "spend 0.75; more").await;
    assert_eq!((run.usage.input_tokens, run.usage.output_tokens), (3, 2));
    assert!((run.usage.cost.usd().unwrap() - 0.5).abs() < 1e-9, "{:?}", run.usage);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_concerns_another_session_or_is_unknown_is_dropped_and_the_turn_goes_on() {
    let world = world("load").await;
    assert_eq!(world.say("a", "one; noise; two").await, "one\nvendor -32601\ntwo\n");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_decides_what_the_agent_may_do() {
    let world = world("resume").await;
    for (decision, chosen) in [(Approval::Allowed, "\"yes\""), (Approval::Denied, "\"no\"")] {
        let run = world.prompt("a", "ask write a file; done").await;
        let (wait, question) = world.asked(run).await;
        assert_eq!(question, r#"Allow write a file? {"what":"write a file"}"#);
        world.answer(run, wait, decision).await;
        assert_eq!(world.ended(run).await.state.status(), RunStatus::Succeeded);
        assert_eq!(world.last("a").await.text(), format!("\"selected\" {chosen}\ndone\n"));
    }
    let events = world.events("a").await;
    let resolved = events.iter().filter(|event| matches!(event.body, Body::ApprovalResolved { .. })).count();
    assert_eq!(resolved, 2);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_decided_without_asking_is_recorded_and_names_its_grant() {
    for (permissions, mode, chosen) in [
        (Permissions::Legacy, Mode::Act, "yes"),
        (Permissions::Deny, Mode::Act, "no"),
        (Permissions::Legacy, Mode::Ask, "no"),
    ] {
        let world = world_with("none", |adapter| adapter.permissions = Some(permissions)).await;
        let run = world.send(RunRequest { mode, ..request("a", "ask write") }).await;
        assert_eq!(world.ended(run).await.state.status(), RunStatus::Succeeded);
        assert_eq!(world.last("a").await.text(), format!("\"selected\" \"{chosen}\"\n"));
        let events = world.events("a").await;
        let resolved = events.iter().find_map(|event| match &event.body {
            Body::ApprovalResolved { decision, grant_id, .. } => Some((*decision, *grant_id)),
            _ => None,
        });
        let (decision, grant) = resolved.unwrap();
        assert_eq!(decision == Approval::Allowed, chosen == "yes");
        assert!(grant.is_some());
        assert!(!kinds(&events).contains(&"run.waiting_approval"));
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_goes_on_with_all_it_knows_in_the_same_process_and_in_the_next() {
    for (resumes, fidelity) in
        [("resume", Fidelity::Native), ("load", Fidelity::Native), ("none", Fidelity::Reconstructed)]
    {
        let mut world = world(resumes).await;
        world.say("a", "my name is Ada").await;
        let heard = world.say("a", "history").await;
        assert_eq!(heard, "my name is Ada\nhistory\n", "{resumes}");
        assert_eq!(world.bindings("a").await.len(), 1, "{resumes}");
        assert_eq!(world.bindings("a").await[0].fidelity, fidelity, "{resumes}");
        world.reopen().await;
        let heard = world.say("a", "history").await;
        let bindings = world.bindings("a").await;
        if resumes == "none" {
            assert!(heard.contains("user: my name is Ada | assistant: my name is Ada"), "{heard}");
            assert_eq!((bindings.len(), bindings[0].generation), (2, 2));
            assert!(bindings[0].reconstructed);
        } else {
            assert_eq!(heard, "my name is Ada\nhistory\nhistory\n", "{resumes}");
            assert_eq!(bindings.len(), 1, "{resumes}");
        }
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_work_side_by_side_in_processes_of_their_own_and_do_not_mix() {
    let world = world_with("resume", |adapter| adapter.max_processes = Some(4)).await;
    let runs: Vec<RunId> = {
        let mut runs = vec![];
        for no in 0..4 {
            runs.push(world.prompt(&format!("s{no}"), &format!("i am {no}; hang")).await);
        }
        runs
    };
    for no in 0..4 {
        world.streams(&format!("s{no}"), "hanging").await;
    }
    world.grows_to(8).await;
    for run in &runs {
        soon(world.node().kernel().run_cancel(&world.me, *run)).await.unwrap();
    }
    for (no, run) in runs.iter().enumerate() {
        assert_eq!(world.ended(*run).await.state.status(), RunStatus::Cancelled);
        assert_eq!(world.last(&format!("s{no}")).await.text(), format!("i am {no}\nhanging"));
    }
    // More sessions than processes: they take turns, and each knows its own.
    for no in 0..8 {
        world.prompt(&format!("t{no}"), &format!("my number is {no}")).await;
    }
    soon(world.node().kernel().drain()).await;
    for no in 0..8 {
        let heard = world.say(&format!("t{no}"), "history").await;
        assert_eq!(heard, format!("my number is {no}\nhistory\n"));
    }
    assert!(world.processes() <= 8, "{}", world.processes());
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_is_chosen_where_the_agent_offers_it() {
    let world = world("resume").await;
    let with_model = |key: &str, model: &str| {
        let mut request = request(key, "history");
        request.options.model = Some(model.into());
        request
    };
    let run = world.send(with_model("a", "m2")).await;
    world.ended(run).await;
    assert_eq!(world.last("a").await.text(), "\"model\"=\"m2\"\nhistory\n");
    // In the same process, which opens nothing anew: the same one is not chosen again, another one is.
    for (model, noted) in [("m2", ""), ("m1", "\"model\"=\"m1\"\n")] {
        let before = world.last("a").await.text();
        let run = world.send(with_model("a", model)).await;
        world.ended(run).await;
        assert_eq!(world.last("a").await.text(), format!("{before}{noted}history\n"));
    }
    let run = world.send(with_model("b", "m3")).await;
    let ended = serde_json::to_string(&world.ended(run).await).unwrap();
    assert!(ended.contains(r#"the agent has no model \"m3\"; it has m1, m2"#), "{ended}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn instructions_are_told_once_and_other_ones_are_another_session() {
    let world = world("resume").await;
    let with = |system: &str| {
        let mut request = request("a", "history");
        request.options.system_prompt = Some(system.into());
        request
    };
    let told = "<instructions> | be kind | </instructions>\n";
    for (system, expected) in
        [("be kind", format!("{told}history\n")), ("be kind", format!("{told}history\nhistory\n"))]
    {
        let run = world.send(with(system)).await;
        world.ended(run).await;
        assert_eq!(world.last("a").await.text(), expected);
    }
    let run = world.send(with("be short")).await;
    world.ended(run).await;
    let heard = world.last("a").await.text();
    assert!(heard.starts_with("<instructions> | be short") && heard.contains("user: history"), "{heard}");
    assert_eq!(world.bindings("a").await.len(), 2);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_authenticates_in_the_way_it_is_told() {
    let world = world_with("none", |adapter| adapter.auth_method = Some("token".into())).await;
    assert_eq!(world.say("a", "hi").await, "hi\n");
    world.close().await;
    let world = world_with("none", |adapter| adapter.auth_method = Some("magic".into())).await;
    let run = serde_json::to_string(&world.play("a", "hi").await).unwrap();
    assert!(run.contains("authentication") && run.contains("it has token"), "{run}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_sessions_run_side_by_side_and_those_behind_them_are_cancelled_at_once() {
    let world = world_with("resume", |adapter| adapter.max_processes = Some(8)).await;
    let mut running = vec![];
    for no in 0..8 {
        running.push(world.prompt(&format!("r{no}"), "hang").await);
    }
    for no in 0..8 {
        world.streams(&format!("r{no}"), "hanging").await;
    }
    let mut queued = vec![];
    for no in 0..100 {
        queued.push(world.prompt(&format!("q{no}"), "hang").await);
    }
    for run in &queued {
        let outcome = soon(world.node().kernel().run_cancel(&world.me, *run)).await.unwrap();
        assert_eq!(outcome.status, RunStatus::Cancelled, "what has not begun has ended when it is told to");
    }
    let last = world.prompt("z", "at last").await;
    for run in &running {
        soon(world.node().kernel().run_cancel(&world.me, *run)).await.unwrap();
        assert_eq!(world.ended(*run).await.state.status(), RunStatus::Cancelled);
    }
    assert_eq!(world.ended(last).await.state.status(), RunStatus::Succeeded);
    assert_eq!(world.processes(), 16, "an agent and a guard each, used again");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_that_wait_behind_eight_all_run_and_no_owner_waits_for_another() {
    let world = world_with("resume", |adapter| adapter.max_processes = Some(8)).await;
    let kernel = world.node().kernel();
    let mut running = vec![];
    for no in 0..8 {
        running.push(world.prompt(&format!("r{no}"), "hang").await);
    }
    for no in 0..8 {
        world.streams(&format!("r{no}"), "hanging").await;
    }
    // One has asked for much before the other asked for anything.
    let owners = [Caller::new("ada"), Caller::new("bob")];
    let mut queued = vec![];
    for (owner, many) in owners.iter().zip([90, 10]) {
        for no in 0..many {
            let accepted = kernel.run_create(owner, request(&format!("q{no}"), "hi")).await.unwrap();
            assert_eq!(accepted.run.state.status(), RunStatus::Queued);
            queued.push((owner, accepted.run));
        }
    }
    for run in &running {
        soon(kernel.run_cancel(&world.me, *run)).await.unwrap();
    }
    soon(kernel.drain()).await;
    let mut begun = vec![];
    for (owner, run) in queued {
        assert_eq!(kernel.run_get(owner, run.id).await.unwrap().state.status(), RunStatus::Succeeded);
        let session = session_ref(&run.session.to_string()).unwrap();
        let start = mainspring::core::Cursor::START;
        let events = kernel.session_events(owner, &session, start, None).await.unwrap();
        let starting = events.iter().find(|event| event.body.kind() == "run.starting").unwrap();
        begun.push((starting.cursor, run.owner));
    }
    begun.sort();
    let of_bob = begun.iter().take(30).filter(|(_, owner)| owner == "bob").count();
    assert_eq!(of_bob, 10, "they take turns: {begun:?}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_text_arrives_whole() {
    let world = world("none").await;
    let text = world.say("a", "flood 20000").await;
    assert_eq!(text, "0123456789".repeat(20_000));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_handed_over_as_the_agent_takes_them() {
    let text = b"hello; there".as_slice();
    for (features, mime_type, bytes, heard) in [
        ("image", "image/png", PICTURE, Ok(r#"[image "image/png" "iVBORw0KGgo"#)),
        ("embedded", "text/plain", text, Ok(r#"" "hello; there"]"#)),
        ("embedded", "application/zip", PICTURE, Ok(r#"[resource "artifact:art_"#)),
        ("none", "text/plain", text, Ok("> | hello; there | </file>")),
        ("embedded", "image/png", PICTURE, Err("takes no files of type")),
        ("image", "application/zip", PICTURE, Err("put the file's path into the prompt instead")),
        ("image", "audio/wav", PICTURE, Err("takes no files of type")),
    ] {
        let world = world(&format!("resume,{features}")).await;
        world.say("a", "hi").await;
        let run = world.send(world.with_file("a", "history", mime_type, bytes).await).await;
        let run = world.ended(run).await;
        match heard {
            Ok(part) => assert!(world.last("a").await.text().contains(part), "{:?}", world.last("a").await),
            Err(why) => {
                assert_eq!(failure(&run), "adapter_incompatible", "{features} {mime_type}");
                let json = serde_json::to_string(&run).unwrap();
                assert!(json.contains(why), "{json}");
                assert_eq!(world.say("a", "history").await, "hi\nhistory\n", "it has heard nothing of it");
            }
        }
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mode_is_chosen_by_what_a_run_may_do() {
    let world = world_with("resume,modes", |adapter| {
        adapter.act_mode = Some("code".into());
        adapter.ask_mode = Some("plan".into());
    })
    .await;
    let say = async |mode| {
        let run = world.send(RunRequest { mode, ..request("a", "history") }).await;
        world.ended(run).await;
        world.last("a").await.text()
    };
    assert_eq!(say(Mode::Act).await, "history\n", "it is in that mode already");
    assert_eq!(say(Mode::Ask).await, "history\nmode=\"plan\"\nhistory\n");
    assert!(say(Mode::Act).await.ends_with("mode=\"code\"\nhistory\n"));
    world.close().await;
    let world = world_with("resume", |adapter| adapter.act_mode = Some("code".into())).await;
    let run = serde_json::to_string(&world.play("a", "hi").await).unwrap();
    assert!(run.contains("the agent does not let the mode be chosen"), "{run}");
    world.close().await;
}
