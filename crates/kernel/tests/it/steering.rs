//! Steering: a prompt joins the run that is active, or runs next; either way it ends.

use insta::{allow_duplicates, assert_snapshot};
use mainspring_core::{Block, Mode, Policy, RequestName, RunOptions, RunStatus};
use mainspring_kernel::Options;
use mainspring_kernel::adapter::{End, HandleError, Record};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::kernel::RunRequest;

use crate::puppet::{Hands, Manners, Strings, pull, puppet};
use crate::world::{Disk, NOW, World, every_store, live, soon, story};

async fn start(disk: &Disk) -> (World, Hands) {
    start_at(disk, 0, 1).await
}

async fn start_at(disk: &Disk, later: u64, seed: u64) -> (World, Hands) {
    let manners = Manners { steers: true, obeys: true, ..Manners::default() };
    let (adapter, hands) = puppet(&disk.store, manners);
    let clock = Clock::manual(NOW.plus(later));
    (World::boot(disk.clone(), Options::default(), vec![adapter], clock, seed).await, hands)
}

fn steer(text: &str) -> RunRequest {
    let name = RequestName { request_id: Some(text.into()), ..RequestName::default() };
    RunRequest { policy: Policy::Steer, name, ..pull("a", text) }
}

fn says(text: &str) -> Record {
    Record::Message { blocks: vec![Block::text(text)], usage: None }
}

/// Takes what waits and gives its texts.
async fn take(strings: &Strings, records: Vec<Record>) -> Vec<String> {
    let prompts = soon(strings.handle.steer(records)).await.unwrap();
    prompts.iter().map(|prompt| prompt.text()).collect()
}

#[tokio::test]
async fn prompts_join_the_run_and_end_with_it() {
    for disk in every_store() {
        let (world, mut hands) = start(&disk).await;
        let run = world.send(pull("a", "build it")).await.unwrap().run;
        let strings = hands.next().await;
        assert!(!strings.handle.is_steered());
        assert_eq!(take(&strings, vec![]).await, [""; 0], "nobody has said anything");
        let accepted = world.send(steer("in blue")).await.unwrap();
        assert_eq!((accepted.policy, accepted.run.steers), (Policy::Steer, true));
        soon(strings.handle.steered()).await;
        let second = world.send(steer("and small")).await.unwrap().run;
        assert_eq!(take(&strings, vec![says("first I dig")]).await, ["in blue", "and small"]);
        assert!(!strings.handle.is_steered());
        let merged = world.get(second.id).await;
        assert_eq!((merged.state.status(), merged.merged_into), (RunStatus::Queued, Some(run.id)));
        let snapshot = world.kernel.session_snapshot(&world.me, &crate::world::by("a")).await.unwrap();
        assert_eq!(snapshot.pending.len(), 4, "all that was said is shown while it works");
        assert_eq!(snapshot.queued_runs.len(), 2);
        strings.handle.delta(0, "a small blue one").unwrap();
        strings.end(End::succeeded());
        let run = world.ended(run.id).await;
        for follower in [accepted.run.id, second.id] {
            let ended = world.ended(follower).await;
            assert_eq!(ended.state.status(), RunStatus::Succeeded);
            assert_eq!(ended.final_message, run.final_message, "its answer is the run's");
            assert_eq!((ended.attempts, ended.usage.is_zero()), (0, true));
        }
        assert!(hands.is_idle(), "nothing of it runs by itself");
        let events = world.events("a").await;
        let requests: Vec<_> = events
            .iter()
            .filter(|event| event.body.ends_run())
            .map(|event| event.request.clone().unwrap_or_default())
            .collect();
        assert_eq!(requests, ["", "in blue", "and small"]);
        let path = world.path_shown("a").await;
        allow_duplicates! {
            assert_snapshot!(story(&events), @r#"
            session.created
            run.queued
            attempt.created 1
            run.starting
            message.completed user completed "build it"
            attempt.started
            run.running
            run.queued
            run.queued
            message.completed assistant completed "first I dig"
            run.merged
            message.completed user completed "in blue"
            run.merged
            message.completed user completed "and small"
            message.completed assistant completed "a small blue one"
            session.updated
            run.succeeded
            run.succeeded
            run.succeeded
            "#);
            assert_snapshot!(path, @r#"
            user completed "build it"
            assistant completed "first I dig"
            user completed "in blue"
            user completed "and small"
            assistant completed "a small blue one"
            "#);
        }
        let next = world.send(pull("a", "thanks")).await.unwrap().run;
        hands.next().await.end(End::succeeded());
        assert_eq!(world.ended(next.id).await.no, 4);
    }
}

#[tokio::test]
async fn a_prompt_that_comes_too_late_runs_next() {
    for disk in every_store() {
        let (world, mut hands) = start(&disk).await;
        world.send(pull("a", "one")).await.unwrap();
        let strings = hands.next().await;
        world.send(pull("a", "three")).await.unwrap();
        world.send(steer("two")).await.unwrap();
        strings.end(End::succeeded());
        for text in ["two", "three"] {
            let strings = hands.next().await;
            assert_eq!(strings.handle.assignment().prompt.text(), text);
            assert!(!strings.handle.is_steered());
            let run = strings.handle.assignment().run.id;
            strings.end(End::succeeded());
            let run = world.ended(run).await;
            assert_eq!((run.state.status(), run.merged_into), (RunStatus::Succeeded, None));
        }
    }
}

#[tokio::test]
async fn what_has_joined_is_stopped_and_tried_again_with_the_run() {
    for disk in every_store() {
        let (world, mut hands) = start(&disk).await;
        let run = world.send(pull("a", "one")).await.unwrap().run;
        let strings = hands.next().await;
        let joined = world.send(steer("two")).await.unwrap().run;
        take(&strings, vec![]).await;
        let error = world.kernel.run_cancel(&world.me, joined.id).await.unwrap_err();
        assert_eq!(error.code(), "run_merged");
        assert!(error.to_string().contains(&run.id.to_string()), "{error}");
        strings.end(End::failed(mainspring_core::Failure::new("broke", "it broke"), false));
        assert_eq!(world.ended(run.id).await.state.status(), RunStatus::Failed);
        assert_eq!(world.ended(joined.id).await.state.error().unwrap().code, "broke");
        let error = world.kernel.run_retry(&world.me, joined.id).await.unwrap_err();
        assert_eq!(error.code(), "run_merged");
        world.kernel.run_retry(&world.me, run.id).await.unwrap();
        let strings = hands.next().await;
        assert_eq!(world.get(joined.id).await.state.status(), RunStatus::Queued);
        let path = strings.handle.path(9).await.unwrap();
        assert_eq!(path.iter().map(|message| message.text()).collect::<Vec<_>>(), ["one", "two"]);
        drop(strings);
        world.kernel.run_cancel(&world.me, run.id).await.unwrap();
        for id in [run.id, joined.id] {
            assert_eq!(world.ended(id).await.state.status(), RunStatus::Cancelled);
        }
        let ended = world.kernel.run_cancel(&world.me, joined.id).await.unwrap_err();
        assert_eq!(ended.code(), "run_ended");
    }
}

#[tokio::test]
async fn a_prompt_that_is_taken_back_does_not_join() {
    let disk = Disk::memory();
    let (world, mut hands) = start(&disk).await;
    world.send(pull("a", "one")).await.unwrap();
    let strings = hands.next().await;
    let steering = world.send(steer("two")).await.unwrap().run;
    world.kernel.run_cancel(&world.me, steering.id).await.unwrap();
    assert_eq!(take(&strings, vec![says("on I go")]).await, [""; 0]);
    strings.end(End::succeeded());
    assert!(!world.path_shown("a").await.contains("two"));
}

#[tokio::test]
async fn a_prompt_with_wishes_of_its_own_does_not_join_a_run() {
    let disk = Disk::memory();
    let (world, mut hands) = start(&disk).await;
    world.send(pull("a", "one")).await.unwrap();
    let _strings = hands.next().await;
    let options = RunOptions { model: Some("m2".into()), ..RunOptions::default() };
    for request in [RunRequest { options, ..steer("two") }, RunRequest { mode: Mode::Ask, ..steer("three") }]
    {
        let error = world.send(request).await.unwrap_err();
        assert_eq!(error.code(), "invalid_request", "{error}");
    }
    let other = RunRequest { adapter: Some("script".into()), ..steer("say hi") };
    assert_eq!(world.send(other).await.unwrap_err().code(), "adapter_incompatible");
}

#[tokio::test]
async fn a_late_execution_takes_nothing() {
    let disk = Disk::memory();
    let (world, mut hands) = start(&disk).await;
    let run = world.send(pull("a", "one")).await.unwrap().run;
    let late = hands.next().await.end(End::succeeded());
    world.ended(run.id).await;
    world.send(pull("a", "two")).await.unwrap();
    let strings = hands.next().await;
    world.send(steer("three")).await.unwrap();
    assert_eq!(soon(late.steer(vec![])).await.unwrap_err(), HandleError::Revoked);
    assert_eq!(take(&strings, vec![]).await, ["three"]);
}

#[test]
fn after_a_crash_what_had_joined_shares_the_runs_fate_and_what_had_not_runs() {
    for disk in every_store() {
        let (run, joined, waiting) = live(async {
            let (world, mut hands) = start(&disk).await;
            let run = world.send(pull("a", "one")).await.unwrap().run;
            let strings = hands.next().await;
            let joined = world.send(steer("two")).await.unwrap().run;
            take(&strings, vec![]).await;
            let waiting = world.send(steer("three")).await.unwrap().run;
            (run.id, joined.id, waiting.id)
        });
        live(async {
            let (world, mut hands) = start_at(&disk, 1_000, 2).await;
            let strings = hands.next().await;
            assert_eq!(strings.handle.assignment().run.id, waiting, "{}", disk.name);
            for id in [run, joined] {
                assert_eq!(world.get(id).await.state.status(), RunStatus::Orphaned, "{}", disk.name);
            }
            strings.end(End::succeeded());
            assert_eq!(world.ended(waiting).await.state.status(), RunStatus::Succeeded);
        });
    }
}
