//! The owner of the state directory serves it: every other process is its guest.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};

use mainspring_store::StateDir;
use rustix::process::{Pid, Signal, kill_process};

use crate::cli::{CommandOutput, command, command_output, json_lines, run};
use crate::pace::pause;

/// A process that is killed on drop.
pub(crate) struct Process {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn start(dir: &Path, arguments: &[&str]) -> Self {
        let mut child =
            command(dir).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    /// Stops the process, as Ctrl-Z would.
    pub(crate) fn stop(&self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).unwrap();
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap();
        while !state().contains(") T ") {}
    }

    /// Starts a `serve` command and waits until it listens.
    pub(crate) fn serve_command(mut command: std::process::Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("http://"), "{line}");
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    pub(crate) fn read_line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line
    }

    /// Waits for text that may be an incomplete line.
    fn expect_output(&mut self, text: &str) {
        let mut seen = vec![0; text.len()];
        self.out.read_exact(&mut seen).unwrap();
        assert_eq!(String::from_utf8(seen).unwrap(), text);
    }

    /// Reads the output until `text` and returns it.
    pub(crate) fn read_output_until(&mut self, text: &str) -> String {
        read_until(&mut self.out, text)
    }

    /// Reads the standard error until `text` and returns it.
    fn read_error_until(&mut self, text: &str) -> String {
        read_until(self.child.stderr.as_mut().unwrap(), text)
    }

    /// Reads all output until the process ends by itself.
    fn wait(mut self) -> CommandOutput {
        let (mut out, mut err) = (String::new(), String::new());
        self.out.read_to_string(&mut out).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        CommandOutput { code: self.child.wait().unwrap().code().unwrap(), out, err }
    }
}

fn read_until(source: &mut impl Read, text: &str) -> String {
    // Byte by byte, so that the output after `text` is left for the next read.
    let (mut seen, mut byte) = (vec![], [0]);
    while source.read(&mut byte).unwrap() == 1 {
        seen.push(byte[0]);
        if seen.ends_with(text.as_bytes()) {
            return String::from_utf8(seen).unwrap();
        }
    }
    panic!("the process has ended without {text:?}: {}", String::from_utf8_lossy(&seen));
}

/// Starts `mainspring serve` and returns its address.
pub(crate) fn serve(dir: &Path) -> (Process, String) {
    let mut owner = Process::start(dir, &["serve", "--listen", "127.0.0.1:0"]);
    let lines = BufReader::new(owner.child.stderr.as_mut().unwrap()).lines().map(Result::unwrap);
    // A `serve` that waits for the directory first prints a note.
    let url = { lines }
        .find_map(|line| line.split_whitespace().find(|word| word.starts_with("http://")).map(str::to_owned));
    (owner, url.expect("`serve` has ended"))
}

/// Output without the parts that vary between runs: ids, times, and the division of text into deltas.
fn without_varying_parts(output: &CommandOutput) -> (i32, String, String) {
    let normalize = |text: &str| {
        let mut plain = String::new();
        for line in text.lines().filter(|line| !line.contains("message.delta")) {
            let mut rest = line;
            while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
                let (before, digits) = rest.split_at(at);
                plain.push_str(before.trim_end_matches(|c: char| c.is_ascii_hexdigit()));
                plain.push('#');
                rest = digits.trim_start_matches(|c: char| c.is_ascii_hexdigit());
            }
            plain.push_str(rest);
            plain.push('\n');
        }
        plain
    };
    (output.code, normalize(&output.out), normalize(&output.err))
}

/// Commands on prompts, sessions, runs and keys, in a meaningful order. `RUN` is the latest run, `USER` and
/// `AGENT` are the first messages of session t.
const SCRIPT: &[&[&str]] = &[
    &["session", "list"],
    &["session", "show", "nobody"],
    &["session", "new", "n", "--title", "New", "--model", "m1", "--system", "Be brief."],
    &["session", "new", "n"],
    &["session", "load", "n", "--model", "m2", "--system", "Be kind.", "--json"],
    &["session", "load", "nobody"],
    &["session", "show", "n"],
    &["prompt", "--session", "a", "say hi; tool add {\"a\":1,\"b\":2}; say done"],
    &["prompt", "--session", "a", "--json", "say as json; stream 3 every 5ms x"],
    &["prompt", "--session", "a", "fail no luck"],
    &["run", "retry", "RUN"],
    &["run", "show", "RUN", "--json"],
    &["prompt", "--session", "b", "say first; approve Sure?"],
    &["prompt", "--session", "b", "say behind"],
    &["session", "show", "b", "--json"],
    &["run", "list", "--json", "--session", "b"],
    &["prompt", "--session", "once", "--request-id", "r1", "say once"],
    &["prompt", "--session", "once", "--request-id", "r1", "say once"],
    &["prompt", "--session", "once", "--request-id", "r1", "say twice"],
    &["run", "cancel", "RUN"],
    &["run", "answer", "RUN", "text"],
    &["run", "events", "RUN", "--json"],
    &["prompt", "--adapter", "nope", "x"],
    &["prompt", "--session", "bad key", "x"],
    &["session", "rename", "a", "My title"],
    &["session", "archive", "a"],
    &["session", "list", "--archived", "--json"],
    &["session", "close", "a"],
    &["session", "list", "--closed", "--json"],
    &["prompt", "--session", "a", "say no"],
    &["session", "reopen", "a"],
    &["session", "tree", "a"],
    &["session", "tree", "a", "--json"],
    &["session", "show", "a"],
    &["prompt", "--session", "t", "say one"],
    &["session", "branch", "t", "USER"],
    &["session", "branch", "t", "USER", "no text here"],
    &["session", "branch", "t", "AGENT", "say something else"],
    &["session", "branch", "t", "--root", "say from the start"],
    &["session", "navigate", "t", "AGENT"],
    &["session", "navigate", "t", "none"],
    &["session", "navigate", "t", "msg_00000000000040008000000000000000"],
    &["session", "fork", "t", "AGENT", "--as", "f", "--title", "A fork"],
    &["session", "fork", "t", "AGENT", "--as", "f"],
    &["session", "show", "f", "--json"],
    &["session", "pin", "t"],
    &["session", "unpin", "t", "--json"],
    &["session", "search", "something", "else"],
    &["session", "search", "nothing-of-this"],
    &["session", "search", "from", "--json"],
    &["session", "export", "t", "--output", "t.jsonl"],
    &["session", "import", "t.jsonl"],
    &["session", "delete", "f"],
    &["session", "delete", "t"],
    &["session", "import", "t.jsonl"],
    &["session", "import", "nowhere.jsonl"],
    &["session", "tree", "t", "--svg", "t.svg"],
    &["session", "tree", "t"],
    &["session", "list", "--limit", "0"],
    &["key", "create", "ci", "--for", "ann", "--org", "acme", "--role", "viewer"],
    &["key", "create", "mine", "--days", "3", "--json"],
    &["key", "list"],
    &["key", "list", "--json"],
    &["key", "revoke", "key_00000000000040008000000000000000"],
    &["session", "delete", "a"],
    &["session", "show", "a"],
];

fn run_script(dir: &Path, more: &[&str]) -> Vec<(i32, String, String)> {
    let mut outputs = vec![];
    for arguments in SCRIPT {
        let latest = || {
            let listed = run(dir, &[&["run", "list", "--json", "--limit", "1"], more].concat());
            json_lines(&listed)[0]["runId"].as_str().unwrap().to_owned()
        };
        // The first message of session t, and its answer.
        let message = |at: usize| {
            let tree = json_lines(&run(dir, &[&["session", "tree", "t", "--json"], more].concat()));
            tree[at]["messageId"].as_str().unwrap().to_owned()
        };
        let arguments: Vec<String> = arguments
            .iter()
            .map(|argument| match *argument {
                "RUN" => latest(),
                "USER" => message(0),
                "AGENT" => message(1),
                argument => argument.to_owned(),
            })
            .collect();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let mut output = run(dir, &arguments);
        // Only a command on this machine sends its folder.
        let folder = format!(r#""cwd":"{}""#, dir.canonicalize().unwrap().display());
        for part in [format!(",{folder}"), format!("{folder},"), folder] {
            output.out = output.out.replace(&part, "");
        }
        outputs.push(without_varying_parts(&output));
    }
    outputs
}

#[test]
fn every_command_prints_the_same_as_owner_guest_and_remote_client() {
    let (alone, near, far) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let expected = run_script(alone.path(), &[]);
    let (_near, _) = serve(near.path());
    let (_far, url) = serve(far.path());
    let token = run(far.path(), &["serve", "--print-token"]).out;
    let guest = run_script(near.path(), &[]);
    let remote = run_script(far.path(), &["--url", &url, "--key", token.trim(), "--state-dir", "/nowhere"]);
    for (at, arguments) in SCRIPT.iter().enumerate() {
        assert_eq!(guest[at], expected[at], "a guest's {arguments:?}");
        assert_eq!(remote[at], expected[at], "a remote {arguments:?}");
    }
}

#[test]
fn a_second_process_is_a_guest_and_the_owner_executes_its_prompts() {
    let dir = tempfile::tempdir().unwrap();
    let mut owner = Process::start(dir.path(), &["prompt", "--session", "a", "say x; hang"]);
    owner.expect_output("x");
    let mut guest =
        Process::start(dir.path(), &["prompt", "--session", "b", "stream 80 every 5ms y; say bye; hang"]);
    guest.expect_output("y");
    let listed = json_lines(&run(dir.path(), &["session", "list", "--json"]));
    assert_eq!(listed.len(), 2);
    let refused = run(dir.path(), &["session", "delete", "a"]);
    assert_eq!(refused.code, 4, "{}", refused.err);
    let cancel = |session: &str| {
        let runs = json_lines(&run(dir.path(), &["run", "list", "--session", session, "--json"]));
        let cancelled = run(dir.path(), &["run", "cancel", runs[0]["runId"].as_str().unwrap()]);
        assert_eq!(cancelled.code, 0, "{}", cancelled.err);
    };
    cancel("a");
    // The owner's own run has ended; the owner goes on for the guest.
    owner.read_error_until("other commands: 1;");
    let streamed = guest.read_output_until("bye");
    assert_eq!(streamed.matches('y').count(), 79 + "bye".matches('y').count(), "{streamed}");
    cancel("b");
    let owner = owner.wait();
    assert_eq!(owner.code, 130, "{}", owner.err);
    let guest = guest.wait();
    assert_eq!(guest.code, 130, "{}", guest.err);
}

#[test]
fn a_guest_takes_over_from_a_killed_owner_and_reports_the_orphaned_run() {
    let dir = tempfile::tempdir().unwrap();
    let mut owner = Process::start(dir.path(), &["prompt", "--session", "a", "say here I am; hang"]);
    assert_eq!(owner.read_line(), "here I am\n");
    let mut active = Process::start(dir.path(), &["prompt", "--session", "b", "say me too; hang"]);
    assert_eq!(active.read_line(), "me too\n");
    let mut queued = Process::start(dir.path(), &["prompt", "--session", "a", "--json", "say mine"]);
    assert!(queued.read_line().contains("run.queued"));
    owner.child.kill().unwrap();
    let active = active.wait();
    assert_eq!(active.code, 1, "{}", active.err);
    assert!(active.err.contains("orphaned"), "{}", active.err);
    let queued = queued.wait();
    assert_eq!(queued.code, 0, "{}", queued.err);
    let types: Vec<_> = json_lines(&queued).iter().map(|line| line["type"].clone()).collect();
    assert_eq!(types.first().unwrap(), "attempt.created", "each event once: {types:?}");
    assert_eq!(types.last().unwrap(), "run.succeeded", "{types:?}");
}

#[test]
fn a_second_server_is_refused_and_doctor_names_the_owner() {
    let dir = tempfile::tempdir().unwrap();
    let (owner, _) = serve(dir.path());
    let second = run(dir.path(), &["serve", "--listen", "127.0.0.1:0"]);
    let expected = format!("is in use by process {}: ", owner.child.id());
    assert_eq!(second.code, 6, "{}", second.err);
    assert!(
        second.err.contains("error[state_dir_owned]") && second.err.contains(&expected),
        "{}",
        second.err
    );
    let doctor = run(dir.path(), &["doctor"]);
    assert!(doctor.code == 0 && doctor.out.contains("in use by process"), "{}", doctor.out);
    run(dir.path(), &["prompt", "--session", "a", "say hi"]);
    let doctor = run(dir.path(), &["doctor", "--thorough"]);
    for line in ["integrity        no problems", "stored           1 sessions, 1 runs"] {
        assert!(doctor.out.contains(line), "{line}: {}", doctor.out);
    }
}

#[test]
fn serve_takes_over_from_a_command_that_owns_the_state_directory() {
    let dir = tempfile::tempdir().unwrap();
    let mut feed = Process::start(dir.path(), &["feed", "--json"]);
    assert_eq!(feed.read_line(), "{\"type\":\"snapshot\",\"sessions\":[]}\n");
    // The feed owns the directory, and a run is active in it.
    let mut busy = Process::start(dir.path(), &["prompt", "-s", "a", "say begun; sleep 1500ms; say end"]);
    busy.expect_output("begun\n");
    let mut command = command(dir.path());
    command.args(["serve", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut daemon = command.spawn().unwrap();
    let mut notes = BufReader::new(daemon.stderr.take().unwrap());
    let mut line = String::new();
    notes.read_line(&mut line).unwrap();
    assert!(line.contains(&format!("process {} owns the state directory", feed.id())), "{line}");
    line.clear();
    notes.read_line(&mut line).unwrap();
    assert!(line.contains("serving http://"), "{line}");
    let out = BufReader::new(daemon.stdout.take().unwrap());
    let daemon = Process { child: daemon, out };
    // The run was finished first, nothing was lost, and the feed goes on as a guest of the daemon.
    let busy = busy.wait();
    assert_eq!((busy.code, busy.out.as_str()), (0, "end\n"), "{}", busy.err);
    let doctor = run(dir.path(), &["doctor"]);
    assert!(doctor.out.contains(&format!("in use by process {}", daemon.id())), "{}", doctor.out);
    assert_eq!(run(dir.path(), &["prompt", "-s", "b", "say hi"]).out, "hi\n");
    while !feed.read_line().contains("\"key\":\"b\"") {}
    let second = run(dir.path(), &["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(second.code, 6, "{}", second.err);
}

#[tokio::test]
async fn a_signal_during_a_takeover_ends_the_server() {
    let dir = tempfile::tempdir().unwrap();
    // Only a node with agents waits for the agents of an earlier process.
    let config = "[adapters.agent]\nkind = \"acp\"\ncommand = [\"true\"]\n";
    std::fs::write(dir.path().join("mainspring.toml"), config).unwrap();
    let mut feed = Process::start(dir.path(), &["feed", "--json"]);
    feed.read_line();
    let state = dir.path().join("state");
    let mark = format!("{}#of-an-earlier-one", state.display());
    let mut left = std::process::Command::new("sh");
    left.args(["-c", "read line"])
        .env(mainspring_adapters::process::MARK_VARIABLE, mark)
        .stdin(Stdio::piped());
    let mut left = left.spawn().unwrap();
    let mut daemon = Process::start(dir.path(), &["serve", "--listen", "127.0.0.1:0"]);
    let owner = || StateDir::peek(&state).ok().flatten().map(|owner| owner.pid);
    while owner() != Some(daemon.id()) {
        pause().await;
    }
    // The server has the directory, and opens its node.
    kill_process(Pid::from_child(&daemon.child), Signal::TERM).unwrap();
    drop(left.stdin.take());
    left.wait().unwrap();
    daemon.read_error_until("stopping");
    assert_eq!(daemon.wait().code, 0);
}

#[test]
fn session_tail_prints_past_and_new_events() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), &["prompt", "--session", "a", "say before"]);
    let mut tail = Process::start(dir.path(), &["session", "tail", "a", "--after", "start", "--json"]);
    assert!(tail.read_line().contains("session.created"));
    // A process that follows a session also serves the state directory.
    let prompt = run(dir.path(), &["prompt", "--session", "a", "say after"]);
    assert_eq!((prompt.code, prompt.out.as_str()), (0, "after\n"), "{}", prompt.err);
    let mut ends = 0;
    while ends < 2 {
        ends += usize::from(tail.read_line().contains("run.succeeded"));
    }
    kill_process(Pid::from_child(&tail.child), Signal::INT).unwrap();
    assert_eq!(tail.wait().code, 0);
}

#[test]
fn the_feed_shows_the_sessions_of_every_process() {
    let dir = tempfile::tempdir().unwrap();
    let mut feed = Process::start(dir.path(), &["feed", "--json"]);
    assert_eq!(feed.read_line(), "{\"type\":\"snapshot\",\"sessions\":[]}\n");
    assert_eq!(run(dir.path(), &["prompt", "--session", "a", "say hi; ask Who?"]).code, 7);
    let mut seen = vec![];
    while seen.last().is_none_or(|last| last != "paused") {
        let line: serde_json::Value = serde_json::from_str(&feed.read_line()).unwrap();
        seen.push(line["status"].as_str().unwrap_or_default().to_owned());
    }
    assert_eq!(run(dir.path(), &["session", "rename", "a", "Tea"]).code, 0);
    assert!(feed.read_line().contains("\"title\":\"Tea\""));
}

#[test]
fn a_reader_of_the_audit_log_executes_the_runs_of_its_guests() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(run(dir.path(), &["prompt", "--session", "a", "say before"]).code, 0);
    let mut reader =
        Process::start(dir.path(), &["audit", "--follow", "--operation", "run_create", "--json"]);
    assert!(reader.read_line().contains("run_create"));
    let prompt = run(dir.path(), &["prompt", "--session", "b", "say hi"]);
    assert_eq!((prompt.code, prompt.out.as_str()), (0, "hi\n"), "{}", prompt.err);
    assert!(reader.read_line().contains("run_create"));
}

#[test]
fn a_second_signal_leaves_a_run_whose_server_does_not_answer() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _) = serve(dir.path());
    let mut prompt = Process::start(dir.path(), &["prompt", "--session", "a", "say x; hang"]);
    prompt.expect_output("x");
    server.stop();
    kill_process(Pid::from_child(&prompt.child), Signal::INT).unwrap();
    prompt.read_error_until("cancelling");
    kill_process(Pid::from_child(&prompt.child), Signal::TERM).unwrap();
    assert_eq!(prompt.wait().code, 130);
}

#[test]
fn a_state_directory_with_a_long_path_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("a".repeat(100)).join("b".repeat(100));
    let state = ["--state-dir", deep.to_str().unwrap()];
    let mut owner =
        Process::start(dir.path(), &[&["prompt", "--session", "a", "say x; hang"][..], &state].concat());
    assert_eq!(owner.read_line(), "x\n");
    let listed =
        command_output(command(dir.path()).args(["session", "list", "--json"]).args(state).output().unwrap());
    assert_eq!(json_lines(&listed).len(), 1, "{}", listed.err);
}
