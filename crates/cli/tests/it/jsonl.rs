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
        let mut host = Self::start_unready(dir, arguments, settings);
        assert_eq!(host.hear(), json!({"type": "init", "sessionId": ""}));
        host
    }

    fn start_unready(dir: &Path, arguments: &[&str], settings: &[(&str, &str)]) -> Self {
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
    pub(crate) fn say(&mut self, line: &Value) {
        self.write(&format!("{line}\n"));
    }

    /// Writes text that may not be a complete line.
    fn write(&mut self, text: &str) {
        self.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Sends a version 2 query in the session of `key`.
    pub(crate) fn query(&mut self, request: &str, key: &str, prompt: &str) {
        self.say(&query(request, key, prompt));
    }

    /// Sends a query that asks a question and continues with `script` once the host has read the question. By then the
    /// run is followed, so that no thought is missed. Returns the command that answered, which ends with the run.
    fn query_followed(&mut self, request: &str, key: &str, script: &str) -> Child {
        self.query(request, key, &format!("ask Go?; {script}"));
        let asked = self.until(|line| line["text"].as_str().is_some_and(|text| text.ends_with("?\n")));
        let of = |name: &str| asked[asked.len() - 1][name].as_str().unwrap();
        let (session, run_id) = (of("sessionId"), of("runId"));
        let owner = ["--owner", "desktop-local-user"];
        let tail = ["session", "tail", session, "--after", "start", "--json"];
        let mut tail = command(&self.dir).args(tail).args(owner).stdout(Stdio::piped()).spawn().unwrap();
        let mut events = BufReader::new(tail.stdout.take().unwrap()).lines();
        assert!(events.any(|event| event.unwrap().contains("input.requested")), "it asks");
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
    pub(crate) fn hear(&mut self) -> Value {
        self.next().unwrap_or_else(|| panic!("nothing more is said"))
    }

    /// Reads the next line; none at the end.
    fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        assert!(line.is_empty() || line.ends_with('\n'), "half a line: {line:?}");
        (!line.is_empty())
            .then(|| serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}")))
    }

    /// Reads every line up to and including the first that satisfies `is`.
    pub(crate) fn until(&mut self, is: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut heard = vec![];
        loop {
            heard.push(self.hear());
            if is(&heard[heard.len() - 1]) {
                return heard;
            }
        }
    }

    /// Reads every line up to the end of a query.
    pub(crate) fn ended(&mut self, request: &str) -> Vec<Value> {
        self.until(|line| is_end(line) && line["requestId"] == request)
    }

    /// Reads up to the end of a query and returns its last line.
    pub(crate) fn end_of(&mut self, request: &str) -> Value {
        self.ended(request).pop().unwrap()
    }

    /// Closes the input and returns the remaining lines and the exit code.
    pub(crate) fn close(mut self) -> (Vec<Value>, i32) {
        drop(self.stdin.take());
        self.rest()
    }

    /// Reads until the process ends by itself; returns the lines and the exit code.
    fn rest(&mut self) -> (Vec<Value>, i32) {
        let rest = std::iter::from_fn(|| self.next()).collect();
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
fn empty() -> ChildStdout {
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
fn text_of(lines: &[Value], request: &str) -> String {
    let of = |line: &&Value| line["type"] == "text_delta" && line["requestId"] == request;
    lines.iter().filter(of).map(|line| line["text"].as_str().unwrap()).collect()
}

/// Builds a reproducible transcript: ids are numbered in order of appearance, and streamed text is joined.
fn golden(lines: &[Value]) -> String {
    let mut whole = joined(lines);
    // Whether maps keep insertion order depends on feature unification in the build.
    whole.iter_mut().for_each(Value::sort_all_objects);
    let text: Vec<String> = whole.iter().map(Value::to_string).collect();
    numbered(&text.join("\n"))
}

/// Joins consecutive text deltas into one line.
fn joined(lines: &[Value]) -> Vec<Value> {
    let mut whole: Vec<Value> = vec![];
    for line in lines {
        match whole.last_mut() {
            Some(last)
                if last["type"] == "text_delta" && line["type"] == "text_delta" && {
                    last["requestId"] == line["requestId"]
                } =>
            {
                let text = format!("{}{}", last["text"].as_str().unwrap(), line["text"].as_str().unwrap());
                last["text"] = text.into();
            }
            _ => whole.push(line.clone()),
        }
    }
    whole
}

/// Replaces ids such as `run_4f…` with `run_1`, and so on.
fn numbered(text: &str) -> String {
    let (mut numbers, mut seen) = (HashMap::<String, usize>::new(), HashMap::<String, String>::new());
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('_') {
        let kind = rest[..at].rsplit(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
        let id: String = rest[at + 1..].chars().take_while(char::is_ascii_hexdigit).collect();
        let (before, after) = rest.split_at(at + 1);
        out.push_str(before);
        rest = after;
        if id.len() == 32 {
            let number = seen.entry(id).or_insert_with(|| {
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
