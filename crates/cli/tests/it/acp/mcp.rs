//! MCP servers that are passed to agents.

use mainspring_agent::tool::mcp::McpConfig;

use super::*;
use crate::cli::{json_lines, run};
use crate::guests::serve;

/// Opens a node whose agent is given these MCP servers.
async fn with_servers(features: &str, servers: &[(&str, McpConfig)]) -> World {
    let mut world = world_with(features, |adapter| adapter.mcp = Some(vec!["*".into()])).await;
    let servers = servers.iter().map(|(name, config)| ((*name).to_owned(), config.clone()));
    world.config.models.mcp = servers.collect();
    world.reopen().await;
    world
}

fn program() -> McpConfig {
    McpConfig {
        command: Some("sh".into()),
        args: vec!["-c".into(), "true".into()],
        env: [("LOG".to_owned(), "off".to_owned())].into(),
        pass_env: vec!["PATH".into(), "NO_SUCH_VARIABLE".into()],
        ..McpConfig::default()
    }
}

/// Uses `PATH` as the secret, because that variable always exists.
fn server() -> McpConfig {
    McpConfig {
        url: Some("http://127.0.0.1:1/mcp".into()),
        headers: [("X-Team".to_owned(), "blue".to_owned())].into(),
        headers_env: [("X-Secret".to_owned(), "PATH".to_owned())].into(),
        ..McpConfig::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mcp_servers_are_passed_to_new_and_resumed_sessions() {
    for features in ["resume,http", "load,http"] {
        let mut world = with_servers(features, &[("files", program()), ("search", server())]).await;
        for _ in 0..2 {
            let servers: serde_json::Value =
                serde_json::from_str(&world.prompt_answer("a", "servers").await).unwrap();
            let path = std::env::var("PATH").unwrap();
            assert!(servers[0]["command"].as_str().unwrap().ends_with("/sh"), "an absolute path: {servers}");
            assert_eq!(
                (&servers[0]["name"], &servers[0]["args"]),
                (&"files".into(), &serde_json::json!(["-c", "true"]))
            );
            let env = serde_json::json!([{"name": "LOG", "value": "off"}, {"name": "PATH", "value": path}]);
            assert_eq!(servers[0]["env"], env);
            let headers =
                serde_json::json!([{"name": "X-Secret", "value": path}, {"name": "X-Team", "value": "blue"}]);
            assert_eq!(
                servers[1],
                serde_json::json!({"type": "http", "name": "search", "url": "http://127.0.0.1:1/mcp", "headers": headers})
            );
            // An agent in a new process receives the servers as well.
            world.reopen().await;
        }
        assert_eq!(world.bindings("a").await.len(), 1, "{features}");
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unusable_mcp_server_fails_the_run_with_a_reason() {
    let missing = McpConfig { key_env: Some("NO_SUCH_VARIABLE".into()), ..server() };
    let nowhere = McpConfig { command: Some("no-such-program".into()), ..program() };
    for (features, config, code, says) in [
        ("resume", server(), "adapter_incompatible", "takes no MCP servers over HTTP"),
        ("resume,http", missing, "mcp_unavailable", "set the environment variable NO_SUCH_VARIABLE"),
        ("resume", nowhere, "mcp_unavailable", "there is no program"),
    ] {
        let world = with_servers(features, &[("x", config)]).await;
        let run = world.run_to_end("a", "hi").await;
        let json = serde_json::to_string(&run).unwrap();
        assert_eq!((error_code(&run).as_str(), run.attempts), (code, 1), "{json}");
        assert!(json.contains(says), "{json}");
        world.close().await;
    }
}

/// A `mainspring mcp` process, called over standard input and output.
struct McpProcess {
    process: std::process::Child,
    out: std::io::BufReader<std::process::ChildStdout>,
    last_id: u64,
}

impl McpProcess {
    fn start(config: &serde_json::Value) -> Self {
        let args = config["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
        let variable = |it: &serde_json::Value| {
            (it["name"].as_str().unwrap().to_owned(), it["value"].as_str().unwrap().to_owned())
        };
        let mut process = std::process::Command::new(config["command"].as_str().unwrap())
            .args(args)
            .envs(config["env"].as_array().into_iter().flatten().map(variable))
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let out = std::io::BufReader::new(process.stdout.take().unwrap());
        let mut mcp = Self { process, out, last_id: 0 };
        let parameters = serde_json::json!({"protocolVersion": "2025-06-18", "capabilities": {},
                                       "clientInfo": {"name": "test", "version": "1"}});
        let answer = mcp.request("initialize", &parameters);
        assert_eq!(answer["serverInfo"]["name"], "mainspring", "{answer}");
        mcp.send(&serde_json::json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        mcp
    }

    fn send(&mut self, message: &serde_json::Value) {
        use std::io::Write;
        writeln!(self.process.stdin.as_mut().unwrap(), "{message}").unwrap();
    }

    fn request(&mut self, method: &str, params: &serde_json::Value) -> serde_json::Value {
        use std::io::BufRead;
        self.last_id += 1;
        self.send(
            &serde_json::json!({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params}),
        );
        let mut line = String::new();
        assert!(self.out.read_line(&mut line).unwrap() > 0, "the process has exited");
        let answer: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(answer["id"], self.last_id, "{line}");
        if answer["result"].is_null() { answer["error"].clone() } else { answer["result"].clone() }
    }

    /// Calls a tool; returns its answer and whether the answer is an error.
    fn call(&mut self, name: &str, arguments: &serde_json::Value) -> (serde_json::Value, bool) {
        let answer = self.request("tools/call", &serde_json::json!({"name": name, "arguments": arguments}));
        let text = answer["content"][0]["text"].as_str().unwrap();
        (serde_json::from_str(text).unwrap(), answer["isError"] == true)
    }

    /// Closes the server's input and waits for its exit.
    fn close(mut self) {
        drop(self.process.stdin.take());
        assert!(self.process.wait().unwrap().success());
    }
}

#[test]
fn the_built_in_mcp_server_acts_for_its_owner_and_session() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, program) = (dir.path().join("agent"), example("acp_agent"));
    std::fs::create_dir(&folder).unwrap();
    let config = format!(
        "adapter = \"agent\"\n[adapters.agent]\nkind = \"acp\"\ncommand = [{program:?}, {folder:?}, \"resume\"]\n\
         control_tools = true\n",
    );
    std::fs::write(dir.path().join("mainspring.toml"), config).unwrap();
    let _daemon = serve(dir.path());
    let prompt = |key: &str, text: &str| run(dir.path(), &["prompt", "-s", key, text]);
    assert_eq!(prompt("b", "my name is Bob").code, 0);
    let output = prompt("a", "servers");
    let servers: serde_json::Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!((servers.as_array().unwrap().len(), &servers[0]["name"]), (1, &"mainspring".into()));
    let runs = json_lines(&run(dir.path(), &["run", "list", "--json"]));
    let (a, b) = (&runs[0], &runs[1]);

    // The agent starts the server itself, and calls its tools during a turn.
    let call = |name: &str, input: &serde_json::Value| -> serde_json::Value {
        let output = prompt("a", &format!("mcp {name} {input}"));
        serde_json::from_str(&output.out).unwrap_or_else(|error| panic!("{error}: {}", output.out))
    };
    let listed = call("list_agent_sessions", &serde_json::json!({}));
    assert_eq!(listed["sessions"].as_array().map(Vec::len), Some(2), "{listed}");
    let answer = call("get_agent_run", &serde_json::json!({"runId": b["runId"]}));
    assert_eq!(answer["run"]["status"], "succeeded", "{answer}");
    let sent = serde_json::json!({"sessionId": b["sessionId"], "prompt": "history", "mode": "act"});
    let answer = call("send_agent_message", &sent);
    assert_eq!(answer["text"], "my name is Bob\nhistory\n", "{answer}");
    assert!(answer["run"]["parentRunId"].is_string(), "a message of a run is a delegation: {answer}");
    // A prompt to the caller's own session would deadlock, a foreign session is not found, and invalid input is
    // refused.
    for (arguments, code) in [
        (serde_json::json!({"sessionId": a["sessionId"], "prompt": "hi"}), "would_deadlock"),
        (serde_json::json!({"sessionId": b["sessionId"], "prompt": "hi", "ownerId": "eve"}), "not_found"),
        (serde_json::json!({"prompt": "hi"}), "invalid_tool_input"),
    ] {
        let answer = call("send_agent_message", &arguments);
        let error = &answer["error"];
        let actual = if error["reason"].is_null() { &error["code"] } else { &error["reason"] };
        assert_eq!(actual, code, "{answer}");
    }
    let unknown = call("execute_sql", &serde_json::json!({}));
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");

    // Started by another process, the server reaches nothing: its token is refused between the turns of the agent, and
    // the endpoint is only for the processes of the agent.
    let mut mcp = McpProcess::start(&servers[0]);
    let tools = mcp.request("tools/list", &serde_json::json!({}));
    assert_eq!(tools["tools"].as_array().unwrap().len(), 6, "{tools}");
    let (answer, failed) = mcp.call("list_agent_sessions", &serde_json::json!({}));
    assert!(failed && answer["error"]["code"] == "transport_interruption", "{answer}");
    mcp.close();
}

#[test]
fn an_agents_mcp_server_needs_a_daemon_and_a_standalone_one_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let session = format!("ses_{:032x}", 7);
    let output = run(dir.path(), &["mcp", "--session", &session]);
    assert!(
        output.code == 2 && output.err.contains("no process serves the state directory"),
        "{}",
        output.err
    );
    let state_dir = dir.path().join("state").to_string_lossy().into_owned();
    let program = env!("CARGO_BIN_EXE_mainspring");
    let mut mcp = McpProcess::start(
        &serde_json::json!({"command": program, "args": ["mcp", "--state-dir", state_dir]}),
    );
    assert_eq!(
        mcp.call("list_agent_sessions", &serde_json::Value::Null).0["sessions"],
        serde_json::json!([])
    );
    mcp.close();
}
