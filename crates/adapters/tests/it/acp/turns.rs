//! Successful turns: text, tools, permissions, continued sessions.

use mainspring_core::{Answer, ApprovalAnswer, ApprovalChoice, ApprovalScope, Block};
use mainspring_kernel::store::SessionRef;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_with_text_thoughts_tools_and_progress() {
    let world = world("resume").await;
    let text = world.answer_to("a", "hello; think tea; tool read; plan write; spend 0.25; bye").await;
    assert_eq!(text, "hello\nbye\n");
    let events = world.events("a").await;
    insta::assert_snapshot!(event_types(&events).join("\n"), @r"
    session.created
    run.queued
    attempt.created
    run.starting
    message.completed
    binding.created
    attempt.started
    run.running
    attempt.confined
    message.completed
    tool.started
    tool.completed
    message.completed
    progress.updated
    tasks.updated
    usage.updated
    message.completed
    session.updated
    run.succeeded
    ");
    let json = serde_json::to_string(&events).unwrap();
    assert!(!json.contains("thinking about"), "thoughts are not stored");
    assert!(
        json.contains(r#""content":[{"type":"text","text":"done it"}],"durationMs""#),
        "in the event: {json}"
    );
    assert!(json.contains("[x] look\\n[>] write"), "{json}");
    insta::assert_snapshot!(world.content("a", 1).await, @r#"
    assistant [{"type":"text","text":"hello\n"},{"type":"tool_use","id":"call-read","name":"read","input":{"path":"/x"}}]
    user [{"type":"tool_result","toolUseId":"call-read","name":"read","content":[{"type":"text","text":"done it"}],"isError":false}]
    assistant [{"type":"text","text":"bye\n"}]
    "#);
    let run = world.run("a", "spend 0.75; more").await;
    assert_eq!((run.usage.input_tokens, run.usage.output_tokens), (3, 2));
    assert!((run.usage.cost.usd().unwrap() - 0.5).abs() < 1e-9, "{:?}", run.usage);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_other_sessions_and_unknown_messages_are_ignored() {
    let world = world("load").await;
    assert_eq!(world.answer_to("a", "one; noise; two").await, "one\nvendor -32601\ntwo\n");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_decides_permissions() {
    let world = world("resume").await;
    for (decision, chosen) in [(Approval::Allowed, "\"yes\""), (Approval::Denied, "\"no\"")] {
        let run = world.start("a", "ask write a file; done").await;
        let (wait, question) = world.wait_for_question(run).await;
        assert_eq!(question, r#"Allow write a file? {"what":"write a file"}"#);
        world.decide(run, wait, decision).await;
        assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Succeeded);
        assert_eq!(world.last_message("a").await.text(), format!("\"selected\" {chosen}\ndone\n"));
    }
    let events = world.events("a").await;
    let resolved = events.iter().filter(|event| matches!(event.body, Body::ApprovalResolved { .. })).count();
    assert_eq!(resolved, 2);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_shows_its_changes_and_can_be_allowed_for_the_session() {
    let world = world("resume").await;
    let run = world.start("a", "ask edit /repo/a.rs; done").await;
    let (wait, _) = world.wait_for_question(run).await;
    let known = world.wait_until(run, |_| true).await;
    let approval = known.state.wait().unwrap().approval.clone().unwrap();
    let call = approval.call.unwrap();
    assert_eq!((call.kind.as_deref(), call.locations[0].path.as_str()), (Some("edit"), "/repo/a.rs"));
    let is_change = |block: &Block| matches!(block, Block::Diff { before, after, .. } if before.as_deref() == Some("old\n") && after.as_deref() == Some("new\n"));
    assert!(call.diff.iter().all(is_change) && call.diff.len() == 1, "{:?}", call.diff);
    assert!(
        !approval.answers.contains(&ApprovalChoice::DenyWithReason),
        "the protocol has no field for a reason"
    );
    let for_session = ApprovalAnswer { scope: ApprovalScope::Session, ..Approval::Allowed.into() };
    let answer = Answer::Approval(for_session);
    world.kernel().run_answer(&world.me, run, wait, answer).await.unwrap();
    assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Succeeded);
    // The same file again: the agent gets its narrowest option, and no person is asked.
    assert_eq!(world.answer_to("a", "ask edit /repo/a.rs; done").await, "\"selected\" \"yes\"\ndone\n");
    let run = world.start("a", "ask edit /repo/b.rs; done").await;
    let (wait, _) = world.wait_for_question(run).await;
    world.decide(run, wait, Approval::Denied).await;
    world.wait_for_end(run).await;
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_by_policy_is_recorded_with_its_grant() {
    for (permissions, mode, chosen) in [
        (Permissions::Legacy, Mode::Act, "yes"),
        (Permissions::Deny, Mode::Act, "no"),
        (Permissions::Legacy, Mode::Ask, "no"),
    ] {
        let world = world_with("none", |setup| setup.agent.permissions = permissions).await;
        let run = world.start_request(RunRequest { mode, ..request("a", "ask write") }).await;
        assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Succeeded);
        assert_eq!(world.last_message("a").await.text(), format!("\"selected\" \"{chosen}\"\n"));
        let events = world.events("a").await;
        let resolved = events.iter().find_map(|event| match &event.body {
            Body::ApprovalResolved { decision, grant_id, .. } => Some((*decision, *grant_id)),
            _ => None,
        });
        let (decision, grant) = resolved.unwrap();
        assert_eq!(decision == Approval::Allowed, chosen == "yes");
        assert!(grant.is_some());
        assert!(!event_types(&events).contains(&"run.waiting_approval"));
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_is_recorded_with_its_maker_and_the_reply_to_the_agent() {
    let ask_mode = |prompt| RunRequest { mode: Mode::Ask, ..request("a", prompt) };
    let policy = Decider::policy;
    let rule = |rule: &str| Decider::Rule { rule: rule.into() };
    for (permissions, request, decision, by, told) in [
        (Permissions::Legacy, request("a", "ask x"), Approval::Allowed, policy("legacy"), "allow_once"),
        (Permissions::Deny, request("a", "ask x"), Approval::Denied, policy("deny"), "reject_once"),
        (Permissions::Legacy, ask_mode("ask x"), Approval::Denied, policy("mode_ask"), "reject_once"),
        (
            Permissions::Ask,
            request("a", "ask ruled"),
            Approval::Allowed,
            rule("allow tool * ruled"),
            "allow_once",
        ),
        // The agent offers no option that allows, or none that denies.
        (
            Permissions::Legacy,
            request("a", "warned x"),
            Approval::Denied,
            policy("no_allow_option"),
            "reject_once",
        ),
        (Permissions::Deny, request("a", "obliged x"), Approval::Denied, policy("deny"), "cancelled"),
    ] {
        let world = world_with("none", |setup| {
            setup.agent.permissions = permissions;
            setup.agent.rules = vec!["allow tool * ruled".parse().unwrap()];
        })
        .await;
        let run = world.start_request(request.clone()).await;
        world.wait_for_end(run).await;
        let reply = world.last_message("a").await.text();
        assert_eq!(reply.starts_with("\"cancelled\""), told == "cancelled", "{reply}");
        assert_eq!(reply.contains("\"yes\""), decision == Approval::Allowed, "{reply}");
        let resolved = resolutions(&world).await;
        assert_eq!(resolved, [(decision, Some(by), Some(told.to_owned()))], "{request:?}");
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_persons_decision_is_recorded_with_the_person_and_the_reply_to_the_agent() {
    let world = world("resume").await;
    for decision in [Approval::Allowed, Approval::Denied] {
        let run = world.start("a", "obliged x").await;
        let (wait, _) = world.wait_for_question(run).await;
        world.decide(run, wait, decision).await;
        world.wait_for_end(run).await;
    }
    let me = || Some(Decider::Person { owner_id: world.me.owner.clone() });
    assert_eq!(
        resolutions(&world).await,
        [
            (Approval::Allowed, me(), Some("allow_once".to_owned())),
            (Approval::Denied, me(), Some("cancelled".to_owned()))
        ]
    );
    world.close().await;
}

/// The decisions of the session `a`: each with its decider and the reply to the agent.
async fn resolutions(world: &World) -> Vec<(Approval, Option<Decider>, Option<String>)> {
    let events = world.events("a").await;
    let resolved = events.iter().filter_map(|event| match &event.body {
        Body::ApprovalResolved { decision, decided_by, told, .. } => {
            Some((*decision, decided_by.as_deref().cloned(), told.clone()))
        }
        _ => None,
    });
    resolved.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_continues_in_the_same_process_and_in_the_next() {
    for (resumes, fidelity) in
        [("resume", Fidelity::Native), ("load", Fidelity::Native), ("none", Fidelity::Reconstructed)]
    {
        let mut world = world(resumes).await;
        world.answer_to("a", "my name is Ada").await;
        let answer = world.answer_to("a", "history").await;
        assert_eq!(answer, "my name is Ada\nhistory\n", "{resumes}");
        assert_eq!(world.bindings("a").await.len(), 1, "{resumes}");
        assert_eq!(world.bindings("a").await[0].fidelity, fidelity, "{resumes}");
        world.restart().await;
        let answer = world.answer_to("a", "history").await;
        let bindings = world.bindings("a").await;
        if resumes == "none" {
            assert!(answer.contains("user: my name is Ada | assistant: my name is Ada"), "{answer}");
            assert_eq!((bindings.len(), bindings[0].generation), (2, 2));
            assert!(bindings[0].reconstructed);
        } else {
            assert_eq!(answer, "my name is Ada\nhistory\nhistory\n", "{resumes}");
            assert_eq!(bindings.len(), 1, "{resumes}");
        }
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_sessions_have_their_own_processes_and_do_not_mix() {
    let world = world_with("resume", |setup| setup.agent.max_processes = 4).await;
    let runs: Vec<RunId> = {
        let mut runs = vec![];
        for no in 0..4 {
            runs.push(world.start(&format!("s{no}"), &format!("i am {no}; hang")).await);
        }
        runs
    };
    for no in 0..4 {
        world.wait_for_text(&format!("s{no}"), "hanging").await;
    }
    world.wait_for_processes(8).await;
    for run in &runs {
        world.cancel(*run).await;
    }
    for (no, run) in runs.iter().enumerate() {
        assert_eq!(world.wait_for_end(*run).await.state.status(), RunStatus::Cancelled);
        assert_eq!(world.last_message(&format!("s{no}")).await.text(), format!("i am {no}\nhanging"));
    }
    // More sessions than processes: they share the processes without mixing.
    for no in 0..8 {
        world.start(&format!("t{no}"), &format!("my number is {no}")).await;
    }
    with_timeout(world.kernel().drain()).await;
    for no in 0..8 {
        let answer = world.answer_to(&format!("t{no}"), "history").await;
        assert_eq!(answer, format!("my number is {no}\nhistory\n"));
    }
    assert!(world.processes() <= 8, "{}", world.processes());
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_set_if_the_agent_offers_it() {
    let world = world("resume").await;
    let with_model = |key: &str, model: &str| {
        let mut request = request(key, "history");
        request.options.model = Some(model.into());
        request
    };
    let run = world.start_request(with_model("a", "m2")).await;
    world.wait_for_end(run).await;
    assert_eq!(world.last_message("a").await.text(), "\"model\"=\"m2\"\nhistory\n");
    // In the same open session only another model is set.
    for (model, noted) in [("m2", ""), ("m1", "\"model\"=\"m1\"\n")] {
        let before = world.last_message("a").await.text();
        let run = world.start_request(with_model("a", model)).await;
        world.wait_for_end(run).await;
        assert_eq!(world.last_message("a").await.text(), format!("{before}{noted}history\n"));
    }
    let run = world.start_request(with_model("b", "m3")).await;
    let ended = serde_json::to_string(&world.wait_for_end(run).await).unwrap();
    assert!(ended.contains(r#"the agent has no model \"m3\"; it has m1, m2"#), "{ended}");
    // Another name of the same model.
    let run = world.start_request(with_model("c", "vendor/m2-20250929")).await;
    world.wait_for_end(run).await;
    assert_eq!(world.last_message("c").await.text(), "\"model\"=\"m2\"\nhistory\n");
    world.close().await;
    // An agent that lists no models accepts or refuses the configured name.
    let world = self::world("resume,listless").await;
    let run = world.start_request(with_model("a", "m7")).await;
    world.wait_for_end(run).await;
    assert_eq!(world.last_message("a").await.text(), "model=\"m7\"\nhistory\n");
    let run = world.start_request(with_model("b", "bad")).await;
    let ended = serde_json::to_string(&world.wait_for_end(run).await).unwrap();
    assert!(ended.contains("no such model: bad"), "{ended}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_profile_stands_for_a_model_of_the_agent() {
    let profiles = |setup: &mut Setup| {
        setup.agent.model = Some("m1".into());
        setup.agent.profiles = [("worker".to_owned(), "m2".to_owned())].into();
    };
    let mut world = world_with("resume", profiles).await;
    let with_profile = |key: &str, profile: &str| {
        let mut request = request(key, "history");
        request.options.model_profile = Some(profile.into());
        request
    };
    let run = world.start_request(with_profile("a", "worker")).await;
    let run = world.wait_for_end(run).await;
    assert_eq!(world.last_message("a").await.text(), "\"model\"=\"m2\"\nhistory\n");
    assert_eq!(run.options.model_profile.as_deref(), Some("worker"));
    // An explicit model takes precedence.
    let mut both = with_profile("b", "worker");
    both.options.model = Some("m1".into());
    let run = world.start_request(both).await;
    world.wait_for_end(run).await;
    assert_eq!(world.last_message("b").await.text(), "history\n");
    // An unknown profile is refused before anything is made, of a run as well as of a session.
    let mut of_session = request("c", "history");
    of_session.session.new.model_profile = Some("verifier".into());
    for unknown in [with_profile("c", "verifier"), of_session] {
        let error = world.kernel().run_create(&world.me, unknown).await.unwrap_err();
        assert!(error.to_string().contains(r#"has no model profile "verifier"; it has worker"#), "{error}");
    }
    assert!(world.kernel().session_get(&world.me, &SessionRef::Key("c".into())).await.is_err());
    // The profile of a session is a default: one that is gone falls back, and the run reports it.
    let mut session = request("d", "history");
    session.session.new.model_profile = Some("worker".into());
    let run = world.start_request(session).await;
    world.wait_for_end(run).await;
    world.setup.agent.profiles = [("main".to_owned(), "m1".to_owned())].into();
    world.restart().await;
    let run = world.start_request(request("d", "history")).await;
    assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Succeeded);
    let events = serde_json::to_string(&world.events("d").await).unwrap();
    assert!(events.contains("the default model is used"), "{events}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn instructions_are_sent_once_and_new_ones_open_a_new_session() {
    let world = world("resume").await;
    let with = |system: &str| {
        let mut request = request("a", "history");
        request.options.system_prompt = Some(system.into());
        request
    };
    let preface = "<instructions> | be kind | </instructions>\n";
    for (system, expected) in
        [("be kind", format!("{preface}history\n")), ("be kind", format!("{preface}history\nhistory\n"))]
    {
        let run = world.start_request(with(system)).await;
        world.wait_for_end(run).await;
        assert_eq!(world.last_message("a").await.text(), expected);
    }
    let run = world.start_request(with("be short")).await;
    world.wait_for_end(run).await;
    let answer = world.last_message("a").await.text();
    assert!(answer.starts_with("<instructions> | be short") && answer.contains("user: history"), "{answer}");
    assert_eq!(world.bindings("a").await.len(), 2);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_sessions_run_concurrently_and_queued_ones_are_cancelled_at_once() {
    let world = world_with("resume", |setup| setup.agent.max_processes = 8).await;
    let mut running = vec![];
    for no in 0..8 {
        running.push(world.start(&format!("r{no}"), "hang").await);
    }
    for no in 0..8 {
        world.wait_for_text(&format!("r{no}"), "hanging").await;
    }
    let mut queued = vec![];
    for no in 0..100 {
        queued.push(world.start(&format!("q{no}"), "hang").await);
    }
    for run in &queued {
        let outcome = world.cancel(*run).await;
        assert_eq!(outcome.status, RunStatus::Cancelled, "a queued run ends at once");
    }
    let last = world.start("z", "at last").await;
    for run in &running {
        world.cancel(*run).await;
        assert_eq!(world.wait_for_end(*run).await.state.status(), RunStatus::Cancelled);
    }
    assert_eq!(world.wait_for_end(last).await.state.status(), RunStatus::Succeeded);
    assert_eq!(world.processes(), 16, "an agent and a guard each, reused");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_queued_runs_are_shared_fairly_between_owners() {
    let world = world_with("resume", |setup| setup.agent.max_processes = 8).await;
    let kernel = world.kernel();
    let mut running = vec![];
    for no in 0..8 {
        running.push(world.start(&format!("r{no}"), "hang").await);
    }
    for no in 0..8 {
        world.wait_for_text(&format!("r{no}"), "hanging").await;
    }
    // One owner queues many runs before the other queues any.
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
        with_timeout(kernel.run_cancel(&world.me, *run)).await.unwrap();
    }
    with_timeout(kernel.drain()).await;
    let mut begun = vec![];
    for (owner, run) in queued {
        assert_eq!(kernel.run_get(owner, run.id).await.unwrap().state.status(), RunStatus::Succeeded);
        let session = session_ref(&run.session.to_string()).unwrap();
        let start = mainspring_core::Cursor::START;
        let events = kernel.session_events(owner, &session, start, None).await.unwrap();
        let starting = events.iter().find(|event| event.body.kind() == "run.starting").unwrap();
        begun.push((starting.cursor, run.owner));
    }
    begun.sort();
    let of_bob = begun.iter().take(30).filter(|(_, owner)| owner == "bob").count();
    assert_eq!(of_bob, 10, "they alternate: {begun:?}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_answer_arrives_complete() {
    let world = world("none").await;
    let text = world.answer_to("a", "flood 20000").await;
    assert_eq!(text, "0123456789".repeat(20_000));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attachments_are_sent_in_a_form_that_the_agent_supports() {
    let (text, zip, wave) =
        (b"hello; there".as_slice(), b"PK\x03\x04\xff\xfe".as_slice(), b"RIFF\xff\xfe\0\0WAVE".as_slice());
    for (features, mime_type, bytes, expected) in [
        ("image", "image/png", PICTURE, Ok(r#"[image "image/png" "iVBORw0KGgo"#)),
        ("embedded", "text/plain", text, Ok(r#"" "hello; there"]"#)),
        ("embedded", "application/zip", zip, Ok(r#"[resource "artifact:art_"#)),
        ("none", "text/plain", text, Ok("> | hello; there | </file>")),
        ("embedded", "image/png", PICTURE, Err("takes no files of type")),
        ("image", "application/zip", zip, Err("put the file's path into the prompt instead")),
        ("image", "audio/wav", wave, Err("takes no files of type")),
    ] {
        let world = world(&format!("resume,{features}")).await;
        world.answer_to("a", "hi").await;
        let run = world.start_request(world.request_with_file("a", "history", mime_type, bytes).await).await;
        let run = world.wait_for_end(run).await;
        match expected {
            Ok(part) => assert!(
                world.last_message("a").await.text().contains(part),
                "{:?}",
                world.last_message("a").await
            ),
            Err(why) => {
                assert_eq!(failure_code(&run), "adapter_incompatible", "{features} {mime_type}");
                let json = serde_json::to_string(&run).unwrap();
                assert!(json.contains(why), "{json}");
                assert_eq!(
                    world.answer_to("a", "history").await,
                    "hi\nhistory\n",
                    "nothing was sent to the agent"
                );
            }
        }
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agents_mode_follows_the_mode_of_the_run() {
    let world = world_with("resume,modes", |setup| {
        setup.acp.act_mode = Some("code".into());
        setup.acp.ask_mode = Some("plan".into());
        // One process serves both modes.
        setup.agent.sandbox.profile = Some(SandboxProfile::ReadOnly);
    })
    .await;
    let answer = async |mode| {
        let run = world.start_request(RunRequest { mode, ..request("a", "history") }).await;
        world.wait_for_end(run).await;
        world.last_message("a").await.text()
    };
    assert_eq!(answer(Mode::Act).await, "history\n", "it is already in that mode");
    assert_eq!(answer(Mode::Ask).await, "history\nmode=\"plan\"\nhistory\n");
    assert!(answer(Mode::Act).await.ends_with("mode=\"code\"\nhistory\n"));
    world.close().await;
    let world = world_with("resume", |setup| setup.acp.act_mode = Some("code".into())).await;
    let run = serde_json::to_string(&world.run("a", "hi").await).unwrap();
    assert!(run.contains("the agent does not let the mode be chosen"), "{run}");
    world.close().await;
}
