//! The server itself, and the events of all sessions.

use mainspring_client::{
    AuditKind, AuditListQuery, FeedItem, LiveChange, NewKey, OwnerEventsQuery, OwnerItem,
};
use mainspring_core::{Body, Position};

use crate::world::World;

#[tokio::test]
async fn the_server_describes_itself() {
    let World { client, .. } = &World::start().await;
    assert_eq!(client.health().await.unwrap().status, "ok");
    assert_eq!(client.ready().await.unwrap(), client.health().await.unwrap());
    assert!(client.openapi().await.unwrap()["paths"]["/v1/runs"].is_object());
    assert!(client.metrics().await.unwrap().contains("mainspring_runs{"));
}

#[tokio::test]
async fn the_feed_begins_with_a_snapshot_and_reports_each_change() {
    let world = World::start().await;
    let mut feed = world.client.feed();
    let FeedItem::Snapshot(first) = feed.next().await.unwrap() else { panic!("no snapshot") };
    assert_eq!(first.sessions.len(), 0);
    let run = world.prompt("a", "say hi").await.run;
    let FeedItem::Change(LiveChange::Opened(session)) = feed.next().await.unwrap() else {
        panic!("the session was not announced")
    };
    assert_eq!(session.session_id, run.session);
    // A second reader begins with the session that is in memory by now.
    let FeedItem::Snapshot(again) = world.client.feed().next().await.unwrap() else { panic!("no snapshot") };
    assert_eq!(again.sessions[0].session_id, run.session);
}

fn runs_after(after: Position) -> OwnerEventsQuery {
    let (after, types) = (Some(after.to_string()), Some("run".into()));
    OwnerEventsQuery { after, types, ..OwnerEventsQuery::default() }
}

#[tokio::test]
async fn the_events_of_all_sessions_come_in_one_order_and_resume_at_a_position() {
    let world = World::start().await;
    let client = &world.client;
    let runs = [world.play("a", "say one").await.id, world.play("b", "say two").await.id];
    let mut events = client.owner_events(&runs_after(Position::START)).await.unwrap();
    let mut seen = vec![];
    let caught_up = loop {
        match events.next().await.unwrap().unwrap() {
            OwnerItem::Event(event) => seen.push(*event),
            OwnerItem::CaughtUp(position) => break position,
            OwnerItem::Store(_) | OwnerItem::Unknown => panic!("an unknown item"),
        }
    };
    assert!(seen.iter().all(|event| event.body.kind().starts_with("run.")), "{seen:?}");
    let ended: Vec<_> =
        seen.iter().filter(|event| event.body.ends_run()).map(|event| event.run.unwrap()).collect();
    assert_eq!(ended, runs);
    let query = OwnerEventsQuery { types: Some("run".into()), ..OwnerEventsQuery::default() };
    assert_eq!(client.owner_events_page(&query).await.unwrap().items, seen);

    let third = world.play("a", "say three").await;
    let mut later = client.owner_events(&runs_after(caught_up)).await.unwrap();
    let OwnerItem::Event(next) = later.next().await.unwrap().unwrap() else { panic!("no event") };
    assert!(matches!(next.body, Body::RunQueued { .. }) && next.run == Some(third.id), "{next:?}");
    assert_eq!(later.position().map(|position| position.cursor), Some(next.cursor));
    world.node.stop.cancel();
    while later.next().await.is_some() {}
}

#[tokio::test]
async fn the_audit_log_is_read_by_page_and_by_operation() {
    let world = World::start().await;
    let client = &world.client;
    let new = NewKey { name: "ci".into(), owner_id: Some("ada".into()), ..NewKey::default() };
    let made = client.key_create(&new, None).await.unwrap();
    client.key_revoke(made.key.id).await.unwrap();
    let query = AuditListQuery { kind: Some(AuditKind::Change), limit: Some(1), ..AuditListQuery::default() };
    let first = client.audit_list(&query).await.unwrap();
    let after = first.next.unwrap().parse().unwrap();
    let second = client.audit_list(&AuditListQuery { after: Some(after), ..query }).await.unwrap();
    let operations = [&first.items, &second.items].map(|items| items[0].operation.as_str());
    assert_eq!(operations, ["key_create", "key_revoke"]);
    let query = AuditListQuery { about: Some(made.key.id.to_string()), ..AuditListQuery::default() };
    assert_eq!(client.audit_list(&query).await.unwrap().items.len(), 2);
}

#[tokio::test]
async fn a_server_on_its_own_has_no_cluster() {
    let world = World::start().await;
    assert_eq!(world.client.cluster_status().await.unwrap(), mainspring_api::Cluster::default());
}
