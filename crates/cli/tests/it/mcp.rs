//! The published MCP server `@modelcontextprotocol/server-everything`, called through the native loop by a scripted
//! model.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::agents::{everything_server, node};
use crate::cli::{CommandOutput, command, command_output, json_lines, run};
use crate::guests::serve;

/// Sends a prompt to the native loop; the scripted model follows `script`.
fn prompt(dir: &Path, script: &str) -> CommandOutput {
    let arguments = ["prompt", "--json", "--adapter", "native", "--model", "scripted/any", "-s", "s", script];
    command_output(command(dir).args(arguments).output().unwrap())
}

/// Returns the tool results of a prompt: name, text, whether the result is an error.
fn results(output: &CommandOutput) -> Vec<(String, String, bool)> {
    let events = json_lines(output);
    let messages = events.iter().filter(|event| event["type"] == "message.completed");
    let blocks = messages.filter_map(|event| event["payload"]["message"]["content"].as_array()).flatten();
    let result = |block: &Value| {
        let text = block["content"].as_array()?.iter().filter_map(|part| part["text"].as_str()).collect();
        Some((block["name"].as_str()?.to_owned(), text, block["isError"] == true))
    };
    blocks.filter(|block| block["type"] == "tool_result").filter_map(result).collect()
}

/// A successful call and a failing one in the same turn.
const TWO_CALLS: &str = r#"tool all__echo {"message": "hi"}; tool all__gzip-file-as-resource {"name": "x", "data": "ftp://nowhere/x", "outputType": "resource"}; say done"#;

fn check_two_calls(output: &CommandOutput) {
    assert_eq!(output.code, 0, "{} {}", output.out, output.err);
    let results = results(output);
    assert_eq!(results.len(), 2, "{}", output.out);
    assert_eq!(results[0], ("all__echo".into(), "Echo: hi".into(), false));
    let (name, text, is_error) = &results[1];
    assert!(*is_error && name == "all__gzip-file-as-resource" && text.contains("ftp"), "{results:?}");
}

#[test]
fn a_stdio_mcp_server_is_called_by_its_prefix_and_restarted_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let config =
        format!("[mcp.all]\ncommand = {:?}\nargs = [{:?}, \"stdio\"]\n", node(), everything_server());
    std::fs::write(dir.path().join("mainspring.toml"), config).unwrap();
    // A daemon keeps the MCP server alive between runs.
    let (daemon, _) = serve(dir.path());
    check_two_calls(&prompt(dir.path(), TWO_CALLS));
    let children = children_of(daemon.id());
    assert_eq!(children.len(), 1, "it was started once: {children:?}");
    check_two_calls(&prompt(dir.path(), TWO_CALLS));
    assert_eq!(children_of(daemon.id()), children, "and it is the same for the next run");
    kill_process(children[0], Signal::KILL).unwrap();
    check_two_calls(&prompt(dir.path(), TWO_CALLS));
    assert_ne!(children_of(daemon.id()), children, "another one was started");
    // Arguments that violate the tool's schema never reach the server.
    let output = prompt(dir.path(), "tool all__get-sum {\"a\": \"x\"}; say done");
    let results = results(&output);
    assert!(results[0].2 && results[0].1.contains("do not match the schema"), "{results:?}");
}

/// Lists the live child processes of `parent`.
fn children_of(parent: u32) -> Vec<Pid> {
    let stat = |entry: std::fs::DirEntry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // The fields after the name, which may contain any character: state, then parent.
        let mut rest = stat.rsplit_once(')')?.1.split_whitespace();
        let alive = rest.next()? != "Z";
        (alive && rest.next()?.parse::<u32>().ok()? == parent).then(|| Pid::from_raw(pid)).flatten()
    };
    std::fs::read_dir("/proc").unwrap().filter_map(|entry| stat(entry.ok()?)).collect()
}

/// The MCP server over HTTP, killed on drop.
struct HttpServer {
    child: Child,
    _stderr: BufReader<ChildStderr>,
}

impl HttpServer {
    fn start(port: u16) -> Self {
        let mut command = Command::new(node());
        command.arg(everything_server()).arg("streamableHttp").env("PORT", port.to_string());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("listening on port") {
            assert!(stderr.read_line(&mut line).unwrap() > 0, "the server has exited: {line}");
        }
        Self { child, _stderr: stderr }
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn an_http_mcp_server_is_called_and_reconnected_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let config = format!("[mcp.all]\nurl = \"http://127.0.0.1:{port}/mcp\"\n");
    std::fs::write(dir.path().join("mainspring.toml"), config).unwrap();
    let (_daemon, _) = serve(dir.path());
    let server = HttpServer::start(port);
    check_two_calls(&prompt(dir.path(), TWO_CALLS));
    drop(server);
    // The server is down: the run continues without its tools, and the model gets an error.
    let output = prompt(dir.path(), "tool all__echo {\"message\": \"hi\"}; say done");
    assert!(results(&output)[0].2, "{}", output.out);
    let _server = HttpServer::start(port);
    check_two_calls(&prompt(dir.path(), TWO_CALLS));
    let runs = json_lines(&run(dir.path(), &["run", "list", "--json"]));
    assert!(runs.iter().all(|run| run["status"] == "succeeded"), "{runs:?}");
}

/// An MCP server in shell that has started a process in a session of its own. Both hold the pipe `alive`
/// open. Its one tool returns two variables of mainspring's own environment: a secret, which the server must
/// not get, and the locale.
const SERVER_WITH_CHILD: &str = r#"
exec 9>"$ALIVE"
setsid sleep 600 &
while IFS= read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  reply() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
  case "$line" in
    *'"method":"initialize"'*)
      reply '{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"sh","version":"1"}}' ;;
    *'"method":"tools/list"'*) reply '{"tools":[{"name":"secret","inputSchema":{"type":"object"}}]}' ;;
    *'"method":"tools/call"'*) reply '{"content":[{"type":"text","text":"secret '"$A_SECRET"' locale '"$LC_TIME"'"}]}' ;;
  esac
done
"#;

#[test]
fn an_mcp_server_and_its_processes_end_with_a_killed_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let (script, alive) = (dir.path().join("server.sh"), dir.path().join("alive"));
    std::fs::write(&script, SERVER_WITH_CHILD).unwrap();
    assert!(Command::new("mkfifo").arg(&alive).status().unwrap().success());
    let config = format!("[mcp.sh]\ncommand = \"sh\"\nargs = [{script:?}]\nenv = {{ ALIVE = {alive:?} }}\n");
    std::fs::write(dir.path().join("mainspring.toml"), config).unwrap();
    let mut daemon = command(dir.path());
    daemon.args(["serve", "--listen", "127.0.0.1:0"]).env("A_SECRET", "key").env("LC_TIME", "C");
    let daemon = crate::guests::Process::serve_command(daemon);
    // The end of the pipe is read when no process has it open any more.
    let ended = std::thread::spawn(move || std::fs::read(&alive).unwrap());
    let output = prompt(dir.path(), "tool sh__secret {}; say done");
    assert_eq!(results(&output)[0].1, "secret  locale C", "{} {}", output.out, output.err);
    kill_process(Pid::from_raw(daemon.id().cast_signed()).unwrap(), Signal::KILL).unwrap();
    assert_eq!(ended.join().unwrap(), b"");
}
