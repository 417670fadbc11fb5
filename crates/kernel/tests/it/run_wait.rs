//! Waiting for a run: until it ends or asks, or until the time is up.

use std::sync::Arc;
use std::time::Duration;

use mainspring_core::{RunStatus, Visibility};
use mainspring_kernel::Options;
use mainspring_kernel::adapter::{End, Record};
use mainspring_kernel::kernel::{Caller, RunRequest, SessionPatch};
use mainspring_kernel::store::SessionRef;
use mainspring_reference_store::MemoryStore;

use crate::puppet::{PuppetBehavior, puppet, puppet_request};
use crate::world::{Disk, World, every_store, input, run_ready_tasks, with_timeout};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn waiting_returns_the_run_once_it_has_ended() {
    for disk in every_store() {
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let world = World::with(disk, Options::default(), vec![adapter]).await;
        let run = world.send(puppet_request("a", "go")).await.unwrap().run;
        let execution = control.next().await;
        let (waited, ()) = with_timeout(async {
            tokio::join!(world.kernel.run_wait(&world.me, run.id, MINUTE), async {
                execution.handle.delta(0, "many ").unwrap();
                execution.handle.delta(0, "words").unwrap();
                run_ready_tasks().await;
                execution.end(End::succeeded());
            })
        })
        .await;
        assert_eq!(waited.unwrap().state.status(), RunStatus::Succeeded);
        let again = with_timeout(world.kernel.run_wait(&world.me, run.id, MINUTE)).await.unwrap();
        assert_eq!(again, world.get(run.id).await, "a run that has ended is not waited for");
    }
}

#[tokio::test]
async fn waiting_returns_the_run_once_it_asks_and_goes_on_after_the_answer() {
    for disk in every_store() {
        let options = Options { max_workers: 1, ..Options::default() };
        let world = World::with(disk, options, vec![]).await;
        let run = world.prompt("a", "ask Which?; say thanks").await;
        let asks = with_timeout(world.kernel.run_wait(&world.me, run.id, MINUTE)).await.unwrap();
        assert_eq!(asks.state.status(), RunStatus::WaitingInput);
        let busy = world.prompt("b", "hang").await;
        let wait = asks.state.wait().unwrap().id;
        let answered = world.kernel.run_answer(&world.me, run.id, wait, input("this")).await.unwrap();
        assert_eq!(answered.state.status(), RunStatus::WaitingInput, "no worker is free yet");
        let (waited, cancelled) = with_timeout(async {
            tokio::join!(
                world.kernel.run_wait(&world.me, run.id, MINUTE),
                world.kernel.run_cancel(&world.me, busy.id)
            )
        })
        .await;
        cancelled.unwrap();
        assert_eq!(waited.unwrap().state.status(), RunStatus::Succeeded);
    }
}

#[tokio::test]
async fn waiting_ends_when_the_time_is_up() {
    let world = World::on(Disk::memory()).await;
    let run = world.prompt("a", "hang").await;
    let mut waiting = Box::pin(world.kernel.run_wait(&world.me, run.id, Duration::from_secs(5)));
    let early = tokio::select! {
        biased;
        waited = &mut waiting => Some(waited),
        () = async {
            run_ready_tasks().await;
            world.clock.advance(4_999);
            run_ready_tasks().await;
        } => None,
    };
    assert!(early.is_none(), "{early:?}");
    world.clock.advance(1);
    assert_eq!(with_timeout(waiting).await.unwrap().state.status(), RunStatus::Running);
}

#[tokio::test]
async fn waiting_for_a_queued_run_ignores_the_runs_before_it() {
    let disk = Disk::memory();
    let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
    let world = World::with(disk, Options::default(), vec![adapter]).await;
    world.send(puppet_request("a", "first")).await.unwrap();
    let second = world.send(puppet_request("a", "second")).await.unwrap().run;
    let first = control.next().await;
    let (waited, ()) = with_timeout(async {
        tokio::join!(world.kernel.run_wait(&world.me, second.id, MINUTE), async {
            run_ready_tasks().await;
            first.end(End::succeeded());
            control.next().await.end(End::succeeded());
        })
    })
    .await;
    assert_eq!(waited.unwrap(), world.get(second.id).await);
    assert_eq!(world.get(second.id).await.state.status(), RunStatus::Succeeded);
}

#[tokio::test]
async fn a_guest_who_may_no_longer_read_the_session_stops_waiting() {
    let world = World::on(Disk::memory()).await;
    let (ada, eve) = (world.me.clone().in_org("acme"), Caller::new("eve").in_org("acme"));
    let run = with_timeout(world.kernel.run_create(&ada, RunRequest::text("a", "hang"))).await.unwrap().run;
    let session = SessionRef::Id(run.session);
    let show = |visibility| {
        let patch = SessionPatch { visibility: Some(visibility), ..SessionPatch::default() };
        world.kernel.session_patch(&ada, &session, patch)
    };
    show(Visibility::Org).await.unwrap();
    let (waited, ()) = Box::pin(with_timeout(async {
        tokio::join!(world.kernel.run_wait(&eve, run.id, MINUTE), async {
            run_ready_tasks().await;
            show(Visibility::Private).await.unwrap();
        })
    }))
    .await;
    assert_eq!(waited.unwrap_err().code(), "not_found");
}

#[tokio::test]
async fn waiting_does_not_poll_the_store() {
    let store = Arc::new(MemoryStore::default());
    let disk = Disk::on_memory(store.clone());
    let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
    let world = World::with(disk, Options::default(), vec![adapter]).await;
    let run = world.send(puppet_request("a", "go")).await.unwrap().run;
    let execution = control.next().await;
    let mut waiting = Box::pin(world.kernel.run_wait(&world.me, run.id, MINUTE));
    let work = async {
        // By now the call has read the run and follows its events.
        run_ready_tasks().await;
        let reads = store.reads();
        for no in 0..100 {
            execution.handle.delta(0, "word ").unwrap();
            let progress = Record::Progress { text: format!("{no} %") };
            execution.handle.record(vec![progress]).await.unwrap();
            world.clock.advance(100);
            run_ready_tasks().await;
        }
        (reads, store.reads())
    };
    let (before, after) = tokio::select! {
        biased;
        waited = &mut waiting => panic!("nothing has ended the run: {waited:?}"),
        reads = with_timeout(work) => reads,
    };
    assert_eq!(after, before, "neither text nor events nor time make a waiting call read");
    execution.end(End::succeeded());
    assert_eq!(with_timeout(waiting).await.unwrap().state.status(), RunStatus::Succeeded);
}

#[tokio::test]
async fn waiting_from_the_acceptance_sees_an_end_that_came_first_and_reads_nothing() {
    let store = Arc::new(MemoryStore::default());
    let disk = Disk::on_memory(store.clone());
    let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
    let world = World::with(disk, Options::default(), vec![adapter]).await;
    for ends_first in [true, false] {
        let accepted = world.send(puppet_request("a", "go")).await.unwrap();
        let execution = control.next().await;
        execution.handle.delta(0, "done").unwrap();
        let reads = store.reads();
        let waiting = world.kernel.run_wait_from(&world.me, &accepted.run, accepted.position, MINUTE);
        let waited = match ends_first {
            true => {
                execution.end(End::succeeded());
                run_ready_tasks().await;
                with_timeout(waiting).await
            }
            false => {
                let ended = async {
                    run_ready_tasks().await;
                    execution.end(End::succeeded());
                };
                with_timeout(async { tokio::join!(waiting, ended) }).await.0
            }
        };
        let waited = waited.unwrap();
        assert_eq!(
            (waited.state.status(), waited.final_text.as_deref()),
            (RunStatus::Succeeded, Some("done"))
        );
        assert_eq!(store.reads(), reads, "ends first: {ends_first}");
    }
}
