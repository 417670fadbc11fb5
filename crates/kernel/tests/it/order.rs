//! Order and atomicity: events are published in order, and only after they are durable.

use insta::assert_snapshot;
use mainspring_core::{Block, Fidelity, Limits, Position, RunStatus};
use mainspring_kernel::Options;
use mainspring_kernel::adapter::{End, HandleError, Record};
use mainspring_kernel::kernel::SessionQuery;
use mainspring_store::Fault;

use crate::puppet::{PuppetBehavior, puppet, puppet_request};
use crate::world::{
    Disk, World, allowed, by_key, count, events_text, every_store, input, named, read_until, run_ready_tasks,
    with_timeout,
};

/// Checks that the results of all stores are equal, and returns one.
fn same<T: PartialEq + std::fmt::Debug>(mut results: Vec<T>) -> T {
    let last = results.pop().unwrap();
    results.iter().for_each(|other| assert_eq!(*other, last));
    last
}

#[tokio::test]
async fn the_events_of_a_text_turn() {
    let mut results = vec![];
    for disk in every_store() {
        let world = World::on(disk).await;
        world.play("a", "usage 3 4; say hello there").await;
        results.push((events_text(&world.events("a").await), world.path_text("a").await));
    }
    let (events, path) = same(results);
    assert_snapshot!(events, @r#"
    session.created
    run.queued
    attempt.created 1
    run.starting
    message.completed user completed "usage 3 4; say hello there"
    attempt.started
    run.running
    usage.updated 3 in, 4 out
    message.completed assistant completed "hello there\n"
    session.updated
    run.succeeded
    "#);
    assert_snapshot!(path, @r#"
    user completed "usage 3 4; say hello there"
    assistant completed "hello there\n"
    "#);
}

#[tokio::test]
async fn the_events_of_a_tool_turn() {
    let mut results = vec![];
    for disk in every_store() {
        let world = World::on(disk).await;
        world.play("a", r#"say let me see; tool add {"a": 1, "b": 2}; tool nope; say done"#).await;
        results.push((events_text(&world.events("a").await), world.path_text("a").await));
    }
    let (events, path) = same(results);
    assert_snapshot!(events, @r#"
    session.created
    run.queued
    attempt.created 1
    run.starting
    message.completed user completed "say let me see; tool add {\"a\": 1, \"b\": 2}; tool nope; say done"
    attempt.started
    run.running
    message.completed assistant completed "let me see\n" + call add
    tool.started
    tool.completed
    message.completed user completed result "3" error=false
    message.completed assistant completed call nope
    tool.started
    tool.failed Failed
    message.completed user completed result "no tool \"nope\"; there is add, echo, upper" error=true
    message.completed assistant completed "done\n"
    session.updated
    run.succeeded
    "#);
    assert_snapshot!(path, @r#"
    user completed "say let me see; tool add {\"a\": 1, \"b\": 2}; tool nope; say done"
    assistant completed "let me see\n" + call add
    user completed result "3" error=false
    assistant completed call nope
    user completed result "no tool \"nope\"; there is add, echo, upper" error=true
    assistant completed "done\n"
    "#);
}

#[tokio::test]
async fn the_events_of_a_retried_turn() {
    let world = World::on(Disk::memory()).await;
    let run = world.prompt("a", "usage 1 2; say partial; fail once; say whole").await;
    world.advance_until(50, world.ended(run.id)).await;
    assert_snapshot!(events_text(&world.events("a").await), @r#"
    session.created
    run.queued
    attempt.created 1
    run.starting
    message.completed user completed "usage 1 2; say partial; fail once; say whole"
    attempt.started
    run.running
    usage.updated 1 in, 2 out
    attempt.failed failed script_failed retryable=true
    message.completed assistant failed "partial\n"
    run.queued
    attempt.created 2
    run.starting
    attempt.started
    run.running
    usage.updated 1 in, 2 out
    message.completed assistant completed "partial\nwhole\n"
    session.updated
    run.succeeded
    "#);
    assert_snapshot!(world.path_text("a").await, @r#"
    user completed "usage 1 2; say partial; fail once; say whole"
    assistant completed "partial\nwhole\n"
    "#);
}

#[tokio::test]
async fn the_events_of_a_cancelled_turn() {
    let mut results = vec![];
    for disk in every_store() {
        let world = World::on(disk).await;
        let run = world.prompt("a", "say partial; progress so far; hang").await;
        let (_, mut events) = world.subscribe("a", Some(Position::START)).await;
        read_until(&mut events, "progress.updated").await;
        world.kernel.run_cancel(&world.me, run.id).await.unwrap();
        world.ended(run.id).await;
        results.push((events_text(&world.events("a").await), world.path_text("a").await));
    }
    let (events, path) = same(results);
    assert_snapshot!(events, @r#"
    session.created
    run.queued
    attempt.created 1
    run.starting
    message.completed user completed "say partial; progress so far; hang"
    attempt.started
    run.running
    progress.updated
    run.cancellation_requested Requested
    run.cancelling
    attempt.cancel_dispatch dispatched=true acknowledged=false
    attempt.cancelled Ended
    message.completed assistant cancelled "partial\n" + error cancelled
    run.cancelled Requested
    "#);
    assert_snapshot!(path, @r#"
    user completed "say partial; progress so far; hang"
    assistant cancelled "partial\n" + error cancelled
    "#);
}

#[tokio::test]
async fn the_events_of_a_waiting_turn() {
    let mut results = vec![];
    for disk in every_store() {
        let world = World::on(disk).await;
        let run = world.prompt("a", "ask Which colour?; approve Paint it?; say painted").await;
        let wait = world.wait_for_question(run.id).await;
        world.kernel.run_answer(&world.me, run.id, wait, input("blue")).await.unwrap();
        let wait = world.wait_until(run.id, |run| run.state.status() == RunStatus::WaitingApproval).await;
        let wait = wait.state.wait().unwrap().id;
        world.kernel.run_answer(&world.me, run.id, wait, allowed()).await.unwrap();
        world.ended(run.id).await;
        results.push((events_text(&world.events("a").await), world.path_text("a").await));
    }
    let (events, path) = same(results);
    assert_snapshot!(events, @r#"
    session.created
    run.queued
    attempt.created 1
    run.starting
    message.completed user completed "ask Which colour?; approve Paint it?; say painted"
    attempt.started
    run.running
    message.completed assistant completed "Which colour?\n"
    input.requested Which colour?
    run.waiting_input
    input.provided "blue"
    run.running
    message.completed assistant completed "You answered: blue\nPaint it?\n"
    approval.requested Paint it?
    run.waiting_approval
    approval.resolved Allowed
    run.running
    message.completed assistant completed "Approved.\npainted\n"
    session.updated
    run.succeeded
    "#);
    assert_snapshot!(path, @r#"
    user completed "ask Which colour?; approve Paint it?; say painted"
    assistant completed "Which colour?\n"
    assistant completed "You answered: blue\nPaint it?\n"
    assistant completed "Approved.\npainted\n"
    "#);
}

#[tokio::test]
async fn a_run_is_running_only_after_its_native_session_is_open() {
    let disk = Disk::memory();
    let behavior = PuppetBehavior { uses_bindings: true, ..PuppetBehavior::default() };
    let (adapter, mut control) = puppet(&disk.store, behavior);
    assert_eq!(adapter.capabilities().resume_fidelity, Fidelity::None);
    let world = World::with(disk, Options::default(), vec![adapter]).await;
    let run = world.send(puppet_request("a", "go")).await.unwrap().run;
    let execution = control.next().await;
    assert_eq!(world.get(run.id).await.state.status(), RunStatus::Starting);
    let opened = Record::Opened { native: None, fidelity: Fidelity::None, reconstructed: false };
    execution.handle.record(vec![opened]).await.unwrap();
    assert_eq!(world.get(run.id).await.state.status(), RunStatus::Running);
    execution.end(End::succeeded());
    assert_eq!(world.ended(run.id).await.state.status(), RunStatus::Succeeded);
    assert_eq!(control.log(), ["execute while starting"]);

    let run = world.send(puppet_request("a", "go")).await.unwrap().run;
    control.next().await.end(End::succeeded());
    let run = world.wait_until(run.id, |run| run.attempts == 1 && run.state.holder().is_none()).await;
    assert_eq!(run.state.status(), RunStatus::Queued, "an end before its begin is no success");
}

#[tokio::test]
async fn a_prompt_whose_commit_fails_is_refused_and_has_no_effect() {
    for disk in every_store() {
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let world = World::with(disk, Options::default(), vec![adapter]).await;
        // A prompt that would create its session:
        world.disk.inject_fault(Fault::CommitFails);
        let error = world.send(puppet_request("a", "go")).await.unwrap_err();
        assert_eq!((error.code(), error.is_retryable()), ("unavailable", true));
        let sessions = world.kernel.session_list(&world.me, SessionQuery::default()).await;
        assert!(sessions.unwrap().is_empty());
        // A prompt of an existing session:
        world.play("a", "say hi").await;
        let before = world.events("a").await;
        let (_, mut events) = world.subscribe("a", None).await;
        world.disk.inject_fault(Fault::CommitFails);
        world.send(puppet_request("a", "go")).await.unwrap_err();
        run_ready_tasks().await;
        assert_eq!(world.events("a").await, before);
        assert!(control.is_idle());
        assert!(control.log().is_empty());
        // The failed prompt had no effect.
        let run = world.send(puppet_request("a", "go")).await.unwrap().run;
        control.next().await.end(End::succeeded());
        world.ended(run.id).await;
        let first = with_timeout(events.next()).await.unwrap().unwrap();
        let mainspring_kernel::feed::Item::Event(first) = first else { panic!("{first:?}") };
        assert_eq!((first.body.kind(), first.run), ("run.queued", Some(run.id)));
        assert_eq!(run.no, 2, "{}", world.disk.name);
    }
}

#[tokio::test]
async fn a_prompt_whose_commit_had_an_unknown_outcome_is_looked_up() {
    for disk in every_store() {
        let world = World::on(disk).await;
        for (key, no) in [("new", 1), ("new", 2)] {
            world.disk.inject_fault(Fault::OutcomeUnknown);
            let accepted = world.send(named(key, "say hi", "app", &no.to_string())).await.unwrap();
            assert!(!accepted.replayed);
            assert_eq!(world.ended(accepted.run.id).await.state.status(), RunStatus::Succeeded);
            let events = world.events(key).await;
            assert_eq!(count(&events, "run.queued"), no);
            assert_eq!(count(&events, "run.succeeded"), no);
        }
    }
}

#[tokio::test]
async fn a_failed_record_is_not_stored_and_the_stream_continues() {
    for disk in every_store() {
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let world = World::with(disk, Options::default(), vec![adapter]).await;
        let run = world.send(puppet_request("a", "go")).await.unwrap().run;
        let execution = control.next().await;
        execution.handle.delta(0, "one ").unwrap();
        let message = || vec![Record::Message { blocks: vec![], usage: None }];
        let before = world.events("a").await;
        let (_, mut events) = world.subscribe("a", Some(before.last().unwrap().position())).await;
        world.disk.inject_fault(Fault::CommitFails);
        execution.handle.record(message()).await.unwrap_err();
        assert_eq!(world.events("a").await, before);
        execution.handle.delta(0, "two").unwrap();
        let mut seen = String::new();
        while seen != "one two" {
            match with_timeout(events.next()).await.unwrap().unwrap() {
                mainspring_kernel::feed::Item::Delta(delta) => seen += &delta.text,
                other => panic!("{other:?}"),
            }
        }
        world.disk.inject_fault(Fault::OutcomeUnknown);
        execution.handle.record(message()).await.unwrap();
        execution.end(End::succeeded());
        world.ended(run.id).await;
        assert_eq!(world.path_text("a").await.lines().last().unwrap(), r#"assistant completed "one two""#);
        assert_eq!(count(&world.events("a").await, "message.completed"), 2, "{}", world.disk.name);
    }
}

#[tokio::test]
async fn the_end_of_a_run_is_recorded_when_the_store_recovers() {
    for (disk, fault) in every_store().into_iter().flat_map(|disk| {
        let (name, other) = (disk.name, disk.clone());
        let fresh = if name == "memory" { Disk::memory() } else { Disk::sqlite() };
        [(other, Fault::CommitFails), (fresh, Fault::OutcomeUnknown)]
    }) {
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let world = World::with(disk, Options::default(), vec![adapter]).await;
        let run = world.send(puppet_request("a", "go")).await.unwrap().run;
        let execution = control.next().await;
        execution.handle.delta(0, "text").unwrap();
        world.disk.inject_fault(fault);
        execution.end(End::succeeded());
        let run = world.advance_until(10, world.ended(run.id)).await;
        assert_eq!(run.state.status(), RunStatus::Succeeded);
        let events = world.events("a").await;
        assert_eq!(count(&events, "run.succeeded"), 1);
        assert_eq!(world.path_text("a").await.lines().last().unwrap(), r#"assistant completed "text""#);
        let next = world.send(puppet_request("a", "next")).await.unwrap().run;
        control.next().await.end(End::succeeded());
        let next = world.ended(next.id).await;
        assert_eq!(next.state.status(), RunStatus::Succeeded, "{}", world.disk.name);
    }
}

#[tokio::test]
async fn a_cancellation_that_was_not_stored_is_not_dispatched() {
    for disk in every_store() {
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let world = World::with(disk, Options::default(), vec![adapter]).await;
        let run = world.send(puppet_request("a", "go")).await.unwrap().run;
        let execution = control.next().await;
        let before = world.events("a").await;
        world.disk.inject_fault(Fault::CommitFails);
        let error = world.kernel.run_cancel(&world.me, run.id).await.unwrap_err();
        assert!(error.is_retryable());
        run_ready_tasks().await;
        assert!(!execution.handle.is_cancelled());
        assert_eq!(world.events("a").await, before);
        assert_eq!(control.log(), ["execute while running"]);
        world.disk.inject_fault(Fault::OutcomeUnknown);
        let outcome = with_timeout(world.kernel.run_cancel(&world.me, run.id)).await.unwrap();
        assert!(outcome.accepted && outcome.dispatch_attempted);
        assert!(execution.handle.is_cancelled());
        execution.end(End::stopped());
        world.ended(run.id).await;
        assert_eq!(count(&world.events("a").await, "run.cancellation_requested"), 1);
    }
}

#[tokio::test]
async fn a_refused_deletion_does_not_block_the_stream() {
    let world = World::on(Disk::memory()).await;
    world.prompt("a", "stream 3 every 10ms x; hang").await;
    let error = world.kernel.session_delete(&world.me, &by_key("a")).await.unwrap_err();
    assert_eq!(error.code(), "session_busy");
    let (snapshot, mut events) = world.subscribe("a", None).await;
    let mut text: String =
        snapshot.partial.iter().flat_map(|open| open.blocks.clone()).map(|open| open.text).collect();
    let read = async {
        while text != "x x x " {
            if let mainspring_kernel::feed::Item::Delta(delta) = events.next().await.unwrap().unwrap() {
                text += &delta.text;
            }
        }
    };
    world.advance_until(10, read).await;
}

#[tokio::test]
async fn records_over_the_limits_are_refused() {
    let disk = Disk::memory();
    let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
    let options =
        Options { limits: Limits { message_bytes: 1_000, ..Limits::default() }, ..Options::default() };
    let world = World::with(disk, options, vec![adapter]).await;
    let run = world.send(puppet_request("a", "go")).await.unwrap().run;
    let execution = control.next().await;
    let before = world.events("a").await;
    let long = "x".repeat(1_001);
    let message = Record::Message { blocks: vec![Block::text(long.clone())], usage: None };
    let tool = Record::ToolStarted {
        tool_use_id: "t".into(),
        name: "t".into(),
        input: Some(long.clone().into()),
        decided_by: None,
    };
    let fine = Record::Progress { text: "fine".into() };
    for record in [message, tool, Record::Progress { text: long.clone() }] {
        let refused = execution.handle.record(vec![fine.clone(), record]).await.unwrap_err();
        let HandleError::Kernel(error) = refused else { panic!("{refused}") };
        assert_eq!(error.code(), "too_large");
    }
    assert!(execution.handle.delta(0, &long).is_err());
    execution.handle.delta(0, &long[..1_000]).unwrap();
    assert!(execution.handle.delta(0, "x").is_err(), "the limit holds for the whole message");
    let unknown = Record::ToolCompleted { tool_use_id: "never begun".into(), content: vec![] };
    execution.handle.record(vec![fine, unknown]).await.unwrap_err();
    assert_eq!(world.events("a").await, before, "all of a call is recorded, or nothing");
    execution.end(End::succeeded());
    assert_eq!(world.ended(run.id).await.state.status(), RunStatus::Succeeded);
}
