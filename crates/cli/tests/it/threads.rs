//! The threads API with the Rust client. `crates/cli/tests/threads` drives it with the real Python package.

use mainspring_client::Client;
use mainspring_client::threads::{
    AgentContent, AgentMessage, AgentThreadStatus, ClientToolResult, ClientToolResultStatus, ClientToolSpec,
    CreateAgentRequest, LaunchAgentRequest, SendMessageRequest, StartAgentThreadRequest,
    SubmitToolResultsRequest,
};
use serde_json::json;

use crate::http::Server;

fn server() -> Server {
    let dir = tempfile::tempdir().unwrap();
    let config = "threads = true\n[models.main_reasoner]\nprovider = \"scripted\"\nmodel = \"any\"\n";
    let file = dir.path().join("threads.toml");
    std::fs::write(&file, config).unwrap();
    let file = file.to_str().unwrap().to_owned();
    Server::start_in(dir.into(), &[("MAINSPRING_CONFIG", &file)])
}

fn start(text: &str) -> StartAgentThreadRequest {
    StartAgentThreadRequest { messages: vec![AgentMessage::text(text)], ..StartAgentThreadRequest::default() }
}

#[tokio::test]
async fn the_rust_client_holds_a_conversation_with_client_tools() {
    let server = server();
    let client = Client::over_tcp(&server.url, &server.token).unwrap();
    let threads = client.threads();
    let tool = ClientToolSpec {
        name: "client_add".into(),
        description: "Adds.".into(),
        input_schema: json!({"type": "object"}).as_object().unwrap().clone(),
    };
    let request =
        StartAgentThreadRequest { client_tools: Some(vec![tool]), ..start("tool client_add {}; say done") };
    let mut thread = threads.start(&request).await.unwrap();
    threads.follow(&mut thread).await.unwrap();
    assert_eq!(thread.status, AgentThreadStatus::ClientToolTurn);
    let call = thread.messages[1].content.iter().find_map(|block| match block {
        AgentContent::ToolUse(call) => Some(call.clone()),
        _ => None,
    });
    let call = call.unwrap();
    let result = ClientToolResult {
        tool_use_id: call.tool_use_id,
        tool_name: call.tool_name,
        runtime_ms: 3,
        status: ClientToolResultStatus::Success,
        output: json!({"sum": 3}).as_object().cloned(),
    };
    let results = SubmitToolResultsRequest { tool_results: vec![result], client_tools: None };
    threads.submit(&thread.thread_id, &results).await.unwrap();
    threads.follow(&mut thread).await.unwrap();
    assert_eq!(thread.status, AgentThreadStatus::UserTurn);
    assert_eq!(thread.messages.last().unwrap().all_text().trim(), "done");
    assert!(thread.messages.iter().all(AgentMessage::is_complete));

    let send =
        SendMessageRequest { message: Some(AgentMessage::text("say more")), ..SendMessageRequest::default() };
    threads.send(&thread.thread_id, &send).await.unwrap();
    threads.follow(&mut thread).await.unwrap();
    let whole = threads.get(&thread.thread_id).await.unwrap();
    assert_eq!(whole.messages.len(), 6);
    let mut late = threads.get_head(&thread.thread_id).await.unwrap();
    assert_eq!(late.messages, []);
    threads.follow(&mut late).await.unwrap();
    assert_eq!((late.messages, late.continuation_token), (whole.messages.clone(), whole.continuation_token));
    assert_eq!(whole.messages.last().unwrap().all_text(), thread.messages.last().unwrap().all_text());
    let error = threads.delta(&thread.thread_id, "wrong").await.unwrap_err();
    assert_eq!(error.code(), "RobotoInvalidRequestException");
}

#[tokio::test]
async fn the_rust_client_launches_an_agent() {
    let server = server();
    let client = Client::over_tcp(&server.url, &server.token).unwrap();
    let threads = client.threads();
    let template = serde_json::to_value(start("say {{word}}")).unwrap();
    let new = CreateAgentRequest {
        name: "speaker / 1".into(),
        description: None,
        request_template: template.as_object().unwrap().clone(),
        variables: serde_json::from_value(json!([{"name": "word", "type": "string"}])).unwrap(),
    };
    let agent = threads.agent_create(&new).await.unwrap();
    assert_eq!(threads.agent_find("speaker / 1").await.unwrap(), agent);
    let launch = LaunchAgentRequest {
        values: [("word".into(), "hello".into())].into(),
        ..LaunchAgentRequest::default()
    };
    let mut thread = threads.agent_launch(&agent.agent_id, &launch).await.unwrap();
    threads.follow(&mut thread).await.unwrap();
    assert_eq!(thread.messages[1].all_text().trim(), "hello");
    assert_eq!(thread.created_from_agent_id.as_deref(), Some(&*agent.agent_id));
    threads.agent_delete(&agent.agent_id).await.unwrap();
    assert_eq!(threads.agent_get(&agent.agent_id).await.unwrap_err().code(), "RobotoNotFoundException");
}
