//! File and terminal requests of agents.

use std::collections::HashMap;
use std::path::Path;

use mainspring_adapters::process::{MARK_VARIABLE, processes_with_variable};
use mainspring_core::Block;

use super::*;

/// A world whose agent works in its own folder, under these rules.
async fn with_rules(rules: &[&str]) -> World {
    world_with("resume", |setup| {
        let work = setup.folder.join("work");
        std::fs::create_dir_all(work.join("sub")).unwrap();
        setup.agent.cwd = work;
        setup.agent.rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        setup.agent.permissions = Permissions::Deny;
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

/// The decisions in order: the question, the decision, and whether it names a grant.
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
async fn an_agent_is_offered_only_what_some_rule_can_allow() {
    for (rules, offered) in [
        (&[][..], (false, false, false)),
        (&["deny fs read *"][..], (false, false, false)),
        (&["allow fs read *"][..], (true, false, false)),
        (&["ask fs * *", "deny terminal run rm *", "allow terminal run *"][..], (true, true, true)),
    ] {
        let world = with_rules(rules).await;
        let can: serde_json::Value = serde_json::from_str(&world.answer_to("a", "client").await).unwrap();
        let fs = &can["fs"];
        let capabilities = (fs["readTextFile"] == true, fs["writeTextFile"] == true, can["terminal"] == true);
        assert_eq!(capabilities, offered, "{rules:?}: {can}");
        // A request for a feature that was not offered is refused.
        if !offered.2 {
            let answer = world.answer_to("a", "call terminal/create {\"command\": \"true\"}").await;
            assert!(answer.starts_with("-32601"), "{answer}");
        }
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_decide_file_requests_and_every_decision_names_its_grant() {
    let world = with_rules(&["deny fs write */secret*", "allow fs * *"]).await;
    let work = work(&world);
    let file = work.join("new/notes.txt");
    let text = "one\ntwo\nthree\n";
    let answer = world.answer_to("a", &format!("{}; {}", write(&file, text), read(&file))).await;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    assert!(answer.starts_with("{}\n{\"content\":\"one"), "{answer}");
    let lines = format!("call fs/read_text_file {{\"path\": {file:?}, \"line\": 2, \"limit\": 1}}");
    assert_eq!(world.answer_to("a", &lines).await, "{\"content\":\"two\\n\"}\n");
    let secret = work.join("secret.txt");
    let answer = world.answer_to("a", &write(&secret, "x")).await;
    assert!(answer.starts_with("-32600 \"not allowed: fs write"), "{answer}");
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
    // Missing, binary, special and too large files are refused.
    std::fs::write(work.join("bytes"), [0xff, 0xfe]).unwrap();
    std::fs::write(work.join("large"), vec![b'x'; (8 << 20) + 1]).unwrap();
    for (name, says) in [
        ("none", "-32002"),
        ("bytes", "is not UTF-8 text"),
        ("sub", "is not a regular file"),
        ("large", "more than 8388608 bytes"),
    ] {
        let answer = world.answer_to("a", &read(&work.join(name))).await;
        assert!(answer.contains(says), "{name}: {answer}");
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_an_agent_does_not_wait_for_are_served_before_its_turn_ends() {
    let world = with_rules(&["ask fs write */asked.txt", "allow fs write *"]).await;
    let files = ["asked.txt", "first.txt", "second.txt"].map(|name| work(&world).join(name));
    let [asked, first, second] = files.each_ref().map(|file| write(file, "x").replace("call", "send"));
    world.answer_to("a", &format!("{asked}; {first}; {second}")).await;
    // The first request needs the decision of a person. The agent ends its turn without waiting, so no one allows it.
    assert_eq!(files.map(|file| file.exists()), [false, true, true]);
    let allowed =
        decisions(&world, "a").await.into_iter().filter(|(.., decision, _)| *decision == Approval::Allowed);
    assert_eq!(allowed.count(), 2);
    let responses = world.answer_to("a", "responses").await;
    let responses: Vec<&str> = responses.lines().collect();
    assert!(responses[0].contains("not allowed: fs write"), "{responses:?}");
    assert_eq!(responses[1..], ["{}", "{}"]);
    world.close().await;
}

/// The agent ends its turn right after its requests, so each request may be decided before or after the end of the
/// turn.
#[tokio::test(flavor = "multi_thread")]
async fn permissions_and_commands_that_an_agent_does_not_wait_for_are_answered_as_they_were_decided() {
    let world = with_rules(&["allow * * *"]).await;
    let options = r#"[{"optionId": "yes", "name": "Yes", "kind": "allow_once"}, {"optionId": "no", "name": "No", "kind": "reject_once"}]"#;
    let permission = |title: &str| {
        let call = format!(r#"{{"toolCallId": "{title}", "title": "{title}", "kind": "execute"}}"#);
        format!("send session/request_permission {{\"toolCall\": {call}, \"options\": {options}}}")
    };
    let command = r#"send terminal/create {"command": "true"}"#;
    let asked = ["first", "second", "third"].map(permission).join("; ");
    world.answer_to("a", &format!("{asked}; {command}; {}", permission("last"))).await;
    // A later decision about the same request replaces an earlier one.
    let decided: HashMap<String, Approval> = decisions(&world, "a")
        .await
        .into_iter()
        .map(|(question, decision, _)| (question, decision))
        .collect();
    assert_eq!(decided.len(), 5, "{decided:?}");
    let allowed = decided.values().filter(|decision| **decision == Approval::Allowed).count();
    let responses = world.answer_to("a", "responses").await;
    let responses: Vec<&str> = responses.lines().collect();
    assert_eq!(responses.len(), 5, "{responses:?}");
    let granted = |response: &&&str| response.contains("yes") || response.contains("terminal-");
    assert_eq!(responses.iter().filter(granted).count(), allowed, "{decided:?}: {responses:?}");
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
        let answer = world.answer_to("a", &format!("{}; {}", read(&path), write(&path, "changed"))).await;
        assert!(!answer.contains("private") && answer.matches("-32602").count() == 2, "{path:?}: {answer}");
    }
    for path in [work.join("link/new"), work.join("dangling"), work.join("missing/../../outside/new")] {
        let answer = world.answer_to("a", &write(&path, "changed")).await;
        assert!(answer.starts_with('-'), "{path:?}: {answer}");
    }
    let terminal = format!("call terminal/create {{\"command\": \"true\", \"cwd\": {outside:?}}}");
    let answer = world.answer_to("a", &terminal).await;
    assert!(answer.starts_with("-32602"), "{answer}");
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
async fn a_rule_can_ask_a_person_and_a_run_in_ask_mode_is_denied() {
    let world = with_rules(&["ask fs write *", "allow fs read *"]).await;
    let file = work(&world).join("file");
    for (decision, exists) in [(Approval::Denied, false), (Approval::Allowed, true)] {
        let run = world.start("a", &write(&file, "x")).await;
        let (wait, question) = world.wait_for_question(run).await;
        assert_eq!(question, format!("Allow write {}?", file.display()));
        world.decide(run, wait, decision).await;
        assert_eq!(world.wait_for_end(run).await.state.status(), RunStatus::Succeeded);
        assert_eq!(file.exists(), exists, "{decision:?}");
    }
    let run = world.start_request(RunRequest { mode: Mode::Ask, ..request("b", &read(&file)) }).await;
    world.wait_for_end(run).await;
    assert!(
        world.last_message("b").await.text().starts_with("-32600 \"not allowed"),
        "{:?}",
        world.last_message("b").await
    );
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_decide_tool_permissions() {
    let world = with_rules(&["allow tool other write a*"]).await;
    assert_eq!(
        world.answer_to("a", "ask write a file; ask write b").await,
        "\"selected\" \"yes\"\n\"selected\" \"no\"\n"
    );
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_does_not_start_in_a_folder_that_became_a_link_while_a_person_decided() {
    let world = with_rules(&["ask terminal run *"]).await;
    let (work, sub) = (work(&world), work(&world).join("sub"));
    std::fs::create_dir(work.join("precious")).unwrap();
    let create =
        format!("call terminal/create {{\"command\": \"touch\", \"args\": [\"here\"], \"cwd\": {sub:?}}}");
    let wait = "call terminal/wait_for_exit {\"terminalId\": \"$T\"}";
    let run = world.start("a", &format!("{create}; {wait}")).await;
    let (question, _) = world.wait_for_question(run).await;
    std::fs::remove_dir(&sub).unwrap();
    std::os::unix::fs::symlink(work.join("precious"), &sub).unwrap();
    world.decide(run, question, Approval::Allowed).await;
    let answer = world.text_of("a", world.wait_for_end(run).await.id).await;
    assert!(answer.contains("was replaced by a link"), "{answer}");
    assert!(!work.join("precious/here").exists());
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_of_a_session_override_neither_the_rules_nor_the_permissions_of_the_adapter() {
    let world = with_rules(&["allow fs read *"]).await;
    let (work, mut request) = (work(&world), request("a", ""));
    std::fs::write(work.join("notes"), "text").unwrap();
    std::fs::write(work.join("secret"), "hidden").unwrap();
    request.session.new.rules = ["deny fs read */secret", "allow fs write *"].map(str::to_owned).into();
    let ask = |prompt: String| RunRequest { prompt: vec![Block::text(prompt)], ..request.clone() };
    let run = world.start_request(ask(read(&work.join("notes")))).await;
    let answer = world.text_of("a", world.wait_for_end(run).await.id).await;
    assert!(answer.contains("text"), "{answer}");
    // The adapter's rule comes before the session's denial, and its permissions deny all that it does not allow.
    let answer = world.answer_to("a", &read(&work.join("secret"))).await;
    assert!(answer.contains("hidden"), "{answer}");
    let answer = world.answer_to("a", &write(&work.join("new"), "x")).await;
    assert!(answer.starts_with('-') && !work.join("new").exists(), "{answer}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_reports_its_output_and_exit_status() {
    let world = with_rules(&["deny terminal run rm *", "allow terminal run *"]).await;
    let create = |command: &str| format!("call terminal/create {{\"command\": {command:?}}}");
    let (wait, output) = (
        "call terminal/wait_for_exit {\"terminalId\": \"$T\"}",
        "call terminal/output {\"terminalId\": \"$T\"}",
    );
    // A shell line; its output includes standard error; it has no input.
    let answer = world
        .answer_to("a", &format!("{}; {wait}; {output}", create("pwd && cat && echo no >&2 && exit 3")))
        .await;
    let lines: Vec<&str> = answer.lines().collect();
    assert_eq!(lines[0], "{\"terminalId\":\"terminal-1\"}");
    assert_eq!(lines[1], "{\"exitCode\":3,\"signal\":null}");
    let shown: serde_json::Value = serde_json::from_str(lines[2]).unwrap();
    assert_eq!(shown["output"], format!("{}\nno\n", work(&world).display()));
    assert_eq!((&shown["truncated"], &shown["exitStatus"]["exitCode"]), (&false.into(), &3.into()));
    // A program with arguments and variables. A limited output keeps its end, in whole characters.
    let arguments = r#"{"command": "printf", "args": ["%s", "aé漢é漢"], "outputByteLimit": 7}"#;
    let answer = world.answer_to("a", &format!("call terminal/create {arguments}; {wait}; {output}")).await;
    assert!(answer.contains("\"output\":\"é漢\"") && answer.contains("\"truncated\":true"), "{answer}");
    let arguments = r#"{"command": "sh", "args": ["-c", "echo $GREETING-$AGENT_FOLDER-"],
                        "env": [{"name": "GREETING", "value": "hello"}]}"#;
    let answer = world.answer_to("a", &format!("call terminal/create {arguments}; {wait}; {output}")).await;
    assert!(answer.contains("hello--"), "the agent's own variables are not passed on: {answer}");
    // A missing program, and a command that a rule denies.
    let answer = world.answer_to("a", &format!("{}; {wait}; {output}", create("no-such-program"))).await;
    assert!(answer.contains("\"exitCode\":127") && answer.contains("not found"), "{answer}");
    let answer = world.answer_to("a", &create("rm -rf sub")).await;
    assert!(answer.starts_with("-32600 \"not allowed: terminal run rm -rf sub"), "{answer}");
    let answer = world.answer_to("a", "call terminal/output {\"terminalId\": \"terminal-1\"}").await;
    assert!(answer.starts_with("-32602"), "a terminal ends with its turn: {answer}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_ends_when_killed_or_released_and_with_its_turn() {
    let world = with_rules(&["allow terminal run *"]).await;
    let terminals = || {
        let scope = world.setup.agent.scope.clone();
        // The mark of a terminal's processes is the mark of the attempt, followed by a dot and a number.
        processes_with_variable(MARK_VARIABLE, |mark| {
            mark.strip_prefix(&scope).is_some_and(|rest| rest.contains('.'))
        })
        .len()
    };
    let start = "call terminal/create {\"command\": \"setsid sleep 1000 & sleep 1000\"}";
    let answer = world
        .answer_to("a", &format!("{start}; call terminal/kill {{\"terminalId\": \"$T\"}}; call terminal/wait_for_exit {{\"terminalId\": \"$T\"}}; call terminal/output {{\"terminalId\": \"$T\"}}"))
        .await;
    assert!(
        answer.contains("{}\n{\"exitCode\":null,\"signal\":\"SIGKILL\"}")
            && answer.contains("\"truncated\":false"),
        "{answer}"
    );
    let release = "call terminal/release {\"terminalId\": \"$T\"}";
    let answer = world.answer_to("a", &format!("{start}; {release}; {release}")).await;
    assert!(answer.contains("{}\n-32602"), "{answer}");
    assert_eq!(terminals(), 0);
    // Terminals end with a turn that succeeds, is cancelled, ignores its cancellation or crashes.
    assert_eq!(world.run("a", start).await.state.status(), RunStatus::Succeeded);
    assert_eq!(terminals(), 0, "the turn has ended");
    for (end, status) in
        [("hang", RunStatus::Cancelled), ("deaf", RunStatus::Cancelled), ("crash", RunStatus::Failed)]
    {
        let run = world.start("a", &format!("{start}; {end}")).await;
        if status == RunStatus::Cancelled {
            world.wait_for_text("a", if end == "hang" { "hanging" } else { "deaf" }).await;
            assert!(terminals() > 0);
            world.cancel(run).await;
        }
        assert_eq!(world.wait_for_end(run).await.state.status(), status, "{end}");
        assert_eq!(terminals(), 0, "{end}");
    }
    world.close().await;
}
