//! MCP servers over stdio and over HTTP.

use std::collections::BTreeMap;
use std::path::Path;

use mainspring_agent::tool::mcp::{Health, McpConfig, McpServers};
use mainspring_core::{Block, RunStatus};
use mainspring_model_server::Reply;
use serde_json::json;

use crate::world::{Setup, World};

/// An MCP server in shell: `echo` returns its arguments and its `_meta`, `wrong` fails, `draw` returns an image and a resource, `quit` ends the server.
const SERVER: &str = r#"
while IFS= read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  reply() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
  case "$line" in
    *'"method":"initialize"'*)
      reply '{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"sh","version":"1"}}' ;;
    *'"method":"tools/list"'*)
      schema='{"type":"object","properties":{"word":{"type":"string"}},"required":["word"]}'
      any='{"type":"object"}'
      reply '{"tools":[{"name":"echo","description":"Echoes.","inputSchema":'"$schema"'},{"name":"wrong","inputSchema":'"$any"'},{"name":"quit","inputSchema":'"$any"'},{"name":"draw","inputSchema":'"$any"'}]}' ;;
    *'"name":"quit"'*) exit 0 ;;
    *'"name":"draw"'*)
      reply '{"content":[{"type":"image","data":"iVBORw0KGgo=","mimeType":"image/png"},{"type":"resource","resource":{"uri":"file:///x/notes.md","mimeType":"text/markdown","text":"Hi"}},{"type":"audio","data":"?","mimeType":"audio/wav"}]}' ;;
    *'"name":"wrong"'*) reply '{"content":[{"type":"text","text":"it went wrong"}],"isError":true}' ;;
    *'"method":"tools/call"'*)
      word=$(printf '%s' "$line" | sed -n 's/.*"word":"\([a-z]*\)".*/\1/p')
      call=$(printf '%s' "$line" | sed -n 's/.*"mainspring\/toolUseId":"\([A-Za-z0-9_-]*\)".*/\1/p')
      run=$(printf '%s' "$line" | sed -n 's/.*"mainspring\/runId":"\([a-z0-9_]*\)".*/\1/p')
      reply '{"content":[{"type":"text","text":"'"$word $call $run $SECRET$GIVEN"'"}]}' ;;
    *'"id":'*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}\n' "$id" ;;
  esac
done
"#;

fn program(folder: &Path) -> McpConfig {
    let path = folder.join("server.sh");
    std::fs::write(&path, SERVER).unwrap();
    McpConfig {
        command: Some("sh".into()),
        args: vec![path.display().to_string()],
        env: BTreeMap::from([("GIVEN".to_owned(), "given".to_owned())]),
        ..McpConfig::default()
    }
}

fn servers(config: McpConfig) -> McpServers {
    McpServers::new(&BTreeMap::from([("sh".to_owned(), config)]))
}

async fn world(servers: &McpServers, agents: Vec<&'static str>) -> World {
    let servers = servers.clone();
    let hooks = Box::new(|adapter: mainspring_agent::NativeAdapter| adapter.with_mcp(servers));
    Setup { hooks: Some(hooks), agents, ..Setup::default() }.start().await
}

#[tokio::test]
async fn images_and_resources_of_a_tool_are_attached_to_its_result() {
    let folder = tempfile::tempdir().unwrap();
    let servers = servers(program(folder.path()));
    let hooks = Box::new(|adapter: mainspring_agent::NativeAdapter| adapter.with_mcp(servers));
    let artifacts = Some(folder.path().join("artifacts"));
    let world = Setup { hooks: Some(hooks), artifacts, ..Setup::default() }.start().await;
    world.server.enqueue(Reply::tool("sh__draw", json!({})));
    world.server.enqueue(Reply::text("ok"));
    let run = world.run_prompt("go").await;
    assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
    let content = world.result_content(run.id).await;
    let files: Vec<_> = content
        .iter()
        .map(|block| match block {
            Block::Attachment { mime_type, name, .. } => {
                format!("{mime_type} {}", name.as_deref().unwrap_or("-"))
            }
            Block::Text { text } => text.clone(),
            other => format!("{other:?}"),
        })
        .collect();
    assert_eq!(
        files,
        ["Hi\n[audio/wav: the server sent invalid base64]", "image/png -", "text/markdown notes.md"]
    );
    // The request to the model names the files.
    let request = world.request_body(1).to_string();
    assert!(request.contains("[file notes.md: text/markdown, art_"), "{request}");
}

#[tokio::test]
async fn a_program_provides_tools_and_is_restarted_after_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let servers = servers(program(folder.path()));
    assert_eq!(servers.health().await["sh"], Health::Stopped);
    let world = world(&servers, vec![]).await;
    world.server.enqueue(
        Reply::tool("sh__echo", json!({"word": "hello"}))
            .and_tool("sh__echo", json!({"word": 7}))
            .and_tool("sh__wrong", json!({})),
    );
    world.server.enqueue(Reply::text("ok"));
    let run = world.run_prompt("go").await;
    assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
    assert_eq!(servers.health().await["sh"], Health::Running { tools: 4 });
    let results = world.tool_results(run.id).await;
    let call = world.steps(run.id).await[0].tool_calls[0].clone();
    // The server gets its own variables and the ids of the call and the run, and nothing of our environment.
    assert_eq!(results[0], (format!("hello {call} {} given", run.id), false));
    assert!(results[1].0.contains("do not match the schema of the tool sh__echo"), "{}", results[1].0);
    assert_eq!(results[2], ("it went wrong".to_owned(), true));
    let offered = world.request_body(0)["tools"].to_string();
    assert!(offered.contains("sh__echo") && offered.contains("Echoes."), "{offered}");

    world.server.enqueue(Reply::tool("sh__quit", json!({}))).enqueue(Reply::text("ok"));
    let run = world.run_prompt("end it").await;
    assert!(world.tool_results(run.id).await[0].1, "the call that ended the server failed");
    world.server.enqueue(Reply::tool("sh__echo", json!({"word": "again"}))).enqueue(Reply::text("ok"));
    let run = world.run_prompt("once more").await;
    assert!(
        world.tool_results(run.id).await[0].0.starts_with("again "),
        "{:?}",
        world.tool_results(run.id).await
    );
}

#[tokio::test]
async fn a_definition_gets_exactly_the_servers_it_names_and_fails_without_them() {
    let folder = tempfile::tempdir().unwrap();
    let missing = McpConfig { command: Some("/nowhere/nobody".into()), ..McpConfig::default() };
    let both = BTreeMap::from([("sh".to_owned(), program(folder.path())), ("gone".to_owned(), missing)]);
    let servers = McpServers::new(&both);
    let agents = vec![
        "id = \"needs\"\nmcp = [\"gone\"]",
        "id = \"has\"\nmcp = [\"sh\"]\ntools = [\"sh__e*\"]",
        "id = \"none\"\nmcp = []",
    ];
    let world = world(&servers, agents).await;
    let run = world.run_prompt_as("has@1", "say hi").await;
    assert_eq!(run.state.status(), RunStatus::Succeeded);
    let names = |n: usize| {
        let tools = world.request_body(n)["tools"].as_array().cloned().unwrap_or_default();
        tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(0), ["sh__echo"]);
    world.run_prompt_as("none@1", "say hi").await;
    assert!(!names(1).iter().any(|name| name.contains("__")));
    // An agent that names no server gets all servers that start, and the run reports the others.
    let run = world.run_prompt("say hi").await;
    assert_eq!(run.state.status(), RunStatus::Succeeded);
    assert!(names(2).contains(&"sh__quit".to_owned()));
    let events = format!("{:?}", world.event_bodies(run.id).await);
    assert!(events.contains("the MCP server \\\"gone\\\" cannot be used"), "{events}");
    assert!(matches!(servers.health().await["gone"], Health::Failed { .. }));

    let requests = world.server.counts().received;
    let run = {
        let new = mainspring_kernel::kernel::NewSession {
            agent_definition: Some("needs@1".into()),
            ..mainspring_kernel::kernel::NewSession::default()
        };
        let mut request = mainspring_kernel::kernel::RunRequest::text("needy", "say hi");
        request.session.new = new;
        world.send(request).await
    };
    world.wait_event(run.id, "attempt.failed", 1).await;
    let failed = format!("{:?}", world.event_bodies(run.id).await);
    assert!(failed.contains("mcp_unavailable"), "{failed}");
    assert_eq!(world.server.counts().received, requests, "the model was not called");
}

#[tokio::test]
async fn a_server_over_http_provides_tools() {
    use axum::Json;
    use axum::response::IntoResponse;
    let answer = |Json(request): Json<serde_json::Value>| async move {
        let result = match request["method"].as_str().unwrap_or_default() {
            "initialize" => json!({
                "protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                "serverInfo": {"name": "web", "version": "1"},
            }),
            "tools/list" => json!({"tools": [{"name": "twice", "inputSchema": {"type": "object"}}]}),
            "tools/call" => {
                let n = request["params"]["arguments"]["n"].as_i64().unwrap_or_default();
                json!({"content": [], "structuredContent": {"n": n * 2}})
            }
            _ if request.get("id").is_none() => return axum::http::StatusCode::ACCEPTED.into_response(),
            _ => {
                let error = json!({"code": -32601, "message": "no such method"});
                return Json(json!({"jsonrpc": "2.0", "id": request["id"], "error": error})).into_response();
            }
        };
        Json(json!({"jsonrpc": "2.0", "id": request["id"], "result": result})).into_response()
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let router = axum::Router::new().route("/mcp", axum::routing::post(answer));
    let tasks = mainspring_kernel::tasks::Tasks::default();
    tasks.spawn(async move { axum::serve(listener, router).await });
    let world = world(&servers(McpConfig { url: Some(url), ..McpConfig::default() }), vec![]).await;
    world.server.enqueue(Reply::tool("sh__twice", json!({"n": 21}))).enqueue(Reply::text("ok"));
    let run = world.run_prompt("go").await;
    assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
    assert_eq!(world.tool_results(run.id).await, [("{\"n\":42}".to_owned(), false)]);
}

#[test]
fn a_server_has_either_a_command_or_a_url() {
    let error = |config: McpConfig| config.check().unwrap_err();
    let (command, url) = (Some("x".to_owned()), Some("http://x".to_owned()));
    assert!(error(McpConfig::default()).contains("give command"));
    assert!(error(McpConfig { command, url, ..McpConfig::default() }).contains("not both"));
    assert!(error(McpConfig { url: Some("x".into()), ..McpConfig::default() }).contains("http://"));
}

#[test]
fn the_mcp_server_of_mainspring_is_refused_as_a_server_of_its_own_agents() {
    let own = |command: &str, args: &[&str]| {
        let args = args.iter().map(ToString::to_string).collect();
        McpConfig { command: Some(command.into()), args, ..McpConfig::default() }.check()
    };
    for (command, args) in
        [("mainspring", &["mcp"][..]), ("/usr/bin/mainspring", &["mcp", "--owner", "eve"][..])]
    {
        assert!(own(command, args).unwrap_err().contains("built in"), "{command} {args:?}");
    }
    assert_eq!(own("mainspring-tools", &["mcp"]), Ok(()));
}

#[tokio::test]
async fn a_run_that_need_not_be_confined_records_that_nothing_confines_its_mcp_servers() {
    let folder = tempfile::tempdir().unwrap();
    let servers = servers(program(folder.path()));
    let world = world(&servers, vec![]).await;
    world.server.enqueue(Reply::text("hello"));
    let run = world.run_prompt("go").await;
    let attempts = world.kernel.run_attempts(&world.me, run.id).await.unwrap();
    let sandbox = attempts[0].sandbox.as_ref().expect("recorded");
    assert_eq!(sandbox.note.as_deref(), Some("nothing confines the MCP servers of this run: sh"));
    let (tools, problems) = servers.tools(&["*".to_owned()], true).await;
    assert_eq!(tools.iter().count(), 0);
    assert!(problems[0].contains("nothing confines it"), "{problems:?}");
}
