//! Delegation: a run delegates work to a child session exactly once, and gets its result.

use std::collections::HashMap;

use mainspring_core::{
    Block, Body, CancelReason, Cost, Delegation, DelegationMode, DelegationStatus, EventId, Failure, Mode,
    NodeId, RequestName, Run, RunId, RunLimits, RunOptions, RunState, RunStatus, SessionId, Usage,
    WaitRequest,
};
use mainspring_kernel::adapter::{AttemptHandle, End, Executed, HandleError, Record};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::kernel::{Caller, Delegate, Delegated, RunRequest, SessionTarget};
use mainspring_kernel::policy::Permissions;
use mainspring_kernel::store::{Commit, InboxItem, Row};
use mainspring_kernel::{Error, Options};
use mainspring_store::Fault;
use serde_json::json;

use crate::puppet::{Execution, PuppetBehavior, PuppetControl, puppet, puppet_request, question};
use crate::world::{Disk, NOW, World, by_key, every_store, run_process, run_ready_tasks, with_timeout};

fn named(mode: DelegationMode, name: &str) -> Delegate {
    let name = RequestName {
        client_id: Some("tests".into()),
        request_id: Some(name.into()),
        ..RequestName::default()
    };
    Delegate { name, ..Delegate::new(mode, "count the files") }
}

/// The target of an existing session.
fn existing(id: SessionId) -> SessionTarget {
    SessionTarget { id: Some(id), ..SessionTarget::default() }
}

async fn world(disk: Disk) -> (World, PuppetControl) {
    let (adapter, control) = puppet(&disk.store, PuppetBehavior { obeys: true, ..PuppetBehavior::default() });
    (World::with(disk, Options::default(), vec![adapter]).await, control)
}

/// Starts a parent run in the session `parent`.
async fn parent(world: &World, control: &mut PuppetControl) -> (Run, Execution) {
    let run = world.send(puppet_request("parent", "go")).await.unwrap().run;
    (run, control.next().await)
}

async fn delegate_ok(handle: &AttemptHandle, delegate: Delegate) -> Delegated {
    with_timeout(handle.delegate(delegate)).await.unwrap()
}

async fn delegate_error(handle: &AttemptHandle, delegate: Delegate) -> Error {
    match with_timeout(handle.delegate(delegate)).await {
        Err(HandleError::Kernel(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// Waits until the session has this many delegation events of a run. Returns them with the delegations.
async fn delegation_events(world: &World, run: RunId, many: usize) -> Vec<(String, Delegation)> {
    let is_delegation =
        |body: &Body| matches!(body, Body::DelegationCreated { .. } | Body::DelegationCompleted { .. });
    let events = async {
        loop {
            let events = world.kernel.run_events(&world.me, run, mainspring_core::Cursor::START, None).await;
            let events: Vec<_> =
                events.unwrap().into_iter().filter(|event| is_delegation(&event.body)).collect();
            if events.len() >= many {
                return events;
            }
            tokio::task::yield_now().await;
        }
    };
    let mut all = vec![];
    for event in with_timeout(events).await {
        let (Body::DelegationCreated { delegation_id: id, .. }
        | Body::DelegationCompleted { delegation_id: id, .. }) = event.body
        else {
            unreachable!("all other events were filtered out")
        };
        let (delegation, _) = world.kernel.delegation_get(&world.me, id).await.unwrap();
        all.push((event.body.kind().to_owned(), delegation));
    }
    all
}

async fn record_message(execution: &Execution, text: &str) {
    execution
        .handle
        .record(vec![Record::Message { blocks: vec![Block::text(text)], usage: None }])
        .await
        .unwrap();
}

#[tokio::test]
async fn a_parent_calls_a_child_and_gets_its_result() {
    for disk in every_store() {
        let (world, mut control) = world(disk).await;
        let (run, execution) = parent(&world, &mut control).await;
        let asked = Delegate { context: Some("in /tmp".into()), ..named(DelegationMode::Call, "1") };
        let child = delegate_ok(&execution.handle, asked).await;
        assert_eq!(child.run.parent, Some(run.id));
        assert_eq!(child.delegation.child_session, child.session.id);
        assert_eq!((child.session.surface_kind.as_str(), child.run.mode), ("delegated_agent", Mode::Ask));

        let work = control.next().await;
        let about = work.handle.assignment();
        assert_eq!(about.prompt.text(), "count the files\n\nContext:\nin /tmp");
        let records = vec![
            Record::ToolStarted { tool_use_id: "t1".into(), name: "ls".into(), input: None },
            Record::ToolCompleted { tool_use_id: "t1".into() },
        ];
        work.handle.record(records).await.unwrap();
        record_message(&work, "there are 3").await;
        let usage = Usage { input_tokens: 7, ..Usage::default() };
        work.end(Executed::Ended(End::Succeeded { usage }));

        let (settled, result) = with_timeout(execution.handle.settled(child.delegation.id)).await.unwrap();
        let result = result.unwrap();
        assert_eq!((settled.status, result.status), (DelegationStatus::Succeeded, RunStatus::Succeeded));
        assert_eq!((result.summary.as_str(), result.usage.input_tokens), ("there are 3", 7));
        assert_eq!(result.verified_effects.iter().map(|done| &*done.name).collect::<Vec<_>>(), ["ls"]);
        execution.end(End::succeeded());
        world.ended(run.id).await;
        let kinds: Vec<_> =
            delegation_events(&world, run.id, 2).await.into_iter().map(|(kind, _)| kind).collect();
        assert_eq!(kinds, ["delegation.created", "delegation.completed"], "{}", world.disk.name);

        let kin = world.kernel.run_delegations(&world.me, run.id).await.unwrap();
        assert_eq!((kin.parent, kin.children), (None, vec![settled.clone()]));
        let kin = world.kernel.run_delegations(&world.me, child.run.id).await.unwrap();
        assert_eq!(kin.parent, Some(settled));
    }
}

#[tokio::test]
async fn a_repeated_delegation_name_returns_the_same_child() {
    let (world, mut control) = world(Disk::sqlite()).await;
    let (_, execution) = parent(&world, &mut control).await;
    let first = delegate_ok(&execution.handle, named(DelegationMode::Spawn, "1")).await;
    control.next().await.end(End::succeeded());
    world.ended(first.run.id).await;
    let again = delegate_ok(&execution.handle, named(DelegationMode::Spawn, "1")).await;
    assert!(again.replayed);
    assert_eq!((again.run.id, again.delegation.id), (first.run.id, first.delegation.id));
    assert!(control.is_idle());
    let other = Delegate { objective: "something else".into(), ..named(DelegationMode::Spawn, "1") };
    assert_eq!(delegate_error(&execution.handle, other).await.code(), "request_conflict");
    // The request name of an ordinary prompt cannot be used for a delegation.
    let name = named(DelegationMode::Spawn, "2").name;
    world.send(RunRequest { name, ..puppet_request("elsewhere", "go") }).await.unwrap();
    assert_eq!(
        delegate_error(&execution.handle, named(DelegationMode::Spawn, "2")).await.code(),
        "request_conflict"
    );
}

#[tokio::test]
async fn a_delegation_can_continue_the_session_of_a_child() {
    let (world, mut control) = world(Disk::memory()).await;
    let (_, execution) = parent(&world, &mut control).await;
    let first = delegate_ok(&execution.handle, named(DelegationMode::Call, "1")).await;
    control.next().await.end(End::succeeded());
    world.ended(first.run.id).await;
    let more = Delegate { session: existing(first.session.id), ..named(DelegationMode::Continue, "2") };
    let second = delegate_ok(&execution.handle, more).await;
    assert_eq!((second.session.id, second.run.no), (first.session.id, 2));
    control.next().await.end(End::succeeded());
    let (settled, _) = with_timeout(execution.handle.settled(second.delegation.id)).await.unwrap();
    assert_eq!((settled.mode, settled.status), (DelegationMode::Continue, DelegationStatus::Succeeded));
}

#[tokio::test]
async fn cancelling_a_run_cancels_its_delegations() {
    for disk in every_store() {
        let (world, mut control) = world(disk).await;
        let (run, execution) = parent(&world, &mut control).await;
        let mut children = vec![];
        for (name, mode) in [("1", DelegationMode::Call), ("2", DelegationMode::Spawn)] {
            children.push(delegate_ok(&execution.handle, named(mode, name)).await);
        }
        let working = [control.next().await, control.next().await];
        // Children of children are cancelled too.
        let deep = delegate_ok(&working[0].handle, named(DelegationMode::Spawn, "3")).await;
        control.next().await;
        with_timeout(world.kernel.run_cancel(&world.me, run.id)).await.unwrap();
        for child in [&children[0], &children[1], &deep] {
            let ended = world.ended(child.run.id).await;
            assert_eq!(
                ended.state,
                RunState::Cancelled { reason: CancelReason::Parent },
                "{}",
                world.disk.name
            );
        }
        let events = delegation_events(&world, run.id, 4).await;
        assert!(events.iter().all(|(_, delegation)| delegation.status == DelegationStatus::Cancelled));
    }
}

#[tokio::test]
async fn a_run_that_ends_cancels_only_the_children_it_waits_for() {
    let (world, mut control) = world(Disk::memory()).await;
    let (run, execution) = parent(&world, &mut control).await;
    let called = delegate_ok(&execution.handle, named(DelegationMode::Call, "1")).await;
    let spawned = delegate_ok(&execution.handle, named(DelegationMode::Spawn, "2")).await;
    let _first = control.next().await;
    let second = control.next().await;
    execution.end(End::failed(Failure::new("broken", "it broke"), false));
    assert_eq!(world.ended(run.id).await.state.status(), RunStatus::Failed);
    assert_eq!(world.ended(called.run.id).await.state.status(), RunStatus::Cancelled);
    assert_eq!(world.get(spawned.run.id).await.state.status(), RunStatus::Running);
    second.end(End::succeeded());
    assert_eq!(world.ended(spawned.run.id).await.state.status(), RunStatus::Succeeded);
    let events = delegation_events(&world, run.id, 4).await;
    assert_eq!(events.last().unwrap().1.status, DelegationStatus::Succeeded, "also after the run has ended");
}

#[tokio::test]
async fn a_settled_delegation_does_not_change_when_its_child_is_retried() {
    let (world, mut control) = world(Disk::sqlite()).await;
    let (run, execution) = parent(&world, &mut control).await;
    let child = delegate_ok(&execution.handle, named(DelegationMode::Spawn, "1")).await;
    control.next().await.end(End::failed(Failure::new("broken", "it broke"), false));
    world.ended(child.run.id).await;
    with_timeout(world.kernel.run_retry(&world.me, child.run.id)).await.unwrap();
    control.next().await.end(End::succeeded());
    world.wait_until(child.run.id, |run| run.state.status() == RunStatus::Succeeded).await;
    execution.end(End::succeeded());
    world.ended(run.id).await;
    run_ready_tasks().await;
    let events = delegation_events(&world, run.id, 2).await;
    assert_eq!(events.len(), 2, "it was settled once");
    assert_eq!(events[1].1.status, DelegationStatus::Failed);
}

#[tokio::test]
async fn an_invalid_delegation_is_refused_and_leaves_nothing() {
    let (world, mut control) = world(Disk::memory()).await;
    let (run, execution) = parent(&world, &mut control).await;
    let handle = &execution.handle;
    let call = || Delegate::new(DelegationMode::Call, "count");
    let own = Delegate { session: existing(run.session), ..Delegate::new(DelegationMode::Continue, "count") };
    for (delegate, code) in [
        (Delegate { objective: " ".into(), ..call() }, "invalid_request"),
        (Delegate { context: Some("x".repeat(4_001)), ..call() }, "invalid_request"),
        (Delegate { max_depth: Some(6), ..call() }, "invalid_request"),
        (Delegate { session: existing(run.session), ..call() }, "invalid_request"),
        (Delegate::new(DelegationMode::Continue, "count"), "invalid_request"),
        (own, "would_deadlock"),
    ] {
        assert_eq!(delegate_error(handle, delegate.clone()).await.code(), code, "{delegate:?}");
    }
    let mut unknown = call();
    unknown.session.new.adapter = Some("nobody".into());
    assert_eq!(delegate_error(handle, unknown).await.code(), "adapter_not_registered");
    let delegate = world.kernel.run_delegate(&Caller::new("eve"), run.id, call()).await;
    assert_eq!(delegate.unwrap_err().code(), "not_found");
    let queued = world.send(puppet_request("parent", "go")).await.unwrap().run;
    let early = world.kernel.run_delegate(&world.me, queued.id, call()).await;
    assert_eq!(early.unwrap_err().code(), "wrong_state");
    with_timeout(world.kernel.run_cancel(&world.me, queued.id)).await.unwrap();
    execution.end(End::succeeded());
    world.ended(run.id).await;
    let late = world.kernel.run_delegate(&world.me, run.id, call()).await;
    assert_eq!(late.unwrap_err().code(), "run_ended");
    assert_eq!(world.kernel.run_list(&world.me, Default::default()).await.unwrap().len(), 2);
}

#[tokio::test]
async fn the_delegation_depth_is_limited_to_three_or_the_setting() {
    let (world, mut control) = world(Disk::memory()).await;
    let (_, mut execution) = parent(&world, &mut control).await;
    let mut kept = vec![];
    for name in ["1", "2", "3"] {
        delegate_ok(&execution.handle, named(DelegationMode::Spawn, name)).await;
        kept.push(std::mem::replace(&mut execution, control.next().await));
    }
    let deeper = named(DelegationMode::Spawn, "4");
    assert_eq!(
        delegate_error(&execution.handle, deeper.clone()).await,
        Error::TooDeep { depth: 4, limit: 3 }
    );
    delegate_ok(&execution.handle, Delegate { max_depth: Some(4), ..deeper }).await;
}

#[tokio::test]
async fn the_mode_of_a_child_is_limited_by_its_parent() {
    let (world, mut control) = world(Disk::memory()).await;
    let act = || Delegate { run_mode: Mode::Act, ..Delegate::new(DelegationMode::Spawn, "count") };
    world.send(RunRequest { mode: Mode::Ask, ..puppet_request("asks", "go") }).await.unwrap();
    let execution = control.next().await;
    assert_eq!(delegate_error(&execution.handle, act()).await.code(), "forbidden");
    let (_, execution) = parent(&world, &mut control).await;
    assert_eq!(delegate_ok(&execution.handle, act()).await.run.mode, Mode::Act);
}

#[tokio::test]
async fn a_delegation_that_would_deadlock_is_refused() {
    let (world, mut control) = world(Disk::sqlite()).await;
    let (run, execution) = parent(&world, &mut control).await;
    let child = delegate_ok(&execution.handle, named(DelegationMode::Call, "1")).await;
    let middle = control.next().await;
    let deep = delegate_ok(&middle.handle, named(DelegationMode::Call, "2")).await;
    let last = control.next().await;
    let back = |session, mode| Delegate { session: existing(session), ..Delegate::new(mode, "more") };
    for session in [run.session, child.session.id] {
        let error = delegate_error(&last.handle, back(session, DelegationMode::Continue)).await;
        assert_eq!(error, Error::WouldDeadlock(session));
    }
    // A delegation that is not awaited cannot deadlock.
    delegate_ok(&last.handle, named(DelegationMode::Spawn, "3")).await;
    drop(deep);
}

#[tokio::test]
async fn an_awaited_child_uses_the_permit_of_its_parent() {
    let disk = Disk::memory();
    let (adapter, mut control) =
        puppet(&disk.store, PuppetBehavior { obeys: true, ..PuppetBehavior::default() });
    let options = Options { max_workers: 1, ..Options::default() };
    let world = World::with(disk, options, vec![adapter]).await;
    let (run, execution) = parent(&world, &mut control).await;
    let spawned = delegate_ok(&execution.handle, named(DelegationMode::Spawn, "1")).await;
    run_ready_tasks().await;
    assert!(control.is_idle(), "no run waits for it, so it is queued");
    let called = delegate_ok(&execution.handle, named(DelegationMode::Call, "2")).await;
    let second = delegate_ok(&execution.handle, named(DelegationMode::Call, "3")).await;
    let child = control.next().await;
    assert_eq!(child.handle.assignment().run.id, called.run.id);
    run_ready_tasks().await;
    assert!(control.is_idle(), "one permit is lent to one");
    child.end(End::succeeded());
    let child = control.next().await;
    assert_eq!(child.handle.assignment().run.id, second.run.id);
    child.end(End::succeeded());
    with_timeout(execution.handle.settled(second.delegation.id)).await.unwrap();
    run_ready_tasks().await;
    assert!(control.is_idle(), "the parent works again");
    execution.end(End::succeeded());
    world.ended(run.id).await;
    control.next().await.end(End::succeeded());
    assert_eq!(world.ended(spawned.run.id).await.state.status(), RunStatus::Succeeded);
}

#[tokio::test]
async fn a_call_to_an_adapter_without_a_worker_is_refused_rather_than_queued() {
    let disk = Disk::memory();
    let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
    let options =
        Options { adapter_workers: HashMap::from([("puppet".to_owned(), 1)]), ..Options::default() };
    let world = World::with(disk, options, vec![adapter]).await;
    let (_, execution) = parent(&world, &mut control).await;
    let error = delegate_error(&execution.handle, named(DelegationMode::Call, "1")).await;
    assert_eq!(error, Error::AdapterFull { adapter: "puppet".into(), limit: 1 });
    delegate_ok(&execution.handle, named(DelegationMode::Spawn, "2")).await;
}

#[tokio::test]
async fn the_budget_of_a_parent_is_split_and_the_rest_returned() {
    let (world, mut control) = world(Disk::sqlite()).await;
    let dollars = |usd: f64| Some(Cost::from(usd));
    let mut request = puppet_request("parent", "go");
    request.options.limits = RunLimits { max_cost: dollars(1.0), ..RunLimits::default() };
    world.send(request).await.unwrap();
    let execution = control.next().await;
    let usage = |usd: f64| Usage { cost: Cost::from(usd), ..Usage::default() };
    execution.handle.record(vec![Record::Usage(usage(0.1))]).await.unwrap();
    let limits = RunLimits { max_cost: dollars(0.5), ..RunLimits::default() };
    let share = |name: &str| Delegate {
        options: RunOptions { limits, ..RunOptions::default() },
        ..named(DelegationMode::Spawn, name)
    };
    let first = delegate_ok(&execution.handle, share("1")).await;
    assert_eq!(first.run.options.limits.max_cost, dollars(0.5));
    let second = delegate_ok(&execution.handle, share("2")).await;
    assert_eq!(second.run.options.limits.max_cost, dollars(0.4), "no more than is left");
    assert_eq!(delegate_error(&execution.handle, share("3")).await.code(), "invalid_request");
    assert_eq!(execution.handle.spent_by_children().await.unwrap().cost, Cost::from(0.9));
    control.next().await.end(Executed::Ended(End::Succeeded { usage: usage(0.2) }));
    world.ended(first.run.id).await;
    assert_eq!(execution.handle.spent_by_children().await.unwrap().cost, Cost::from(0.6));
    let fourth = delegate_ok(&execution.handle, share("4")).await;
    assert_eq!(fourth.run.options.limits.max_cost, dollars(0.3), "the unused budget of the first child");
}

#[tokio::test]
async fn open_questions_of_a_cancelled_child_are_reported_to_the_parent() {
    let (world, mut control) = world(Disk::memory()).await;
    let (_, execution) = parent(&world, &mut control).await;
    let child = delegate_ok(&execution.handle, named(DelegationMode::Call, "1")).await;
    control.next().await.end(Executed::Waiting(question(WaitRequest::Input, None)));
    world.wait_for_question(child.run.id).await;
    with_timeout(world.kernel.run_cancel(&world.me, child.run.id)).await.unwrap();
    let (settled, result) = with_timeout(execution.handle.settled(child.delegation.id)).await.unwrap();
    assert_eq!(settled.status, DelegationStatus::Cancelled);
    assert_eq!(result.unwrap().open_questions, ["may I?"]);
}

/// The next start finishes what a crash interrupts: the parent session gets an event for every child and its end.
#[test]
fn a_crash_loses_no_delegation() {
    for disk in every_store() {
        let (run, child) = run_process(async {
            let (world, mut control) = world(disk.clone()).await;
            let (run, execution) = parent(&world, &mut control).await;
            let child =
                with_timeout(execution.handle.delegate(named(DelegationMode::Spawn, "1"))).await.unwrap();
            (run.id, child)
        });
        run_process(async {
            let (adapter, _control) = puppet(&disk.store, PuppetBehavior::default());
            let clock = Clock::manual(NOW.plus(1_000));
            let world = World::boot(disk.clone(), Options::default(), vec![adapter], clock, 2).await;
            let events = delegation_events(&world, run, 2).await;
            assert_eq!(events.len(), 2, "{}", disk.name);
            assert_eq!(events[1].1.status, DelegationStatus::Failed, "its child was orphaned");
            assert_eq!(world.get(child.run.id).await.state.status(), RunStatus::Orphaned);
            assert!(disk.store.inbox(child.session.id).await.unwrap().is_empty());
        });
    }
}

#[tokio::test]
async fn an_inbox_note_whose_commit_failed_is_processed_later() {
    let (world, mut control) = world(Disk::memory()).await;
    let (run, execution) = parent(&world, &mut control).await;
    let child = delegate_ok(&execution.handle, named(DelegationMode::Spawn, "1")).await;
    execution.end(End::succeeded());
    world.ended(run.id).await;
    delegation_events(&world, run.id, 1).await;
    // Writes the note as the child session would in another process.
    let store = &world.disk.store;
    let somewhere = world.play("elsewhere", "say hi").await.session;
    with_timeout(world.kernel.session_close(&world.me, &by_key("elsewhere"))).await.unwrap();
    let fence = store.lease_take(somewhere, NodeId::from_random([9; 16])).await.unwrap();
    let settled = Delegation { status: DelegationStatus::Succeeded, ..child.delegation };
    let item = json!({"note": "settled", "delegation": settled});
    let item = InboxItem { id: EventId::from_random([7; 16]), at: NOW, item };
    let rows = vec![Row::Inbox(run.session, item)];
    store.commit(Commit { fence, events: vec![], rows }.into()).await.unwrap();
    with_timeout(world.kernel.session_close(&world.me, &by_key("parent"))).await.unwrap();

    world.disk.inject_fault(Fault::CommitFails);
    world.subscribe("parent", None).await;
    world.advance_until(100, delegation_events(&world, run.id, 2)).await;
    assert!(store.inbox(run.session).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_child_outlives_its_parents_session() {
    for disk in every_store() {
        let (world, mut control) = world(disk).await;
        let (run, execution) = parent(&world, &mut control).await;
        let child = delegate_ok(&execution.handle, named(DelegationMode::Spawn, "1")).await;
        execution.end(End::succeeded());
        world.ended(run.id).await;
        let session = mainspring_kernel::store::SessionRef::Id(run.session);
        with_timeout(world.kernel.session_delete(&world.me, &session)).await.unwrap();
        control.next().await.end(End::succeeded());
        assert_eq!(
            world.ended(child.run.id).await.state.status(),
            RunStatus::Succeeded,
            "{}",
            world.disk.name
        );
        let gone = world.kernel.delegation_get(&world.me, child.delegation.id).await;
        assert_eq!(gone.unwrap_err().code(), "not_found");
    }
}

#[tokio::test]
async fn a_child_is_granted_no_more_than_its_parent() {
    let (world, mut control) = world(Disk::sqlite()).await;
    let (_, execution) = parent(&world, &mut control).await;
    let act = |name: &str| Delegate { run_mode: Mode::Act, ..named(DelegationMode::Spawn, name) };
    delegate_ok(&execution.handle, act("1")).await;
    let child = control.next().await;
    assert_eq!(Permissions::Legacy.narrowed(&child.handle).await.unwrap(), Permissions::Ask);
    assert_eq!(Permissions::Deny.narrowed(&child.handle).await.unwrap(), Permissions::Deny);
    assert_eq!(Permissions::Legacy.narrowed(&execution.handle).await.unwrap(), Permissions::Legacy);

    let standing = Permissions::Legacy.standing(&execution.handle).unwrap();
    execution.handle.record(vec![Record::Granted(Box::new(standing))]).await.unwrap();
    assert_eq!(Permissions::Legacy.narrowed(&child.handle).await.unwrap(), Permissions::Legacy);
    // A child whose approvals a person decides has no grants to pass on.
    delegate_ok(&child.handle, act("2")).await;
    let deeper = control.next().await;
    assert_eq!(Permissions::Legacy.narrowed(&deeper.handle).await.unwrap(), Permissions::Ask);
}
