//! The published pi, unmodified, with the tests' model over HTTP.

use std::path::Path;

use mainspring_kernel::tasks::Tasks;
use rustix::process::{Pid, Signal, kill_process};

use super::*;

/// Reads the permission extension from docs/adapters.md.
fn permission_extension() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/adapters.md");
    let text = std::fs::read_to_string(path).unwrap();
    text.split("```ts\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap().to_owned()
}

/// Opens a node with pi, the tests' model and a separate home folder.
async fn pi(tasks: &Tasks, change: impl Fn(&mut AdapterConfig)) -> World {
    let base = model::serve(tasks).await;
    let modules = installed().join("node_modules");
    let set_up = |adapter: &mut AdapterConfig| {
        let folder = folder_of(adapter);
        let agent = folder.join("home/.pi/agent");
        std::fs::create_dir_all(agent.join("extensions")).unwrap();
        std::fs::create_dir_all(folder.join("work")).unwrap();
        let cost = json!({"input": 1_000, "output": 2_000, "cacheRead": 0, "cacheWrite": 0});
        let models = ["stub-1", "stub-2"].map(|id| {
            json!({"id": id, "reasoning": false, "input": ["text", "image"], "contextWindow": 100_000,
                   "maxTokens": 8_000, "cost": cost})
        });
        let provider =
            json!({"baseUrl": base, "api": "openai-completions", "apiKey": "fake", "models": models});
        let settings = json!({"defaultProvider": "stub", "defaultModel": "stub-1"});
        std::fs::write(agent.join("models.json"), json!({"providers": {"stub": provider}}).to_string())
            .unwrap();
        std::fs::write(agent.join("settings.json"), settings.to_string()).unwrap();
        std::fs::write(agent.join("extensions/ask.ts"), permission_extension()).unwrap();
        let env = adapter.env.get_or_insert_default();
        env.insert("HOME".into(), folder.join("home").to_string_lossy().into_owned());
        env.insert("PI_OFFLINE".into(), "1".into());
        let program = modules.join("@earendil-works/pi-coding-agent/dist/bundle/cli.js");
        let command = [node(), program, "--mode".into(), "rpc".into()];
        adapter.command = Some(command.map(|word| word.to_string_lossy().into_owned()).into());
        adapter.cwd = Some(folder.join("work"));
        change(adapter);
    };
    let mut world = World::open(AdapterKind::Pi, set_up).await;
    // Time for pi to stop on a busy machine.
    world.config.cancel_grace_ms = 8_000;
    world.reopen().await;
    world
}

/// Lists the processes of pi, without their guards.
fn pi_pids(world: &World) -> Vec<Pid> {
    let program = |pid: &Pid| std::fs::read_link(format!("/proc/{}/exe", pid.as_raw_pid()));
    let is_node = |pid: &Pid| program(pid).is_ok_and(|program| program.ends_with("bin/node"));
    world.agent_pids().into_iter().filter(is_node).collect()
}

fn work_dir(world: &World) -> PathBuf {
    world.folder.path().join("work")
}

#[tokio::test(flavor = "multi_thread")]
async fn pi_runs_and_asks_for_permission() {
    let tasks = Tasks::default();
    let world = pi(&tasks, |_| {}).await;
    for (decision, kind) in [(Approval::Allowed, "tool.completed"), (Approval::Denied, "tool.failed")] {
        let file = format!("{kind}.txt");
        let run = world.prompt("a", &format!("RUN echo forty-two | tee {file}")).await;
        let (wait, question) = world.wait_question(run).await;
        assert!(question.starts_with("Allow bash?") && question.contains("echo forty-two"), "{question}");
        assert!(!work_dir(&world).join(&file).exists(), "pi acts before it is allowed to");
        world.answer(run, wait, decision).await;
        let ended = world.wait_ended(run).await;
        assert_eq!(ended.state.status(), RunStatus::Succeeded, "{ended:?}");
        let text = world.last_message("a").await.text();
        assert!(text.contains("the tool said: "), "{text}");
        assert_eq!(text.contains("forty-two"), decision == Approval::Allowed, "{text}");
        assert_eq!(work_dir(&world).join(&file).exists(), decision == Approval::Allowed);
        let kinds = kinds(&world.events("a").await);
        assert!(kinds.contains(&"tool.started") && kinds.contains(&kind), "{kinds:?}");
        // Two model calls, each with 7 input and 3 output tokens.
        assert_eq!((ended.usage.input_tokens, ended.usage.output_tokens), (14, 6));
        assert!((ended.usage.cost.usd().unwrap() - 0.026).abs() < 1e-9, "{:?}", ended.usage);
    }
    // A run in mode `ask` has no tool that could change anything.
    let run = world.send(RunRequest { mode: Mode::Ask, ..request("a", "RUN touch acted.txt") }).await;
    assert_eq!(world.wait_ended(run).await.state.status(), RunStatus::Succeeded);
    assert!(!work_dir(&world).join("acted.txt").exists(), "{:?}", world.last_message("a").await);
    assert_eq!(world.bindings("a").await.len(), 1, "it is the same session");
    // The requested model is used.
    for (wanted, used) in [(None, "stub-1"), (Some("stub-2"), "stub-2"), (Some("stub/stub-1"), "stub-1")] {
        let mut request = request("b", "MODEL?");
        request.options.model = wanted.map(str::to_owned);
        let run = world.send(request).await;
        world.wait_ended(run).await;
        assert_eq!(world.last_message("b").await.text(), format!("the model is {used}"));
    }
    // Attached images reach the model.
    let run = world.send(world.with_file("b", "how many IMAGES?", "image/png", PNG_IMAGE).await).await;
    assert_eq!(world.wait_ended(run).await.state.status(), RunStatus::Succeeded);
    assert_eq!(world.last_message("b").await.text(), "images: 1");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pi_receives_steering_while_it_runs() {
    let tasks = Tasks::default();
    let world = pi(&tasks, |adapter| adapter.permissions = Some(Permissions::Legacy)).await;
    let run = world.prompt("a", "my cat is Tom. RUN until [ -e go ]; do sleep 0.05; done").await;
    world.wait_event("a", "tool.started").await;
    let joined = world.send(steer("a", "and my dog is Rex")).await;
    world.wait_event("a", "run.merged").await;
    std::fs::write(work_dir(&world).join("go"), "").unwrap();
    let ended = world.wait_ended(run).await;
    assert_eq!(ended.state.status(), RunStatus::Succeeded, "{ended:?}");
    assert_eq!(world.wait_ended(joined).await.merged_into, Some(run));
    let text = world.last_message("a").await.text();
    assert!(text.contains("Tom") && text.contains("my dog is Rex"), "{text}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_started_by_pi_stop_with_it() {
    let tasks = Tasks::default();
    let world = pi(&tasks, |adapter| adapter.permissions = Some(Permissions::Legacy)).await;
    let run = world.prompt("a", "RUN setsid sleep 1000 & sleep 1000").await;
    let sleeps = || {
        let name = |pid: &Pid| std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_pid()));
        world.agent_pids().iter().filter(|pid| name(pid).is_ok_and(|name| name == "sleep\n")).count()
    };
    let begun = async {
        while sleeps() < 2 {
            crate::pace::pause().await;
        }
    };
    with_timeout(begun).await;
    with_timeout(world.node().kernel().run_cancel(&world.me, run)).await.unwrap();
    assert_eq!(world.wait_ended(run).await.state.status(), RunStatus::Cancelled);
    assert_eq!(sleeps(), 0, "pi stops its foreground command only; mainspring ends the other one");
    let json = serde_json::to_string(&world.events("a").await).unwrap();
    assert!(json.contains("Allow bash?") && json.contains(r#""decision":"allowed""#), "{json}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_pi_run_keeps_its_text_and_history() {
    let tasks = Tasks::default();
    let mut world = pi(&tasks, |_| {}).await;
    // Two sessions at once.
    let both =
        [world.prompt("a", "my cat is Tom; HANG").await, world.prompt("b", "my dog is Rex; HANG").await];
    world.wait_streamed("a", "hanging").await;
    world.wait_streamed("b", "hanging").await;
    assert_eq!(pi_pids(&world).len(), 2);
    for (run, key) in both.into_iter().zip(["a", "b"]) {
        with_timeout(world.node().kernel().run_cancel(&world.me, run)).await.unwrap();
        assert_eq!(world.wait_ended(run).await.state.status(), RunStatus::Cancelled);
        assert_eq!(world.last_message(key).await.text(), "hanging");
        let json = serde_json::to_string(&world.events(key).await).unwrap();
        assert!(json.contains(r#""proof":"ended""#), "it stopped by itself: {json}");
    }
    let (cat, dog) = (world.prompt_answer("a", "who?").await, world.prompt_answer("b", "who?").await);
    assert!(cat.contains("Tom") && !cat.contains("Rex"), "{cat}");
    assert!(dog.contains("Rex") && !dog.contains("Tom"), "{dog}");

    // Killed in the middle of a turn, pi fails that turn and resumes its session.
    let run = world.prompt("b", "HANG again").await;
    world.wait_streamed("b", "hanging").await;
    for pid in pi_pids(&world) {
        kill_process(pid, Signal::KILL).unwrap();
    }
    assert_eq!(error_code(&world.wait_ended(run).await), "transport_interruption");
    assert_eq!(world.last_message("b").await.text(), "hanging");
    let dog = world.prompt_answer("b", "and who now?").await;
    assert!(dog.contains("Rex"), "{dog}");

    // The same holds when pi's whole process tree is killed.
    world.prompt("b", "HANG once more").await;
    world.wait_streamed("b", "hanging").await;
    for pid in world.agent_pids() {
        let _ = kill_process(pid, Signal::KILL);
    }
    world.reopen().await;
    let dog = world.prompt_answer("b", "and in the end?").await;
    assert!(dog.contains("Rex") && dog.contains("and who now?"), "{dog}");
    let bindings = world.bindings("b").await;
    assert_eq!((bindings[0].generation, bindings[0].fidelity), (1, Fidelity::Native), "{bindings:?}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pi_without_a_stored_session_receives_the_history() {
    let tasks = Tasks::default();
    let world = pi(&tasks, |_| {}).await;
    // Pi writes a session to disk when its first message is complete.
    let run = world.prompt("a", "my cat is Tom; HANG").await;
    world.wait_streamed("a", "hanging").await;
    for pid in pi_pids(&world) {
        kill_process(pid, Signal::KILL).unwrap();
    }
    assert_eq!(error_code(&world.wait_ended(run).await), "transport_interruption");
    let run = world.run_to_end("a", "who?").await;
    assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 2));
    let cat = world.last_message("a").await.text();
    assert!(cat.contains("user: my cat is Tom"), "{cat}");
    let bindings = world.bindings("a").await;
    assert_eq!((bindings[0].generation, bindings[0].reconstructed), (2, true), "{bindings:?}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pi_with_a_shared_process_or_without_stored_sessions_keeps_sessions_apart() {
    let tasks = Tasks::default();
    for keeps in [true, false] {
        let world = pi(&tasks, |adapter| {
            adapter.max_processes = Some(1);
            if !keeps {
                adapter.command.get_or_insert_default().push("--no-session".into());
            }
        })
        .await;
        world.prompt_answer("a", "my cat is Tom").await;
        world.prompt_answer("b", "my dog is Rex").await;
        for (key, known, unknown) in [("a", "Tom", "Rex"), ("b", "Rex", "Tom")] {
            let text = world.prompt_answer(key, "who?").await;
            assert!(text.contains(known) && !text.contains(unknown), "{text}");
            let bindings = world.bindings(key).await;
            assert_eq!(bindings[0].reconstructed, !keeps, "{key}: {bindings:?}");
        }
        assert_eq!(pi_pids(&world).len(), 1);
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_error_of_pi_has_a_code() {
    let tasks = Tasks::default();
    let world = pi(&tasks, |_| {}).await;
    for (key, status, code) in [("a", 401, "authentication"), ("b", 400, "invalid_request")] {
        let run = world.run_to_end(key, &format!("FAIL {status}")).await;
        assert_eq!((run.state.status(), error_code(&run).as_str()), (RunStatus::Failed, code), "{run:?}");
        assert!(world.prompt_answer(key, "still there?").await.contains("still there?"));
    }
    world.close().await;
}
