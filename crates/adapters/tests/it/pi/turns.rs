//! Successful turns: text, tools, models, continued sessions.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_with_text_thoughts_tools_notices_and_usage() {
    let world = world("keep").await;
    let text = world
        .answer_to("a", "hello; think tea; tool read; tell I am here; step; spend 0.5; bad-tool write; bye")
        .await;
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
    usage.updated
    message.completed
    tool.started
    tool.unasked
    tool.failed
    message.completed
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
    assert!(json.contains("I am here") && !json.contains("half of it"), "{json}");
    insta::assert_snapshot!(world.content("a", 1).await, @r#"
    assistant [{"type":"text","text":"hello\n"},{"type":"tool_use","id":"call-1","name":"read","input":{"path":"/x"},"kind":"read","locations":[{"path":"/x"}]}]
    user [{"type":"tool_result","toolUseId":"call-1","name":"read","content":[{"type":"text","text":"done it"}],"isError":false}]
    assistant [{"type":"tool_use","id":"call-2","name":"write","input":{"path":"/x"},"kind":"edit","locations":[{"path":"/x"}]}]
    user [{"type":"tool_result","toolUseId":"call-2","name":"write","content":[{"type":"text","text":"done it"}],"isError":true}]
    assistant [{"type":"text","text":"bye\n"}]
    "#);
    let run = world.run("a", "more").await;
    assert_eq!((run.usage.input_tokens, run.usage.output_tokens), (1, 1));
    let cost = world.kernel().run_get(&world.me, events[1].run.unwrap()).await.unwrap().usage.cost;
    assert!((cost.usd().unwrap() - 0.75).abs() < 1e-9, "the costs of all messages are summed: {cost:?}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_records_and_plain_text_are_ignored() {
    let world = world("keep").await;
    assert_eq!(world.answer_to("a", "one; noise; two").await, "one\ncancelled true\u{2028}two\n");
    assert_eq!(world.answer_to("a", "three").await, "three\n");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unstreamed_text_is_kept_and_retried_text_not_duplicated() {
    let world = world("keep").await;
    assert_eq!(world.answer_to("a", "whole answer").await, "answer");
    let text = world.answer_to("a", "stumble 529 overloaded; done").await;
    assert_eq!(text, "done\n");
    assert!(
        serde_json::to_string(&world.events("a").await).unwrap().contains("trying again: 529 overloaded")
    );
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slash_command_handled_by_an_extension_ends_the_turn() {
    let world = world("keep").await;
    world.answer_to("a", "hello").await;
    assert_eq!(world.answer_to("a", "/status all is well").await, "");
    assert!(serde_json::to_string(&world.events("a").await).unwrap().contains("status all is well"));
    assert_eq!(world.answer_to("a", "history").await, "hello\nhistory");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pi_without_agent_settled_is_queried_until_idle() {
    let world = world("old").await;
    assert_eq!(world.answer_to("a", "hello; stumble 500; tool read; bye").await, "hello\nbye\n");
    let run = world.start("a", "hang").await;
    world.wait_for_text("a", "hanging").await;
    world.cancel(run).await;
    assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Cancelled);
    assert_eq!(world.answer_to("a", "on").await, "on\n");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_continues_in_the_same_process_and_in_the_next() {
    for (manner, fidelity) in [("keep", Fidelity::Native), ("forget", Fidelity::Reconstructed)] {
        let mut world = world(manner).await;
        world.answer_to("a", "my name is Ada").await;
        assert_eq!(world.answer_to("a", "history").await, "my name is Ada\nhistory", "{manner}");
        let bindings = world.bindings("a").await;
        assert_eq!((bindings.len(), bindings[0].fidelity), (1, fidelity), "{manner}");
        world.restart().await;
        let answer = world.answer_to("a", "history").await;
        let bindings = world.bindings("a").await;
        if manner == "forget" {
            assert!(answer.contains("user: my name is Ada | assistant: my name is Ada"), "{answer}");
            assert_eq!((bindings.len(), bindings[0].generation, bindings[0].reconstructed), (2, 2, true));
        } else {
            assert_eq!(answer, "my name is Ada\nhistory\nhistory");
            assert_eq!(bindings.len(), 1);
        }
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_keeps_its_process_and_conversations_do_not_mix() {
    let world = world_with("keep", |setup| setup.agent.max_processes = 2).await;
    world.answer_to("a", "i am a").await;
    world.answer_to("b", "i am b").await;
    assert_eq!(world.processes(), 4, "a process and a guard each");
    assert_eq!(world.answer_to("a", "history").await, "i am a\nhistory");
    // The pool is full: the process that has been idle longest opens a new session.
    assert_eq!(world.answer_to("c", "history").await, "history");
    assert_eq!(world.processes(), 4);
    for (key, answer) in
        [("b", "i am b\nhistory"), ("c", "history\nhistory"), ("a", "i am a\nhistory\nhistory")]
    {
        assert_eq!(world.answer_to(key, "history").await, answer, "{key}");
        assert_eq!(world.bindings(key).await.len(), 1, "{key} was resumed");
    }
    world.close().await;
    // A process with a process-local session does not switch; it is stopped to make room.
    let world = world_with("forget", |setup| setup.agent.max_processes = 1).await;
    world.answer_to("a", "i am a").await;
    assert_eq!(world.answer_to("b", "history").await, "history");
    assert!(world.answer_to("a", "history").await.contains("user: i am a | assistant: i am a"));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_run_concurrently_up_to_the_limit() {
    let world = world_with("keep", |setup| setup.agent.max_processes = 4).await;
    let mut runs = vec![];
    for no in 0..4 {
        runs.push(world.start(&format!("s{no}"), &format!("i am {no}; hang")).await);
    }
    for no in 0..4 {
        world.wait_for_text(&format!("s{no}"), "hanging").await;
    }
    for (no, run) in runs.into_iter().enumerate() {
        world.cancel(run).await;
        assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Cancelled);
        assert_eq!(world.last_message(&format!("s{no}")).await.text(), format!("i am {no}\nhanging"));
    }
    for no in 0..8 {
        world.start(&format!("t{no}"), &format!("my number is {no}")).await;
    }
    with_timeout(world.kernel().drain()).await;
    for no in 0..8 {
        assert_eq!(
            world.answer_to(&format!("t{no}"), "history").await,
            format!("my number is {no}\nhistory")
        );
    }
    assert!(world.processes() <= 8, "{}", world.processes());
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_set_if_pi_has_it() {
    let world = world("keep").await;
    let with_model = |key: &str, model: &str| {
        let mut request = request(key, "model");
        request.options.model = Some(model.into());
        request
    };
    for (model, chosen) in [("two", "two"), ("acme/one", "one"), ("acme/two", "two")] {
        let run = world.start_request(with_model("a", model)).await;
        world.wait_for_end(run).await;
        assert_eq!(world.last_message("a").await.text(), chosen);
    }
    let run = world.start_request(with_model("a", "three")).await;
    let ended = world.wait_for_end(run).await;
    assert_eq!(failure_code(&ended), "invalid_request");
    let json = serde_json::to_string(&ended).unwrap();
    assert!(json.contains(r#"the agent has no model \"three\"; it has acme/one, acme/two"#), "{json}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn instructions_are_sent_once_and_new_ones_open_a_new_session() {
    let world = world("keep").await;
    let with = |system: &str| {
        let mut request = request("a", "history");
        request.options.system_prompt = Some(system.into());
        request
    };
    let preface = "<instructions> | be kind | </instructions> |  | history";
    for expected in [preface.to_owned(), format!("{preface}\nhistory")] {
        let run = world.start_request(with("be kind")).await;
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
async fn a_run_in_ask_mode_has_read_only_tools() {
    let world = world("keep").await;
    let answers = async |text: &str| {
        let run = world.start_request(RunRequest { mode: Mode::Ask, ..request("a", text) }).await;
        world.wait_for_end(run).await;
        world.last_message("a").await.text()
    };
    assert_eq!(world.answer_to("a", "arguments").await, "");
    assert_eq!(answers("arguments").await, "--tools read,grep,find,ls");
    // Another process resumes the same session.
    assert_eq!(world.answer_to("a", "history").await, "arguments\narguments\nhistory");
    assert_eq!(answers("history").await, "arguments\narguments\nhistory\nhistory");
    assert_eq!((world.bindings("a").await.len(), world.processes()), (1, 2));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_joins_the_turn_between_two_messages() {
    let world = world("keep").await;
    let run = world.start("a", "one; dig; two").await;
    world.wait_for_event("a", "tool.started").await;
    let joined = world.start_request(steer("a", "three; history")).await;
    let ended = world.wait_for_end(run).await;
    assert_eq!(ended.state.status(), RunStatus::Succeeded, "{ended:?}");
    let joined = world.wait_for_end(joined).await;
    assert_eq!((joined.state.status(), joined.merged_into), (RunStatus::Succeeded, Some(run)));
    let session = session_ref("a").unwrap();
    let path = world.kernel().session_path(&world.me, &session, None, Some(9)).await.unwrap();
    let texts: Vec<String> = path.iter().map(|message| message.text()).collect();
    let answer = "two\nthree\none; dig; two\nthree; history";
    // The prompt joined while the tool worked; its result comes after it.
    assert_eq!(texts, ["one; dig; two", "one\n", "three; history", "", answer]);
    assert!(matches!(path[3].content[..], [Block::ToolResult { is_error: false, .. }]), "{:?}", path[3]);
    // The agent has everything and continues.
    assert_eq!(world.answer_to("a", "history").await, "one; dig; two\nthree; history\nhistory");
    assert_eq!(world.bindings("a").await.len(), 1);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_cannot_join_runs_next_and_a_refused_one_fails_with_the_run() {
    let world = world("keep").await;
    let run = world.start("a", "ask confirm Really?").await;
    let (wait, _) = world.wait_for_question(run).await;
    let next = world.start_request(steer("a", "next")).await;
    world.decide(run, wait, Approval::Allowed).await;
    assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Succeeded);
    assert_eq!(world.wait_for_end(next).await.state.status(), RunStatus::Succeeded);
    assert!(world.last_message("a").await.text().ends_with("next\n"));
    let run = world.start("a", "dig").await;
    world.wait_for_event("a", "tool.started").await;
    let joined = world.start_request(steer("a", "refuse it")).await;
    for run in [run, joined] {
        assert_eq!(failure_code(&world.wait_for_end(run).await), "adapter_execution_failed");
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn images_are_sent_and_other_attachments_refused() {
    let world = world("keep").await;
    world.answer_to("a", "hello").await;
    let run = world.start_request(world.request_with_file("a", "history", "image/png", PICTURE).await).await;
    assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Succeeded);
    let answer = world.last_message("a").await.text();
    let (image, whole) = ("history [\"image/png\" \"iVBORw0KGgoAAAANSUhEUgAA", "AElFTkSuQmCC\"]");
    assert!(answer.contains(image) && answer.ends_with(whole), "{answer}");
    let run =
        world.start_request(world.request_with_file("a", "history", "text/plain", b"hello").await).await;
    assert_eq!(failure_code(&world.wait_for_end(run).await), "adapter_incompatible");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_answer_arrives_complete() {
    let world = world("keep").await;
    assert_eq!(world.answer_to("a", "flood 20000").await, "0123456789".repeat(20_000));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_and_bindings_name_the_process_and_the_model() {
    let world = world("keep").await;
    let first = world.run("a", "hello").await.id;
    let second = world.run("a", "again").await.id;
    let (first, second) = (world.attempts(first).await.remove(0), world.attempts(second).await.remove(0));
    let binding = world.bindings("a").await.remove(0);
    assert!(first.instance.as_ref().is_some_and(|name| name.starts_with("worker_")), "{first:?}");
    assert_eq!((&second.instance, &binding.instance), (&first.instance, &first.instance));
    assert!(second.native_run.is_some() && second.native_run != first.native_run, "{second:?}");
    assert_eq!(second.metadata["stopReason"], "stop");
    assert!(binding.model.as_ref().is_some_and(|model| model.starts_with("acme/")), "{binding:?}");
    world.close().await;
}
