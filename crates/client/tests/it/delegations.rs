//! Delegations: made once, listed at both runs, read with the child's result.

use mainspring_client::{Delegate, Item};
use mainspring_core::{Body, DelegationMode, Position, RunStatus};

use crate::world::{World, code};

#[tokio::test]
async fn delegated_work_is_one_child_with_a_result() {
    let world = World::start().await;
    let client = &world.client;
    let parent = world.prompt("parent", "say here; hang").await.run;
    let delegate = Delegate {
        idempotency_key: Some("k".into()),
        ..Delegate::new(DelegationMode::Spawn, "say found it")
    };
    let made = client.run_delegate(parent.id, &delegate).await.unwrap();
    assert_eq!((made.replayed, made.run.parent), (false, Some(parent.id)));
    let again = client.run_delegate(parent.id, &delegate).await.unwrap();
    assert_eq!((again.replayed, again.delegation.id), (true, made.delegation.id));
    assert_eq!(world.ended(made.run.id).await.state.status(), RunStatus::Succeeded);
    // The parent learns of the child's end after the child's own commit.
    let mut events = client.session_events("parent", Position::START);
    loop {
        let item = events.next().await.unwrap().unwrap();
        if let Item::Event(event) = item
            && let Body::DelegationCompleted { .. } = event.body
        {
            break;
        }
    }
    let view = client.delegation_get(made.delegation.id).await.unwrap();
    let outcome = view.outcome.unwrap();
    assert_eq!((outcome.status, outcome.summary.trim_end()), (RunStatus::Succeeded, "found it"));
    let of_parent = client.run_delegations(parent.id).await.unwrap();
    assert_eq!((of_parent.parent, &of_parent.children), (None, &vec![view.delegation.clone()]));
    let of_child = client.run_delegations(made.run.id).await.unwrap();
    assert_eq!((of_child.parent, of_child.children), (Some(view.delegation), vec![]));
    let ended = world.play("ended", "say hi").await;
    let late = Delegate { idempotency_key: Some("k2".into()), ..delegate };
    assert_eq!(code(client.run_delegate(ended.id, &late).await), "run_ended");
}
