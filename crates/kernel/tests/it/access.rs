//! Access control: which callers may read and change sessions, per operation.

use std::time::Duration;

use mainspring_api::{AgentChange, MessageAppend, PromptContent, ResultMessage, ResultsAppend};
use mainspring_core::{
    AccessRole, AgentDefinition, AgentName, Answer, ClientTool, Cursor, DelegationMode, Expect, GoalType,
    IdKind, IdPrefix, KeyId, KeyLists, Position, Role, Run, RunChange, SessionId, Visibility, WaitId,
};
use mainspring_kernel::adapter::End;
use mainspring_kernel::feed::Item;
use mainspring_kernel::kernel::{
    Adopted, AgentQuery, ArtifactQuery, ArtifactsOf, Caller, DelegationRequest, ForkRequest, NewArtifact,
    NewSession, RunQuery, RunRequest, Scope, SessionPatch, SessionQuery, SessionTarget, StateOf, TreeQuery,
};
use mainspring_kernel::store::SessionRef;
use mainspring_kernel::{Error, Options};
use serde_json::json;

use crate::puppet::{PuppetBehavior, puppet, puppet_request};
use crate::world::{Disk, World, by_key, every_store, read_until, with_timeout};

/// The outcome of an operation: done (or refused for another reason), forbidden, not allowed by the key, or not found.
fn outcome<T>(result: Result<T, Error>) -> &'static str {
    match result.err().map(|error| error.code()) {
        Some(code @ ("not_found" | "forbidden" | "not_allowed_by_key" | "folder_not_allowed")) => code,
        _ => "allowed",
    }
}

async fn reads(world: &World, caller: &Caller, run: &Run) -> Vec<(&'static str, &'static str)> {
    let (kernel, by) = (&world.kernel, SessionRef::Id(run.session));
    let of_session = RunQuery { session: Some(run.session), ..RunQuery::default() };
    let target = SessionTarget { id: Some(run.session), ..SessionTarget::default() };
    let message = run.final_message.unwrap();
    let any_message = IdPrefix::parse(IdKind::Message, &message.to_string()).unwrap();
    vec![
        ("session_get", outcome(kernel.session_get(caller, &by).await)),
        ("session_open", outcome(kernel.session_open(caller, &target, None).await)),
        ("session_subscribe", outcome(kernel.session_subscribe(caller, &by, None).await)),
        ("session_observe", outcome(kernel.session_observe(caller, &by, None).await)),
        ("session_snapshot", outcome(kernel.session_snapshot(caller, &by).await)),
        ("session_transcript", outcome(kernel.session_transcript(caller, &by, None).await)),
        ("session_usage", outcome(kernel.session_usage(caller, &by).await)),
        ("session_view", outcome(kernel.session_view(caller, &by).await)),
        ("session_agent", outcome(kernel.session_agent(caller, &by).await)),
        ("session_changes", outcome(kernel.session_changes(caller, &by, None, None).await)),
        ("id_find of a message", outcome(kernel.id_find(caller, &any_message, Some(&by)).await)),
        ("run_observe", outcome(kernel.run_observe(caller, run.id, None).await)),
        ("run_wait", outcome(kernel.run_wait(caller, run.id, Duration::ZERO).await)),
        ("session_path", outcome(kernel.session_path(caller, &by, None, None).await)),
        ("session_events", outcome(kernel.session_events(caller, &by, Cursor::START, None).await)),
        ("session_tree", outcome(kernel.session_tree(caller, &by, TreeQuery::default()).await)),
        ("session_message", outcome(kernel.session_message(caller, &by, message).await)),
        ("session_export", outcome(kernel.session_export(caller, &by).await)),
        ("run_get", outcome(kernel.run_get(caller, run.id).await)),
        ("run_status", outcome(kernel.run_status(caller, run.id).await)),
        ("run_attempts", outcome(kernel.run_attempts(caller, run.id).await)),
        ("attempt_get", outcome(kernel.attempt_get(caller, run.last_attempt.unwrap()).await)),
        ("attempt_stderr", outcome(kernel.attempt_stderr(caller, run.last_attempt.unwrap()).await)),
        ("run_delegations", outcome(kernel.run_delegations(caller, run.id).await)),
        ("run_route", outcome(kernel.run_route(caller, run.id).await)),
        ("run_processes", outcome(kernel.run_processes(caller, run.id).await)),
        ("run_grants", outcome(kernel.run_grants(caller, run.id).await)),
        ("run_events", outcome(kernel.run_events(caller, run.id, Cursor::START, None).await)),
        ("binding_list", outcome(kernel.binding_list(caller, &by, None, None).await)),
        ("run_list", outcome(kernel.run_list(caller, of_session).await)),
        ("session_goals", outcome(kernel.session_goals(caller, &by, None).await)),
        ("feedback_list", outcome(kernel.feedback_list(caller, &by).await)),
        (
            "state_list",
            outcome(kernel.state_list(caller, &StateOf::Session(by.clone(), None), None, None).await),
        ),
        (
            "state_history",
            outcome(kernel.state_history(caller, &StateOf::Session(by.clone(), None), "k", None, None).await),
        ),
        (
            "state_history of run",
            outcome(kernel.state_history(caller, &StateOf::Run(run.id), "k", None, None).await),
        ),
        ("state_list of run", outcome(kernel.state_list(caller, &StateOf::Run(run.id), None, None).await)),
        ("artifact_list", outcome(kernel.artifact_list(caller, artifacts(ArtifactsOf::Session(by))).await)),
        (
            "artifact_list of run",
            outcome(kernel.artifact_list(caller, artifacts(ArtifactsOf::Run(run.id))).await),
        ),
    ]
}

fn artifacts(of: ArtifactsOf) -> ArtifactQuery {
    ArtifactQuery { of, before: None, limit: None }
}

async fn changes(world: &World, caller: &Caller, run: &Run) -> Vec<(&'static str, &'static str)> {
    let (kernel, by) = (&world.kernel, SessionRef::Id(run.session));
    let patch = SessionPatch { title: Some(Some("changed".into())), ..SessionPatch::default() };
    let target = SessionTarget { id: Some(run.session), ..SessionTarget::default() };
    let delegate = DelegationRequest::new(DelegationMode::Spawn, "say hi");
    let prompt = RunRequest { session: target.clone(), ..RunRequest::text("unused", "say more") };
    let message = run.final_message.unwrap();
    let tool = ClientTool { name: "rain".into(), input_schema: json!({}), ..ClientTool::default() };
    let (wait, answer) = (WaitId::from_random([1; 16]), Answer::Input { input: json!(1) });
    let of = StateOf::Session(by.clone(), None);
    let answer_message = ResultMessage::new(Role::Assistant, PromptContent::Text("hi".into()));
    let results =
        ResultsAppend { id: "t".into(), messages: vec![answer_message], ..ResultsAppend::default() };
    let put = kernel.artifact_put(caller, &by, NewArtifact::default(), None, &mut &b"x"[..]).await;
    vec![
        ("binding_adopt", outcome(kernel.binding_adopt(caller, &by, "script", Adopted::default()).await)),
        ("binding_invalidate", outcome(kernel.binding_invalidate(caller, &by, "script").await)),
        ("state_set", outcome(kernel.state_set(caller, &of, "k", Some(json!(1)), Expect::Any).await)),
        (
            "state_set of run",
            outcome(kernel.state_set(caller, &StateOf::Run(run.id), "k", None, Expect::Any).await),
        ),
        ("artifact_put", outcome(put)),
        ("message_append", outcome(kernel.message_append(caller, &by, MessageAppend::text("m", "hi")).await)),
        ("results_append", outcome(kernel.results_append(caller, &by, results).await)),
        ("run_create", outcome(kernel.run_create(caller, prompt).await)),
        ("run_delegate", outcome(kernel.run_delegate(caller, run.id, delegate.clone()).await)),
        ("run_delegate_all", outcome(kernel.run_delegate_all(caller, run.id, vec![delegate]).await)),
        ("run_cancel", outcome(kernel.run_cancel(caller, run.id).await)),
        ("run_processes_end", outcome(kernel.run_processes_end(caller, run.id).await)),
        ("run_retry", outcome(kernel.run_retry(caller, run.id, RunChange::default()).await)),
        ("run_answer", outcome(kernel.run_answer(caller, run.id, wait, answer).await)),
        ("session_adopt", outcome(kernel.session_adopt(caller, &target, "script", Adopted::default()).await)),
        ("session_navigate", outcome(kernel.session_navigate(caller, &by, Some(message), None).await)),
        ("session_patch", outcome(kernel.session_patch(caller, &by, patch).await)),
        (
            "session_agent_set",
            outcome(kernel.session_agent_set(caller, &by, AgentChange::default(), None).await),
        ),
        ("session_tool_put", outcome(kernel.session_tool_put(caller, &by, tool).await)),
        ("session_tool_delete", outcome(kernel.session_tool_delete(caller, &by, "rain").await)),
        ("session_compact", outcome(kernel.session_compact(caller, &by, Cursor::START).await)),
        ("session_close", outcome(kernel.session_close(caller, &by).await)),
        ("session_delete", outcome(kernel.session_delete(caller, &by).await)),
    ]
}

/// The operations that every reader whose role allows writing may use: they do not change the session.
async fn readers(world: &World, caller: &Caller, run: &Run) -> [(&'static str, &'static str); 3] {
    let (kernel, by) = (&world.kernel, SessionRef::Id(run.session));
    let fork = ForkRequest { message: run.final_message.unwrap(), key: None, title: None };
    [
        ("session_fork", outcome(kernel.session_fork(caller, &by, fork, None).await)),
        ("session_pin", outcome(kernel.session_pin(caller, &by, true).await)),
        ("session_unpin", outcome(kernel.session_pin(caller, &by, false).await)),
    ]
}

/// Creates a session of Ada with a key of acme.
async fn create_run(world: &World, visibility: Visibility) -> Run {
    let ada = Caller::new("ada").in_org("acme");
    let mut request = RunRequest::text("a", "say hi");
    request.session.new = NewSession { visibility: Some(visibility), ..NewSession::default() };
    let accepted = world.kernel.run_create(&ada, request).await.unwrap();
    assert_eq!(accepted.session.org.as_deref(), Some("acme"));
    world.ended(accepted.run.id).await
}

#[tokio::test]
async fn every_operation_checks_the_caller() {
    let (ada, bob, eve) = (Caller::new("ada"), Caller::new("bob"), Caller::new("eve"));
    let (allowed, forbidden, hidden) = ("allowed", "forbidden", "not_found");
    // The caller, then reading and changing a shared session, and reading and changing a private one.
    let table = [
        (ada.clone().in_org("acme"), [allowed, allowed, allowed, allowed]),
        (ada.clone(), [allowed, allowed, allowed, allowed]),
        (ada.clone().in_org("beta"), [allowed, allowed, allowed, allowed]),
        (ada.in_org("acme").with_role(AccessRole::Viewer), [allowed, forbidden, allowed, forbidden]),
        (bob.clone().in_org("acme"), [allowed, forbidden, hidden, hidden]),
        (bob.clone().in_org("acme").with_role(AccessRole::Admin), [allowed, forbidden, hidden, hidden]),
        (bob.in_org("acme").with_role(AccessRole::Viewer), [allowed, forbidden, hidden, hidden]),
        (eve.clone().in_org("beta"), [hidden, hidden, hidden, hidden]),
        (eve.clone().with_role(AccessRole::Admin), [hidden, hidden, hidden, hidden]),
        (eve, [hidden, hidden, hidden, hidden]),
    ];
    for (caller, expected) in table {
        for (visibility, expected) in
            [(Visibility::Org, &expected[..2]), (Visibility::Private, &expected[2..])]
        {
            // First with a loaded session, then with a new process that has to load it.
            for reboots in [false, true] {
                let disk = Disk::memory();
                let mut world = World::on(disk.clone()).await;
                let run = create_run(&world, visibility).await;
                if reboots {
                    world.kernel.shutdown().await;
                    world = World::reboot(&disk).await;
                }
                let before = world.events("a").await;
                for (verb, came) in reads(&world, &caller, &run).await {
                    assert_eq!(came, expected[0], "{verb} by {caller:?} of {visibility}");
                }
                let of_reader = match caller.role {
                    AccessRole::Viewer if expected[0] == allowed => forbidden,
                    _ => expected[0],
                };
                for (verb, came) in Box::pin(readers(&world, &caller, &run)).await {
                    assert_eq!(came, of_reader, "{verb} by {caller:?} of {visibility}");
                }
                assert_eq!(world.events("a").await, before, "a reader changes nothing of the session");
                for (verb, came) in Box::pin(changes(&world, &caller, &run)).await {
                    assert_eq!(came, expected[1], "{verb} by {caller:?} of {visibility}");
                }
                if expected[1] != allowed {
                    assert_eq!(world.events("a").await, before, "a refused operation changes nothing");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_limited_key_changes_only_what_it_allows_and_reads_the_rest() {
    let ada = Caller::new("ada");
    let key_id = KeyId::from_random([5; 16]);
    let of = |adapters: Option<&str>, models: Option<&str>, folder: Option<&str>| {
        let list = |name: Option<&str>| name.map(|name| vec![name.to_owned()]);
        let (adapters, models) = (list(adapters), list(models));
        let lists = KeyLists { key_id, adapters, models, tools: None, spend_per_day: None };
        Caller { lists: Some(Box::new(lists)), folders: list(folder), key: Some(key_id), ..ada.clone() }
    };
    let table = [
        (of(Some("script"), Some("large"), Some("/usr")), "allowed"),
        (of(Some("other"), None, None), "not_allowed_by_key"),
        (of(None, Some("small"), None), "not_allowed_by_key"),
        (of(None, None, Some("/var")), "folder_not_allowed"),
    ];
    for (caller, expected) in table {
        let world = World::on(Disk::memory()).await;
        let mut request = RunRequest { ignore_unused_options: true, ..RunRequest::text("a", "say hi") };
        request.session.new.model = Some("large".into());
        request.session.new.cwd = Some("/usr".into());
        let run = world.kernel.run_create(&ada, request).await.unwrap().run;
        let run = world.ended(run.id).await;
        let before = world.events("a").await;
        for (verb, came) in reads(&world, &caller, &run).await {
            assert_eq!(came, "allowed", "{verb} by {caller:?}");
        }
        let forked = Box::pin(readers(&world, &caller, &run)).await[0];
        assert_eq!(forked, ("session_fork", expected), "{caller:?}");
        for (verb, came) in Box::pin(changes(&world, &caller, &run)).await {
            assert_eq!(came, expected, "{verb} by {caller:?}");
        }
        if expected != "allowed" {
            assert_eq!(world.events("a").await, before, "a refused operation changes nothing");
        }
    }
}

#[tokio::test]
async fn a_limited_key_changes_no_settings_of_a_run_that_it_may_not_use() {
    let disk = Disk::memory();
    let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
    let world = World::with(disk, Options::default(), vec![adapter]).await;
    world.play("a", "say hi").await;
    let run = world.send(puppet_request("a", "go")).await.unwrap().run;
    let execution = control.next().await;
    let key_id = KeyId::from_random([5; 16]);
    let adapters = Some(vec!["script".to_owned()]);
    let lists = KeyLists { key_id, adapters, models: None, tools: None, spend_per_day: None };
    let limited = Caller { lists: Some(Box::new(lists)), ..world.me.clone() };
    let allow = async || {
        let rules = Some(vec!["allow fs write *".to_owned()]);
        let patch = SessionPatch { rules, ..SessionPatch::default() };
        outcome(world.kernel.session_patch(&limited, &by_key("a"), patch).await)
    };
    assert_eq!(allow().await, "not_allowed_by_key", "the run of the other adapter has not ended");
    execution.end(End::succeeded());
    world.ended(run.id).await;
    assert_eq!(allow().await, "allowed");
}

/// Runs operations on Ada's goal type `a`: get, list, create.
async fn goal_types(world: &World, caller: &Caller) -> [&'static str; 3] {
    let kernel = &world.kernel;
    let listed = kernel.goal_type_list(caller).await.unwrap();
    let listed = listed.iter().any(|record| record.goal_type.name == "a");
    [
        outcome(kernel.goal_type_get(caller, "a").await),
        if listed { "allowed" } else { "not_found" },
        outcome(kernel.goal_type_create(caller, goal_type("mine")).await),
    ]
}

fn goal_type(description: &str) -> GoalType {
    let (name, description) = ("a".to_owned(), description.to_owned());
    GoalType { name, description, schema: json!({}), data_schema: None }
}

#[tokio::test]
async fn goal_types_are_visible_only_to_their_owner() {
    let (ada, bob) = (Caller::new("ada"), Caller::new("bob"));
    let (allowed, forbidden, hidden) = ("allowed", "forbidden", "not_found");
    let table = [
        (ada.clone(), [allowed, allowed, allowed]),
        (ada.clone().with_role(AccessRole::Viewer), [allowed, allowed, forbidden]),
        // Another owner has its own type of the same name.
        (bob.clone().in_org("acme").with_role(AccessRole::Admin), [hidden, hidden, allowed]),
        (bob.in_org("acme").with_role(AccessRole::Viewer), [hidden, hidden, forbidden]),
    ];
    for (caller, expected) in table {
        let world = World::on(Disk::memory()).await;
        let owner = ada.clone().in_org("acme");
        world.kernel.goal_type_create(&owner, goal_type("Ada's")).await.unwrap();
        assert_eq!(goal_types(&world, &caller).await, expected, "{caller:?}");
        let left = world.kernel.goal_type_get(&owner, "a").await.unwrap().goal_type;
        let changed = caller.owner == "ada" && expected[2] == allowed;
        assert_eq!(left == goal_type("Ada's"), !changed, "{caller:?}: a refused operation changes nothing");
    }
}

/// Runs operations on Ada's agent `a@1`: get, list, create a version, delete.
async fn agents(world: &World, caller: &Caller) -> [&'static str; 4] {
    let kernel = &world.kernel;
    let name: AgentName = "a@1".parse().unwrap();
    let listed = kernel.agent_list(caller, AgentQuery::default()).await.unwrap();
    let listed = listed.iter().any(|agent| agent.definition.name() == name);
    let next = AgentDefinition::new("a", 2);
    [
        outcome(kernel.agent_get(caller, &name).await),
        if listed { "allowed" } else { "not_found" },
        outcome(kernel.agent_create(caller, next).await),
        outcome(kernel.agent_delete(caller, &name).await),
    ]
}

#[tokio::test]
async fn agents_are_visible_only_to_their_owner() {
    let (ada, bob) = (Caller::new("ada"), Caller::new("bob"));
    let (allowed, forbidden, hidden) = ("allowed", "forbidden", "not_found");
    let table = [
        (ada.clone(), [allowed, allowed, allowed, allowed]),
        (ada.clone().in_org("acme"), [allowed, allowed, allowed, allowed]),
        (ada.clone().with_role(AccessRole::Viewer), [allowed, allowed, forbidden, forbidden]),
        // Another owner has its own agent of the same name.
        (bob.clone().in_org("acme"), [hidden, hidden, allowed, hidden]),
        (bob.clone().in_org("acme").with_role(AccessRole::Admin), [hidden, hidden, allowed, hidden]),
        (bob.in_org("acme").with_role(AccessRole::Viewer), [hidden, hidden, forbidden, forbidden]),
    ];
    for (caller, expected) in table {
        let world = World::on(Disk::memory()).await;
        let owner = ada.clone().in_org("acme");
        world.kernel.agent_create(&owner, AgentDefinition::new("a", 1)).await.unwrap();
        assert_eq!(agents(&world, &caller).await, expected, "{caller:?}");
        let left = world.kernel.agent_get(&owner, &"a@1".parse().unwrap()).await.is_ok();
        assert_eq!(left, expected[3] != allowed, "{caller:?}: a refused operation changes nothing");
    }
}

#[tokio::test]
async fn a_viewer_cannot_create_anything() {
    let world = World::on(Disk::memory()).await;
    let viewer = Caller::new("ada").with_role(AccessRole::Viewer);
    let prompt = world.kernel.run_create(&viewer, RunRequest::text("new", "say hi")).await.unwrap_err();
    let open = world.kernel.session_open(&viewer, &SessionTarget::default(), None).await.unwrap_err();
    let state = world.kernel.state_set(&viewer, &StateOf::Owner, "k", None, Expect::Any).await.unwrap_err();
    assert_eq!((prompt.code(), open.code(), state.code()), ("forbidden", "forbidden", "forbidden"));
    let import = world.kernel.session_import(&viewer).err().unwrap();
    assert_eq!((prompt.code(), open.code(), import.code()), ("forbidden", "forbidden", "forbidden"));
    assert!(world.kernel.session_list(&viewer, SessionQuery::default()).await.unwrap().is_empty());
}

#[tokio::test]
async fn an_org_lists_shared_sessions_and_an_owner_its_own() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let open = async |caller: &Caller, key: &str, visibility| {
            let new = NewSession { visibility: Some(visibility), ..NewSession::default() };
            let target = SessionTarget { key: Some(key.into()), new, ..SessionTarget::default() };
            world.kernel.session_open(caller, &target, None).await.unwrap().0.id
        };
        let listed = async |caller: &Caller, scope| {
            let query = SessionQuery { scope, ..SessionQuery::default() };
            let found = world.kernel.session_list(caller, query).await?.items;
            let mut ids: Vec<SessionId> = found.into_iter().map(|(session, _)| session.id).collect();
            ids.sort();
            Ok::<_, Error>(ids)
        };
        let sorted = |mut ids: Vec<SessionId>| {
            ids.sort();
            ids
        };
        let (ada, bob) = (Caller::new("ada").in_org("acme"), Caller::new("bob").in_org("acme"));
        let eve = Caller::new("eve").in_org("beta");
        let shown = open(&ada, "shown", Visibility::Org).await;
        let private = open(&ada, "private", Visibility::Private).await;
        let bobs = open(&bob, "shown", Visibility::Org).await;
        assert_eq!(listed(&ada, Scope::Own).await.unwrap(), sorted(vec![shown, private]));
        for caller in [&ada, &bob] {
            assert_eq!(listed(caller, Scope::Org).await.unwrap(), sorted(vec![shown, bobs]));
        }
        assert_eq!(listed(&eve, Scope::Org).await.unwrap(), []);
        let nowhere = listed(&Caller::new("ada"), Scope::Org).await.unwrap_err();
        assert_eq!(nowhere.code(), "invalid_request");
        // A session key finds only sessions of its owner.
        assert_eq!(world.kernel.session_get(&bob, &by_key("shown")).await.unwrap().id, bobs);
        assert_eq!(world.kernel.session_get(&eve, &by_key("shown")).await.unwrap_err().code(), "not_found");
    }
}

#[tokio::test]
async fn a_reader_of_the_org_is_stopped_when_the_session_becomes_private() {
    let world = World::on(Disk::memory()).await;
    let run = create_run(&world, Visibility::Org).await;
    let (session, guest) = (SessionRef::Id(run.session), Caller::new("bob").in_org("acme"));
    let show = async |visibility| {
        let patch = SessionPatch { visibility: Some(visibility), ..SessionPatch::default() };
        world.kernel.session_patch(&world.me, &session, patch).await.unwrap();
    };
    let from = Some(Position::START);
    let mut theirs = world.kernel.session_subscribe(&guest, &session, from).await.unwrap();
    // One reader that has read nothing yet, and one that waits for more events.
    let mut late = world.kernel.session_subscribe(&guest, &session, from).await.unwrap();
    read_until(&mut theirs, "run.succeeded").await;
    let mut own = world.kernel.session_subscribe(&world.me, &session, None).await.unwrap();
    show(Visibility::Private).await;
    assert!(with_timeout(theirs.next()).await.is_none() && with_timeout(late.next()).await.is_none());
    let again = world.kernel.session_subscribe(&guest, &session, None).await.err().unwrap();
    assert_eq!(again.code(), "not_found");
    world.play("a", "say secret").await;
    assert!(theirs.next().await.is_none());
    assert!(!read_until(&mut own, "run.succeeded").await.is_empty(), "the owner reads on");
    // A session shared again is readable from its beginning, including the time it was private.
    show(Visibility::Org).await;
    let mut theirs = world.kernel.session_subscribe(&guest, &session, from).await.unwrap();
    let mut read = vec![];
    // Renamed, made private, and shared again.
    while read.iter().filter(|kind| **kind == "session.updated").count() < 3 {
        if let Some(Ok(Item::Event(event))) = with_timeout(theirs.next()).await {
            read.push(event.body.kind());
        }
    }
    let all: Vec<_> = world.events("a").await.iter().map(|event| event.body.kind()).collect();
    assert_eq!(read, all);
}
