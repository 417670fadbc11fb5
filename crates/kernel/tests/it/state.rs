//! State: of sessions along their paths, of runs, of owners.

use mainspring_core::{
    Body, Expect, Limits, MessageId, Place, RunStatus, StateAuthor, StateEntry, StateScope, WaitRequest,
};
use mainspring_kernel::adapter::{End, Executed, HandleError, Record};
use mainspring_kernel::kernel::{Caller, RunRequest, StateOf};
use mainspring_kernel::{Error, Options};
use mainspring_store::Fault;
use serde_json::{Value, json};

use crate::puppet::{Execution, PuppetBehavior, PuppetControl, puppet, puppet_request, question};
use crate::world::{Disk, World, by_key, every_store, input, run_process};

fn session() -> StateOf {
    StateOf::Session(by_key("a"), None)
}

impl World {
    async fn set(&self, of: &StateOf, key: &str, value: Value) -> Result<Option<StateEntry>, Error> {
        let outcome = self.kernel.state_set(&self.me, of, key, Some(value), Expect::Any).await;
        outcome.map(|outcome| outcome.entry)
    }

    /// Formats the state of the session at its tip, or at a message.
    async fn state(&self, at: Option<MessageId>) -> String {
        let of = StateOf::Session(by_key("a"), at);
        state_text(&self.kernel.state_list(&self.me, &of, None, None).await.unwrap().items)
    }
}

fn state_text(entries: &[StateEntry]) -> String {
    entries.iter().map(|entry| format!("{}={}", entry.key, entry.value)).collect::<Vec<_>>().join(" ")
}

async fn with_puppet(disk: Disk) -> (World, PuppetControl) {
    let (adapter, control) = puppet(&disk.store, PuppetBehavior::default());
    (World::with(disk, Options::default(), vec![adapter]).await, control)
}

/// Starts a run of the puppet at a place in the tree.
async fn start(world: &World, control: &mut PuppetControl, place: Place, text: &str) -> Execution {
    let mut request = RunRequest { place, ..puppet_request("a", text) };
    request.prompt.retain(|_| !text.is_empty());
    world.send(request).await.unwrap();
    control.next().await
}

async fn record_message(execution: &Execution, text: &str) {
    execution.handle.delta(0, text).unwrap();
    execution.handle.record(vec![Record::Message { blocks: vec![], usage: None }]).await.unwrap();
}

async fn set_state(execution: &Execution, key: &str, value: Value) {
    let set = execution.handle.state_set(StateScope::Session, key, Some(value), Expect::Any).await;
    set.unwrap();
}

async fn visible_state(execution: &Execution) -> String {
    state_text(&execution.handle.state_list(StateScope::Session, None, 99).await.unwrap())
}

async fn ended(world: &World, execution: Execution) {
    let run = execution.handle.assignment().run.id;
    execution.end(End::succeeded());
    world.ended(run).await;
}

#[tokio::test]
async fn a_branch_sees_the_state_at_its_point() {
    for disk in every_store() {
        let name = disk.name;
        let (world, mut control) = with_puppet(disk).await;
        world.kernel.session_open(&world.me, &target(), None).await.unwrap();
        world.set(&session(), "mood", json!("new")).await.unwrap();
        for (turn, prompt) in ["one", "two"].into_iter().enumerate() {
            let execution = start(&world, &mut control, Place::Tip, prompt).await;
            set_state(&execution, "asked", json!(prompt)).await;
            assert!(!world.state(None).await.contains(prompt), "{name}: not before the turn has ended");
            record_message(&execution, "fine").await;
            // Set after the last message of the turn: it belongs to that message.
            set_state(&execution, "turns", json!(turn + 1)).await;
            assert_eq!(
                visible_state(&execution).await,
                format!("asked=\"{prompt}\" mood=\"new\" turns={}", turn + 1),
                "{name}"
            );
            ended(&world, execution).await;
        }
        let path = world.path("a").await;
        assert_eq!(path.len(), 4, "{name}");
        assert_eq!(world.state(None).await, "asked=\"two\" mood=\"new\" turns=2", "{name}");
        world.set(&session(), "mood", json!("old")).await.unwrap();
        // At each message: the prompt, the state set before the answer, and the answer with the state set after it.
        for (at, state) in [
            (0, "mood=\"new\""),
            (1, "asked=\"one\" mood=\"new\" turns=1"),
            (2, "asked=\"one\" mood=\"new\" turns=1"),
            (3, "asked=\"two\" mood=\"old\" turns=2"),
        ] {
            assert_eq!(world.state(Some(path[at].id)).await, state, "{name} {at}");
        }
        // A regenerated answer to the second prompt sees the state at that prompt. Its changes are its own.
        let again = Place::Regenerate { message_id: path[2].id };
        let execution = start(&world, &mut control, again, "").await;
        assert_eq!(visible_state(&execution).await, "asked=\"one\" mood=\"new\" turns=1", "{name}");
        set_state(&execution, "asked", json!("again")).await;
        record_message(&execution, "better").await;
        ended(&world, execution).await;
        assert_eq!(world.state(None).await, "asked=\"again\" mood=\"new\" turns=1", "{name}");
        assert_eq!(world.state(Some(path[3].id)).await, "asked=\"two\" mood=\"old\" turns=2", "{name}");
        // A new root sees the state set before the first message.
        let execution = start(&world, &mut control, Place::Root, "three").await;
        assert_eq!(visible_state(&execution).await, "mood=\"new\"", "{name}");
        ended(&world, execution).await;
    }
}

fn target() -> mainspring_kernel::kernel::SessionTarget {
    mainspring_kernel::kernel::SessionTarget { key: Some("a".into()), ..Default::default() }
}

#[tokio::test]
async fn state_set_by_a_failed_branch_is_not_on_the_path() {
    for disk in every_store() {
        let name = disk.name;
        let (world, mut control) = with_puppet(disk).await;
        let execution = start(&world, &mut control, Place::Tip, "one").await;
        record_message(&execution, "fine").await;
        ended(&world, execution).await;
        let path = world.path("a").await;
        world.set(&session(), "k", json!(1)).await.unwrap();
        let edit = Place::Edit { message_id: path[1].id };
        let execution = start(&world, &mut control, edit, "two").await;
        assert_eq!(visible_state(&execution).await, "k=1", "{name}");
        set_state(&execution, "k", json!("lost")).await;
        set_state(&execution, "l", json!("lost")).await;
        let run = execution.handle.assignment().run.id;
        execution.end(End::failed(mainspring_core::Failure::new("no", "no"), false));
        assert_eq!(world.ended(run).await.state.status(), RunStatus::Failed);
        assert_eq!(world.state(None).await, "k=1", "{name}");
        // The next version is new, and was not used on the branch either.
        let outcome = world.set(&session(), "k", json!(2)).await.unwrap();
        assert_eq!(outcome.unwrap().version, 3, "{name}");
    }
}

#[tokio::test]
async fn state_changes_are_compared_and_recorded_as_events() {
    for disk in every_store() {
        let name = disk.name;
        let (world, mut control) = with_puppet(disk).await;
        world.kernel.session_open(&world.me, &target(), None).await.unwrap();
        let put = async |value: Option<Value>, expect| {
            let outcome = world.kernel.state_set(&world.me, &session(), "k", value, expect).await?;
            Ok::<_, Error>(outcome.entry.map(|entry| entry.version))
        };
        assert_eq!(put(Some(json!(1)), Expect::Absent).await, Ok(Some(1)), "{name}");
        assert_eq!(put(Some(json!(1)), Expect::Any).await, Ok(Some(1)), "{name}: nothing changed");
        let refused = put(Some(json!(2)), Expect::Absent).await.unwrap_err();
        assert_eq!((refused.code(), refused), ("version_conflict", Error::Changed { expected: 0, now: 1 }));
        assert_eq!(put(Some(json!("x".repeat(5000))), Expect::Version(1)).await, Ok(Some(2)), "{name}");
        assert_eq!(put(None, Expect::Version(2)).await, Ok(None), "{name}");
        assert_eq!(put(None, Expect::Any).await, Ok(None), "{name}: deleting twice changes nothing");
        assert_eq!(put(Some(Value::Null), Expect::Absent).await, Ok(Some(4)), "{name}");
        let execution = start(&world, &mut control, Place::Tip, "go").await;
        let busy = put(Some(json!(0)), Expect::Any).await.unwrap_err();
        assert_eq!(busy.code(), "session_busy", "{name}");
        set_state(&execution, "k", json!(5)).await;
        let run = execution.handle.assignment().run.id;
        let of_run = StateOf::Run(run);
        world.set(&of_run, "r", json!("caller")).await.unwrap();
        let set = |value| execution.handle.state_set(StateScope::Run, "r", Some(value), Expect::Version(1));
        assert_eq!(set(json!("agent")).await.unwrap().entry.unwrap().version, 2, "{name}");
        assert!(matches!(set(json!(1)).await, Err(HandleError::Kernel(Error::Changed { .. }))), "{name}");
        let handle = execution.handle.clone();
        ended(&world, execution).await;
        assert_eq!(world.kernel.state_get(&world.me, &of_run, "r").await.unwrap().value, json!("agent"));
        let late = world.set(&of_run, "r", json!(9)).await.unwrap_err();
        assert_eq!(late.code(), "run_ended", "{name}");
        for scope in [StateScope::Run, StateScope::Session, StateScope::Owner] {
            let late = handle.state_set(scope, "k", Some(json!(9)), Expect::Any).await;
            assert_eq!(late, Err(HandleError::Revoked), "{name} {scope}");
        }
        let told: Vec<String> =
            world.events("a").await.into_iter().filter_map(|event| change_text(&event)).collect();
        assert_eq!(
            told,
            [
                "session k 1 Caller Some(1) run=false",
                "session k 2 Caller None run=false",
                "session k 3 Caller deleted run=false",
                "session k 4 Caller Some(Null) run=false",
                "session k 5 Agent Some(5) run=true",
                "run r 1 Caller Some(\"caller\") run=true",
                "run r 2 Agent Some(\"agent\") run=true",
            ],
            "{name}"
        );
    }
}

fn change_text(event: &mainspring_core::Event) -> Option<String> {
    let Body::StateChanged { scope, key, version, by, deleted, value } = &event.body else { return None };
    let agent = *by == StateAuthor::Agent;
    assert!(!agent || event.attempt.is_some());
    let value = match (deleted, value) {
        (true, None) => "deleted".into(),
        (_, Some(Value::Number(number))) => format!("Some({number})"),
        (_, Some(Value::String(text))) => format!("Some({text:?})"),
        (_, value) => format!("{value:?}"),
    };
    Some(format!("{scope} {key} {version} {by:?} {value} run={}", event.run.is_some()))
}

#[tokio::test]
async fn state_of_an_owner_is_shared_by_its_sessions_only() {
    for disk in every_store() {
        let name = disk.name;
        let (world, mut control) = with_puppet(disk).await;
        let execution = start(&world, &mut control, Place::Tip, "go").await;
        let set =
            execution.handle.state_set(StateScope::Owner, "lang", Some(json!("de")), Expect::Absent).await;
        let version = set.unwrap().entry.unwrap().version;
        let entry = world.kernel.state_get(&world.me, &StateOf::Owner, "lang").await.unwrap();
        assert_eq!((entry.value, entry.version), (json!("de"), version), "{name}");
        let other = Caller::new("bob");
        let missing = world.kernel.state_get(&other, &StateOf::Owner, "lang").await.unwrap_err();
        assert_eq!(missing.code(), "not_found", "{name}");
        // An attempt sees changes that a caller made meanwhile.
        let of = StateOf::Owner;
        world.set(&of, "lang", json!("fr")).await.unwrap();
        let seen = execution.handle.state_get(StateScope::Owner, "lang").await.unwrap().unwrap();
        assert_eq!(seen.value, json!("fr"), "{name}");
        ended(&world, execution).await;
        // State of another owner cannot be read or changed.
        let run = world.path("a").await[0].run.unwrap();
        for of in [
            StateOf::Run(run),
            StateOf::Session(mainspring_kernel::store::SessionRef::Id(world.get(run).await.session), None),
        ] {
            let hidden = world.kernel.state_list(&other, &of, None, None).await.unwrap_err();
            assert_eq!(hidden.code(), "not_found", "{name}");
            let hidden = world.kernel.state_set(&other, &of, "k", None, Expect::Any).await.unwrap_err();
            assert_eq!(hidden.code(), "not_found", "{name}");
        }
    }
}

#[tokio::test]
async fn state_has_limits() {
    let limits = Limits { state_keys: 2, state_value_bytes: 10, ..Limits::default() };
    let options = Options { limits, ..Options::default() };
    let world = World::with(Disk::memory(), options, vec![]).await;
    world.kernel.session_open(&world.me, &target(), None).await.unwrap();
    for of in [session(), StateOf::Owner] {
        for (key, value, code) in [
            ("", json!(1), "invalid_request"),
            ("a/b", json!(1), "invalid_request"),
            ("a", json!("0123456789"), "too_large"),
            ("a", json!("01234567"), ""),
            ("b", json!(1), ""),
            ("c", json!(1), "too_many"),
            ("b", json!(2), ""),
        ] {
            let code_of = world.set(&of, key, value).await.err().map_or("", |error| error.code());
            assert_eq!(code_of, code, "{of:?} {key}");
        }
        let at = StateOf::Session(by_key("a"), Some(MessageId::from_random([1; 16])));
        assert_eq!(world.kernel.state_get(&world.me, &at, "a").await.unwrap_err().code(), "not_found");
        assert_eq!(world.set(&at, "a", json!(1)).await.unwrap_err().code(), "invalid_request");
    }
}

#[tokio::test]
async fn the_number_of_keys_is_counted_correctly_on_every_branch() {
    const LIMIT: usize = 3;
    for disk in every_store() {
        let name = disk.name;
        let options =
            Options { limits: Limits { state_keys: LIMIT, ..Limits::default() }, ..Options::default() };
        let world = World::with(disk, options, vec![]).await;
        world.kernel.session_open(&world.me, &target(), None).await.unwrap();
        // A fixed sequence of numbers that looks random.
        let mut random = 7_u32;
        let (mut refused, mut accepted) = (0, 0);
        for no in 0..120 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let choice = (random >> 16) as usize;
            let entries = world.kernel.state_list(&world.me, &session(), None, None).await.unwrap().items;
            match choice % 8 {
                0 => drop(world.play("a", "say on").await),
                1 => {
                    let nodes = world.tree("a").await.nodes;
                    if !nodes.is_empty() {
                        let to = Some(nodes[choice / 8 % nodes.len()].message.id);
                        world.kernel.session_navigate(&world.me, &by_key("a"), to, None).await.unwrap();
                    }
                }
                2 | 3 if !entries.is_empty() => {
                    let key = &entries[choice / 8 % entries.len()].key;
                    let removed = world.kernel.state_set(&world.me, &session(), key, None, Expect::Any).await;
                    removed.unwrap();
                }
                4 if !entries.is_empty() => {
                    let key = &entries[choice / 8 % entries.len()].key;
                    world.set(&session(), key, json!(no)).await.unwrap();
                }
                _ => {
                    let set = world.set(&session(), &format!("k{no}"), json!(no)).await;
                    match entries.len() < LIMIT {
                        true => drop(set.unwrap()),
                        false => assert_eq!(set.unwrap_err().code(), "too_many", "{name} {no}"),
                    }
                    (accepted, refused) = match entries.len() < LIMIT {
                        true => (accepted + 1, refused),
                        false => (accepted, refused + 1),
                    };
                }
            }
        }
        assert!(refused > 5 && accepted > 5, "{name}: {accepted} {refused}");
    }
}

#[test]
fn state_survives_a_crash_with_the_question_that_came_after_it() {
    for disk in every_store() {
        let run = run_process(async {
            let (world, mut control) = with_puppet(disk.clone()).await;
            let execution = start(&world, &mut control, Place::Tip, "go").await;
            record_message(&execution, "first").await;
            set_state(&execution, "k", json!(1)).await;
            let run = execution.handle.assignment().run.id;
            execution.end(Executed::Waiting(question(WaitRequest::Input, None)));
            world.wait_for_question(run).await;
            run
        });
        run_process(async {
            let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
            let clock = mainspring_kernel::clock::Clock::manual(crate::world::NOW.plus(1_000));
            let world = World::boot(disk.clone(), Options::default(), vec![adapter], clock, 2).await;
            let wait = world.wait_for_question(run).await;
            world.kernel.run_answer(&world.me, run, wait, input("yes")).await.unwrap();
            let execution = control.next().await;
            assert_eq!(visible_state(&execution).await, "k=1", "{}", disk.name);
            ended(&world, execution).await;
            // State set after the last message before the crash belongs to that message.
            assert_eq!(world.state(None).await, "k=1", "{}", disk.name);
            assert_eq!(world.path("a").await.len(), 2, "{}", disk.name);
        });
    }
}

#[tokio::test]
async fn a_state_change_whose_commit_failed_has_no_effect() {
    for disk in every_store() {
        let name = disk.name;
        let (world, _control) = with_puppet(disk).await;
        world.kernel.session_open(&world.me, &target(), None).await.unwrap();
        world.disk.inject_fault(Fault::CommitFails);
        let error = world.set(&session(), "k", json!(1)).await.unwrap_err();
        assert_eq!((error.code(), error.is_retryable()), ("unavailable", true), "{name}");
        assert_eq!(world.state(None).await, "", "{name}");
        world.disk.inject_fault(Fault::OutcomeUnknown);
        assert!(world.set(&session(), "k", json!(2)).await.is_ok(), "{name}: it was looked up");
        assert_eq!(world.state(None).await, "k=2", "{name}");
    }
}

#[tokio::test]
async fn a_fork_of_a_fork_sees_the_state_of_the_first_fork() {
    use mainspring_kernel::kernel::ForkRequest;
    for disk in every_store() {
        let world = World::on(disk).await;
        let of = |key: &str| StateOf::Session(by_key(key), None);
        let fork = async |from: &str, key: &str| {
            let source = world.kernel.session_get(&world.me, &by_key(from)).await.unwrap();
            let message = source.tip_message.unwrap();
            let request = ForkRequest { message, key: Some(key.into()), title: None };
            world.kernel.session_fork(&world.me, &by_key(from), request, None).await.unwrap();
        };
        let seen = async |key: &str| {
            state_text(&world.kernel.state_list(&world.me, &of(key), None, None).await.unwrap().items)
        };
        world.play("a", "say hi").await;
        world.set(&of("a"), "shared", json!(1)).await.unwrap();
        fork("a", "b").await;
        world.set(&of("b"), "own", json!(2)).await.unwrap();
        world.set(&of("b"), "shared", json!(3)).await.unwrap();
        world.set(&of("a"), "late", json!(4)).await.unwrap();
        world.set(&of("a"), "shared", json!(5)).await.unwrap();
        fork("b", "c").await;
        let name = world.disk.name;
        assert_eq!(seen("c").await, "own=2 shared=3", "{name}: at the message that all three share");
        world.set(&of("b"), "own", json!(6)).await.unwrap();
        world.kernel.session_delete(&world.me, &by_key("b")).await.unwrap();
        world.play("c", "say on").await;
        assert_eq!(seen("c").await, "own=2 shared=3", "{name}: and where it goes on, whatever becomes of b");
        assert_eq!(seen("a").await, "late=4 shared=5", "{name}");
        fork("c", "d").await;
        assert_eq!(seen("d").await, "own=2 shared=3", "{name}");
    }
}
