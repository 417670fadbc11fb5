//! Limits of children: each child gets a share of the rest of its parent's limits, also when the child is
//! retried.

use mainspring_core::{Cost, DelegationMode, Failure, RunChange, RunLimits, RunOptions, RunStatus, Usage};
use mainspring_kernel::adapter::{End, Executed, Record};
use mainspring_kernel::kernel::DelegationRequest;

use super::{delegate, refusal, request, world};
use crate::puppet::{Execution, PuppetControl, puppet_request};
use crate::world::{Disk, World, every_store, with_timeout};

fn dollars(usd: f64) -> Option<Cost> {
    Some(Cost::from(usd))
}

fn usage(usd: f64) -> Usage {
    Usage { cost: Cost::from(usd), ..Usage::default() }
}

/// Starts a parent that may use a dollar and has used a tenth of it.
async fn parent_with_a_dollar(world: &World, control: &mut PuppetControl) -> Execution {
    let mut prompt = puppet_request("parent", "go");
    prompt.options.limits = RunLimits { max_cost: dollars(1.0), ..RunLimits::default() };
    world.send(prompt).await.unwrap();
    let execution = control.next().await;
    execution.handle.record(vec![Record::Usage(usage(0.1))]).await.unwrap();
    execution
}

/// A request for a child that may use half a dollar.
fn share(name: &str) -> DelegationRequest {
    let limits = RunLimits { max_cost: dollars(0.5), ..RunLimits::default() };
    let options = RunOptions { limits, ..RunOptions::default() };
    DelegationRequest { options, ..request(DelegationMode::Spawn, name) }
}

#[tokio::test]
async fn a_child_gets_a_share_of_its_parents_budget_and_returns_the_rest() {
    let (world, mut control) = world(Disk::sqlite()).await;
    let execution = parent_with_a_dollar(&world, &mut control).await;
    let first = delegate(&execution.handle, share("1")).await;
    assert_eq!(first.run.options.limits.max_cost, dollars(0.5));
    let second = delegate(&execution.handle, share("2")).await;
    assert_eq!(second.run.options.limits.max_cost, dollars(0.4), "no more than is left");
    assert_eq!(refusal(&execution.handle, share("3")).await.code(), "invalid_request");
    assert_eq!(execution.handle.spent_by_children().await.unwrap().cost, Cost::from(0.9));
    control.next().await.end(Executed::Ended(End::Succeeded { usage: usage(0.2) }));
    world.ended(first.run.id).await;
    assert_eq!(execution.handle.spent_by_children().await.unwrap().cost, Cost::from(0.6));
    let fourth = delegate(&execution.handle, share("4")).await;
    assert_eq!(
        fourth.run.options.limits.max_cost,
        dollars(0.3),
        "what the first child did not use is free again"
    );
}

#[tokio::test]
async fn a_retried_child_gets_no_more_than_its_parent_has_left() {
    for disk in every_store() {
        let (world, mut control) = world(disk).await;
        let execution = parent_with_a_dollar(&world, &mut control).await;
        let child = delegate(&execution.handle, share("1")).await;
        let retry = async |limit: f64| {
            let limits = RunLimits { max_cost: dollars(limit), ..RunLimits::default() };
            let change = RunChange { limits, ..RunChange::default() };
            with_timeout(world.kernel.run_retry(&world.me, child.run.id, change)).await.unwrap()
        };
        let broken = || Failure::new("broken", "it broke");
        let error = Executed::Ended(End::Failed { error: broken(), retryable: false, usage: usage(0.3) });
        control.next().await.end(error);
        world.ended(child.run.id).await;
        // A dollar minus the parent's usage. The child's earlier usage counts against the limit of the retry too.
        let retried = retry(5.0).await;
        assert_eq!(retried.options.limits.max_cost, dollars(0.9), "{}", world.disk.name);
        control.next().await.end(End::failed(broken(), false));
        world.wait_until(child.run.id, |run| run.attempts == 2 && run.state.status().is_ended()).await;
        assert_eq!(
            retry(0.7).await.options.limits.max_cost,
            dollars(0.7),
            "{}: a lower limit is kept",
            world.disk.name
        );
        control.next().await.end(End::succeeded());
        let done = world.wait_until(child.run.id, |run| run.state.status() == RunStatus::Succeeded).await;
        assert_eq!(done.usage.cost, Cost::from(0.3));
    }
}
