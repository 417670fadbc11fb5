//! Delegations survive crashes, failed commits, compaction and the deletion of the parent's session.

use std::sync::Arc;

use mainspring_core::{
    Body, Cursor, Delegation, DelegationMode, DelegationStatus, EventId, NodeId, RunStatus, Usage,
};
use mainspring_kernel::Options;
use mainspring_kernel::adapter::{End, Executed, Record};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::kernel::Caller;
use mainspring_kernel::store::{Commit, InboxItem, Note, Row, SessionRef};
use mainspring_reference_store::MemoryStore;
use mainspring_store::Fault;

use super::{delegate, delegation_events, parent, request, world, write_message};
use crate::puppet::{PuppetBehavior, puppet};
use crate::world::{Disk, NOW, World, by_key, every_store, run_process, with_timeout};

#[tokio::test]
async fn a_compacted_child_still_has_its_result() {
    for disk in every_store() {
        let (world, mut control) = world(disk).await;
        let (_, execution) = parent(&world, &mut control).await;
        let child = delegate(&execution.handle, request(DelegationMode::Call, "1")).await;
        let work = control.next().await;
        for id in ["t1", "t2"] {
            let started = Record::ToolStarted {
                tool_use_id: id.into(),
                name: format!("tool {id}"),
                input: None,
                decided_by: None,
            };
            work.handle.record(vec![started]).await.unwrap();
            work.handle
                .record(vec![Record::ToolCompleted { tool_use_id: id.into(), content: vec![] }])
                .await
                .unwrap();
        }
        write_message(&work, "there are 3").await;
        let usage = Usage { input_tokens: 7, ..Usage::default() };
        work.end(Executed::Ended(End::Succeeded { usage }));
        with_timeout(execution.handle.settled(child.delegation.id)).await.unwrap();

        let session = SessionRef::Id(child.session.id);
        let events =
            world.kernel.session_events(&world.me, &session, Cursor::START, Some(500)).await.unwrap();
        let second = events.iter().rfind(|event| matches!(event.body, Body::ToolCompleted { .. })).unwrap();
        let first = events.iter().find(|event| event.body.is_run_accepted()).unwrap();
        assert!(first.cursor > events[0].cursor, "an event of the session is pruned first");
        let last = events.last().unwrap();
        for (before, effects, pruned) in
            [(first.cursor, 2, false), (second.cursor, 1, true), (last.cursor, 0, true)]
        {
            with_timeout(world.kernel.session_compact(&world.me, &session, before)).await.unwrap();
            let (settled, result) =
                world.kernel.delegation_get(&world.me, child.delegation.id).await.unwrap();
            let result = result.unwrap();
            assert_eq!((settled.status, result.status), (DelegationStatus::Succeeded, RunStatus::Succeeded));
            assert_eq!((result.summary.as_str(), result.usage.input_tokens), ("there are 3", 7));
            assert_eq!(
                (result.verified_effects.len(), result.events_pruned),
                (effects, pruned),
                "{}",
                world.disk.name
            );
            assert_eq!(
                with_timeout(execution.handle.settled(child.delegation.id)).await.unwrap().1,
                Some(result)
            );
        }
    }
}

/// After a crash the next start records every child and its end in the parent's session.
#[test]
fn a_crash_loses_no_delegation() {
    for disk in every_store() {
        let (run, child) = run_process(async {
            let (world, mut control) = world(disk.clone()).await;
            let (run, execution) = parent(&world, &mut control).await;
            let child =
                with_timeout(execution.handle.delegate(request(DelegationMode::Spawn, "1"))).await.unwrap();
            (run.id, child)
        });
        run_process(async {
            let (adapter, _control) = puppet(&disk.store, PuppetBehavior::default());
            let clock = Clock::manual(NOW.plus(1_000));
            let world = World::boot(disk.clone(), Options::default(), vec![adapter], clock, 2).await;
            let events = delegation_events(&world, run, 2).await;
            assert_eq!(events.len(), 2, "{}", disk.name);
            assert_eq!(events[1].1.status, DelegationStatus::Failed, "the child was orphaned");
            assert_eq!(world.get(child.run.id).await.state.status(), RunStatus::Orphaned);
            assert!(disk.store.inbox(child.session.id).await.unwrap().is_empty());
        });
    }
}

#[tokio::test]
async fn a_note_that_could_not_be_processed_is_processed_later() {
    let (world, mut control) = world(Disk::memory()).await;
    let (run, execution) = parent(&world, &mut control).await;
    let child = delegate(&execution.handle, request(DelegationMode::Spawn, "1")).await;
    execution.end(End::succeeded());
    world.ended(run.id).await;
    delegation_events(&world, run.id, 1).await;
    // The note that the child's session leaves, written by another process.
    let store = &world.disk.store;
    let somewhere = world.play("elsewhere", "say hi").await.session;
    with_timeout(world.kernel.session_close(&world.me, &by_key("elsewhere"))).await.unwrap();
    let fence = store.lease_take(somewhere, NodeId::from_random([9; 16])).await.unwrap();
    let settled = Delegation { status: DelegationStatus::Succeeded, ..child.delegation };
    let note = Note::Settled { delegation: Box::new(settled) };
    let item = InboxItem { id: EventId::from_random([7; 16]), at: NOW, note };
    let rows = vec![Row::Inbox(run.session, item)];
    store.commit(Commit { fence, events: vec![], rows }.into()).await.unwrap();
    with_timeout(world.kernel.session_close(&world.me, &by_key("parent"))).await.unwrap();

    world.disk.inject_fault(Fault::CommitFails);
    world.subscribe("parent", None).await;
    world.advance_until(100, delegation_events(&world, run.id, 2)).await;
    assert!(store.inbox(run.session).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_child_outlives_its_parents_session() {
    for disk in every_store() {
        let (world, mut control) = world(disk).await;
        let (run, execution) = parent(&world, &mut control).await;
        let child = delegate(&execution.handle, request(DelegationMode::Spawn, "1")).await;
        execution.end(End::succeeded());
        world.ended(run.id).await;
        let session = SessionRef::Id(run.session);
        with_timeout(world.kernel.session_delete(&world.me, &session)).await.unwrap();
        control.next().await.end(End::succeeded());
        assert_eq!(
            world.ended(child.run.id).await.state.status(),
            RunStatus::Succeeded,
            "{}",
            world.disk.name
        );
        let gone = world.kernel.delegation_get(&world.me, child.delegation.id).await;
        assert_eq!(gone.unwrap_err().code(), "not_found");
    }
}

#[tokio::test]
async fn a_delegation_whose_parent_cannot_be_read_is_not_reported_as_missing() {
    let store = Arc::new(MemoryStore::default());
    let disk = Disk::on_memory(store.clone());
    let child = {
        let (world, mut control) = world(disk.clone()).await;
        let (run, execution) = parent(&world, &mut control).await;
        let child = delegate(&execution.handle, request(DelegationMode::Spawn, "1")).await;
        control.next().await.end(End::succeeded());
        execution.end(End::succeeded());
        delegation_events(&world, run.id, 2).await;
        world.ended(run.id).await;
        child
    };
    let world = World::reboot(&disk).await;
    let found = async |caller: &Caller| {
        world.kernel.delegation_get(caller, child.delegation.id).await.map(drop).map_err(|error| error.code())
    };
    store.set_runs_unreadable(true);
    assert_eq!(found(&world.me).await, Err("unavailable"));
    store.set_runs_unreadable(false);
    assert_eq!(found(&world.me).await, Ok(()));
    assert_eq!(found(&Caller::new("eve")).await, Err("not_found"));
}
