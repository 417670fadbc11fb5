//! Turns that go well: text, tools, models, sessions that go on.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_with_text_thoughts_tools_notices_and_usage() {
    let world = world("keep").await;
    let text = world
        .say("a", "hello; think tea; tool read; tell I am here; step; spend 0.5; bad-tool write; bye")
        .await;
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
    tool.started
    tool.failed
    usage.updated
    message.completed
    session.updated
    run.succeeded
    ");
    let json = serde_json::to_string(&events).unwrap();
    assert!(!json.contains("thinking about"), "thoughts are stored nowhere");
    assert!(json.contains(r#""name":"read","input":{"path":"/x"}"#), "{json}");
    assert!(json.contains("I am here") && !json.contains("half of it"), "{json}");
    let message = world.last("a").await;
    assert_eq!(message.content.len(), 2, "each message of the agent is a block: {message:?}");
    let run = world.play("a", "more").await;
    assert_eq!((run.usage.input_tokens, run.usage.output_tokens), (1, 1));
    let cost = world.node().kernel().run_get(&world.me, events[1].run.unwrap()).await.unwrap().usage.cost;
    assert!((cost.usd().unwrap() - 0.75).abs() < 1e-9, "what each message cost is summed: {cost:?}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_unknown_or_no_record_is_passed_over_and_the_turn_goes_on() {
    let world = world("keep").await;
    assert_eq!(world.say("a", "one; noise; two").await, "one\ncancelled true\u{2028}two\n");
    assert_eq!(world.say("a", "three").await, "three\n");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_does_not_stream_is_heard_and_one_that_is_tried_again_is_not_heard_twice() {
    let world = world("keep").await;
    assert_eq!(world.say("a", "whole answer").await, "answer");
    let text = world.say("a", "stumble 529 overloaded; done").await;
    assert_eq!(text, "done\n");
    assert!(
        serde_json::to_string(&world.events("a").await).unwrap().contains("trying again: 529 overloaded")
    );
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_an_extension_deals_with_ends_with_it() {
    let world = world("keep").await;
    world.say("a", "hello").await;
    assert_eq!(world.say("a", "/status all is well").await, "");
    assert!(serde_json::to_string(&world.events("a").await).unwrap().contains("status all is well"));
    assert_eq!(world.say("a", "history").await, "hello\nhistory");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_does_not_say_that_it_has_settled_has_when_it_is_idle() {
    let world = world("old").await;
    assert_eq!(world.say("a", "hello; stumble 500; tool read; bye").await, "hello\nbye\n");
    let run = world.prompt("a", "hang").await;
    world.streams("a", "hanging").await;
    soon(world.node().kernel().run_cancel(&world.me, run)).await.unwrap();
    assert_eq!(world.ended(run).await.state.status(), RunStatus::Cancelled);
    assert_eq!(world.say("a", "on").await, "on\n");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_goes_on_with_all_it_knows_in_the_same_process_and_in_the_next() {
    for (manner, fidelity) in [("keep", Fidelity::Native), ("forget", Fidelity::Reconstructed)] {
        let mut world = world(manner).await;
        world.say("a", "my name is Ada").await;
        assert_eq!(world.say("a", "history").await, "my name is Ada\nhistory", "{manner}");
        let bindings = world.bindings("a").await;
        assert_eq!((bindings.len(), bindings[0].fidelity), (1, fidelity), "{manner}");
        world.reopen().await;
        let heard = world.say("a", "history").await;
        let bindings = world.bindings("a").await;
        if manner == "forget" {
            assert!(heard.contains("user: my name is Ada | assistant: my name is Ada"), "{heard}");
            assert_eq!((bindings.len(), bindings[0].generation, bindings[0].reconstructed), (2, 2, true));
        } else {
            assert_eq!(heard, "my name is Ada\nhistory\nhistory");
            assert_eq!(bindings.len(), 1);
        }
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_keeps_its_process_and_conversations_never_mix() {
    let world = world_with("keep", |adapter| adapter.max_processes = Some(2)).await;
    world.say("a", "i am a").await;
    world.say("b", "i am b").await;
    assert_eq!(world.processes(), 4, "each has a process, and that a guard");
    assert_eq!(world.say("a", "history").await, "i am a\nhistory");
    // There is no room for a third: the one that has been idle longest opens a new session.
    assert_eq!(world.say("c", "history").await, "history");
    assert_eq!(world.processes(), 4);
    for (key, heard) in
        [("b", "i am b\nhistory"), ("c", "history\nhistory"), ("a", "i am a\nhistory\nhistory")]
    {
        assert_eq!(world.say(key, "history").await, heard, "{key}");
        assert_eq!(world.bindings(key).await.len(), 1, "{key} was taken up");
    }
    world.close().await;
    // Sessions that live nowhere but in a process are not taken from it: the process makes room.
    let world = world_with("forget", |adapter| adapter.max_processes = Some(1)).await;
    world.say("a", "i am a").await;
    assert_eq!(world.say("b", "history").await, "history");
    assert!(world.say("a", "history").await.contains("user: i am a | assistant: i am a"));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_run_side_by_side_up_to_the_cap() {
    let world = world_with("keep", |adapter| adapter.max_processes = Some(4)).await;
    let mut runs = vec![];
    for no in 0..4 {
        runs.push(world.prompt(&format!("s{no}"), &format!("i am {no}; hang")).await);
    }
    for no in 0..4 {
        world.streams(&format!("s{no}"), "hanging").await;
    }
    for (no, run) in runs.into_iter().enumerate() {
        soon(world.node().kernel().run_cancel(&world.me, run)).await.unwrap();
        assert_eq!(world.ended(run).await.state.status(), RunStatus::Cancelled);
        assert_eq!(world.last(&format!("s{no}")).await.text(), format!("i am {no}\nhanging"));
    }
    for no in 0..8 {
        world.prompt(&format!("t{no}"), &format!("my number is {no}")).await;
    }
    soon(world.node().kernel().drain()).await;
    for no in 0..8 {
        assert_eq!(world.say(&format!("t{no}"), "history").await, format!("my number is {no}\nhistory"));
    }
    assert!(world.processes() <= 8, "{}", world.processes());
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_is_chosen_where_pi_has_it() {
    let world = world("keep").await;
    let with_model = |key: &str, model: &str| {
        let mut request = request(key, "model");
        request.options.model = Some(model.into());
        request
    };
    for (model, chosen) in [("two", "two"), ("acme/one", "one"), ("acme/two", "two")] {
        let run = world.send(with_model("a", model)).await;
        world.ended(run).await;
        assert_eq!(world.last("a").await.text(), chosen);
    }
    let run = world.send(with_model("a", "three")).await;
    let ended = world.ended(run).await;
    assert_eq!(failure(&ended), "invalid_request");
    let json = serde_json::to_string(&ended).unwrap();
    assert!(json.contains(r#"the agent has no model \"three\"; it has acme/one, acme/two"#), "{json}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn instructions_are_told_once_and_other_ones_are_another_session() {
    let world = world("keep").await;
    let with = |system: &str| {
        let mut request = request("a", "history");
        request.options.system_prompt = Some(system.into());
        request
    };
    let told = "<instructions> | be kind | </instructions> |  | history";
    for expected in [told.to_owned(), format!("{told}\nhistory")] {
        let run = world.send(with("be kind")).await;
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
async fn a_run_that_may_only_answer_has_tools_that_change_nothing() {
    let world = world("keep").await;
    let answers = async |text: &str| {
        let run = world.send(RunRequest { mode: Mode::Ask, ..request("a", text) }).await;
        world.ended(run).await;
        world.last("a").await.text()
    };
    assert_eq!(world.say("a", "arguments").await, "");
    assert_eq!(answers("arguments").await, "--tools read,grep,find,ls");
    // It is another process, and the same session.
    assert_eq!(world.say("a", "history").await, "arguments\narguments\nhistory");
    assert_eq!(answers("history").await, "arguments\narguments\nhistory\nhistory");
    assert_eq!((world.bindings("a").await.len(), world.processes()), (1, 4));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_joins_the_turn_between_two_messages_of_the_agent() {
    let world = world("keep").await;
    let run = world.prompt("a", "one; dig; two").await;
    world.happens("a", "tool.started").await;
    let joined = world.send(steer("a", "three; history")).await;
    let ended = world.ended(run).await;
    assert_eq!(ended.state.status(), RunStatus::Succeeded, "{ended:?}");
    let joined = world.ended(joined).await;
    assert_eq!((joined.state.status(), joined.merged_into), (RunStatus::Succeeded, Some(run)));
    let session = session_ref("a").unwrap();
    let path = world.node().kernel().session_path(&world.me, &session, None, Some(9)).await.unwrap();
    let said: Vec<String> = path.iter().map(|message| message.text()).collect();
    let answer = "two\nthree\none; dig; two\nthree; history";
    assert_eq!(said, ["one; dig; two", "one\n", "three; history", answer]);
    // The agent knows all of it, and goes on from there.
    assert_eq!(world.say("a", "history").await, "one; dig; two\nthree; history\nhistory");
    assert_eq!(world.bindings("a").await.len(), 1);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_finds_no_place_to_join_runs_next_and_one_that_pi_refuses_fails_with_the_run() {
    let world = world("keep").await;
    let run = world.prompt("a", "ask confirm Really?").await;
    let (wait, _) = world.asked(run).await;
    let next = world.send(steer("a", "next")).await;
    world.answer(run, wait, Approval::Allowed).await;
    assert_eq!(world.ended(run).await.state.status(), RunStatus::Succeeded);
    assert_eq!(world.ended(next).await.state.status(), RunStatus::Succeeded);
    assert!(world.last("a").await.text().ends_with("next\n"));
    let run = world.prompt("a", "dig").await;
    world.happens("a", "tool.started").await;
    let joined = world.send(steer("a", "refuse it")).await;
    for run in [run, joined] {
        assert_eq!(failure(&world.ended(run).await), "adapter_execution_failed");
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn images_are_handed_over_and_other_files_are_not() {
    let world = world("keep").await;
    world.say("a", "hello").await;
    let run = world.send(world.with_file("a", "history", "image/png", PICTURE).await).await;
    assert_eq!(world.ended(run).await.state.status(), RunStatus::Succeeded);
    let heard = world.last("a").await.text();
    let (image, whole) = ("history [\"image/png\" \"iVBORw0KGgoAAAANSUhEUgAA", "AElFTkSuQmCC\"]");
    assert!(heard.contains(image) && heard.ends_with(whole), "{heard}");
    let run = world.send(world.with_file("a", "history", "text/plain", PICTURE).await).await;
    assert_eq!(failure(&world.ended(run).await), "adapter_incompatible");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_text_arrives_whole() {
    let world = world("keep").await;
    assert_eq!(world.say("a", "flood 20000").await, "0123456789".repeat(20_000));
    world.close().await;
}
