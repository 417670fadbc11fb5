//! The control tools over MCP, between a client and a server in one process.

use mainspring_client::{Client, NewKey, Prompt};
use mainspring_core::Position;
use mainspring_host::{Link, Successor, mcp};
use mainspring_http::HttpLimits;
use mainspring_system::ids::Ids;
use mainspring_test_support::{Listening, TOKEN, TestNode};
use rmcp::model::{CallToolRequestParams, CallToolResult};
use rmcp::service::RunningService;
use rmcp::{RoleClient, ServiceExt};
use serde_json::{Value, json};
use tokio::task::JoinSet;

struct World {
    client: Client,
    mcp: RunningService<RoleClient, ()>,
    _node: TestNode,
    _listening: Listening,
    serving: JoinSet<Result<(), String>>,
}

impl World {
    async fn start() -> Self {
        Self::of(TestNode::start().await).await
    }

    /// Serves the tools for the owner `ada`, with the token of the state directory.
    async fn of(node: TestNode) -> Self {
        let listening = node.listen().await;
        let client = Client::over_tcp(&listening.url(), TOKEN).unwrap();
        Self::with(node, listening, client, Some("ada")).await
    }

    async fn with(node: TestNode, listening: Listening, client: Client, owner: Option<&str>) -> Self {
        let (link, _) = Link::new(client.clone(), Successor::None);
        let ((near, far), mut serving) = (tokio::io::duplex(1 << 16), JoinSet::new());
        let (from, to) = tokio::io::split(far);
        let options = mcp::Options { owner: owner.map(str::to_owned), session: None };
        serving.spawn(mcp::serve(link, options, Ids::system(), from, to));
        let mcp = ().serve(tokio::io::split(near)).await.unwrap();
        let client = owner.map_or(client.clone(), |owner| client.for_owner(owner));
        Self { client, mcp, _node: node, _listening: listening, serving }
    }

    async fn call(&self, tool: &str, input: &Value) -> CallToolResult {
        let arguments = input.as_object().unwrap().clone();
        self.mcp
            .call_tool(CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments))
            .await
            .unwrap()
    }

    /// Calls a tool and returns its answer and whether it is an error.
    async fn answer(&self, tool: &str, input: &Value) -> (Value, bool) {
        let result = self.call(tool, input).await;
        let text = result.content[0].as_text().unwrap().text.clone();
        (serde_json::from_str(&text).unwrap(), result.is_error.unwrap_or(false))
    }
}

#[tokio::test]
async fn the_control_tools_are_listed_with_their_schemas_and_answer() {
    let world = World::start().await;
    let info = world.mcp.peer_info().unwrap();
    assert_eq!(info.server_info.as_ref().unwrap().name, "mainspring");
    let tools = world.mcp.list_all_tools().await.unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_ref()).collect();
    for name in
        ["list_agent_sessions", "get_agent_run", "send_agent_message", "delegate_agent", "cancel_agent_run"]
    {
        assert!(names.contains(&name), "{names:?}");
    }
    assert!(tools.iter().all(|tool| tool.input_schema.get("type") == Some(&json!("object"))), "{tools:?}");
    let run = world.client.run_create(&Prompt::text("a", "say hi")).await.unwrap().run;
    let (sent, is_error) =
        world.answer("send_agent_message", &json!({"sessionId": run.session, "prompt": "say again"})).await;
    assert_eq!((&sent["text"], is_error), (&json!("again\n"), false), "{sent}");
    let (listed, _) = world.answer("list_agent_sessions", &json!({})).await;
    assert_eq!(listed["sessions"][0]["session"]["omiSessionId"], json!(run.session), "{listed}");
}

#[tokio::test]
async fn a_wrong_call_is_an_error_for_the_model_and_an_unknown_tool_one_for_the_client() {
    let mut world = World::start().await;
    for (tool, input, code) in [
        ("get_agent_run", json!({}), "invalid_tool_input"),
        ("get_agent_run", json!({"runId": "run_00000000000040008000000000000000"}), "not_found"),
        ("list_agent_sessions", json!({"ownerId": "somebody else"}), "not_found"),
    ] {
        let (answer, is_error) = world.answer(tool, &input).await;
        assert_eq!((&answer["error"]["code"], is_error), (&json!(code), true), "{tool} {input}: {answer}");
    }
    let unknown = world.mcp.call_tool(CallToolRequestParams::new("no_such_tool")).await.unwrap_err();
    assert!(unknown.to_string().contains("no_such_tool"), "{unknown}");
    world.mcp.cancel().await.unwrap();
    assert_eq!(world.serving.join_next().await.unwrap().unwrap(), Ok(()), "the server ends with its client");
}

#[tokio::test]
async fn a_message_is_answered_while_no_further_stream_may_be_open() {
    let limits = HttpLimits { streams: 1, ..HttpLimits::default() };
    let world = World::of(TestNode::builder().limits(limits).start().await).await;
    let run = world.client.run_create(&Prompt::text("a", "say hi")).await.unwrap().run;
    let mut stream = world.client.session_events(&run.session.to_string(), Position::START);
    stream.next().await.unwrap().unwrap();
    let (sent, is_error) =
        world.answer("send_agent_message", &json!({"sessionId": run.session, "prompt": "say again"})).await;
    assert_eq!((&sent["text"], is_error), (&json!("again\n"), false), "{sent}");
}

#[tokio::test]
async fn the_owner_of_an_api_key_may_be_named() {
    let node = TestNode::start().await;
    let listening = node.listen().await;
    let admin = Client::over_tcp(&listening.url(), TOKEN).unwrap().for_owner("bob");
    let new: NewKey = serde_json::from_value(json!({"name": "ci"})).unwrap();
    let secret = admin.key_create(&new, None).await.unwrap().secret.unwrap();
    let client = Client::over_tcp(&listening.url(), &secret).unwrap();
    let world = World::with(node, listening, client, None).await;
    world.client.run_create(&Prompt::text("a", "say hi")).await.unwrap();
    let (listed, is_error) = world.answer("list_agent_sessions", &json!({"ownerId": "bob"})).await;
    assert_eq!((listed["sessions"].as_array().map(Vec::len), is_error), (Some(1), false), "{listed}");
    let (refused, is_error) = world.answer("list_agent_sessions", &json!({"ownerId": "ann"})).await;
    assert_eq!((&refused["error"]["code"], is_error), (&json!("not_found"), true), "{refused}");
}
