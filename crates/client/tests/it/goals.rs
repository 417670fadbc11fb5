//! Goal types, the goals of a session, feedback on messages, and the ways to sign in.

use mainspring_client::{AgentScope, MessageListQuery, OidcAnswer};
use mainspring_core::{GoalType, NewFeedback, Sentiment};
use serde_json::json;

use crate::world::{World, code};

#[tokio::test]
async fn a_goal_type_is_created_and_read_by_name() {
    let World { client, .. } = &World::start().await;
    let schema = json!({"type": "object", "required": ["n"]});
    let count = GoalType { name: "count".into(), description: "Counts.".into(), schema, data_schema: None };
    let made = client.goal_type_create(&count).await.unwrap();
    assert_eq!((&made.goal_type, made.scope), (&count, AgentScope::Owner));
    assert_eq!(client.goal_type_get("count").await.unwrap(), made);
    assert!(client.goal_type_list().await.unwrap().items.contains(&made));
    assert!(client.clone().for_owner("ben").goal_type_get("count").await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn a_snapshot_of_goals_holds_only_changes() {
    let world = World::start().await;
    world.play("a", "say hi").await;
    let first = world.client.session_goals("a", None).await.unwrap();
    assert_eq!(first.goals, Some(vec![]));
    let later = world.client.session_goals("a", Some(first.cursor.0)).await.unwrap();
    assert_eq!((later.goals, later.tasks), (None, None));
}

#[tokio::test]
async fn feedback_is_replaced_by_later_feedback_of_the_same_reader() {
    let world = World::start().await;
    world.play("a", "say hi").await;
    let messages = world.client.session_messages("a", &MessageListQuery::default()).await.unwrap().items;
    let answer = messages[1].id;
    let new = NewFeedback { sentiment: Sentiment::Positive, categories: vec![], notes: Some("good".into()) };
    let given = world.client.feedback_give("a", answer, &new).await.unwrap();
    assert_eq!((given.message, given.notes.as_deref()), (answer, Some("good")));
    let better = NewFeedback { notes: Some("very good".into()), ..new };
    let replaced = world.client.feedback_give("a", answer, &better).await.unwrap();
    assert_eq!(replaced.id, given.id);
    assert_eq!(world.client.feedback_list("a").await.unwrap().items, [replaced]);
}

#[tokio::test]
async fn a_server_without_an_identity_provider_says_so() {
    let World { client, .. } = &World::start().await;
    assert_eq!(client.sign_in_ways().await.unwrap().oidc, None);
    let answer = OidcAnswer { code: "c".into(), verifier: "v".repeat(43), nonce: "n".repeat(16) };
    assert_eq!(
        code(client.sign_in_exchange(&answer).await),
        "authentication",
        "only a browser may exchange the answer"
    );
}
