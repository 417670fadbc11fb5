//! A scripted pi for tests: it speaks pi's RPC mode and executes its prompts as commands.
//!
//! `scripted_pi FOLDER [BEHAVIOUR] …`. A session is a file in the folder with one prompt per line. The file is made
//! when the first answer is complete. A prompt is a list of commands separated by semicolons; an unknown command is
//! echoed.
//!
//! | behaviour | effect |
//! |---|---|
//! | `keep` | sessions are stored in files |
//! | `forget` | sessions are not stored |
//! | `old` | `agent_settled` is never sent |
//! | `refuses` | an extension cancels every `new_session` |
//! | `stuck` | `new_session` keeps the old session |

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a scripted agent that cannot continue crashes")]
#![allow(clippy::zombie_processes, reason = "real agents leave their children, too")]

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

struct Agent {
    input: Receiver<Value>,
    folder: PathBuf,
    behaviour: String,
    arguments: String,
    session: Session,
    opened: u64,
    asked: u64,
    model: &'static str,
    /// The usage of the current message.
    usage: Value,
    text: String,
    /// Prompts that have joined the turn.
    steering: Vec<Value>,
}

#[derive(Default)]
struct Session {
    id: String,
    file: Option<PathBuf>,
    prompts: Vec<String>,
    /// Whether the session was read from its file.
    is_resumed: bool,
}

/// The next step after a command.
enum Next {
    Continue,
    Stop(&'static str, String),
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().unwrap());
    let behaviour = arguments.next().unwrap_or("keep".into());
    let (lines, input) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            lines.send(serde_json::from_str(&line).unwrap()).unwrap();
        }
    });
    let mut agent = Agent {
        input,
        folder,
        behaviour,
        arguments: arguments.collect::<Vec<_>>().join(" "),
        session: Session::default(),
        opened: 0,
        asked: 0,
        model: "one",
        usage: usage(7, 3, 0.25),
        text: String::new(),
        steering: vec![],
    };
    agent.open();
    // Extensions also print plain text.
    println!("pi_agent ready");
    while let Ok(record) = agent.input.recv() {
        agent.serve(&record);
    }
}

fn send(record: &Value) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{record}").unwrap();
    out.flush().unwrap();
}

fn event(kind: &str) {
    send(&json!({"type": kind}));
}

fn usage(input: u64, output: u64, cost: f64) -> Value {
    json!({"input": input, "output": output, "cacheRead": 0, "cacheWrite": 0, "cost": {"total": cost}})
}

fn respond(to: &Value, result: Result<Value, String>) {
    let mut response = json!({"id": to["id"], "type": "response", "command": to["type"]});
    response["success"] = result.is_ok().into();
    match result {
        Ok(Value::Null) => {}
        Ok(data) => response["data"] = data,
        Err(error) => response["error"] = error.into(),
    }
    send(&response);
}

impl Agent {
    fn open(&mut self) {
        self.opened += 1;
        let id = format!("{}-{}", std::process::id(), self.opened);
        let file = (self.behaviour != "forget").then(|| self.folder.join(format!("session_{id}.jsonl")));
        self.session = Session { id, file, ..Session::default() };
    }

    /// Switches to a session file. Like the real pi, it starts an empty session if there is no such file.
    fn switch(&mut self, file: &Path) {
        self.open();
        if let Ok(text) = std::fs::read_to_string(file) {
            self.session.is_resumed = true;
            self.session.prompts = text.lines().map(str::to_owned).collect();
            let name = file.file_stem().unwrap().to_string_lossy();
            name.strip_prefix("session_").unwrap().clone_into(&mut self.session.id);
        }
        self.session.file = Some(file.to_owned());
    }

    fn serve(&mut self, record: &Value) {
        let text = |key: &str| record[key].as_str().unwrap_or_default().to_owned();
        let result = match record["type"].as_str().unwrap() {
            "prompt" => return self.prompt(record),
            "extension_ui_response" => return,
            "get_state" => Ok(self.state(false)),
            "new_session" if self.behaviour == "stuck" => Ok(json!({"cancelled": false})),
            "new_session" if self.behaviour == "refuses" => Ok(json!({"cancelled": true})),
            "new_session" => {
                self.open();
                Ok(json!({"cancelled": false}))
            }
            "switch_session" => {
                self.switch(Path::new(&text("sessionPath")));
                Ok(json!({"cancelled": false}))
            }
            "get_available_models" => {
                let models = ["one", "two"].map(|id| json!({"provider": "acme", "id": id}));
                Ok(json!({"models": models}))
            }
            "set_model" => {
                self.model = if text("modelId") == "two" { "two" } else { "one" };
                Ok(json!({"provider": "acme", "id": self.model}))
            }
            "abort" => Ok(Value::Null),
            other => Err(format!("Unknown command: {other}")),
        };
        respond(record, result);
    }

    fn state(&self, busy: bool) -> Value {
        json!({"sessionId": self.session.id, "sessionFile": self.session.file, "isStreaming": busy,
               "isCompacting": false, "pendingMessageCount": 0, "messageCount": self.session.prompts.len(),
               "model": {"provider": "acme", "id": self.model}, "steeringMode": "all"})
    }

    fn prompt(&mut self, record: &Value) {
        let message = record["message"].as_str().unwrap().to_owned();
        let script = message.rsplit("\n\n").next().unwrap().to_owned();
        if let Some(text) = script.strip_prefix('/') {
            // An extension handles the command.
            self.say_apart(text);
            return respond(record, Ok(Value::Null));
        }
        if script == "swallow" {
            return respond(record, Ok(Value::Null));
        }
        if let Some(why) = script.strip_prefix("refuse ") {
            return respond(record, Err(why.to_owned()));
        }
        let once = self.folder.join("refused");
        if script.starts_with("refuse-once") && !once.exists() {
            std::fs::write(once, "").unwrap();
            return respond(record, Err("Agent is already processing.".into()));
        }
        if script.starts_with("dawdle") {
            // An abort before the agent has started has no effect.
            self.say_apart("dawdling");
            let abort = self.wait_for(|record| record["type"] == "abort");
            respond(&abort, Ok(Value::Null));
        }
        respond(record, Ok(Value::Null));
        self.add_prompt(record);
        event("agent_start");
        event("turn_start");
        self.message_start();
        let mut end = self.follow(&script);
        while !self.steering.is_empty() {
            let joined = self.steering.remove(0);
            self.turn_end(end.0, &end.1);
            self.add_prompt(&joined);
            event("turn_start");
            self.message_start();
            end = self.follow(joined["message"].as_str().unwrap());
        }
        self.turn_end(end.0, &end.1);
        send(&json!({"type": "agent_end", "messages": [], "willRetry": false}));
        if self.behaviour != "old" {
            event("agent_settled");
        }
    }

    fn add_prompt(&mut self, record: &Value) {
        let mut prompt = record["message"].as_str().unwrap().replace('\n', " | ");
        for image in record["images"].as_array().into_iter().flatten() {
            prompt.push_str(&format!(" [{} {}]", image["mimeType"], image["data"]));
        }
        self.session.prompts.push(prompt);
    }

    /// Executes a script. Returns the stop reason and the error message.
    fn follow(&mut self, script: &str) -> (&'static str, String) {
        for command in script.split(';') {
            if let Next::Stop(reason, why) = self.command(command.trim()) {
                return (reason, why);
            }
        }
        ("stop", String::new())
    }

    fn message_start(&mut self) {
        self.text.clear();
        send(
            &json!({"type": "message_start", "message": {"role": "assistant", "content": [], "stopReason": "pending"}}),
        );
    }

    fn turn_end(&mut self, reason: &str, why: &str) {
        let content = json!([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": self.text}]);
        let mut message =
            json!({"role": "assistant", "content": content, "usage": self.usage, "stopReason": reason});
        if !why.is_empty() {
            message["errorMessage"] = why.into();
        }
        if let Some(file) = &self.session.file {
            std::fs::write(file, self.session.prompts.join("\n") + "\n").unwrap();
        }
        send(&json!({"type": "message_end", "message": message}));
        send(&json!({"type": "turn_end", "message": message, "toolResults": []}));
    }

    fn update(&self, kind: &str, delta: &str) {
        let update = json!({"type": kind, "contentIndex": 0, "delta": delta});
        send(&json!({"type": "message_update", "usage": {}, "assistantMessageEvent": update}));
    }

    fn say(&mut self, text: &str) {
        self.text.push_str(text);
        self.update("text_delta", text);
    }

    fn say_apart(&self, text: &str) {
        send(&json!({"type": "extension_ui_request", "id": "n", "method": "notify", "message": text}));
    }

    fn command(&mut self, command: &str) -> Next {
        let (verb, rest) = command.split_once(' ').unwrap_or((command, ""));
        match verb {
            "think" => self.update("thinking_delta", &format!("thinking about {rest}")),
            "history" => {
                let prompts = self.session.prompts.join("\n");
                self.say(&prompts);
            }
            "model" => self.say(self.model),
            "arguments" => {
                let arguments = self.arguments.clone();
                self.say(&arguments);
            }
            "whole" => self.text.push_str(rest),
            "spend" => self.usage = usage(1, 1, rest.parse().unwrap()),
            "step" => {
                self.turn_end("toolUse", "");
                event("turn_start");
                self.message_start();
            }
            "stumble" => {
                self.turn_end("error", rest);
                send(&json!({"type": "agent_end", "messages": [], "willRetry": true}));
                send(&json!({"type": "auto_retry_start", "attempt": 1, "errorMessage": rest}));
                event("agent_start");
                event("turn_start");
                self.message_start();
            }
            "tool" => self.tool(rest, false),
            // `result NAME ARGS RESULT`
            "result" => {
                let mut parts = rest.splitn(3, ' ');
                let name = parts.next().unwrap();
                let mut json =
                    || parts.next().map(|json| serde_json::from_str::<Value>(json).unwrap()).unwrap();
                let about = json!({"toolCallId": "r", "toolName": name, "args": json(), "result": json()});
                for kind in ["tool_execution_start", "tool_execution_end"] {
                    let mut record = about.clone();
                    record["type"] = kind.into();
                    send(&record);
                }
            }
            "bad-tool" => self.tool(rest, true),
            "dig" => self.dig(),
            "tell" => self.say_apart(rest),
            "ask" => self.ask(rest),
            "noise" => self.noise(),
            "garble" => std::io::stdout().write_all(b"{\"type\":\"\xff\xfe\"}\n").unwrap(),
            "flood" => (0..rest.parse().unwrap()).for_each(|_: u64| self.say("0123456789")),
            "stop" => return Next::Stop(Box::leak(rest.to_owned().into_boxed_str()), String::new()),
            "error" => return Next::Stop("error", rest.to_owned()),
            "missing" if self.session.is_resumed => return Next::Stop("error", rest.to_owned()),
            "vanish" if self.session.is_resumed => std::process::exit(9),
            "hang" => return self.hang("hanging"),
            "dawdle" => return self.hang("begun"),
            "late" => {
                self.hang("hanging");
                self.say(" and late");
                return Next::Stop("aborted", "Request was aborted".into());
            }
            "deaf" => {
                self.say("deaf");
                while self.input.recv().is_ok() {}
                loop {
                    std::thread::park();
                }
            }
            "crash" => {
                let _ = writeln!(std::io::stderr(), "{}out of memory", "x".repeat(100_000));
                std::process::exit(9);
            }
            "spawn" => {
                for program in ["setsid sleep 1000", "sleep 1000"] {
                    let mut words = program.split(' ');
                    let mut command = Command::new(words.next().unwrap());
                    command.args(words).stdin(Stdio::null()).stdout(Stdio::inherit()).spawn().unwrap();
                }
            }
            _ => self.say(&format!("{command}\n")),
        }
        Next::Continue
    }

    fn tool(&mut self, name: &str, fails: bool) {
        self.asked += 1;
        let id = format!("call-{}", self.asked);
        let about =
            |kind: &str| json!({"type": kind, "toolCallId": id, "toolName": name, "args": {"path": "/x"}});
        send(&about("tool_execution_start"));
        let content = json!({"content": [{"type": "text", "text": "half of it"}]});
        let mut update = about("tool_execution_update");
        update["partialResult"] = content;
        send(&update);
        let mut end = about("tool_execution_end");
        end["result"] = json!({"content": [{"type": "text", "text": "done it"}]});
        end["isError"] = fails.into();
        send(&end);
    }

    /// Ends the current message and runs a tool until another prompt joins the turn.
    fn dig(&mut self) {
        let content = json!([{"type": "text", "text": self.text}]);
        send(&json!({"type": "message_end", "message": {"role": "assistant", "content": content}}));
        let about =
            |kind: &str| json!({"type": kind, "toolCallId": "dig", "toolName": "dig", "isError": false});
        send(&about("tool_execution_start"));
        let joins = self.wait_for(|record| record["type"] == "prompt");
        if joins["message"].as_str().unwrap().starts_with("refuse ") || joins["streamingBehavior"] != "steer"
        {
            return respond(&joins, Err("Agent is already processing.".into()));
        }
        respond(&joins, Ok(Value::Null));
        self.steering.push(joins);
        send(&about("tool_execution_end"));
        self.turn_end("toolUse", "");
        event("turn_start");
        self.message_start();
    }

    /// `ask METHOD TITLE`, `ask METHOD within MS TITLE`, `ask select TITLE|option|option`.
    fn ask(&mut self, what: &str) {
        self.asked += 1;
        let id = format!("ask-{}", self.asked);
        let (method, rest) = what.split_once(' ').unwrap();
        let mut request = json!({"type": "extension_ui_request", "id": id, "method": method});
        let mut rest = rest.to_owned();
        if let Some(bounded) = rest.strip_prefix("within ") {
            let (millis, title) = bounded.split_once(' ').unwrap();
            request["timeout"] = millis.parse::<u64>().unwrap().into();
            rest = title.to_owned();
        }
        let mut parts = rest.split('|');
        request["title"] = parts.next().unwrap().into();
        request["options"] = parts.collect::<Vec<_>>().into();
        send(&request);
        let timeout = request["timeout"].as_u64().map_or(Duration::MAX, Duration::from_millis);
        let answer = loop {
            let record = match self.input.recv_timeout(timeout) {
                Ok(record) => record,
                Err(_) => break "nothing".to_owned(),
            };
            match record["type"].as_str().unwrap() {
                "extension_ui_response" if record["id"] == json!(id) => {
                    let answer = ["value", "confirmed", "cancelled"].map(|key| &record[key]);
                    break answer.iter().find(|value| !value.is_null()).unwrap().to_string();
                }
                "get_state" => respond(&record, Ok(self.state(true))),
                "abort" => respond(&record, Ok(Value::Null)),
                _ => {}
            }
        };
        self.say(&format!("{answer}\n"));
    }

    /// Waits for a record and answers state queries as busy meanwhile.
    fn wait_for(&mut self, is: impl Fn(&Value) -> bool) -> Value {
        loop {
            let Ok(record) = self.input.recv() else { std::process::exit(0) };
            if is(&record) {
                return record;
            }
            if record["type"] == "get_state" {
                respond(&record, Ok(self.state(true)));
            }
        }
    }

    fn hang(&mut self, text: &str) -> Next {
        self.say(text);
        let abort = self.wait_for(|record| record["type"] == "abort");
        respond(&abort, Ok(Value::Null));
        Next::Stop("aborted", "Request was aborted".into())
    }

    /// Sends plain text, unknown records, stray responses, and an unknown dialog.
    fn noise(&mut self) {
        println!("not json at all");
        std::io::stdout().lock().write_all(b"\xff\xfe{\n[1, 2]\n\"text\"\n{\"type\": 7}\n\r\n").unwrap();
        event("vendor_thing");
        send(
            &json!({"type": "response", "id": "99999", "command": "prompt", "success": false, "error": "late"}),
        );
        send(&json!({"type": "response", "command": "parse", "success": false, "error": "bad line"}));
        send(
            &json!({"type": "message_update", "assistantMessageEvent": {"type": "vendor_delta", "delta": "LEAK"}}),
        );
        send(&json!({"type": "tool_execution_end", "toolCallId": "never-begun", "isError": false}));
        send(&json!({"type": "extension_ui_request", "id": "s", "method": "setStatus", "statusKey": "k"}));
        send(&json!({"type": "extension_ui_request", "id": "v", "method": "vendor_dialog"}));
        let answer = self.wait_for(|record| record["id"] == "v");
        self.say(&format!("cancelled {}\u{2028}", answer["cancelled"]));
    }
}
