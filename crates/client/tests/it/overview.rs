//! Waits, cards, usage, changes and the standard error of agents.

use mainspring_client::{
    ChangesQuery, ChangesState, DeadLetterQuery, NewWebhook, SessionListQuery, SessionView, UsageQuery,
    WaitListQuery,
};

use mainspring_core::{Cursor, WebhookId};

use crate::world::{World, code};

#[tokio::test]
async fn open_waits_and_cards_are_read_for_all_sessions() {
    let world = World::start().await;
    let run = world.prompt("a", "ask Which?").await.run;
    world.question(run.id).await;
    let waits = world.client.wait_list(&WaitListQuery::default()).await.unwrap().items;
    assert_eq!((waits.len(), waits[0].run_id, waits[0].wait.question.as_str()), (1, run.id, "Which?"));
    assert!(waits[0].may_answer);
    let cards =
        SessionListQuery { view: Some(SessionView::Cards), live: Some(true), ..SessionListQuery::default() };
    let cards = world.client.session_list(&cards).await.unwrap().items;
    assert!(cards[0].card.is_some());
}

#[tokio::test]
async fn usage_changes_and_the_standard_error_are_read() {
    let world = World::start().await;
    let run = world.play("a", "usage 3 4 0.5; tool nothing; say one").await;
    world.node.clock.advance(1);
    let by = |by: &str| UsageQuery { by: Some(by.into()), ..UsageQuery::default() };
    let report = world.client.usage_report(&by("agent")).await.unwrap();
    assert_eq!((report.total.runs, report.groups[0].agent.as_deref()), (1, Some("script")));
    assert_eq!(report.groups[0].usage.known_cost.usd(), Some(0.5));
    assert_eq!(code(world.client.usage_report(&by("week")).await), "invalid_request");
    let changes = world.client.session_changes("a", &ChangesQuery::default()).await.unwrap();
    assert_eq!((changes.state, changes.tool_calls), (ChangesState::Unknown, 1));
    let stderr = world.client.attempt_stderr(run.last_attempt.unwrap()).await.unwrap();
    assert_eq!((stderr.run_id, stderr.text), (run.id, None));
}

#[tokio::test]
async fn a_server_that_opens_no_addresses_says_so() {
    let world = World::start().await;
    assert_eq!(code(world.client.listener_open().await), "unavailable");
}

#[tokio::test]
async fn webhooks_are_listed_and_unknown_ones_are_not_found() {
    let world = World::start().await;
    let client = &world.client;
    let new = NewWebhook { url: "https://example.com/".into(), types: None };
    assert_eq!(code(client.webhook_create(&new).await), "unavailable", "this server delivers none");
    assert_eq!(client.webhook_list().await.unwrap().items, []);
    let id: WebhookId = "hook_00000000000040008000000000000000".parse().unwrap();
    assert_eq!(code(client.webhook_remove(id).await), "not_found");
    assert_eq!(code(client.webhook_test(id).await), "not_found");
    assert_eq!(code(client.webhook_dead(id, &DeadLetterQuery::default()).await), "not_found");
    assert_eq!(code(client.webhook_retry(id, Cursor(1)).await), "not_found");
}
