//! Bindings: which native session an attempt resumes. No agent answers from a path it does not know.

use std::sync::Arc;

use mainspring_core::{
    Binding, BindingStatus, ExternalRef, Failure, Fidelity, MessageId, Place, Role, RunId, RunStatus,
    SessionStatus, WaitRequest,
};
use mainspring_kernel::adapter::{Adapter, End, Executed, Record, RuntimeFacts};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::kernel::{
    Adopted, ForkRequest, NewSession, RunRequest, SessionPatch, SessionQuery, SessionTarget,
    instructions_hash,
};
use mainspring_kernel::{Error, Options};

use crate::portable::{export, import};
use crate::puppet::{Execution, PuppetBehavior, PuppetControl, puppet, puppet_request, question};
use crate::world::{Disk, NOW, World, by_key, events_text, every_store, run_process, with_timeout};

fn with_bindings() -> PuppetBehavior {
    PuppetBehavior { uses_bindings: true, ..PuppetBehavior::default() }
}

fn binding_opened(native: &str, fidelity: Fidelity) -> Record {
    Record::Opened { native: Some(native.into()), fidelity, reconstructed: false }
}

fn stale() -> Executed {
    Executed::Ended(End::Stale { reason: "unknown session".into() })
}

async fn world(disk: Disk, seed: u64) -> (World, PuppetControl) {
    let (adapter, control) = puppet(&disk.store, with_bindings());
    let clock = Clock::manual(NOW.plus(seed * 1_000));
    (World::boot(disk, Options::default(), vec![adapter], clock, seed).await, control)
}

/// Returns the native session that the execution resumes.
fn resumed_native(execution: &Execution) -> Option<String> {
    execution.handle.assignment().binding.as_ref().and_then(|binding| binding.native.clone())
}

/// Plays a run that resumes its native session or opens `native`. Returns the resumed one.
async fn play(
    world: &World,
    control: &mut PuppetControl,
    request: RunRequest,
    native: &str,
) -> Option<String> {
    let run = world.send(request).await.unwrap().run;
    let execution = control.next().await;
    let found = resumed_native(&execution);
    let record = match found {
        Some(_) => Record::Resumed,
        None => binding_opened(native, Fidelity::Native),
    };
    execution.handle.record(vec![record]).await.unwrap();
    execution.handle.delta(0, "done").unwrap();
    execution.end(End::succeeded());
    assert_eq!(world.ended(run.id).await.state.status(), RunStatus::Succeeded);
    found
}

async fn bindings(world: &World, key: &str) -> Vec<Binding> {
    world.kernel.binding_list(&world.me, &by_key(key), None, None).await.unwrap()
}

async fn tip(world: &World, key: &str) -> MessageId {
    world.path(key).await.last().unwrap().id
}

#[tokio::test]
async fn a_runtimes_facts_are_kept_with_the_attempt_and_its_binding() {
    for disk in every_store() {
        let name = disk.name;
        let (world, mut control) = world(disk, 1).await;
        let mut request = puppet_request("a", "one");
        request.options.system_prompt = Some("be kind".into());
        let run = world.send(request).await.unwrap().run;
        let execution = control.next().await;
        let fact = |key: &str| serde_json::Map::from_iter([(key.to_owned(), "x".into())]);
        let early = RuntimeFacts { instance: Some("w1".into()), ..RuntimeFacts::default() };
        execution.handle.record_at_end(vec![Record::Runtime(Box::new(early.clone()))]).await.unwrap();
        let facts = RuntimeFacts {
            model: Some("m1".into()),
            metadata: fact("attempt"),
            binding_metadata: fact("binding"),
            ..early
        };
        let opened = binding_opened("n1", Fidelity::Native);
        execution.handle.record(vec![opened, Record::Runtime(Box::new(facts))]).await.unwrap();
        let late = RuntimeFacts { native_run: Some("7".into()), ..RuntimeFacts::default() };
        execution.handle.record_at_end(vec![Record::Runtime(Box::new(late))]).await.unwrap();
        execution.end(End::succeeded());
        let run = world.ended(run.id).await;
        assert_eq!(run.system_prompt_hash, instructions_hash(Some("be kind")), "{name}");
        let attempt = world.kernel.run_attempts(&world.me, run.id).await.unwrap().items.remove(0);
        let binding = bindings(&world, "a").await.remove(0);
        assert_eq!(
            (attempt.instance.as_deref(), attempt.native_run.as_deref()),
            (Some("w1"), Some("7")),
            "{name}"
        );
        assert_eq!((attempt.metadata, binding.metadata), (fact("attempt"), fact("binding")), "{name}");
        assert_eq!(
            (binding.instance.as_deref(), binding.model.as_deref()),
            (Some("w1"), Some("m1")),
            "{name}"
        );
        assert_eq!(binding.last_used_at, run.completed_at, "{name}");
        let ended = world.kernel.binding_invalidate(&world.me, &by_key("a"), "puppet").await.unwrap();
        assert_eq!(ended.invalidated_at, Some(ended.updated_at), "{name}");
        assert_eq!(ended.invalidation_reason.as_deref(), Some("it was declared invalid"), "{name}");
    }
}

#[tokio::test]
async fn a_session_resumes_its_native_session() {
    for disk in every_store() {
        let name = disk.name;
        let (world, mut control) = world(disk, 1).await;
        assert_eq!(play(&world, &mut control, puppet_request("a", "one"), "n1").await, None, "{name}");
        assert_eq!(
            play(&world, &mut control, puppet_request("a", "two"), "n2").await.as_deref(),
            Some("n1"),
            "{name}"
        );
        let all = bindings(&world, "a").await;
        assert_eq!(all.len(), 1, "{name}");
        assert_eq!((all[0].generation, all[0].status), (1, BindingStatus::Active), "{name}");
        assert_eq!(all[0].last_message, Some(tip(&world, "a").await), "{name}");
        let run = world.prompt("b", "say hi").await;
        world.ended(run.id).await;
        assert_eq!(bindings(&world, "b").await, [], "{name}: the script agent has none");
    }
}

#[tokio::test]
async fn a_native_session_that_is_gone_is_replaced_in_the_next_attempt() {
    let (world, mut control) = world(Disk::sqlite(), 1).await;
    play(&world, &mut control, puppet_request("a", "one"), "n1").await;
    let before = world.events("a").await.len();
    let session = world.kernel.session_get(&world.me, &by_key("a")).await.unwrap().id;
    let run = world.send(puppet_request("a", "two")).await.unwrap().run;
    let first = control.next().await;
    assert_eq!(resumed_native(&first).as_deref(), Some("n1"));
    first.end(stale());
    let second = control.next().await;
    assert_eq!(resumed_native(&second), None);
    let reconstructed =
        Record::Opened { native: Some("n2".into()), fidelity: Fidelity::Native, reconstructed: true };
    second.handle.record(vec![reconstructed]).await.unwrap();
    second.end(End::succeeded());
    let run = world.ended(run.id).await;
    assert_eq!((run.state.status(), run.attempts, run.session), (RunStatus::Succeeded, 2, session));
    insta::assert_snapshot!(events_text(&world.events("a").await[before..]), @r#"
    run.queued
    attempt.created 1
    run.starting
    message.completed user completed "two"
    binding.stale
    attempt.failed failed stale_binding retryable=true
    run.queued
    attempt.created 2
    run.starting
    binding.replaced
    binding.created
    attempt.started
    run.running
    message.completed assistant completed
    run.succeeded
    "#);
    let all = bindings(&world, "a").await;
    let shown: Vec<_> = all.iter().map(|b| (b.generation, b.status, b.reconstructed)).collect();
    assert_eq!(shown, [(2, BindingStatus::Active, true), (1, BindingStatus::Stale, false)]);
    let attempts = world.kernel.run_attempts(&world.me, run.id).await.unwrap().items;
    assert_eq!(attempts[0].binding, Some(all[1].id), "the one that it could not resume");
    assert_eq!(control.log().last().map(String::as_str), Some("forget n1"));
    assert_eq!(attempts[1].binding, Some(all[0].id));
    assert_eq!(attempts[1].resume_from, Some(attempts[0].id));
}

#[tokio::test]
async fn a_native_session_at_another_message_is_not_resumed() {
    let (world, mut control) = world(Disk::memory(), 1).await;
    play(&world, &mut control, puppet_request("a", "one"), "n1").await;
    let path = world.path("a").await;
    let (asked, answered) = (path[0].id, path[1].id);
    assert_eq!((path[0].role, path[1].role), (Role::User, Role::Assistant));
    play(&world, &mut control, puppet_request("a", "two"), "n1").await;
    for (no, place, expected) in [
        (2, Place::Regenerate { message_id: asked }, None),
        (3, Place::Tip, Some("n2")),
        (3, Place::Edit { message_id: answered }, None),
        (4, Place::Root, None),
        (5, Place::Tip, Some("n4")),
    ] {
        let request = RunRequest {
            prompt: if matches!(place, Place::Regenerate { .. }) {
                vec![]
            } else {
                puppet_request("a", "again").prompt
            },
            place,
            ..puppet_request("a", "")
        };
        let found = play(&world, &mut control, request, &format!("n{no}")).await;
        assert_eq!(found.as_deref(), expected, "{place:?}");
    }
}

#[tokio::test]
async fn each_branch_resumes_its_own_native_session() {
    for disk in every_store() {
        let name = disk.name;
        let (world, mut control) = world(disk, 1).await;
        let navigate = async |to| {
            world.kernel.session_navigate(&world.me, &by_key("a"), Some(to), None).await.unwrap();
        };
        play(&world, &mut control, puppet_request("a", "one"), "n1").await;
        play(&world, &mut control, puppet_request("a", "two"), "n1").await;
        let first = tip(&world, "a").await;
        // The script agent answers on another branch, which the first native session does not know.
        let other = RunRequest {
            adapter: Some("script".into()),
            place: Place::Root,
            ..RunRequest::text("a", "say hi")
        };
        let run = world.send(other).await.unwrap().run;
        world.ended(run.id).await;
        let second = tip(&world, "a").await;
        navigate(first).await;
        assert_eq!(
            play(&world, &mut control, puppet_request("a", "on"), "").await.as_deref(),
            Some("n1"),
            "{name}"
        );
        navigate(second).await;
        assert_eq!(play(&world, &mut control, puppet_request("a", "on"), "n2").await, None, "{name}");
        assert_eq!(
            play(&world, &mut control, puppet_request("a", "on"), "").await.as_deref(),
            Some("n2"),
            "{name}"
        );
    }
}

#[tokio::test]
async fn forks_and_imports_get_their_own_native_sessions() {
    for disk in every_store() {
        let name = disk.name;
        let (source, mut control) = world(disk, 1).await;
        play(&source, &mut control, puppet_request("a", "one"), "n1").await;
        let message = tip(&source, "a").await;
        let fork = ForkRequest { message, key: Some("f".into()), title: None };
        source.kernel.session_fork(&source.me, &by_key("a"), fork, None).await.unwrap();
        assert_eq!(bindings(&source, "f").await, [], "{name}");
        assert_eq!(play(&source, &mut control, puppet_request("f", "two"), "n2").await, None, "{name}");
        assert_eq!(
            play(&source, &mut control, puppet_request("a", "two"), "").await.as_deref(),
            Some("n1"),
            "{name}"
        );
        assert_eq!(
            play(&source, &mut control, puppet_request("f", "on"), "").await.as_deref(),
            Some("n2"),
            "{name}"
        );

        let file = export(&source, "a").await;
        assert!(file.contains("binding.created"), "past events are exported");
        let (there, mut control) = world(Disk::sqlite(), 2).await;
        import(&there, &file).await.unwrap();
        assert_eq!(bindings(&there, "a").await, [], "{name}");
        assert_eq!(play(&there, &mut control, puppet_request("a", "three"), "n3").await, None, "{name}");
        assert_eq!(bindings(&there, "a").await[0].generation, 1, "{name}");
    }
}

#[tokio::test]
async fn deleting_removes_bindings_and_compacting_keeps_them() {
    for disk in every_store() {
        let name = disk.name;
        let (world, mut control) = world(disk, 1).await;
        play(&world, &mut control, puppet_request("a", "one"), "n1").await;
        play(&world, &mut control, puppet_request("b", "one"), "n2").await;
        let last = world.events("b").await.last().unwrap().cursor;
        world.kernel.session_compact(&world.me, &by_key("b"), last).await.unwrap();
        assert_eq!(
            play(&world, &mut control, puppet_request("b", "two"), "").await.as_deref(),
            Some("n2"),
            "{name}"
        );

        let session = world.kernel.session_get(&world.me, &by_key("a")).await.unwrap().id;
        world.kernel.session_delete(&world.me, &by_key("a")).await.unwrap();
        with_timeout(async {
            while world.disk.store.session_exists(session).await.unwrap() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert_eq!(world.disk.store.bindings(session, None, None, 9).await.unwrap(), [], "{name}");
        // Its native session may be bound again.
        assert_eq!(play(&world, &mut control, puppet_request("a", "one"), "n1").await, None, "{name}");
    }
}

#[tokio::test]
async fn a_change_of_folder_or_instructions_needs_a_new_native_session() {
    let (world, mut control) = world(Disk::memory(), 1).await;
    let request = |cwd: &str, system: &str| {
        let mut request = puppet_request("a", "go");
        request.options.cwd = Some(cwd.into());
        request.options.system_prompt = Some(system.into());
        request
    };
    for (cwd, system, native, expected) in [
        ("/tmp", "be kind", "n1", None),
        ("/tmp", "be kind", "", Some("n1")),
        ("/", "be kind", "n2", None),
        ("/", "be short", "n3", None),
        ("/", "be short", "", Some("n3")),
        ("/tmp", "be kind", "n4", None),
    ] {
        let found = play(&world, &mut control, request(cwd, system), native).await;
        assert_eq!(found.as_deref(), expected, "{cwd} {system}");
    }
}

#[tokio::test]
async fn a_retry_does_not_send_the_prompt_twice_to_a_native_session() {
    let (world, mut control) = world(Disk::memory(), 1).await;
    play(&world, &mut control, puppet_request("a", "one"), "n1").await;
    let run = world.send(puppet_request("a", "two")).await.unwrap().run;
    // The attempt fails before the native session receives the prompt: it can be resumed.
    control.next().await.end(End::failed(Failure::new("adapter_unavailable", "no worker"), true));
    let second = world.advance_until(100, control.next()).await;
    assert_eq!(resumed_native(&second).as_deref(), Some("n1"));
    second.handle.record(vec![Record::Resumed]).await.unwrap();
    // Now the native session has received the prompt.
    second.end(End::failed(Failure::new("transport_interruption", "it died"), true));
    let third = world.advance_until(100, control.next()).await;
    assert_eq!(resumed_native(&third), None);
    third.end(End::failed(Failure::new("x", "y"), false));
    assert_eq!(world.ended(run.id).await.attempts, 3);
    let attempts = world.kernel.run_attempts(&world.me, run.id).await.unwrap().items;
    let bound = bindings(&world, "a").await[0].id;
    let named: Vec<_> = attempts.iter().map(|attempt| attempt.binding).collect();
    assert_eq!(named, [Some(bound), Some(bound), None], "a failed attempt names its binding");
}

#[tokio::test]
async fn a_turn_that_failed_before_it_reached_the_native_session_does_not_move_its_binding() {
    let (world, mut control) = world(Disk::memory(), 1).await;
    play(&world, &mut control, puppet_request("a", "one"), "n1").await;
    let before = tip(&world, "a").await;
    let run = world.send(puppet_request("a", "two")).await.unwrap().run;
    control.next().await.end(End::failed(Failure::new("adapter_unavailable", "no worker"), false));
    world.ended(run.id).await;
    let binding = &bindings(&world, "a").await[0];
    let attempts = world.kernel.run_attempts(&world.me, run.id).await.unwrap().items;
    assert_eq!((attempts[0].binding, binding.last_message), (Some(binding.id), Some(before)));
}

#[test]
fn a_start_records_that_process_local_bindings_are_stale() {
    for (fidelity, is_lost) in
        [(Fidelity::Native, false), (Fidelity::Reconstructed, true), (Fidelity::None, true)]
    {
        let disk = Disk::sqlite();
        run_process(open_idle_and_busy(disk.clone(), fidelity));
        // The second start finds nothing to do.
        for seed in [2, 3] {
            run_process(check_bindings_after_start(disk.clone(), seed, fidelity, is_lost));
        }
    }
}

/// Opens a binding in a session that has ended its work, and one in a session that the crash interrupts.
async fn open_idle_and_busy(disk: Disk, fidelity: Fidelity) {
    let (world, mut control) = world(disk, 1).await;
    for key in ["idle", "busy"] {
        let run = world.send(puppet_request(key, "one")).await.unwrap().run;
        let execution = control.next().await;
        execution.handle.record(vec![binding_opened(key, fidelity)]).await.unwrap();
        if key == "idle" {
            execution.end(End::succeeded());
            world.ended(run.id).await;
        }
    }
}

async fn check_bindings_after_start(disk: Disk, seed: u64, fidelity: Fidelity, is_lost: bool) {
    let (world, _control) = world(disk, seed).await;
    for key in ["idle", "busy"] {
        let expected = if is_lost { BindingStatus::Stale } else { BindingStatus::Active };
        assert_eq!(bindings(&world, key).await[0].status, expected, "{fidelity:?} {key}");
        let events = events_text(&world.events(key).await);
        let recorded = events.matches("binding.stale").count();
        assert_eq!(recorded, usize::from(is_lost), "{fidelity:?} {key}: {events}");
    }
}

#[test]
fn a_lost_binding_of_a_waiting_run_stays_stale_when_the_run_ends() {
    let disk = Disk::sqlite();
    let run = run_process(wait_beside_another_binding(disk.clone()));
    run_process(cancel_after_start(disk, run));
}

/// Two adapters, whose bindings are listed in this order.
fn two_puppets(disk: &Disk) -> (Vec<Arc<dyn Adapter>>, [PuppetControl; 2]) {
    let (first, first_control) = puppet(&disk.store, with_bindings());
    let behavior = PuppetBehavior { name: "zebra", ..with_bindings() };
    let (second, second_control) = puppet(&disk.store, behavior);
    (vec![first, second], [first_control, second_control])
}

/// Opens a process-local binding of each adapter in one session. The run of the first adapter waits when the process ends.
async fn wait_beside_another_binding(disk: Disk) -> RunId {
    let (adapters, [mut first, mut second]) = two_puppets(&disk);
    let world = World::boot(disk, Options::default(), adapters, Clock::manual(NOW), 1).await;
    let request = RunRequest { adapter: Some("zebra".into()), ..RunRequest::text("a", "one") };
    let run = world.send(request).await.unwrap().run;
    let execution = second.next().await;
    execution.handle.record(vec![binding_opened("z1", Fidelity::None)]).await.unwrap();
    execution.end(End::succeeded());
    world.ended(run.id).await;
    let run = world.send(puppet_request("a", "two")).await.unwrap().run;
    let execution = first.next().await;
    execution.handle.record(vec![binding_opened("p1", Fidelity::None)]).await.unwrap();
    execution.end(Executed::Waiting(question(WaitRequest::Input, None)));
    world.wait_for_question(run.id).await;
    run.id
}

async fn cancel_after_start(disk: Disk, run: RunId) {
    let (adapters, _controls) = two_puppets(&disk);
    let clock = Clock::manual(NOW.plus(1_000));
    let world = World::boot(disk, Options::default(), adapters, clock, 2).await;
    world.kernel.run_cancel(&world.me, run).await.unwrap();
    assert_eq!(world.ended(run).await.state.status(), RunStatus::Cancelled);
    let all = bindings(&world, "a").await;
    let shown: Vec<_> = all.iter().map(|binding| (binding.adapter.as_str(), binding.status)).collect();
    assert_eq!(shown, [("puppet", BindingStatus::Stale), ("zebra", BindingStatus::Stale)]);
}

#[tokio::test]
async fn a_failed_or_cancelled_turn_and_its_binding_stay_on_the_path() {
    let (world, mut control) = world(Disk::memory(), 1).await;
    for (no, end) in [End::failed(Failure::new("x", "y"), false), End::stopped()].into_iter().enumerate() {
        let run = world.send(puppet_request("a", "go")).await.unwrap().run;
        let execution = control.next().await;
        let found = resumed_native(&execution);
        assert_eq!(found.is_some(), no > 0);
        let record = if no > 0 { Record::Resumed } else { binding_opened("n1", Fidelity::Native) };
        execution.handle.record(vec![record]).await.unwrap();
        execution.handle.delta(0, "half").unwrap();
        execution.end(end);
        world.ended(run.id).await;
        assert_eq!(bindings(&world, "a").await[0].last_message, Some(tip(&world, "a").await));
    }
    assert_eq!(play(&world, &mut control, puppet_request("a", "go on"), "n2").await.as_deref(), Some("n1"));
    // A failed branch is abandoned, and its native session is not resumed.
    let first = world.path("a").await[0].id;
    let place = Place::Regenerate { message_id: first };
    let run = world.send(RunRequest { prompt: vec![], place, ..puppet_request("a", "") }).await.unwrap().run;
    let execution = control.next().await;
    execution.handle.record(vec![binding_opened("n3", Fidelity::Native)]).await.unwrap();
    execution.end(End::failed(Failure::new("x", "y"), false));
    world.ended(run.id).await;
    assert_eq!(play(&world, &mut control, puppet_request("a", "go on"), "n4").await, None);
}

#[test]
fn only_native_state_survives_a_crash() {
    for (fidelity, expected) in
        [(Fidelity::Native, Some("n1")), (Fidelity::Reconstructed, None), (Fidelity::None, None)]
    {
        let disk = Disk::sqlite();
        run_process(async {
            let (world, mut control) = world(disk.clone(), 1).await;
            let run = world.send(puppet_request("a", "one")).await.unwrap().run;
            let execution = control.next().await;
            execution.handle.record(vec![binding_opened("n1", fidelity)]).await.unwrap();
            assert_eq!(world.get(run.id).await.state.status(), RunStatus::Running);
        });
        run_process(async {
            let (world, mut control) = world(disk.clone(), 2).await;
            let path = world.path_text("a").await;
            assert!(path.contains("error executor_lost"), "{path}");
            let found = play(&world, &mut control, puppet_request("a", "two"), "n2").await;
            assert_eq!(found.as_deref(), expected, "{fidelity:?}");
        });
    }
}

fn to_adopt(native: &str) -> Adopted {
    Adopted { native: native.into(), ..Adopted::default() }
}

#[tokio::test]
async fn an_adopted_native_session_is_resumed_by_the_next_run() {
    let (world, mut control) = world(Disk::sqlite(), 1).await;
    let (kernel, me) = (&world.kernel, &world.me);
    let opened = SessionTarget { key: Some("a".into()), ..SessionTarget::default() };
    kernel.session_open(me, &opened, None).await.unwrap();
    let old =
        Adopted { native: "old".into(), cwd: Some("/usr".into()), system_prompt: Some("be kind".into()) };
    kernel.binding_adopt(me, &by_key("a"), "puppet", old).await.unwrap();
    let mut asked = puppet_request("a", "go on");
    (asked.options.cwd, asked.options.system_prompt) = (Some("/usr".into()), Some("be kind".into()));
    assert_eq!(play(&world, &mut control, asked.clone(), "n1").await.as_deref(), Some("old"));
    asked.options.cwd = Some("/tmp".into());
    assert_eq!(play(&world, &mut control, asked, "n1").await, None, "it was opened in another folder");
}

#[tokio::test]
async fn a_folder_that_does_not_exist_is_refused_at_acceptance() {
    let (world, _control) = world(Disk::memory(), 1).await;
    let (kernel, me) = (&world.kernel, &world.me);
    let missing = Some("/no/such/folder".to_owned());
    let refused = |error: Error| {
        assert_eq!(error.code(), "invalid_request", "{error}");
        assert!(error.to_string().contains("/no/such/folder does not exist"), "{error}");
    };
    let named = |key: &str| SessionTarget { key: Some(key.into()), ..SessionTarget::default() };
    for adapter in ["puppet", "script"] {
        let new = NewSession { cwd: missing.clone(), adapter: Some(adapter.into()), ..NewSession::default() };
        let target = SessionTarget { new, ..named("new") };
        refused(kernel.session_open(me, &target, None).await.unwrap_err());
        let mut asked = RunRequest { adapter: Some(adapter.into()), ..puppet_request("run", "go") };
        asked.options.cwd = missing.clone();
        refused(kernel.run_create(me, asked).await.unwrap_err());
    }
    let adopted = || Adopted { cwd: missing.clone(), ..to_adopt("n") };
    refused(kernel.session_adopt(me, &named("adopted"), "puppet", adopted()).await.unwrap_err());
    kernel.session_open(me, &named("old"), None).await.unwrap();
    refused(kernel.binding_adopt(me, &by_key("old"), "puppet", adopted()).await.unwrap_err());
}

#[tokio::test]
async fn a_session_is_found_or_created_and_adopts_once() {
    for disk in every_store() {
        let (world, mut control) = world(disk, 1).await;
        let (kernel, me) = (&world.kernel, &world.me);
        let task = ExternalRef { kind: "task".into(), id: "7".into() };
        let target = SessionTarget { external_ref: Some(task), ..SessionTarget::default() };
        let adopt = async |native: &str| kernel.session_adopt(me, &target, "puppet", to_adopt(native)).await;
        // No session is created if the adapter cannot bind.
        for (adapter, code) in [("script", "adapter_incompatible"), ("nobody", "adapter_not_registered")] {
            let refused = kernel.session_adopt(me, &target, adapter, to_adopt("n")).await.unwrap_err();
            assert_eq!(refused.code(), code);
        }
        assert_eq!(kernel.session_list(me, SessionQuery::default()).await.unwrap().items, []);
        let first = adopt("latest").await.unwrap();
        assert_eq!((first.adopted, first.binding.generation), (true, 1));
        assert_eq!(first.binding.native.as_deref(), Some("latest"));
        for native in ["latest", "older"] {
            let again = adopt(native).await.unwrap();
            assert_eq!((again.adopted, again.session.id), (false, first.session.id));
            assert_eq!(again.binding, first.binding);
        }
        // A native session of another session is not adopted, and no session is created.
        let other = SessionTarget { key: Some("other".into()), ..SessionTarget::default() };
        let taken = kernel.session_adopt(me, &other, "puppet", to_adopt("latest")).await.unwrap_err();
        assert_eq!(taken.code(), "invalid_request");
        assert_eq!(kernel.session_get(me, &by_key("other")).await.unwrap_err().code(), "not_found");
        // A session id is not a native session id.
        let own = first.session.id.to_string();
        assert_eq!(adopt(&own).await.unwrap_err().code(), "invalid_request");
        let mut asked = puppet_request("a", "go on");
        asked.session = target.clone();
        assert_eq!(play(&world, &mut control, asked.clone(), "n1").await.as_deref(), Some("latest"));
        // A busy session returns its binding too.
        let busy = kernel.run_create(me, asked).await.unwrap();
        let _works = control.next().await;
        assert_eq!(adopt("latest").await.unwrap().binding.id, first.binding.id);
        kernel.run_cancel(me, busy.run.id).await.unwrap();
    }
}

#[tokio::test]
async fn a_binding_is_declared_invalid_or_adopted_and_the_session_stays() {
    let (world, mut control) = world(Disk::sqlite(), 1).await;
    let (kernel, me) = (&world.kernel, &world.me);
    let missing = kernel.binding_invalidate(me, &by_key("a"), "puppet").await.unwrap_err();
    assert_eq!(missing.code(), "not_found");
    world.play("d", "say hi").await;
    for (adapter, code) in
        [("puppet", "not_found"), ("script", "adapter_incompatible"), ("nobody", "adapter_not_registered")]
    {
        assert_eq!(kernel.binding_invalidate(me, &by_key("d"), adapter).await.unwrap_err().code(), code);
    }
    play(&world, &mut control, puppet_request("a", "one"), "n1").await;
    let invalid = kernel.binding_invalidate(me, &by_key("a"), "puppet").await.unwrap();
    assert_eq!((invalid.status, invalid.native.as_deref()), (BindingStatus::Invalid, Some("n1")));
    assert_eq!(
        kernel.binding_invalidate(me, &by_key("a"), "puppet").await.unwrap_err().code(),
        "wrong_state"
    );
    assert_eq!(play(&world, &mut control, puppet_request("a", "two"), "n2").await, None);
    assert_eq!(world.path("a").await.len(), 4);

    let taken = kernel.binding_adopt(me, &by_key("a"), "puppet", to_adopt("n9")).await.unwrap_err();
    assert_eq!(taken.code(), "already_exists");
    insta::assert_snapshot!(taken, @r#"the session is or was bound to n2 of "puppet" already; adopt the agent's session into a new session"#);
    world.prompt("b", "say hi").await;
    world.kernel.drain().await;
    let adopted = kernel.binding_adopt(me, &by_key("b"), "puppet", to_adopt("old-1")).await.unwrap();
    assert_eq!((adopted.generation, adopted.fidelity), (1, Fidelity::Native));
    assert_eq!(
        play(&world, &mut control, puppet_request("b", "go on"), "n3").await.as_deref(),
        Some("old-1")
    );
    world.prompt("c", "say hi").await;
    world.kernel.drain().await;
    let twice = kernel.binding_adopt(me, &by_key("c"), "puppet", to_adopt("old-1")).await.unwrap_err();
    assert_eq!(twice.code(), "invalid_request", "{twice}");
}

#[tokio::test]
async fn archiving_releases_the_native_sessions_of_every_adapter() {
    for disk in every_store() {
        let name = disk.name;
        let (first, mut control) = puppet(&disk.store, with_bindings());
        let (second, mut others) = puppet(&disk.store, PuppetBehavior { name: "second", ..with_bindings() });
        let clock = Clock::manual(NOW);
        let world = World::boot(disk, Options::default(), vec![first, second], clock, 1).await;
        // Regardless of the number of bindings of the first adapter.
        for no in 1..=51 {
            play(&world, &mut control, puppet_request("a", "go on"), &format!("n{no}")).await;
            if no < 51 {
                world.kernel.binding_invalidate(&world.me, &by_key("a"), "puppet").await.unwrap();
            }
        }
        let request = RunRequest { adapter: Some("second".into()), ..puppet_request("a", "and you?") };
        play(&world, &mut others, request, "other").await;
        let archive = SessionPatch { status: Some(SessionStatus::Archived), ..SessionPatch::default() };
        world.kernel.session_patch(&world.me, &by_key("a"), archive).await.unwrap();
        assert_eq!(control.log().last().map(String::as_str), Some("forget n51"), "{name}");
        assert_eq!(others.log().last().map(String::as_str), Some("forget other"), "{name}");
    }
}
