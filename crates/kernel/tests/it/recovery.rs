//! Recovery: what the next process makes of what the last one left unfinished.

use insta::{allow_duplicates, assert_snapshot};
use mainspring_core::{Block, Cursor, Event, RunId, RunStatus, SessionId};
use mainspring_kernel::Options;
use mainspring_kernel::adapter::{Record, RestartBehavior};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::kernel::{OnOrphan, RunQuery};
use serde_json::json;

use crate::puppet::{Manners, pull, puppet};
use crate::world::{Disk, NOW, World, by, every_store, live, settle, shown, soon, story};

/// Turns the clock until the text of the session that was streamed so far is durable.
async fn flushed(world: &World, session: SessionId, text: &str) {
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
    world.turning(100, durable).await;
}

async fn later(world: &World, key: &str, after: Cursor) -> Vec<Event> {
    let events = world.events(key).await;
    events.into_iter().filter(|event| event.cursor > after).collect()
}

#[test]
fn a_running_run_is_orphaned_and_keeps_the_text_that_was_durable() {
    for disk in every_store() {
        let (run, cursor) = live(async {
            let (adapter, mut hands) = puppet(&disk.store, Manners::default());
            let world = World::with(disk.clone(), Options::default(), vec![adapter]).await;
            let run = world.send(pull("a", "go")).await.unwrap().run;
            let strings = hands.next().await;
            strings.handle.delta(0, "durable ").unwrap();
            strings.handle.delta(0, "text").unwrap();
            flushed(&world, run.session, "durable text").await;
            strings.handle.delta(0, " and lost").unwrap();
            (run.id, world.events("a").await.pop().unwrap().cursor)
        });
        live(async {
            let world = World::reboot(&disk).await;
            let run = world.get(run).await;
            assert_eq!(run.state.status(), RunStatus::Orphaned, "{}", disk.name);
            assert_eq!(run.state.error().unwrap().code, "executor_lost");
            let attempts = world.kernel.run_attempts(&world.me, run.id).await.unwrap();
            assert_eq!(attempts[0].status, RunStatus::Orphaned);
            let (told, path) = (story(&later(&world, "a", cursor).await), world.path_shown("a").await);
            allow_duplicates! {
                assert_snapshot!(told, @r#"
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
        let call = |id: &str| Block::ToolUse { id: id.into(), name: "deploy".into(), input: json!({}) };
        let cursor = live(async {
            let (adapter, mut hands) = puppet(&disk.store, Manners::default());
            let world = World::with(disk.clone(), Options::default(), vec![adapter]).await;
            world.send(pull("a", "go")).await.unwrap();
            let strings = hands.next().await;
            let message = Record::Message { blocks: vec![call("t1"), call("t2")], usage: None };
            let started =
                Record::ToolStarted { tool_use_id: "t1".into(), name: "deploy".into(), input: None };
            strings.handle.record(vec![message, started]).await.unwrap();
            world.events("a").await.pop().unwrap().cursor
        });
        live(async {
            let world = World::reboot(&disk).await;
            let (told, path) = (story(&later(&world, "a", cursor).await), world.path_shown("a").await);
            allow_duplicates! {
                assert_snapshot!(told, @r#"
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
            let session = world.kernel.session_get(&world.me, &by("a")).await.unwrap();
            assert!(disk.store.session_load(session.id).await.unwrap().unwrap().open_tool_calls.is_empty());
        });
    }
}

#[test]
fn starting_and_cancelling_runs_are_orphaned_queued_ones_start_and_ended_ones_stay() {
    for disk in every_store() {
        let (ids, before): (Vec<RunId>, Vec<_>) = live(async {
            let manners = Manners { uses_bindings: true, ..Manners::default() };
            let (adapter, mut hands) = puppet(&disk.store, manners);
            assert_eq!(adapter.capabilities().restart_behavior, RestartBehavior::AttemptsOrphaned);
            let options = Options { max_workers: 2, ..Options::default() };
            let world = World::with(disk.clone(), options, vec![adapter]).await;
            let ended = [world.play("e1", "say done").await, world.play("e2", "fail for good").await];
            let starting = world.send(pull("s", "go")).await.unwrap().run;
            hands.next().await;
            let cancelling = world.prompt("c", "ignore-cancel; hang").await;
            world.kernel.run_cancel(&world.me, cancelling.id).await.unwrap();
            let queued = [world.prompt("q", "say one").await, world.prompt("q", "say two").await];
            assert_eq!(world.get(starting.id).await.state.status(), RunStatus::Starting);
            assert_eq!(world.get(cancelling.id).await.state.status(), RunStatus::Cancelling);
            let ids = vec![starting.id, cancelling.id, queued[0].id, queued[1].id, ended[0].id, ended[1].id];
            (ids, vec![world.get(ended[0].id).await, world.get(ended[1].id).await])
        });
        live(async {
            let world = World::reboot(&disk).await;
            for orphan in &ids[..2] {
                let run = world.get(*orphan).await;
                assert_eq!(run.state.status(), RunStatus::Orphaned, "{}", disk.name);
            }
            let events = world.events("c").await;
            let told: Vec<_> =
                events.iter().filter(|event| event.body.kind() == "attempt.cancel_dispatch").collect();
            assert_eq!(told.len(), 1, "the next process claims nothing about what was told");
            for queued in &ids[2..4] {
                assert_eq!(world.ended(*queued).await.state.status(), RunStatus::Succeeded);
            }
            let texts: Vec<String> = world.path("q").await.iter().map(|message| shown(message)).collect();
            assert_eq!(texts[1], r#"assistant completed "one\n""#);
            assert_eq!(texts[3], r#"assistant completed "two\n""#);
            assert_eq!(vec![world.get(ids[4]).await, world.get(ids[5]).await], before);
        });
    }
}

#[test]
fn an_orphan_is_tried_again_where_that_is_wanted() {
    for disk in every_store() {
        let run = live(async {
            let world = World::on(disk.clone()).await;
            let run = world.prompt("a", r#"tool add {"a": 1, "b": 2}; say rest; hang"#).await;
            world.reaches(run.id, |_| true).await;
            let (_, mut events) = world.subscribe("a", Some(mainspring_core::Position::START)).await;
            crate::world::read_until(&mut events, "tool.completed").await;
            run.id
        });
        live(async {
            let options = Options { on_orphan: OnOrphan::Retry, ..Options::default() };
            let clock = Clock::manual(NOW.plus(1_000));
            let world = World::boot(disk.clone(), options, vec![], clock, 2).await;
            let run = world.reaches(run, |run| run.attempts == 2 && run.state.holder().is_some()).await;
            assert_eq!(run.state.status(), RunStatus::Running, "{}", disk.name);
            let attempts = world.kernel.run_attempts(&world.me, run.id).await.unwrap();
            let states: Vec<_> = attempts.iter().map(|attempt| (attempt.no, attempt.status)).collect();
            assert_eq!(states, [(1, RunStatus::Orphaned), (2, RunStatus::Running)]);
            assert_eq!(attempts[1].resume_from, Some(attempts[0].id));
            world.kernel.run_cancel(&world.me, run.id).await.unwrap();
            world.ended(run.id).await;
        });
        live(async {
            let options = Options { on_orphan: OnOrphan::Retry, ..Options::default() };
            let world = World::boot(disk.clone(), options, vec![], Clock::manual(NOW.plus(2_000)), 3).await;
            assert_eq!(world.get(run).await.state.status(), RunStatus::Cancelled, "ended is ended");
        });
    }
}

#[test]
fn an_orphan_whose_attempts_are_used_up_stays_one() {
    let disk = Disk::memory();
    let options = Options { on_orphan: OnOrphan::Retry, ..Options::default() };
    let mut run = None;
    for life in 0..4 {
        live(async {
            let clock = Clock::manual(NOW.plus(life * 1_000));
            let world = World::boot(disk.clone(), options.clone(), vec![], clock, life + 1).await;
            match run {
                None => run = Some(world.prompt("a", "hang").await.id),
                Some(run) => {
                    let wanted = u32::try_from(life + 1).unwrap().min(3);
                    world.reaches(run, |run| run.attempts == wanted).await;
                }
            }
            settle().await;
            let status = world.get(run.unwrap()).await.state.status();
            assert_eq!(status, if life < 3 { RunStatus::Running } else { RunStatus::Orphaned });
        });
    }
}

#[test]
fn a_run_that_paused_before_its_next_attempt_goes_on_with_it() {
    for disk in every_store() {
        let run = live(async {
            let world = World::on(disk.clone()).await;
            let run = world.prompt("a", "say partial; fail once; say whole").await;
            world.reaches(run.id, |run| run.attempts == 1 && run.state.holder().is_none()).await.id
        });
        live(async {
            let world = World::reboot(&disk).await;
            let run = world.ended(run).await;
            assert_eq!((run.state.status(), run.attempts), (RunStatus::Succeeded, 2), "{}", disk.name);
            assert_eq!(world.path("a").await.len(), 2);
        });
    }
}

#[test]
fn a_run_whose_adapter_is_gone_says_so() {
    let disk = Disk::memory();
    let run = live(async {
        let (adapter, _hands) = puppet(&disk.store, Manners::default());
        let options = Options { execute: false, ..Options::default() };
        let world = World::with(disk.clone(), options, vec![adapter]).await;
        world.send(pull("a", "go")).await.unwrap().run.id
    });
    live(async {
        let world = World::reboot(&disk).await;
        let run = world.ended(run).await;
        assert_eq!(run.state.error().unwrap().code, "adapter_unavailable");
    });
}

#[test]
fn a_start_loads_what_is_unfinished_and_nothing_else() {
    for disk in every_store() {
        live(async {
            let world = World::on(disk.clone()).await;
            for no in 0..60 {
                world.play(&format!("done{no}"), "say hi").await;
            }
            for no in 0..3 {
                let run = world.prompt(&format!("waits{no}"), "ask which?").await;
                world.asked(run.id).await;
            }
        });
        live(async {
            let world = World::reboot(&disk).await;
            assert_eq!(world.kernel.sessions_in_memory(), 3, "{}", disk.name);
            let runs = world.kernel.run_list(&world.me, RunQuery { limit: Some(100), ..RunQuery::default() });
            assert_eq!(soon(runs).await.unwrap().len(), 63);
        });
    }
}

#[test]
fn a_retried_run_that_was_orphaned_goes_on_from_its_last_message() {
    for disk in every_store() {
        let run = live(async {
            let world = World::on(disk.clone()).await;
            let run = world.prompt("a", r#"tool upper {"text": "x"}; hang"#).await;
            let (_, mut events) = world.subscribe("a", Some(mainspring_core::Position::START)).await;
            crate::world::read_until(&mut events, "tool.completed").await;
            run.id
        });
        live(async {
            let world = World::reboot(&disk).await;
            world.kernel.run_retry(&world.me, run).await.unwrap();
            let retried = world.reaches(run, |run| run.attempts == 2 && run.state.holder().is_some()).await;
            assert_eq!(retried.state.status(), RunStatus::Running);
            world.kernel.run_cancel(&world.me, run).await.unwrap();
            world.ended(run).await;
            let tree = world.tree("a").await;
            let lost: Vec<_> = tree.nodes.iter().filter(|node| !node.active).collect();
            assert_eq!(lost.len(), 1, "what the lost attempt left is off the path: {}", disk.name);
            assert!(shown(&lost[0].message).contains("executor_lost"));
        });
    }
}

#[test]
fn a_start_that_cannot_record_what_was_left_says_so_and_the_next_one_does_it() {
    for disk in every_store() {
        let run = live(async { World::on(disk.clone()).await.prompt("a", "say half; hang").await.id });
        live(async {
            disk.fault(mainspring_store::Fault::CommitFails);
            let (clock, ids) = (Clock::manual(NOW), mainspring_kernel::ids::Ids::seeded(9));
            // The clock stands still: whoever waited for a second try would wait for ever.
            let start =
                mainspring_kernel::Kernel::start(disk.store.clone(), vec![], Options::default(), clock, ids);
            assert_eq!(soon(start).await.err().unwrap().code(), "unavailable", "{}", disk.name);
        });
        live(async {
            let world = World::reboot(&disk).await;
            assert_eq!(world.get(run).await.state.status(), RunStatus::Orphaned, "{}", disk.name);
        });
    }
}
