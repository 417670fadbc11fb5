//! Messages of a program that runs its turns itself.

use mainspring_client::{
    MessageAppend, MessageListQuery, PromptContent, ResultMessage, ResultsAppend, SessionTarget,
};
use mainspring_core::Role;

use crate::world::{World, code};

#[tokio::test]
async fn a_turn_of_another_program_is_appended_once() {
    let world = World::start().await;
    let client = &world.client;
    client.session_resolve(&SessionTarget::key("a"), None).await.unwrap();
    let said = MessageAppend::text("m1", "hello");
    let message = client.message_append("a", &said).await.unwrap();
    assert_eq!(client.message_append("a", &said).await.unwrap(), message);
    let answer = ResultMessage::new(Role::Assistant, PromptContent::Text("hi".into()));
    let turn = ResultsAppend {
        id: "t1".into(),
        beneath: Some("m1".into()),
        messages: vec![answer],
        agent: Some("greeter".into()),
        usage: None,
    };
    let appended = client.results_append("a", &turn).await.unwrap();
    assert_eq!(client.results_append("a", &turn).await.unwrap(), appended);
    let path = client.session_messages("a", &MessageListQuery::default()).await.unwrap().items;
    assert_eq!(path, [vec![message], appended.messages].concat());
    assert_eq!(path[1].agent.as_deref(), Some("greeter"));
    let late = ResultsAppend { id: "t2".into(), ..turn };
    assert_eq!(code(client.results_append("a", &late).await), "not_at_tip");
}
