//! The threads API through its client. `crates/cli/tests/threads` drives it with the real Python package.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use mainspring_agent::tool::Toolbox;
use mainspring_agent::{Definitions, Models, NativeAdapter, NativeCatalog};
use mainspring_client::threads::{
    AgentContent, AgentMessage, AgentThreadRecord, AgentThreadStatus, ClientToolResult,
    ClientToolResultStatus, ClientToolSpec, CreateAgentRequest, ForkAgentThreadRequest, LaunchAgentRequest,
    SearchThreadsRequest, SendMessageRequest, StartAgentThreadRequest, SubmitFeedbackRequest,
    SubmitToolResultsRequest, ThreadVisibility, UpdateAgentRequest,
};
use mainspring_client::{Client, NewKey, RunListQuery};
use mainspring_core::{RunStatus, Sentiment};
use mainspring_model_server::{ModelServer, Protocol};
use mainspring_test_support::TestNode;
use serde_json::json;

use crate::world::{World, code};

/// Starts a node with the threads API. Its native agent follows its prompts as scripts.
async fn start_world() -> (World, ModelServer) {
    let model_server = ModelServer::start().await.unwrap();
    let config = format!(
        "[providers.acme]\nkind = \"anthropic\"\nbase_url = \"{}\"\n\
         [models.main_reasoner]\nprovider = \"acme\"\nmodel = \"any\"\n",
        model_server.base_url(Protocol::Anthropic)
    );
    let models = Models::new(&toml::from_str(&config).unwrap()).unwrap();
    let definitions = Arc::new(Definitions::new(None));
    let adapter = NativeAdapter::new(models.clone(), Toolbox::default(), definitions.clone());
    let catalog = NativeCatalog::new(definitions, models).describing(adapter.clone());
    let node = TestNode::builder().system_clock().adapter(adapter);
    let node = node.options(|options| options.agents = Arc::new(catalog));
    (World::with(node.edge(|http| http.with_threads(true))).await, model_server)
}

fn start(text: &str) -> StartAgentThreadRequest {
    StartAgentThreadRequest { messages: vec![AgentMessage::text(text)], ..StartAgentThreadRequest::default() }
}

/// Starts a thread and waits for the end of its first turn.
async fn play(client: &Client, text: &str) -> AgentThreadRecord {
    let threads = client.threads();
    let mut thread = threads.start(&start(text)).await.unwrap();
    threads.follow(&mut thread).await.unwrap();
    thread
}

#[tokio::test]
async fn a_conversation_with_client_tools() {
    let (world, _model_server) = start_world().await;
    let threads = world.client.threads();
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
async fn an_agent_is_launched() {
    let (world, _model_server) = start_world().await;
    let threads = world.client.threads();
    let template = serde_json::to_value(start("say {{word}}")).unwrap();
    let new = CreateAgentRequest {
        name: "speaker / 1".into(),
        description: None,
        request_template: template.as_object().unwrap().clone(),
        variables: serde_json::from_value(json!([{"name": "word", "type": "string"}])).unwrap(),
    };
    let agent = threads.agent_create(&new).await.unwrap();
    assert_eq!(threads.agent_find("speaker / 1").await.unwrap(), agent);
    let change =
        UpdateAgentRequest { description: Some(Some("Speaks.".into())), ..UpdateAgentRequest::default() };
    let agent = threads.agent_update(&agent.agent_id, &change).await.unwrap();
    assert_eq!(agent.description.as_deref(), Some("Speaks."));
    let listed = threads.agent_list(None).await.unwrap();
    assert_eq!((listed.items, listed.next_token), (vec![agent.clone()], None));
    assert!(threads.agent_list(Some("wrong")).await.is_err(), "the token of a page is sent");
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

#[tokio::test]
async fn threads_are_listed_searched_and_deleted() {
    let (world, _model_server) = start_world().await;
    let threads = world.client.threads();
    let ids = |items: Vec<AgentThreadRecord>| -> BTreeSet<String> {
        items.into_iter().map(|thread| thread.thread_id).collect()
    };
    let violet = play(&world.client, "say violet").await.thread_id;
    let orange = play(&world.client, "say orange").await.thread_id;
    let both = BTreeSet::from([violet.clone(), orange.clone()]);
    let all = threads.list(None).await.unwrap();
    assert_eq!((ids(all.items), all.next_token), (both.clone(), None));
    let words = SearchThreadsRequest { query: Some("violet".into()), ..SearchThreadsRequest::default() };
    assert_eq!(ids(threads.search(&words).await.unwrap().items), BTreeSet::from([violet.clone()]));
    let newest = SearchThreadsRequest { limit: Some(1), ..SearchThreadsRequest::default() };
    let first = threads.search(&newest).await.unwrap();
    let rest = threads.list(first.next_token.as_deref()).await.unwrap();
    assert_eq!((first.items.len(), rest.items.len()), (1, 1));
    assert_eq!(ids([first.items, rest.items].concat()), both);

    threads.delete(&orange).await.unwrap();
    assert_eq!(code(threads.get(&orange).await), "RobotoNotFoundException");
    assert_eq!(ids(threads.list(None).await.unwrap().items), BTreeSet::from([violet]));
}

#[tokio::test]
async fn a_thread_is_pinned_shown_to_its_org_and_forked() {
    let (world, _model_server) = start_world().await;
    let key = NewKey {
        name: "ada".into(),
        owner_id: Some("ada".into()),
        org_id: Some("acme".into()),
        ..NewKey::default()
    };
    let key = world.client.key_create(&key, None).await.unwrap();
    let ada = Client::over_tcp(&world.listening.url(), key.secret.as_deref().unwrap()).unwrap();
    let threads = ada.threads();
    let thread = play(&ada, "say first").await.thread_id;
    let thread = threads.get(&thread).await.unwrap();
    for pinned in [true, false] {
        threads.set_pinned(&thread.thread_id, pinned).await.unwrap();
        let listed = threads.list(None).await.unwrap().items;
        assert_eq!(listed[0].pinned_at.is_some(), pinned);
    }
    for visibility in [ThreadVisibility::Org, ThreadVisibility::Private] {
        threads.set_visibility(&thread.thread_id, visibility).await.unwrap();
        assert_eq!(threads.get(&thread.thread_id).await.unwrap().visibility, visibility);
    }
    let send = SendMessageRequest {
        message: Some(AgentMessage::text("say second")),
        ..SendMessageRequest::default()
    };
    threads.send(&thread.thread_id, &send).await.unwrap();
    let fork = ForkAgentThreadRequest { message_sequence_num: 1 };
    let fork = threads.fork(&thread.thread_id, &fork).await.unwrap();
    assert_eq!(fork.forked_from_thread_id.as_deref(), Some(&*thread.thread_id));
    assert_eq!(fork.forked_from_message_sequence_num, Some(1));
    assert_eq!(fork.messages, thread.messages);
}

#[tokio::test]
async fn feedback_on_a_message_replaces_earlier_feedback() {
    let (world, _model_server) = start_world().await;
    let threads = world.client.threads();
    let thread = play(&world.client, "say first").await;
    let good = SubmitFeedbackRequest {
        sentiment: Sentiment::Positive,
        categories: None,
        notes: Some("good".into()),
    };
    let first = threads.give_feedback(&thread.thread_id, 1, &good).await.unwrap();
    assert_eq!((first.message_sequence_num, first.sentiment), (1, Sentiment::Positive));
    assert_eq!((first.notes.as_deref(), &first.thread_id), (Some("good"), &thread.thread_id));
    let bad = SubmitFeedbackRequest { sentiment: Sentiment::Negative, categories: None, notes: None };
    let second = threads.give_feedback(&thread.thread_id, 1, &bad).await.unwrap();
    assert_eq!(
        (second.feedback_id, second.sentiment, second.notes),
        (first.feedback_id, Sentiment::Negative, None)
    );
    assert_eq!(code(threads.give_feedback(&thread.thread_id, 2, &bad).await), "RobotoNotFoundException");
}

#[tokio::test]
async fn a_turn_is_cancelled() {
    let (world, _model_server) = start_world().await;
    let threads = world.client.threads();
    let mut thread = threads.start(&start("say half; hang")).await.unwrap();
    threads.cancel(&thread.thread_id).await.unwrap();
    threads.follow(&mut thread).await.unwrap();
    assert_eq!(thread.status, AgentThreadStatus::UserTurn);
    let runs = world.client.run_list(&RunListQuery::default()).await.unwrap().items;
    assert_eq!(runs.iter().map(|run| run.state.status()).collect::<Vec<_>>(), [RunStatus::Cancelled]);
}

#[tokio::test]
async fn the_model_profiles_are_listed() {
    let (world, _model_server) = start_world().await;
    let profiles = world.client.threads().profiles().await.unwrap();
    let [profile] = &profiles[..] else { panic!("{profiles:?}") };
    assert_eq!(
        (&*profile.id, &*profile.description, profile.is_default),
        ("main_reasoner", "acme/any", true)
    );
}

/// The method of the client for an operation of the threads API.
fn method_of(operation: &str) -> &str {
    match operation {
        "thread_results" => "submit",
        "thread_visibility" => "set_visibility",
        "thread_pin" => "set_pinned",
        "thread_feedback" => "give_feedback",
        other => other.strip_prefix("thread_").unwrap(),
    }
}

#[test]
fn every_operation_has_a_method_that_a_test_calls() {
    let operations = mainspring_http::thread_operations();
    assert!(operations.len() >= 21, "there are {} operations", operations.len());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap();
    let (client, tests) = (read("src/thread_client.rs"), read("tests/it/threads.rs"));
    for method in operations.into_iter().map(method_of) {
        assert!(client.contains(&format!("pub async fn {method}(")), "the client has no method {method}");
        assert!(
            tests.contains(&format!("threads.{method}(")) || tests.contains(&format!("threads().{method}(")),
            "no test calls {method}"
        );
    }
}
