//! `mainspring chat`, from a pipe and at a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::cli::{Said, command, json_lines, run, said};
use crate::guests::serve;

/// Runs a chat with `lines` as its input and returns its output.
fn chat(dir: &Path, arguments: &[&str], lines: &[&str]) -> Said {
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
    said(child.wait_with_output().unwrap())
}

#[test]
fn without_a_key_it_says_so_and_talks_asks_and_answers_line_by_line() {
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
    let said = chat(dir.path(), &["-s", "talk"], &lines);
    assert_eq!((said.code, said.out.as_str()), (0, "Hello.\nGood.\nI may.\ntwo\nlines\n"), "{}", said.err);
    for wanted in [
        "No model is configured, so you talk to the scripted model",
        "hm",
        "nobody {\"a\":1} ✗ no tool \"nobody\"",
        "? How are you?",
        "? May I?",
        "please answer y or n",
    ] {
        assert!(said.err.contains(wanted), "{wanted}: {}", said.err);
    }
    assert!(!said.err.contains('\x1b'), "colour without a terminal");
    let runs = json_lines(&run(dir.path(), &["run", "list", "--json", "--session", "talk"]));
    assert!(runs.iter().all(|run| run["adapter"] == "native" && run["status"] == "succeeded"), "{runs:?}");
}

#[test]
fn a_guest_asks_whoever_serves_it_which_models_there_are() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let config = "[models.main_reasoner]\nprovider = \"scripted\"\nmodel = \"m-7\"\n";
    std::fs::write(dir.path().join("mainspring.toml"), config).unwrap();
    let (_daemon, _) = serve(dir.path());
    let mut child = command(dir.path())
        .current_dir(elsewhere.path())
        .args(["chat", "-s", "talk"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"/model\nsay hello\n").unwrap();
    let said = said(child.wait_with_output().unwrap());
    assert_eq!((said.code, said.out.as_str()), (0, "hello\n"), "{}", said.err);
    assert!(!said.err.contains("No model is configured"), "{}", said.err);
    assert!(said.err.contains("/model main_reasoner: scripted/m-7"), "{}", said.err);
}

#[test]
fn the_tree_is_branched_undone_and_gone_back_in() {
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
    let said = chat(dir.path(), &["-s", "t"], &lines);
    assert_eq!(said.out, "one\ntwo\nedited\nafter\nbeside\none\nunder two\n", "{}", said.err);
    assert!(said.err.contains("nothing has been said yet") && said.err.contains("there is nothing to undo"));
    let tree: Vec<&str> = said.err.lines().skip_while(|line| !line.starts_with("1 ")).take(9).collect();
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
    assert!(said.err.contains("8  ● user   say beside"), "{}", said.err);
    assert!(said.err.contains("the conversation goes on after: two"), "{}", said.err);
    assert!(said.err.contains("has the messages 1 to 9"), "{}", said.err);
    let shown = run(dir.path(), &["session", "tree", "t"]).out;
    assert!(shown.contains("● user   say under two"), "{shown}");
}

#[test]
fn what_goes_wrong_is_told_and_the_conversation_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let lines =
        ["fail auth", "/brunch", "fail once invalid; say better", "/retry", "/model nobody/any", "say hi"];
    let said = chat(dir.path(), &["-s", "w"], &lines);
    assert_eq!((said.code, said.out.as_str()), (1, "better\n"), "{}", said.err);
    for wanted in
        ["(model_unauthorized)", "did you mean /branch?", "/retry tries it again", "(model_not_configured)"]
    {
        assert!(said.err.contains(wanted), "{wanted}: {}", said.err);
    }
    let said = chat(dir.path(), &["-s", "bad key"], &["say hi"]);
    assert_eq!(said.code, 2, "{}", said.err);
    let said = chat(dir.path(), &["-s", "ses_00000000000040008000000000000000"], &["say hi"]);
    assert_eq!(said.code, 3, "{}", said.err);
}

#[test]
fn a_question_that_is_left_open_waits_for_whoever_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let left = chat(dir.path(), &["-s", "q"], &["say First.; ask Tea or coffee?; say Coming up."]);
    assert_eq!((left.code, left.out.as_str()), (7, "First.\n"), "{}", left.err);
    assert!(left.err.contains("the question stays open"), "{}", left.err);
    let back = chat(dir.path(), &["-s", "q"], &["tea", "say And now?"]);
    assert_eq!((back.code, back.out.as_str()), (0, "Coming up.\nAnd now?\n"), "{}", back.err);
    assert!(back.err.contains("? Tea or coffee?"), "{}", back.err);
}

#[test]
fn as_json_it_is_every_event_of_every_turn() {
    let dir = tempfile::tempdir().unwrap();
    let said = chat(
        dir.path(),
        &["--json", "-s", "j"],
        &["think hm; say hi; ask Well?", "yes", "/tree", "/nothing"],
    );
    let lines = json_lines(&said);
    let has = |kind: &str| lines.iter().filter(|line| line["type"] == kind).count();
    assert_eq!((has("question"), has("run.succeeded")), (1, 1));
    assert!(has("thought") > 0, "{}", said.out);
    let nodes = lines.iter().filter(|line| line["depth"].is_number() && line["active"] == true);
    assert_eq!(nodes.count(), 4, "{}", said.out);
    assert_eq!(lines.last().unwrap()["error"]["code"], "invalid_request");
}

#[test]
fn a_chat_is_the_guest_of_a_daemon_and_goes_on_without_it() {
    let dir = tempfile::tempdir().unwrap();
    let (daemon, _) = serve(dir.path());
    let said = chat(dir.path(), &["-s", "g"], &["say hi"]);
    assert_eq!((said.code, said.out.as_str()), (0, "hi\n"), "{}", said.err);
    assert!(said.err.contains("at the daemon of this machine"), "{}", said.err);
    let mut terminal = Terminal::open(dir.path(), &["chat", "-s", "g"]);
    terminal.until("Ctrl-D leaves");
    terminal.until("› ");
    // The daemon is killed between two prompts: the chat takes the state directory over.
    drop(daemon);
    terminal.types("say still here; ask Who?\r");
    terminal.until("answer › ");
    terminal.types("me\r");
    terminal.until("› ");
    terminal.types("\x04");
    assert_eq!(terminal.ends(), 0);
    assert!(terminal.seen.contains("still here"), "{}", terminal.seen);
}

/// A chat at a pseudo-terminal of its own.
struct Terminal {
    child: Child,
    screen: File,
    seen: String,
    /// Length of the output that was already matched.
    at: usize,
}

impl Terminal {
    fn open(dir: &Path, arguments: &[&str]) -> Self {
        let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&screen).unwrap();
        unlockpt(&screen).unwrap();
        let name = ptsname(&screen, vec![]).unwrap().into_string().unwrap();
        let keyboard =
            rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, rustix::fs::Mode::empty()).unwrap();
        let size = rustix::termios::Winsize { ws_row: 40, ws_col: 60, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&keyboard, size).unwrap();
        // Makes the pseudo-terminal the controlling one, so that Ctrl-C becomes a signal.
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait", env!("CARGO_BIN_EXE_mainspring")]).args(arguments);
        command.env_clear().env("HOME", dir).env("TERM", "xterm-256color").current_dir(dir);
        command.env("MAINSPRING_STATE_DIR", dir.join("state")).env("PATH", std::env::var("PATH").unwrap());
        let keyboard = File::from(keyboard);
        let child = command
            .stdin(keyboard.try_clone().unwrap())
            .stdout(keyboard.try_clone().unwrap())
            .stderr(keyboard)
            .spawn()
            .unwrap();
        Self { child, screen: screen.into(), seen: String::new(), at: 0 }
    }

    fn types(&mut self, keys: &str) {
        self.screen.write_all(keys.as_bytes()).unwrap();
    }

    /// Reads until `text` is shown after the last match.
    fn until(&mut self, text: &str) {
        let mut bytes = [0; 4096];
        loop {
            if let Some(found) = self.seen[self.at..].find(text) {
                self.at += found + text.len();
                return;
            }
            let count = self.screen.read(&mut bytes).unwrap_or(0);
            assert!(count > 0, "{text:?} never came: {}", self.seen);
            self.seen += &String::from_utf8_lossy(&bytes[..count]);
        }
    }

    /// Reads the rest of the output and returns the exit code.
    fn ends(&mut self) -> i32 {
        let mut rest = vec![];
        // Reading a closed pseudo-terminal fails.
        let _ = self.screen.read_to_end(&mut rest);
        self.seen += &String::from_utf8_lossy(&rest);
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
fn at_a_terminal_ctrl_c_stops_the_answer_and_lines_are_edited_and_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::open(dir.path(), &["chat", "-s", "tty"]);
    terminal.until("scripted model");
    terminal.until("› ");
    terminal.types("stream 1000 every 20ms tock\r");
    // A complete line and the beginning of the next one.
    terminal.until("tock tock\r\ntock");
    terminal.types("\x03");
    terminal.until("stopping; Ctrl-C again leaves");
    terminal.until("stopped");
    terminal.until("› ");
    // Backspace deletes a key; Tab completes commands.
    terminal.types("say goodd\x7f; ask Sure?\r");
    terminal.until("answer › ");
    terminal.types("a secret answer\r");
    terminal.until("› ");
    terminal.types("/tr\t\r");
    terminal.until("1  ● user   stream 1000");
    terminal.until("› ");
    terminal.types("\x03");
    terminal.until("Ctrl-C again leaves");
    terminal.types("\x03");
    assert_eq!(terminal.ends(), 0, "{}", terminal.seen);
    assert!(terminal.seen.contains("mainspring chat -s tty comes back here"), "{}", terminal.seen);
    let full =
        terminal.seen.lines().filter(|line| line.starts_with("tock tock")).map(|line| line.trim().len());
    assert_eq!(full.max(), Some(59), "{}", terminal.seen);
    let runs = json_lines(&run(dir.path(), &["run", "list", "--json", "--session", "tty"]));
    let statuses: Vec<&str> = runs.iter().map(|run| run["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["succeeded", "cancelled"]);
    let history = std::fs::read_to_string(dir.path().join("state/chat_history")).unwrap();
    assert!(history.contains("say good; ask Sure?") && !history.contains("secret answer"), "{history}");
}
