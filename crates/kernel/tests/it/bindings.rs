//! Bindings: which native session an attempt takes up, and that no agent answers from a path it is not on.

use mainspring_core::{
    Binding, BindingStatus, ExternalRef, Failure, Fidelity, MessageId, Place, Role, RunStatus, SessionStatus,
};
use mainspring_kernel::adapter::{End, Executed, Record};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::kernel::{
    Adopted, ForkRequest, RunRequest, SessionPatch, SessionQuery, SessionTarget,
};
use mainspring_kernel::{Error, Options};

use crate::portable::{export, import};
use crate::puppet::{Hands, Manners, Strings, pull, puppet};
use crate::world::{Disk, NOW, World, by, every_store, live, soon, story};

fn binds() -> Manners {
    Manners { uses_bindings: true, ..Manners::default() }
}

fn opened(native: &str, fidelity: Fidelity) -> Record {
    Record::Opened { native: Some(native.into()), fidelity, reconstructed: false }
}

fn stale() -> Executed {
    Executed::Ended(End::Stale { reason: "unknown session".into() })
}

async fn world(disk: Disk, seed: u64) -> (World, Hands) {
    let (adapter, hands) = puppet(&disk.store, binds());
    let clock = Clock::manual(NOW.plus(seed * 1_000));
    (World::boot(disk, Options::default(), vec![adapter], clock, seed).await, hands)
}

/// The native session that an execution is to take up.
fn takes_up(strings: &Strings) -> Option<String> {
    strings.handle.assignment().binding.as_ref().and_then(|binding| binding.native.clone())
}

/// Plays one run that resumes what it finds, or opens `native`; gives what it took up.
async fn play(world: &World, hands: &mut Hands, request: RunRequest, native: &str) -> Option<String> {
    let run = world.send(request).await.unwrap().run;
    let strings = hands.next().await;
    let found = takes_up(&strings);
    let record = match found {
        Some(_) => Record::Resumed,
        None => opened(native, Fidelity::Native),
    };
    strings.handle.record(vec![record]).await.unwrap();
    strings.handle.delta(0, "done").unwrap();
    strings.end(End::succeeded());
    assert_eq!(world.ended(run.id).await.state.status(), RunStatus::Succeeded);
    found
}

async fn bindings(world: &World, key: &str) -> Vec<Binding> {
    world.kernel.binding_list(&world.me, &by(key), None, None).await.unwrap()
}

async fn tip(world: &World, key: &str) -> MessageId {
    world.path(key).await.last().unwrap().id
}

#[tokio::test]
async fn a_session_goes_on_in_the_native_session_it_has() {
    for disk in every_store() {
        let name = disk.name;
        let (world, mut hands) = world(disk, 1).await;
        assert_eq!(play(&world, &mut hands, pull("a", "one"), "n1").await, None, "{name}");
        assert_eq!(play(&world, &mut hands, pull("a", "two"), "n2").await.as_deref(), Some("n1"), "{name}");
        let all = bindings(&world, "a").await;
        assert_eq!(all.len(), 1, "{name}");
        assert_eq!((all[0].generation, all[0].status), (1, BindingStatus::Active), "{name}");
        assert_eq!(all[0].stands_at, Some(tip(&world, "a").await), "{name}");
        let run = world.prompt("b", "say hi").await;
        world.ended(run.id).await;
        assert_eq!(bindings(&world, "b").await, [], "{name}: the script agent has none");
    }
}

#[tokio::test]
async fn a_native_session_that_is_gone_is_replaced_in_the_next_attempt() {
    let (world, mut hands) = world(Disk::sqlite(), 1).await;
    play(&world, &mut hands, pull("a", "one"), "n1").await;
    let before = world.events("a").await.len();
    let session = world.kernel.session_get(&world.me, &by("a")).await.unwrap().id;
    let run = world.send(pull("a", "two")).await.unwrap().run;
    let first = hands.next().await;
    assert_eq!(takes_up(&first).as_deref(), Some("n1"));
    first.end(stale());
    let second = hands.next().await;
    assert_eq!(takes_up(&second), None);
    let reconstructed =
        Record::Opened { native: Some("n2".into()), fidelity: Fidelity::Native, reconstructed: true };
    second.handle.record(vec![reconstructed]).await.unwrap();
    second.end(End::succeeded());
    let run = world.ended(run.id).await;
    assert_eq!((run.state.status(), run.attempts, run.session), (RunStatus::Succeeded, 2, session));
    insta::assert_snapshot!(story(&world.events("a").await[before..]), @r#"
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
    assert_eq!(shown, [(2, BindingStatus::Active, true), (1, BindingStatus::Closed, false)]);
    let attempts = world.kernel.run_attempts(&world.me, run.id).await.unwrap();
    assert_eq!(attempts[1].binding, Some(all[0].id));
    assert_eq!(attempts[1].resume_from, Some(attempts[0].id));
}

#[tokio::test]
async fn an_agent_that_stands_elsewhere_is_not_taken_up() {
    let (world, mut hands) = world(Disk::memory(), 1).await;
    play(&world, &mut hands, pull("a", "one"), "n1").await;
    let path = world.path("a").await;
    let (asked, answered) = (path[0].id, path[1].id);
    assert_eq!((path[0].role, path[1].role), (Role::User, Role::Assistant));
    play(&world, &mut hands, pull("a", "two"), "n1").await;
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
                pull("a", "again").prompt
            },
            place,
            ..pull("a", "")
        };
        let found = play(&world, &mut hands, request, &format!("n{no}")).await;
        assert_eq!(found.as_deref(), expected, "{place:?}");
    }
}

#[tokio::test]
async fn where_the_path_turns_another_native_session_goes_on_until_it_turns_back() {
    for disk in every_store() {
        let name = disk.name;
        let (world, mut hands) = world(disk, 1).await;
        let navigate = async |to| {
            world.kernel.session_navigate(&world.me, &by("a"), Some(to), None).await.unwrap();
        };
        play(&world, &mut hands, pull("a", "one"), "n1").await;
        play(&world, &mut hands, pull("a", "two"), "n1").await;
        let first = tip(&world, "a").await;
        // The script agent answers on another branch: the native session of the first one has not heard of it.
        let other = RunRequest {
            adapter: Some("script".into()),
            place: Place::Root,
            ..RunRequest::text("a", "say hi")
        };
        let run = world.send(other).await.unwrap().run;
        world.ended(run.id).await;
        let second = tip(&world, "a").await;
        navigate(first).await;
        assert_eq!(play(&world, &mut hands, pull("a", "on"), "").await.as_deref(), Some("n1"), "{name}");
        navigate(second).await;
        assert_eq!(play(&world, &mut hands, pull("a", "on"), "n2").await, None, "{name}");
        assert_eq!(play(&world, &mut hands, pull("a", "on"), "").await.as_deref(), Some("n2"), "{name}");
    }
}

#[tokio::test]
async fn a_fork_and_an_import_have_native_sessions_of_their_own() {
    for disk in every_store() {
        let name = disk.name;
        let (source, mut hands) = world(disk, 1).await;
        play(&source, &mut hands, pull("a", "one"), "n1").await;
        let message = tip(&source, "a").await;
        let fork = ForkRequest { message, key: Some("f".into()), title: None };
        source.kernel.session_fork(&source.me, &by("a"), fork, None).await.unwrap();
        assert_eq!(bindings(&source, "f").await, [], "{name}");
        assert_eq!(play(&source, &mut hands, pull("f", "two"), "n2").await, None, "{name}");
        assert_eq!(play(&source, &mut hands, pull("a", "two"), "").await.as_deref(), Some("n1"), "{name}");
        assert_eq!(play(&source, &mut hands, pull("f", "on"), "").await.as_deref(), Some("n2"), "{name}");

        let file = export(&source, "a").await;
        assert!(file.contains("binding.created"), "what happened is told");
        let (there, mut hands) = world(Disk::sqlite(), 2).await;
        import(&there, &file).await.unwrap();
        assert_eq!(bindings(&there, "a").await, [], "{name}");
        assert_eq!(play(&there, &mut hands, pull("a", "three"), "n3").await, None, "{name}");
        assert_eq!(bindings(&there, "a").await[0].generation, 1, "{name}");
    }
}

#[tokio::test]
async fn the_bindings_of_a_deleted_session_go_with_it_and_those_of_a_compacted_one_stay() {
    for disk in every_store() {
        let name = disk.name;
        let (world, mut hands) = world(disk, 1).await;
        play(&world, &mut hands, pull("a", "one"), "n1").await;
        play(&world, &mut hands, pull("b", "one"), "n2").await;
        let last = world.events("b").await.last().unwrap().cursor;
        world.kernel.session_compact(&world.me, &by("b"), last).await.unwrap();
        assert_eq!(play(&world, &mut hands, pull("b", "two"), "").await.as_deref(), Some("n2"), "{name}");

        let session = world.kernel.session_get(&world.me, &by("a")).await.unwrap().id;
        world.kernel.session_delete(&world.me, &by("a")).await.unwrap();
        soon(async {
            while world.disk.store.session_exists(session).await.unwrap() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert_eq!(world.disk.store.bindings(session, None, None, 9).await.unwrap(), [], "{name}");
        // What it was tied to may be tied to another one.
        assert_eq!(play(&world, &mut hands, pull("a", "one"), "n1").await, None, "{name}");
    }
}

#[tokio::test]
async fn another_folder_or_other_instructions_are_another_native_session() {
    let (world, mut hands) = world(Disk::memory(), 1).await;
    let request = |cwd: &str, system: &str| {
        let mut request = pull("a", "go");
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
        let found = play(&world, &mut hands, request(cwd, system), native).await;
        assert_eq!(found.as_deref(), expected, "{cwd} {system}");
    }
}

#[tokio::test]
async fn what_an_attempt_has_said_is_not_said_twice() {
    let (world, mut hands) = world(Disk::memory(), 1).await;
    play(&world, &mut hands, pull("a", "one"), "n1").await;
    let run = world.send(pull("a", "two")).await.unwrap().run;
    // It fails before the native session has heard anything: it may be taken up again.
    hands.next().await.end(End::failed(Failure::new("adapter_unavailable", "no worker"), true));
    let second = world.turning(100, hands.next()).await;
    assert_eq!(takes_up(&second).as_deref(), Some("n1"));
    second.handle.record(vec![Record::Resumed]).await.unwrap();
    // Now it has heard the prompt.
    second.end(End::failed(Failure::new("transport_interruption", "it died"), true));
    let third = world.turning(100, hands.next()).await;
    assert_eq!(takes_up(&third), None);
    third.end(End::failed(Failure::new("x", "y"), false));
    assert_eq!(world.ended(run.id).await.attempts, 3);
}

#[tokio::test]
async fn a_failed_or_cancelled_turn_stays_on_the_path_and_so_does_its_agent() {
    let (world, mut hands) = world(Disk::memory(), 1).await;
    for (no, end) in [End::failed(Failure::new("x", "y"), false), End::stopped()].into_iter().enumerate() {
        let run = world.send(pull("a", "go")).await.unwrap().run;
        let strings = hands.next().await;
        let found = takes_up(&strings);
        assert_eq!(found.is_some(), no > 0);
        let record = if no > 0 { Record::Resumed } else { opened("n1", Fidelity::Native) };
        strings.handle.record(vec![record]).await.unwrap();
        strings.handle.delta(0, "half").unwrap();
        strings.end(end);
        world.ended(run.id).await;
        assert_eq!(bindings(&world, "a").await[0].stands_at, Some(tip(&world, "a").await));
    }
    assert_eq!(play(&world, &mut hands, pull("a", "go on"), "n2").await.as_deref(), Some("n1"));
    // A branch that failed was rolled back; its agent stands where nobody goes on.
    let first = world.path("a").await[0].id;
    let place = Place::Regenerate { message_id: first };
    let run = world.send(RunRequest { prompt: vec![], place, ..pull("a", "") }).await.unwrap().run;
    let strings = hands.next().await;
    strings.handle.record(vec![opened("n3", Fidelity::Native)]).await.unwrap();
    strings.end(End::failed(Failure::new("x", "y"), false));
    world.ended(run.id).await;
    assert_eq!(play(&world, &mut hands, pull("a", "go on"), "n4").await, None);
}

#[test]
fn only_native_state_survives_a_crash() {
    for (fidelity, expected) in
        [(Fidelity::Native, Some("n1")), (Fidelity::Reconstructed, None), (Fidelity::None, None)]
    {
        let disk = Disk::sqlite();
        live(async {
            let (world, mut hands) = world(disk.clone(), 1).await;
            let run = world.send(pull("a", "one")).await.unwrap().run;
            let strings = hands.next().await;
            strings.handle.record(vec![opened("n1", fidelity)]).await.unwrap();
            assert_eq!(world.get(run.id).await.state.status(), RunStatus::Running);
        });
        live(async {
            let (world, mut hands) = world(disk.clone(), 2).await;
            let path = world.path_shown("a").await;
            assert!(path.contains("error executor_lost"), "{path}");
            let found = play(&world, &mut hands, pull("a", "two"), "n2").await;
            assert_eq!(found.as_deref(), expected, "{fidelity:?}");
        });
    }
}

fn old(native: &str) -> Adopted {
    Adopted { native: native.into(), ..Adopted::default() }
}

#[tokio::test]
async fn a_native_session_is_adopted_as_the_next_run_wants_it() {
    let (world, mut hands) = world(Disk::sqlite(), 1).await;
    let (kernel, me) = (&world.kernel, &world.me);
    let opened = SessionTarget { key: Some("a".into()), ..SessionTarget::default() };
    kernel.session_open(me, &opened, None).await.unwrap();
    let old =
        Adopted { native: "old".into(), cwd: Some("/work".into()), system_prompt: Some("be kind".into()) };
    kernel.binding_adopt(me, &by("a"), "puppet", old).await.unwrap();
    let mut asked = pull("a", "go on");
    (asked.options.cwd, asked.options.system_prompt) = (Some("/work".into()), Some("be kind".into()));
    assert_eq!(play(&world, &mut hands, asked.clone(), "n1").await.as_deref(), Some("old"));
    asked.options.cwd = Some("/elsewhere".into());
    assert_eq!(play(&world, &mut hands, asked, "n1").await, None, "it was opened in another folder");
}

#[tokio::test]
async fn a_session_is_found_or_made_and_adopts_once() {
    for disk in every_store() {
        let (world, mut hands) = world(disk, 1).await;
        let (kernel, me) = (&world.kernel, &world.me);
        let task = ExternalRef { kind: "task".into(), id: "7".into() };
        let target = SessionTarget { external_ref: Some(task), ..SessionTarget::default() };
        let adopt = async |native: &str| kernel.session_adopt(me, &target, "puppet", old(native)).await;
        // Nothing is made where nothing can be tied.
        for (adapter, code) in [("script", "adapter_incompatible"), ("nobody", "adapter_not_registered")] {
            let refused = kernel.session_adopt(me, &target, adapter, old("n")).await.unwrap_err();
            assert_eq!(refused.code(), code);
        }
        assert_eq!(kernel.session_list(me, SessionQuery::default()).await.unwrap(), []);
        let first = adopt("latest").await.unwrap();
        assert_eq!((first.adopted, first.binding.generation), (true, 1));
        assert_eq!(first.binding.native.as_deref(), Some("latest"));
        for native in ["latest", "older"] {
            let again = adopt(native).await.unwrap();
            assert_eq!((again.adopted, again.session.id), (false, first.session.id));
            assert_eq!(again.binding, first.binding);
        }
        // What is another session's is not adopted, and no session is made for it.
        let other = SessionTarget { key: Some("other".into()), ..SessionTarget::default() };
        let taken = kernel.session_adopt(me, &other, "puppet", old("latest")).await.unwrap_err();
        assert_eq!(taken.code(), "invalid_request");
        assert_eq!(kernel.session_get(me, &by("other")).await.unwrap_err().code(), "not_found");
        // A session's id is no agent's.
        let own = first.session.id.to_string();
        assert_eq!(adopt(&own).await.unwrap_err().code(), "invalid_request");
        let mut asked = pull("a", "go on");
        asked.session = target.clone();
        assert_eq!(play(&world, &mut hands, asked.clone(), "n1").await.as_deref(), Some("latest"));
        // While it is busy, what it is tied to is told all the same.
        let busy = kernel.run_create(me, asked).await.unwrap();
        let _works = hands.next().await;
        assert_eq!(adopt("latest").await.unwrap().binding.id, first.binding.id);
        kernel.run_cancel(me, busy.run.id).await.unwrap();
    }
}

#[tokio::test]
async fn a_binding_is_declared_invalid_or_adopted_and_the_session_stays() {
    let (world, mut hands) = world(Disk::sqlite(), 1).await;
    let (kernel, me) = (&world.kernel, &world.me);
    let missing = kernel.binding_invalidate(me, &by("a"), "puppet").await.unwrap_err();
    assert_eq!(missing.code(), "not_found");
    world.play("d", "say hi").await;
    for (adapter, code) in
        [("puppet", "not_found"), ("script", "adapter_incompatible"), ("nobody", "adapter_not_registered")]
    {
        assert_eq!(kernel.binding_invalidate(me, &by("d"), adapter).await.unwrap_err().code(), code);
    }
    play(&world, &mut hands, pull("a", "one"), "n1").await;
    let invalid = kernel.binding_invalidate(me, &by("a"), "puppet").await.unwrap();
    assert_eq!((invalid.status, invalid.native.as_deref()), (BindingStatus::Invalid, Some("n1")));
    assert_eq!(kernel.binding_invalidate(me, &by("a"), "puppet").await.unwrap_err().code(), "wrong_state");
    assert_eq!(play(&world, &mut hands, pull("a", "two"), "n2").await, None);
    assert_eq!(world.path("a").await.len(), 4);

    let taken = kernel.binding_adopt(me, &by("a"), "puppet", old("n9")).await.unwrap_err();
    assert!(matches!(taken, Error::AlreadyExists { .. }), "{taken}");
    world.prompt("b", "say hi").await;
    world.kernel.drain().await;
    let adopted = kernel.binding_adopt(me, &by("b"), "puppet", old("old-1")).await.unwrap();
    assert_eq!((adopted.generation, adopted.fidelity), (1, Fidelity::Native));
    assert_eq!(play(&world, &mut hands, pull("b", "go on"), "n3").await.as_deref(), Some("old-1"));
    world.prompt("c", "say hi").await;
    world.kernel.drain().await;
    let twice = kernel.binding_adopt(me, &by("c"), "puppet", old("old-1")).await.unwrap_err();
    assert_eq!(twice.code(), "invalid_request", "{twice}");
}

#[tokio::test]
async fn a_session_that_is_archived_lets_the_native_sessions_of_every_adapter_go() {
    for disk in every_store() {
        let name = disk.name;
        let (first, mut hands) = puppet(&disk.store, binds());
        let (second, mut others) = puppet(&disk.store, Manners { name: "second", ..binds() });
        let clock = Clock::manual(NOW);
        let world = World::boot(disk, Options::default(), vec![first, second], clock, 1).await;
        // However many there were of the first.
        for no in 1..=51 {
            play(&world, &mut hands, pull("a", "go on"), &format!("n{no}")).await;
            if no < 51 {
                world.kernel.binding_invalidate(&world.me, &by("a"), "puppet").await.unwrap();
            }
        }
        let request = RunRequest { adapter: Some("second".into()), ..pull("a", "and you?") };
        play(&world, &mut others, request, "other").await;
        let archive = SessionPatch { status: Some(SessionStatus::Archived), ..SessionPatch::default() };
        world.kernel.session_patch(&world.me, &by("a"), archive).await.unwrap();
        assert_eq!(hands.log().last().map(String::as_str), Some("forget n51"), "{name}");
        assert_eq!(others.log().last().map(String::as_str), Some("forget other"), "{name}");
    }
}
