//! A panic in the work of one session: the server starts and serves the others, and the session is tried again.

use mainspring_core::{AccessRole, RunId, RunStatus, SessionId};
use mainspring_kernel::kernel::{Caller, FailedSession, SessionPatch};
use mainspring_kernel::{Error, Options};
use mainspring_store::Fault;

use crate::puppet::{PuppetBehavior, puppet, puppet_request};
use crate::world::{Disk, World, by_key, every_store, run_process, run_ready_tasks, with_timeout};

/// Changes the session of this key, through its actor.
async fn change(world: &World, key: &str) -> Result<(), Error> {
    let patch = SessionPatch { pinned: Some(true), ..SessionPatch::default() };
    with_timeout(world.kernel.session_patch(&world.me, &by_key(key), patch)).await.map(drop)
}

fn failed(world: &World) -> Vec<FailedSession> {
    let admin = Caller::new("root").with_role(AccessRole::Admin);
    world.kernel.failed_sessions(&admin).unwrap()
}

/// Leaves a run of the session "bad" running in a process that is killed, and an idle session "good".
fn leave_running(disk: &Disk) -> (SessionId, RunId) {
    run_process(async {
        let world = World::on(disk.clone()).await;
        world.play("good", "say hi").await;
        let run = world.prompt("bad", "hang").await;
        world.wait_until(run.id, |run| run.state.status() == RunStatus::Running).await;
        (run.session, run.id)
    })
}

async fn assert_serves_others(world: &World) {
    assert_eq!(
        world.play("good", "say on").await.state.status(),
        RunStatus::Succeeded,
        "{}",
        world.disk.name
    );
    assert_eq!(
        world.play("new", "say new").await.state.status(),
        RunStatus::Succeeded,
        "{}",
        world.disk.name
    );
}

#[test]
fn a_panic_at_load_does_not_prevent_the_start() {
    for disk in every_store() {
        let (session, run) = leave_running(&disk);
        run_process(async {
            disk.inject_fault(Fault::LoadPanics);
            let world = World::reboot(&disk).await;
            assert_serves_others(&world).await;
            let listed = failed(&world);
            assert_eq!((listed.len(), listed[0].session_id, listed[0].failures), (1, session, 1));
            assert_eq!(listed[0].code, "session_failed");
            let member = world.kernel.failed_sessions(&world.me).unwrap_err();
            assert_eq!(member.code(), "forbidden", "sessions of others are named to admins alone");
            // The next request loads the session again: the fault is gone, as with a fixed program.
            change(&world, "bad").await.unwrap();
            assert_eq!(world.get(run).await.state.status(), RunStatus::Orphaned);
            assert_eq!(failed(&world), []);
            assert_eq!(world.play("bad", "say well").await.state.status(), RunStatus::Succeeded);
        });
    }
}

#[test]
fn a_panic_at_recovery_does_not_prevent_the_start() {
    for disk in every_store() {
        let (session, run) = leave_running(&disk);
        run_process(async {
            disk.inject_fault(Fault::CommitPanics);
            let world = World::reboot(&disk).await;
            assert_serves_others(&world).await;
            assert_eq!(failed(&world)[0].session_id, session);
            assert_eq!(world.get(run).await.state.status(), RunStatus::Running, "the store is as it was");
            change(&world, "bad").await.unwrap();
            assert_eq!(world.get(run).await.state.status(), RunStatus::Orphaned, "{}", disk.name);
        });
    }
}

#[test]
fn retries_pause_for_longer_and_longer() {
    for disk in every_store() {
        let (_, run) = leave_running(&disk);
        run_process(async {
            disk.inject_fault(Fault::LoadPanics);
            let world = World::reboot(&disk).await;
            disk.inject_fault(Fault::LoadPanics);
            let error = change(&world, "bad").await.unwrap_err();
            assert_eq!(error.code(), "session_failed");
            assert!(error.to_string().contains("loaded again at a later request"), "{error}");
            // The store would answer, but the session is not loaded before the pause is over.
            assert_eq!(change(&world, "bad").await.unwrap_err().code(), "session_failed");
            assert_eq!(failed(&world)[0].failures, 2);
            assert_eq!(world.get(run).await.state.status(), RunStatus::Running);
            world.clock.advance(1_000);
            change(&world, "bad").await.unwrap();
            assert_eq!(world.get(run).await.state.status(), RunStatus::Orphaned, "{}", disk.name);
        });
    }
}

#[test]
fn a_failed_session_is_loaded_again_without_a_request() {
    for disk in every_store() {
        let (_, run) = leave_running(&disk);
        run_process(async {
            disk.inject_fault(Fault::CommitPanics);
            let world = World::reboot(&disk).await;
            let ended = async {
                loop {
                    let stored = world.disk.store.run_get(run).await.unwrap().unwrap();
                    if stored.state.status().is_ended() {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
            };
            world.advance_until(100, ended).await;
        });
    }
}

#[test]
fn retries_without_a_request_are_limited() {
    let disk = Disk::memory();
    let (session, _) = leave_running(&disk);
    run_process(async {
        disk.inject_fault(Fault::LoadPanics);
        let world = World::reboot(&disk).await;
        for _ in 0..50 {
            disk.inject_fault(Fault::LoadPanics);
            world.clock.advance(60_000);
            run_ready_tasks().await;
        }
        // The first failure, and five retries.
        assert_eq!(failed(&world)[0].failures, 6);
        // A request always loads the session again.
        disk.inject_fault(Fault::LoadPanics);
        assert_eq!(change(&world, "bad").await.unwrap_err().code(), "session_failed");
        assert_eq!((failed(&world)[0].session_id, failed(&world)[0].failures), (session, 7));
    });
}

#[test]
fn a_panic_in_a_command_ends_the_work_of_its_session_alone() {
    for disk in every_store() {
        run_process(async {
            let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
            let world = World::with(disk.clone(), Options::default(), vec![adapter]).await;
            world.play("good", "say hi").await;
            let run = world.send(puppet_request("bad", "go")).await.unwrap().run;
            let execution = control.next().await;
            let (_, mut reader) = world.subscribe("bad", None).await;
            disk.inject_fault(Fault::CommitPanics);
            let error = change(&world, "bad").await.unwrap_err();
            assert_eq!(error.code(), "session_failed", "{}: {error}", disk.name);
            let told = with_timeout(async {
                loop {
                    match reader.next().await.expect("an error comes before the end") {
                        Ok(_) => {}
                        Err(error) => return error,
                    }
                }
            });
            assert_eq!(told.await.code(), "session_failed", "readers are told, too");
            assert_serves_others(&world).await;
            // The agent of the run was stopped before the session is loaded again, and has no authority.
            change(&world, "bad").await.unwrap();
            assert!(control.log().iter().any(|call| call.starts_with("kill")), "{:?}", control.log());
            assert!(execution.handle.delta(0, "late").is_err());
            assert_eq!(world.get(run.id).await.state.status(), RunStatus::Orphaned);
            assert_eq!(failed(&world), []);
            with_timeout(world.kernel.drain()).await;
            with_timeout(world.kernel.shutdown()).await;
        });
    }
}

#[test]
fn a_panic_in_the_first_commit_of_a_session_creates_nothing() {
    for disk in every_store() {
        run_process(async {
            let world = World::on(disk.clone()).await;
            disk.inject_fault(Fault::CommitPanics);
            let error =
                world.send(mainspring_kernel::kernel::RunRequest::text("a", "say hi")).await.unwrap_err();
            assert_eq!(error.code(), "session_failed", "{}", disk.name);
            let missing = world.kernel.session_get(&world.me, &by_key("a")).await.unwrap_err();
            assert_eq!(missing.code(), "not_found");
            assert_eq!(world.play("a", "say hi").await.state.status(), RunStatus::Succeeded);
            with_timeout(world.kernel.drain()).await;
        });
    }
}

#[test]
fn a_process_with_a_failed_session_stops() {
    for disk in every_store() {
        leave_running(&disk);
        run_process(async {
            disk.inject_fault(Fault::LoadPanics);
            let world = World::reboot(&disk).await;
            with_timeout(world.kernel.shutdown()).await;
        });
    }
}
