//! `mainspring stdio`: a host that speaks JSON lines with a real process through real pipes.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::{Value, json};

use crate::cli::command;

pub(crate) mod acp;
mod codes;
mod docs;
mod faults;
mod golden;
mod guests;
mod many;
mod names;
mod pi;
mod relay;
mod restart;
mod slow;

/// A `mainspring stdio` process and its host, killed on drop.
pub(crate) struct Host {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: BufReader<ChildStdout>,
    dir: PathBuf,
}

impl Drop for Host {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Host {
    /// Starts a process on `dir` and waits until it is ready.
    pub(crate) fn start(dir: &Path) -> Self {
        Self::start_with(dir, &[], &[])
    }

    pub(crate) fn start_with(dir: &Path, arguments: &[&str], settings: &[(&str, &str)]) -> Self {
        let mut host = Self::spawn(dir, arguments, settings);
        assert_eq!(host.receive(), json!({"type": "init", "sessionId": ""}));
        host
    }

    fn spawn(dir: &Path, arguments: &[&str], settings: &[(&str, &str)]) -> Self {
        let mut child = command(dir)
            .arg("stdio")
            .args(arguments)
            .envs(settings.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, lines) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, stdin, lines, dir: dir.to_owned() }
    }

    /// Sends a line.
    pub(crate) fn send(&mut self, line: &Value) {
        self.write(&format!("{line}\n"));
    }

    /// Writes text that may not be a complete line.
    fn write(&mut self, text: &str) {
        self.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Sends a version 2 query in the session of `key`.
    pub(crate) fn query(&mut self, request: &str, key: &str, prompt: &str) {
        self.send(&query(request, key, prompt));
    }

    /// Sends a query that asks a question and continues with `script` once the host has read the question. By then the
    /// run is followed, so that no thought is missed. Returns the command that answered, which ends with the run.
    fn query_followed(&mut self, request: &str, key: &str, script: &str) -> Child {
        self.query(request, key, &format!("ask Go?; {script}"));
        let asked =
            self.receive_until(|line| line["text"].as_str().is_some_and(|text| text.ends_with("?\n")));
        let field = |name: &str| asked[asked.len() - 1][name].as_str().unwrap();
        let (session, run_id) = (field("sessionId"), field("runId"));
        let owner = ["--owner", "desktop-local-user"];
        let tail = ["session", "tail", session, "--after", "start", "--json"];
        let mut tail = command(&self.dir).args(tail).args(owner).stdout(Stdio::piped()).spawn().unwrap();
        let mut events = BufReader::new(tail.stdout.take().unwrap()).lines();
        assert!(events.any(|event| event.unwrap().contains("input.requested")), "no question was asked");
        tail.kill().unwrap();
        tail.wait().unwrap();
        let answer = ["run", "answer", run_id, "go"];
        command(&self.dir)
            .args(answer)
            .args(owner)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Reads the next line.
    pub(crate) fn receive(&mut self) -> Value {
        self.try_receive().unwrap_or_else(|| panic!("the output has ended"))
    }

    /// Reads the next line; none at the end.
    fn try_receive(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        assert!(line.is_empty() || line.ends_with('\n'), "half a line: {line:?}");
        (!line.is_empty())
            .then(|| serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}")))
    }

    /// Reads every line up to and including the first that satisfies `condition`.
    pub(crate) fn receive_until(&mut self, condition: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut received = vec![];
        loop {
            received.push(self.receive());
            if condition(&received[received.len() - 1]) {
                return received;
            }
        }
    }

    /// Reads every line up to the end of a query.
    pub(crate) fn receive_query(&mut self, request: &str) -> Vec<Value> {
        self.receive_until(|line| is_end(line) && line["requestId"] == request)
    }

    /// Reads up to the end of a query and returns its last line.
    pub(crate) fn receive_end(&mut self, request: &str) -> Value {
        self.receive_query(request).pop().unwrap()
    }

    /// Closes the input and returns the remaining lines and the exit code.
    pub(crate) fn close(mut self) -> (Vec<Value>, i32) {
        drop(self.stdin.take());
        self.receive_rest()
    }

    /// Reads until the process ends by itself; returns the lines and the exit code.
    fn receive_rest(&mut self) -> (Vec<Value>, i32) {
        let rest = std::iter::from_fn(|| self.try_receive()).collect();
        (rest, self.child.wait().unwrap().code().unwrap())
    }

    /// Kills the process with SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn relay(&self) -> PathBuf {
        self.dir.join("state/relay.sock")
    }
}

/// Returns the reading end of a pipe without a writer.
fn empty_pipe() -> ChildStdout {
    let (read, _) = std::io::pipe().unwrap();
    std::os::fd::OwnedFd::from(read).into()
}

/// Builds a version 2 query in the session of `key`.
fn query(request: &str, key: &str, prompt: &str) -> Value {
    json!({
        "type": "query", "protocolVersion": 2, "requestId": request, "clientId": "test", "legacySessionKey": key,
        "prompt": prompt, "systemPrompt": "",
    })
}

/// True for a line that ends a query.
pub(crate) fn is_end(line: &Value) -> bool {
    line["type"] == "result" || line["type"] == "error"
}

/// Joins the text streamed to a query.
fn streamed_text(lines: &[Value], request: &str) -> String {
    let is_delta = |line: &&Value| line["type"] == "text_delta" && line["requestId"] == request;
    lines.iter().filter(is_delta).map(|line| line["text"].as_str().unwrap()).collect()
}

/// Builds a reproducible transcript: ids are numbered in order of appearance, and streamed text is joined.
fn transcript(lines: &[Value]) -> String {
    let mut lines = join_deltas(lines);
    // Whether maps keep insertion order depends on feature unification in the build.
    lines.iter_mut().for_each(Value::sort_all_objects);
    let text: Vec<String> = lines.iter().map(Value::to_string).collect();
    number_ids(&text.join("\n"))
}

/// Joins consecutive text deltas into one line.
fn join_deltas(lines: &[Value]) -> Vec<Value> {
    let mut joined: Vec<Value> = vec![];
    for line in lines {
        match joined.last_mut() {
            Some(last)
                if last["type"] == "text_delta" && line["type"] == "text_delta" && {
                    last["requestId"] == line["requestId"]
                } =>
            {
                let text = format!("{}{}", last["text"].as_str().unwrap(), line["text"].as_str().unwrap());
                last["text"] = text.into();
            }
            _ => joined.push(line.clone()),
        }
    }
    joined
}

/// Replaces ids such as `run_4f…` with `run_1`, and so on.
fn number_ids(text: &str) -> String {
    let (mut numbers, mut known) = (HashMap::<String, usize>::new(), HashMap::<String, String>::new());
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('_') {
        let kind = rest[..at].rsplit(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
        let id: String = rest[at + 1..].chars().take_while(char::is_ascii_hexdigit).collect();
        let (before, after) = rest.split_at(at + 1);
        out.push_str(before);
        rest = after;
        if id.len() == 32 {
            let number = known.entry(id).or_insert_with(|| {
                let number = numbers.entry(kind.to_owned()).or_default();
                *number += 1;
                number.to_string()
            });
            out.push_str(number);
            rest = &after[32..];
        }
    }
    out + rest
}
