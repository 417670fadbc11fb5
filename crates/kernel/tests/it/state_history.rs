//! The history of state: the last changes of a key, and who made them.

use mainspring_core::{Body, Expect, KeyId, StateChange, StateScope, StateWriter};
use mainspring_kernel::Options;
use mainspring_kernel::adapter::End;
use mainspring_kernel::kernel::{Caller, StateOf};
use serde_json::{Value, json};

use crate::puppet::{PuppetBehavior, puppet, puppet_request};
use crate::world::{World, by_key, every_store};

async fn history(world: &World, of: &StateOf, key: &str) -> Vec<StateChange> {
    world.kernel.state_history(&world.me, of, key, None, None).await.unwrap().items
}

async fn set(world: &World, caller: &Caller, of: &StateOf, value: Option<Value>) {
    world.kernel.state_set(caller, of, "k", value, Expect::Any).await.unwrap();
}

#[tokio::test]
async fn a_history_names_the_caller_the_run_and_the_tool() {
    for disk in every_store() {
        let name = disk.name;
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let world = World::with(disk, Options::default(), vec![adapter]).await;
        let run = world.send(puppet_request("a", "go")).await.unwrap().run;
        let execution = control.next().await;
        let key = KeyId::from_random([7; 16]);
        let with_key = Caller { key: Some(key), ..world.me.clone() };
        for scope in [StateScope::Run, StateScope::Session, StateScope::Owner] {
            let of = match scope {
                StateScope::Run => StateOf::Run(run.id),
                StateScope::Session => StateOf::Session(by_key("a"), None),
                StateScope::Owner => StateOf::Owner,
            };
            if scope != StateScope::Session {
                set(&world, &world.me, &of, Some(json!(0))).await;
                set(&world, &with_key, &of, Some(json!(1))).await;
            }
            let handle = &execution.handle;
            handle.state_set(scope, "k", Some(json!(2)), Expect::Any).await.unwrap();
            handle.state_set_by(Some("note"), scope, "k", None, Expect::Present).await.unwrap();
            // The key is already deleted, so no change is recorded.
            handle.state_set_by(Some("note"), scope, "k", None, Expect::Any).await.unwrap();
            let changes = history(&world, &of, "k").await;
            let (run_id, attempt_id) = (run.id, handle.id());
            let agent =
                |tool: Option<&str>| StateWriter::Agent { run_id, attempt_id, tool: tool.map(str::to_owned) };
            let by: Vec<&StateWriter> = changes.iter().map(|change| &change.by).collect();
            let callers = [&StateWriter::Caller { key_id: Some(key) }, &StateWriter::Caller { key_id: None }];
            assert_eq!(by[..2], [&agent(Some("note")), &agent(None)], "{name} {scope}");
            assert_eq!(by[2..], callers[..by.len() - 2], "{name} {scope}");
            assert!(changes.is_sorted_by(|a, b| a.version > b.version), "{name} {scope}");
            assert_eq!((changes[0].deleted, &changes[0].value), (true, &None), "{name} {scope}");
            assert_eq!((changes[1].deleted, &changes[1].value), (false, &Some(json!(2))), "{name} {scope}");
            let earlier =
                world.kernel.state_history(&world.me, &of, "k", Some(changes[0].version), Some(1)).await;
            assert_eq!(earlier.unwrap().items, changes[1..2], "{name} {scope}");
        }
        execution.end(End::succeeded());
        world.ended(run.id).await;
        assert!(!history(&world, &StateOf::Run(run.id), "k").await.is_empty(), "{name}: also after the end");
    }
}

#[tokio::test]
async fn a_change_of_owner_state_by_an_agent_is_an_event_of_its_session() {
    for disk in every_store() {
        let name = disk.name;
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let world = World::with(disk, Options::default(), vec![adapter]).await;
        let run = world.send(puppet_request("a", "go")).await.unwrap().run;
        let execution = control.next().await;
        // A change by a caller belongs to no session: it is in the history only.
        set(&world, &world.me, &StateOf::Owner, Some(json!("caller"))).await;
        let handle = &execution.handle;
        for value in [Some(json!("agent")), Some(json!("agent")), None] {
            handle.state_set(StateScope::Owner, "k", value, Expect::Any).await.unwrap();
        }
        execution.end(End::succeeded());
        world.ended(run.id).await;
        let events = world.events("a").await;
        let changes: Vec<_> = events
            .iter()
            .filter_map(|event| match &event.body {
                Body::StateChanged { scope, version, deleted, value, .. } => {
                    assert_eq!((*scope, event.run), (StateScope::Owner, Some(run.id)), "{name}");
                    Some((*version, *deleted, value.clone()))
                }
                _ => None,
            })
            .collect();
        let kept = history(&world, &StateOf::Owner, "k").await;
        let expected = kept.iter().rev().map(|change| (change.version, change.deleted, change.value.clone()));
        assert_eq!(changes, expected.skip(1).collect::<Vec<_>>(), "{name}");
        assert_eq!(kept.len(), 3, "{name}");
        let other = world.kernel.state_history(&Caller::new("bob"), &StateOf::Owner, "k", None, None).await;
        assert!(other.unwrap().items.is_empty(), "{name}: another owner sees nothing");
    }
}
