//! Published ACP agents, unmodified.

use mainspring_agent::tool::mcp::McpConfig;
use mainspring_kernel::kernel::{Adopted, ForkRequest, SessionTarget};
use mainspring_kernel::tasks::Tasks;
use serde_json::json;

use super::*;

/// Opens a node with the SDK's example agent, which plays a fixed script for every prompt.
async fn example_agent() -> World {
    let agent = installed().join("node_modules/@agentclientprotocol/sdk/dist/examples/agent.js");
    let command = [node(), agent].map(|word| word.to_string_lossy().into_owned()).to_vec();
    world_with("", |adapter| adapter.command = Some(command.clone())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_agent_of_the_protocol_library_works() {
    let world = example_agent().await;
    let run = world.prompt("a", "improve my project").await;
    let (wait, question) = world.wait_question(run).await;
    assert!(question.contains("Modifying critical configuration file"), "{question}");
    world.answer(run, wait, Approval::Allowed).await;
    assert_eq!(world.wait_ended(run).await.state.status(), RunStatus::Succeeded);
    let kinds = kinds(&world.events("a").await);
    for kind in ["tool.started", "tool.completed", "approval.requested", "approval.resolved"] {
        assert!(kinds.contains(&kind), "{kind}: {kinds:?}");
    }
    assert!(
        world.last_message("a").await.text().contains("I've successfully updated"),
        "{:?}",
        world.last_message("a").await
    );
    let run = world.prompt("a", "once more").await;
    world.wait_streamed("a", "I'll help you").await;
    with_timeout(world.node().kernel().run_cancel(&world.me, run)).await.unwrap();
    assert_eq!(world.wait_ended(run).await.state.status(), RunStatus::Cancelled);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_agent_runs_twice_at_once_and_continues_after_a_kill() {
    let world = example_agent().await;
    // The permission is granted in one session and denied in the other.
    let both = [world.prompt("a", "improve it").await, world.prompt("b", "improve it").await];
    let asked = [world.wait_question(both[0]).await.0, world.wait_question(both[1]).await.0];
    assert_eq!(world.process_count(), 4, "an agent and a guard each");
    world.answer(both[0], asked[0], Approval::Allowed).await;
    world.answer(both[1], asked[1], Approval::Denied).await;
    for (run, key, said) in [(both[0], "a", "I've successfully updated"), (both[1], "b", "you prefer not to")]
    {
        assert_eq!(world.wait_ended(run).await.state.status(), RunStatus::Succeeded);
        let text = world.last_message(key).await.text();
        assert!(text.contains(said), "{text}");
    }
    let natives = [world.bindings("a").await[0].native.clone(), world.bindings("b").await[0].native.clone()];
    assert_ne!(natives[0], natives[1]);
    // Killed in the middle of a turn, the example agent loses its session: the next agent receives the history.
    let run = world.prompt("a", "once more").await;
    world.wait_streamed("a", "I'll help you").await;
    for pid in world.agent_pids() {
        let is_node = std::fs::read_link(format!("/proc/{}/exe", pid.as_raw_pid()))
            .is_ok_and(|program| program.ends_with("node"));
        if is_node {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
    let ended = world.wait_ended(run).await;
    assert_eq!(error_code(&ended), "transport_interruption", "{ended:?}");
    assert!(world.last_message("a").await.text().contains("I'll help you"), "the partial text is kept");
    let run = world.prompt("a", "and now?").await;
    let (wait, _) = world.wait_question(run).await;
    world.answer(run, wait, Approval::Allowed).await;
    assert_eq!(world.wait_ended(run).await.state.status(), RunStatus::Succeeded);
    let bindings = world.bindings("a").await;
    assert!(bindings[0].generation > 1 && bindings[0].reconstructed, "{bindings:?}");
    world.close().await;
}

/// Opens a node with opencode, the tests' model and a separate home folder.
async fn opencode(tasks: &Tasks) -> World {
    opencode_with(tasks, "ask").await
}

/// Opens a node with opencode, whose own permission for commands and edits is `permission`.
async fn opencode_with(tasks: &Tasks, permission: &str) -> World {
    let base = model::serve(tasks).await;
    let binary = installed().join("node_modules/opencode-linux-x64/bin/opencode");
    world_with("", |adapter| {
        let env = adapter.env.get_or_insert_default();
        let folder = PathBuf::from(&env[FOLDER_VARIABLE]);
        let model = json!({"tool_call": true, "attachment": true, "limit": {"context": 100_000, "output": 8_000},
                           "modalities": {"input": ["text", "image"], "output": ["text"]}});
        let settings = json!({
            "autoupdate": false, "model": "stub/stub-1", "small_model": "stub/stub-1", "enabled_providers": ["stub"],
            "permission": {"bash": permission, "edit": permission, "external_directory": permission},
            "provider": {"stub": {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": base, "apiKey": "fake"},
                "models": {"stub-1": model, "stub-2": model}}},
        });
        std::fs::create_dir_all(folder.join("config/opencode")).unwrap();
        std::fs::create_dir_all(folder.join("work")).unwrap();
        std::fs::write(folder.join("config/opencode/opencode.json"), settings.to_string()).unwrap();
        let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
        for (name, value) in [
            ("HOME", path("home")),
            ("XDG_CONFIG_HOME", path("config")),
            ("XDG_DATA_HOME", path("data")),
            ("XDG_STATE_HOME", path("agent-state")),
            ("XDG_CACHE_HOME", path("cache")),
            ("OPENCODE_DISABLE_AUTOUPDATE", "1".into()),
            ("OPENCODE_DISABLE_MODELS_FETCH", "1".into()),
        ] {
            env.insert(name.into(), value);
        }
        adapter.command = Some(vec![binary.to_string_lossy().into_owned(), "acp".into()]);
        adapter.cwd = Some(folder.join("work"));
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn opencode_runs_asks_cancels_and_resumes() {
    let tasks = Tasks::default();
    let mut world = opencode(&tasks).await;
    world.config.cancel_grace_ms = 20_000;
    world.reopen().await;

    // A tool call, and a permission for it.
    let run = world.prompt("a", "RUN echo forty-two").await;
    let (wait, question) = world.wait_question(run).await;
    assert!(question.contains("echo forty-two"), "{question}");
    world.answer(run, wait, Approval::Allowed).await;
    let ended = world.wait_ended(run).await;
    assert_eq!(ended.state.status(), RunStatus::Succeeded, "{ended:?}");
    let text = world.last_message("a").await.text();
    assert!(text.contains("the tool said: ") && text.contains("forty-two"), "{text}");
    let kinds = kinds(&world.events("a").await);
    assert!(kinds.contains(&"tool.started") && kinds.contains(&"tool.completed"), "{kinds:?}");

    // Two sessions at once.
    let both =
        [world.prompt("a", "my cat is Tom; HANG").await, world.prompt("b", "my dog is Rex; HANG").await];
    world.wait_streamed("a", "hanging").await;
    world.wait_streamed("b", "hanging").await;
    for run in both {
        with_timeout(world.node().kernel().run_cancel(&world.me, run)).await.unwrap();
        assert_eq!(world.wait_ended(run).await.state.status(), RunStatus::Cancelled);
    }
    let (cat, dog) = (world.prompt_answer("a", "who?").await, world.prompt_answer("b", "who?").await);
    assert!(cat.contains("Tom") && !cat.contains("Rex"), "{cat}");
    assert!(dog.contains("Rex") && !dog.contains("Tom"), "{dog}");

    // Killed in the middle of a turn, opencode resumes its session.
    world.prompt("b", "HANG again").await;
    world.wait_streamed("b", "hanging").await;
    for pid in world.agent_pids() {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
    world.reopen().await;
    let dog = world.prompt_answer("b", "and who now?").await;
    assert!(dog.contains("Rex"), "{dog}");
    let bindings = world.bindings("b").await;
    assert_eq!((bindings[0].generation, bindings[0].fidelity), (1, Fidelity::Native), "{bindings:?}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn opencode_uses_mcp_servers_and_files() {
    let tasks = Tasks::default();
    let mut world = opencode(&tasks).await;
    let server = McpConfig {
        command: Some(node().to_string_lossy().into_owned()),
        args: vec![everything_server().to_string_lossy().into_owned(), "stdio".into()],
        ..McpConfig::default()
    };
    world.config.models.mcp = [("all".to_owned(), server)].into();
    let adapter = world.config.adapters.get_mut("agent").unwrap();
    adapter.mcp = Some(vec!["all".into()]);
    adapter.rules = Some(["allow fs write *", "allow tool edit *"].map(|rule| rule.parse().unwrap()).into());
    // A new process still passes the MCP servers to a resumed session.
    for _ in 0..2 {
        world.reopen().await;
        let text = world.prompt_answer("a", r#"CALL all_echo {"message": "forty-two"}"#).await;
        assert!(text.contains("the tool said: Echo: forty-two"), "{text}");
    }
    // opencode writes files through its client if the client offers it.
    let file = world.folder.path().canonicalize().unwrap().join("work/notes.txt");
    let arguments = json!({"filePath": file, "content": "forty-two"});
    world.prompt_answer("b", &format!("CALL write {arguments}")).await;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "forty-two");
    let json = serde_json::to_string(&world.events("b").await).unwrap();
    assert!(json.contains(&format!("Allow write {}?", file.display())), "{json}");
    assert_eq!(json.matches(r#""decision":"allowed","grantId":"grant_"#).count(), 2, "{json}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn opencode_accepts_model_mode_files_and_forks() {
    let tasks = Tasks::default();
    let mut world = opencode(&tasks).await;
    world.config.adapters.get_mut("agent").unwrap().ask_mode = Some("plan".into());
    world.reopen().await;
    for (wanted, used) in [(None, "stub-1"), (Some("stub/stub-2"), "stub-2")] {
        let mut request = request("a", "MODEL?");
        request.options.model = wanted.map(str::to_owned);
        let run = world.send(request).await;
        world.wait_ended(run).await;
        assert_eq!(world.last_message("a").await.text(), format!("the model is {used}"));
    }
    let run = world.send(world.with_file("a", "how many IMAGES?", "image/png", PNG_IMAGE).await).await;
    assert_eq!(world.wait_ended(run).await.state.status(), RunStatus::Succeeded);
    assert_eq!(world.last_message("a").await.text(), "images: 1");
    let run = world.send(world.with_file("a", "my cat is Tom", "text/plain", b"my dog is Rex").await).await;
    assert_eq!(world.wait_ended(run).await.state.status(), RunStatus::Succeeded);
    assert!(
        world.last_message("a").await.text().contains("my dog is Rex"),
        "{:?}",
        world.last_message("a").await
    );
    // Mode `ask` uses opencode's own mode, configured as `ask_mode`.
    let run = world.send(RunRequest { mode: Mode::Ask, ..request("a", "who?") }).await;
    assert_eq!(world.wait_ended(run).await.state.status(), RunStatus::Succeeded);
    // A fork knows the whole history without a replay.
    let fork = ForkRequest { key: Some("b".into()), message: world.last_message("a").await.id, title: None };
    world.node().kernel().session_fork(&world.me, &session_ref("a").unwrap(), fork, None).await.unwrap();
    let text = world.prompt_answer("b", "who?").await;
    assert!(text.contains("Tom") && text.contains("Rex") && !text.contains("<conversation>"), "{text}");
    let bindings = world.bindings("b").await;
    assert_eq!((bindings.len(), bindings[0].reconstructed), (1, false), "{bindings:?}");
    let text = world.prompt_answer("a", "who else?").await;
    assert!(text.contains("Tom"), "{text}");
    assert_eq!(world.bindings("a").await.len(), 1, "the other session goes on");
    world.config.adapters.get_mut("agent").unwrap().act_mode = Some("no-such-mode".into());
    world.reopen().await;
    let run = serde_json::to_string(&world.run_to_end("a", "hi").await).unwrap();
    assert!(run.contains("it has build, plan"), "{run}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn opencode_continues_an_adopted_session() {
    let tasks = Tasks::default();
    let mut world = opencode(&tasks).await;
    world.prompt_answer("a", "my cat is Tom").await;
    let native = world.bindings("a").await[0].native.clone().unwrap();
    // In a new state directory, only the native session id is known.
    world.config.state_dir = world.folder.path().join("another-state");
    world.reopen().await;
    let target = SessionTarget { key: Some("b".into()), ..SessionTarget::default() };
    let old = Adopted { native: native.clone(), ..Adopted::default() };
    let adopted = world.node().kernel().session_adopt(&world.me, &target, "agent", old).await.unwrap();
    assert!(adopted.adopted);
    let text = world.prompt_answer("b", "who?").await;
    assert!(text.contains("my cat is Tom") && !text.contains("<conversation>"), "{text}");
    let bindings = world.bindings("b").await;
    assert_eq!(bindings.len(), 1, "{bindings:?}");
    let binding = &bindings[0];
    assert_eq!((binding.generation, binding.fidelity), (1, Fidelity::Native), "{binding:?}");
    assert_eq!((binding.native.as_ref(), binding.reconstructed), (Some(&native), false), "{binding:?}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn opencode_that_never_asks_cannot_write_in_a_run_that_may_only_answer() {
    let tasks = Tasks::default();
    let world = opencode_with(&tasks, "allow").await;
    let file = world.folder.path().join("work/written");
    let text = format!("RUN echo x > {}", file.display());
    let run = world.send(RunRequest { mode: Mode::Ask, ..request("a", &text) }).await;
    world.wait_ended(run).await;
    assert!(!file.exists());
    let token = world.folder.path().join("state/secret");
    std::fs::write(&token, "SECRET").unwrap();
    let read = format!("RUN cat {}", token.display());
    for (mode, key) in [(Mode::Ask, "b"), (Mode::Act, "c")] {
        let run = world.send(RunRequest { mode, ..request(key, &read) }).await;
        world.wait_ended(run).await;
        let text = world.last_message(key).await.text();
        assert!(!text.contains("SECRET"), "{text}");
    }
    let run = world.send(request("a", &text)).await;
    let ended = world.wait_ended(run).await;
    assert!(file.exists(), "a run that may act writes its folder: {ended:?}");
    let kinds = kinds(&world.events("a").await);
    assert!(kinds.contains(&"tool.unasked") && kinds.contains(&"attempt.confined"), "{kinds:?}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_ends_a_command_that_opencode_left_in_another_session() {
    let tasks = Tasks::default();
    let world = opencode_with(&tasks, "allow").await;
    let sleeps = || {
        let command = |pid: rustix::process::Pid| {
            std::fs::read_to_string(format!("/proc/{}/cmdline", pid.as_raw_pid())).unwrap_or_default()
        };
        world.agent_pids().into_iter().filter(|pid| command(*pid).contains("4321")).count()
    };
    let run = world.prompt("a", "RUN setsid sh -c 'sleep 4321 & sleep 4321' & sleep 4321").await;
    let started = async {
        while sleeps() < 3 {
            crate::pace::pause().await;
        }
    };
    with_timeout(started).await;
    with_timeout(world.node().kernel().run_cancel(&world.me, run)).await.unwrap();
    assert_eq!(world.wait_ended(run).await.state.status(), RunStatus::Cancelled);
    assert_eq!(sleeps(), 0, "cancelled means stopped");
    world.close().await;
}
