//! Recovery: how a start handles the work that the last process left unfinished.

use insta::{allow_duplicates, assert_snapshot};
use mainspring_core::{Block, Cursor, Event, Failure, RunChange, RunId, RunStatus, SessionId};
use mainspring_kernel::Options;
use mainspring_kernel::adapter::{End, Record, RestartBehavior};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::kernel::{OnOrphan, RunQuery};
use serde_json::json;

use crate::puppet::{PuppetBehavior, puppet, puppet_request};
use crate::world::{
    Disk, NOW, World, by_key, events_text, every_store, message_text, run_process, run_ready_tasks,
    with_timeout,
};

/// Advances the clock until the streamed text of the session is durable.
async fn flush_text(world: &World, session: SessionId, text: &str) {
    let durable = async {
        loop {
            let loaded = world.disk.store.session_load(session).await.unwrap().unwrap();
            let stored: String = loaded.chunks.iter().map(|chunk| chunk.text.as_str()).collect();
            if stored == text {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    world.advance_until(100, durable).await;
}

async fn events_after(world: &World, key: &str, after: Cursor) -> Vec<Event> {
    let events = world.events(key).await;
    events.into_iter().filter(|event| event.cursor > after).collect()
}

#[test]
fn a_running_run_is_orphaned_and_keeps_its_durable_text() {
    for disk in every_store() {
        let (run, cursor) = run_process(async {
            let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
            let world = World::with(disk.clone(), Options::default(), vec![adapter]).await;
            let run = world.send(puppet_request("a", "go")).await.unwrap().run;
            let execution = control.next().await;
            execution.handle.delta(0, "durable ").unwrap();
            execution.handle.delta(0, "text").unwrap();
            flush_text(&world, run.session, "durable text").await;
            execution.handle.delta(0, " and lost").unwrap();
            (run.id, world.events("a").await.pop().unwrap().cursor)
        });
        run_process(async {
            let world = World::reboot(&disk).await;
            let run = world.get(run).await;
            assert_eq!(run.state.status(), RunStatus::Orphaned, "{}", disk.name);
            assert_eq!(run.state.error().unwrap().code.as_str(), "executor_lost");
            let attempts = world.kernel.run_attempts(&world.me, run.id).await.unwrap().items;
            assert_eq!(attempts[0].status, RunStatus::Orphaned);
            let (dispatches, path) =
                (events_text(&events_after(&world, "a", cursor).await), world.path_text("a").await);
            allow_duplicates! {
                assert_snapshot!(dispatches, @r#"
                usage.updated 0 in, 0 out
                attempt.failed orphaned executor_lost retryable=true
                message.completed assistant failed "durable text" + error executor_lost
                run.orphaned executor_lost
                "#);
                assert_snapshot!(path, @r#"
                user completed "go"
                assistant failed "durable text" + error executor_lost
                "#);
            }
            assert!(disk.store.session_load(run.session).await.unwrap().unwrap().chunks.is_empty());
            assert_eq!(world.play("b", "say alive").await.state.status(), RunStatus::Succeeded);
        });
    }
}

#[test]
fn open_tool_calls_become_unknown_with_results_on_the_path() {
    for disk in every_store() {
        let call = |id: &str| Block::tool_use(id, "deploy", json!({}));
        let cursor = run_process(async {
            let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
            let world = World::with(disk.clone(), Options::default(), vec![adapter]).await;
            world.send(puppet_request("a", "go")).await.unwrap();
            let execution = control.next().await;
            let message = Record::Message { blocks: vec![call("t1"), call("t2")], usage: None };
            let started = Record::ToolStarted {
                tool_use_id: "t1".into(),
                name: "deploy".into(),
                input: None,
                decided_by: None,
            };
            execution.handle.record(vec![message, started]).await.unwrap();
            world.events("a").await.pop().unwrap().cursor
        });
        run_process(async {
            let world = World::reboot(&disk).await;
            let (dispatches, path) =
                (events_text(&events_after(&world, "a", cursor).await), world.path_text("a").await);
            allow_duplicates! {
                assert_snapshot!(dispatches, @r#"
                usage.updated 0 in, 0 out
                attempt.failed orphaned executor_lost retryable=true
                tool.failed Unknown
                message.completed user completed result "outcome unknown: the run ended before the tool answered" error=true + result "outcome unknown: the run ended before the tool answered" error=true
                message.completed assistant failed error executor_lost
                run.orphaned executor_lost
                "#);
                assert_snapshot!(path, @r#"
                user completed "go"
                assistant completed call deploy + call deploy
                user completed result "outcome unknown: the run ended before the tool answered" error=true + result "outcome unknown: the run ended before the tool answered" error=true
                assistant failed error executor_lost
                "#);
            }
            let session = world.kernel.session_get(&world.me, &by_key("a")).await.unwrap();
            assert!(disk.store.session_load(session.id).await.unwrap().unwrap().open_tool_calls.is_empty());
        });
    }
}

#[test]
fn a_run_that_is_cancelled_before_its_retry_leaves_no_open_tool_calls() {
    let resumes = || PuppetBehavior {
        restart_behavior: RestartBehavior::ResumesFromMessages,
        ..PuppetBehavior::default()
    };
    for disk in every_store() {
        let run = run_process(async {
            let (adapter, mut control) = puppet(&disk.store, resumes());
            let world = World::with(disk.clone(), Options::default(), vec![adapter]).await;
            let run = world.send(puppet_request("a", "go")).await.unwrap().run;
            let execution = control.next().await;
            let id = || "t1".to_owned();
            let calls = vec![
                Record::Message { blocks: vec![Block::tool_use(id(), "deploy", json!({}))], usage: None },
                Record::ToolStarted {
                    tool_use_id: id(),
                    name: "deploy".into(),
                    input: None,
                    decided_by: None,
                },
                Record::ToolCompleted { tool_use_id: id(), content: vec![Block::text("deployed")] },
            ];
            execution.handle.record(calls).await.unwrap();
            execution.end(End::failed(Failure::new("x", "y"), true));
            world.wait_until(run.id, |run| run.attempts == 1 && run.state.status() == RunStatus::Queued).await
        });
        run_process(async {
            let (adapter, _control) = puppet(&disk.store, resumes());
            let options = Options { execute: false, ..Options::default() };
            let clock = Clock::manual(NOW.plus(1_000));
            let world = World::boot(disk.clone(), options, vec![adapter], clock, 2).await;
            assert_eq!(disk.store.session_load(run.session).await.unwrap().unwrap().open_tool_calls.len(), 1);
            with_timeout(world.kernel.run_cancel(&world.me, run.id)).await.unwrap();
            let path = world.path_text("a").await;
            allow_duplicates! {
                assert_snapshot!(path, @r#"
                user completed "go"
                assistant completed call deploy
                user completed result "deployed" error=false
                assistant cancelled error cancelled
                "#);
            }
            let stored = disk.store.session_load(run.session).await.unwrap().unwrap();
            assert_eq!(stored.open_tool_calls, [], "{}", disk.name);
        });
    }
}

#[test]
fn starting_and_cancelling_runs_are_orphaned_and_queued_runs_start() {
    for disk in every_store() {
        let (ids, before): (Vec<RunId>, Vec<_>) = run_process(async {
            let behavior = PuppetBehavior { uses_bindings: true, ..PuppetBehavior::default() };
            let (adapter, mut control) = puppet(&disk.store, behavior);
            assert_eq!(adapter.capabilities().restart_behavior, RestartBehavior::AttemptsOrphaned);
            let options = Options { max_workers: 2, ..Options::default() };
            let world = World::with(disk.clone(), options, vec![adapter]).await;
            let ended = [world.play("e1", "say done").await, world.play("e2", "fail for good").await];
            let starting = world.send(puppet_request("s", "go")).await.unwrap().run;
            control.next().await;
            let cancelling = world.prompt("c", "ignore-cancel; hang").await;
            world.kernel.run_cancel(&world.me, cancelling.id).await.unwrap();
            let queued = [world.prompt("q", "say one").await, world.prompt("q", "say two").await];
            assert_eq!(world.get(starting.id).await.state.status(), RunStatus::Starting);
            assert_eq!(world.get(cancelling.id).await.state.status(), RunStatus::Cancelling);
            let ids = vec![starting.id, cancelling.id, queued[0].id, queued[1].id, ended[0].id, ended[1].id];
            (ids, vec![world.get(ended[0].id).await, world.get(ended[1].id).await])
        });
        run_process(async {
            let world = World::reboot(&disk).await;
            for orphan in &ids[..2] {
                let run = world.get(*orphan).await;
                assert_eq!(run.state.status(), RunStatus::Orphaned, "{}", disk.name);
            }
            let events = world.events("c").await;
            let dispatches: Vec<_> =
                events.iter().filter(|event| event.body.kind() == "attempt.cancel_dispatch").collect();
            assert_eq!(dispatches.len(), 1, "recovery does not record a dispatch");
            for queued in &ids[2..4] {
                assert_eq!(world.ended(*queued).await.state.status(), RunStatus::Succeeded);
            }
            let texts: Vec<String> =
                world.path("q").await.iter().map(|message| message_text(message)).collect();
            assert_eq!(texts[1], r#"assistant completed "one\n""#);
            assert_eq!(texts[3], r#"assistant completed "two\n""#);
            assert_eq!(vec![world.get(ids[4]).await, world.get(ids[5]).await], before);
        });
    }
}

#[test]
fn an_orphaned_run_is_retried_if_its_policy_says_so() {
    for disk in every_store() {
        let run = run_process(async {
            let world = World::on(disk.clone()).await;
            let run = world.prompt("a", r#"tool add {"a": 1, "b": 2}; say rest; hang"#).await;
            world.wait_until(run.id, |_| true).await;
            let (_, mut events) = world.subscribe("a", Some(mainspring_core::Position::START)).await;
            crate::world::read_until(&mut events, "tool.completed").await;
            run.id
        });
        run_process(async {
            let options = Options { on_orphan: OnOrphan::Retry, ..Options::default() };
            let clock = Clock::manual(NOW.plus(1_000));
            let world = World::boot(disk.clone(), options, vec![], clock, 2).await;
            let run = world.wait_until(run, |run| run.attempts == 2 && run.state.holder().is_some()).await;
            assert_eq!(run.state.status(), RunStatus::Running, "{}", disk.name);
            let attempts = world.kernel.run_attempts(&world.me, run.id).await.unwrap().items;
            let states: Vec<_> = attempts.iter().map(|attempt| (attempt.no, attempt.status)).collect();
            assert_eq!(states, [(1, RunStatus::Orphaned), (2, RunStatus::Running)]);
            assert_eq!(attempts[1].resume_from, Some(attempts[0].id));
            world.kernel.run_cancel(&world.me, run.id).await.unwrap();
            world.ended(run.id).await;
        });
        run_process(async {
            let options = Options { on_orphan: OnOrphan::Retry, ..Options::default() };
            let world = World::boot(disk.clone(), options, vec![], Clock::manual(NOW.plus(2_000)), 3).await;
            assert_eq!(
                world.get(run).await.state.status(),
                RunStatus::Cancelled,
                "an ended run is not retried"
            );
        });
    }
}

#[test]
fn an_orphaned_run_without_attempts_left_stays_orphaned() {
    let disk = Disk::memory();
    let options = Options { on_orphan: OnOrphan::Retry, ..Options::default() };
    let mut run = None;
    for life in 0..4 {
        run_process(async {
            let clock = Clock::manual(NOW.plus(life * 1_000));
            let world = World::boot(disk.clone(), options.clone(), vec![], clock, life + 1).await;
            match run {
                None => run = Some(world.prompt("a", "hang").await.id),
                Some(run) => {
                    let wanted = u32::try_from(life + 1).unwrap().min(3);
                    world.wait_until(run, |run| run.attempts == wanted).await;
                }
            }
            run_ready_tasks().await;
            let status = world.get(run.unwrap()).await.state.status();
            assert_eq!(status, if life < 3 { RunStatus::Running } else { RunStatus::Orphaned });
        });
    }
}

#[test]
fn a_run_that_paused_before_a_retry_is_retried_after_the_restart() {
    for disk in every_store() {
        let run = run_process(async {
            let world = World::on(disk.clone()).await;
            let run = world.prompt("a", "say partial; fail once; say whole").await;
            world.wait_until(run.id, |run| run.attempts == 1 && run.state.holder().is_none()).await.id
        });
        run_process(async {
            let world = World::reboot(&disk).await;
            let run = world.advance_until(100, world.ended(run)).await;
            assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 2), "{}", disk.name);
            assert_eq!(world.path("a").await.len(), 2);
        });
    }
}

#[test]
fn a_run_whose_adapter_is_missing_fails_with_a_code() {
    let disk = Disk::memory();
    let run = run_process(async {
        let (adapter, _control) = puppet(&disk.store, PuppetBehavior::default());
        let options = Options { execute: false, ..Options::default() };
        let world = World::with(disk.clone(), options, vec![adapter]).await;
        world.send(puppet_request("a", "go")).await.unwrap().run.id
    });
    run_process(async {
        let world = World::reboot(&disk).await;
        let run = world.ended(run).await;
        assert_eq!(run.state.error().unwrap().code.as_str(), "adapter_unavailable");
    });
}

#[test]
fn a_start_loads_only_unfinished_sessions() {
    for disk in every_store() {
        run_process(async {
            let world = World::on(disk.clone()).await;
            for no in 0..60 {
                world.play(&format!("done{no}"), "say hi").await;
            }
            for no in 0..3 {
                let run = world.prompt(&format!("waits{no}"), "ask which?").await;
                world.wait_for_question(run.id).await;
            }
        });
        run_process(async {
            let world = World::reboot(&disk).await;
            assert_eq!(world.kernel.sessions_in_memory(), 3, "{}", disk.name);
            let runs = world.kernel.run_list(&world.me, RunQuery { limit: Some(100), ..RunQuery::default() });
            assert_eq!(with_timeout(runs).await.unwrap().len(), 63);
        });
    }
}

#[test]
fn a_retried_orphan_continues_after_its_last_message() {
    for disk in every_store() {
        let run = run_process(async {
            let world = World::on(disk.clone()).await;
            let run = world.prompt("a", r#"tool upper {"text": "x"}; hang"#).await;
            let (_, mut events) = world.subscribe("a", Some(mainspring_core::Position::START)).await;
            crate::world::read_until(&mut events, "tool.completed").await;
            run.id
        });
        run_process(async {
            let world = World::reboot(&disk).await;
            world.kernel.run_retry(&world.me, run, RunChange::default()).await.unwrap();
            let retried =
                world.wait_until(run, |run| run.attempts == 2 && run.state.holder().is_some()).await;
            assert_eq!(retried.state.status(), RunStatus::Running);
            world.kernel.run_cancel(&world.me, run).await.unwrap();
            world.ended(run).await;
            let tree = world.tree("a").await;
            let lost: Vec<_> = tree.nodes.iter().filter(|node| !node.active).collect();
            assert_eq!(lost.len(), 1, "messages of the lost attempt are not on the path: {}", disk.name);
            assert!(message_text(&lost[0].message).contains("executor_lost"));
        });
    }
}

#[test]
fn a_start_that_cannot_record_recovery_fails_and_the_next_start_succeeds() {
    for disk in every_store() {
        let run = run_process(async { World::on(disk.clone()).await.prompt("a", "say half; hang").await.id });
        run_process(async {
            disk.inject_fault(mainspring_store::Fault::CommitFails);
            let (clock, ids) = (Clock::manual(NOW), mainspring_kernel::ids::Ids::seeded(9));
            // The clock does not advance: waiting for a retry would never end.
            let start =
                mainspring_kernel::Kernel::start(disk.store.clone(), vec![], Options::default(), clock, ids);
            assert_eq!(with_timeout(start).await.err().unwrap().code(), "unavailable", "{}", disk.name);
        });
        run_process(async {
            let world = World::reboot(&disk).await;
            assert_eq!(world.get(run).await.state.status(), RunStatus::Orphaned, "{}", disk.name);
        });
    }
}
