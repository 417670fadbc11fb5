//! The lifetime of a kernel: draining, stopping, unloading and reloading idle sessions.

use std::sync::Arc;

use mainspring_core::{
    Block, CancelReason, Failure, Position, RunState, RunStatus, SessionStatus, WaitRequest,
};
use mainspring_kernel::Options;
use mainspring_kernel::adapter::{End, Executed, Record};
use mainspring_kernel::kernel::{RunRequest, SessionPatch, SessionQuery, Work};

use crate::puppet::{PuppetBehavior, puppet, puppet_request, question};
use crate::world::{Disk, World, by_key, every_store, input, run_process, run_ready_tasks, with_timeout};

#[tokio::test]
async fn stopping_waits_for_attempts_that_must_be_killed() {
    let world = World::on(Disk::memory()).await;
    let run = world.prompt("a", "say partial; ignore-cancel; hang").await;
    let queued = world.prompt("a", "say later").await;
    world.advance_until(500, world.kernel.shutdown()).await;
    let run = world.get(run.id).await;
    assert_eq!(run.state, RunState::Cancelled { reason: CancelReason::Shutdown });
    assert_eq!(world.get(queued.id).await.state.status(), RunStatus::Queued);
    assert!(world.path_text("a").await.contains(r#"assistant cancelled "partial\n""#));
}

#[tokio::test]
async fn stopping_waits_for_an_unavailable_store() {
    let world = World::on(Disk::memory()).await;
    let run = world.prompt("a", "hang").await;
    run_ready_tasks().await;
    world.disk.inject_fault(mainspring_store::Fault::CommitFails);
    world.advance_until(10, world.kernel.shutdown()).await;
    assert_eq!(world.get(run.id).await.state.status(), RunStatus::Cancelled);
}

#[tokio::test]
async fn a_stopping_kernel_accepts_and_starts_nothing() {
    for disk in every_store() {
        let world = World::on(disk).await;
        world.play("a", "say hi").await;
        let waits = world.prompt("w", "ask which?").await;
        let wait = world.wait_for_question(waits.id).await;
        with_timeout(world.kernel.shutdown()).await;
        for key in ["a", "new"] {
            let refused = with_timeout(world.send(RunRequest::text(key, "say no"))).await;
            assert_eq!(refused.unwrap_err().code(), "shutting_down");
        }
        let refused = with_timeout(world.kernel.run_answer(&world.me, waits.id, wait, input("x"))).await;
        assert_eq!(refused.unwrap_err().code(), "shutting_down");
        let refused = with_timeout(world.kernel.session_subscribe(&world.me, &by_key("a"), None)).await;
        assert_eq!(refused.err().unwrap().code(), "shutting_down");
        assert_eq!(world.kernel.sessions_in_memory(), 0);
        assert_eq!(*world.kernel.work().borrow(), Work::default());
        assert_eq!(world.get(waits.id).await.state.status(), RunStatus::WaitingInput);
        // The next kernel answers the request.
        let disk = world.disk.clone();
        let next = World::reboot(&disk).await;
        next.kernel.run_answer(&next.me, waits.id, wait, input("x")).await.unwrap();
        assert_eq!(next.ended(waits.id).await.state.status(), RunStatus::Succeeded);
    }
}

#[tokio::test]
async fn subscribers_of_a_stopping_kernel_get_all_events_and_then_the_end() {
    let world = World::on(Disk::memory()).await;
    world.prompt("a", "say hi; hang").await;
    let (_, mut events) = world.subscribe("a", Some(Position::START)).await;
    world.advance_until(100, world.kernel.shutdown()).await;
    let mut last = None;
    while let Some(item) = with_timeout(events.next()).await {
        last = Some(item.unwrap());
    }
    let Some(mainspring_kernel::feed::Item::Event(last)) = last else { panic!("{last:?}") };
    assert_eq!(last.body.kind(), "run.cancelled");
}

#[tokio::test]
async fn text_streamed_before_a_question_survives_a_stop() {
    for disk in every_store() {
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let world = World::with(disk.clone(), Options::default(), vec![adapter]).await;
        let run = world.send(puppet_request("a", "go")).await.unwrap().run;
        let execution = control.next().await;
        execution.handle.delta(0, "before it asked").unwrap();
        execution.end(Executed::Waiting(question(WaitRequest::Input, None)));
        let wait = world.wait_for_question(run.id).await;
        with_timeout(world.kernel.shutdown()).await;
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let clock = mainspring_kernel::clock::Clock::manual(crate::world::NOW.plus(1_000));
        let world = World::boot(disk, Options::default(), vec![adapter], clock, 2).await;
        let (snapshot, _) = world.subscribe("a", None).await;
        assert_eq!(
            snapshot.partial[0].blocks,
            [mainspring_api::OpenBlock { block: 0, text: "before it asked".to_owned() }],
            "{}",
            world.disk.name
        );
        world.kernel.run_answer(&world.me, run.id, wait, input("x")).await.unwrap();
        let execution = control.next().await;
        execution.handle.delta(0, "and after").unwrap();
        execution.end(End::succeeded());
        world.ended(run.id).await;
        let texts: Vec<String> = world.path("a").await.iter().map(|message| message.text()).collect();
        assert_eq!(texts, ["go", "before it asked", "and after"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_idleness_includes_every_accepted_run() {
    let world = World::on(Disk::sqlite()).await;
    for no in 0..200 {
        let run = world.prompt(&format!("s{}", no % 20), "say hi").await;
        with_timeout(world.kernel.drain()).await;
        assert_eq!(world.get(run.id).await.state.status(), RunStatus::Succeeded, "after {no}");
    }
}

#[tokio::test]
async fn an_idle_session_is_unloaded_and_loaded_again() {
    for disk in every_store() {
        let world = World::on(disk).await;
        world.play("a", "say one").await;
        assert_eq!(world.kernel.sessions_in_memory(), 1);
        let gone = async {
            while world.kernel.sessions_in_memory() > 0 {
                tokio::task::yield_now().await;
            }
        };
        world.advance_until(5_000, gone).await;
        let second = world.play("a", "say two").await;
        assert_eq!(second.no, 2);
        assert_eq!(world.path("a").await.len(), 4, "{}", world.disk.name);
        let events = world.events("a").await;
        assert!(events.windows(2).all(|pair| pair[0].cursor < pair[1].cursor));
    }
}

#[tokio::test]
async fn a_session_with_a_subscriber_stays_loaded_and_one_that_waits_for_an_answer_does_not() {
    let world = World::on(Disk::memory()).await;
    world.play("a", "say hi").await;
    let waits = world.prompt("w", "ask which?").await;
    world.wait_for_question(waits.id).await;
    let (_, mut events) = world.subscribe("a", None).await;
    for _ in 0..20 {
        world.clock.advance(20_000);
        run_ready_tasks().await;
    }
    assert_eq!(world.kernel.sessions_in_memory(), 1);
    let run = world.prompt("a", "say more").await;
    crate::world::read_until(&mut events, "run.succeeded").await;
    assert_eq!(world.get(run.id).await.state.status(), RunStatus::Succeeded);
    drop(events);
    for _ in 0..5 {
        world.clock.advance(20_000);
        run_ready_tasks().await;
    }
    assert_eq!(world.kernel.sessions_in_memory(), 0);
}

#[tokio::test]
async fn a_refused_prompt_leaves_no_session_in_memory() {
    for disk in every_store() {
        let world = World::on(disk).await;
        world.disk.inject_fault(mainspring_store::Fault::CommitFails);
        let refused = world.send(RunRequest::text("a", "say hi")).await;
        assert_eq!(refused.unwrap_err().code(), "unavailable");
        run_ready_tasks().await;
        assert_eq!(world.kernel.sessions_in_memory(), 0);
    }
}

#[tokio::test]
async fn an_archived_session_is_reopened_by_a_prompt_and_a_deleted_one_is_not() {
    for disk in every_store() {
        let world = World::on(disk).await;
        world.play("a", "say hi").await;
        let archived = world
            .kernel
            .session_patch(
                &world.me,
                &by_key("a"),
                SessionPatch { status: Some(SessionStatus::Archived), ..SessionPatch::default() },
            )
            .await
            .unwrap();
        assert_eq!(archived.status, SessionStatus::Archived);
        let run = world.play("a", "say again").await;
        let session = world.kernel.session_get(&world.me, &by_key("a")).await.unwrap();
        assert_eq!((session.status, run.state.status()), (SessionStatus::Open, RunStatus::Succeeded));
        let (_, mut events) = world.subscribe("a", None).await;
        world.kernel.session_delete(&world.me, &by_key("a")).await.unwrap();
        while with_timeout(events.next()).await.is_some() {}
        let error = world.kernel.run_get(&world.me, run.id).await.unwrap_err();
        assert_eq!(error.code(), "not_found");
        let error = world.kernel.session_tree(&world.me, &by_key("a"), Default::default()).await.unwrap_err();
        assert_eq!(error.code(), "not_found");
    }
}

#[tokio::test]
async fn a_closed_session_takes_no_new_work_and_ends_what_it_has() {
    for disk in every_store() {
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let world = World::with(disk.clone(), Options::default(), vec![adapter]).await;
        let name = disk.name;
        let set = async |status| {
            let patch = SessionPatch { status: Some(status), ..SessionPatch::default() };
            world.kernel.session_patch(&world.me, &by_key("a"), patch).await.unwrap().status
        };
        let named = |text: &str, id: &str| {
            let mut request = puppet_request("a", text);
            request.name.idempotency_key = Some(id.into());
            request
        };
        let running = world.send(named("one", "1")).await.unwrap().run;
        let queued = world.send(named("two", "2")).await.unwrap().run;
        let execution = control.next().await;
        assert_eq!(set(SessionStatus::Closed).await, SessionStatus::Closed, "{name}");
        let refused = world.send(named("three", "3")).await.unwrap_err();
        assert_eq!(refused.code(), "session_closed", "{name}");
        assert_eq!(world.send(named("one", "1")).await.unwrap().run.id, running.id, "{name}: a replay");
        // Both runs were accepted before.
        execution.end(End::failed(Failure::new("broken", "no"), false));
        control.next().await.end(End::succeeded());
        assert_eq!(world.ended(running.id).await.state.status(), RunStatus::Failed, "{name}");
        assert_eq!(world.ended(queued.id).await.state.status(), RunStatus::Succeeded, "{name}");
        let failing = set(SessionStatus::Open).await;
        assert_eq!(failing, SessionStatus::Open, "{name}");
        let failed = world.send(named("three", "3")).await.unwrap().run;
        control.next().await.end(End::failed(Failure::new("broken", "no"), false));
        world.ended(failed.id).await;
        set(SessionStatus::Closed).await;
        let retried = world.kernel.run_retry(&world.me, failed.id, Default::default()).await;
        assert_eq!(retried.unwrap_err().code(), "session_closed", "{name}");
        let world = World::reboot(&disk).await;
        let refused = world.send(RunRequest::text("a", "say four")).await.unwrap_err();
        assert_eq!(refused.code(), "session_closed", "{name}: after a restart");
        let page = SessionQuery { status: Some(SessionStatus::Closed), ..SessionQuery::default() };
        assert_eq!(world.kernel.session_list(&world.me, page).await.unwrap().len(), 1, "{name}");
    }
}

#[tokio::test]
async fn two_kernels_on_one_store_never_both_write() {
    for disk in every_store() {
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let old = World::with(disk.clone(), Options::default(), vec![adapter]).await;
        let run = old.send(puppet_request("a", "go")).await.unwrap().run;
        let execution = control.next().await;
        let new = World::reboot(&disk).await;
        assert_eq!(new.get(run.id).await.state.status(), RunStatus::Orphaned);
        let before = new.events("a").await;
        let text = vec![Record::Message { blocks: vec![Block::text("late")], usage: None }];
        with_timeout(execution.handle.record(text)).await.unwrap_err();
        run_ready_tasks().await;
        assert_eq!(new.events("a").await, before, "{}", disk.name);
        with_timeout(async {
            while !control.log().iter().any(|entry| entry.starts_with("kill")) {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

#[test]
fn a_store_reopens_after_repeated_crashes() {
    for disk in every_store() {
        let mut runs = vec![];
        for life in 0..5 {
            let run = run_process(async {
                let clock = mainspring_kernel::clock::Clock::manual(crate::world::NOW.plus(life * 1_000));
                let world = World::boot(disk.clone(), Options::default(), vec![], clock, life + 1).await;
                for run in &runs {
                    assert_eq!(world.get(*run).await.state.status(), RunStatus::Orphaned);
                }
                world.prompt("a", "say hi; hang").await.id
            });
            runs.push(run);
        }
        assert_eq!(
            Arc::strong_count(&disk.store),
            3,
            "nothing of a dead process holds the store: {}",
            disk.name
        );
    }
}

#[tokio::test]
async fn a_deleted_state_directory_is_noticed() {
    let world = World::on(Disk::sqlite()).await;
    world.play("a", "say one").await;
    world.kernel.check_store().await.unwrap();
    std::fs::remove_dir_all(world.disk.file.as_ref().unwrap().parent().unwrap()).unwrap();
    assert_eq!(world.kernel.check_store().await.unwrap_err().code(), "store_lost");
    for key in ["a", "new"] {
        let refused = world.send(RunRequest::text(key, "say two")).await;
        let error = refused.unwrap_err();
        assert_eq!((error.code(), error.is_retryable()), ("store_lost", false));
        assert!(error.to_string().contains("put the state directory back"), "{error}");
    }
}

#[tokio::test]
async fn sessions_that_are_not_in_memory_hold_no_lease() {
    let folder = tempfile::tempdir().unwrap();
    let store = mainspring_store::SqliteStore::open(
        &folder.path().join("test.sqlite3"),
        mainspring_store::SqliteOptions::default(),
        crate::world::NOW,
    );
    let store = Arc::new(store.unwrap());
    let mut disk = Disk::memory();
    disk.store = store.clone();
    let world = World::on(disk).await;
    for no in 0..20 {
        world.play(&format!("s{no}"), "say one").await;
    }
    let unknown = mainspring_core::SessionId::from_random([7; 16]);
    let by_id = mainspring_kernel::store::SessionRef::Id(unknown);
    assert!(world.kernel.session_subscribe(&world.me, &by_id, None).await.is_err());
    // Starting a world takes one lease of its own.
    assert_eq!(store.leases(), 21);
    let unloaded = async {
        while store.leases() > 1 {
            tokio::task::yield_now().await;
        }
    };
    world.advance_until(5_000, unloaded).await;
    world.play("s0", "say two").await;
    assert_eq!(store.leases(), 2);
}
