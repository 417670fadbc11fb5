//! Limits of runs whose adapter does not keep them itself.

use mainspring_core::{Cost, Run, RunLimits, RunState, RunStatus, Usage};
use mainspring_kernel::Options;
use mainspring_kernel::adapter::Record;
use mainspring_kernel::kernel::RunRequest;

use crate::puppet::{Hands, Manners, pull, puppet};
use crate::world::{Disk, World, settle};

async fn world() -> (World, Hands) {
    let disk = Disk::memory();
    let (adapter, hands) = puppet(&disk.store, Manners::default());
    (World::with(disk, Options::default(), vec![adapter]).await, hands)
}

fn limited(limits: RunLimits) -> RunRequest {
    let mut request = pull("a", "go");
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
async fn a_run_that_has_cost_what_it_may_is_stopped() {
    let (world, mut hands) = world().await;
    let limits = RunLimits { max_cost: Some(Cost::from(0.5)), ..RunLimits::default() };
    let run = world.send(limited(limits)).await.unwrap().run;
    let strings = hands.next().await;
    strings.handle.record(vec![dollars(0.4)]).await.unwrap();
    settle().await;
    assert_eq!(world.get(run.id).await.state.status(), RunStatus::Running);
    strings.handle.record(vec![dollars(0.1)]).await.unwrap();
    let ended = world.ended(run.id).await;
    assert_eq!((ended.state.status(), code(&ended)), (RunStatus::Failed, "limit_reached"));
    assert_eq!(ended.usage.cost, Cost::from(0.5), "what was spent is spent");
    assert_eq!(hands.log().last().unwrap(), "kill while running");
}

#[tokio::test]
async fn a_cost_that_nobody_knows_stops_nobody() {
    let (world, mut hands) = world().await;
    let limits = RunLimits { max_cost: Some(Cost::from(0.5)), max_tokens: Some(100), ..RunLimits::default() };
    let run = world.send(limited(limits)).await.unwrap().run;
    let strings = hands.next().await;
    let unknown = Usage { cost: Cost::UNKNOWN, input_tokens: 99, ..Usage::default() };
    strings.handle.record(vec![Record::Usage(unknown)]).await.unwrap();
    settle().await;
    assert_eq!(world.get(run.id).await.state.status(), RunStatus::Running);
    // Its tokens are known.
    let one = Usage { output_tokens: 1, ..Usage::default() };
    strings.handle.record(vec![Record::Usage(one)]).await.unwrap();
    assert_eq!(code(&world.ended(run.id).await), "limit_reached");
}

#[tokio::test]
async fn a_run_that_has_taken_as_long_as_it_may_is_stopped() {
    let (world, mut hands) = world().await;
    let run =
        world.send(limited(RunLimits { max_time: Some(1_000), ..RunLimits::default() })).await.unwrap().run;
    let _strings = hands.next().await;
    settle().await;
    world.clock.advance(999);
    settle().await;
    assert_eq!(world.get(run.id).await.state.status(), RunStatus::Running);
    world.clock.advance(1);
    let ended = world.ended(run.id).await;
    assert!(matches!(ended.state, RunState::TimedOut { .. }), "{ended:?}");
    assert_eq!(code(&ended), "limit_reached");
}
