//! Parents that wait for their children: cycles, permits and full adapters.

use std::collections::HashMap;

use mainspring_core::{DelegationMode, RunStatus, SessionId};
use mainspring_kernel::adapter::{End, HandleError};
use mainspring_kernel::kernel::DelegationRequest;
use mainspring_kernel::{Error, Options};
use mainspring_store::Fault;

use super::{delegate, existing, parent, refusal, request, world};
use crate::puppet::{PuppetBehavior, puppet, puppet_request};
use crate::world::{Disk, World, every_store, run_ready_tasks, with_timeout};

/// A request to wait for a new run of an existing session.
fn wait_for(session: SessionId) -> DelegationRequest {
    DelegationRequest {
        session: existing(session),
        ..DelegationRequest::new(DelegationMode::Continue, "more")
    }
}

#[tokio::test]
async fn a_wait_that_would_close_a_cycle_is_refused() {
    let (world, mut control) = world(Disk::sqlite()).await;
    let (run, execution) = parent(&world, &mut control).await;
    let child = delegate(&execution.handle, request(DelegationMode::Call, "1")).await;
    let middle = control.next().await;
    delegate(&middle.handle, request(DelegationMode::Call, "2")).await;
    let last = control.next().await;
    for session in [run.session, child.session.id] {
        let error = refusal(&last.handle, wait_for(session)).await;
        assert_eq!(error, Error::WouldDeadlock(session));
    }
    // A delegation that is not awaited cannot close a cycle.
    delegate(&last.handle, request(DelegationMode::Spawn, "3")).await;
}

/// Both requests are checked before either is committed; the second must see the first.
#[tokio::test]
async fn one_of_two_concurrent_waits_for_each_other_is_refused() {
    for disk in every_store() {
        let (world, mut control) = world(disk).await;
        let mut parents = vec![];
        for key in ["a", "b"] {
            let session = world.send(puppet_request(key, "go")).await.unwrap().session.id;
            parents.push((session, control.next().await));
        }
        let [(a, first), (b, second)] = &parents[..] else { unreachable!("there are two") };
        let (first, second) = with_timeout(async {
            tokio::join!(first.handle.delegate(wait_for(*b)), second.handle.delegate(wait_for(*a)))
        })
        .await;
        let refused = match (first, second) {
            (Ok(_), Err(HandleError::Kernel(error))) | (Err(HandleError::Kernel(error)), Ok(_)) => error,
            other => panic!("{}: {other:?}", world.disk.name),
        };
        assert!(matches!(refused, Error::WouldDeadlock(_)), "{}: {refused:?}", world.disk.name);
    }
}

#[tokio::test]
async fn a_wait_whose_commit_failed_blocks_no_other() {
    for disk in every_store() {
        let (world, mut control) = world(disk).await;
        let a = world.send(puppet_request("a", "go")).await.unwrap().session.id;
        let first = control.next().await;
        let b = world.send(puppet_request("b", "go")).await.unwrap().session.id;
        let second = control.next().await;
        world.disk.inject_fault(Fault::CommitFails);
        assert_eq!(refusal(&first.handle, wait_for(b)).await.code(), "unavailable", "{}", world.disk.name);
        delegate(&second.handle, wait_for(a)).await;
        assert_eq!(refusal(&first.handle, wait_for(b)).await, Error::WouldDeadlock(b), "{}", world.disk.name);
    }
}

#[tokio::test]
async fn an_awaited_child_runs_on_its_parents_permit() {
    let disk = Disk::memory();
    let (adapter, mut control) =
        puppet(&disk.store, PuppetBehavior { obeys: true, ..PuppetBehavior::default() });
    let options = Options { max_workers: 1, ..Options::default() };
    let world = World::with(disk, options, vec![adapter]).await;
    let (run, execution) = parent(&world, &mut control).await;
    let spawned = delegate(&execution.handle, request(DelegationMode::Spawn, "1")).await;
    run_ready_tasks().await;
    assert!(control.is_idle(), "a spawned child queues for a permit");
    let called = delegate(&execution.handle, request(DelegationMode::Call, "2")).await;
    let second = delegate(&execution.handle, request(DelegationMode::Call, "3")).await;
    let child = control.next().await;
    assert_eq!(child.handle.assignment().run.id, called.run.id);
    run_ready_tasks().await;
    assert!(control.is_idle(), "a permit is lent to one child at a time");
    child.end(End::succeeded());
    let child = control.next().await;
    assert_eq!(child.handle.assignment().run.id, second.run.id);
    child.end(End::succeeded());
    with_timeout(execution.handle.settled(second.delegation.id)).await.unwrap();
    run_ready_tasks().await;
    assert!(control.is_idle(), "the parent has its permit back");
    execution.end(End::succeeded());
    world.ended(run.id).await;
    control.next().await.end(End::succeeded());
    assert_eq!(world.ended(spawned.run.id).await.state.status(), RunStatus::Succeeded);
}

#[tokio::test]
async fn a_call_to_a_full_adapter_is_refused_instead_of_queued() {
    let disk = Disk::memory();
    let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
    let options =
        Options { adapter_workers: HashMap::from([("puppet".to_owned(), 1)]), ..Options::default() };
    let world = World::with(disk, options, vec![adapter]).await;
    let (_, execution) = parent(&world, &mut control).await;
    let error = refusal(&execution.handle, request(DelegationMode::Call, "1")).await;
    assert_eq!(error, Error::AdapterFull { adapter: "puppet".into(), limit: 1 });
    delegate(&execution.handle, request(DelegationMode::Spawn, "2")).await;
}
