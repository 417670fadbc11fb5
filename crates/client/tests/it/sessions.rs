//! Sessions: resolved, listed, changed, pruned, exported and deleted.

use mainspring_client::{
    AgentChange, AgentSource, EventsQuery, Fork, LiveStatus, MessageListQuery, NewName, NewTool, Opening,
    Scope, SessionListQuery, SessionPatch, SessionTarget,
};
use mainspring_core::{Block, Body, GivenMessage, Position, Role, SessionStatus};
use serde_json::json;

use crate::world::{World, bytes, code};

#[tokio::test]
async fn a_session_is_found_or_created_and_new_and_load_are_enforced() {
    let World { client, .. } = &World::start().await;
    let target = SessionTarget { title: Some("Tea".into()), ..SessionTarget::key("a") };
    let created = client.session_resolve(&target, Some("once")).await.unwrap();
    assert_eq!((created.opening, created.session.title.as_deref()), (Opening::Created, Some("Tea")));
    let again = client.session_resolve(&target, Some("once")).await.unwrap();
    assert_eq!((again.opening, again.session.id), (Opening::Existing, created.session.id));
    let other = SessionTarget { title: Some("Coffee".into()), ..SessionTarget::key("a") };
    assert_eq!(code(client.session_resolve(&other, Some("once")).await), "request_conflict");

    let load = |name: &str| SessionTarget { load: Some(name.into()), ..SessionTarget::default() };
    let loaded = client.session_resolve(&load("a"), None).await.unwrap();
    assert_eq!((loaded.session.id, loaded.options.is_some()), (created.session.id, true));
    assert_eq!(code(client.session_resolve(&load("nobody"), None).await), "not_found");
    let new = SessionTarget { new: Some(NewName::Key("a".into())), ..SessionTarget::default() };
    assert_eq!(code(client.session_resolve(&new, None).await), "already_exists");
    assert_eq!(client.session_get("a").await.unwrap(), loaded.session);
}

#[tokio::test]
async fn the_usage_of_a_session_is_the_sum_of_its_runs() {
    let world = World::start().await;
    world.play("a", "usage 3 4 0.5; say one").await;
    world.play("a", "usage 1 2 0.25; say two").await;
    let sum = world.client.session_usage("a").await.unwrap();
    assert_eq!((sum.usage.input_tokens, sum.usage.output_tokens), (4, 6));
}

#[tokio::test]
async fn sessions_are_listed_by_page_with_their_latest_runs() {
    let world = World::start().await;
    let client = &world.client;
    let run = world.play("a", "say hi").await;
    world.node.clock.advance(1);
    client.session_resolve(&SessionTarget::key("b"), None).await.unwrap();
    let first = SessionListQuery { limit: Some(1), ..SessionListQuery::default() };
    let page = client.session_list(&first).await.unwrap();
    assert_eq!((page.items[0].session.key.as_deref(), &page.items[0].latest_run), (Some("b"), &None));
    let rest = client.session_list(&SessionListQuery { before: page.next, ..first }).await.unwrap();
    assert_eq!(rest.items[0].latest_run.as_ref().map(|run| run.id), Some(run.id));
    let org = SessionListQuery { scope: Some(Scope::Org), ..SessionListQuery::default() };
    assert_eq!(code(client.session_list(&org).await), "invalid_request", "the token belongs to no org");
}

#[tokio::test]
async fn a_change_that_expects_an_older_version_is_refused() {
    let World { client, .. } = &World::start().await;
    let session = client.session_resolve(&SessionTarget::key("a"), None).await.unwrap().session;
    let patch = SessionPatch {
        title: Some(Some("Tea".into())),
        pinned: Some(true),
        status: Some(SessionStatus::Archived),
        ..SessionPatch::default()
    };
    let changed = client.session_patch("a", &patch, Some(session.version)).await.unwrap();
    assert_eq!((changed.title.as_deref(), changed.status), (Some("Tea"), SessionStatus::Archived));
    assert!(changed.version > session.version);
    let clear = SessionPatch { title: Some(None), ..SessionPatch::default() };
    assert_eq!(code(client.session_patch("a", &clear, Some(session.version)).await), "version_conflict");
    assert_eq!(client.session_patch("a", &clear, None).await.unwrap().title, None);
}

#[tokio::test]
async fn a_snapshot_shows_the_active_run_and_a_busy_session_is_not_closed() {
    let world = World::start().await;
    let client = &world.client;
    let run = world.prompt("a", "ask Which?").await.run;
    world.question(run.id).await;
    let queued = world.prompt("a", "say later").await.run;
    let snapshot = client.session_snapshot("a").await.unwrap();
    assert_eq!(snapshot.active_run.unwrap().id, run.id);
    assert_eq!(snapshot.queued_runs.iter().map(|run| run.id).collect::<Vec<_>>(), [queued.id]);
    assert_eq!(snapshot.queued_prompts.iter().map(|prompt| prompt.text()).collect::<Vec<_>>(), ["say later"]);
    assert_eq!(code(client.session_close("a").await), "session_busy");
    client.run_cancel(queued.id).await.unwrap();
    client.run_cancel(run.id).await.unwrap();
    world.ended(run.id).await;
    assert!(client.session_close("a").await.unwrap().closed);
    assert!(!client.session_close("a").await.unwrap().closed, "it is not in memory any more");
}

#[tokio::test]
async fn compacted_events_are_gone_and_messages_stay() {
    let world = World::start().await;
    let client = &world.client;
    world.play("a", "say one").await;
    let all = client.session_events_page("a", &EventsQuery::default()).await.unwrap().items;
    let last = all.last().unwrap();
    assert!(matches!(last.body, Body::RunSucceeded { .. }), "{last:?}");
    let compacted = client.session_compact("a", last.position()).await.unwrap();
    assert_eq!(compacted.floor, all[all.len() - 2].position());
    let expired = client.session_events_page("a", &EventsQuery::after(Position::START, None)).await;
    assert!(expired.unwrap_err().is_cursor_expired());
    let kept = client.session_events_page("a", &EventsQuery::after(compacted.floor, Some(1))).await.unwrap();
    assert_eq!(kept.items, all[all.len() - 1..]);
    assert_eq!(client.session_snapshot("a").await.unwrap().messages.len(), 2);
}

#[tokio::test]
async fn an_exported_session_is_imported_where_it_does_not_exist() {
    let world = World::start().await;
    world.play("a", "say one").await;
    let file = bytes(world.client.session_export("a").await.unwrap()).await;
    assert_eq!(code(world.client.session_import(file.clone()).await), "already_exists");
    let elsewhere = World::start().await;
    let imported = elsewhere.client.session_import(file.clone()).await.unwrap();
    assert_eq!(imported.key.as_deref(), Some("a"));
    let texts = |snapshot: mainspring_client::Snapshot| {
        snapshot.messages.iter().map(|message| message.text()).collect::<Vec<_>>()
    };
    let there = elsewhere.client.session_snapshot("a").await.unwrap();
    assert_eq!(texts(there), texts(world.client.session_snapshot("a").await.unwrap()));
    let nowhere = World::start().await;
    let half = file[..file.len() / 2].to_vec();
    assert_eq!(code(nowhere.client.session_import(half).await), "invalid_import");
    assert!(
        nowhere.client.session_get("a").await.unwrap_err().is_not_found(),
        "a refused import leaves no session"
    );
}

#[tokio::test]
async fn deleting_a_session_returns_the_forks_that_keep_its_messages() {
    let world = World::start().await;
    let client = &world.client;
    let message_id = world.play("a", "say one").await.final_message.unwrap();
    let fork = Fork { message_id, key: Some("b".into()), title: None };
    let fork = client.session_fork("a", &fork, "fork").await.unwrap();
    assert_eq!(client.session_delete("a").await.unwrap().kept_for_forks, [fork.id]);
    assert!(client.session_get("a").await.unwrap_err().is_not_found());
    assert_eq!(client.session_delete("b").await.unwrap().kept_for_forks, []);
    assert!(client.session_delete("b").await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn the_agent_of_a_session_is_read_and_changed() {
    let world = World::start().await;
    let client = &world.client;
    world.play("a", "usage 3 4; say one").await;
    let rain = NewTool {
        description: "Says whether it rains.".into(),
        input_schema: json!({"type": "object"}),
        ..NewTool::default()
    };
    let session = client.session_tool_put("a", "rain", &rain).await.unwrap();
    assert_eq!(session.tools[0].name, "rain");
    let agent = client.session_agent("a").await.unwrap();
    assert_eq!((agent.adapter.as_str(), agent.agent_definition.from), ("script", AgentSource::Session));
    assert_eq!((agent.tools[0].tool.name.as_str(), agent.tools[0].from), ("rain", AgentSource::Session));
    assert_eq!(client.session_tool_delete("a", "rain").await.unwrap().tools, []);

    let hello = GivenMessage { role: Role::Assistant, content: vec![Block::text("Hello.")] };
    let change = AgentChange { messages: Some(Some(vec![hello])), ..AgentChange::default() };
    let stale = client.session_agent_set("a", &change, Some(1)).await;
    assert_eq!(code(stale), "version_conflict");
    let changed = client.session_agent_set("a", &change, None).await.unwrap();
    let messages = client.session_messages("a", &MessageListQuery::default()).await.unwrap().items;
    assert_eq!((messages.len(), Some(messages[0].id)), (1, changed.tip_message));
    let unfit = AgentChange { system_prompt: Some(Some("Be brief.".into())), ..AgentChange::default() };
    assert_eq!(code(client.session_agent_set("a", &unfit, None).await), "option_not_used");

    let view = client.session_view("a").await.unwrap();
    assert_eq!((view.live_status, view.current_step, view.usage.input_tokens), (LiveStatus::Idle, None, 3));
    let loaded = SessionListQuery { open: Some(true), ..SessionListQuery::default() };
    assert_eq!(client.session_list(&loaded).await.unwrap().items.len(), 1);
    client.session_close("a").await.unwrap();
    assert_eq!(client.session_list(&loaded).await.unwrap().items, []);
    let idle = SessionPatch { idle_unload_ms: Some(Some(5)), ..SessionPatch::default() };
    assert_eq!(client.session_patch("a", &idle, None).await.unwrap().idle_unload_ms, Some(5));
}

#[tokio::test]
async fn a_pin_does_not_change_the_version_of_the_session() {
    let World { client, .. } = &World::start().await;
    let session = client.session_resolve(&SessionTarget::key("a"), None).await.unwrap().session;
    let pinned = client.session_pin("a").await.unwrap();
    assert!(pinned.pinned && pinned.pinned_at.is_some());
    assert_eq!((pinned.version, pinned.updated_at), (session.version, session.updated_at));
    assert!(client.session_get("a").await.unwrap().pinned);
    let snapshot = client.session_snapshot("a").await.unwrap();
    assert!(snapshot.session.pinned);
    assert_eq!(client.session_unpin("a").await.unwrap(), session);
    assert_eq!(client.session_unpin("a").await.unwrap(), session, "nothing is left to remove");
}
