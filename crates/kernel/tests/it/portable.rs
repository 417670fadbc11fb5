//! Sessions as files: out and in again, exactly; and what is refused, with its line.

use mainspring_core::{Block, MessageId, Place, Session};
use mainspring_kernel::adapter::{End, Record};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::kernel::{Caller, ForkRequest, RunRequest, SessionPatch};
use mainspring_kernel::store::SessionRef;
use mainspring_kernel::{Error, Options};
use serde_json::{Value, json};

use crate::puppet::{Manners, pull, puppet};
use crate::world::{Disk, NOW, World, by, every_store, live, soon};

async fn export(world: &World, key: &str) -> String {
    let mut export = world.kernel.session_export(&world.me, &by(key)).await.unwrap();
    let mut file = String::new();
    while let Some(lines) = export.next().await.unwrap() {
        file += &lines;
    }
    file
}

async fn import_as(world: &World, caller: &Caller, file: &str) -> Result<Session, Error> {
    let mut import = world.kernel.session_import(caller)?;
    // In pieces that have nothing to do with lines.
    for piece in file.as_bytes().chunks(777) {
        import.push(piece).await?;
    }
    import.finish().await
}

async fn import(world: &World, file: &str) -> Result<Session, Error> {
    import_as(world, &world.me, file).await
}

async fn branch(world: &World, place: Place, script: &str) {
    let prompt = if script.is_empty() { vec![] } else { vec![Block::text(script)] };
    let run = world.send(RunRequest { place, prompt, ..RunRequest::text("a", "") }).await.unwrap().run;
    world.ended(run.id).await;
}

/// A session with everything in it: branches, an abandoned one, tools, a failure, a prompt that never began.
async fn lived(world: &World) -> Vec<MessageId> {
    world.play("a", "usage 1 2; say one ü \\; two").await;
    world.play("a", r#"say look; tool add {"a": 1, "b": 2}; say done"#).await;
    let first: Vec<_> = world.path("a").await.iter().map(|message| message.id).collect();
    branch(world, Place::Regenerate { message_id: first[0] }, "").await;
    branch(world, Place::Edit { message_id: first[1] }, "say lost; fail for good").await;
    branch(world, Place::Root, "say root").await;
    world.kernel.session_navigate(&world.me, &by("a"), Some(first[2]), None).await.unwrap();
    world.play("a", "say part; fail for good").await;
    let run = world.prompt("a", "hang").await;
    let never = world.prompt("a", "say never").await;
    for run in [never.id, run.id] {
        world.kernel.run_cancel(&world.me, run).await.unwrap();
        world.ended(run).await;
    }
    let patch =
        SessionPatch { pinned: Some(true), metadata: Some(json!({"k": [1]})), ..SessionPatch::default() };
    world.kernel.session_patch(&world.me, &by("a"), patch).await.unwrap();
    first
}

#[tokio::test]
async fn a_session_comes_back_exactly_as_it_was() {
    for from in every_store() {
        let world = World::on(from).await;
        let first = lived(&world).await;
        let file = export(&world, "a").await;
        assert_eq!(export(&world, "a").await, file, "the same session is the same file");
        for to in every_store() {
            let there = World::on(to).await;
            let session = import(&there, &file).await.unwrap();
            assert_eq!(export(&there, "a").await, file, "{} to {}", world.disk.name, there.disk.name);
            let mut known = world.kernel.session_get(&world.me, &by("a")).await.unwrap();
            (known.tip, known.base) = (session.tip, session.base);
            assert_eq!(there.kernel.session_get(&there.me, &by("a")).await.unwrap(), known);
            assert_eq!(there.tree("a").await, world.tree("a").await);
            assert_eq!(there.path("a").await, world.path("a").await);
            let runs = async |world: &World| {
                let mut runs = world.kernel.run_list(&world.me, Default::default()).await.unwrap();
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
            // It goes on as it would have.
            there.kernel.session_navigate(&there.me, &by("a"), Some(first[0]), None).await.unwrap();
            there.play("a", "say more").await;
            let refused = import(&there, &file).await.unwrap_err();
            assert_eq!(refused.code(), "already_exists");
        }
        assert_eq!(import(&world, &file).await.unwrap_err().code(), "already_exists");
    }
}

#[tokio::test]
async fn the_file_of_a_fork_needs_no_other() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let first = lived(&world).await;
        let fork = ForkRequest { message: first[2], key: Some("f".into()), title: None };
        let (fork, _) = world.kernel.session_fork(&world.me, &by("a"), fork, None).await.unwrap();
        world.play("f", "say forked").await;
        let file = export(&world, "f").await;
        assert!(!file.contains("say root"), "what it does not see is not in it");
        let there = World::on(Disk::sqlite()).await;
        let session = import(&there, &file).await.unwrap();
        assert_eq!((session.id, session.forked_from), (fork.id, fork.forked_from));
        assert_eq!(export(&there, "f").await, file, "{}", world.disk.name);
        assert_eq!(there.tree("f").await, world.tree("f").await);
        there.play("f", "say on").await;
        // Where its source still is, its messages are there already, and are not taken from it.
        let id = SessionRef::Id(fork.id);
        world.kernel.session_delete(&world.me, &id).await.unwrap();
        soon(async {
            while world.disk.store.session_known(fork.id).await.unwrap() {
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
async fn a_busy_session_is_not_exported_and_one_that_changes_breaks_off() {
    let world = World::on(Disk::memory()).await;
    lived(&world).await;
    let mut export = world.kernel.session_export(&world.me, &by("a")).await.unwrap();
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
    assert_eq!(soon(broke).await.code(), "version_conflict");
    world.prompt("a", "hang").await;
    let busy = world.kernel.session_export(&world.me, &by("a")).await.err().unwrap();
    assert_eq!(busy.code(), "session_busy");
}

/// A file with one thing changed.
fn changed(file: &str, line: usize, change: impl FnOnce(&mut Value)) -> String {
    let mut lines: Vec<String> = file.lines().map(str::to_owned).collect();
    let mut value: Value = serde_json::from_str(&lines[line - 1]).unwrap();
    change(&mut value);
    lines[line - 1] = value.to_string();
    lines.join("\n") + "\n"
}

/// The first line of this kind, from 1.
fn first(file: &str, kind: &str) -> usize {
    1 + file.lines().position(|line| line.contains(&format!(r#"{{"kind":"{kind}""#))).unwrap()
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_with_its_line_and_leaves_nothing() {
    let world = World::on(Disk::memory()).await;
    lived(&world).await;
    let file = export(&world, "a").await;
    // Where it is imported to, somebody has written before; the ids there are others, and the same each time.
    let there = async |disk| {
        let there = World::boot(disk, Options::default(), vec![], Clock::manual(NOW), 77).await;
        there.play("victim", "say mine").await;
        there
    };
    let other = export(&there(Disk::memory()).await, "victim").await;
    let (message, run, event) = (first(&file, "message"), first(&file, "run"), first(&file, "event"));
    let last = file.lines().count();
    let foreign: Value = serde_json::from_str(other.lines().nth(1).unwrap()).unwrap();
    let foreign = foreign["message"]["messageId"].clone();
    let completed = 1 + file.lines().position(|line| line.contains("message.completed")).unwrap();
    let swapped: Vec<&str> = {
        let mut lines: Vec<&str> = file.lines().collect();
        lines.swap(run - 1, message);
        lines
    };
    let cases: Vec<(&str, usize, String)> = vec![
        ("nothing at all", 1, String::new()),
        ("no session", 1, file.lines().skip(1).collect::<Vec<_>>().join("\n")),
        ("not JSON", 3, file.replacen(file.lines().nth(2).unwrap(), "{\"kind\":", 1)),
        ("an unknown kind", 2, changed(&file, message, |line| line["kind"] = json!("spell"))),
        ("another format", 1, changed(&file, 1, |line| line["version"] = json!(9))),
        ("a foreign owner", 1, changed(&file, 1, |line| line["session"]["ownerId"] = json!("eve"))),
        ("a foreign org", 1, changed(&file, 1, |line| line["session"]["orgId"] = json!("acme"))),
        ("a bad key", 1, changed(&file, 1, |line| line["session"]["key"] = json!("../x"))),
        ("a deleted session", 1, changed(&file, 1, |line| line["session"]["status"] = json!("deleted"))),
        ("a bad id", 1, changed(&file, 1, |line| line["session"]["sessionId"] = json!("ses_1"))),
        ("a title too long", 1, changed(&file, 1, |line| line["session"]["title"] = json!("x".repeat(999)))),
        (
            "a second session",
            2,
            changed(&file, 2, |line| *line = serde_json::from_str(file.lines().next().unwrap()).unwrap()),
        ),
        (
            "a parent that comes later",
            message,
            changed(&file, message, |line| line["parentId"] = json!(MessageId::from_random([1; 16]))),
        ),
        (
            "a message above itself",
            message,
            changed(&file, message, |line| line["parentId"] = line["message"]["messageId"].clone()),
        ),
        (
            "a parent elsewhere",
            message + 1,
            changed(&file, message + 1, |line| line["parentId"] = foreign.clone()),
        ),
        (
            "a message twice",
            message + 1,
            changed(&file, message + 1, |line| {
                line["message"]["messageId"] =
                    serde_json::from_str::<Value>(file.lines().nth(message - 1).unwrap()).unwrap()["message"]
                        ["messageId"]
                        .clone()
            }),
        ),
        ("a line that is skipped", message, changed(&file, message, |line| line["line"] = json!(1))),
        ("a cursor to a root", message, changed(&file, message, |line| line["followed"] = json!(true))),
        (
            "a message being written",
            message,
            changed(&file, message, |line| line["message"]["status"] = json!("generating")),
        ),
        (
            "a run of another session",
            run,
            changed(&file, run, |line| {
                line["run"]["sessionId"] = json!("ses_00000000000040008000000000000000")
            }),
        ),
        ("a run of another owner", run, changed(&file, run, |line| line["run"]["ownerId"] = json!("eve"))),
        (
            "a run that lives",
            run,
            changed(&file, run, |line| {
                line["run"]["status"] = json!("queued");
            }),
        ),
        (
            "a run that ended nowhere",
            run,
            changed(&file, run, |line| line["run"]["finalMessageId"] = foreign.clone()),
        ),
        ("a bad fingerprint", run, changed(&file, run, |line| line["fingerprint"] = json!("é".repeat(16)))),
        (
            "an event of a run elsewhere",
            event + 1,
            changed(&file, event + 1, |line| {
                line["event"]["runId"] = json!("run_00000000000040008000000000000000")
            }),
        ),
        (
            "an event of an unknown type",
            event,
            changed(&file, event, |line| line["event"]["type"] = json!("session.exploded")),
        ),
        (
            "somebody else's message",
            completed,
            changed(&file, completed, |line| line["event"]["payload"]["messageId"] = foreign.clone()),
        ),
        (
            "what is never stored",
            event,
            changed(
                &file,
                event,
                |line| line["event"] = json!({"eventId": "evt_00000000000040008000000000000000", "pos": 0, "timestampMs": 0, "type": "message.truncated", "payload": {"pos": 1}}),
            ),
        ),
        (
            "a stream that runs back",
            last - 1,
            changed(&file, event, |line| line["event"]["pos"] = json!(1_000_000_000))
                .lines()
                .map(|line| line.to_owned() + "\n")
                .collect(),
        ),
        ("a run before its messages", message + 1, swapped.join("\n")),
        ("a run after an event", run + 1, {
            let mut lines: Vec<&str> = file.lines().collect();
            lines.swap(run - 1, event - 1);
            lines.join("\n")
        }),
        ("a file cut off", last, file.lines().take(last - 1).map(|line| line.to_owned() + "\n").collect()),
        (
            "a line lost",
            last - 1,
            file.lines()
                .enumerate()
                .filter(|(at, _)| *at != last - 2)
                .map(|(_, line)| line.to_owned() + "\n")
                .collect(),
        ),
        ("something after the end", last + 1, format!("{file}{}\n", file.lines().nth(1).unwrap())),
        (
            "a tip that is not there",
            last + 1,
            changed(&file, 1, |line| line["session"]["tipMessageId"] = foreign.clone()),
        ),
    ];
    for (what, line, file) in cases {
        for disk in every_store() {
            let there = there(disk).await;
            let before = there.tree("victim").await;
            let error = import(&there, &file).await.expect_err(what);
            match &error {
                Error::BadImport { line: at, .. } if what != "a stream that runs back" => {
                    assert_eq!(*at, line as u64, "{what}: {error}")
                }
                Error::BadImport { .. } => {}
                other => panic!("{what}: {other}"),
            }
            assert_eq!(
                there.kernel.session_list(&there.me, Default::default()).await.unwrap().len(),
                1,
                "{what}"
            );
            assert_eq!(there.tree("victim").await, before, "{what}");
            // What had come of it is removed.
            soon(async {
                while !there.disk.store.unfinished().await.unwrap().deleted.is_empty() {
                    tokio::task::yield_now().await;
                }
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_line_without_end_is_refused() {
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
fn an_import_that_is_cut_off_by_a_crash_was_never_there() {
    for disk in every_store() {
        let file = live(async {
            let world = World::on(Disk::memory()).await;
            lived(&world).await;
            export(&world, "a").await
        });
        let half = &file[..file.len() / 2];
        let id = live(async {
            let world = World::on(disk.clone()).await;
            let mut import = world.kernel.session_import(&world.me).unwrap();
            import.push(half.as_bytes()).await.unwrap();
            assert!(
                world.kernel.session_get(&world.me, &by("a")).await.is_err(),
                "nobody sees it before it is whole"
            );
            let deleted = world.disk.store.unfinished().await.unwrap().deleted;
            // As by kill -9: what it leaves is left to the next process.
            std::mem::forget(import);
            deleted[0]
        });
        live(async {
            let world = World::reboot(&disk).await;
            soon(async {
                while world.disk.store.session_known(id).await.unwrap() {
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
    let (adapter, mut hands) = puppet(&disk.store, Manners::default());
    let world = World::with(disk, Options::default(), vec![adapter]).await;
    let run = world.send(pull("a", "work")).await.unwrap().run;
    let strings = hands.next().await;
    strings.handle.thought("a secret thought").unwrap();
    let blocks = vec![Block::Thinking {}, Block::text("said")];
    strings.handle.record(vec![Record::Message { blocks, usage: None }]).await.unwrap();
    strings.end(End::succeeded());
    world.ended(run.id).await;
    let file = export(&world, "a").await;
    assert!(file.contains("said") && !file.contains("secret thought"));
}
