//! The command line, as a person or a script uses it.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::guests::serve;

/// Runs `mainspring` on `dir` without a terminal, as a script would.
fn mainspring(dir: &Path, arguments: &[&str]) -> Output {
    command(dir).args(arguments).output().unwrap()
}

/// Builds a `mainspring` command on `dir`, without inherited settings and keys. Prompts go to the script agent, unless
/// the file in `dir` names another adapter.
pub(crate) fn command(dir: &Path) -> Command {
    let mut command = bare_command(dir);
    let file = std::fs::read_to_string(dir.join("mainspring.toml")).unwrap_or_default();
    if !file.lines().any(|line| line.starts_with("adapter = ")) {
        command.env("MAINSPRING_ADAPTER", "script");
    }
    command
}

/// Builds a `mainspring` command on `dir`, without inherited settings and keys. A file in `dir` is named as the
/// configuration: without that it would not be trusted.
pub(crate) fn bare_command(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mainspring"));
    command.env_clear().env("HOME", dir).env("MAINSPRING_STATE_DIR", dir.join("state")).current_dir(dir);
    // No model server of the machine either.
    command.env("OLLAMA_HOST", "127.0.0.1:1");
    command.envs(config_variable(dir));
    command
}

/// Returns the variable that names the configuration file in `dir`, if there is one.
pub(crate) fn config_variable(dir: &Path) -> Option<(OsString, OsString)> {
    let file = dir.join("mainspring.toml");
    file.exists().then(|| ("MAINSPRING_CONFIG".into(), file.into()))
}

/// Exit code and output of a command.
pub(crate) struct CommandOutput {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

pub(crate) fn run(dir: &Path, arguments: &[&str]) -> CommandOutput {
    command_output(mainspring(dir, arguments))
}

pub(crate) fn command_output(output: Output) -> CommandOutput {
    CommandOutput {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

pub(crate) fn json_lines(output: &CommandOutput) -> Vec<Value> {
    output.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn latest_run(dir: &Path) -> String {
    json_lines(&run(dir, &["run", "list", "--json"]))[0]["runId"].as_str().unwrap().to_owned()
}

#[test]
fn only_the_answer_is_printed_on_standard_output() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(
        dir.path(),
        &["prompt", "--session", "hello", "say hi there; tool add {\"a\":1,\"b\":2}; say done"],
    );
    assert_eq!((output.code, output.out.as_str()), (0, "hi there\ndone\n"), "{}", output.err);
    assert!(!output.err.contains('\x1b'), "colour without a terminal: {:?}", output.err);
    let session = run(dir.path(), &["session", "show", "hello", "--json"]);
    let messages = json_lines(&session)[0]["messages"].as_array().unwrap().len();
    assert_eq!(messages, 4);
}

#[test]
fn a_new_session_works_in_the_folder_of_its_caller() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().canonicalize().unwrap();
    let cwd_of = |session: &str| {
        let shown = run(dir.path(), &["session", "show", session, "--json"]);
        json_lines(&shown)[0]["session"]["cwd"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(run(dir.path(), &["prompt", "--session", "a", "say hi"]).code, 0);
    assert_eq!(cwd_of("a"), folder.to_str().unwrap());
    let missing = run(dir.path(), &["session", "new", "b", "--cwd", "below"]);
    assert!(missing.code == 2 && missing.err.contains("does not exist"), "{}", missing.err);
    std::fs::create_dir(dir.path().join("below")).unwrap();
    assert_eq!(run(dir.path(), &["session", "new", "b", "--cwd", "below"]).code, 0);
    assert_eq!(cwd_of("b"), folder.join("below").to_str().unwrap(), "a relative folder is the caller's");
    let elsewhere = tempfile::tempdir().unwrap();
    let second =
        command(dir.path()).args(["prompt", "--session", "a", "say hi"]).current_dir(&elsewhere).output();
    assert!(second.unwrap().status.success());
    assert_eq!(cwd_of("a"), folder.to_str().unwrap(), "a session keeps its folder");
}

#[test]
fn an_adopted_session_has_the_folder_that_its_caller_means() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("mainspring.toml"),
        "[adapters.agent]\nkind = \"acp\"\ncommand = [\"true\"]\n",
    )
    .unwrap();
    let adopt = |task: &str, more: &[&str]| {
        let arguments = ["session", "adopt", task, "--adapter", "agent", "--task", task, "--json"];
        run(dir.path(), &[&arguments, more].concat())
    };
    let adopted = adopt("1", &["--cwd", "."]);
    assert_eq!(adopted.code, 0, "{}", adopted.err);
    let folder = dir.path().canonicalize().unwrap();
    assert_eq!(json_lines(&adopted)[0]["binding"]["cwd"], folder.to_str().unwrap());
    let elsewhere = tempfile::tempdir().unwrap();
    for (name, selector) in [("4", "--task"), ("5", "--session")] {
        let arguments = ["session", "adopt", name, "--adapter", "agent", selector, name, "--json"];
        let output = command(dir.path()).args(arguments).current_dir(&elsewhere).output().unwrap();
        let adopted = command_output(output);
        assert_eq!(adopted.code, 0, "{}", adopted.err);
        let caller = elsewhere.path().canonicalize().unwrap();
        for part in ["session", "binding"] {
            assert_eq!(json_lines(&adopted)[0][part]["cwd"], caller.to_str().unwrap(), "{selector} {part}");
        }
    }
    let missing = adopt("2", &["--cwd", "nowhere"]);
    assert!(missing.code == 2 && missing.err.contains("does not exist"), "{}", missing.err);
    let (_server, url) = serve(dir.path());
    let token = run(dir.path(), &["serve", "--print-token"]).out;
    let remote = adopt("3", &["--url", &url, "--key", token.trim()]);
    assert_eq!(remote.code, 0, "{}", remote.err);
    assert_eq!(json_lines(&remote)[0]["session"]["cwd"], Value::Null, "a server elsewhere has other folders");
}

#[test]
fn no_text_can_control_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let (cursor, direction) = ('\r', '\u{202E}');
    // Text cannot even use the colours of the program.
    let script = format!("say rm -rf ~{cursor}read{direction}EMDAER\u{1B}[32m");
    let prompt = run(dir.path(), &["prompt", "--session", "a", &script]);
    let expected = "rm -rf ~␍read\u{FFFD}EMDAER␛[32m\n";
    assert_eq!((prompt.code, prompt.out.as_str()), (0, expected), "{}", prompt.err);
    for command in [
        &["session", "show", "a"][..],
        &["session", "list"],
        &["session", "tree", "a"],
        &["session", "search", "rm"],
    ] {
        let output = run(dir.path(), command);
        assert_eq!(output.code, 0, "{command:?}: {}", output.err);
        assert!(!output.out.contains([cursor, direction]), "{command:?}: {:?}", output.out);
    }
}

#[test]
fn json_output_of_a_prompt_is_every_event_of_its_run() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(dir.path(), &["prompt", "--session", "hello", "--json", "say hi"]);
    let types: Vec<String> =
        json_lines(&output).iter().map(|line| line["type"].as_str().unwrap().to_owned()).collect();
    let events: Vec<&str> =
        types.iter().map(String::as_str).filter(|kind| *kind != "message.delta").collect();
    assert_eq!(
        events,
        [
            "run.queued",
            "attempt.created",
            "run.starting",
            "message.completed",
            "attempt.started",
            "run.running",
            "message.completed",
            "run.succeeded"
        ]
    );
}

#[test]
fn exit_codes_match_the_outcome() {
    let dir = tempfile::tempdir().unwrap();
    let cases: [(&[&str], i32, &str); 9] = [
        (&["prompt", "say hi"], 0, "succeeded"),
        (&["prompt", "fail no luck"], 1, "no luck (script_failed)"),
        (&["prompt", "--session", "bad key", "x"], 2, "error[invalid_request]"),
        (
            &["prompt", "--adapter", "nope", "x"],
            2,
            "error[adapter_not_registered]: no adapter \"nope\"; there is native, script",
        ),
        (&["session", "show", "nobody"], 3, "error[not_found]: no session \"nobody\""),
        (&["run", "show", "run_00000000000040008000000000000000"], 3, "error[not_found]"),
        (&["run", "show", "run_x"], 2, "is not the beginning of a run id"),
        (&["session", "list", "--limit", "0"], 2, "a limit must be at least 1"),
        (&["prompt", "--session", "asking", "ask Who?"], 7, "mainspring run answer run_"),
    ];
    for (arguments, code, expected) in cases {
        let output = run(dir.path(), arguments);
        assert_eq!(output.code, code, "{arguments:?}: {}", output.err);
        assert!(output.err.contains(expected), "{arguments:?}: {}", output.err);
    }
    let waiting = latest_run(dir.path());
    let output = run(dir.path(), &["prompt", "--session", "asking", "say me too"]);
    assert_eq!(output.code, 7, "{}", output.err);
    assert!(output.err.contains("queued behind a waiting run: Who?"), "{}", output.err);
    assert_eq!(run(dir.path(), &["run", "answer", &waiting, "--allow"]).code, 4);
    let output = run(dir.path(), &["run", "answer", &waiting, "me"]);
    assert_eq!((output.code, output.out.as_str()), (0, "You answered: me\n"), "{}", output.err);
    // The prompt queued behind the waiting run was accepted, so it has been executed too.
    assert_eq!(json_lines(&run(dir.path(), &["run", "list", "--json"]))[0]["status"], "succeeded");
    assert_eq!(run(dir.path(), &["run", "cancel", &waiting]).code, 4);
}

#[test]
fn errors_are_json_with_the_json_flag() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(dir.path(), &["session", "show", "nobody", "--json"]);
    let error: Value = serde_json::from_str(&output.err).unwrap();
    assert_eq!(error["error"]["code"], "not_found");
    assert_eq!(output.out, "");
}

#[test]
fn invalid_arguments_are_json_errors_too() {
    let dir = tempfile::tempdir().unwrap();
    for arguments in [
        &["run", "show", "garbage", "--json"][..],
        &["nonsense", "--json"],
        &["prompt", "--json", "--bogus"],
        &["prompt", "--json", "--request-id", "r", "--idempotency-key", "k", "x"],
    ] {
        let output = run(dir.path(), arguments);
        let error: Value = serde_json::from_str(&output.err).unwrap();
        assert_eq!(
            (output.code, &error["error"]["code"]),
            (2, &Value::from("invalid_request")),
            "{arguments:?}"
        );
    }
    let output = run(dir.path(), &["demo", "--json"]);
    assert_eq!(json_lines(&output).len(), 7, "{}", output.out);
}

#[test]
fn a_prompt_prints_only_its_own_run_and_the_run_it_waits_behind() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), &["prompt", "--session", "a", "say before; ask Q?"]);
    let waiting = latest_run(dir.path());
    let output = run(dir.path(), &["prompt", "--session", "a", "--json", "stream 5 every 20ms other"]);
    let blocked = &json_lines(&output)[0];
    assert_eq!((output.code, &blocked["behind"]["question"]), (7, &Value::from("Q?")), "{}", output.out);
    run(dir.path(), &["run", "cancel", &waiting]);
    let output = run(dir.path(), &["prompt", "--session", "a", "say mine"]);
    assert_eq!((output.code, output.out.as_str()), (0, "mine\n"), "{}", output.err);
}

#[test]
fn a_question_is_printed_with_the_command_that_answers_it() {
    let dir = tempfile::tempdir().unwrap();
    let output =
        run(dir.path(), &["prompt", "--session", "a", "stream 3 every 20ms x; approve Wipe the disk?"]);
    assert_eq!((output.code, output.out.as_str()), (7, "x x x Wipe the disk?\n"));
    let asking = latest_run(dir.path());
    let command = format!("mainspring approval allow {asking} (or deny)");
    assert!(output.err.contains(&command), "{}", output.err);
    assert_eq!(run(dir.path(), &["run", "answer", &asking, ""]).code, 2);
    let session = run(dir.path(), &["session", "show", "a"]);
    assert!(session.out.contains("Wipe the disk?"), "{}", session.out);
    let listed = run(dir.path(), &["approval", "list"]);
    assert!(listed.out.contains("Wipe the disk?") && listed.out.contains(&asking), "{}", listed.out);
    let shown = run(dir.path(), &["approval", "show", &asking[..12]]);
    assert!(shown.out.contains("then the run times out"), "{}", shown.out);
    // The request has no action that could be allowed again, and no tool whose result could be supplied.
    for answer in [&["approval", "allow", &asking, "--session"][..], &["approval", "supply", &asking, "42"]] {
        let refused = run(dir.path(), answer);
        assert!(
            refused.code == 4 && refused.err.contains("it offers allow_once"),
            "{} {}",
            refused.code,
            refused.err
        );
    }
    let denied = run(dir.path(), &["approval", "deny", &asking, "--reason", "it is full"]);
    assert_eq!((denied.code, denied.out.as_str()), (0, "Denied: it is full\n"), "{}", denied.err);
    let late = run(dir.path(), &["approval", "allow", &asking]);
    assert!(late.err.contains("waits for no approval"), "{}", late.err);
    assert!(run(dir.path(), &["approval", "list"]).err.contains("no run waits"));
    assert!(run(dir.path(), &["grant", "list"]).err.contains("no grants"));
    let unknown = run(dir.path(), &["grant", "revoke", "grant_00000000000040008000000000000000"]);
    assert!(unknown.code == 3 && unknown.err.contains("no grant"), "{} {}", unknown.code, unknown.err);
}

#[test]
fn a_run_can_be_retried_after_a_later_prompt_was_cancelled() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), &["prompt", "--session", "a", "ask Q?; fail"]);
    let asking = latest_run(dir.path());
    run(dir.path(), &["prompt", "--session", "a", "say never"]);
    let behind = latest_run(dir.path());
    assert_eq!(run(dir.path(), &["run", "cancel", &behind]).code, 0);
    assert_eq!(run(dir.path(), &["run", "answer", &asking, "me"]).code, 1);
    let output = run(dir.path(), &["run", "retry", &asking, "--limit", "tokens=9", "--limit", "time=2h"]);
    assert_eq!(output.code, 7, "{}", output.err);
    assert!(output.err.contains("attempt 2"), "{}", output.err);
    let shown = run(dir.path(), &["run", "show", &asking]);
    assert!(shown.out.contains("script (user)"), "{}", shown.out);
    let shown = json_lines(&run(dir.path(), &["run", "show", &asking, "--json"])).remove(0);
    assert_eq!(shown["options"]["limits"], serde_json::json!({"maxTokens": 9, "maxTimeMs": 7_200_000}));
    let refused = run(dir.path(), &["run", "retry", &asking, "--limit", "tokens"]);
    assert_eq!(refused.code, 2);
}

#[test]
fn a_repeated_request_is_one_run() {
    let dir = tempfile::tempdir().unwrap();
    let send = |text: &str| run(dir.path(), &["prompt", "--session", "once", "--request-id", "r1", text]);
    assert_eq!(send("say once").out, "once\n");
    assert_eq!(send("say once").out, "once\n");
    let output = send("say twice");
    assert_eq!(output.code, 4);
    assert!(output.err.contains("error[request_conflict]"), "{}", output.err);
    assert_eq!(json_lines(&run(dir.path(), &["run", "list", "--json"])).len(), 1);
}

#[test]
fn sessions_are_renamed_archived_and_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let names = |arguments: &[&str]| -> Vec<Value> {
        json_lines(&run(dir.path(), arguments)).into_iter().map(|session| session["title"].clone()).collect()
    };
    run(dir.path(), &["prompt", "--session", "a", "say hi"]);
    run(dir.path(), &["session", "rename", "a", "My title"]);
    assert_eq!(names(&["session", "list", "--json"]), ["My title"]);
    run(dir.path(), &["session", "archive", "a"]);
    assert_eq!(names(&["session", "list", "--json"]).len(), 0);
    assert_eq!(names(&["session", "list", "--archived", "--json"]), ["My title"]);
    run(dir.path(), &["prompt", "--session", "a", "say a prompt takes it out again"]);
    assert_eq!(names(&["session", "list", "--json"]), ["My title"]);
    assert_eq!(run(dir.path(), &["session", "close", "a"]).out, "closed a\n");
    assert_eq!(names(&["session", "list", "--closed", "--json"]), ["My title"]);
    let refused = run(dir.path(), &["prompt", "--session", "a", "say no"]);
    assert_eq!(refused.code, 4);
    assert!(refused.err.contains("error[session_closed]"), "{}", refused.err);
    assert!(refused.err.contains("reopen it"), "{}", refused.err);
    assert_eq!(run(dir.path(), &["session", "reopen", "a"]).out, "reopened a\n");
    assert_eq!(names(&["session", "list", "--json"]), ["My title"]);
    assert_eq!(run(dir.path(), &["session", "delete", "a"]).out, "deleted a\n");
    assert_eq!(run(dir.path(), &["session", "show", "a"]).code, 3);
    run(dir.path(), &["prompt", "--session", "a", "say the name is free again"]);
    assert_eq!(
        json_lines(&run(dir.path(), &["session", "show", "a", "--json"]))[0]["messages"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

#[test]
fn an_oversized_prompt_is_refused_and_nothing_is_stored() {
    use std::io::Write;
    let dir = tempfile::tempdir().unwrap();
    let mut child = command(dir.path())
        .args(["prompt", "--session", "big", "--json", "--state-dir"])
        .arg(dir.path().join("state"))
        .stdin(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&vec![b'a'; 10_000_000]).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(error["error"]["code"], "too_large");
    assert_eq!(run(dir.path(), &["session", "show", "big"]).code, 3);
}

#[test]
fn the_demo_finishes_without_a_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(dir.path(), &["demo"]);
    assert_eq!(output.code, 0, "{}", output.err);
    for expected in [
        "tool add completed",
        "the provider says: Overloaded, will be retried",
        "attempt 2",
        "cancelled: the agent has stopped",
        "answer: tea",
        "○ agent  Here is one way to put it.",
        "● agent  And here is another one.",
        "rule 3 → left + right",
        "per member",
        "rule 2 → end",
        "kill -9",
        "retried: succeeded",
    ] {
        assert!(output.out.contains(expected), "{expected}: {}", output.out);
    }
    // Two model calls after a tool result and after a person's answer, one otherwise; the failed call counts.
    for (scenario, calls) in
        [("stream", 1), ("tool", 2), ("retry", 2), ("cancel", 1), ("ask", 2), ("branch", 1)]
    {
        let row = output.out.lines().find(|line| line.starts_with(&format!(" {scenario} "))).unwrap();
        let column: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(column[3], calls.to_string(), "{row}");
    }
    assert!(!output.out.contains('\x1b'));
}

#[test]
fn a_kept_demo_directory_can_be_opened_with_the_printed_command() {
    let dir = tempfile::tempdir().unwrap();
    // The demo ignores the user's configuration, even a broken one, and the user's database.
    std::fs::write(dir.path().join("mainspring.toml"), "[mcp.broken]\ncommand = \"/nowhere\"\n").unwrap();
    let kept = dir.path().join("kept");
    let mut demo = command(dir.path());
    demo.env("MAINSPRING_STORE", "postgres://localhost:1/none").args([
        "demo",
        "--keep",
        kept.to_str().unwrap(),
    ]);
    let output = command_output(demo.output().unwrap());
    assert_eq!(output.code, 0, "{}", output.err);
    let kept_hint = output
        .out
        .lines()
        .find_map(|line| line.strip_prefix("Kept in ")?.split_once(": mainspring "))
        .unwrap();
    let mut again = command(dir.path());
    again.env_remove("MAINSPRING_STATE_DIR").args(kept_hint.1.split(' ')).arg("--json");
    // Six agents, the network with a session for each parallel member, and the one that was killed.
    assert_eq!(json_lines(&command_output(again.output().unwrap())).len(), 10);
}

#[test]
fn settings_are_shown_with_their_origin_and_unknown_settings_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("mainspring.toml"), "max_workers = 3\n").unwrap();
    let output = run(dir.path(), &["config", "show", "--json"]);
    let settings = &json_lines(&output)[0]["settings"];
    let workers = settings.as_array().unwrap().iter().find(|row| row["key"] == "max_workers").unwrap();
    assert_eq!((&workers["value"], &workers["origin"]["from"]), (&Value::from(3), &Value::from("file")));
    std::fs::write(dir.path().join("mainspring.toml"), "max_worker = 3\n").unwrap();
    let output = run(dir.path(), &["config", "show"]);
    assert_eq!(output.code, 2);
    assert!(output.err.contains("max_workers"), "{}", output.err);
}

#[test]
fn completions_are_generated_for_every_shell() {
    let dir = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let output = run(dir.path(), &["completions", shell]);
        assert!(output.code == 0 && output.out.contains("mainspring"), "{shell}");
    }
}
