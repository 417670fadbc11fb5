//! The tree: navigation, forks, relatives of messages, and recovery after a crash.

use std::task::{Context, Poll};

use mainspring_core::{Block, MessageId, Place, Role, RunChange, RunStatus, SessionChange, SessionId};
use mainspring_kernel::adapter::{End, Executed, Record};
use mainspring_kernel::kernel::{ForkRequest, RunRequest, SessionPatch};
use mainspring_kernel::store::SessionRef;
use mainspring_kernel::{Error, Options};
use mainspring_store::Fault;

use crate::puppet::{PuppetBehavior, puppet, puppet_request, question};
use crate::world::{Disk, World, by_key, every_store, kinds, message_text, run_process, with_timeout};

fn at(key: &str, place: Place, script: &str) -> RunRequest {
    let prompt = if script.is_empty() { vec![] } else { vec![Block::text(script)] };
    RunRequest { place, prompt, ..RunRequest::text(key, "") }
}

async fn branch(world: &World, key: &str, place: Place, script: &str) -> mainspring_core::Run {
    let run = world.send(at(key, place, script)).await.unwrap().run;
    world.ended(run.id).await
}

async fn texts(world: &World, key: &str) -> Vec<String> {
    world.path(key).await.iter().map(|message| message.text().trim().to_owned()).collect()
}

async fn navigate(world: &World, key: &str, to: Option<MessageId>) -> Result<Option<MessageId>, Error> {
    with_timeout(world.kernel.session_navigate(&world.me, &by_key(key), to, None))
        .await
        .map(|session| session.tip_message)
}

async fn fork(world: &World, key: &str, message: MessageId, fork: &str) -> Result<SessionId, Error> {
    let request = ForkRequest { message, key: Some(fork.into()), title: None };
    with_timeout(world.kernel.session_fork(&world.me, &by_key(key), request, None))
        .await
        .map(|(session, _)| session.id)
}

/// Creates `one → two`, another answer to two, another question after one, and another root, where the path ends.
async fn create_tree(world: &World) -> Vec<MessageId> {
    world.play("a", "say one").await;
    world.play("a", "say two").await;
    let first: Vec<_> = world.path("a").await.iter().map(|message| message.id).collect();
    branch(world, "a", Place::Regenerate { message_id: first[2] }, "").await;
    branch(world, "a", Place::Edit { message_id: first[1] }, "say three").await;
    branch(world, "a", Place::Root, "say four").await;
    first
}

#[tokio::test]
async fn navigating_to_a_user_message_leads_to_its_cursor_child() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let first = create_tree(&world).await;
        let name = world.disk.name;
        // The cursor of question two is at its second answer.
        let nodes = world.tree("a").await.nodes;
        let again = nodes.iter().rfind(|node| node.parent_id == Some(first[2])).unwrap().message.id;
        assert_ne!(again, first[3]);
        assert_eq!(navigate(&world, "a", Some(first[2])).await.unwrap(), Some(again), "{name}");
        assert_eq!(texts(&world, "a").await, ["say one", "one", "say two", "two"], "{name}");
        // Navigating to the first answer moves the cursor of the question there.
        assert_eq!(navigate(&world, "a", Some(first[3])).await.unwrap(), Some(first[3]), "{name}");
        assert_eq!(
            navigate(&world, "a", Some(first[0])).await.unwrap(),
            Some(first[3]),
            "{name}: a tip, always"
        );
        let other = nodes.iter().find(|node| node.message.text() == "say three").unwrap().message.id;
        navigate(&world, "a", Some(other)).await.unwrap();
        assert_eq!(texts(&world, "a").await, ["say one", "one", "say three", "three"], "{name}");
        // The next prompt continues the current path.
        world.play("a", "say five").await;
        assert_eq!(texts(&world, "a").await[2..], ["say three", "three", "say five", "five"], "{name}");
        assert_eq!(
            navigate(&world, "a", Some(first[2])).await.unwrap(),
            Some(first[3]),
            "{name}: off the path, cursors stay"
        );
    }
}

#[tokio::test]
async fn navigate_to_none_clears_the_path_and_the_next_prompt_is_a_new_root() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let first = create_tree(&world).await;
        assert_eq!(navigate(&world, "a", None).await.unwrap(), None);
        assert_eq!(world.path("a").await, []);
        world.play("a", "say five").await;
        assert_eq!(texts(&world, "a").await, ["say five", "five"]);
        let root = world.path("a").await[0].id;
        let roots = world.kernel.session_message(&world.me, &by_key("a"), root).await.unwrap().siblings;
        assert_eq!(
            (roots.len(), roots[0], roots[2]),
            (3, first[0], root),
            "siblings include the other roots"
        );
    }
}

#[tokio::test]
async fn navigating_writes_one_event_or_none_if_nothing_changes() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let first = create_tree(&world).await;
        let before = (world.events("a").await.len(), world.cursors("a").await);
        let tip = world.path("a").await.last().unwrap().id;
        let session = world.kernel.session_get(&world.me, &by_key("a")).await.unwrap();
        assert_eq!(navigate(&world, "a", Some(tip)).await.unwrap(), Some(tip));
        assert_eq!(navigate(&world, "a", session.tip_message).await.unwrap(), Some(tip));
        assert_eq!(world.events("a").await.len(), before.0, "{}", world.disk.name);
        let moved = world
            .kernel
            .session_navigate(&world.me, &by_key("a"), Some(first[3]), Some(session.version))
            .await;
        assert_eq!(moved.unwrap().version, session.version + 1);
        let events = world.events("a").await;
        assert_eq!(kinds(&events[before.0..]), ["session.updated"]);
        let told =
            mainspring_core::Body::SessionUpdated { change: SessionChange::Tip { tip: Some(first[3]) } };
        assert_eq!(events.last().unwrap().body, told);
        let stale = world.kernel.session_navigate(&world.me, &by_key("a"), None, Some(session.version)).await;
        assert_eq!(stale.unwrap_err().code(), "version_conflict");
    }
}

#[tokio::test]
async fn an_invalid_navigation_changes_nothing() {
    for disk in every_store() {
        let world = World::on(disk).await;
        create_tree(&world).await;
        world.play("b", "say other").await;
        let edge = world.path("a").await[1].id;
        branch(&world, "a", Place::Edit { message_id: edge }, "say lost; fail").await;
        let lost = world.tree("a").await.nodes.iter().rfind(|node| node.abandoned).unwrap().message.id;
        let foreign = world.path("b").await[0].id;
        let before = (world.events("a").await.len(), world.tree("a").await);
        for (message, code) in [
            (foreign, "not_found"),
            (lost, "abandoned_message"),
            (MessageId::from_random([9; 16]), "not_found"),
        ] {
            assert_eq!(navigate(&world, "a", Some(message)).await.unwrap_err().code(), code);
            assert_eq!(fork(&world, "a", message, "f").await.unwrap_err().code(), code);
            let refused =
                world.send(at("a", Place::Regenerate { message_id: message }, "")).await.unwrap_err();
            assert_eq!(refused.code(), code);
        }
        assert_eq!((world.events("a").await.len(), world.tree("a").await), before, "{}", world.disk.name);
        assert!(world.kernel.session_get(&world.me, &by_key("f")).await.is_err(), "no fork was made");
    }
}

#[tokio::test]
async fn branch_and_navigate_while_busy_or_paused_are_refused_with_the_status() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let first = create_tree(&world).await;
        for (script, status) in [("hang", RunStatus::Running), ("ask which?", RunStatus::WaitingInput)] {
            let run = world.prompt("a", script).await;
            world.wait_until(run.id, |run| run.state.status() == status).await;
            let busy = Error::Busy { status };
            assert_eq!(busy.code(), "session_busy");
            assert_eq!(navigate(&world, "a", Some(first[0])).await.unwrap_err(), busy);
            assert_eq!(navigate(&world, "a", None).await.unwrap_err(), busy);
            let places = [
                (Place::Regenerate { message_id: first[0] }, ""),
                (Place::Edit { message_id: first[1] }, "say no"),
                (Place::Root, "say no"),
            ];
            for (place, script) in places {
                assert_eq!(world.send(at("a", place, script)).await.unwrap_err(), busy);
            }
            world.kernel.run_cancel(&world.me, run.id).await.unwrap();
            world.ended(run.id).await;
        }
    }
}

#[tokio::test]
async fn a_message_is_read_with_its_parent_siblings_and_children() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let first = create_tree(&world).await;
        let family = async |id| world.kernel.session_message(&world.me, &by_key("a"), id).await.unwrap();
        let nodes = world.tree("a").await.nodes;
        let id = |text: &str| nodes.iter().find(|node| node.message.text() == text).unwrap().message.id;
        let one = family(first[1]).await;
        assert_eq!((one.node.parent_id, one.node.depth, one.node.active), (Some(first[0]), 1, false));
        assert_eq!(one.children, [first[2], id("say three")], "{}", world.disk.name);
        assert_eq!(one.node.cursor, Some(id("say three")), "the child last visited");
        let two = family(first[3]).await;
        assert_eq!(
            (two.siblings.len(), two.siblings[0], two.node.cursor, two.more),
            (2, first[3], None, false)
        );
        let four = family(id("say four")).await;
        assert_eq!((four.siblings, four.node.active), (vec![first[0], id("say four")], true));
        let missing =
            world.kernel.session_message(&world.me, &by_key("a"), MessageId::from_random([9; 16])).await;
        assert_eq!(missing.unwrap_err().code(), "not_found");
    }
}

#[tokio::test]
async fn a_fork_and_its_source_do_not_see_each_others_messages() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let first = create_tree(&world).await;
        let source = world.tree("a").await;
        let id = fork(&world, "a", first[2], "f").await.unwrap();
        let name = world.disk.name;
        let session = world.kernel.session_get(&world.me, &by_key("f")).await.unwrap();
        let origin = session.forked_from.unwrap();
        assert_eq!((session.id, origin.message, session.tip_message), (id, first[2], Some(first[2])));
        assert_eq!(texts(&world, "f").await, ["say one", "one", "say two"], "{name}");
        // The fork sees the path of its source, but no other branches or later messages.
        let nodes = world.tree("f").await.nodes;
        assert_eq!(nodes.iter().map(|node| node.message.id).collect::<Vec<_>>(), first[..3], "{name}");
        // A prompt at the tip of the fork, and a regenerated first answer.
        world.play("f", "say forked").await;
        branch(&world, "f", Place::Regenerate { message_id: first[0] }, "").await;
        branch(&world, "f", Place::Edit { message_id: first[1] }, "say own").await;
        assert_eq!(texts(&world, "f").await, ["say one", "one", "say own", "own"], "{name}");
        assert_eq!(navigate(&world, "f", Some(first[2])).await.unwrap(), {
            let nodes = world.tree("f").await.nodes;
            nodes.iter().find(|node| node.message.text() == "forked\n").map(|node| node.message.id)
        });
        assert_eq!(world.tree("a").await, source, "{name}: its source is as it was");
        // The source does not see messages of the fork either.
        let forked = world.tree("f").await;
        navigate(&world, "a", Some(first[3])).await.unwrap();
        world.play("a", "say on").await;
        branch(&world, "a", Place::Regenerate { message_id: first[2] }, "").await;
        assert_eq!(world.tree("f").await, forked, "{name}");
        // The fork does not see later messages of the source.
        let later = world.path("a").await.last().unwrap().id;
        assert_eq!(navigate(&world, "f", Some(later)).await.unwrap_err().code(), "not_found");
        assert_eq!(navigate(&world, "f", Some(first[3])).await.unwrap_err().code(), "not_found");
    }
}

#[tokio::test]
async fn a_fork_of_a_fork_outlives_its_sources_and_deleting_lists_the_forks() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let first = create_tree(&world).await;
        let second = fork(&world, "a", first[3], "f").await.unwrap();
        world.play("f", "say forked").await;
        let tip = world.path("f").await.last().unwrap().id;
        let third = fork(&world, "f", tip, "g").await.unwrap();
        fork(&world, "g", first[1], "h").await.unwrap();
        let seen = texts(&world, "g").await;
        for (key, forks) in [("a", vec![second]), ("f", vec![third])] {
            let deleted = world.kernel.session_delete(&world.me, &by_key(key)).await.unwrap();
            assert_eq!(deleted.forks, forks, "{}", world.disk.name);
            // The purge runs in the background and is finished when the kernel stops.
        }
        with_timeout(world.kernel.shutdown()).await;
        let world = World::reboot(&world.disk).await;
        with_timeout(world.advance_until(10, async {
            while !world.disk.store.unfinished().await.unwrap().deleted.is_empty() {
                tokio::task::yield_now().await;
            }
        }))
        .await;
        assert_eq!(texts(&world, "g").await, seen);
        assert_eq!(texts(&world, "h").await, ["say one", "one"]);
        world.play("g", "say on").await;
        branch(&world, "g", Place::Regenerate { message_id: first[0] }, "").await;
        assert_eq!(texts(&world, "g").await, ["say one", "one"], "{}", world.disk.name);
    }
}

#[tokio::test]
async fn repeated_forks_under_one_key_create_one_fork() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let first = create_tree(&world).await;
        let ask = async |message, key: Option<&str>, idempotency: &str| {
            let request = ForkRequest { message, key: key.map(str::to_owned), title: Some("mine".into()) };
            world.kernel.session_fork(&world.me, &by_key("a"), request, Some(idempotency)).await
        };
        let (made, fresh) = ask(first[1], Some("f"), "k1").await.unwrap();
        let (again, replayed) = ask(first[1], Some("f"), "k1").await.unwrap();
        assert_eq!((made.id, fresh, replayed), (again.id, true, false));
        assert_eq!(made.title.as_deref(), Some("mine"));
        assert_eq!(ask(first[3], Some("f"), "k1").await.unwrap_err().code(), "request_conflict");
        assert_eq!(ask(first[3], Some("f"), "k2").await.unwrap_err().code(), "already_exists");
        assert_eq!(ask(first[3], Some("no/key"), "k3").await.unwrap_err().code(), "invalid_request");
        assert!(ask(first[3], None, "k2").await.unwrap().1, "a name that was refused is free");
    }
}

#[tokio::test]
async fn messages_of_an_active_run_cannot_be_forked() {
    for disk in every_store() {
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let world = World::with(disk, Options::default(), vec![adapter]).await;
        let first = create_tree(&world).await;
        let run = world.send(puppet_request("a", "work")).await.unwrap().run;
        let execution = control.next().await;
        let prompt = run.prompt.unwrap();
        let busy = Error::Busy { status: RunStatus::Running };
        assert_eq!(fork(&world, "a", prompt, "f").await.unwrap_err(), busy);
        fork(&world, "a", first[3], "f").await.unwrap();
        execution.end(End::succeeded());
        world.ended(run.id).await;
        fork(&world, "a", prompt, "g").await.unwrap();
        assert_eq!(texts(&world, "g").await.last().unwrap(), "work");
    }
}

fn call(id: &str) -> Record {
    Record::Message { blocks: vec![Block::tool_use(id, "add", serde_json::json!({}))], usage: None }
}

#[tokio::test]
async fn unanswered_tool_calls_get_results_before_the_next_prompt() {
    for disk in every_store() {
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let world = World::with(disk, Options::default(), vec![adapter]).await;
        let run = world.send(puppet_request("a", "work")).await.unwrap().run;
        let execution = control.next().await;
        execution.handle.record(vec![call("t1")]).await.unwrap();
        execution.end(End::succeeded());
        world.ended(run.id).await;
        // A stopped turn gets results for its tool calls. A fork may start before these.
        let asked = world.path("a").await[1].clone();
        assert_eq!(asked.tool_calls().len(), 1);
        fork(&world, "a", asked.id, "f").await.unwrap();
        let script = |key, place| RunRequest { adapter: Some("script".into()), ..at(key, place, "say on") };
        let forked = world.send(script("f", Place::Tip)).await.unwrap().run;
        world.ended(forked.id).await;
        let edited = world.send(script("a", Place::Edit { message_id: asked.id })).await.unwrap().run;
        let edited = world.ended(edited.id).await;
        assert_eq!(edited.state.status(), RunStatus::Succeeded);
        for key in ["f", "a"] {
            let path = world.path_text(key).await;
            insta::allow_duplicates! {
                insta::assert_snapshot!(path, @r#"
                user completed "work"
                assistant completed call add
                user completed result "no result: the conversation went on without it" error=true
                user completed "say on"
                assistant completed "on\n"
                "#);
            }
        }
    }
}

#[tokio::test]
async fn a_failed_branch_that_succeeds_in_a_retry_is_no_longer_abandoned() {
    for disk in every_store() {
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let world = World::with(disk, Options::default(), vec![adapter]).await;
        let first = create_tree(&world).await;
        let edit = RunRequest { place: Place::Edit { message_id: first[1] }, ..puppet_request("a", "try") };
        let run = world.send(edit).await.unwrap().run;
        let failure = mainspring_core::Failure::new("broken", "it broke");
        control.next().await.end(End::failed(failure, false));
        world.ended(run.id).await;
        let prompt = run.prompt.unwrap();
        let abandoned =
            async |id| world.tree("a").await.nodes.iter().any(|node| node.message.id == id && node.abandoned);
        assert!(abandoned(prompt).await);
        // The session navigates elsewhere in the meantime.
        navigate(&world, "a", Some(first[3])).await.unwrap();
        let retried = world.kernel.run_retry(&world.me, run.id, RunChange::default()).await.unwrap();
        let execution = control.next().await;
        execution.handle.delta(0, "now it works").unwrap();
        execution.end(End::succeeded());
        world.ended(retried.id).await;
        let name = world.disk.name;
        assert_eq!(texts(&world, "a").await, ["say one", "one", "try", "now it works"], "{name}");
        assert!(!abandoned(prompt).await, "{name}");
        let tip = world.path("a").await.last().unwrap().id;
        assert_eq!(
            navigate(&world, "a", Some(first[0])).await.unwrap(),
            Some(tip),
            "{name}: the cursors lead there"
        );
        branch(&world, "a", Place::Regenerate { message_id: prompt }, "").await;
    }
}

/// Crashes a process during a run. Returns, for each store, the path that the next process reads, and the
/// messages that are abandoned or contain `work`.
fn crash_during(place: impl Fn(&[MessageId]) -> Place, text: &str) -> Vec<(String, Vec<String>)> {
    let mut found = vec![];
    for disk in every_store() {
        run_process(async {
            let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
            let world = World::with(disk.clone(), Options::default(), vec![adapter]).await;
            let first = create_tree(&world).await;
            navigate(&world, "a", Some(first[3])).await.unwrap();
            let place = place(&first);
            let prompt = if text.is_empty() { vec![] } else { vec![Block::text(text)] };
            let request = RunRequest { place, prompt, ..puppet_request("a", "") };
            world.send(request).await.unwrap();
            let execution = control.next().await;
            execution
                .handle
                .record(vec![
                    call("t1"),
                    Record::ToolStarted {
                        tool_use_id: "t1".into(),
                        name: "add".into(),
                        input: None,
                        decided_by: None,
                    },
                ])
                .await
                .unwrap();
            let result = Block::tool_result("t1", "add", vec![Block::text("3")], false);
            execution
                .handle
                .record(vec![
                    Record::ToolCompleted { tool_use_id: "t1".into(), content: vec![] },
                    Record::ToolResults { blocks: vec![result] },
                ])
                .await
                .unwrap();
            execution
                .handle
                .record(vec![
                    call("t2"),
                    Record::ToolStarted {
                        tool_use_id: "t2".into(),
                        name: "add".into(),
                        input: None,
                        decided_by: None,
                    },
                ])
                .await
                .unwrap();
            execution.handle.delta(0, "half a sen").unwrap();
        });
        run_process(async {
            let world = World::reboot(&disk).await;
            let tree = world.tree("a").await;
            let left =
                tree.nodes.iter().filter(|node| node.abandoned || node.message.text().contains("work"));
            let left = left.map(|node| message_text(&node.message)).collect();
            found.push((texts(&world, "a").await.join(" | "), left));
            // The session loads and continues.
            assert_eq!(world.play("a", "say on").await.state.status(), RunStatus::Succeeded);
            let path = world.path("a").await;
            let owed = path.windows(2).filter(|pair| !pair[0].tool_calls().is_empty());
            assert!(owed.clone().all(|pair| pair[1].role == Role::User), "every call has a result: {path:?}");
        });
    }
    found
}

#[test]
fn a_crash_during_a_branch_keeps_the_path_and_all_finished_results() {
    let regenerated = crash_during(|first| Place::Regenerate { message_id: first[2] }, "");
    let edited = crash_during(|first| Place::Edit { message_id: first[1] }, "work");
    for ((path, left), prompt) in
        regenerated.iter().map(|found| (found, 0)).chain(edited.iter().map(|found| (found, 1)))
    {
        assert_eq!(path, "say one | one | say two | two");
        assert_eq!(left.len(), 5 + prompt, "{left:?}");
        assert!(
            left[prompt].contains("call add") && left[prompt + 1].contains("\"3\" error=false"),
            "{left:?}"
        );
        assert!(left[prompt + 3].contains("outcome unknown"), "{left:?}");
        assert!(left[prompt + 4].contains("executor_lost"), "{left:?}");
    }
}

#[test]
fn a_crash_during_a_tool_loop_keeps_the_prompt_and_all_finished_results() {
    for (path, _) in crash_during(|_| Place::Tip, "work") {
        assert!(path.starts_with("say one | one | say two | two | work |"), "{path}");
    }
}

fn fork_request(message: MessageId) -> ForkRequest {
    ForkRequest { message, key: Some("f".into()), title: None }
}

/// Forks a session in a process that dies after `steps` polls of the fork, or that completes the fork if there is no limit.
/// Returns the tip of the session.
fn die_during_fork(disk: &Disk, steps: Option<usize>) -> MessageId {
    run_process(async {
        let world = World::on(disk.clone()).await;
        let first = create_tree(&world).await;
        navigate(&world, "a", Some(first[3])).await.unwrap();
        let from = by_key("a");
        let mut fork = Box::pin(world.kernel.session_fork(&world.me, &from, fork_request(first[1]), None));
        for _ in 0..steps.unwrap_or(usize::MAX) {
            let poll = |context: &mut Context<'_>| Poll::Ready(fork.as_mut().poll(context).is_ready());
            if std::future::poll_fn(poll).await {
                break;
            }
            tokio::task::yield_now().await;
        }
        first[3]
    })
}

/// Checks in the next process that the fork is complete or can be made. Returns whether it was there.
fn check_after_fork(disk: &Disk, tip: MessageId) -> bool {
    run_process(async {
        let world = World::reboot(disk).await;
        assert_eq!(texts(&world, "a").await.join(" | "), "say one | one | say two | two");
        assert_eq!(world.path("a").await.last().map(|message| message.id), Some(tip));
        let is_made = world.kernel.session_get(&world.me, &by_key("f")).await.is_ok();
        if !is_made {
            let request = fork_request(world.path("a").await[1].id);
            world.kernel.session_fork(&world.me, &by_key("a"), request, None).await.unwrap();
        }
        assert_eq!(texts(&world, "f").await.join(" | "), "say one | one");
        for key in ["a", "f"] {
            assert_eq!(world.play(key, "say on").await.state.status(), RunStatus::Succeeded);
        }
        is_made
    })
}

#[test]
fn a_crash_during_a_fork_leaves_a_complete_fork_or_none() {
    const STEPS: usize = 40;
    for name in ["memory", "sqlite"] {
        let made: Vec<bool> = (0..STEPS)
            .map(|steps| {
                let disk = every_store().into_iter().find(|disk| disk.name == name).unwrap();
                let tip = die_during_fork(&disk, (steps + 1 < STEPS).then_some(steps));
                check_after_fork(&disk, tip)
            })
            .collect();
        assert!(made.contains(&true) && made.contains(&false), "{name}: both were seen: {made:?}");
    }
}

#[tokio::test]
async fn usage_includes_abandoned_branches() {
    for disk in every_store() {
        let world = World::on(disk).await;
        world.play("a", "usage 1 2; say one").await;
        let user = world.path("a").await[0].id;
        branch(&world, "a", Place::Regenerate { message_id: user }, "").await;
        let failed = branch(&world, "a", Place::Root, "usage 10 20; say lost; fail").await;
        assert_eq!((failed.state.status(), failed.usage.input_tokens), (RunStatus::Failed, 10));
        let runs = world.kernel.run_list(&world.me, Default::default()).await.unwrap().items;
        let sum: u64 = runs.iter().map(|run| run.usage.input_tokens + run.usage.output_tokens).sum();
        assert_eq!(sum, 36);
    }
}

async fn title(world: &World, key: &str) -> Option<String> {
    world.kernel.session_get(&world.me, &by_key(key)).await.unwrap().title
}

#[tokio::test]
async fn a_session_is_titled_after_its_first_turn_unless_a_user_titled_it() {
    for disk in every_store() {
        let world = World::on(disk).await;
        world.play("a", "fail for good").await;
        assert_eq!(title(&world, "a").await, None, "that turn was not completed");
        world.play("a", "say hello to the many people of the world, one by one, and then rest").await;
        let named = "say hello to the many people of the world, one by…";
        assert_eq!(title(&world, "a").await.as_deref(), Some(named));
        world.play("a", "say something else").await;
        assert_eq!(title(&world, "a").await.as_deref(), Some(named), "{}", world.disk.name);
        let rename = |title: Option<&str>| SessionPatch {
            title: Some(title.map(str::to_owned)),
            ..SessionPatch::default()
        };
        world.kernel.session_patch(&world.me, &by_key("a"), rename(None)).await.unwrap();
        world.play("a", "say again").await;
        assert_eq!(title(&world, "a").await, None, "no title is a person's choice too");
        let before = world.events("a").await.len();
        world.kernel.session_patch(&world.me, &by_key("a"), rename(None)).await.unwrap();
        assert_eq!(world.events("a").await.len(), before, "a same-value set writes nothing");
    }
}

#[tokio::test]
async fn an_agent_may_title_a_session_that_no_user_has_titled() {
    let disk = Disk::memory();
    let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
    let options = Options { auto_title: false, ..Options::default() };
    let world = World::with(disk, options, vec![adapter]).await;
    let run = world.send(puppet_request("a", "work")).await.unwrap().run;
    let execution = control.next().await;
    execution.handle.record(vec![Record::Title { title: " About\nwork ".into() }]).await.unwrap();
    execution.end(End::succeeded());
    world.ended(run.id).await;
    assert_eq!(title(&world, "a").await.as_deref(), Some("About work"));
    world.play("b", "say hi").await;
    assert_eq!(title(&world, "b").await, None, "no title is set if titling is off");
}

#[tokio::test]
async fn pins_are_stored_and_listed() {
    for disk in every_store() {
        let world = World::on(disk).await;
        for key in ["a", "b", "c"] {
            world.play(key, "say hi").await;
        }
        let pin = |pinned| SessionPatch { pinned: Some(pinned), ..SessionPatch::default() };
        for key in ["a", "c"] {
            world.kernel.session_patch(&world.me, &by_key(key), pin(true)).await.unwrap();
        }
        world.kernel.session_patch(&world.me, &by_key("c"), pin(false)).await.unwrap();
        for (pinned, keys) in
            [(Some(true), vec!["a"]), (Some(false), vec!["c", "b"]), (None, vec!["c", "b", "a"])]
        {
            let query = mainspring_kernel::kernel::SessionQuery { pinned, ..Default::default() };
            let listed = world.kernel.session_list(&world.me, query).await.unwrap().items;
            let mut found: Vec<_> = listed.into_iter().filter_map(|(session, _)| session.key).collect();
            found.sort();
            let mut keys = keys;
            keys.sort_unstable();
            assert_eq!(found, keys, "{}", world.disk.name);
        }
    }
}

#[tokio::test]
async fn a_paused_branch_that_is_cancelled_is_rolled_back() {
    for disk in every_store() {
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let world = World::with(disk, Options::default(), vec![adapter]).await;
        let first = create_tree(&world).await;
        let before = (world.path("a").await, world.cursors("a").await);
        let request =
            RunRequest { place: Place::Edit { message_id: first[1] }, ..puppet_request("a", "wait") };
        let run = world.send(request).await.unwrap().run;
        control.next().await.end(Executed::Waiting(question(mainspring_core::WaitRequest::Approval, None)));
        world.wait_for_question(run.id).await;
        world.kernel.run_cancel(&world.me, run.id).await.unwrap();
        assert_eq!(world.ended(run.id).await.state.status(), RunStatus::Cancelled);
        assert_eq!((world.path("a").await, world.cursors("a").await), before, "{}", world.disk.name);
        let by_id = SessionRef::Id(run.session);
        let prompt = world.kernel.session_message(&world.me, &by_id, run.prompt.unwrap()).await.unwrap();
        assert!(prompt.node.abandoned && prompt.siblings.is_empty(), "it stays in the log, off the path");
    }
}

#[tokio::test]
async fn a_store_fault_is_an_error_and_the_session_continues() {
    for fault in [Fault::CommitFails, Fault::OutcomeUnknown] {
        for disk in every_store() {
            let world = World::on(disk).await;
            let first = create_tree(&world).await;
            let before = (world.tree("a").await, world.events("a").await);
            world.disk.inject_fault(fault);
            let moved = world.advance_until(20, navigate(&world, "a", Some(first[3]))).await;
            world.disk.inject_fault(fault);
            let forked = world.advance_until(20, fork(&world, "a", first[1], "f")).await;
            let name = world.disk.name;
            if fault == Fault::CommitFails {
                let codes = (moved.unwrap_err().code(), forked.unwrap_err().code());
                assert_eq!(codes, ("unavailable", "unavailable"), "{name}");
                assert_eq!(
                    (world.tree("a").await, world.events("a").await),
                    before,
                    "{name}: nothing changed"
                );
                navigate(&world, "a", Some(first[3])).await.unwrap();
                fork(&world, "a", first[1], "f").await.unwrap();
            } else {
                assert!(moved.is_ok() && forked.is_ok(), "{name}: the committed change is reported as done");
            }
            assert_eq!(texts(&world, "a").await, ["say one", "one", "say two", "two"], "{name}");
            assert_eq!(texts(&world, "f").await, ["say one", "one"], "{name}");
            world.play("a", "say on").await;
        }
    }
}
