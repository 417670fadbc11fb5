//! No child exceeds its parent: shares of limits, number and depth of children.

use mainspring_core::{Cost, Mode, RunLimits, RunOptions, Usage};
use mainspring_kernel::kernel::RunRequest;

use super::*;
use crate::simulation::Random;

fn limited(limits: RunLimits, request: DelegationRequest) -> DelegationRequest {
    DelegationRequest { options: RunOptions { limits, ..request.options }, ..request }
}

fn tokens(max_tokens: u64) -> RunLimits {
    RunLimits { max_tokens: Some(max_tokens), ..RunLimits::default() }
}

async fn world_with(disk: Disk, options: Options) -> (World, PuppetControl) {
    let (adapter, control) = puppet(&disk.store, PuppetBehavior { obeys: true, ..PuppetBehavior::default() });
    (World::with(disk, options, vec![adapter]).await, control)
}

/// Starts a parent run with limits.
async fn limited_parent(world: &World, control: &mut PuppetControl, limits: RunLimits) -> (Run, Execution) {
    let mut prompt = puppet_request("limited", "go");
    prompt.options.limits = limits;
    let run = world.send(prompt).await.unwrap().run;
    (run, control.next().await)
}

#[tokio::test]
async fn children_that_are_made_at_the_same_time_share_the_rest() {
    for disk in every_store() {
        let (world, mut control) = world(disk).await;
        let (_, execution) = limited_parent(&world, &mut control, tokens(100)).await;
        let child = |name: &str| {
            let work = limited(tokens(60), request(DelegationMode::Spawn, name));
            delegate(&execution.handle, work)
        };
        let (one, other) = tokio::join!(child("1"), child("2"));
        let mut shares = [one, other].map(|child| child.run.options.limits.max_tokens.unwrap());
        shares.sort_unstable();
        assert_eq!(shares, [40, 60], "{}", world.disk.name);
    }
}

#[tokio::test]
async fn a_child_without_limits_leaves_something_for_the_next_one() {
    let (world, mut control) = world(Disk::memory()).await;
    let (_, execution) = limited_parent(&world, &mut control, tokens(100)).await;
    let mut shares = vec![];
    for name in ["1", "2", "3"] {
        let child = delegate(&execution.handle, request(DelegationMode::Spawn, name)).await;
        shares.push(child.run.options.limits.max_tokens.unwrap());
    }
    assert_eq!(shares, [50, 25, 13]);
}

#[tokio::test]
async fn a_run_has_only_so_many_children_at_once() {
    let mut options = Options::default();
    options.limits.children_per_run = 2;
    let (world, mut control) = world_with(Disk::sqlite(), options).await;
    let (_, execution) = parent(&world, &mut control).await;
    let spawn = |name: &str| request(DelegationMode::Spawn, name);
    let first = delegate(&execution.handle, spawn("1")).await;
    delegate(&execution.handle, spawn("2")).await;
    assert_eq!(refusal(&execution.handle, spawn("3")).await, Error::TooManyChildren { limit: 2 });
    control.next().await.end(End::succeeded());
    world.ended(first.run.id).await;
    delegate(&execution.handle, spawn("3")).await;
    assert_eq!(refusal(&execution.handle, spawn("4")).await.code(), "too_many_children");
}

#[tokio::test]
async fn a_child_delegates_no_deeper_than_its_parent_was_allowed() {
    let (world, mut control) = world(Disk::memory()).await;
    let (_, execution) = parent(&world, &mut control).await;
    let deep =
        |depth, name| DelegationRequest { max_depth: Some(depth), ..request(DelegationMode::Spawn, name) };
    delegate(&execution.handle, deep(1, "1")).await;
    let child = control.next().await;
    assert_eq!(refusal(&child.handle, deep(5, "2")).await, Error::TooDeep { depth: 2, limit: 1 });
    let (_, alone) =
        limited_parent(&world, &mut control, RunLimits { max_depth: Some(0), ..RunLimits::default() }).await;
    assert_eq!(refusal(&alone.handle, deep(5, "3")).await, Error::TooDeep { depth: 1, limit: 0 });
}

#[tokio::test]
async fn a_message_to_an_existing_session_is_limited_too() {
    let (world, mut control) = world(Disk::memory()).await;
    let other = world.send(puppet_request("other", "hello")).await.unwrap().run;
    control.next().await.end(End::succeeded());
    world.ended(other.id).await;
    let mut prompt = RunRequest { mode: Mode::Ask, ..puppet_request("parent", "go") };
    prompt.options.limits = tokens(10);
    world.send(prompt).await.unwrap();
    let execution = control.next().await;
    let send = |mode, name| DelegationRequest {
        session: existing(other.session),
        run_mode: mode,
        ..limited(tokens(1_000), request(DelegationMode::Continue, name))
    };
    assert_eq!(refusal(&execution.handle, send(Mode::Act, "1")).await.code(), "forbidden");
    let sent = delegate(&execution.handle, send(Mode::Ask, "2")).await;
    assert_eq!((sent.run.mode, sent.run.options.limits.max_tokens), (Mode::Ask, Some(10)));
}

/// Random trees of delegations with random requests. Each child is compared with its parent when it is accepted.
#[tokio::test]
async fn no_random_child_exceeds_its_parent() {
    for seed in 0..30 {
        let mut random = Random(seed);
        let options = Options { max_workers: 100, ..Options::default() };
        let (world, mut control) = world_with(Disk::memory(), options).await;
        let (_, execution) = limited_parent(&world, &mut control, random_limits(&mut random)).await;
        let mut live = vec![execution];
        for step in 0..40 {
            let at = random.below(live.len());
            if random.below(4) == 0 && live.len() > 1 {
                let used = Usage { output_tokens: random.below(30) as u64, ..Usage::default() };
                let ended = live.swap_remove(at);
                let run = ended.handle.assignment().run.id;
                ended.end(Executed::Ended(End::Succeeded { usage: used }));
                world.ended(run).await;
                continue;
            }
            let parent = live[at].handle.assignment().run.id;
            let before = world.kernel.run_get(&world.me, parent).await.unwrap();
            let mode = if random.below(2) == 0 { Mode::Ask } else { Mode::Act };
            let work = DelegationRequest {
                run_mode: mode,
                max_depth: (random.below(2) == 0).then(|| 1 + random.below(5) as u32),
                ..limited(random_limits(&mut random), request(DelegationMode::Spawn, &step.to_string()))
            };
            let spent = live[at].handle.spent_by_children().await.unwrap();
            let Ok(child) = with_timeout(live[at].handle.delegate(work)).await else { continue };
            live.push(control.next().await);
            assert_within(&before, &spent, &child.run, seed);
        }
    }
}

fn random_limits(random: &mut Random) -> RunLimits {
    let mut amount = |most: usize| (random.below(2) == 0).then(|| 1 + random.below(most) as u64);
    RunLimits {
        max_tokens: amount(200),
        max_cost: amount(1_000).map(Cost),
        max_time: amount(100_000),
        max_depth: amount(4).map(|depth| u32::try_from(depth).unwrap()),
        ask: amount(2).map(|no| no == 1),
        ..RunLimits::default()
    }
}

fn assert_within(parent: &Run, spent: &Usage, child: &Run, seed: u64) {
    let (outer, inner) = (parent.options.limits, child.options.limits);
    let context = format!("seed {seed}: {inner:?} of {outer:?}, of which {spent:?} is given away");
    assert!(child.mode == Mode::Ask || parent.mode == Mode::Act, "{context}");
    if let Some(max) = outer.max_tokens {
        let used = parent.usage.tokens() + spent.tokens();
        assert!(inner.max_tokens.is_some_and(|inner| inner + used <= max), "{context}");
    }
    if let Some(max) = outer.max_cost {
        let used = parent.usage.cost.0 + spent.cost.0;
        assert!(inner.max_cost.is_some_and(|inner| inner.0 + used <= max.0), "{context}");
    }
    if let Some(max) = outer.max_time {
        assert!(inner.max_time.is_some_and(|inner| inner <= max), "{context}");
    }
    if let Some(max) = outer.max_depth {
        assert!(inner.max_depth.is_some_and(|inner| inner <= max), "{context}");
    }
    let is_limited = !outer.has_no_amount() || outer.max_time.is_some();
    assert!(!is_limited || inner.ask != Some(true) || outer.ask == Some(true), "{context}");
}
