//! Quirks of agents, each observed in a real agent.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_wrongly_advertises_resume_is_loaded_or_reconstructed() {
    for (features, generation, fidelity) in
        [("boast,load", 1, Fidelity::Native), ("boast", 2, Fidelity::Reconstructed)]
    {
        let mut world = world(features).await;
        world.answer_to("a", "my name is Ada").await;
        world.restart().await;
        let answer = world.answer_to("a", "history").await;
        assert!(answer.contains("my name is Ada"), "{answer}");
        let bindings = world.bindings("a").await;
        let now = (bindings[0].generation, bindings[0].fidelity, bindings[0].reconstructed);
        assert_eq!(now, (generation, fidelity, generation == 2), "{features}");
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_in_memory_is_not_opened_twice() {
    for features in ["strict,load", "strict,resume"] {
        let mut world = world_with(features, |setup| setup.agent.max_processes = 1).await;
        for turn in 0..2 {
            for (key, name) in [("a", "Ada"), ("b", "Bob")] {
                world.answer_to(key, &format!("my name is {name}")).await;
                let answer = world.answer_to(key, "history").await;
                let one = format!("my name is {name}\nhistory\n");
                assert_eq!(answer, one.repeat(turn + 1), "{features}");
            }
        }
        world.restart().await;
        for key in ["a", "b", "a"] {
            world.answer_to(key, "and now?").await;
            assert_eq!(world.bindings(key).await.len(), 1, "{features}");
        }
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_continued_in_another_process_is_resumed_from_there() {
    let world = world_with("strict,load,close", |setup| setup.agent.max_processes = 2).await;
    world.answer_to("a", "one").await;
    // Each time, the process that has the session in memory is busy when the session continues.
    for (key, text) in [("b", "two"), ("c", "three")] {
        let busy = world.start(key, "hang").await;
        world.wait_for_text(key, "hanging").await;
        world.answer_to("a", text).await;
        world.cancel(busy).await;
        world.wait_for_end(busy).await;
        world.answer_to("a", "more").await;
    }
    assert_eq!(world.processes(), 4, "an agent and a guard each");
    assert_eq!(world.answer_to("a", "history").await, "one\ntwo\nmore\nthree\nmore\nhistory\n");
    assert_eq!(world.bindings("a").await.len(), 1);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_locked_by_a_process_continues_in_that_process() {
    let world = world_with("locks,load", |setup| setup.agent.max_processes = 2).await;
    world.answer_to("a", "one").await;
    let mut busy = vec![];
    for key in ["b", "c"] {
        busy.push(world.start(key, "hang").await);
        world.wait_for_text(key, "hanging").await;
    }
    for run in busy {
        world.cancel(run).await;
        world.wait_for_end(run).await;
    }
    assert_eq!(world.answer_to("a", "history").await, "one\nhistory\n");
    assert_eq!(world.bindings("a").await.len(), 1);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_text_on_standard_output_is_part_of_the_failure() {
    let world = world("quits").await;
    let run = serde_json::to_string(&world.run("a", "hi").await).unwrap();
    assert!(run.contains("its last output: acp_agent ready\\nthis version is no longer maintained"), "{run}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mode_is_set_even_if_a_resumed_session_is_reported_without_settings() {
    let mut world = world_with("load,mute,modes", |setup| setup.acp.ask_mode = Some("plan".into())).await;
    world.answer_to("a", "hi").await;
    world.restart().await;
    let run = world.start_request(RunRequest { mode: Mode::Ask, ..request("a", "history") }).await;
    assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Succeeded);
    assert_eq!(world.last_message("a").await.text(), "hi\nmode=\"plan\"\nhistory\n");
    // The agent does not implement the older request that sets a model.
    world.restart().await;
    let mut with_model = request("a", "hi");
    with_model.options.model = Some("m2".into());
    let run = world.start_request(with_model).await;
    let run = serde_json::to_string(&world.wait_for_end(run).await).unwrap();
    assert!(run.contains("the agent does not let the model be chosen"), "{run}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mode_or_model_changed_by_the_agent_is_set_again() {
    let world = world_with("resume,modes", |setup| {
        setup.acp.act_mode = Some("code".into());
        setup.agent.model = Some("m1".into());
    })
    .await;
    world.run("a", "mode plan; model m2").await;
    let chosen = "\"model\"=\"m1\"\nmode=\"code\"\n";
    assert_eq!(world.answer_to("a", "history").await, format!("mode plan; model m2\n{chosen}history\n"));
    assert!(world.answer_to("a", "history").await.ends_with("history\nhistory\n"), "only once");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_tool_call_fails_even_if_the_agent_does_not_report_it() {
    let world = world("resume").await;
    for (decision, code) in [(Approval::Denied, "denied"), (Approval::Allowed, "outcome_unknown")] {
        let run = world.start("a", "ask write a file; done").await;
        let (wait, _) = world.wait_for_question(run).await;
        world.decide(run, wait, decision).await;
        assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Succeeded);
        let events = world.events("a").await;
        let failed = events.iter().rev().find_map(|event| match &event.body {
            Body::ToolFailed { error, .. } => Some(error.code.to_string()),
            _ => None,
        });
        assert_eq!(failed.as_deref(), Some(code), "{events:?}");
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permission_question_contains_earlier_details_of_the_tool_call() {
    let world = world("resume").await;
    let run = world.start("a", "bare remove a file").await;
    let (wait, question) = world.wait_for_question(run).await;
    assert_eq!(question, r#"Allow remove a file? {"what":"remove a file"}"#);
    world.decide(run, wait, Approval::Denied).await;
    world.wait_for_end(run).await;
    world.close().await;
    // Rules see the details, too.
    let world = world_with("resume", |setup| {
        setup.agent.permissions = Permissions::Legacy;
        setup.agent.rules = vec!["deny tool execute remove*".parse().unwrap()];
    })
    .await;
    assert_eq!(world.answer_to("a", "bare remove a file").await, "\"selected\" \"no\"\n");
    assert_eq!(world.answer_to("a", "bare look").await, "\"selected\" \"yes\"\n");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_call_has_the_title_of_its_start() {
    let world = world("resume").await;
    world.run("a", "rename touch a file").await;
    let json = serde_json::to_string(&world.events("a").await).unwrap();
    assert!(json.contains(r#""name":"touch a file","input""#), "{json}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_with_different_ids_become_different_blocks() {
    let world = world("resume").await;
    world.answer_to("a", "part 1 a warning.; part 2 an; part 2 swer").await;
    let texts: Vec<_> =
        world.last_message("a").await.content.iter().map(|block| format!("{block:?}")).collect();
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert!(texts[0].contains("a warning.") && texts[1].contains("answer"), "{texts:?}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_of_another_protocol_version_is_refused() {
    for (feature, message) in [
        ("v2", "speaks version 2 of the Agent Client Protocol"),
        (
            "v2-only",
            "does not speak version 1 of the Agent Client Protocol, which mainspring does: No common version",
        ),
    ] {
        let world = world(feature).await;
        let run = world.run("a", "hi").await;
        assert_eq!((failure_code(&run).as_str(), run.attempts), ("adapter_incompatible", 1), "{run:?}");
        let run = serde_json::to_string(&run).unwrap();
        assert!(run.contains(message), "{run}");
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreported_cost_is_unknown() {
    let mut world = world("load").await;
    for (prompt, cost) in [
        ("spend 0.25", Some(0.25)),
        ("spend 0.75", Some(0.5)),
        ("it does not say", None),
        ("spend 2; this and the one before", None),
        ("spend 2.5", Some(0.5)),
    ] {
        assert_eq!(world.run("a", prompt).await.usage.cost.usd(), cost, "{prompt}");
    }
    world.restart().await;
    let run = world.run("a", "spend 3").await;
    assert_eq!(run.usage.cost.usd(), None, "the cost before the restart is unknown");
    assert_eq!(world.run("a", "spend 3.5").await.usage.cost.usd(), Some(0.5));
    world.close().await;
    // The cost is known if the agent reports its total when it resumes.
    let mut world = self::world("load,bill").await;
    world.run("a", "spend 0.25").await;
    world.restart().await;
    assert_eq!(world.run("a", "spend 1").await.usage.cost.usd(), Some(0.75));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_turn_is_repeated_to_an_agent_that_lost_it() {
    let mut world = world("forgets,resume").await;
    world.answer_to("a", "my name is Ada").await;
    let run = world.run("a", "my dog is Rex; crash").await;
    assert_eq!(failure_code(&run), "transport_interruption");
    world.restart().await;
    world.answer_to("a", "who?").await;
    let cut = "<interrupted> | user: my dog is Rex; crash | assistant: my dog is Rex |  | </interrupted>";
    let answer = world.answer_to("a", "history").await;
    assert!(
        answer.starts_with(&format!("my name is Ada\n{cut}")) && answer.ends_with("\nwho?\n"),
        "{answer}"
    );
    assert_eq!(world.bindings("a").await.len(), 1, "it is the same session");
    // A completed turn is not repeated.
    world.restart().await;
    world.answer_to("a", "and now?").await;
    assert_eq!(world.answer_to("a", "history").await.matches("interrupted").count(), 2);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_prompt_is_repeated_whether_the_process_lives_or_not() {
    let mut world = world("forgets,resume").await;
    world.answer_to("a", "my name is Ada").await;
    for restart in [false, true] {
        let run = world.start("a", "my dog is Rex; hang").await;
        world.wait_for_text("a", "hanging").await;
        world.cancel(run).await;
        assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Cancelled);
        if restart {
            world.restart().await;
        }
        world.answer_to("a", "who?").await;
        let cut =
            "<interrupted> | user: my dog is Rex; hang | assistant: my dog is Rex | hanging | </interrupted>";
        let answer = world.answer_to("a", "history").await;
        assert!(answer.contains(cut) && answer.ends_with("\nwho?\n"), "restarted: {restart}, {answer}");
    }
    assert_eq!(world.bindings("a").await.len(), 1, "it is the same session");
    world.close().await;
}
