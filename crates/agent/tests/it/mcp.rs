//! MCP servers: a program that speaks over its pipes, and a server that speaks HTTP.

use std::collections::BTreeMap;
use std::path::Path;

use mainspring_agent::tool::mcp::{Health, McpConfig, McpServers};
use mainspring_core::RunStatus;
use mainspring_model_server::Reply;
use serde_json::json;

use crate::world::{Setup, World};

/// A server in a few lines of shell: `echo` says its arguments and its `_meta` back, `wrong` fails, `quit` ends it.
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
      reply '{"tools":[{"name":"echo","description":"Echoes.","inputSchema":'"$schema"'},{"name":"wrong","inputSchema":'"$any"'},{"name":"quit","inputSchema":'"$any"'}]}' ;;
    *'"name":"quit"'*) exit 0 ;;
    *'"name":"wrong"'*) reply '{"content":[{"type":"text","text":"it went wrong"}],"isError":true}' ;;
    *'"method":"tools/call"'*)
      word=$(printf '%s' "$line" | sed -n 's/.*"word":"\([a-z]*\)".*/\1/p')
      call=$(printf '%s' "$line" | sed -n 's/.*"mainspring\/toolUseId":"\([A-Za-z0-9_-]*\)".*/\1/p')
      reply '{"content":[{"type":"text","text":"'"$word $call $SECRET$GIVEN"'"}]}' ;;
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
async fn a_program_offers_tools_and_is_started_again_after_its_end() {
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
    let run = world.play("go").await;
    assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
    assert_eq!(servers.health().await["sh"], Health::Running { tools: 3 });
    let results = world.results(run.id).await;
    let call = world.steps(run.id).await[0].tool_calls[0].clone();
    // It sees what it was given, the call's id, and nothing of our environment.
    assert_eq!(results[0], (format!("hello {call} given"), false));
    assert!(results[1].0.contains("do not fit the tool sh__echo"), "{}", results[1].0);
    assert_eq!(results[2], ("it went wrong".to_owned(), true));
    let offered = world.asked(0)["tools"].to_string();
    assert!(offered.contains("sh__echo") && offered.contains("Echoes."), "{offered}");

    world.server.enqueue(Reply::tool("sh__quit", json!({}))).enqueue(Reply::text("ok"));
    let run = world.play("end it").await;
    assert!(world.results(run.id).await[0].1, "its end is a failed call");
    world.server.enqueue(Reply::tool("sh__echo", json!({"word": "again"}))).enqueue(Reply::text("ok"));
    let run = world.play("once more").await;
    assert!(world.results(run.id).await[0].0.starts_with("again "), "{:?}", world.results(run.id).await);
}

#[tokio::test]
async fn what_a_definition_needs_must_be_there_and_what_it_does_not_name_it_has_not() {
    let folder = tempfile::tempdir().unwrap();
    let nobody = McpConfig { command: Some("/nowhere/nobody".into()), ..McpConfig::default() };
    let both = BTreeMap::from([("sh".to_owned(), program(folder.path())), ("gone".to_owned(), nobody)]);
    let servers = McpServers::new(&both);
    let agents = vec![
        "id = \"needs\"\nmcp = [\"gone\"]",
        "id = \"has\"\nmcp = [\"sh\"]\ntools = [\"sh__e*\"]",
        "id = \"none\"\nmcp = []",
    ];
    let world = world(&servers, agents).await;
    let run = world.play_as("has@1", "say hi").await;
    assert_eq!(run.state.status(), RunStatus::Succeeded);
    let names = |n: usize| {
        let tools = world.asked(n)["tools"].as_array().cloned().unwrap_or_default();
        tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(0), ["sh__echo"]);
    world.play_as("none@1", "say hi").await;
    assert!(!names(1).iter().any(|name| name.contains("__")));
    // Who names none has what there is, and the run says what is missing.
    let run = world.play("say hi").await;
    assert_eq!(run.state.status(), RunStatus::Succeeded);
    assert!(names(2).contains(&"sh__quit".to_owned()));
    let told = format!("{:?}", world.bodies(run.id).await);
    assert!(told.contains("the MCP server \\\"gone\\\" cannot be used"), "{told}");
    assert!(matches!(servers.health().await["gone"], Health::Failed { .. }));

    let asked = world.server.counts().received;
    let run = {
        let new = mainspring_kernel::kernel::NewSession {
            agent_definition: Some("needs@1".into()),
            ..mainspring_kernel::kernel::NewSession::default()
        };
        let mut request = mainspring_kernel::kernel::RunRequest::text("needy", "say hi");
        request.session.new = new;
        world.send(request).await
    };
    world.happens(run.id, "attempt.failed", 1).await;
    let failed = format!("{:?}", world.bodies(run.id).await);
    assert!(failed.contains("mcp_unavailable"), "{failed}");
    assert_eq!(world.server.counts().received, asked, "the model was not asked");
}

#[tokio::test]
async fn a_server_over_http() {
    use axum::Json;
    use axum::response::IntoResponse;
    let answer = |Json(asked): Json<serde_json::Value>| async move {
        let result = match asked["method"].as_str().unwrap_or_default() {
            "initialize" => json!({
                "protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                "serverInfo": {"name": "web", "version": "1"},
            }),
            "tools/list" => json!({"tools": [{"name": "twice", "inputSchema": {"type": "object"}}]}),
            "tools/call" => {
                let n = asked["params"]["arguments"]["n"].as_i64().unwrap_or_default();
                json!({"content": [], "structuredContent": {"n": n * 2}})
            }
            _ if asked.get("id").is_none() => return axum::http::StatusCode::ACCEPTED.into_response(),
            _ => {
                let error = json!({"code": -32601, "message": "no such method"});
                return Json(json!({"jsonrpc": "2.0", "id": asked["id"], "error": error})).into_response();
            }
        };
        Json(json!({"jsonrpc": "2.0", "id": asked["id"], "result": result})).into_response()
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let router = axum::Router::new().route("/mcp", axum::routing::post(answer));
    let tasks = mainspring_kernel::tasks::Tasks::default();
    tasks.spawn(async move { axum::serve(listener, router).await });
    let world = world(&servers(McpConfig { url: Some(url), ..McpConfig::default() }), vec![]).await;
    world.server.enqueue(Reply::tool("sh__twice", json!({"n": 21}))).enqueue(Reply::text("ok"));
    let run = world.play("go").await;
    assert_eq!(run.state.status(), RunStatus::Succeeded, "{:?}", run.state);
    assert_eq!(world.results(run.id).await, [("{\"n\":42}".to_owned(), false)]);
}

#[test]
fn a_server_is_a_program_or_an_address() {
    let wrong = |config: McpConfig| config.check().unwrap_err();
    let (command, url) = (Some("x".to_owned()), Some("http://x".to_owned()));
    assert!(wrong(McpConfig::default()).contains("give command"));
    assert!(wrong(McpConfig { command, url, ..McpConfig::default() }).contains("not both"));
    assert!(wrong(McpConfig { url: Some("x".into()), ..McpConfig::default() }).contains("http://"));
}
