//! What agents do that others do not: each of these was seen in a real one.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn one_that_says_it_resumes_and_cannot_is_loaded_or_told_again() {
    for (features, generation, fidelity) in
        [("boast,load", 1, Fidelity::Native), ("boast", 2, Fidelity::Reconstructed)]
    {
        let mut world = world(features).await;
        world.say("a", "my name is Ada").await;
        world.reopen().await;
        let heard = world.say("a", "history").await;
        assert!(heard.contains("my name is Ada"), "{heard}");
        let bindings = world.bindings("a").await;
        let now = (bindings[0].generation, bindings[0].fidelity, bindings[0].reconstructed);
        assert_eq!(now, (generation, fidelity, generation == 2), "{features}");
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_opens_nothing_twice_goes_on_in_what_it_has_open() {
    for features in ["strict,load", "strict,resume"] {
        let mut world = world_with(features, |adapter| adapter.max_processes = Some(1)).await;
        for turn in 0..2 {
            for (key, name) in [("a", "Ada"), ("b", "Bob")] {
                world.say(key, &format!("my name is {name}")).await;
                let heard = world.say(key, "history").await;
                let one = format!("my name is {name}\nhistory\n");
                assert_eq!(heard, one.repeat(turn + 1), "{features}");
            }
        }
        world.reopen().await;
        for key in ["a", "b", "a"] {
            world.say(key, "and now?").await;
            assert_eq!(world.bindings(key).await.len(), 1, "{features}");
        }
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_process_has_gone_on_with_is_taken_up_from_there() {
    let world = world_with("strict,load,close", |adapter| adapter.max_processes = Some(2)).await;
    world.say("a", "one").await;
    // The process that has it in its memory is busy when it goes on, each in turn.
    for (key, text) in [("b", "two"), ("c", "three")] {
        let busy = world.prompt(key, "hang").await;
        world.streams(key, "hanging").await;
        world.say("a", text).await;
        soon(world.node().kernel().run_cancel(&world.me, busy)).await.unwrap();
        world.ended(busy).await;
        world.say("a", "more").await;
    }
    assert_eq!(world.processes(), 4, "an agent and a guard each");
    assert_eq!(world.say("a", "history").await, "one\ntwo\nmore\nthree\nmore\nhistory\n");
    assert_eq!(world.bindings("a").await.len(), 1);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_lets_no_other_process_have_its_session_is_the_one_that_goes_on_with_it() {
    let world = world_with("locks,load", |adapter| adapter.max_processes = Some(2)).await;
    world.say("a", "one").await;
    let mut busy = vec![];
    for key in ["b", "c"] {
        busy.push(world.prompt(key, "hang").await);
        world.streams(key, "hanging").await;
    }
    for run in busy {
        soon(world.node().kernel().run_cancel(&world.me, run)).await.unwrap();
        world.ended(run).await;
    }
    assert_eq!(world.say("a", "history").await, "one\nhistory\n");
    assert_eq!(world.bindings("a").await.len(), 1);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_says_why_it_ends_where_nobody_listens_is_heard_all_the_same() {
    let world = world("quits").await;
    let run = serde_json::to_string(&world.play("a", "hi").await).unwrap();
    assert!(run.contains("its last output: acp_agent ready\\nthis version is no longer maintained"), "{run}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_says_nothing_of_what_it_takes_up_is_told_its_mode_all_the_same() {
    let mut world = world_with("load,mute,modes", |adapter| adapter.ask_mode = Some("plan".into())).await;
    world.say("a", "hi").await;
    world.reopen().await;
    let run = world.send(RunRequest { mode: Mode::Ask, ..request("a", "history") }).await;
    assert_eq!(world.ended(run).await.state.status(), RunStatus::Succeeded);
    assert_eq!(world.last("a").await.text(), "hi\nmode=\"plan\"\nhistory\n");
    // It has no models that are chosen in this way.
    world.reopen().await;
    let mut with_model = request("a", "hi");
    with_model.options.model = Some("m2".into());
    let run = world.send(with_model).await;
    let run = serde_json::to_string(&world.ended(run).await).unwrap();
    assert!(run.contains("the agent does not let the model be chosen"), "{run}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_changes_its_mode_or_model_itself_is_told_again() {
    let world = world_with("resume,modes", |adapter| {
        adapter.act_mode = Some("code".into());
        adapter.model = Some("m1".into());
    })
    .await;
    world.play("a", "mode plan; model m2").await;
    let chosen = "\"model\"=\"m1\"\nmode=\"code\"\n";
    assert_eq!(world.say("a", "history").await, format!("mode plan; model m2\n{chosen}history\n"));
    assert!(world.say("a", "history").await.ends_with("history\nhistory\n"), "and only once");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_was_not_allowed_has_not_run_though_the_agent_does_not_say_so() {
    let world = world("resume").await;
    for (decision, code) in [(Approval::Denied, "denied"), (Approval::Allowed, "outcome_unknown")] {
        let run = world.prompt("a", "ask write a file; done").await;
        let (wait, _) = world.asked(run).await;
        world.answer(run, wait, decision).await;
        assert_eq!(world.ended(run).await.state.status(), RunStatus::Succeeded);
        let events = world.events("a").await;
        let failed = events.iter().rev().find_map(|event| match &event.body {
            Body::ToolFailed { error, .. } => Some(error.code.clone()),
            _ => None,
        });
        assert_eq!(failed.as_deref(), Some(code), "{events:?}");
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_asked_about_a_tool_call_is_told_what_was_said_of_it_before() {
    let world = world("resume").await;
    let run = world.prompt("a", "bare remove a file").await;
    let (wait, question) = world.asked(run).await;
    assert_eq!(question, r#"Allow remove a file? {"what":"remove a file"}"#);
    world.answer(run, wait, Approval::Denied).await;
    world.ended(run).await;
    world.close().await;
    // Rules see it as well.
    let world = world_with("resume", |adapter| {
        adapter.permissions = Some(Permissions::Legacy);
        adapter.rules = Some(vec!["deny tool execute remove*".parse().unwrap()]);
    })
    .await;
    assert_eq!(world.say("a", "bare remove a file").await, "\"selected\" \"no\"\n");
    assert_eq!(world.say("a", "bare look").await, "\"selected\" \"yes\"\n");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_has_the_name_that_it_has_when_it_begins() {
    let world = world("resume").await;
    world.play("a", "rename touch a file").await;
    let json = serde_json::to_string(&world.events("a").await).unwrap();
    assert!(json.contains(r#""name":"touch a file","input""#), "{json}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_the_agent_keeps_apart_are_kept_apart() {
    let world = world("resume").await;
    world.say("a", "part 1 a warning.; part 2 an; part 2 swer").await;
    let texts: Vec<_> = world.last("a").await.content.iter().map(|block| format!("{block:?}")).collect();
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert!(texts[0].contains("a warning.") && texts[1].contains("answer"), "{texts:?}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_speaks_another_version_is_refused_in_plain_words() {
    for (feature, said) in [
        ("v2", "speaks version 2 of the Agent Client Protocol"),
        (
            "v2-only",
            "does not speak version 1 of the Agent Client Protocol, which mainspring does: No common version",
        ),
    ] {
        let world = world(feature).await;
        let run = world.play("a", "hi").await;
        assert_eq!((failure(&run).as_str(), run.attempts), ("adapter_incompatible", 1), "{run:?}");
        let run = serde_json::to_string(&run).unwrap();
        assert!(run.contains(said), "{run}");
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cost_that_nobody_knows_is_not_nothing() {
    let mut world = world("load").await;
    for (prompt, cost) in [
        ("spend 0.25", Some(0.25)),
        ("spend 0.75", Some(0.5)),
        ("it does not say", None),
        ("spend 2; this and the one before", None),
        ("spend 2.5", Some(0.5)),
    ] {
        assert_eq!(world.play("a", prompt).await.usage.cost.usd(), cost, "{prompt}");
    }
    world.reopen().await;
    let run = world.play("a", "spend 3").await;
    assert_eq!(run.usage.cost.usd(), None, "what it had cost before is not known any more");
    assert_eq!(world.play("a", "spend 3.5").await.usage.cost.usd(), Some(0.5));
    world.close().await;
    // Unless it says so when it is taken up.
    let mut world = self::world("load,bill").await;
    world.play("a", "spend 0.25").await;
    world.reopen().await;
    assert_eq!(world.play("a", "spend 1").await.usage.cost.usd(), Some(0.75));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_forgets_a_turn_that_was_cut_short_is_told_of_it() {
    let mut world = world("forgets,resume").await;
    world.say("a", "my name is Ada").await;
    let run = world.play("a", "my dog is Rex; crash").await;
    assert_eq!(failure(&run), "transport_interruption");
    world.reopen().await;
    world.say("a", "who?").await;
    let cut = "<interrupted> | user: my dog is Rex; crash | assistant: my dog is Rex |  | </interrupted>";
    let heard = world.say("a", "history").await;
    assert!(heard.starts_with(&format!("my name is Ada\n{cut}")) && heard.ends_with("\nwho?\n"), "{heard}");
    assert_eq!(world.bindings("a").await.len(), 1, "it is the same session");
    // What has ended is not told again.
    world.reopen().await;
    world.say("a", "and now?").await;
    assert_eq!(world.say("a", "history").await.matches("interrupted").count(), 2);
    world.close().await;
}
