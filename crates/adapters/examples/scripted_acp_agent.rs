//! A scripted agent for tests: it speaks the Agent Client Protocol and executes its prompts as commands.
//!
//! `scripted_acp_agent FOLDER [FEATURE,…]`. A native session is a file in the folder that holds its prompts. A prompt is
//! a list of commands separated by semicolons; everything else is echoed.
//!
//! | feature | effect |
//! |---|---|
//! | `load`, `resume`, `fork`, `close` | the agent advertises and implements the method |
//! | `boast`, `boast-load` | it advertises `resume` or `load` without implementing it |
//! | `resume-fails` | it answers `resume` with an error |
//! | `lazy` | it resumes sessions it does not have, and reports them missing when prompted |
//! | `load-crashes`, `load-hangs` | it exits, or does not answer, when it loads a session it does not have |
//! | `http`, `image`, `embedded`, `modes` | it advertises MCP servers over HTTP, images, resources in prompts, modes |
//! | `listless` | it lists no models and takes any in `session/set_model`, except `bad` |
//! | `mute` | a resumed session is reported without settings |
//! | `bill` | the cost so far is reported on resume |
//! | `strict`, `locks` | an open session cannot be opened again: by this process, by another one |
//! | `forgets` | the prompt of a turn is stored only if and when the turn ends with `end_turn` |
//! | `v2`, `v2-only` | it answers with another version of the protocol, or refuses version 1 |
//! | `quits` | it prints a reason and exits |
//! | `silent` | it never answers `session/new`, and creates the file `silent` when it gets one |
//! | `dies-once` | its first process exits at `session/new` |

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a scripted agent that cannot continue crashes")]
#![allow(clippy::zombie_processes, reason = "real agents leave their children, too")]

use std::collections::HashSet;
use std::io::{BufRead, StdinLock, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

struct Agent {
    input: StdinLock<'static>,
    folder: PathBuf,
    features: Vec<String>,
    asked: u64,
    opened: u64,
    /// Native sessions that this process has open.
    open: HashSet<String>,
    /// Whether it requires authentication.
    locked: bool,
    /// The client's capabilities.
    client: Value,
    /// The MCP servers of the last opened native session.
    servers: Value,
    /// The last created terminal.
    terminal: String,
    /// A permission request offers only the options whose kind begins with this.
    offers: &'static str,
    /// The responses to requests that it did not wait for.
    late_responses: Vec<String>,
    /// Text to send after the end of the turn.
    afterthought: Option<String>,
}

/// The next step after a command.
enum Next {
    Continue,
    Stop(&'static str),
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().unwrap());
    let features = arguments.next().unwrap_or_default().split(',').map(str::to_owned).collect();
    let mut agent = Agent {
        input: std::io::stdin().lock(),
        folder,
        features,
        asked: 0,
        opened: 0,
        open: HashSet::new(),
        locked: std::env::var_os("ACP_AGENT_LOCKED").is_some(),
        client: Value::Null,
        servers: Value::Null,
        terminal: String::new(),
        offers: "",
        late_responses: vec![],
        afterthought: None,
    };
    // Agents also print plain text.
    println!("acp_agent ready");
    if agent.has("quits") {
        println!("this version is no longer maintained");
        return;
    }
    while let Some(message) = agent.read() {
        match message["method"].is_null() {
            true => agent.keep_response(&message),
            false => agent.serve(&message),
        }
    }
}

impl Agent {
    fn read(&mut self) -> Option<Value> {
        let mut line = String::new();
        match self.input.read_line(&mut line).unwrap() {
            0 => None,
            _ => Some(serde_json::from_str(&line).unwrap()),
        }
    }

    fn send(&self, message: &Value) {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{message}").unwrap();
        out.flush().unwrap();
    }

    fn update(&self, session: &str, update: &Value) {
        let params = json!({"sessionId": session, "update": update});
        self.send(&json!({"jsonrpc": "2.0", "method": "session/update", "params": params}));
    }

    fn say(&self, session: &str, text: &str) {
        let content = json!({"type": "text", "text": text});
        self.update(session, &json!({"sessionUpdate": "agent_message_chunk", "content": content}));
    }

    /// Keeps the response to a request that it did not wait for.
    fn keep_response(&mut self, message: &Value) {
        let response = message.get("result").or_else(|| message.get("error")).unwrap();
        self.late_responses.push(response.to_string());
    }

    fn serve(&mut self, message: &Value) {
        let (id, params) = (&message["id"], &message["params"]);
        let session = params["sessionId"].as_str().unwrap_or_default().to_owned();
        let known = self.folder.join(&session).is_file();
        if !params["mcpServers"].is_null() {
            self.servers = params["mcpServers"].clone();
        }
        let answer = match message["method"].as_str().unwrap_or_default() {
            "initialize" if self.has("v2-only") => Err("No common version"),
            "initialize" => {
                self.client = params["clientCapabilities"].clone();
                Ok(self.capabilities())
            }
            "authenticate" if params["methodId"] == "token" => {
                self.locked = false;
                Ok(json!({}))
            }
            "session/new" | "session/resume" if self.locked => Err("Authentication required"),
            "session/new" if self.has("silent") => {
                std::fs::write(self.folder.join("silent"), "").unwrap();
                return;
            }
            "session/new" if self.has("dies-once") && self.is_first("died") => std::process::exit(9),
            "session/new" if !params["cwd"].as_str().unwrap().starts_with('/') => Err("bad cwd"),
            "session/new" => Ok(self.open()),
            method if let Some(answer) = self.quirk(method, &session, params) => answer,
            "session/load" if self.has("load-crashes") && !known => std::process::exit(9),
            "session/load" if self.has("load-hangs") && !known => return,
            "session/resume" | "session/load" | "session/fork" if !known => Err("Session not found"),
            "session/resume" | "session/load" if self.has("strict") && !self.open.insert(session.clone()) => {
                Err("Session is already open")
            }
            "session/resume" | "session/load" if self.has("locks") && !self.lock(&session) => {
                Err("Session is active")
            }
            "session/resume" => Ok(self.resumed(&session)),
            "session/load" => {
                // The repeated history must not become part of an answer.
                self.say(&session, "HISTORY");
                Ok(self.resumed(&session))
            }
            "session/fork" if self.has("fork") => {
                let answer = self.open();
                let prompts = std::fs::read_to_string(self.folder.join(&session)).unwrap();
                self.note(answer["sessionId"].as_str().unwrap(), &format!("{prompts}(forked)"));
                Ok(answer)
            }
            "session/close" if self.has("close") => {
                self.open.remove(&session);
                std::fs::write(self.folder.join(format!("{session}.closed")), "").unwrap();
                Ok(json!({}))
            }
            "session/set_mode" => {
                self.note(&session, &format!("mode={}", params["modeId"]));
                Ok(json!({}))
            }
            "session/set_config_option" => {
                self.note(&session, &format!("{}={}", params["configId"], params["value"]));
                let mut answer = self.options();
                answer["configOptions"][0]["currentValue"] = params["value"].clone();
                Ok(answer)
            }
            "session/prompt" if !known && self.has("lazy") => Err("No conversation found with session ID"),
            "session/prompt" if !known => Err("Session not found"),
            "session/prompt" if self.misses(&session, params).is_some() => {
                Err(self.misses(&session, params).unwrap())
            }
            "session/prompt" => {
                let reason = self.prompt(&session, params["prompt"].as_array().unwrap());
                Ok(
                    json!({"stopReason": reason, "usage": {"totalTokens": 5, "inputTokens": 3, "outputTokens": 2}}),
                )
            }
            _ => Err("Method not found"),
        };
        if id.is_null() {
            return;
        }
        self.respond(id, answer);
        if let Some(text) = self.afterthought.take() {
            self.say(&session, &text);
        }
    }

    fn respond(&self, id: &Value, answer: Result<Value, &str>) {
        self.send(&match answer {
            Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
            Err(message) => {
                let code = match message {
                    "Method not found" => -32601,
                    "No common version" => -32022,
                    _ if message.starts_with("Authentication") => -32000,
                    _ => -32603,
                };
                let error = match message.starts_with("No conversation") {
                    true => json!({"code": code, "message": "Internal error", "data": {"details": message}}),
                    false => json!({"code": code, "message": message}),
                };
                json!({"jsonrpc": "2.0", "id": id, "error": error})
            }
        });
    }

    fn capabilities(&self) -> Value {
        if self.has("v2") {
            return json!({"protocolVersion": 2, "capabilities": {}, "info": {"name": "acp_agent", "version": "2"}});
        }
        let session = ["resume", "fork", "close"].into_iter().filter(|name| self.has(name));
        let mut session: serde_json::Map<_, _> = session.map(|name| (name.to_owned(), json!({}))).collect();
        if self.has("boast") {
            session.insert("resume".into(), json!({}));
        }
        let load = self.has("load") || self.has("boast-load");
        json!({
            "protocolVersion": 1,
            "agentInfo": {"name": "scripted", "version": "0.7"},
            "agentCapabilities": {
                "loadSession": load, "sessionCapabilities": session,
                "mcpCapabilities": {"http": self.has("http"), "sse": false},
                "promptCapabilities": {"image": self.has("image"), "embeddedContext": self.has("embedded")},
            },
            "authMethods": [{"id": "token", "name": "by a token"}],
        })
    }

    fn has(&self, feature: &str) -> bool {
        self.features.iter().any(|has| has == feature)
    }

    /// Answers in the unusual way that a feature of the agent asks for; `None` if there is no such feature.
    fn quirk(&self, method: &str, session: &str, params: &Value) -> Option<Result<Value, &'static str>> {
        match method {
            "session/set_model" if self.has("listless") && params["modelId"] != "bad" => {
                self.note(session, &format!("model={}", params["modelId"]));
                Some(Ok(json!({})))
            }
            "session/set_model" if self.has("listless") => Some(Err("no such model: bad")),
            "session/resume" if self.has("boast") => Some(Err("Method not found")),
            "session/load" if self.has("boast-load") => Some(Err("Method not found")),
            "session/resume" if self.has("resume-fails") => Some(Err("Internal error")),
            "session/resume" if self.has("lazy") => Some(Ok(self.options())),
            _ => None,
        }
    }

    /// A prompt `missing ERROR` in a session of another process fails with that error; `vanish` in one ends
    /// the process.
    fn misses(&self, session: &str, params: &Value) -> Option<&'static str> {
        let text = params["prompt"].as_array().unwrap().last().unwrap()["text"].as_str()?;
        if self.open.contains(session) {
            return None;
        }
        if text == "vanish" {
            std::process::exit(9);
        }
        let error = text.strip_prefix("missing ")?;
        // Not output.
        self.update(session, &json!({"sessionUpdate": "available_commands_update", "availableCommands": []}));
        Some(Box::leak(error.to_owned().into_boxed_str()))
    }

    /// Reports whether this is the first call with this file name, in any process.
    fn is_first(&self, file: &str) -> bool {
        std::fs::File::create_new(self.folder.join(file)).is_ok()
    }

    /// The settings of a session.
    fn options(&self) -> Value {
        if self.has("listless") {
            return json!({});
        }
        let models = json!([{"value": "m1", "name": "one"}, {"value": "m2", "name": "two"}]);
        let mut options = json!({"configOptions": [{"id": "model", "name": "Model", "category": "model",
                                 "type": "select", "currentValue": "m1", "options": models}]});
        if self.has("modes") {
            let modes = json!([{"id": "code", "name": "Code"}, {"id": "plan", "name": "Plan"}]);
            options["modes"] = json!({"currentModeId": "code", "availableModes": modes});
        }
        options
    }

    /// Locks a session. Returns false if another living process holds it.
    fn lock(&self, session: &str) -> bool {
        let (lock, own) = (self.folder.join(format!("{session}.lock")), std::process::id().to_string());
        let holder = std::fs::read_to_string(&lock).ok();
        let free = holder.is_none_or(|pid| pid == own || !PathBuf::from("/proc").join(pid).exists());
        if free {
            std::fs::write(lock, own).unwrap();
        }
        free
    }

    /// The result of resuming a session.
    fn resumed(&self, session: &str) -> Value {
        if self.has("bill") {
            self.spend(session, 0.25);
        }
        if self.has("mute") { Value::Null } else { self.options() }
    }

    fn open(&mut self) -> Value {
        self.opened += 1;
        let session = format!("native-{}-{}", std::process::id(), self.opened);
        std::fs::write(self.folder.join(&session), "").unwrap();
        self.open.insert(session.clone());
        if self.has("locks") {
            self.lock(&session);
        }
        let mut answer = self.options();
        answer["sessionId"] = session.into();
        answer
    }

    fn note(&self, session: &str, text: &str) {
        let path = self.folder.join(session);
        let before = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, format!("{before}{}\n", text.replace('\n', " | "))).unwrap();
    }

    fn prompt(&mut self, session: &str, blocks: &[Value]) -> &'static str {
        let text = |block: &Value| match block["type"].as_str().unwrap() {
            "text" => block["text"].as_str().unwrap().to_owned(),
            "image" => format!("[image {} {}]", block["mimeType"], block["data"]),
            "resource" => format!("[resource {} {}]", block["resource"]["uri"], block["resource"]["text"]),
            "resource_link" => format!("[link {} {}]", block["name"], block["uri"]),
            other => format!("[{other}]"),
        };
        let texts: Vec<String> = blocks.iter().map(text).collect();
        let forgets = self.has("forgets");
        if !forgets {
            texts.iter().for_each(|text| self.note(session, text));
        }
        let said = texts.iter().rfind(|text| !text.starts_with(['[', '<'])).unwrap();
        let mut reason = "end_turn";
        for command in said.split(';') {
            if let Next::Stop(why) = self.command(session, command.trim()) {
                reason = why;
                break;
            }
        }
        if forgets && reason == "end_turn" {
            texts.iter().for_each(|text| self.note(session, text));
        }
        reason
    }

    fn command(&mut self, session: &str, command: &str) -> Next {
        let (verb, rest) = command.split_once(' ').unwrap_or((command, ""));
        match verb {
            "think" => {
                let content = json!({"type": "text", "text": format!("thinking about {rest}")});
                self.update(session, &json!({"sessionUpdate": "agent_thought_chunk", "content": content}));
            }
            "history" => {
                let prompts = std::fs::read_to_string(self.folder.join(session)).unwrap();
                self.say(session, &prompts);
            }
            "env" => self.say(session, &std::env::var(rest).unwrap_or_default()),
            "pid" => self.say(session, &std::process::id().to_string()),
            // An agent that acts without asking.
            "shell" => {
                let status = Command::new("sh").args(["-c", rest]).status().unwrap();
                self.say(session, &format!("{:?}", status.code()));
            }
            "client" => self.say(session, &self.client.to_string()),
            "relay" | "relay-at" | "mcp" => self.say(session, &format!("{}\n", self.call_tool(verb, rest))),
            "servers" => self.say(session, &self.servers.to_string()),
            "call" => return self.call(session, rest),
            "send" => drop(self.send_request(session, rest)),
            "responses" => self.say(session, &self.late_responses.join("\n")),
            "warn" => {
                let _ = writeln!(std::io::stderr(), "{rest}");
            }
            "tool" => self.tool(session, rest),
            // `report JSON`: any update. `$P` is an image of one pixel, `$L` a long text.
            "report" => {
                let json = rest.replace("$P", "iVBORw0KGgo=").replace("$L", &"long ".repeat(20_000));
                self.update(session, &serde_json::from_str(&json).unwrap());
            }
            "ask" => return self.ask(session, rest, false),
            "bare" => return self.ask(session, rest, true),
            "warned" | "obliged" => return self.ask_one_sided(session, verb, rest),
            "plan" => self.plan(session, rest),
            "spend" => self.spend(session, rest.parse().unwrap()),
            // The agent changes its mode or model itself.
            "mode" => {
                self.update(session, &json!({"sessionUpdate": "current_mode_update", "currentModeId": rest}));
            }
            "model" => {
                let mut options = self.options();
                options["configOptions"][0]["currentValue"] = rest.into();
                options["sessionUpdate"] = "config_option_update".into();
                self.update(session, &options);
            }
            "part" => self.part(session, rest),
            "rename" => self.rename(session, rest),
            "noise" => self.noise(session),
            // A line that is not UTF-8, and one that is too long.
            "garble" => {
                std::io::stdout().write_all(b"{\"jsonrpc\":\"\xff\xfe\"}\n").unwrap();
            }
            "stretch" => println!("{}", "x".repeat(65 << 20)),
            "spawn" => spawn_sleepers(),
            "flood" => (0..rest.parse().unwrap()).for_each(|_: u64| self.say(session, "0123456789")),
            "stop" => return Next::Stop(Box::leak(rest.to_owned().into_boxed_str())),
            "hang" => {
                self.say(session, "hanging");
                return self.hang(session);
            }
            // After a cancellation it sends more text and ends the turn regularly.
            "late" => {
                self.say(session, "late\n");
                self.hang(session);
                self.say(session, rest);
                self.afterthought = Some("AFTERTHOUGHT".into());
                return Next::Stop("end_turn");
            }
            "deaf" => {
                self.say(session, "deaf");
                while self.read().is_some() {}
                loop {
                    std::thread::park();
                }
            }
            "crash" => {
                let _ = writeln!(std::io::stderr(), "out of memory");
                std::process::exit(9);
            }
            _ => self.say(session, &format!("{command}\n")),
        }
        Next::Continue
    }

    /// `relay LINE`: calls a tool through the endpoint of its process; `relay-at SOCKET LINE`: through another one; `mcp NAME
    /// INPUT`: through its first MCP server.
    fn call_tool(&self, verb: &str, rest: &str) -> String {
        match verb {
            "relay" => relay(&std::env::var("OMI_BRIDGE_PIPE").unwrap(), rest),
            "relay-at" => {
                let (socket, line) = rest.split_once(' ').unwrap();
                relay(socket, line)
            }
            _ => call_mcp(&self.servers[0], rest),
        }
    }

    fn plan(&self, session: &str, step: &str) {
        let entries = json!([{"content": "look", "priority": "high", "status": "completed"},
                             {"content": step, "priority": "high", "status": "in_progress"}]);
        self.update(session, &json!({"sessionUpdate": "plan", "entries": entries}));
    }

    /// Says a part of a message that has an id: `ID TEXT`.
    fn part(&self, session: &str, rest: &str) {
        let (message, text) = rest.split_once(' ').unwrap();
        let content = json!({"type": "text", "text": text});
        let chunk = json!({"sessionUpdate": "agent_message_chunk", "messageId": message, "content": content});
        self.update(session, &chunk);
    }

    /// Reports a tool call whose title changes while it runs.
    fn rename(&self, session: &str, title: &str) {
        let call = json!({"sessionUpdate": "tool_call", "toolCallId": "r", "title": "Terminal", "kind": "execute",
                          "status": "pending", "rawInput": {}});
        self.update(session, &call);
        let update = json!({"sessionUpdate": "tool_call_update", "toolCallId": "r", "title": title,
                            "status": "completed", "rawInput": {"command": title}});
        self.update(session, &update);
    }

    fn spend(&self, session: &str, dollars: f64) {
        let cost = json!({"amount": dollars, "currency": "USD"});
        self.update(session, &json!({"sessionUpdate": "usage_update", "used": 1, "size": 9, "cost": cost}));
    }

    fn tool(&self, session: &str, name: &str) {
        let id = format!("call-{name}");
        self.update(session, &json!({"sessionUpdate": "tool_call", "toolCallId": id, "title": name, "status": "pending", "rawInput": {}}));
        self.update(session, &json!({"sessionUpdate": "tool_call_update", "toolCallId": id, "status": "in_progress", "rawInput": {"path": "/x"}}));
        let content = json!([{"type": "content", "content": {"type": "text", "text": "done it"}}]);
        self.update(session, &json!({"sessionUpdate": "tool_call_update", "toolCallId": id, "status": "completed", "content": content}));
    }

    /// `warned WHAT`: asks without an option that allows; `obliged WHAT`: without one that denies.
    fn ask_one_sided(&mut self, session: &str, verb: &str, what: &str) -> Next {
        self.offers = if verb == "warned" { "reject" } else { "allow" };
        let next = self.ask(session, what, false);
        self.offers = "";
        next
    }

    /// Requests a permission and waits for the answer. The details of a `bare` request are sent before it.
    fn ask(&mut self, session: &str, what: &str, bare: bool) -> Next {
        self.asked += 1;
        let id = format!("ask-{}", self.asked);
        let mut call = json!({"toolCallId": format!("call-{id}"), "title": what, "status": "pending", "rawInput": {"what": what}});
        if let Some(path) = what.strip_prefix("edit ") {
            let diff = json!({"type": "diff", "path": path, "oldText": "old\n", "newText": "new\n"});
            (call["kind"], call["locations"], call["content"]) =
                ("edit".into(), json!([{"path": path}]), json!([diff]));
        }
        if bare {
            let name = call["toolCallId"].clone();
            (call["sessionUpdate"], call["kind"]) = ("tool_call".into(), "execute".into());
            self.update(session, &call);
            call = json!({"toolCallId": name});
        }
        // One of the options has an unknown kind.
        let mut options = json!([{"optionId": "today", "name": "Today", "kind": "allow_today"},
                             {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
                             {"optionId": "always", "name": "Always", "kind": "allow_always"},
                             {"optionId": "no", "name": "No", "kind": "reject_once"}]);
        let is_offered = |option: &Value| option["kind"].as_str().unwrap().starts_with(self.offers);
        options.as_array_mut().unwrap().retain(is_offered);
        let params = json!({"sessionId": session, "toolCall": call, "options": options});
        self.send(
            &json!({"jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": params}),
        );
        let mut cancelled = false;
        loop {
            let Some(message) = self.read() else { return Next::Stop("cancelled") };
            cancelled |= message["method"] == "session/cancel";
            if message["id"] == json!(id) && message["method"].is_null() {
                let outcome = &message["result"]["outcome"];
                self.say(session, &format!("{} {}\n", outcome["outcome"], outcome["optionId"]));
                return if cancelled || outcome["outcome"] == "cancelled" {
                    Next::Stop("cancelled")
                } else {
                    Next::Continue
                };
            }
        }
    }

    /// `call METHOD PARAMS`: sends a request to the client and says the response. `$T` is the last created terminal.
    fn call(&mut self, session: &str, what: &str) -> Next {
        let id = self.send_request(session, what);
        let mut cancelled = false;
        loop {
            let Some(message) = self.read() else { return Next::Stop("cancelled") };
            cancelled |= message["method"] == "session/cancel";
            if message["id"] != json!(id) || !message["method"].is_null() {
                continue;
            }
            if let Some(terminal) = message["result"]["terminalId"].as_str() {
                terminal.clone_into(&mut self.terminal);
            }
            let error = &message["error"];
            match error.is_null() {
                true => self.say(session, &format!("{}\n", message["result"])),
                false => {
                    self.say(session, &format!("{} {} {}\n", error["code"], error["message"], error["data"]));
                }
            }
            return if cancelled { Next::Stop("cancelled") } else { Next::Continue };
        }
    }

    /// `send METHOD PARAMS`: sends a request and does not wait for the response.
    fn send_request(&mut self, session: &str, what: &str) -> String {
        let (method, params) = what.split_once(' ').unwrap();
        let mut params: Value = serde_json::from_str(&params.replace("$T", &self.terminal)).unwrap();
        params["sessionId"] = session.into();
        self.asked += 1;
        let id = format!("call-{}", self.asked);
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    fn hang(&mut self, session: &str) -> Next {
        while let Some(message) = self.read() {
            if message["method"] == "session/cancel" && message["params"]["sessionId"] == json!(session) {
                return Next::Stop("cancelled");
            }
        }
        Next::Stop("cancelled")
    }

    /// Sends text of another session, an unknown update, an unknown notification, an unknown request and plain text.
    fn noise(&mut self, session: &str) {
        self.say("another-session", "LEAK");
        self.update(session, &json!({"sessionUpdate": "vendor_thing", "x": 1}));
        self.send(&json!({"jsonrpc": "2.0", "method": "vendor/notice", "params": {"x": 1}}));
        self.send(&json!({"jsonrpc": "2.0", "id": "v1", "method": "vendor/question", "params": {"x": 1}}));
        let answer = self.read().unwrap();
        self.say(session, &format!("vendor {}\n", answer["error"]["code"]));
        println!("not json at all");
    }
}

/// Sends a line to an endpoint. Returns the answer, or the reason why there is none.
fn relay(socket: &str, line: &str) -> String {
    let mut endpoint = match std::os::unix::net::UnixStream::connect(socket) {
        Ok(endpoint) => std::io::BufReader::new(endpoint),
        Err(error) => return error.kind().to_string(),
    };
    let sent = writeln!(endpoint.get_mut(), "{line}");
    let mut answer = String::new();
    match sent.and_then(|()| endpoint.read_line(&mut answer)) {
        Ok(0) | Err(_) => "closed".into(),
        Ok(_) => answer.trim().to_owned(),
    }
}

/// `NAME INPUT`: starts an MCP server and calls one of its tools. Returns the text of the result.
fn call_mcp(server: &Value, what: &str) -> String {
    let (name, input) = what.split_once(' ').unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let variables =
        server["env"].as_array().unwrap().iter().map(|it| (text(&it["name"]), text(&it["value"])));
    let mut process = Command::new(text(&server["command"]))
        .args(server["args"].as_array().unwrap().iter().map(text))
        .envs(variables)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input_pipe = process.stdin.take().unwrap();
    let mut output = std::io::BufReader::new(process.stdout.take().unwrap());
    let mut request = |id: u64, method: &str, params: Value| -> Value {
        writeln!(input_pipe, "{}", json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            .unwrap();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        if id == 1 {
            writeln!(input_pipe, "{}", json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
                .unwrap();
        }
        serde_json::from_str(&line).unwrap_or_default()
    };
    let client = json!({"name": "scripted", "version": "1"});
    request(
        1,
        "initialize",
        json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}),
    );
    let input: Value = serde_json::from_str(input).unwrap();
    let answer = request(2, "tools/call", json!({"name": name, "arguments": input}));
    drop(input_pipe);
    process.wait().unwrap();
    let result = answer["result"]["content"][0]["text"].as_str();
    result.map_or_else(|| answer.to_string(), str::to_owned)
}

/// Starts two processes that outlive the turn, one of them in a session of its own.
fn spawn_sleepers() {
    for program in ["setsid sleep 1000", "sleep 1000"] {
        let mut words = program.split(' ');
        let mut command = Command::new(words.next().unwrap());
        command.args(words).stdin(Stdio::null()).stdout(Stdio::inherit()).spawn().unwrap();
    }
}
