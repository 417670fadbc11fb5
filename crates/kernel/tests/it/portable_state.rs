//! Export and import of state: on all branches, with the history of each key.

use mainspring_core::{Expect, MessageId, Place};
use mainspring_kernel::Error;
use mainspring_kernel::kernel::{ForkRequest, RunRequest, StateOf};
use serde_json::{Value, json};

use crate::portable::{changed, export, import, join_lines};
use crate::simulation::Random;
use crate::world::{Disk, World, by_key, every_store};

/// Every store, PostgreSQL included.
fn all_stores() -> Vec<Disk> {
    every_store().into_iter().chain([Disk::postgres()]).collect()
}

impl World {
    async fn set_at_tip(&self, key: &str, name: &str, value: Option<Value>) {
        let of = StateOf::Session(by_key(key), None);
        self.kernel.state_set(&self.me, &of, name, value, Expect::Any).await.unwrap();
    }

    async fn go_to(&self, key: &str, message: Option<MessageId>) {
        self.kernel.session_navigate(&self.me, &by_key(key), message, None).await.unwrap();
    }

    async fn regenerate(&self, key: &str, message: MessageId) {
        let place = Place::Regenerate { message_id: message };
        let request = RunRequest { place, prompt: vec![], ..RunRequest::text(key, "") };
        let run = self.send(request).await.unwrap().run;
        self.ended(run.id).await;
    }

    /// The prompts in the tree.
    async fn users(&self, key: &str) -> Vec<MessageId> {
        let file = export(self, key).await;
        let users = lines(&file).filter(|line| line["message"]["role"] == "user");
        users.map(|line| serde_json::from_value(line["message"]["messageId"].clone()).unwrap()).collect()
    }

    /// The state that the session sees at each message and at its tip, and the history of each key.
    async fn state_everywhere(&self, key: &str, file: &str) -> Vec<String> {
        let mut all = vec![];
        for at in messages(file).into_iter().map(Some).chain([None]) {
            let of = StateOf::Session(by_key(key), at);
            let entries = self.kernel.state_list(&self.me, &of, None, None).await.unwrap().items;
            all.push(format!("{at:?}: {}", json!(entries)));
        }
        for name in ["a", "b", "c", "mood"] {
            let of = StateOf::Session(by_key(key), None);
            let history = self.kernel.state_history(&self.me, &of, name, None, None).await.unwrap().items;
            all.push(format!("{name}: {}", json!(history)));
        }
        all
    }
}

fn lines(file: &str) -> impl Iterator<Item = Value> {
    file.lines().map(|line| serde_json::from_str(line).unwrap())
}

fn messages(file: &str) -> Vec<MessageId> {
    let messages = lines(file).filter(|line| line["kind"] == "message");
    messages.map(|line| serde_json::from_value(line["message"]["messageId"].clone()).unwrap()).collect()
}

/// Imports the file into every store, and compares the state that is seen there.
async fn compare(world: &World, key: &str) -> String {
    let file = export(world, key).await;
    let here = world.state_everywhere(key, &file).await;
    for to in all_stores() {
        let (from, name) = (world.disk.name, to.name);
        let there = World::on(to).await;
        import(&there, &file).await.unwrap();
        assert_eq!(export(&there, key).await, file, "{from} to {name}");
        assert_eq!(there.state_everywhere(key, &file).await, here, "{from} to {name}");
        // The imported session goes on: an entry that is written now is seen at the tip, and from no other
        // line.
        there.set_at_tip(key, "later", Some(json!(1))).await;
        let now = there.state_everywhere(key, &file).await;
        let tip = messages(&file).len();
        assert!(now[tip].contains("later") && !here[tip].contains("later"), "{from} to {name}");
        let session = there.kernel.session_get(&there.me, &by_key(key)).await.unwrap();
        for (at, message) in messages(&file).iter().enumerate() {
            if session.tip_message != Some(*message) {
                assert_eq!(now[at], here[at], "{from} to {name}: {message} does not see the new key");
            }
        }
    }
    file
}

#[tokio::test]
async fn state_of_all_branches_and_its_history_survive_export_and_import() {
    for disk in all_stores() {
        let world = World::on(disk).await;
        world.play("s", "say one").await;
        world.set_at_tip("s", "mood", Some(json!("early"))).await;
        world.play("s", "say two").await;
        world.set_at_tip("s", "mood", Some(json!("late"))).await;
        world.set_at_tip("s", "a", Some(json!(null))).await;
        let path: Vec<MessageId> = world.path("s").await.iter().map(|message| message.id).collect();
        // A branch beside the second answer, which sees the early mood.
        world.regenerate("s", path[2]).await;
        world.set_at_tip("s", "mood", None).await;
        world.set_at_tip("s", "b", Some(json!("x".repeat(5_000)))).await;
        // Written before the first message, after all lines were opened: none of them sees it.
        world.go_to("s", None).await;
        world.set_at_tip("s", "c", Some(json!({"deep": ["ü"]}))).await;
        world.set_at_tip("s", "mood", Some(json!("aside"))).await;
        let file = compare(&world, "s").await;
        let seqs: Vec<u64> = lines(&file)
            .filter(|line| line["kind"] == "state_at")
            .map(|line| line["seq"].as_u64().unwrap())
            .collect();
        assert!(seqs.iter().any(|seq| *seq != seqs[0]), "the order of entries and lines is in the file");
        let moods: Vec<Value> = lines(&file).filter(|line| line["change"]["key"] == "mood").collect();
        assert_eq!(moods.len(), 4, "the history of each key is in the file");
    }
}

#[tokio::test]
async fn an_exported_fork_has_the_state_that_it_sees() {
    for disk in all_stores() {
        let world = World::on(disk).await;
        world.play("s", "say one").await;
        world.set_at_tip("s", "mood", Some(json!("early"))).await;
        world.play("s", "say two").await;
        world.set_at_tip("s", "a", Some(json!(1))).await;
        let path: Vec<MessageId> = world.path("s").await.iter().map(|message| message.id).collect();
        let fork = ForkRequest { message: path[3], key: Some("f".into()), title: None };
        world.kernel.session_fork(&world.me, &by_key("s"), fork, None).await.unwrap();
        // The fork writes on the line of its source. It does not see the later write of the source.
        world.set_at_tip("f", "b", Some(json!("guest"))).await;
        world.set_at_tip("s", "mood", Some(json!("of the source"))).await;
        world.play("f", "say forked").await;
        world.set_at_tip("f", "mood", Some(json!("of the fork"))).await;
        let file = compare(&world, "f").await;
        assert!(!file.contains("of the source"), "{}", world.disk.name);
    }
}

/// Random changes and branches; the sequence is the same in each run.
#[tokio::test]
async fn random_trees_of_state_survive_export_and_import() {
    for seed in 0..6 {
        let mut random = Random(seed);
        let world = World::on(every_store().swap_remove(usize::try_from(seed % 2).unwrap())).await;
        world.play("s", "say begin").await;
        for turn in 0..25 {
            let tree: Vec<MessageId> = messages(&export(&world, "s").await);
            let message = tree[random.below(tree.len())];
            let name = ["a", "b", "c"][random.below(3)];
            match random.below(6) {
                0 => drop(world.play("s", "say more").await),
                1 => world.go_to("s", Some(message).filter(|_| random.below(4) > 0)).await,
                2 if random.below(2) == 0 => {
                    let users = world.users("s").await;
                    world.regenerate("s", users[random.below(users.len())]).await;
                }
                2 => world.set_at_tip("s", name, None).await,
                _ => world.set_at_tip("s", name, Some(json!(turn))).await,
            }
        }
        let file = export(&world, "s").await;
        let here = world.state_everywhere("s", &file).await;
        for to in every_store() {
            let there = World::on(to).await;
            import(&there, &file).await.unwrap();
            assert_eq!(there.state_everywhere("s", &file).await, here, "seed {seed}");
            assert_eq!(export(&there, "s").await, file, "seed {seed}");
        }
    }
}

/// A file of an earlier version has the state at the tip only.
#[tokio::test]
async fn files_of_version_1_are_imported_as_before() {
    let world = World::on(Disk::memory()).await;
    world.play("s", "say one").await;
    let plain = export(&world, "s").await;
    assert_eq!(
        lines(&plain).next().unwrap()["version"],
        1,
        "a session without state is the same file as before"
    );
    let mut earlier: Vec<String> = plain.lines().map(str::to_owned).collect();
    let first_event = earlier.iter().position(|line| line.contains(r#""kind":"event""#)).unwrap();
    let entry =
        json!({"kind": "state", "entry": {"key": "mood", "value": "old", "version": 3, "updatedAtMs": 5}});
    earlier.insert(first_event, entry.to_string());
    let last = earlier.len() - 1;
    earlier[last] = json!({"kind": "end", "lines": last}).to_string();
    for to in all_stores() {
        let there = World::on(to).await;
        import(&there, &join_lines(&earlier)).await.unwrap();
        let of = StateOf::Session(by_key("s"), None);
        let entries = there.kernel.state_list(&there.me, &of, None, None).await.unwrap().items;
        assert_eq!((entries.len(), entries[0].version), (1, 3), "{}", there.disk.name);
        let again = export(&there, "s").await;
        assert_eq!(lines(&again).next().unwrap()["version"], 2);
    }
}

#[tokio::test]
async fn invalid_state_is_refused_with_the_line() {
    let world = World::on(Disk::memory()).await;
    world.play("s", "say one").await;
    world.set_at_tip("s", "mood", Some(json!(1))).await;
    let file = export(&world, "s").await;
    let line = |text: &str| 1 + file.lines().position(|line| line.contains(text)).unwrap();
    let (message, entry, change) =
        (line(r#""kind":"message""#), line(r#""kind":"state_at""#), line(r#""kind":"state_change""#));
    let nobody = json!("msg_00000000000040008000000000000000");
    let agent = json!({"kind": "agent", "runId": "run_00000000000040008000000000000000",
        "attemptId": "att_00000000000040008000000000000000"});
    let twice: Vec<&str> = file.lines().take(entry).chain(file.lines().skip(entry - 1)).collect();
    for (what, at, spoiled) in [
        ("a message that is not there", entry, changed(&file, entry, "/messageId", &nobody)),
        ("an order beyond all lines", entry, changed(&file, entry, "/seq", &json!(1_u64 << 40))),
        ("an opening beyond all lines", message, changed(&file, message, "/opened", &json!(1_u64 << 40))),
        ("an opening within a line", message + 1, changed(&file, message + 1, "/opened", &json!(0))),
        ("an entry twice", entry + 1, join_lines(&twice)),
        ("no version", entry, changed(&file, entry, "/version", &json!(0))),
        ("a bad key", entry, changed(&file, entry, "/key", &json!("a b"))),
        ("a change by an agent elsewhere", change, changed(&file, change, "/change/by", &agent)),
        ("a change without a version", change, changed(&file, change, "/change/version", &json!(0))),
        ("places in version 1", message, changed(&file, 1, "/version", &json!(1))),
    ] {
        let there = World::on(Disk::sqlite()).await;
        let error = import(&there, &spoiled).await.expect_err(what);
        assert!(matches!(error, Error::BadImport { line, .. } if line == at as u64), "{what}: {error}");
    }
}
