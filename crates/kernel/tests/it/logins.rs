//! Logins: a run that failed because a login was required continues after the login, with its next attempt.

use mainspring_core::{AccessRole, Failure, FailureCode, RetryReason, RunChange, RunId, RunStatus};
use mainspring_kernel::Options;
use mainspring_kernel::adapter::End;
use mainspring_kernel::kernel::Caller;

use crate::puppet::{PuppetBehavior, PuppetControl, puppet, puppet_request};
use crate::world::{Disk, World, every_store};

async fn world(disk: Disk) -> (World, PuppetControl) {
    let (adapter, control) =
        puppet(&disk.store, PuppetBehavior { has_login: true, ..PuppetBehavior::default() });
    (World::with(disk, Options::default(), vec![adapter]).await, control)
}

fn admin() -> Caller {
    Caller::new("local").with_role(AccessRole::Admin)
}

/// Plays a run that fails because its agent requires a login.
async fn locked(world: &World, control: &mut PuppetControl, key: &str) -> RunId {
    let run = world.send(puppet_request(key, "go")).await.unwrap().run.id;
    control.next().await.end(End::failed(Failure::new(FailureCode::Authentication, "log in first"), false));
    assert_eq!(world.ended(run).await.state.status(), RunStatus::Failed);
    run
}

async fn reasons(world: &World, run: RunId) -> Vec<Option<RetryReason>> {
    let attempts = world.kernel.run_attempts(&world.me, run).await.unwrap().items;
    attempts.into_iter().map(|attempt| attempt.retry_reason).collect()
}

#[tokio::test]
async fn runs_that_failed_without_a_login_continue_after_it() {
    for disk in every_store() {
        let (world, mut control) = world(disk).await;
        let (one, other) = (locked(&world, &mut control, "a").await, locked(&world, &mut control, "b").await);
        // This session has had another run since, so its failed run stays as it is.
        let passed = locked(&world, &mut control, "c").await;
        let next = world.send(puppet_request("c", "next")).await.unwrap().run.id;
        control.next().await.end(End::succeeded());
        world.ended(next).await;
        let login = async |method: &str| world.kernel.login_create(&admin(), "puppet", method).await;
        assert_eq!(login("guess").await.unwrap_err().code(), "login_failed");
        assert!(control.is_idle(), "{}", world.disk.name);
        login("token").await.unwrap();
        for _ in 0..2 {
            control.next().await.end(End::succeeded());
        }
        for run in [one, other] {
            assert_eq!(world.ended(run).await.state.status(), RunStatus::Succeeded);
            assert_eq!(reasons(&world, run).await, [None, Some(RetryReason::Authentication)]);
        }
        assert_eq!(reasons(&world, passed).await, [None]);
        login("token").await.unwrap();
        assert!(control.is_idle(), "{}: a login continues a run once", world.disk.name);
    }
}

#[tokio::test]
async fn a_run_that_failed_long_ago_continues_only_if_it_is_retried() {
    let (world, mut control) = world(Disk::memory()).await;
    let run = locked(&world, &mut control, "a").await;
    world.clock.advance(16 * 60 * 1_000);
    world.kernel.login_create(&admin(), "puppet", "token").await.unwrap();
    assert!(control.is_idle());
    world.kernel.run_retry(&world.me, run, RunChange::default()).await.unwrap();
    control.next().await.end(End::succeeded());
    world.ended(run).await;
    assert_eq!(reasons(&world, run).await, [None, Some(RetryReason::Authentication)]);
}
