//! Delegation: a run gives work to a child session exactly once and gets its result.

use mainspring_core::{
    Approval, ArtifactRole, Block, Body, CancelReason, Cursor, Delegation, DelegationMode, DelegationStatus,
    Failure, Mode, RequestName, Run, RunChange, RunId, RunState, RunStatus, SessionId, Usage, WaitRequest,
};
use mainspring_kernel::adapter::{AttemptHandle, End, Executed, HandleError, Record};
use mainspring_kernel::kernel::{
    Caller, Delegated, DelegationRequest, NewArtifact, RunRequest, SessionTarget,
};
use mainspring_kernel::policy::{self, Permissions};
use mainspring_kernel::store::Request;
use mainspring_kernel::{Error, Options};

use crate::puppet::{Execution, PuppetBehavior, PuppetControl, puppet, puppet_request, question};
use crate::world::{Disk, World, by_key, every_store, run_ready_tasks, with_timeout};

mod control;
mod durability;
mod limits;
mod shares;
mod waits;

fn request(mode: DelegationMode, name: &str) -> DelegationRequest {
    let name = RequestName {
        client_id: Some("tests".into()),
        request_id: Some(name.into()),
        ..RequestName::default()
    };
    DelegationRequest { name, ..DelegationRequest::new(mode, "count the files") }
}

/// A session that exists already.
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

async fn delegate(handle: &AttemptHandle, delegate: DelegationRequest) -> Delegated {
    with_timeout(handle.delegate(delegate)).await.unwrap()
}

async fn refusal(handle: &AttemptHandle, delegate: DelegationRequest) -> Error {
    match with_timeout(handle.delegate(delegate)).await {
        Err(HandleError::Kernel(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// Waits until a run has at least `count` events about delegations; returns their kinds and delegations.
async fn delegation_events(world: &World, run: RunId, count: usize) -> Vec<(String, Delegation)> {
    let is_delegation =
        |body: &Body| matches!(body, Body::DelegationCreated { .. } | Body::DelegationCompleted { .. });
    let events = async {
        loop {
            let events = world.kernel.run_events(&world.me, run, Cursor::START, None).await;
            let events: Vec<_> =
                events.unwrap().into_iter().filter(|event| is_delegation(&event.body)).collect();
            if events.len() >= count {
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
            unreachable!("other events were filtered out")
        };
        let (delegation, _) = world.kernel.delegation_get(&world.me, id).await.unwrap();
        all.push((event.body.kind().to_owned(), delegation));
    }
    all
}

async fn write_message(execution: &Execution, text: &str) {
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
        let asked =
            DelegationRequest { context: Some("in /tmp".into()), ..request(DelegationMode::Call, "1") };
        let child = delegate(&execution.handle, asked).await;
        assert_eq!(child.run.parent, Some(run.id));
        assert_eq!(child.delegation.child_session, child.session.id);
        assert_eq!((child.session.surface_kind.as_str(), child.run.mode), ("delegated_agent", Mode::Ask));

        let work = control.next().await;
        let about = work.handle.assignment();
        assert_eq!(about.prompt.text(), "count the files\n\nContext:\nin /tmp");
        let records = vec![
            Record::ToolStarted {
                tool_use_id: "t1".into(),
                name: "ls".into(),
                input: None,
                decided_by: None,
            },
            Record::ToolCompleted { tool_use_id: "t1".into(), content: vec![] },
        ];
        work.handle.record(records).await.unwrap();
        write_message(&work, "there are 3").await;
        let usage = Usage { input_tokens: 7, ..Usage::default() };
        work.end(Executed::Ended(End::Succeeded { usage }));

        let (settled, result) = with_timeout(execution.handle.settled(child.delegation.id)).await.unwrap();
        let result = result.unwrap();
        assert_eq!((settled.status, result.status), (DelegationStatus::Succeeded, RunStatus::Succeeded));
        assert_eq!((settled.result, settled.request.context()), (None, Some("in /tmp")));
        assert_eq!((result.summary.as_str(), result.usage.input_tokens), ("there are 3", 7));
        assert_eq!(result.verified_effects.iter().map(|done| &*done.name).collect::<Vec<_>>(), ["ls"]);
        execution.end(End::succeeded());
        world.ended(run.id).await;
        let kinds: Vec<_> =
            delegation_events(&world, run.id, 2).await.into_iter().map(|(kind, _)| kind).collect();
        assert_eq!(kinds, ["delegation.created", "delegation.completed"], "{}", world.disk.name);

        let used = world.kernel.session_usage(&world.me, &by_key("parent")).await.unwrap();
        assert_eq!((used.runs, used.usage), (1, Usage::default()));
        assert_eq!((used.delegated_runs, used.delegated_usage, used.total_usage), (1, usage, usage));

        let kin = world.kernel.run_delegations(&world.me, run.id).await.unwrap();
        assert_eq!((kin.parent, kin.children), (None, vec![settled.clone()]));
        let kin = world.kernel.run_delegations(&world.me, child.run.id).await.unwrap();
        assert_eq!(kin.parent, Some(settled));
    }
}

#[tokio::test]
async fn a_settled_delegation_names_the_result_artifact_of_its_child() {
    for disk in every_store() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { artifacts: Some(folder.path().join("artifacts")), ..Options::default() };
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let world = World::with(disk, options, vec![adapter]).await;
        let (_, execution) = parent(&world, &mut control).await;
        let child = delegate(&execution.handle, request(DelegationMode::Call, "1")).await;
        let work = control.next().await;
        let mut made = vec![];
        for role in [ArtifactRole::Result, ArtifactRole::Result, ArtifactRole::Log] {
            let new = NewArtifact { role, ..NewArtifact::default() };
            made.push(work.handle.artifact(new, &mut "a, b, c".as_bytes()).await.unwrap().id);
            world.clock.advance(1);
        }
        work.end(End::succeeded());
        let (settled, _) = with_timeout(execution.handle.settled(child.delegation.id)).await.unwrap();
        assert_eq!((child.delegation.result, settled.result), (None, Some(made[1])), "{}", world.disk.name);
    }
}

#[tokio::test]
async fn requests_under_the_same_name_give_one_child() {
    let (world, mut control) = world(Disk::sqlite()).await;
    let (_, execution) = parent(&world, &mut control).await;
    let first = delegate(&execution.handle, request(DelegationMode::Spawn, "1")).await;
    control.next().await.end(End::succeeded());
    world.ended(first.run.id).await;
    let again = delegate(&execution.handle, request(DelegationMode::Spawn, "1")).await;
    assert!(again.replayed);
    assert_eq!((again.run.id, again.delegation.id), (first.run.id, first.delegation.id));
    assert!(control.is_idle());
    let other =
        DelegationRequest { objective: "something else".into(), ..request(DelegationMode::Spawn, "1") };
    assert_eq!(refusal(&execution.handle, other).await.code(), "request_conflict");
    // The name of a prompt cannot be used for a delegation.
    let name = request(DelegationMode::Spawn, "2").name;
    world.send(RunRequest { name, ..puppet_request("elsewhere", "go") }).await.unwrap();
    assert_eq!(
        refusal(&execution.handle, request(DelegationMode::Spawn, "2")).await.code(),
        "request_conflict"
    );
}

#[tokio::test]
async fn an_idempotency_key_of_a_delegation_is_kept_for_a_day() {
    let (world, mut control) = world(Disk::memory()).await;
    let (_, execution) = parent(&world, &mut control).await;
    let spawn = || DelegationRequest {
        name: RequestName { idempotency_key: Some("k".into()), ..RequestName::default() },
        ..DelegationRequest::new(DelegationMode::Spawn, "count the files")
    };
    let first = delegate(&execution.handle, spawn()).await;
    world.clock.advance(Request::RETENTION_MS);
    let again = delegate(&execution.handle, spawn()).await;
    assert_eq!((again.replayed, again.run.id), (true, first.run.id));
    world.clock.advance(1);
    let new = delegate(&execution.handle, spawn()).await;
    assert!(!new.replayed && new.run.id != first.run.id);
}

#[tokio::test]
async fn a_child_continues_in_its_session() {
    let (world, mut control) = world(Disk::memory()).await;
    let (_, execution) = parent(&world, &mut control).await;
    let first = delegate(&execution.handle, request(DelegationMode::Call, "1")).await;
    control.next().await.end(End::succeeded());
    world.ended(first.run.id).await;
    let more =
        DelegationRequest { session: existing(first.session.id), ..request(DelegationMode::Continue, "2") };
    let second = delegate(&execution.handle, more).await;
    assert_eq!((second.session.id, second.run.no), (first.session.id, 2));
    control.next().await.end(End::succeeded());
    let (settled, _) = with_timeout(execution.handle.settled(second.delegation.id)).await.unwrap();
    assert_eq!((settled.mode, settled.status), (DelegationMode::Continue, DelegationStatus::Succeeded));
}

#[tokio::test]
async fn cancelling_a_run_cancels_its_children() {
    for disk in every_store() {
        let (world, mut control) = world(disk).await;
        let (run, execution) = parent(&world, &mut control).await;
        let mut children = vec![];
        for (name, mode) in [("1", DelegationMode::Call), ("2", DelegationMode::Spawn)] {
            children.push(delegate(&execution.handle, request(mode, name)).await);
        }
        let working = [control.next().await, control.next().await];
        // Children of children are cancelled too.
        let deep = delegate(&working[0].handle, request(DelegationMode::Spawn, "3")).await;
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
async fn a_run_that_fails_cancels_only_the_children_that_it_waits_for() {
    let (world, mut control) = world(Disk::memory()).await;
    let (run, execution) = parent(&world, &mut control).await;
    let called = delegate(&execution.handle, request(DelegationMode::Call, "1")).await;
    let spawned = delegate(&execution.handle, request(DelegationMode::Spawn, "2")).await;
    let _first = control.next().await;
    let second = control.next().await;
    execution.end(End::failed(Failure::new("broken", "it broke"), false));
    assert_eq!(world.ended(run.id).await.state.status(), RunStatus::Failed);
    assert_eq!(world.ended(called.run.id).await.state.status(), RunStatus::Cancelled);
    assert_eq!(world.get(spawned.run.id).await.state.status(), RunStatus::Running);
    second.end(End::succeeded());
    assert_eq!(world.ended(spawned.run.id).await.state.status(), RunStatus::Succeeded);
    let events = delegation_events(&world, run.id, 4).await;
    assert_eq!(
        events.last().unwrap().1.status,
        DelegationStatus::Succeeded,
        "recorded although the run has ended"
    );
}

#[tokio::test]
async fn a_settled_delegation_stays_settled_when_its_child_is_retried() {
    let (world, mut control) = world(Disk::sqlite()).await;
    let (run, execution) = parent(&world, &mut control).await;
    let child = delegate(&execution.handle, request(DelegationMode::Spawn, "1")).await;
    control.next().await.end(End::failed(Failure::new("broken", "it broke"), false));
    world.ended(child.run.id).await;
    with_timeout(world.kernel.run_retry(&world.me, child.run.id, RunChange::default())).await.unwrap();
    control.next().await.end(End::succeeded());
    world.wait_until(child.run.id, |run| run.state.status() == RunStatus::Succeeded).await;
    execution.end(End::succeeded());
    world.ended(run.id).await;
    run_ready_tasks().await;
    let events = delegation_events(&world, run.id, 2).await;
    assert_eq!(events.len(), 2, "settled once");
    assert_eq!(events[1].1.status, DelegationStatus::Failed);
}

#[tokio::test]
async fn invalid_delegations_are_refused_and_leave_nothing() {
    let (world, mut control) = world(Disk::memory()).await;
    let (run, execution) = parent(&world, &mut control).await;
    let handle = &execution.handle;
    let call = || DelegationRequest::new(DelegationMode::Call, "count");
    let own = DelegationRequest {
        session: existing(run.session),
        ..DelegationRequest::new(DelegationMode::Continue, "count")
    };
    for (delegate, code) in [
        (DelegationRequest { objective: " ".into(), ..call() }, "invalid_request"),
        (DelegationRequest { context: Some("x".repeat(4_001)), ..call() }, "invalid_request"),
        (DelegationRequest { max_depth: Some(6), ..call() }, "invalid_request"),
        (DelegationRequest { session: existing(run.session), ..call() }, "invalid_request"),
        (DelegationRequest::new(DelegationMode::Continue, "count"), "invalid_request"),
        (own, "would_deadlock"),
    ] {
        assert_eq!(refusal(handle, delegate.clone()).await.code(), code, "{delegate:?}");
    }
    let mut unknown = call();
    unknown.session.new.adapter = Some("nobody".into());
    assert_eq!(refusal(handle, unknown).await.code(), "adapter_not_registered");
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
async fn delegation_is_at_most_three_deep_unless_the_request_allows_more() {
    let (world, mut control) = world(Disk::memory()).await;
    let (_, mut execution) = parent(&world, &mut control).await;
    let mut kept = vec![];
    for name in ["1", "2", "3"] {
        delegate(&execution.handle, request(DelegationMode::Spawn, name)).await;
        kept.push(std::mem::replace(&mut execution, control.next().await));
    }
    let deeper = request(DelegationMode::Spawn, "4");
    assert_eq!(refusal(&execution.handle, deeper.clone()).await, Error::TooDeep { depth: 4, limit: 3 });
    delegate(&execution.handle, DelegationRequest { max_depth: Some(4), ..deeper }).await;
}

#[tokio::test]
async fn a_run_that_may_not_act_cannot_let_a_child_act() {
    let (world, mut control) = world(Disk::memory()).await;
    let act = || DelegationRequest {
        run_mode: Mode::Act,
        ..DelegationRequest::new(DelegationMode::Spawn, "count")
    };
    world.send(RunRequest { mode: Mode::Ask, ..puppet_request("asks", "go") }).await.unwrap();
    let execution = control.next().await;
    assert_eq!(refusal(&execution.handle, act()).await.code(), "forbidden");
    let (_, execution) = parent(&world, &mut control).await;
    assert_eq!(delegate(&execution.handle, act()).await.run.mode, Mode::Act);
}

#[tokio::test]
async fn unanswered_questions_of_a_child_are_part_of_its_result() {
    let (world, mut control) = world(Disk::memory()).await;
    let (_, execution) = parent(&world, &mut control).await;
    let child = delegate(&execution.handle, request(DelegationMode::Call, "1")).await;
    control.next().await.end(Executed::Waiting(question(WaitRequest::Input, None)));
    world.wait_for_question(child.run.id).await;
    with_timeout(world.kernel.run_cancel(&world.me, child.run.id)).await.unwrap();
    let (settled, result) = with_timeout(execution.handle.settled(child.delegation.id)).await.unwrap();
    assert_eq!(settled.status, DelegationStatus::Cancelled);
    assert_eq!(result.unwrap().open_questions, ["may I?"]);
}

#[tokio::test]
async fn a_child_gets_no_more_grants_than_its_parent() {
    let (world, mut control) = world(Disk::sqlite()).await;
    let (_, execution) = parent(&world, &mut control).await;
    let act = |name: &str| DelegationRequest { run_mode: Mode::Act, ..request(DelegationMode::Spawn, name) };
    delegate(&execution.handle, act("1")).await;
    let child = control.next().await;
    assert_eq!(Permissions::Legacy.limited_by_parent(&child.handle).await.unwrap(), Permissions::Ask);
    assert_eq!(Permissions::Deny.limited_by_parent(&child.handle).await.unwrap(), Permissions::Deny);
    assert_eq!(Permissions::Legacy.limited_by_parent(&execution.handle).await.unwrap(), Permissions::Legacy);

    let standing = Permissions::Legacy.standing_grant(&execution.handle).await.unwrap().unwrap();
    execution.handle.record(vec![Record::Granted(Box::new(standing.clone()))]).await.unwrap();
    assert_eq!(Permissions::Legacy.limited_by_parent(&child.handle).await.unwrap(), Permissions::Legacy);
    let inherited = Permissions::Legacy.standing_grant(&child.handle).await.unwrap().unwrap();
    assert_eq!(inherited.parent_grant(), Some(standing.id));
    // A child without a grant of its own passes nothing on.
    delegate(&child.handle, act("2")).await;
    let deeper = control.next().await;
    assert_eq!(Permissions::Legacy.limited_by_parent(&deeper.handle).await.unwrap(), Permissions::Ask);

    // The grant of the child ends with that of its parent.
    child.handle.record(vec![Record::Granted(Box::new(inherited.clone()))]).await.unwrap();
    let allow = || policy::request_permission(&child.handle, Some(&inherited), "Allow it?".to_owned().into());
    assert_eq!(allow().await.unwrap().decision, Approval::Allowed);
    world.kernel.grant_revoke(&world.me, standing.id).await.unwrap();
    let child_run = child.handle.assignment().run.id;
    let listed = world.kernel.run_grants(&world.me, child_run).await.unwrap();
    assert!(listed.iter().all(|grant| grant.revoked_at.is_some()), "{listed:?}");
    let answer = async {
        let wait = world.wait_for_question(child_run).await;
        world.kernel.run_answer(&world.me, child_run, wait, Approval::Denied.into()).await.unwrap();
    };
    let (asked, ()) = with_timeout(async { tokio::join!(allow(), answer) }).await;
    assert_eq!(asked.unwrap().decision, Approval::Denied);
    assert_eq!(Permissions::Legacy.limited_by_parent(&child.handle).await.unwrap(), Permissions::Ask);
}
