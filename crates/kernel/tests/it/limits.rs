//! Limits of runs whose adapter does not enforce them itself.

use mainspring_core::{Cost, Run, RunLimits, RunState, RunStatus, Usage};
use mainspring_kernel::Options;
use mainspring_kernel::adapter::Record;
use mainspring_kernel::kernel::RunRequest;

use crate::puppet::{PuppetBehavior, PuppetControl, puppet, puppet_request};
use crate::world::{Disk, World, run_ready_tasks};

async fn world() -> (World, PuppetControl) {
    let disk = Disk::memory();
    let (adapter, control) = puppet(&disk.store, PuppetBehavior::default());
    (World::with(disk, Options::default(), vec![adapter]).await, control)
}

fn limited(limits: RunLimits) -> RunRequest {
    let mut request = puppet_request("a", "go");
    request.options.limits = limits;
    request
}

fn dollars(usd: f64) -> Record {
    Record::Usage(Usage { cost: Cost::from(usd), ..Usage::default() })
}

fn code(run: &Run) -> &str {
    run.state.error().map_or("", |error| &error.code)
}

#[tokio::test]
async fn a_run_that_reaches_its_cost_limit_is_stopped() {
    let (world, mut control) = world().await;
    let limits = RunLimits { max_cost: Some(Cost::from(0.5)), ..RunLimits::default() };
    let run = world.send(limited(limits)).await.unwrap().run;
    let execution = control.next().await;
    execution.handle.record(vec![dollars(0.4)]).await.unwrap();
    run_ready_tasks().await;
    assert_eq!(world.get(run.id).await.state.status(), RunStatus::Running);
    execution.handle.record(vec![dollars(0.1)]).await.unwrap();
    let ended = world.ended(run.id).await;
    assert_eq!((ended.state.status(), code(&ended)), (RunStatus::Failed, "limit_reached"));
    assert_eq!(ended.usage.cost, Cost::from(0.5), "the usage is kept");
    assert_eq!(control.log().last().unwrap(), "kill while running");
}

#[tokio::test]
async fn an_unknown_cost_does_not_stop_a_run() {
    let (world, mut control) = world().await;
    let limits = RunLimits { max_cost: Some(Cost::from(0.5)), max_tokens: Some(100), ..RunLimits::default() };
    let run = world.send(limited(limits)).await.unwrap().run;
    let execution = control.next().await;
    let unknown = Usage { cost: Cost::UNKNOWN, input_tokens: 99, ..Usage::default() };
    execution.handle.record(vec![Record::Usage(unknown)]).await.unwrap();
    run_ready_tasks().await;
    assert_eq!(world.get(run.id).await.state.status(), RunStatus::Running);
    // The tokens are known, and their limit applies.
    let one = Usage { output_tokens: 1, ..Usage::default() };
    execution.handle.record(vec![Record::Usage(one)]).await.unwrap();
    assert_eq!(code(&world.ended(run.id).await), "limit_reached");
}

#[tokio::test]
async fn a_run_that_reaches_its_time_limit_is_stopped() {
    let (world, mut control) = world().await;
    let run =
        world.send(limited(RunLimits { max_time: Some(1_000), ..RunLimits::default() })).await.unwrap().run;
    let _execution = control.next().await;
    run_ready_tasks().await;
    world.clock.advance(999);
    run_ready_tasks().await;
    assert_eq!(world.get(run.id).await.state.status(), RunStatus::Running);
    world.clock.advance(1);
    let ended = world.ended(run.id).await;
    assert!(matches!(ended.state, RunState::TimedOut { .. }), "{ended:?}");
    assert_eq!(code(&ended), "limit_reached");
}
