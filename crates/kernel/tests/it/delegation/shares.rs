//! No child exceeds its parent: shares of limits, number and depth of children.

use std::collections::BTreeMap;
use std::path::Path;

use mainspring_api::control::ControlPlane;
use mainspring_core::{
    Approval, Body, Cost, Cursor, Failure, GrantId, Mode, RunChange, RunLimits, RunOptions, Sandbox,
    SandboxProfile, Usage,
};
use mainspring_kernel::adapter::Record;
use mainspring_kernel::kernel::{ForkRequest, GrantQuery, RunRequest, SessionPatch};
use mainspring_kernel::policy::{Action, Layers, Resource, Rule, Rules, ServerRules, Verdict};
use mainspring_kernel::store::SessionRef;

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

/// Children that are delegated together are checked before the first one is committed.
#[tokio::test]
async fn children_that_are_delegated_together_exist_all_or_none() {
    for disk in every_store() {
        let mut options = Options::default();
        options.limits.children_per_run = 2;
        let (world, mut control) = world_with(disk, options).await;
        let (run, execution) = limited_parent(&world, &mut control, tokens(100)).await;
        let work = |names: &[&str]| names.iter().map(|name| request(DelegationMode::Spawn, name)).collect();
        let refused = with_timeout(execution.handle.delegate_all(work(&["1", "2", "3"]))).await.unwrap_err();
        assert!(matches!(refused, HandleError::Kernel(Error::TooManyChildren { limit: 2 })), "{refused:?}");
        let none = world.kernel.run_delegations(&world.me, run.id).await.unwrap().children;
        assert_eq!(none, [], "{}: a refusal leaves no child", world.disk.name);
        let made = with_timeout(execution.handle.delegate_all(work(&["1", "2"]))).await.unwrap();
        let shares: Vec<Option<u64>> = made.iter().map(|child| child.run.options.limits.max_tokens).collect();
        assert_eq!(shares, [Some(50), Some(25)], "{}: in the order of the requests", world.disk.name);
        let again = with_timeout(execution.handle.delegate_all(work(&["2", "1"]))).await.unwrap();
        let runs = |children: &[Delegated]| children.iter().map(|child| child.run.id).collect::<Vec<_>>();
        let mut found = runs(&again);
        found.reverse();
        assert_eq!((found, again[0].replayed), (runs(&made), true), "{}", world.disk.name);
    }
}

/// Several children are delegated together, and one of their commits fails: the same requests make the
/// missing children, and find the others.
#[tokio::test]
async fn children_whose_commit_failed_are_made_again_under_their_names() {
    for disk in every_store() {
        let (world, mut control) = world(disk).await;
        let (run, execution) = parent(&world, &mut control).await;
        let work = || ["1", "2"].map(|name| request(DelegationMode::Spawn, name)).to_vec();
        let children = async || world.kernel.run_delegations(&world.me, run.id).await.unwrap().children;
        world.disk.inject_fault(mainspring_store::Fault::CommitFails);
        with_timeout(execution.handle.delegate_all(work())).await.unwrap_err();
        let before = children().await.len();
        assert!(before < 2, "{}", world.disk.name);
        let made = with_timeout(async {
            loop {
                match execution.handle.delegate_all(work()).await {
                    Ok(made) => return made,
                    Err(HandleError::Kernel(Error::Unavailable(_))) => tokio::task::yield_now().await,
                    Err(error) => panic!("{error:?}"),
                }
            }
        })
        .await;
        assert_ne!(made[0].run.id, made[1].run.id);
        assert_eq!(children().await.len(), 2, "{}: no child is made twice", world.disk.name);
    }
}

/// Both children wait for the writer at the same time, so that one transaction can write their commits.
#[tokio::test]
async fn children_that_are_delegated_together_are_committed_together() {
    let (disk, store) = Disk::sqlite_with_store();
    let (world, mut control) = world(disk).await;
    let (run, _execution) = parent(&world, &mut control).await;
    let paused = store.pause_writer();
    let work = ["1", "2"].map(|name| request(DelegationMode::Spawn, name)).to_vec();
    let delegating = world.kernel.run_delegate_all(&world.me, run.id, work);
    let both_wait = async {
        while store.queued() < 2 {
            tokio::task::yield_now().await;
        }
        drop(paused);
    };
    let (made, ()) = with_timeout(async { tokio::join!(delegating, both_wait) }).await;
    assert_eq!(made.unwrap().len(), 2);
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
async fn a_run_has_a_maximum_number_of_unfinished_children() {
    let mut options = Options::default();
    options.limits.children_per_run = 2;
    let (world, mut control) = world_with(Disk::sqlite(), options).await;
    let (_, execution) = parent(&world, &mut control).await;
    let spawn = |name: &str| request(DelegationMode::Spawn, name);
    let first = delegate(&execution.handle, spawn("1")).await;
    delegate(&execution.handle, spawn("2")).await;
    assert_eq!(refusal(&execution.handle, spawn("3")).await, Error::TooManyChildren { limit: 2 });
    // The children may begin in either order.
    let working = [control.next().await, control.next().await];
    let of_first = working.into_iter().find(|work| work.handle.assignment().run.id == first.run.id);
    of_first.unwrap().end(End::succeeded());
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

fn rules(texts: &[&str]) -> Vec<Rule> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// The rules of the server and of the owner of the runs.
fn server_rules() -> ServerRules {
    let owner = rules(&["ask tool call paid", "allow tool call free"]);
    let owners = BTreeMap::from([("ada".to_owned(), owner)]);
    ServerRules { all: rules(&["deny tool call never"]), owners }
}

/// The rules of an adapter, and its decisions on everything else.
fn adapter_rules(name: &str) -> (Vec<Rule>, Vec<Rule>) {
    match name {
        "puppet" => (rules(&["deny tool call rm", "allow control * *"]), vec![]),
        _ => (rules(&["deny fs write /etc/*", "allow terminal run *"]), Permissions::Ask.as_rules()),
    }
}

/// The verdicts on some actions of a run, as its session is now.
async fn verdicts_now(world: &World, execution: &Execution) -> Vec<(String, Verdict)> {
    let handle = &execution.handle;
    let run = world.get(handle.assignment().run.id).await;
    let session = world.kernel.session_get(&world.me, &SessionRef::Id(run.session)).await.unwrap();
    let (own, otherwise) = adapter_rules(&run.adapter);
    let layers = Layers::of(&server_rules(), &own, &otherwise, &session, &run);
    let rules = Rules::new(&layers, vec![]);
    let tool = |name: &str| ("tool", "call", Resource::Text(name.into()));
    let file = |operation, path: &str| ("fs", operation, Resource::Path(path.into()));
    let actions = [
        tool("rm"),
        tool("never"),
        tool("paid"),
        tool("free"),
        tool("other"),
        file("write", "/etc/x"),
        file("read", "/home/x"),
        ("terminal", "run", Resource::Command(vec!["git".into(), "push".into()])),
        ("control", "delegate_agent", Resource::Text("spawn".into())),
    ];
    let mut verdicts = vec![];
    for (capability, operation, resource) in actions {
        let action = Action { capability, operation: operation.into(), resource };
        let found = rules.verdict(handle, &action, &"may I?".to_owned().into()).await.unwrap();
        let default = match (capability, otherwise.is_empty()) {
            ("control", _) | (_, true) => Verdict::Allow,
            _ => Verdict::Ask,
        };
        verdicts.push((format!("{action:?}"), found.map_or(default, |(verdict, _)| verdict)));
    }
    verdicts
}

fn assert_no_looser(parent: &[(String, Verdict)], child: &[(String, Verdict)], seed: u64) {
    for ((action, outer), (_, inner)) in parent.iter().zip(child) {
        assert!(inner <= outer, "seed {seed}: {action}: {inner:?} under {outer:?}");
    }
}

/// Gives a session random rules, sometimes.
async fn random_patch(world: &World, session: SessionId, random: &mut Random) {
    let known =
        ["allow * * *", "deny tool call other", "ask tool call *", "allow fs * *", "deny control * *"];
    if random.below(2) == 0 {
        let rules = (0..random.below(3)).map(|_| known[random.below(known.len())].to_owned()).collect();
        let patch = SessionPatch { rules: Some(rules), ..SessionPatch::default() };
        world.kernel.session_patch(&world.me, &SessionRef::Id(session), patch).await.unwrap();
    }
}

/// The children that a run of the random trees may have at once.
const MAX_CHILDREN: usize = 4;

/// The grant of everything that a run has, if it is in force.
async fn grant_of_everything(world: &World, execution: &Execution) -> Option<GrantId> {
    let run = execution.handle.assignment().run.id;
    let query = GrantQuery { in_force: true, ..GrantQuery::default() };
    let grants = world.kernel.grant_list(&world.me, query).await.unwrap();
    grants.into_iter().find(|grant| grant.run == Some(run)).map(|grant| grant.id)
}

/// Grants everything to a run if its parent allows that, and sometimes revokes the grant of the parent.
async fn random_grants(
    world: &World,
    parent: Option<&Execution>,
    child: &Execution,
    random: &mut Random,
    seed: u64,
) {
    let of_parent = match parent {
        Some(parent) => grant_of_everything(world, parent).await,
        None => None,
    };
    let permissions = Permissions::Legacy.limited_by_parent(&child.handle).await.unwrap();
    let may_have = parent.is_none() || of_parent.is_some();
    assert_eq!(permissions == Permissions::Legacy, may_have, "seed {seed}");
    if permissions == Permissions::Legacy && random.below(3) > 0 {
        let grant = permissions.standing_grant(&child.handle).await.unwrap().unwrap();
        child.handle.record(vec![Record::Granted(Box::new(grant))]).await.unwrap();
    }
    if let Some(grant) = of_parent.filter(|_| random.below(6) == 0) {
        world.kernel.grant_revoke(&world.me, grant).await.unwrap();
        assert_eq!(grant_of_everything(world, child).await, None, "seed {seed}");
    }
}

/// Lets the work be done in an idle session, or in a fork of it, sometimes. Returns the session.
async fn random_session(
    world: &World,
    work: &mut DelegationRequest,
    idle: &[SessionId],
    random: &mut Random,
) -> Option<SessionId> {
    if idle.is_empty() || random.below(3) > 0 {
        return None;
    }
    let session = SessionRef::Id(idle[random.below(idle.len())]);
    let path = world.kernel.session_path(&world.me, &session, None, None).await.unwrap();
    let chosen = match (path.last(), random.below(2)) {
        (Some(last), 0) => {
            let fork = ForkRequest { message: last.id, key: None, title: None };
            world.kernel.session_fork(&world.me, &session, fork, None).await.unwrap().0
        }
        _ => world.kernel.session_get(&world.me, &session).await.unwrap(),
    };
    (work.mode, work.session) = (DelegationMode::Continue, existing(chosen.id));
    Some(chosen.id)
}

/// Random work for a child of any adapter, in any of the folders.
fn random_work(name: &str, folders: &[String], random: &mut Random) -> DelegationRequest {
    let mut work = DelegationRequest {
        run_mode: if random.below(2) == 0 { Mode::Ask } else { Mode::Act },
        max_depth: (random.below(2) == 0).then(|| 1 + random.below(5) as u32),
        adapter: (random.below(2) == 0).then(|| ["puppet", "strict"][random.below(2)].to_owned()),
        ..limited(random_limits(random), request(DelegationMode::Spawn, name))
    };
    work.options.cwd = (random.below(2) == 0).then(|| folders[random.below(4)].clone());
    work.session.new.cwd = (random.below(2) == 0).then(|| folders[random.below(4)].clone());
    work
}

/// A world with two adapters. The second one asks about actions that no rule decides.
async fn two_adapters() -> (World, [(&'static str, PuppetControl); 2]) {
    let disk = Disk::memory();
    let behavior = |name| {
        let (rules, otherwise) = adapter_rules(name);
        PuppetBehavior { name, obeys: true, rules, otherwise, ..PuppetBehavior::default() }
    };
    let (first, of_first) = puppet(&disk.store, behavior("puppet"));
    let (second, of_second) = puppet(&disk.store, behavior("strict"));
    let mut options = Options { max_workers: 100, rules: server_rules(), ..Options::default() };
    options.limits.children_per_run = MAX_CHILDREN;
    let world = World::with(disk, options, vec![first, second]).await;
    (world, [("puppet", of_first), ("strict", of_second)])
}

/// Records a sandbox as an adapter does: read-only for a run that may only answer, never weaker than the run's bound.
async fn confine(execution: &Execution, random: &mut Random) -> SandboxProfile {
    let run = execution.handle.assignment().run.clone();
    let own = [SandboxProfile::Off, SandboxProfile::Workspace, SandboxProfile::ReadOnly][random.below(3)];
    let own = if run.mode == Mode::Ask { SandboxProfile::ReadOnly } else { own };
    let profile = run.options.sandbox.map_or(own, |bound| own.stricter(bound));
    let folder = run.options.cwd.clone().filter(|_| profile == SandboxProfile::Workspace);
    let sandbox = Sandbox { profile, folder, ..Sandbox::none(None) };
    execution.handle.record(vec![Record::Confined(sandbox)]).await.unwrap();
    profile
}

/// Random trees of delegations with random requests. Each child is compared with its parent when it is accepted.
#[tokio::test]
async fn no_random_child_exceeds_its_parent() {
    let root = tempfile::tempdir().unwrap();
    let folders = ["a", "a/b", "a/b/c", "d"].map(|name| root.path().canonicalize().unwrap().join(name));
    folders.iter().for_each(|folder| std::fs::create_dir_all(folder).unwrap());
    let folders = folders.map(|folder| folder.to_str().unwrap().to_owned());
    for seed in 0..30 {
        let mut random = Random(seed);
        let (world, mut controls) = two_adapters().await;
        let mut prompt = puppet_request("limited", "go");
        prompt.options.limits = random_limits(&mut random);
        prompt.options.cwd = Some(folders[random.below(4)].clone());
        world.send(prompt).await.unwrap();
        let execution = controls[0].1.next().await;
        let profile = confine(&execution, &mut random).await;
        random_grants(&world, None, &execution, &mut random, seed).await;
        let (mut live, mut idle) = (vec![(execution, profile)], vec![]);
        for step in 0..40 {
            let at = random.below(live.len());
            if random.below(4) == 0 && live.len() > 1 {
                let used = Usage { output_tokens: random.below(30) as u64, ..Usage::default() };
                let ended = live.swap_remove(at).0;
                let (run, session) = (ended.handle.assignment().run.id, ended.handle.assignment().session.id);
                ended.end(Executed::Ended(End::Succeeded { usage: used }));
                world.ended(run).await;
                idle.push(session);
                continue;
            }
            let (parent, profile) = (&live[at].0, live[at].1);
            let before = world.kernel.run_get(&world.me, parent.handle.assignment().run.id).await.unwrap();
            let mut work = random_work(&step.to_string(), &folders, &mut random);
            let continued = random_session(&world, &mut work, &idle, &mut random).await;
            random_patch(&world, parent.handle.assignment().run.session, &mut random).await;
            // The verdicts of the parent now: its session may have other rules than when the run started.
            let bound = verdicts_now(&world, parent).await;
            let spent = parent.handle.spent_by_children().await.unwrap();
            let Ok(child) = with_timeout(parent.handle.delegate(work)).await else { continue };
            idle.retain(|session| Some(*session) != continued);
            let children = world.kernel.run_delegations(&world.me, before.id).await.unwrap().children;
            let living = children.iter().filter(|child| !child.status.is_settled()).count();
            assert!(living <= MAX_CHILDREN, "seed {seed}: {living} children");
            assert_within(&before, &spent, &child.run, seed);
            let folder = child.run.options.cwd.as_deref().or(child.session.cwd.as_deref());
            assert_bounded(&before, profile, &child.run, folder, seed);
            let adapter = controls.iter_mut().find(|(name, _)| *name == child.run.adapter).unwrap();
            let execution = adapter.1.next().await;
            let verdicts = verdicts_now(&world, &execution).await;
            assert_no_looser(&bound, &verdicts, seed);
            // The child stays within its parent's rules even if its session is changed while it runs.
            random_patch(&world, child.session.id, &mut random).await;
            assert_no_looser(&bound, &verdicts_now(&world, &execution).await, seed);
            random_grants(&world, Some(parent), &execution, &mut random, seed).await;
            let profile = confine(&execution, &mut random).await;
            live.push((execution, profile));
        }
    }
}

/// Asserts that a child works where its parent may write, in no weaker sandbox.
fn assert_bounded(parent: &Run, profile: SandboxProfile, child: &Run, folder: Option<&str>, seed: u64) {
    let context = format!("seed {seed}: {:?} of {:?} under {profile:?}", child.options, parent.options);
    let bound = child.options.sandbox.unwrap_or(SandboxProfile::Off);
    assert_eq!(bound.stricter(profile), bound, "{context}");
    if profile == SandboxProfile::Workspace && child.mode == Mode::Act {
        let own = parent.options.cwd.as_deref().unwrap();
        assert!(folder.is_some_and(|folder| Path::new(folder).starts_with(own)), "{folder:?}: {context}");
    }
    assert!(profile != SandboxProfile::ReadOnly || child.mode == Mode::Ask, "{context}");
}

#[tokio::test]
async fn a_child_in_a_session_outside_its_parents_folders_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let [own, other] = ["own", "other"].map(|name| {
        let folder = root.path().canonicalize().unwrap().join(name);
        std::fs::create_dir(&folder).unwrap();
        folder.to_str().unwrap().to_owned()
    });
    let (world, mut control) = world(Disk::memory()).await;
    let mut elsewhere = puppet_request("elsewhere", "hello");
    elsewhere.session.new.cwd = Some(other.clone());
    let session = world.send(elsewhere).await.unwrap().run.session;
    control.next().await.end(End::succeeded());
    let mut prompt = puppet_request("parent", "go");
    prompt.options.cwd = Some(own.clone());
    let run = world.send(prompt).await.unwrap().run;
    let execution = control.next().await;
    let sandbox =
        Sandbox { profile: SandboxProfile::Workspace, folder: Some(own.clone()), ..Sandbox::none(None) };
    execution.handle.record(vec![Record::Confined(sandbox)]).await.unwrap();
    let there = |name| DelegationRequest {
        session: existing(session),
        run_mode: Mode::Act,
        ..request(DelegationMode::Continue, name)
    };
    assert_eq!(refusal(&execution.handle, there("agent")).await.code(), "folder_not_allowed");
    // An application cannot delegate the work on behalf of the run either.
    let refused = world.kernel.run_delegate(&world.me, run.id, there("person")).await.unwrap_err();
    assert_eq!(refused.code(), "folder_not_allowed");
    // A retry keeps the bounds.
    let mut here = DelegationRequest { run_mode: Mode::Act, ..request(DelegationMode::Spawn, "here") };
    here.options.cwd = Some(own.clone());
    let child = delegate(&execution.handle, here).await.run;
    assert_eq!(child.options.sandbox, Some(SandboxProfile::Workspace));
    control.next().await.end(End::failed(Failure::new("lost", "gone"), false));
    world.ended(child.id).await;
    let retried = world.kernel.run_retry(&world.me, child.id, RunChange::default()).await.unwrap();
    assert_eq!(
        (retried.options.sandbox, retried.options.folders),
        (Some(SandboxProfile::Workspace), Some(vec![own]))
    );
}

#[tokio::test]
async fn a_step_limit_is_refused_for_an_adapter_that_does_not_count_steps() {
    let (world, mut control) = world(Disk::memory()).await;
    let limits = RunLimits { max_steps: Some(5), best_effort: Some(true), ..RunLimits::default() };
    let (_, execution) = limited_parent(&world, &mut control, limits).await;
    let refused = refusal(&execution.handle, request(DelegationMode::Spawn, "1")).await;
    assert_eq!(refused.code(), "limit_not_enforceable");
    let best_effort = RunLimits { best_effort: Some(true), ..RunLimits::default() };
    delegate(&execution.handle, limited(best_effort, request(DelegationMode::Spawn, "2"))).await;
}

#[tokio::test]
async fn every_control_operation_of_an_agent_is_decided_and_recorded() {
    let disk = Disk::memory();
    let rules = ["deny control delegate_agent spawn", "allow control delegate_agent *"];
    let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    let (adapter, mut control) =
        puppet(&disk.store, PuppetBehavior { obeys: true, rules, ..PuppetBehavior::default() });
    let world = World::with(disk, Options::default(), vec![adapter]).await;
    let (_, execution) = parent(&world, &mut control).await;
    assert_eq!(refusal(&execution.handle, request(DelegationMode::Spawn, "1")).await.code(), "forbidden");
    let child = delegate(&execution.handle, request(DelegationMode::Call, "2")).await;
    let plane = execution.handle.control().unwrap();
    plane.run_cancel(child.run.id).await.unwrap();
    world.ended(child.run.id).await;
    let run = execution.handle.assignment().run.id;
    let events = world.kernel.run_events(&world.me, run, Cursor::START, None).await.unwrap();
    let decisions: Vec<_> = events
        .iter()
        .filter_map(|event| match &event.body {
            Body::ApprovalResolved { decision, decided_by, .. } => {
                Some((*decision, serde_json::to_string(decided_by).unwrap()))
            }
            _ => None,
        })
        .collect();
    assert_eq!(decisions.len(), 3, "{decisions:?}");
    let denied = (Approval::Denied, "deny control delegate_agent spawn");
    let allowed = (Approval::Allowed, "allow control delegate_agent *");
    for ((decision, by), (expected, who)) in
        decisions.iter().zip([denied, allowed, (Approval::Allowed, "control")])
    {
        assert!(*decision == expected && by.contains(who), "{decisions:?}");
    }
    // The rules do not apply to a person.
    let work = request(DelegationMode::Spawn, "3");
    world.kernel.run_delegate(&world.me, run, work).await.unwrap();
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
