//! The host's side of JSON lines: writes lines, reads lines, and makes transcripts of them.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::{Value, json};

/// The two pipes of a host.
pub struct HostPipes<W, R> {
    /// The pipe to the server; `None` once it is closed.
    pub input: Option<W>,
    /// The pipe from the server.
    pub output: BufReader<R>,
}

impl<W: Write, R: Read> HostPipes<W, R> {
    /// Wraps the two pipes.
    pub fn new(input: W, output: R) -> Self {
        Self { input: Some(input), output: BufReader::new(output) }
    }

    /// Reads the line that the server sends first.
    pub fn receive_init(&mut self) {
        assert_eq!(self.receive(), json!({"type": "init", "sessionId": ""}));
    }

    /// Sends a line.
    pub fn send(&mut self, line: &Value) {
        self.write(&format!("{line}\n"));
    }

    /// Writes text that may not be a complete line.
    pub fn write(&mut self, text: &str) {
        self.input.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Sends a version 2 query in the session of `key`.
    pub fn query(&mut self, request: &str, key: &str, prompt: &str) {
        self.send(&query(request, key, prompt));
    }

    /// Reads the next line.
    pub fn receive(&mut self) -> Value {
        self.try_receive().unwrap_or_else(|| panic!("the output has ended"))
    }

    /// Reads the next line; `None` at the end of the output.
    pub fn try_receive(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert!(line.is_empty() || line.ends_with('\n'), "half a line: {line:?}");
        (!line.is_empty())
            .then(|| serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}")))
    }

    /// Reads every line up to and including the first that satisfies `condition`.
    pub fn receive_until(&mut self, condition: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut received = vec![];
        loop {
            received.push(self.receive());
            if condition(&received[received.len() - 1]) {
                return received;
            }
        }
    }

    /// Reads every line up to the end of a query.
    pub fn receive_query(&mut self, request: &str) -> Vec<Value> {
        self.receive_until(|line| is_end(line) && line["requestId"] == request)
    }

    /// Reads up to the end of a query and returns its last line.
    pub fn receive_end(&mut self, request: &str) -> Value {
        self.receive_query(request).pop().unwrap()
    }

    /// Reads every line until the server closes its output.
    pub fn receive_rest(&mut self) -> Vec<Value> {
        std::iter::from_fn(|| self.try_receive()).collect()
    }
}

/// An agent connected to its endpoint.
pub struct RelayAgent(BufReader<UnixStream>);

impl RelayAgent {
    /// Connects to the socket of an endpoint.
    pub fn connect(socket: &Path) -> Self {
        Self::new(UnixStream::connect(socket).unwrap())
    }

    /// Wraps a connection to an endpoint.
    pub fn new(connection: UnixStream) -> Self {
        Self(BufReader::new(connection))
    }

    /// Returns a second handle to the same connection.
    pub fn try_clone(&self) -> Self {
        Self::new(self.0.get_ref().try_clone().unwrap())
    }

    /// Writes text that may not be a valid line.
    pub fn write(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
    }

    /// Sends a line.
    pub fn send(&mut self, line: &Value) {
        self.write(&format!("{line}\n"));
    }

    /// Waits until the other end sends something or closes the connection. True if it closed the connection.
    pub fn is_closed(&mut self) -> bool {
        self.0.fill_buf().unwrap().is_empty()
    }

    /// Calls a tool.
    pub fn call(&mut self, id: &str, name: &str, input: &Value) {
        self.send(&json!({"type": "tool_use", "callId": id, "name": name, "input": input}));
    }

    /// Reads the next line.
    pub fn receive_line(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// Reads the next answer: the call's id and its result as text.
    pub fn receive(&mut self) -> (String, String) {
        let line = self.receive_line();
        assert_eq!(line["type"], "tool_result");
        (line["callId"].as_str().unwrap().to_owned(), line["result"].as_str().unwrap().to_owned())
    }

    /// Calls a control tool and returns its answer.
    pub fn control(&mut self, name: &str, input: &Value) -> Value {
        self.call("c", name, input);
        serde_json::from_str(&self.receive().1).unwrap()
    }
}

/// Builds a version 2 query in the session of `key`.
pub fn query(request: &str, key: &str, prompt: &str) -> Value {
    json!({
        "type": "query", "protocolVersion": 2, "requestId": request, "clientId": "test", "legacySessionKey": key,
        "prompt": prompt, "systemPrompt": "",
    })
}

/// True for a line that ends a query.
pub fn is_end(line: &Value) -> bool {
    line["type"] == "result" || line["type"] == "error"
}

/// Joins the text streamed to a query.
pub fn streamed_text(lines: &[Value], request: &str) -> String {
    let is_delta = |line: &&Value| line["type"] == "text_delta" && line["requestId"] == request;
    lines.iter().filter(is_delta).map(|line| line["text"].as_str().unwrap()).collect()
}

/// Builds a reproducible transcript: ids are numbered in order of appearance, and streamed text is joined.
pub fn transcript(lines: &[Value]) -> String {
    let mut lines = join_deltas(lines);
    // Whether maps keep insertion order depends on feature unification in the build.
    lines.iter_mut().for_each(Value::sort_all_objects);
    let text: Vec<String> = lines.iter().map(Value::to_string).collect();
    number_ids(&text.join("\n"))
}

/// Joins consecutive text deltas of one query into one line.
pub fn join_deltas(lines: &[Value]) -> Vec<Value> {
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
