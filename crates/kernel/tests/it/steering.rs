//! Steering: a prompt joins the active run or runs next. Its run ends in both cases.

use insta::{allow_duplicates, assert_snapshot};
use mainspring_core::{Block, Mode, Policy, RequestName, RunChange, RunOptions, RunStatus};
use mainspring_kernel::Options;
use mainspring_kernel::adapter::{End, HandleError, Record};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::kernel::{Caller, RunRequest};
use serde_json::Value;

use crate::portable::{export, import};
use crate::puppet::{Execution, PuppetBehavior, PuppetControl, puppet, puppet_request};
use crate::world::{Disk, NOW, World, events_text, every_store, run_process, with_timeout};

async fn start(disk: &Disk) -> (World, PuppetControl) {
    start_at(disk, 0, 1).await
}

async fn start_at(disk: &Disk, later: u64, seed: u64) -> (World, PuppetControl) {
    let behavior = PuppetBehavior { steers: true, obeys: true, ..PuppetBehavior::default() };
    let (adapter, control) = puppet(&disk.store, behavior);
    let clock = Clock::manual(NOW.plus(later));
    (World::boot(disk.clone(), Options::default(), vec![adapter], clock, seed).await, control)
}

fn steer(text: &str) -> RunRequest {
    let name = RequestName { request_id: Some(text.into()), ..RequestName::default() };
    RunRequest { policy: Policy::Steer, name, ..puppet_request("a", text) }
}

fn message_record(text: &str) -> Record {
    Record::Message { blocks: vec![Block::text(text)], usage: None }
}

/// Takes the waiting prompts and returns their texts.
async fn take(execution: &Execution, records: Vec<Record>) -> Vec<String> {
    let prompts = with_timeout(execution.handle.steer(records)).await.unwrap();
    prompts.iter().map(|prompt| prompt.text()).collect()
}

#[tokio::test]
async fn prompts_join_the_run_and_end_with_it() {
    for disk in every_store() {
        let (world, mut control) = start(&disk).await;
        let run = world.send(puppet_request("a", "build it")).await.unwrap().run;
        let execution = control.next().await;
        assert!(!execution.handle.is_steered());
        assert_eq!(take(&execution, vec![]).await, [""; 0], "no prompts are waiting");
        let accepted = world.send(steer("in blue")).await.unwrap();
        assert_eq!((accepted.policy, accepted.run.steers), (Policy::Steer, true));
        with_timeout(execution.handle.steered()).await;
        let second = world.send(steer("and small")).await.unwrap().run;
        assert_eq!(take(&execution, vec![message_record("first I dig")]).await, ["in blue", "and small"]);
        assert!(!execution.handle.is_steered());
        let merged = world.get(second.id).await;
        assert_eq!((merged.state.status(), merged.merged_into), (RunStatus::Queued, Some(run.id)));
        let snapshot = world.kernel.session_snapshot(&world.me, &crate::world::by_key("a")).await.unwrap();
        assert_eq!(snapshot.pending.len(), 4, "all that was said is shown while it works");
        assert_eq!(snapshot.queued_runs.len(), 2);
        execution.handle.delta(0, "a small blue one").unwrap();
        execution.end(End::succeeded());
        let run = world.ended(run.id).await;
        assert_eq!(run.final_text.as_deref(), Some("first I diga small blue one"));
        for follower in [accepted.run.id, second.id] {
            let ended = world.ended(follower).await;
            assert_eq!(ended.state.status(), RunStatus::Succeeded);
            assert_eq!(ended.final_message, run.final_message, "its answer is the run's");
            assert_eq!(ended.final_text.as_deref(), Some("a small blue one"));
            assert_eq!((ended.attempts, ended.usage.is_zero()), (0, true));
        }
        assert!(control.is_idle(), "nothing of it runs by itself");
        let events = world.events("a").await;
        let requests: Vec<_> = events
            .iter()
            .filter(|event| event.body.ends_run())
            .map(|event| event.request.clone().unwrap_or_default())
            .collect();
        assert_eq!(requests, ["", "in blue", "and small"]);
        let path = world.path_text("a").await;
        allow_duplicates! {
            assert_snapshot!(events_text(&events), @r#"
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
            turn.completed
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
        let next = world.send(puppet_request("a", "thanks")).await.unwrap().run;
        control.next().await.end(End::succeeded());
        assert_eq!(world.ended(next.id).await.no, 4);
    }
}

/// Adds the prompts of merged runs to the lines of these runs, as earlier programs did.
fn with_merged_prompts(file: &str) -> String {
    let lines: Vec<Value> = file.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let prompt_of = |run: &Value| {
        let is_prompt = |line: &&Value| line["message"]["messageId"] == run["promptMessageId"];
        lines.iter().find(is_prompt).unwrap()["message"].clone()
    };
    let mut earlier = lines.clone();
    for line in earlier.iter_mut().filter(|line| line["run"]["mergedIntoRunId"].is_string()) {
        line["prompt"] = prompt_of(&line["run"]);
    }
    earlier.iter().map(|line| format!("{line}\n")).collect()
}

#[tokio::test]
async fn a_session_with_a_joined_prompt_is_exported_and_imported() {
    for disk in every_store() {
        let (world, mut control) = start(&disk).await;
        let run = world.send(puppet_request("a", "build it")).await.unwrap().run;
        let execution = control.next().await;
        world.send(steer("in blue")).await.unwrap();
        assert_eq!(take(&execution, vec![message_record("first I dig")]).await, ["in blue"]);
        execution.end(End::succeeded());
        world.ended(run.id).await;
        let file = export(&world, "a").await;
        let earlier = with_merged_prompts(&file);
        assert_eq!(earlier.matches("\"prompt\"").count(), 1, "{earlier}");
        for imported in [&file, &earlier] {
            let there = World::on(Disk::memory()).await;
            import(&there, imported).await.unwrap();
            assert_eq!(export(&there, "a").await, file, "{}", disk.name);
            assert_eq!(there.path_text("a").await, world.path_text("a").await, "{}", disk.name);
        }
    }
}

#[tokio::test]
async fn a_steering_prompt_that_arrives_too_late_runs_next() {
    for disk in every_store() {
        let (world, mut control) = start(&disk).await;
        world.send(puppet_request("a", "one")).await.unwrap();
        let execution = control.next().await;
        world.send(puppet_request("a", "three")).await.unwrap();
        world.send(steer("two")).await.unwrap();
        execution.end(End::succeeded());
        for text in ["two", "three"] {
            let execution = control.next().await;
            assert_eq!(execution.handle.assignment().prompt.text(), text);
            assert!(!execution.handle.is_steered());
            let run = execution.handle.assignment().run.id;
            execution.end(End::succeeded());
            let run = world.ended(run).await;
            assert_eq!((run.state.status(), run.merged_into), (RunStatus::Succeeded, None));
        }
    }
}

#[tokio::test]
async fn joined_prompts_are_cancelled_and_retried_with_the_run() {
    for disk in every_store() {
        let (world, mut control) = start(&disk).await;
        let run = world.send(puppet_request("a", "one")).await.unwrap().run;
        let execution = control.next().await;
        let joined = world.send(steer("two")).await.unwrap().run;
        take(&execution, vec![]).await;
        let error = world.kernel.run_cancel(&world.me, joined.id).await.unwrap_err();
        assert_eq!(error.code(), "run_merged");
        assert!(error.to_string().contains(&run.id.to_string()), "{error}");
        execution.end(End::failed(mainspring_core::Failure::new("broke", "it broke"), false));
        assert_eq!(world.ended(run.id).await.state.status(), RunStatus::Failed);
        assert_eq!(world.ended(joined.id).await.state.error().unwrap().code.as_str(), "broke");
        let error = world.kernel.run_retry(&world.me, joined.id, RunChange::default()).await.unwrap_err();
        assert_eq!(error.code(), "run_merged");
        world.kernel.run_retry(&world.me, run.id, RunChange::default()).await.unwrap();
        let execution = control.next().await;
        assert_eq!(world.get(joined.id).await.state.status(), RunStatus::Queued);
        let path = execution.handle.path(9).await.unwrap();
        assert_eq!(path.iter().map(|message| message.text()).collect::<Vec<_>>(), ["one", "two"]);
        drop(execution);
        world.kernel.run_cancel(&world.me, run.id).await.unwrap();
        for id in [run.id, joined.id] {
            assert_eq!(world.ended(id).await.state.status(), RunStatus::Cancelled);
        }
        let ended = world.kernel.run_cancel(&world.me, joined.id).await.unwrap_err();
        assert_eq!(ended.code(), "run_ended");
    }
}

#[tokio::test]
async fn a_cancelled_prompt_does_not_join() {
    let disk = Disk::memory();
    let (world, mut control) = start(&disk).await;
    world.send(puppet_request("a", "one")).await.unwrap();
    let execution = control.next().await;
    let steering = world.send(steer("two")).await.unwrap().run;
    world.kernel.run_cancel(&world.me, steering.id).await.unwrap();
    assert_eq!(take(&execution, vec![message_record("on I go")]).await, [""; 0]);
    execution.end(End::succeeded());
    assert!(!world.path_text("a").await.contains("two"));
}

#[tokio::test]
async fn a_prompt_with_its_own_options_does_not_join_a_run() {
    let disk = Disk::memory();
    let (world, mut control) = start(&disk).await;
    world.send(puppet_request("a", "one")).await.unwrap();
    let _execution = control.next().await;
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
async fn a_superseded_attempt_takes_no_prompts() {
    let disk = Disk::memory();
    let (world, mut control) = start(&disk).await;
    let run = world.send(puppet_request("a", "one")).await.unwrap().run;
    let late = control.next().await.end(End::succeeded());
    world.ended(run.id).await;
    world.send(puppet_request("a", "two")).await.unwrap();
    let execution = control.next().await;
    world.send(steer("three")).await.unwrap();
    assert_eq!(with_timeout(late.steer(vec![])).await.unwrap_err(), HandleError::Revoked);
    assert_eq!(take(&execution, vec![]).await, ["three"]);
}

#[test]
fn after_a_crash_joined_prompts_end_with_the_run_and_others_run() {
    for disk in every_store() {
        let (run, joined, waiting) = run_process(async {
            let (world, mut control) = start(&disk).await;
            let run = world.send(puppet_request("a", "one")).await.unwrap().run;
            let execution = control.next().await;
            let joined = world.send(steer("two")).await.unwrap().run;
            take(&execution, vec![]).await;
            let waiting = world.send(steer("three")).await.unwrap().run;
            (run.id, joined.id, waiting.id)
        });
        run_process(async {
            let (world, mut control) = start_at(&disk, 1_000, 2).await;
            let execution = control.next().await;
            assert_eq!(execution.handle.assignment().run.id, waiting, "{}", disk.name);
            for id in [run, joined] {
                assert_eq!(world.get(id).await.state.status(), RunStatus::Orphaned, "{}", disk.name);
            }
            execution.end(End::succeeded());
            assert_eq!(world.ended(waiting).await.state.status(), RunStatus::Succeeded);
        });
    }
}

#[tokio::test]
async fn a_caller_with_folders_steers_a_run_in_one_of_them() {
    let disk = Disk::memory();
    let (world, mut control) = start(&disk).await;
    let work = tempfile::tempdir().unwrap();
    let folder = work.path().to_str().unwrap().to_owned();
    let mut request = puppet_request("a", "build it");
    request.options.cwd = Some(folder.clone());
    let limited = |folder: String| Caller { folders: Some(vec![folder]), ..Caller::new("ada") };
    let run = world.kernel.run_create(&limited(folder.clone()), request).await.unwrap().run;
    let execution = control.next().await;
    let joined = world.kernel.run_create(&limited(folder), steer("in blue")).await.unwrap().run;
    let error = world.kernel.run_create(&limited("/elsewhere".into()), steer("in red")).await.unwrap_err();
    assert_eq!(error.code(), "folder_not_allowed");
    assert_eq!(take(&execution, vec![]).await, ["in blue"]);
    execution.end(End::succeeded());
    world.ended(run.id).await;
    assert_eq!(world.ended(joined.id).await.merged_into, Some(run.id));
}
