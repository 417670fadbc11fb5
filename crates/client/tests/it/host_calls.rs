//! Tools that a host runs.

use mainspring_client::{HostCallQuery, HostCallResult, Prompt, PromptContent, SessionTarget};
use mainspring_kernel::adapter::{AttemptHandle, Capabilities, End, Executed};
use serde_json::json;

use crate::world::{World, code};

/// An agent that calls a tool of its host and answers with the result.
async fn call(attempt: AttemptHandle) -> Executed {
    let result = attempt.call_host("c", "lookup", json!({"of": "sky"})).await.unwrap();
    attempt.delta(0, &result.to_string()).unwrap();
    End::succeeded()
}

#[tokio::test]
async fn a_host_answers_the_calls_of_its_own_runs() {
    let world = World::with_agent(Capabilities::minimal("agent"), call).await;
    let (host, other) = (world.client.clone().for_host("one"), world.client.clone().for_host("two"));
    assert_eq!(code(world.client.host_call_list(&HostCallQuery::default()).await), "invalid_request");
    let prompt = Prompt {
        session: SessionTarget { key: Some("a".into()), ..SessionTarget::default() },
        prompt: Some(PromptContent::Text("go".into())),
        adapter: Some("agent".into()),
        ..Prompt::default()
    };
    let run = host.run_create(&prompt).await.unwrap().run;
    let query = HostCallQuery { after: None, wait_ms: Some(30_000) };
    let calls = host.host_call_list(&query).await.unwrap();
    assert_eq!((calls.len(), calls[0].run_id, calls[0].name.as_str()), (1, run.id, "lookup"));
    assert_eq!(other.host_call_list(&HostCallQuery::default()).await.unwrap(), []);
    let result = HostCallResult { no: calls[0].no, result: json!("blue") };
    assert!(!other.host_call_answer(&result).await.unwrap(), "another host cannot answer the call");
    assert!(host.host_call_answer(&result).await.unwrap());
    assert!(!host.host_call_answer(&result).await.unwrap(), "answered already");
}
