//! Limits of runs whose adapter does not enforce them itself.

use mainspring_core::{Cost, Failure, Run, RunLimits, RunState, RunStatus, Usage, UsageReports};
use mainspring_kernel::Options;
use mainspring_kernel::adapter::{End, Executed, Record};
use mainspring_kernel::kernel::RunRequest;

use crate::puppet::{PuppetBehavior, PuppetControl, puppet, puppet_request};
use crate::world::{Disk, World, count, every_store, run_ready_tasks};

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
    run.state.error().map_or("", |error| error.code.as_str())
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
    assert_eq!(count(&world.events("a").await, "limit.exceeded"), 0, "the failure names the limit");
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
    world.clock.set_system_time(3_600_000);
    world.clock.advance(999);
    run_ready_tasks().await;
    assert_eq!(world.get(run.id).await.state.status(), RunStatus::Running);
    world.clock.advance(1);
    let ended = world.ended(run.id).await;
    assert!(matches!(ended.state, RunState::TimedOut { .. }), "{ended:?}");
    assert_eq!(code(&ended), "limit_reached");
}

#[tokio::test]
async fn a_limit_that_the_adapter_cannot_keep_is_refused_unless_best_effort_is_enough() {
    for disk in every_store() {
        let late = PuppetBehavior { usage_reports: UsageReports::AtEnd, ..PuppetBehavior::default() };
        let (adapter, mut control) = puppet(&disk.store, late);
        let world = World::with(disk, Options::default(), vec![adapter]).await;
        let request = |limits| {
            let mut request = puppet_request("late", "go");
            request.options.limits = limits;
            request
        };
        let tokens = RunLimits { max_tokens: Some(50), ..RunLimits::default() };
        let error = world.send(request(tokens)).await.unwrap_err();
        assert_eq!(error.code(), "limit_not_enforceable");
        assert!(
            error.to_string().contains("maxTokens") && error.to_string().contains("bestEffort"),
            "{error}"
        );
        let steps = RunLimits { max_steps: Some(5), ..RunLimits::default() };
        assert_eq!(world.send(request(steps)).await.unwrap_err().code(), "limit_not_enforceable");
        let relaxed = RunLimits { best_effort: Some(true), ..tokens };
        for (used, exceeded) in [(30, false), (240, true)] {
            let run = world.send(request(relaxed)).await.unwrap().run;
            let usage = Usage { input_tokens: used, ..Usage::default() };
            control.next().await.end(Executed::Ended(End::Succeeded { usage }));
            let run = world.ended(run.id).await;
            assert_eq!(run.state.status(), RunStatus::Succeeded);
            assert_eq!(run.budget.is_some_and(|budget| budget.exceeded), exceeded, "{used} of 50 tokens");
        }
        assert_eq!(count(&world.events("late").await, "limit.exceeded"), 1);
        let time = RunLimits { max_time: Some(60_000), ..RunLimits::default() };
        let run = world.send(request(time)).await.unwrap().run;
        control.next().await.end(End::succeeded());
        world.ended(run.id).await;
    }
}

#[tokio::test]
async fn an_agent_that_reports_the_code_of_a_limit_hides_no_exceeded_limit() {
    for code in ["limit_reached", "broken"] {
        let late = PuppetBehavior { usage_reports: UsageReports::AtEnd, ..PuppetBehavior::default() };
        let disk = Disk::memory();
        let (adapter, mut control) = puppet(&disk.store, late);
        let world = World::with(disk, Options::default(), vec![adapter]).await;
        let limits = RunLimits { max_tokens: Some(50), best_effort: Some(true), ..RunLimits::default() };
        let run = world.send(limited(limits)).await.unwrap().run;
        let execution = control.next().await;
        let used = Usage { input_tokens: 240, ..Usage::default() };
        let error = Failure::new(code, "the plan of the account is used up");
        execution.end(Executed::Ended(End::Failed { error, retryable: false, usage: used }));
        let ended = world.ended(run.id).await;
        assert_eq!((ended.state.status(), self::code(&ended)), (RunStatus::Failed, code));
        assert_eq!(count(&world.events("a").await, "limit.exceeded"), 1, "{code}");
    }
}
