//! Export and import of sessions: exact round trips, and errors that name the line.

use mainspring_core::{Block, MessageId, Place, Session};
use mainspring_kernel::adapter::{End, Record};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::kernel::{Caller, ForkRequest, RunRequest, SessionPatch};
use mainspring_kernel::store::SessionRef;
use mainspring_kernel::{Error, Options};
use mainspring_store::Fault;
use serde_json::{Value, json};

use crate::puppet::{PuppetBehavior, puppet, puppet_request};
use crate::world::{Disk, NOW, World, by_key, every_store, run_process, with_timeout};

pub(crate) async fn export(world: &World, key: &str) -> String {
    let mut export = world.kernel.session_export(&world.me, &by_key(key)).await.unwrap();
    let mut file = String::new();
    while let Some(lines) = export.next().await.unwrap() {
        file += &lines;
    }
    file
}

async fn import_as(world: &World, caller: &Caller, file: &str) -> Result<Session, Error> {
    let mut import = world.kernel.session_import(caller)?;
    // In chunks that are not aligned with lines.
    for piece in file.as_bytes().chunks(777) {
        import.push(piece).await?;
    }
    import.finish().await
}

pub(crate) async fn import(world: &World, file: &str) -> Result<Session, Error> {
    import_as(world, &world.me, file).await
}

impl World {
    /// Waits until the remains of refused imports are removed.
    pub(crate) async fn settled(&self) {
        with_timeout(async {
            while !self.disk.store.unfinished().await.unwrap().deleted.is_empty() {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

async fn branch(world: &World, place: Place, script: &str) {
    let prompt = if script.is_empty() { vec![] } else { vec![Block::text(script)] };
    let run = world.send(RunRequest { place, prompt, ..RunRequest::text("a", "") }).await.unwrap().run;
    world.ended(run.id).await;
}

/// Creates a session with branches, an abandoned branch, tools, a failure, and a prompt that was never started.
async fn create_full_session(world: &World) -> Vec<MessageId> {
    world.play("a", "usage 1 2; say one ü \\; two").await;
    world.play("a", r#"say look; tool add {"a": 1, "b": 2}; say done"#).await;
    let first: Vec<_> = world.path("a").await.iter().map(|message| message.id).collect();
    branch(world, Place::Regenerate { message_id: first[0] }, "").await;
    branch(world, Place::Edit { message_id: first[1] }, "say lost; fail for good").await;
    branch(world, Place::Root, "say root").await;
    world.kernel.session_navigate(&world.me, &by_key("a"), Some(first[2]), None).await.unwrap();
    world.play("a", "say part; fail for good").await;
    let run = world.prompt("a", "hang").await;
    let never = world.prompt("a", "say never").await;
    for run in [never.id, run.id] {
        world.kernel.run_cancel(&world.me, run).await.unwrap();
        world.ended(run).await;
    }
    let patch =
        SessionPatch { pinned: Some(true), metadata: Some(json!({"k": [1]})), ..SessionPatch::default() };
    world.kernel.session_patch(&world.me, &by_key("a"), patch).await.unwrap();
    first
}

#[tokio::test]
async fn an_imported_session_equals_the_exported_one() {
    for from in every_store() {
        let world = World::on(from).await;
        let first = create_full_session(&world).await;
        let file = export(&world, "a").await;
        assert_eq!(export(&world, "a").await, file, "the same session is the same file");
        for to in every_store() {
            let there = World::on(to).await;
            let session = import(&there, &file).await.unwrap();
            assert_eq!(export(&there, "a").await, file, "{} to {}", world.disk.name, there.disk.name);
            let mut known = world.kernel.session_get(&world.me, &by_key("a")).await.unwrap();
            (known.tip, known.base) = (session.tip, session.base);
            assert_eq!(there.kernel.session_get(&there.me, &by_key("a")).await.unwrap(), known);
            assert_eq!(there.tree("a").await, world.tree("a").await);
            assert_eq!(there.path("a").await, world.path("a").await);
            let runs = async |world: &World| {
                let mut runs = world.kernel.run_list(&world.me, Default::default()).await.unwrap().items;
                runs.iter_mut().for_each(|run| run.pen = None);
                runs
            };
            assert_eq!(runs(&there).await, runs(&world).await);
            let told = async |world: &World| {
                let mut events = world.events("a").await;
                events.iter_mut().for_each(|event| event.cursor = mainspring_core::Cursor::START);
                events
            };
            assert_eq!(told(&there).await, told(&world).await);
            // The session continues like the original.
            there.kernel.session_navigate(&there.me, &by_key("a"), Some(first[0]), None).await.unwrap();
            there.play("a", "say more").await;
            let refused = import(&there, &file).await.unwrap_err();
            assert_eq!(refused.code(), "already_exists");
        }
        assert_eq!(import(&world, &file).await.unwrap_err().code(), "already_exists");
    }
}

#[tokio::test]
async fn the_export_of_a_fork_is_complete() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let first = create_full_session(&world).await;
        let fork = ForkRequest { message: first[2], key: Some("f".into()), title: None };
        let (fork, _) = world.kernel.session_fork(&world.me, &by_key("a"), fork, None).await.unwrap();
        world.play("f", "say forked").await;
        let file = export(&world, "f").await;
        assert!(!file.contains("say root"), "messages the fork does not see are not exported");
        let there = World::on(Disk::sqlite()).await;
        let session = import(&there, &file).await.unwrap();
        assert_eq!((session.id, session.forked_from), (fork.id, fork.forked_from));
        assert_eq!(export(&there, "f").await, file, "{}", world.disk.name);
        assert_eq!(there.tree("f").await, world.tree("f").await);
        there.play("f", "say on").await;
        // If the source exists, its messages are not moved to the imported fork.
        let id = SessionRef::Id(fork.id);
        world.kernel.session_delete(&world.me, &id).await.unwrap();
        with_timeout(async {
            while world.disk.store.session_exists(fork.id).await.unwrap() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let source = world.tree("a").await;
        let refused = import(&world, &file).await.unwrap_err();
        assert!(
            matches!(&refused, Error::BadImport { reason, .. } if reason.contains("exists already")),
            "{refused}"
        );
        assert_eq!(world.tree("a").await, source);
        let found = there
            .kernel
            .session_search(
                &there.me,
                &mainspring_kernel::kernel::SearchQuery { text: "look".into(), ..Default::default() },
            )
            .await
            .unwrap();
        assert!(found.hits.iter().all(|hit| hit.session_id == fork.id) && !found.hits.is_empty());
    }
}

#[tokio::test]
async fn a_busy_session_is_not_exported_and_a_change_aborts_the_export() {
    let world = World::on(Disk::memory()).await;
    create_full_session(&world).await;
    let mut export = world.kernel.session_export(&world.me, &by_key("a")).await.unwrap();
    export.next().await.unwrap();
    world.play("a", "say meanwhile").await;
    let broke = async {
        loop {
            match export.next().await {
                Ok(Some(lines)) => assert!(!lines.contains(r#""kind":"end""#)),
                Ok(None) => panic!("it ended as if it were whole"),
                Err(error) => return error,
            }
        }
    };
    assert_eq!(with_timeout(broke).await.code(), "version_conflict");
    world.prompt("a", "hang").await;
    let busy = world.kernel.session_export(&world.me, &by_key("a")).await.err().unwrap();
    assert_eq!(busy.code(), "session_busy");
}

/// Returns the file with one value of one line changed.
pub(crate) fn changed(file: &str, line: usize, path: &str, to: &Value) -> String {
    let mut lines: Vec<String> = file.lines().map(str::to_owned).collect();
    let mut value: Value = serde_json::from_str(&lines[line - 1]).unwrap();
    let (above, name) = path.rsplit_once('/').unwrap();
    value.pointer_mut(above).unwrap()[name] = to.clone();
    lines[line - 1] = value.to_string();
    join_lines(&lines)
}

pub(crate) fn join_lines<T: AsRef<str>>(lines: &[T]) -> String {
    lines.iter().map(|line| line.as_ref().to_owned() + "\n").collect()
}

/// Invalid variants of a file: the defect, the line of the expected error, the file. `foreign` is a message of another owner.
fn invalid_files(file: &str, foreign: &Value) -> Vec<(&'static str, usize, String)> {
    let lines: Vec<&str> = file.lines().collect();
    let first = |text: &str| 1 + lines.iter().position(|line| line.contains(text)).unwrap();
    let (message, run, event) =
        (first(r#""kind":"message""#), first(r#""kind":"run""#), first(r#""kind":"event""#));
    let (completed, last) = (first("message.completed"), lines.len());
    let id =
        |line: usize| serde_json::from_str::<Value>(lines[line - 1]).unwrap()["message"]["messageId"].clone();
    let nobody = |prefix: &str| json!(format!("{prefix}_00000000000040008000000000000000"));
    let truncated = json!({"eventId": nobody("evt"), "pos": 0, "timestampMs": 0, "type": "message.truncated", "payload": {"pos": 1}});
    let one = [
        ("an unknown kind", message, "/kind", json!("spell")),
        ("another format", 1, "/version", json!(9)),
        ("a foreign owner", 1, "/session/ownerId", json!("eve")),
        ("a foreign org", 1, "/session/orgId", json!("acme")),
        ("a bad key", 1, "/session/key", json!("../x")),
        ("a deleted session", 1, "/session/status", json!("deleted")),
        ("a bad id", 1, "/session/sessionId", json!("ses_1")),
        ("a title too long", 1, "/session/title", json!("x".repeat(999))),
        ("a parent that is not there", message, "/parentId", nobody("msg")),
        ("a message above itself", message, "/parentId", id(message)),
        ("a parent elsewhere", message + 1, "/parentId", foreign.clone()),
        ("a message twice", message + 1, "/message/messageId", id(message)),
        ("a line that is skipped", message, "/line", json!(1)),
        ("a cursor to a root", message, "/followed", json!(true)),
        ("a line half rolled back", message + 1, "/abandoned", json!(true)),
        ("a message being written", message, "/message/status", json!("generating")),
        ("a run of another session", run, "/run/sessionId", nobody("ses")),
        ("a run of another owner", run, "/run/ownerId", json!("eve")),
        ("a run that lives", run, "/run/status", json!("queued")),
        ("a run that ended nowhere", run, "/run/finalMessageId", foreign.clone()),
        ("a version that cannot grow", 1, "/session/version", json!(u64::MAX)),
        ("a run after which there is none", run, "/run/runNo", json!(u32::MAX)),
        ("a position after which there is none", event, "/event/pos", json!(u64::MAX)),
        ("an end that counts too much", last, "/lines", json!(u64::MAX)),
        ("a bad fingerprint", run, "/fingerprint", json!("é".repeat(16))),
        ("an event of a run elsewhere", event + 1, "/event/runId", nobody("run")),
        ("an event of an unknown type", event, "/event/type", json!("session.exploded")),
        ("an event about a message of another owner", completed, "/event/payload/messageId", foreign.clone()),
        ("an event that is never stored", event, "/event", truncated),
    ];
    let mut spoiled: Vec<_> =
        one.into_iter().map(|(what, line, path, to)| (what, line, changed(file, line, path, &to))).collect();
    let swapped = |one: usize, other: usize| {
        let mut lines = lines.clone();
        lines.swap(one - 1, other - 1);
        join_lines(&lines)
    };
    let mut torn = lines.clone();
    torn[2] = "{\"kind\":";
    let mut again = lines.clone();
    again[1] = lines[0];
    spoiled.extend([
        ("nothing at all", 1, String::new()),
        ("no session", 1, join_lines(&lines[1..])),
        ("a line that is torn", 3, join_lines(&torn)),
        ("a second session", 2, join_lines(&again)),
        ("a run before its messages", message + 1, swapped(message + 1, run)),
        ("a run after an event", run + 1, swapped(run, event)),
        ("a stream that runs back", event + 1, changed(file, event, "/event/pos", &json!(1_000_000_000))),
        ("a file cut off", last, join_lines(&lines[..last - 1])),
        ("a line lost", last - 1, join_lines(&[&lines[..last - 2], &lines[last - 1..]].concat())),
        ("something after the end", last + 1, format!("{file}{}\n", lines[1])),
        ("a tip that is not there", last + 1, changed(file, 1, "/session/tipMessageId", foreign)),
    ]);
    spoiled
}

#[tokio::test]
async fn an_invalid_file_is_refused_with_the_line_and_leaves_nothing() {
    let world = World::on(Disk::memory()).await;
    create_full_session(&world).await;
    let file = export(&world, "a").await;
    // The target store has sessions already, with other ids that are the same in each run.
    let there = async |disk| {
        let there = World::boot(disk, Options::default(), vec![], Clock::manual(NOW), 77).await;
        there.play("victim", "say mine").await;
        there
    };
    let foreign = json!(there(Disk::memory()).await.path("victim").await[0].id);
    for (what, line, file) in invalid_files(&file, &foreign) {
        for disk in every_store() {
            let there = there(disk).await;
            let before = there.tree("victim").await;
            let error = import(&there, &file).await.expect_err(what);
            assert!(
                matches!(error, Error::BadImport { line: at, .. } if at == line as u64),
                "{what}: {error}"
            );
            assert_eq!(
                there.kernel.session_list(&there.me, Default::default()).await.unwrap().len(),
                1,
                "{what}"
            );
            assert_eq!(there.tree("victim").await, before, "{what}");
            there.settled().await;
        }
    }
}

#[tokio::test]
async fn a_line_over_the_limit_is_refused() {
    let options = Options::default();
    let limit = options.limits.message_bytes * 6 + (64 << 10);
    let world = World::with(Disk::memory(), options, vec![]).await;
    let mut import = world.kernel.session_import(&world.me).unwrap();
    let piece = vec![b' '; 1 << 20];
    let refused = async {
        for _ in 0..=limit / piece.len() {
            import.push(&piece).await?;
        }
        Ok::<_, Error>(())
    };
    assert_eq!(refused.await.unwrap_err().code(), "too_large");
}

#[test]
fn an_import_cut_off_by_a_crash_leaves_nothing() {
    for disk in every_store() {
        let file = run_process(async {
            let world = World::on(Disk::memory()).await;
            create_full_session(&world).await;
            export(&world, "a").await
        });
        let half = &file[..file.len() / 2];
        let id = run_process(async {
            let world = World::on(disk.clone()).await;
            let mut import = world.kernel.session_import(&world.me).unwrap();
            import.push(half.as_bytes()).await.unwrap();
            assert!(
                world.kernel.session_get(&world.me, &by_key("a")).await.is_err(),
                "an unfinished import is not visible"
            );
            let deleted = world.disk.store.unfinished().await.unwrap().deleted;
            // A crash, as by kill -9: the next process cleans up.
            std::mem::forget(import);
            deleted[0]
        });
        run_process(async {
            let world = World::reboot(&disk).await;
            with_timeout(async {
                while world.disk.store.session_exists(id).await.unwrap() {
                    tokio::task::yield_now().await;
                }
            })
            .await;
            assert_eq!(import(&world, &file).await.unwrap().id, id, "{}", disk.name);
            assert_eq!(export(&world, "a").await, file);
        });
    }
}

#[tokio::test]
async fn thoughts_are_not_exported() {
    let disk = Disk::memory();
    let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
    let world = World::with(disk, Options::default(), vec![adapter]).await;
    let run = world.send(puppet_request("a", "work")).await.unwrap().run;
    let execution = control.next().await;
    execution.handle.thought("a secret thought").unwrap();
    let blocks = vec![Block::Thinking {}, Block::text("said")];
    execution.handle.record(vec![Record::Message { blocks, usage: None }]).await.unwrap();
    execution.end(End::succeeded());
    world.ended(run.id).await;
    let file = export(&world, "a").await;
    assert!(file.contains("said") && !file.contains("secret thought"));
}

/// Imports `file` while the store fails at the first commit, or at the last. The import is complete or leaves nothing, and
/// can be repeated.
async fn import_with_fault(disk: Disk, file: &str, fault: Fault, at_last_commit: bool) {
    let there = World::on(disk).await;
    let name = there.disk.name;
    let mut import_ = there.kernel.session_import(&there.me).unwrap();
    if !at_last_commit {
        there.disk.inject_fault(fault);
    }
    let pushed = import_.push(file.as_bytes()).await;
    if at_last_commit {
        there.disk.inject_fault(fault);
    }
    let outcome = match pushed {
        Ok(()) => import_.finish().await,
        Err(error) => {
            drop(import_);
            Err(error)
        }
    };
    match outcome {
        Ok(_) => assert_eq!(export(&there, "a").await, file, "{name}"),
        Err(error) => {
            assert_eq!(error.code(), "unavailable", "{name}");
            assert!(there.kernel.session_get(&there.me, &by_key("a")).await.is_err(), "{name}");
        }
    }
    let _ = there.kernel.session_delete(&there.me, &by_key("a")).await;
    let purged = async {
        while !there.disk.store.unfinished().await.unwrap().deleted.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    with_timeout(purged).await;
    let again = async {
        loop {
            match import(&there, file).await {
                Err(Error::AlreadyExists { .. }) => tokio::task::yield_now().await,
                other => return other,
            }
        }
    };
    assert!(with_timeout(again).await.is_ok(), "{name}: nothing of it is in the way");
    there.kernel.session_delete(&there.me, &by_key("a")).await.unwrap();
    with_timeout(there.kernel.shutdown()).await;
}

#[tokio::test]
async fn an_import_during_store_faults_is_complete_or_leaves_nothing() {
    let world = World::on(Disk::memory()).await;
    create_full_session(&world).await;
    let file = export(&world, "a").await;
    for fault in [Fault::CommitFails, Fault::OutcomeUnknown] {
        for disk in every_store() {
            for at_last_commit in [false, true] {
                import_with_fault(disk.clone(), &file, fault, at_last_commit).await;
            }
        }
    }
}

#[tokio::test]
async fn the_usage_of_a_session_that_is_imported_again_is_that_of_the_file() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let used =
            async || world.kernel.session_view(&world.me, &by_key("a")).await.unwrap().usage.input_tokens;
        world.play("a", "usage 3 1").await;
        let file = export(&world, "a").await;
        world.play("a", "usage 4 1").await;
        assert_eq!(used().await, 7, "{}", world.disk.name);
        world.kernel.session_delete(&world.me, &by_key("a")).await.unwrap();
        world.settled().await;
        import(&world, &file).await.unwrap();
        assert_eq!(used().await, 3, "{}", world.disk.name);
    }
}
