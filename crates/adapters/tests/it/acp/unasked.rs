//! Tool calls that an agent made without the permission that it should have requested.

use super::*;

/// A report of a call that has ended.
fn call(id: &str, kind: &str) -> String {
    format!(
        r#"report {{"sessionUpdate": "tool_call", "toolCallId": "{id}", "title": "{id}", "kind": "{kind}", "status": "completed", "rawInput": {{"x": 1}}}}"#
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_acts_without_asking_is_reported() {
    let prompt =
        ["execute", "edit", "delete", "move", "read", "search"].map(|kind| call(kind, kind)).join("; ");
    for (permissions, expected) in [
        (Permissions::Ask, &["execute", "edit", "delete", "move"][..]),
        (Permissions::Deny, &["execute", "edit", "delete", "move"]),
        (Permissions::Legacy, &[]),
    ] {
        let world = world_with("resume", |setup| setup.agent.permissions = permissions).await;
        world.answer_to("a", &prompt).await;
        let events = world.events("a").await;
        let unasked = events.iter().filter_map(|event| match &event.body {
            Body::ToolUnasked { name, .. } => Some(name.as_str()),
            _ => None,
        });
        assert_eq!(unasked.collect::<Vec<_>>(), expected, "{permissions:?}");
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_asked_for_is_not_reported() {
    let world = world("resume").await;
    let run = world.start("a", "bare rm x").await;
    let (wait, _) = world.wait_for_question(run).await;
    world.decide(run, wait, Approval::Allowed).await;
    world.wait_for_end(run).await;
    let events = world.events("a").await;
    assert!(!event_types(&events).contains(&"tool.unasked"), "{:?}", event_types(&events));
    world.close().await;
}
