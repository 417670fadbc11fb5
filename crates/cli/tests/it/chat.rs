//! `mainspring chat`, from a pipe and at a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::cli::{CommandOutput, command, command_output, json_lines, run};
use crate::guests::{Process, serve};

/// Runs a chat with `lines` as its input and returns its output.
fn chat(dir: &Path, arguments: &[&str], lines: &[&str]) -> CommandOutput {
    let mut child = command(dir)
        .arg("chat")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let text = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    command_output(child.wait_with_output().unwrap())
}

#[test]
fn a_piped_chat_without_a_key_uses_the_scripted_model_line_by_line() {
    let dir = tempfile::tempdir().unwrap();
    let lines = [
        "think hm; say Hello.; tool nobody {\"a\":1}; ask How are you?; say Good.",
        "fine",
        "approve May I?; say I may.",
        "perhaps",
        "y",
        "say two \\",
        "say lines",
    ];
    let output = chat(dir.path(), &["-s", "talk"], &lines);
    assert_eq!(
        (output.code, output.out.as_str()),
        (0, "Hello.\nGood.\nI may.\ntwo\nlines\n"),
        "{}",
        output.err
    );
    for wanted in [
        "No model is configured, so the scripted model answers",
        "hm",
        "nobody {\"a\":1} ✗ no tool \"nobody\"",
        "? How are you?",
        "? May I?",
        "please answer y or n",
    ] {
        assert!(output.err.contains(wanted), "{wanted}: {}", output.err);
    }
    assert!(!output.err.contains('\x1b'), "colour without a terminal");
    let runs = json_lines(&run(dir.path(), &["run", "list", "--json", "--session", "talk"]));
    assert!(runs.iter().all(|run| run["adapter"] == "native" && run["status"] == "succeeded"), "{runs:?}");
}

#[test]
fn a_guest_uses_the_models_of_its_server() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let config = "[models.main_reasoner]\nprovider = \"scripted\"\nmodel = \"m-7\"\n";
    std::fs::write(dir.path().join("mainspring.toml"), config).unwrap();
    let (_daemon, _) = serve(dir.path());
    let mut child = command(dir.path())
        .current_dir(elsewhere.path())
        .env_remove("MAINSPRING_CONFIG")
        .args(["chat", "-s", "talk"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"/model\nsay hello\n").unwrap();
    let output = command_output(child.wait_with_output().unwrap());
    assert_eq!((output.code, output.out.as_str()), (0, "hello\n"), "{}", output.err);
    assert!(!output.err.contains("No model is configured"), "{}", output.err);
    assert!(output.err.contains("/model main_reasoner: scripted/m-7"), "{}", output.err);
}

#[test]
fn a_resumed_chat_names_the_model_of_its_session_until_another_is_chosen() {
    let dir = tempfile::tempdir().unwrap();
    let config = "[models.main_reasoner]\nprovider = \"scripted\"\nmodel = \"m-7\"\n\
                  [models.small]\nprovider = \"scripted\"\nmodel = \"m-1\"\n";
    std::fs::write(dir.path().join("mainspring.toml"), config).unwrap();
    let made = run(dir.path(), &["session", "new", "a", "--adapter", "native", "--model", "scripted/m-9"]);
    assert_eq!(made.code, 0, "{}", made.err);
    let shown = chat(dir.path(), &["-s", "a"], &["/model", "/model small", "/model"]);
    let named: Vec<&str> = shown.err.lines().filter(|line| line.contains("model: ")).collect();
    assert_eq!(
        named,
        ["· model: scripted/m-9", "· model: scripted/m-9", "· model: scripted/m-1"],
        "{}",
        shown.err
    );
}

#[test]
fn the_tree_can_be_branched_undone_and_navigated() {
    let dir = tempfile::tempdir().unwrap();
    let lines = [
        "/tree",
        "/undo",
        "vary one | two",
        "/branch",
        "/branch say edited",
        "say after",
        "/undo",
        "/undo",
        "say beside",
        "/tree",
        "/go 1",
        "/branch 3",
        "/go 99",
        "/branch 3 say under two",
    ];
    let output = chat(dir.path(), &["-s", "t"], &lines);
    assert_eq!(output.out, "one\ntwo\nedited\nafter\nbeside\none\nunder two\n", "{}", output.err);
    assert!(output.err.contains("the session has no messages yet") && output.err.contains("nothing to undo"));
    let tree: Vec<&str> = output.err.lines().skip_while(|line| !line.starts_with("1 ")).take(9).collect();
    assert_eq!(
        tree,
        [
            "1  ○ user   vary one | two",
            "2  ├─○ agent  one",
            "3  ○ agent  two",
            "",
            "4  ○ user   say edited",
            "5  ○ agent  edited",
            "6  ○ user   say after",
            "7  ○ agent  after",
            "",
        ]
    );
    assert!(output.err.contains("8  ● user   say beside"), "{}", output.err);
    assert!(output.err.contains("the conversation continues after: two"), "{}", output.err);
    assert!(output.err.contains("the tree has messages 1 to 9"), "{}", output.err);
    let tree = run(dir.path(), &["session", "tree", "t"]).out;
    assert!(tree.contains("● user   say under two"), "{tree}");
}

#[test]
fn errors_are_printed_and_the_chat_continues() {
    let dir = tempfile::tempdir().unwrap();
    let lines =
        ["fail auth", "/brunch", "fail once invalid; say better", "/retry", "/model nobody/any", "say hi"];
    let output = chat(dir.path(), &["-s", "w"], &lines);
    assert_eq!((output.code, output.out.as_str()), (1, "better\n"), "{}", output.err);
    for wanted in
        ["(model_unauthorized)", "did you mean /branch?", "/retry retries it", "(model_not_configured)"]
    {
        assert!(output.err.contains(wanted), "{wanted}: {}", output.err);
    }
    let output = chat(dir.path(), &["-s", "bad key"], &["say hi"]);
    assert_eq!(output.code, 2, "{}", output.err);
    let output = chat(dir.path(), &["-s", "ses_00000000000040008000000000000000"], &["say hi"]);
    assert_eq!(output.code, 3, "{}", output.err);
}

#[test]
fn an_open_question_is_asked_again_in_the_next_chat() {
    let dir = tempfile::tempdir().unwrap();
    let left = chat(dir.path(), &["-s", "q"], &["say First.; ask Tea or coffee?; say Coming up."]);
    assert_eq!((left.code, left.out.as_str()), (7, "First.\n"), "{}", left.err);
    assert!(left.err.contains("the question stays open"), "{}", left.err);
    let back = chat(dir.path(), &["-s", "q"], &["tea", "say And now?"]);
    assert_eq!((back.code, back.out.as_str()), (0, "Coming up.\nAnd now?\n"), "{}", back.err);
    assert!(back.err.contains("? Tea or coffee?"), "{}", back.err);
}

#[test]
fn a_chat_that_joins_a_streaming_run_prints_each_word_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut prompt = Process::start(dir.path(), &["prompt", "-s", "a", "stream 200 every 20ms tock"]);
    prompt.read_output_until("tock tock");
    let joined = chat(dir.path(), &["-s", "a"], &[]);
    assert_eq!((joined.code, joined.out.matches("tock").count()), (0, 200), "{}{}", joined.out, joined.err);
}

#[test]
fn json_output_contains_every_event_of_every_turn() {
    let dir = tempfile::tempdir().unwrap();
    let output = chat(
        dir.path(),
        &["--json", "-s", "j"],
        &["think hm; say hi; ask Well?", "yes", "/tree", "/nothing"],
    );
    let lines = json_lines(&output);
    let has = |kind: &str| lines.iter().filter(|line| line["type"] == kind).count();
    assert_eq!((has("question"), has("run.succeeded")), (1, 1));
    assert!(has("thought") > 0, "{}", output.out);
    let nodes = lines.iter().filter(|line| line["depth"].is_number() && line["active"] == true);
    assert_eq!(nodes.count(), 4, "{}", output.out);
    assert_eq!(lines.last().unwrap()["error"]["code"], "invalid_request");
}

#[test]
fn a_chat_is_a_guest_of_the_daemon_and_continues_without_it() {
    let dir = tempfile::tempdir().unwrap();
    let (daemon, _) = serve(dir.path());
    let output = chat(dir.path(), &["-s", "g"], &["say hi"]);
    assert_eq!((output.code, output.out.as_str()), (0, "hi\n"), "{}", output.err);
    assert!(output.err.contains("served by another process"), "{}", output.err);
    let mut terminal = Terminal::open(dir.path(), &["chat", "-s", "g"]);
    terminal.wait_for("leaves");
    terminal.wait_for("› ");
    // The daemon is killed between two prompts: the chat takes the state directory over.
    drop(daemon);
    terminal.type_keys("say still here; ask Who?\r");
    terminal.wait_for("answer › ");
    terminal.type_keys("me\r");
    terminal.wait_for("› ");
    terminal.type_keys("\x04");
    assert_eq!(terminal.wait_exit(), 0);
    assert!(terminal.output.contains("still here"), "{}", terminal.output);
}

/// A command at a pseudo-terminal of its own.
pub(crate) struct Terminal {
    child: Child,
    screen: File,
    output: String,
    /// Length of the output that was already matched.
    matched: usize,
}

impl Terminal {
    pub(crate) fn open(dir: &Path, arguments: &[&str]) -> Self {
        Self::open_with(dir, arguments, None)
    }

    /// Starts a command whose result goes to `stdout`, if that is given, instead of the terminal.
    fn open_with(dir: &Path, arguments: &[&str], stdout: Option<File>) -> Self {
        let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&screen).unwrap();
        unlockpt(&screen).unwrap();
        let name = ptsname(&screen, vec![]).unwrap().into_string().unwrap();
        let keyboard =
            rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, rustix::fs::Mode::empty()).unwrap();
        let size = rustix::termios::Winsize { ws_row: 40, ws_col: 60, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&keyboard, size).unwrap();
        let keyboard = File::from(keyboard);
        let stdout = stdout.unwrap_or_else(|| keyboard.try_clone().unwrap());
        // Makes the pseudo-terminal the controlling terminal, so that Ctrl-C becomes a signal.
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait", env!("CARGO_BIN_EXE_mainspring")]).args(arguments);
        command.env_clear().env("HOME", dir).env("TERM", "xterm-256color").current_dir(dir);
        command.env("OLLAMA_HOST", "127.0.0.1:1");
        command.env("MAINSPRING_STATE_DIR", dir.join("state")).env("PATH", std::env::var("PATH").unwrap());
        let child =
            command.stdin(keyboard.try_clone().unwrap()).stdout(stdout).stderr(keyboard).spawn().unwrap();
        Self { child, screen: screen.into(), output: String::new(), matched: 0 }
    }

    pub(crate) fn type_keys(&mut self, keys: &str) {
        self.screen.write_all(keys.as_bytes()).unwrap();
    }

    /// Reads until `text` is shown after the last match.
    pub(crate) fn wait_for(&mut self, text: &str) {
        let mut bytes = [0; 4096];
        loop {
            if let Some(found) = self.output[self.matched..].find(text) {
                self.matched += found + text.len();
                return;
            }
            let count = self.screen.read(&mut bytes).unwrap_or(0);
            assert!(count > 0, "{text:?} was not printed: {}", self.output);
            self.output += &String::from_utf8_lossy(&bytes[..count]);
        }
    }

    /// Reads the rest of the output and returns the exit code.
    pub(crate) fn wait_exit(&mut self) -> i32 {
        let mut rest = vec![];
        // Reading a closed pseudo-terminal fails.
        let _ = self.screen.read_to_end(&mut rest);
        self.output += &String::from_utf8_lossy(&rest);
        self.child.wait().unwrap().code().unwrap()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn questions_to_the_person_are_not_part_of_a_result_in_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("result");
    let prompt = ["prompt", "--adapter", "script", "say Hm.; ask Tea or coffee?; say Coming up."];
    let mut terminal = Terminal::open_with(dir.path(), &prompt, Some(File::create(&file).unwrap()));
    terminal.wait_for("Tea or coffee?");
    terminal.wait_for("answer> ");
    terminal.type_keys("tea\r");
    assert_eq!(terminal.wait_exit(), 0, "{}", terminal.output);
    assert_eq!(
        std::fs::read_to_string(file).unwrap(),
        "Hm.\nTea or coffee?\nYou answered: tea\nComing up.\n"
    );
}

#[test]
fn a_terminal_chat_supports_ctrl_c_editing_and_history() {
    let dir = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::open(dir.path(), &["chat", "-s", "tty"]);
    terminal.wait_for("scripted model");
    terminal.wait_for("› ");
    terminal.type_keys("stream 1000 every 20ms tock\r");
    // A complete line and the beginning of the next one.
    terminal.wait_for("tock tock\r\ntock");
    terminal.type_keys("\x03");
    terminal.wait_for("cancelling; press Ctrl-C again to leave");
    terminal.wait_for("cancelled");
    terminal.wait_for("› ");
    // Backspace deletes a key; Tab completes commands.
    terminal.type_keys("say goodd\x7f; ask Sure?\r");
    terminal.wait_for("answer › ");
    terminal.type_keys("a secret answer\r");
    terminal.wait_for("› ");
    terminal.type_keys("/tr\t\r");
    terminal.wait_for("1  ● user   stream 1000");
    terminal.wait_for("› ");
    terminal.type_keys("\x03");
    terminal.wait_for("press Ctrl-C again");
    terminal.type_keys("\x03");
    assert_eq!(terminal.wait_exit(), 0, "{}", terminal.output);
    assert!(terminal.output.contains("continue with: mainspring chat -s tty"), "{}", terminal.output);
    let full =
        terminal.output.lines().filter(|line| line.starts_with("tock tock")).map(|line| line.trim().len());
    assert_eq!(full.max(), Some(59), "{}", terminal.output);
    let runs = json_lines(&run(dir.path(), &["run", "list", "--json", "--session", "tty"]));
    let statuses: Vec<&str> = runs.iter().map(|run| run["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["succeeded", "cancelled"]);
    let history = std::fs::read_to_string(dir.path().join("state/chat_history")).unwrap();
    assert!(history.contains("say good; ask Sure?") && !history.contains("secret answer"), "{history}");
}
