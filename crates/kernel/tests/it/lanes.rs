//! Lanes: agents without a process do not use up the workers, and have a limit of their own.

use mainspring_core::{RunId, RunStatus};
use mainspring_kernel::Options;
use mainspring_kernel::adapter::End;
use mainspring_kernel::kernel::Caller;
use mainspring_kernel::kernel::RunRequest;

use crate::puppet::{PuppetBehavior, puppet, puppet_request};
use crate::world::{World, every_store, run_ready_tasks, with_timeout};

fn lanes(max_workers: usize, max_in_process_runs: usize) -> Options {
    Options { max_workers, max_in_process_runs: Some(max_in_process_runs), ..Options::default() }
}

async fn status(world: &World, run: RunId) -> RunStatus {
    world.get(run).await.state.status()
}

#[tokio::test]
async fn runs_without_a_process_are_not_counted_among_the_workers() {
    for disk in every_store() {
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let world = World::with(disk, lanes(1, 20), vec![adapter]).await;
        let mut hanging = vec![];
        for no in 0..20 {
            let run = world.prompt(&format!("s{no}"), "hang").await.id;
            assert_eq!(status(&world, run).await, RunStatus::Running, "{} {no}", world.disk.name);
            hanging.push(run);
        }
        let next = world.prompt("next", "say hi").await.id;
        assert_eq!(status(&world, next).await, RunStatus::Queued, "{}", world.disk.name);
        let process = world.send(puppet_request("p", "go")).await.unwrap().run.id;
        let waits = world.send(puppet_request("q", "go")).await.unwrap().run.id;
        let execution = control.next().await;
        assert_eq!(execution.handle.assignment().run.id, process);
        run_ready_tasks().await;
        assert!(control.is_idle(), "there is one worker, on {}", world.disk.name);
        execution.end(End::succeeded());
        control.next().await.end(End::succeeded());
        assert_eq!(world.ended(waits).await.state.status(), RunStatus::Succeeded);
        assert_eq!(status(&world, next).await, RunStatus::Queued, "a worker is no permit of the other lane");
        with_timeout(world.kernel.run_cancel(&world.me, hanging[0])).await.unwrap();
        assert_eq!(world.ended(next).await.state.status(), RunStatus::Succeeded);
    }
}

#[tokio::test]
async fn an_owner_that_fills_a_lane_leaves_room_for_others() {
    for disk in every_store() {
        let options = Options { owner: Some("server".into()), ..lanes(1, 8) };
        let world = World::with(disk, options, vec![]).await;
        let mut running = 0;
        for no in 0..8 {
            let run = world.prompt(&format!("s{no}"), "hang").await.id;
            running += usize::from(status(&world, run).await == RunStatus::Running);
        }
        assert_eq!(running, 4, "half of the lane, on {}", world.disk.name);
        let eve = Caller::new("eve");
        let hers = with_timeout(world.kernel.run_create(&eve, RunRequest::text("a", "hang"))).await.unwrap();
        assert_eq!(hers.run.state.status(), RunStatus::Running, "{}", world.disk.name);
    }
}
