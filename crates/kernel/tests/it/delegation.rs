//! Delegation: a run hands work to a session of its own, exactly once, and learns what came of it.

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

use crate::puppet::{Hands, Manners, Strings, pull, puppet, question};
use crate::world::{Disk, NOW, World, by, every_store, live, settle, soon};

fn named(mode: DelegationMode, name: &str) -> Delegate {
    let name = RequestName {
        client_id: Some("tests".into()),
        request_id: Some(name.into()),
        ..RequestName::default()
    };
    Delegate { name, ..Delegate::new(mode, "count the files") }
}

/// A session that exists.
fn the(id: SessionId) -> SessionTarget {
    SessionTarget { id: Some(id), ..SessionTarget::default() }
}

async fn world(disk: Disk) -> (World, Hands) {
    let (adapter, hands) = puppet(&disk.store, Manners { obeys: true, ..Manners::default() });
    (World::with(disk, Options::default(), vec![adapter]).await, hands)
}

/// A parent at work, in the session `parent`.
async fn parent(world: &World, hands: &mut Hands) -> (Run, Strings) {
    let run = world.send(pull("parent", "go")).await.unwrap().run;
    (run, hands.next().await)
}

async fn delegated(handle: &AttemptHandle, delegate: Delegate) -> Delegated {
    soon(handle.delegate(delegate)).await.unwrap()
}

async fn refused(handle: &AttemptHandle, delegate: Delegate) -> Error {
    match soon(handle.delegate(delegate)).await {
        Err(HandleError::Kernel(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// The delegations of a run, once as many as this are in its session's events.
async fn told(world: &World, run: RunId, many: usize) -> Vec<(String, Delegation)> {
    let told =
        |body: &Body| matches!(body, Body::DelegationCreated { .. } | Body::DelegationCompleted { .. });
    let events = async {
        loop {
            let events = world.kernel.run_events(&world.me, run, mainspring_core::Cursor::START, None).await;
            let events: Vec<_> = events.unwrap().into_iter().filter(|event| told(&event.body)).collect();
            if events.len() >= many {
                return events;
            }
            tokio::task::yield_now().await;
        }
    };
    let mut all = vec![];
    for event in soon(events).await {
        let (Body::DelegationCreated { delegation_id: id, .. }
        | Body::DelegationCompleted { delegation_id: id, .. }) = event.body
        else {
            unreachable!("only those were kept")
        };
        let (delegation, _) = world.kernel.delegation_get(&world.me, id).await.unwrap();
        all.push((event.body.kind().to_owned(), delegation));
    }
    all
}

async fn said(strings: &Strings, text: &str) {
    strings
        .handle
        .record(vec![Record::Message { blocks: vec![Block::text(text)], usage: None }])
        .await
        .unwrap();
}

#[tokio::test]
async fn a_parent_calls_a_child_and_is_told_what_came_of_it() {
    for disk in every_store() {
        let (world, mut hands) = world(disk).await;
        let (run, strings) = parent(&world, &mut hands).await;
        let asked = Delegate { context: Some("in /tmp".into()), ..named(DelegationMode::Call, "1") };
        let child = delegated(&strings.handle, asked).await;
        assert_eq!(child.run.parent, Some(run.id));
        assert_eq!(child.delegation.child_session, child.session.id);
        assert_eq!((child.session.surface_kind.as_str(), child.run.mode), ("delegated_agent", Mode::Ask));

        let work = hands.next().await;
        let about = work.handle.assignment();
        assert_eq!(about.prompt.text(), "count the files\n\nContext:\nin /tmp");
        let records = vec![
            Record::ToolStarted { tool_use_id: "t1".into(), name: "ls".into(), input: None },
            Record::ToolCompleted { tool_use_id: "t1".into() },
        ];
        work.handle.record(records).await.unwrap();
        said(&work, "there are 3").await;
        let usage = Usage { input_tokens: 7, ..Usage::default() };
        work.end(Executed::Ended(End::Succeeded { usage }));

        let (settled, result) = soon(strings.handle.settled(child.delegation.id)).await.unwrap();
        let result = result.unwrap();
        assert_eq!((settled.status, result.status), (DelegationStatus::Succeeded, RunStatus::Succeeded));
        assert_eq!((result.summary.as_str(), result.usage.input_tokens), ("there are 3", 7));
        assert_eq!(result.verified_effects.iter().map(|done| &*done.name).collect::<Vec<_>>(), ["ls"]);
        strings.end(End::succeeded());
        world.ended(run.id).await;
        let kinds: Vec<_> = told(&world, run.id, 2).await.into_iter().map(|(kind, _)| kind).collect();
        assert_eq!(kinds, ["delegation.created", "delegation.completed"], "{}", world.disk.name);

        let kin = world.kernel.run_delegations(&world.me, run.id).await.unwrap();
        assert_eq!((kin.parent, kin.children), (None, vec![settled.clone()]));
        let kin = world.kernel.run_delegations(&world.me, child.run.id).await.unwrap();
        assert_eq!(kin.parent, Some(settled));
    }
}

#[tokio::test]
async fn the_same_name_is_the_same_child() {
    let (world, mut hands) = world(Disk::sqlite()).await;
    let (_, strings) = parent(&world, &mut hands).await;
    let first = delegated(&strings.handle, named(DelegationMode::Spawn, "1")).await;
    hands.next().await.end(End::succeeded());
    world.ended(first.run.id).await;
    let again = delegated(&strings.handle, named(DelegationMode::Spawn, "1")).await;
    assert!(again.replayed);
    assert_eq!((again.run.id, again.delegation.id), (first.run.id, first.delegation.id));
    assert!(hands.is_idle());
    let other = Delegate { objective: "something else".into(), ..named(DelegationMode::Spawn, "1") };
    assert_eq!(refused(&strings.handle, other).await.code(), "request_conflict");
    // A name that somebody has used for a prompt of their own is no delegation's.
    let name = named(DelegationMode::Spawn, "2").name;
    world.send(RunRequest { name, ..pull("elsewhere", "go") }).await.unwrap();
    assert_eq!(refused(&strings.handle, named(DelegationMode::Spawn, "2")).await.code(), "request_conflict");
}

#[tokio::test]
async fn a_child_goes_on_in_its_session() {
    let (world, mut hands) = world(Disk::memory()).await;
    let (_, strings) = parent(&world, &mut hands).await;
    let first = delegated(&strings.handle, named(DelegationMode::Call, "1")).await;
    hands.next().await.end(End::succeeded());
    world.ended(first.run.id).await;
    let more = Delegate { session: the(first.session.id), ..named(DelegationMode::Continue, "2") };
    let second = delegated(&strings.handle, more).await;
    assert_eq!((second.session.id, second.run.no), (first.session.id, 2));
    hands.next().await.end(End::succeeded());
    let (settled, _) = soon(strings.handle.settled(second.delegation.id)).await.unwrap();
    assert_eq!((settled.mode, settled.status), (DelegationMode::Continue, DelegationStatus::Succeeded));
}

#[tokio::test]
async fn who_cancels_a_run_cancels_what_it_has_delegated() {
    for disk in every_store() {
        let (world, mut hands) = world(disk).await;
        let (run, strings) = parent(&world, &mut hands).await;
        let mut children = vec![];
        for (name, mode) in [("1", DelegationMode::Call), ("2", DelegationMode::Spawn)] {
            children.push(delegated(&strings.handle, named(mode, name)).await);
        }
        let working = [hands.next().await, hands.next().await];
        // And so on downwards.
        let deep = delegated(&working[0].handle, named(DelegationMode::Spawn, "3")).await;
        hands.next().await;
        soon(world.kernel.run_cancel(&world.me, run.id)).await.unwrap();
        for child in [&children[0], &children[1], &deep] {
            let ended = world.ended(child.run.id).await;
            assert_eq!(
                ended.state,
                RunState::Cancelled { reason: CancelReason::Parent },
                "{}",
                world.disk.name
            );
        }
        let told = told(&world, run.id, 4).await;
        assert!(told.iter().all(|(_, delegation)| delegation.status == DelegationStatus::Cancelled));
    }
}

#[tokio::test]
async fn only_what_was_waited_for_ends_with_a_run_that_was_not_cancelled() {
    let (world, mut hands) = world(Disk::memory()).await;
    let (run, strings) = parent(&world, &mut hands).await;
    let called = delegated(&strings.handle, named(DelegationMode::Call, "1")).await;
    let spawned = delegated(&strings.handle, named(DelegationMode::Spawn, "2")).await;
    let _first = hands.next().await;
    let second = hands.next().await;
    strings.end(End::failed(Failure::new("broken", "it broke"), false));
    assert_eq!(world.ended(run.id).await.state.status(), RunStatus::Failed);
    assert_eq!(world.ended(called.run.id).await.state.status(), RunStatus::Cancelled);
    assert_eq!(world.get(spawned.run.id).await.state.status(), RunStatus::Running);
    second.end(End::succeeded());
    assert_eq!(world.ended(spawned.run.id).await.state.status(), RunStatus::Succeeded);
    let told = told(&world, run.id, 4).await;
    assert_eq!(told.last().unwrap().1.status, DelegationStatus::Succeeded, "also after the run has ended");
}

#[tokio::test]
async fn a_delegation_that_is_settled_stays_so_when_its_child_is_tried_again() {
    let (world, mut hands) = world(Disk::sqlite()).await;
    let (run, strings) = parent(&world, &mut hands).await;
    let child = delegated(&strings.handle, named(DelegationMode::Spawn, "1")).await;
    hands.next().await.end(End::failed(Failure::new("broken", "it broke"), false));
    world.ended(child.run.id).await;
    soon(world.kernel.run_retry(&world.me, child.run.id)).await.unwrap();
    hands.next().await.end(End::succeeded());
    world.reaches(child.run.id, |run| run.state.status() == RunStatus::Succeeded).await;
    strings.end(End::succeeded());
    world.ended(run.id).await;
    settle().await;
    let told = told(&world, run.id, 2).await;
    assert_eq!(told.len(), 2, "it was settled once");
    assert_eq!(told[1].1.status, DelegationStatus::Failed);
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_and_leaves_nothing() {
    let (world, mut hands) = world(Disk::memory()).await;
    let (run, strings) = parent(&world, &mut hands).await;
    let handle = &strings.handle;
    let call = || Delegate::new(DelegationMode::Call, "count");
    let own = Delegate { session: the(run.session), ..Delegate::new(DelegationMode::Continue, "count") };
    for (delegate, code) in [
        (Delegate { objective: " ".into(), ..call() }, "invalid_request"),
        (Delegate { context: Some("x".repeat(4_001)), ..call() }, "invalid_request"),
        (Delegate { max_depth: Some(6), ..call() }, "invalid_request"),
        (Delegate { session: the(run.session), ..call() }, "invalid_request"),
        (Delegate::new(DelegationMode::Continue, "count"), "invalid_request"),
        (own, "would_deadlock"),
    ] {
        assert_eq!(refused(handle, delegate.clone()).await.code(), code, "{delegate:?}");
    }
    let mut unknown = call();
    unknown.session.new.adapter = Some("nobody".into());
    assert_eq!(refused(handle, unknown).await.code(), "adapter_not_registered");
    let delegate = world.kernel.run_delegate(&Caller::new("eve"), run.id, call()).await;
    assert_eq!(delegate.unwrap_err().code(), "not_found");
    let queued = world.send(pull("parent", "go")).await.unwrap().run;
    let early = world.kernel.run_delegate(&world.me, queued.id, call()).await;
    assert_eq!(early.unwrap_err().code(), "wrong_state");
    soon(world.kernel.run_cancel(&world.me, queued.id)).await.unwrap();
    strings.end(End::succeeded());
    world.ended(run.id).await;
    let late = world.kernel.run_delegate(&world.me, run.id, call()).await;
    assert_eq!(late.unwrap_err().code(), "run_ended");
    assert_eq!(world.kernel.run_list(&world.me, Default::default()).await.unwrap().len(), 2);
}

#[tokio::test]
async fn delegation_goes_three_deep_or_as_deep_as_is_said() {
    let (world, mut hands) = world(Disk::memory()).await;
    let (_, mut strings) = parent(&world, &mut hands).await;
    let mut kept = vec![];
    for name in ["1", "2", "3"] {
        delegated(&strings.handle, named(DelegationMode::Spawn, name)).await;
        kept.push(std::mem::replace(&mut strings, hands.next().await));
    }
    let deeper = named(DelegationMode::Spawn, "4");
    assert_eq!(refused(&strings.handle, deeper.clone()).await, Error::TooDeep { depth: 4, limit: 3 });
    delegated(&strings.handle, Delegate { max_depth: Some(4), ..deeper }).await;
}

#[tokio::test]
async fn a_child_may_do_no_more_than_its_parent() {
    let (world, mut hands) = world(Disk::memory()).await;
    let act = || Delegate { run_mode: Mode::Act, ..Delegate::new(DelegationMode::Spawn, "count") };
    world.send(RunRequest { mode: Mode::Ask, ..pull("asks", "go") }).await.unwrap();
    let strings = hands.next().await;
    assert_eq!(refused(&strings.handle, act()).await.code(), "forbidden");
    let (_, strings) = parent(&world, &mut hands).await;
    assert_eq!(delegated(&strings.handle, act()).await.run.mode, Mode::Act);
}

#[tokio::test]
async fn those_who_would_wait_for_each_other_do_not() {
    let (world, mut hands) = world(Disk::sqlite()).await;
    let (run, strings) = parent(&world, &mut hands).await;
    let child = delegated(&strings.handle, named(DelegationMode::Call, "1")).await;
    let middle = hands.next().await;
    let deep = delegated(&middle.handle, named(DelegationMode::Call, "2")).await;
    let last = hands.next().await;
    let back = |session, mode| Delegate { session: the(session), ..Delegate::new(mode, "more") };
    for session in [run.session, child.session.id] {
        let error = refused(&last.handle, back(session, DelegationMode::Continue)).await;
        assert_eq!(error, Error::WouldDeadlock(session));
    }
    // Whoever does not wait may queue anywhere.
    delegated(&last.handle, named(DelegationMode::Spawn, "3")).await;
    drop(deep);
}

#[tokio::test]
async fn a_child_that_is_waited_for_works_on_its_parents_permit() {
    let disk = Disk::memory();
    let (adapter, mut hands) = puppet(&disk.store, Manners { obeys: true, ..Manners::default() });
    let options = Options { max_workers: 1, ..Options::default() };
    let world = World::with(disk, options, vec![adapter]).await;
    let (run, strings) = parent(&world, &mut hands).await;
    let spawned = delegated(&strings.handle, named(DelegationMode::Spawn, "1")).await;
    settle().await;
    assert!(hands.is_idle(), "nobody waits for it, so it waits its turn");
    let called = delegated(&strings.handle, named(DelegationMode::Call, "2")).await;
    let second = delegated(&strings.handle, named(DelegationMode::Call, "3")).await;
    let child = hands.next().await;
    assert_eq!(child.handle.assignment().run.id, called.run.id);
    settle().await;
    assert!(hands.is_idle(), "one permit is lent to one");
    child.end(End::succeeded());
    let child = hands.next().await;
    assert_eq!(child.handle.assignment().run.id, second.run.id);
    child.end(End::succeeded());
    soon(strings.handle.settled(second.delegation.id)).await.unwrap();
    settle().await;
    assert!(hands.is_idle(), "the parent works again");
    strings.end(End::succeeded());
    world.ended(run.id).await;
    hands.next().await.end(End::succeeded());
    assert_eq!(world.ended(spawned.run.id).await.state.status(), RunStatus::Succeeded);
}

#[tokio::test]
async fn a_call_to_an_adapter_without_a_worker_is_refused_rather_than_queued() {
    let disk = Disk::memory();
    let (adapter, mut hands) = puppet(&disk.store, Manners::default());
    let options =
        Options { adapter_workers: HashMap::from([("puppet".to_owned(), 1)]), ..Options::default() };
    let world = World::with(disk, options, vec![adapter]).await;
    let (_, strings) = parent(&world, &mut hands).await;
    let error = refused(&strings.handle, named(DelegationMode::Call, "1")).await;
    assert_eq!(error, Error::AdapterFull { adapter: "puppet".into(), limit: 1 });
    delegated(&strings.handle, named(DelegationMode::Spawn, "2")).await;
}

#[tokio::test]
async fn a_parents_budget_is_split_and_the_rest_comes_back() {
    let (world, mut hands) = world(Disk::sqlite()).await;
    let dollars = |usd: f64| Some(Cost::from(usd));
    let mut request = pull("parent", "go");
    request.options.limits = RunLimits { max_cost: dollars(1.0), ..RunLimits::default() };
    world.send(request).await.unwrap();
    let strings = hands.next().await;
    let usage = |usd: f64| Usage { cost: Cost::from(usd), ..Usage::default() };
    strings.handle.record(vec![Record::Usage(usage(0.1))]).await.unwrap();
    let limits = RunLimits { max_cost: dollars(0.5), ..RunLimits::default() };
    let share = |name: &str| Delegate {
        options: RunOptions { limits, ..RunOptions::default() },
        ..named(DelegationMode::Spawn, name)
    };
    let first = delegated(&strings.handle, share("1")).await;
    assert_eq!(first.run.options.limits.max_cost, dollars(0.5));
    let second = delegated(&strings.handle, share("2")).await;
    assert_eq!(second.run.options.limits.max_cost, dollars(0.4), "no more than is left");
    assert_eq!(refused(&strings.handle, share("3")).await.code(), "invalid_request");
    assert_eq!(strings.handle.spent_by_children().await.unwrap().cost, Cost::from(0.9));
    hands.next().await.end(Executed::Ended(End::Succeeded { usage: usage(0.2) }));
    world.ended(first.run.id).await;
    assert_eq!(strings.handle.spent_by_children().await.unwrap().cost, Cost::from(0.6));
    let fourth = delegated(&strings.handle, share("4")).await;
    assert_eq!(fourth.run.options.limits.max_cost, dollars(0.3), "what the first did not need");
}

#[tokio::test]
async fn what_a_child_asked_and_nobody_answered_is_told() {
    let (world, mut hands) = world(Disk::memory()).await;
    let (_, strings) = parent(&world, &mut hands).await;
    let child = delegated(&strings.handle, named(DelegationMode::Call, "1")).await;
    hands.next().await.end(Executed::Waiting(question(WaitRequest::Input, None)));
    world.asked(child.run.id).await;
    soon(world.kernel.run_cancel(&world.me, child.run.id)).await.unwrap();
    let (settled, result) = soon(strings.handle.settled(child.delegation.id)).await.unwrap();
    assert_eq!(settled.status, DelegationStatus::Cancelled);
    assert_eq!(result.unwrap().open_questions, ["may I?"]);
}

/// Whatever a crash cuts off, the next start finishes: the parent's session hears of every child, and of its end.
#[test]
fn a_crash_loses_no_delegation() {
    for disk in every_store() {
        let (run, child) = live(async {
            let (world, mut hands) = world(disk.clone()).await;
            let (run, strings) = parent(&world, &mut hands).await;
            let child = soon(strings.handle.delegate(named(DelegationMode::Spawn, "1"))).await.unwrap();
            (run.id, child)
        });
        live(async {
            let (adapter, _hands) = puppet(&disk.store, Manners::default());
            let clock = Clock::manual(NOW.plus(1_000));
            let world = World::boot(disk.clone(), Options::default(), vec![adapter], clock, 2).await;
            let told = told(&world, run, 2).await;
            assert_eq!(told.len(), 2, "{}", disk.name);
            assert_eq!(told[1].1.status, DelegationStatus::Failed, "its child was orphaned");
            assert_eq!(world.get(child.run.id).await.state.status(), RunStatus::Orphaned);
            assert!(disk.store.inbox(child.session.id).await.unwrap().is_empty());
        });
    }
}

#[tokio::test]
async fn a_note_that_could_not_be_taken_is_taken_later() {
    let (world, mut hands) = world(Disk::memory()).await;
    let (run, strings) = parent(&world, &mut hands).await;
    let child = delegated(&strings.handle, named(DelegationMode::Spawn, "1")).await;
    strings.end(End::succeeded());
    world.ended(run.id).await;
    told(&world, run.id, 1).await;
    // As the child's session leaves it, were it another process.
    let store = &world.disk.store;
    let somewhere = world.play("elsewhere", "say hi").await.session;
    soon(world.kernel.session_close(&world.me, &by("elsewhere"))).await.unwrap();
    let fence = store.lease_take(somewhere, NodeId::from_random([9; 16])).await.unwrap();
    let settled = Delegation { status: DelegationStatus::Succeeded, ..child.delegation };
    let item = json!({"note": "settled", "delegation": settled});
    let item = InboxItem { id: EventId::from_random([7; 16]), at: NOW, item };
    let rows = vec![Row::Inbox(run.session, item)];
    store.commit(Commit { fence, events: vec![], rows }.into()).await.unwrap();
    soon(world.kernel.session_close(&world.me, &by("parent"))).await.unwrap();

    world.disk.fault(Fault::CommitFails);
    world.subscribe("parent", None).await;
    world.turning(100, told(&world, run.id, 2)).await;
    assert!(store.inbox(run.session).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_child_outlives_its_parents_session() {
    for disk in every_store() {
        let (world, mut hands) = world(disk).await;
        let (run, strings) = parent(&world, &mut hands).await;
        let child = delegated(&strings.handle, named(DelegationMode::Spawn, "1")).await;
        strings.end(End::succeeded());
        world.ended(run.id).await;
        let session = mainspring_kernel::store::SessionRef::Id(run.session);
        soon(world.kernel.session_delete(&world.me, &session)).await.unwrap();
        hands.next().await.end(End::succeeded());
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
    let (world, mut hands) = world(Disk::sqlite()).await;
    let (_, strings) = parent(&world, &mut hands).await;
    let act = |name: &str| Delegate { run_mode: Mode::Act, ..named(DelegationMode::Spawn, name) };
    delegated(&strings.handle, act("1")).await;
    let child = hands.next().await;
    assert_eq!(Permissions::Legacy.limited_by_parent(&child.handle).await.unwrap(), Permissions::Ask);
    assert_eq!(Permissions::Deny.limited_by_parent(&child.handle).await.unwrap(), Permissions::Deny);
    assert_eq!(Permissions::Legacy.limited_by_parent(&strings.handle).await.unwrap(), Permissions::Legacy);

    let standing = Permissions::Legacy.standing_grant(&strings.handle).unwrap();
    strings.handle.record(vec![Record::Granted(Box::new(standing))]).await.unwrap();
    assert_eq!(Permissions::Legacy.limited_by_parent(&child.handle).await.unwrap(), Permissions::Legacy);
    // A child that a person decides for has nothing to hand on.
    delegated(&child.handle, act("2")).await;
    let deeper = hands.next().await;
    assert_eq!(Permissions::Legacy.limited_by_parent(&deeper.handle).await.unwrap(), Permissions::Ask);
}
