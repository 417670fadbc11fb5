//! Files and terminals that agents are handed.

use std::path::Path;

use mainspring_adapters::process::{MARK_VARIABLE, processes_with_variable};

use super::*;

/// A node whose agent works in a folder of its own, under these rules.
async fn with_rules(rules: &[&str]) -> World {
    world_with("resume", |adapter| {
        let work = folder_of(adapter).join("work");
        std::fs::create_dir_all(work.join("sub")).unwrap();
        adapter.cwd = Some(work);
        adapter.rules = Some(rules.iter().map(|rule| rule.parse().unwrap()).collect());
        adapter.permissions = Some(Permissions::Deny);
    })
    .await
}

fn work(world: &World) -> PathBuf {
    world.folder.path().canonicalize().unwrap().join("work")
}

fn read(path: &Path) -> String {
    format!("call fs/read_text_file {{\"path\": {path:?}}}")
}

fn write(path: &Path, content: &str) -> String {
    format!("call fs/write_text_file {{\"path\": {path:?}, \"content\": {content:?}}}")
}

/// What was decided, in order: the question, the decision, whether a grant says so.
async fn decisions(world: &World, key: &str) -> Vec<(String, Approval, bool)> {
    let events = world.events(key).await;
    let asked = events.iter().filter_map(|event| match &event.body {
        Body::ApprovalRequested { question, .. } => Some(question.clone()),
        _ => None,
    });
    let resolved = events.iter().filter_map(|event| match &event.body {
        Body::ApprovalResolved { decision, grant_id, .. } => Some((*decision, grant_id.is_some())),
        _ => None,
    });
    asked.zip(resolved).map(|(question, (decision, grant))| (question, decision, grant)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_offered_what_rules_let_happen_and_nothing_else() {
    for (rules, offered) in [
        (&[][..], (false, false, false)),
        (&["deny fs read *"][..], (false, false, false)),
        (&["allow fs read *"][..], (true, false, false)),
        (&["ask fs * *", "deny terminal run rm *", "allow terminal run *"][..], (true, true, true)),
    ] {
        let world = with_rules(rules).await;
        let can: serde_json::Value = serde_json::from_str(&world.say("a", "client").await).unwrap();
        let fs = &can["fs"];
        let told = (fs["readTextFile"] == true, fs["writeTextFile"] == true, can["terminal"] == true);
        assert_eq!(told, offered, "{rules:?}: {can}");
        // Who asks all the same is told that there is no such thing.
        if !offered.2 {
            let said = world.say("a", "call terminal/create {\"command\": \"true\"}").await;
            assert!(said.starts_with("-32601"), "{said}");
        }
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_read_and_written_as_the_rules_say_and_every_decision_names_its_grant() {
    let world = with_rules(&["deny fs write */secret*", "allow fs * *"]).await;
    let work = work(&world);
    let file = work.join("new/notes.txt");
    let text = "one\ntwo\nthree\n";
    let said = world.say("a", &format!("{}; {}", write(&file, text), read(&file))).await;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    assert!(said.starts_with("{}\n{\"content\":\"one"), "{said}");
    let lines = format!("call fs/read_text_file {{\"path\": {file:?}, \"line\": 2, \"limit\": 1}}");
    assert_eq!(world.say("a", &lines).await, "{\"content\":\"two\\n\"}\n");
    let secret = work.join("secret.txt");
    let said = world.say("a", &write(&secret, "x")).await;
    assert!(said.starts_with("-32600 \"not allowed: fs write"), "{said}");
    assert!(!secret.exists());
    let decided = decisions(&world, "a").await;
    let of = |operation: &str, path: &Path, decision| {
        (format!("Allow {operation} {}?", path.display()), decision, true)
    };
    assert_eq!(
        decided,
        [
            of("write", &file, Approval::Allowed),
            of("read", &file, Approval::Allowed),
            of("read", &file, Approval::Allowed),
            of("write", &secret, Approval::Denied),
        ]
    );
    // What is not there, is no text or no file, or too large, is an error and nothing else.
    std::fs::write(work.join("bytes"), [0xff, 0xfe]).unwrap();
    std::fs::write(work.join("large"), vec![b'x'; (8 << 20) + 1]).unwrap();
    for (name, says) in [
        ("none", "-32002"),
        ("bytes", "is not UTF-8 text"),
        ("sub", "is not a regular file"),
        ("large", "more than 8388608 bytes"),
    ] {
        let said = world.say("a", &read(&work.join(name))).await;
        assert!(said.contains(says), "{name}: {said}");
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_path_leads_out_of_the_sessions_folder() {
    let world = with_rules(&["allow * * *"]).await;
    let (work, outside) = (work(&world), world.folder.path().join("outside"));
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("file"), "private").unwrap();
    std::os::unix::fs::symlink(&outside, work.join("link")).unwrap();
    std::os::unix::fs::symlink(outside.join("later"), work.join("dangling")).unwrap();
    for path in [
        outside.join("file"),
        work.join("../outside/file"),
        work.join("link/file"),
        work.join("sub/../../outside/file"),
        PathBuf::from("file"),
    ] {
        let said = world.say("a", &format!("{}; {}", read(&path), write(&path, "changed"))).await;
        assert!(!said.contains("private") && said.matches("-32602").count() == 2, "{path:?}: {said}");
    }
    for path in [work.join("link/new"), work.join("dangling"), work.join("missing/../../outside/new")] {
        let said = world.say("a", &write(&path, "changed")).await;
        assert!(said.starts_with('-'), "{path:?}: {said}");
    }
    let terminal = format!("call terminal/create {{\"command\": \"true\", \"cwd\": {outside:?}}}");
    let said = world.say("a", &terminal).await;
    assert!(said.starts_with("-32602"), "{said}");
    let left: Vec<_> = std::fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["file"], "nothing was written there");
    assert_eq!(std::fs::read_to_string(outside.join("file")).unwrap(), "private");
    let decided = decisions(&world, "a").await;
    assert_eq!(decided.len(), 13);
    assert!(
        decided.iter().all(|(_, decision, grant)| *decision == Approval::Denied && !grant),
        "{decided:?}"
    );
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_is_asked_where_a_rule_says_so_and_a_run_that_may_only_answer_gets_nothing() {
    let world = with_rules(&["ask fs write *", "allow fs read *"]).await;
    let file = work(&world).join("file");
    for (decision, exists) in [(Approval::Denied, false), (Approval::Allowed, true)] {
        let run = world.prompt("a", &write(&file, "x")).await;
        let (wait, question) = world.asked(run).await;
        assert_eq!(question, format!("Allow write {}?", file.display()));
        world.answer(run, wait, decision).await;
        assert_eq!(world.ended(run).await.state.status(), RunStatus::Succeeded);
        assert_eq!(file.exists(), exists, "{decision:?}");
    }
    let run = world.send(RunRequest { mode: Mode::Ask, ..request("b", &read(&file)) }).await;
    world.ended(run).await;
    assert!(world.last("b").await.text().starts_with("-32600 \"not allowed"), "{:?}", world.last("b").await);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn permissions_of_tools_are_decided_by_rules_too() {
    let world = with_rules(&["allow tool other write a*"]).await;
    assert_eq!(
        world.say("a", "ask write a file; ask write b").await,
        "\"selected\" \"yes\"\n\"selected\" \"no\"\n"
    );
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_runs_a_command_shows_its_output_and_says_how_it_ended() {
    let world = with_rules(&["deny terminal run rm *", "allow terminal run *"]).await;
    let create = |command: &str| format!("call terminal/create {{\"command\": {command:?}}}");
    let (wait, output) = (
        "call terminal/wait_for_exit {\"terminalId\": \"$T\"}",
        "call terminal/output {\"terminalId\": \"$T\"}",
    );
    // A line for a shell; its errors are part of its output; it has no input.
    let said =
        world.say("a", &format!("{}; {wait}; {output}", create("pwd && cat && echo no >&2 && exit 3"))).await;
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "{\"terminalId\":\"terminal-1\"}");
    assert_eq!(lines[1], "{\"exitCode\":3,\"signal\":null}");
    let shown: serde_json::Value = serde_json::from_str(lines[2]).unwrap();
    assert_eq!(shown["output"], format!("{}\nno\n", work(&world).display()));
    assert_eq!((&shown["truncated"], &shown["exitStatus"]["exitCode"]), (&false.into(), &3.into()));
    // A program with arguments and variables; the end of its output, in whole characters.
    let arguments = r#"{"command": "printf", "args": ["%s", "aé漢é漢"], "outputByteLimit": 7}"#;
    let said = world.say("a", &format!("call terminal/create {arguments}; {wait}; {output}")).await;
    assert!(said.contains("\"output\":\"é漢\"") && said.contains("\"truncated\":true"), "{said}");
    let arguments = r#"{"command": "sh", "args": ["-c", "echo $GREETING-$AGENT_FOLDER-"],
                        "env": [{"name": "GREETING", "value": "hello"}]}"#;
    let said = world.say("a", &format!("call terminal/create {arguments}; {wait}; {output}")).await;
    assert!(said.contains("hello--"), "what is the agent's alone is not in its environment: {said}");
    // One that cannot be run says so; one that may not be run is not.
    let said = world.say("a", &format!("{}; {wait}; {output}", create("no-such-program"))).await;
    assert!(said.contains("\"exitCode\":127") && said.contains("not found"), "{said}");
    let said = world.say("a", &create("rm -rf sub")).await;
    assert!(said.starts_with("-32600 \"not allowed: terminal run rm -rf sub"), "{said}");
    let said = world.say("a", "call terminal/output {\"terminalId\": \"terminal-1\"}").await;
    assert!(said.starts_with("-32602"), "a terminal ends with its turn: {said}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_is_killed_released_and_ends_with_the_turn_however_that_ends() {
    let world = with_rules(&["allow terminal run *"]).await;
    let ours = || {
        let scope = world.config.state_dir.to_string_lossy().into_owned();
        // Guards and agents aside: what carries the name of an attempt and a number.
        processes_with_variable(MARK_VARIABLE, |mark| {
            mark.strip_prefix(&scope).is_some_and(|rest| rest.contains('.'))
        })
        .len()
    };
    let start = "call terminal/create {\"command\": \"setsid sleep 1000 & sleep 1000\"}";
    let said = world
        .say("a", &format!("{start}; call terminal/kill {{\"terminalId\": \"$T\"}}; call terminal/wait_for_exit {{\"terminalId\": \"$T\"}}; call terminal/output {{\"terminalId\": \"$T\"}}"))
        .await;
    assert!(
        said.contains("{}\n{\"exitCode\":null,\"signal\":\"SIGKILL\"}")
            && said.contains("\"truncated\":false"),
        "{said}"
    );
    let release = "call terminal/release {\"terminalId\": \"$T\"}";
    let said = world.say("a", &format!("{start}; {release}; {release}")).await;
    assert!(said.contains("{}\n-32602"), "{said}");
    assert_eq!(ours(), 0);
    // The agent ends its turn, is cancelled, ignores that, crashes.
    assert_eq!(world.play("a", start).await.state.status(), RunStatus::Succeeded);
    assert_eq!(ours(), 0, "a turn that has ended");
    for (end, status) in
        [("hang", RunStatus::Cancelled), ("deaf", RunStatus::Cancelled), ("crash", RunStatus::Failed)]
    {
        let run = world.prompt("a", &format!("{start}; {end}")).await;
        if status == RunStatus::Cancelled {
            world.streams("a", if end == "hang" { "hanging" } else { "deaf" }).await;
            assert!(ours() > 0);
            soon(world.node().kernel().run_cancel(&world.me, run)).await.unwrap();
        }
        assert_eq!(world.ended(run).await.state.status(), status, "{end}");
        assert_eq!(ours(), 0, "{end}");
    }
    world.close().await;
}
