//! Streaming: a snapshot and then every event and every byte exactly once, whoever stalls, leaves and comes back.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mainspring_core::{Block, Body, Cursor, Event, Message, MessageId, Position, Role, RunStatus};
use mainspring_kernel::adapter::{AttemptHandle, End, Record};
use mainspring_kernel::feed::Item;
use mainspring_kernel::kernel::Snapshot;
use mainspring_kernel::{Kernel, Options};
use serde_json::json;
use tokio::task::JoinSet;

use crate::puppet::{Manners, pull, puppet};
use crate::simulation::Dice;
use crate::world::{Disk, World, by, every_store, live, named, read_until, settle, soon};

/// What a reader has been shown, put together as a client would.
#[derive(Default)]
struct Shown {
    events: Vec<Arc<Event>>,
    open: HashMap<MessageId, BTreeMap<u32, String>>,
    messages: Vec<Arc<Message>>,
    deltas: usize,
    truncated: usize,
}

impl Shown {
    fn from(snapshot: &Snapshot) -> Self {
        let open = snapshot.partial.iter().map(|open| {
            (open.message_id, open.blocks.iter().map(|open| (open.block, open.text.clone())).collect())
        });
        Self {
            open: open.collect(),
            messages: snapshot.messages.iter().chain(&snapshot.pending).cloned().collect(),
            ..Self::default()
        }
    }

    fn take(&mut self, item: Item) {
        match item {
            Item::Delta(delta) => {
                assert!(!delta.text.is_empty());
                self.deltas += 1;
                let blocks = self.open.entry(delta.message).or_default();
                blocks.entry(delta.block).or_default().push_str(&delta.text);
            }
            Item::Event(event) => {
                if let Some(last) = self.events.last() {
                    assert!(last.cursor < event.cursor, "{} then {}", last.cursor.0, event.cursor.0);
                }
                if let Body::MessageCompleted { message, .. } = &event.body {
                    self.complete(message);
                }
                self.events.push(event);
            }
            Item::Thought(_) => {}
            Item::Truncated(_) => self.truncated += 1,
            Item::Reset(_) => panic!("nothing was pruned"),
        }
    }

    /// A completed message replaces its deltas: they were the beginning of it, byte for byte.
    fn complete(&mut self, message: &Arc<Message>) {
        let texts: Vec<&str> = message
            .content
            .iter()
            .filter_map(|block| match block {
                Block::Text { text } => Some(text.as_str()),
                _ => None,
            })
            .collect();
        for shown in self.open.remove(&message.id).unwrap_or_default().into_values() {
            assert!(texts.iter().any(|text| text.starts_with(&shown)), "shown {shown:?} of {texts:?}");
        }
        self.messages.push(message.clone());
    }
}

/// Words of one to four bytes a character.
fn word(dice: &mut Dice) -> String {
    let letters = ['a', 'é', '中', '🦀', ' ', '\n'];
    (0..=dice.below(6)).map(|_| letters[dice.below(letters.len())]).collect()
}

/// One run of the agent: text and tool rounds; returns what it said, message by message.
async fn perform(handle: &AttemptHandle, dice: &mut Dice, world: &World) -> Vec<String> {
    let mut said = vec![];
    for round in 0..=dice.below(3) {
        let (mut blocks, last) = ([String::new(), String::new()], round == 0 && dice.below(3) == 0);
        for _ in 0..dice.below(400) {
            let (text, block) = (word(dice), dice.below(20) / 19);
            handle.delta(u32::try_from(block).unwrap(), &text).unwrap();
            blocks[block] += &text;
            if dice.below(8) == 0 {
                world.clock.advance(17);
                tokio::task::yield_now().await;
            }
        }
        if last {
            break;
        }
        let id = format!("{}-{round}", handle.id());
        let call = Block::ToolUse { id: id.clone(), name: "t".into(), input: json!({}) };
        let message = Record::Message { blocks: vec![call], usage: None };
        handle.record(vec![message]).await.unwrap();
        let result =
            Block::ToolResult { tool_use_id: id, name: "t".into(), content: vec![], is_error: false };
        handle.record(vec![Record::ToolResults { blocks: vec![result] }]).await.unwrap();
        said.push(blocks.concat());
    }
    said
}

/// Reads all of the session's stream, coming and going; ends when it has seen the event at `end`.
async fn read(
    kernel: Kernel,
    world_me: mainspring_kernel::kernel::Caller,
    seed: u64,
    done: Arc<AtomicBool>,
    fresh: bool,
) -> Shown {
    let mut dice = Dice(seed);
    let mut at = (!fresh).then_some(Position::START);
    let mut shown: Option<Shown> = None;
    let last = loop {
        let was_done = done.load(Ordering::Acquire);
        let snapshot = kernel.session_snapshot(&world_me, &by("a")).await.unwrap();
        let from = at.unwrap_or(snapshot.position);
        let mut events = kernel.session_subscribe(&world_me, &by("a"), Some(from)).await.unwrap();
        let now = snapshot.position;
        let shown =
            shown.get_or_insert_with(|| if fresh { Shown::from(&snapshot) } else { Shown::default() });
        // It reads a little, or for long, or nothing; then it leaves, and sometimes stays away for long.
        for _ in 0..dice.below(400) {
            if was_done && events.position() >= now {
                break;
            }
            // To stop waiting loses nothing.
            tokio::select! {
                biased;
                item = events.next() => shown.take(item.unwrap().unwrap()),
                () = settle() => break,
            }
        }
        at = Some(events.position());
        if was_done && events.position() >= now {
            break now;
        }
        drop(events);
        for _ in 0..dice.below(10) * dice.below(200) {
            tokio::task::yield_now().await;
        }
    };
    assert_eq!(at, Some(last));
    shown.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_come_and_go_are_shown_every_event_and_byte_exactly_once() {
    for (seed, disk) in [(1, Disk::memory()), (2, Disk::memory()), (3, Disk::sqlite()), (4, Disk::sqlite())] {
        let (adapter, mut hands) = puppet(&disk.store, Manners::default());
        let world = World::with(disk, Options::default(), vec![adapter]).await;
        world.play("a", "say first").await;
        let done = Arc::new(AtomicBool::new(false));
        let mut readers = JoinSet::new();
        for no in 0..8 {
            let (kernel, me) = (world.kernel.clone(), world.me.clone());
            readers.spawn(read(kernel, me, seed * 100 + no, done.clone(), no % 2 == 1));
        }
        let mut dice = Dice(seed);
        for no in 0..12 {
            let request = mainspring_kernel::kernel::RunRequest {
                adapter: Some("puppet".into()),
                ..named("a", "go", "app", &format!("{seed}-{no}"))
            };
            let run = world.send(request).await.unwrap().run;
            let strings = hands.next().await;
            let said = soon(perform(&strings.handle, &mut dice, &world)).await;
            strings.end(End::succeeded());
            world.ended(run.id).await;
            let path = world.path("a").await;
            let kept: Vec<String> = path
                .iter()
                .filter(|message| message.run == Some(run.id) && message.role == Role::Assistant)
                .map(|message| message.text())
                .collect();
            assert!(
                kept[..said.len()] == said,
                "seed {seed}: {:?}",
                kept.iter().zip(&said).find(|(kept, said)| kept != said)
            );
        }
        done.store(true, Ordering::Release);
        let stored = world.events("a").await;
        let path = world.path("a").await;
        let mut deltas = 0;
        for shown in soon(readers.join_all()).await {
            deltas += shown.deltas;
            assert_eq!(shown.truncated, 0, "seed {seed}");
            assert!(shown.open.is_empty(), "seed {seed}: {:?}", shown.open);
            let first = shown.events.first().map_or(stored.len(), |first| {
                stored.iter().position(|event| event.cursor == first.cursor).unwrap()
            });
            let events: Vec<Event> = shown.events.iter().map(|event| Event::clone(event)).collect();
            assert_eq!(events, stored[first..], "seed {seed}");
            assert_eq!(shown.messages, path, "seed {seed}: what was shown is what is stored");
        }
        assert!(deltas > 100, "seed {seed}: the readers saw text while it was streamed: {deltas}");
    }
}

#[test]
fn text_that_was_shown_and_lost_in_a_crash_is_taken_back() {
    for disk in every_store() {
        let (at, cursor) = live(async {
            let (adapter, mut hands) = puppet(&disk.store, Manners::default());
            let world = World::with(disk.clone(), Options::default(), vec![adapter]).await;
            world.send(pull("a", "go")).await.unwrap();
            let strings = hands.next().await;
            let (_, mut events) = world.subscribe("a", Some(Position::START)).await;
            read_until(&mut events, "run.running").await;
            strings.handle.delta(0, "shown and lost").unwrap();
            let item = soon(events.next()).await.unwrap().unwrap();
            assert!(matches!(item, Item::Delta(delta) if delta.text == "shown and lost"));
            (events.position(), events.position().cursor)
        });
        live(async {
            let world = World::reboot(&disk).await;
            let (_, mut events) = world.subscribe("a", Some(at)).await;
            let first = soon(events.next()).await.unwrap().unwrap();
            assert_eq!(first, Item::Truncated(Position { cursor, pos: 0 }), "{}", disk.name);
            let rest = read_until(&mut events, "run.orphaned").await;
            assert!(rest.iter().all(|item| matches!(item, Item::Event(event) if event.cursor > cursor)));
        });
    }
}

#[tokio::test]
async fn a_cursor_from_the_future_is_refused() {
    let world = World::on(Disk::memory()).await;
    world.play("a", "say hi").await;
    let ahead = Position { cursor: Cursor(u64::MAX), pos: 0 };
    let refused = world.kernel.session_subscribe(&world.me, &by("a"), Some(ahead)).await;
    assert_eq!(refused.err().unwrap().code(), "invalid_request");
}

#[tokio::test]
async fn a_thought_is_shown_between_what_came_before_and_after_it() {
    let disk = Disk::memory();
    let (adapter, mut hands) = puppet(&disk.store, Manners::default());
    let world = World::with(disk, Options::default(), vec![adapter]).await;
    let run = world.send(pull("a", "go")).await.unwrap().run;
    let strings = hands.next().await;
    let (_, mut events) = world.subscribe("a", None).await;
    let handle = &strings.handle;
    handle.thought("one").unwrap();
    handle.delta(0, "two").unwrap();
    handle.thought("three").unwrap();
    soon(handle.record(vec![Record::Progress { text: "four".into() }])).await.unwrap();
    handle.thought("five").unwrap();
    handle.delta(0, "six").unwrap();
    let mut shown = vec![];
    // Nothing was read before all of it had happened.
    while shown.len() < 6 {
        match soon(events.next()).await.unwrap().unwrap() {
            Item::Thought(thought) => shown.push(thought.text.to_string()),
            Item::Delta(delta) => shown.push(delta.text),
            Item::Event(event) => match &event.body {
                Body::ProgressUpdated { text } => shown.push(text.clone()),
                body => panic!("{}", body.kind()),
            },
            item => panic!("{item:?}"),
        }
    }
    assert_eq!(shown, ["one", "two", "three", "four", "five", "six"]);
    strings.end(End::succeeded());
    world.ended(run.id).await;
}

#[tokio::test]
async fn thoughts_are_shown_and_kept_nowhere() {
    let disk = Disk::sqlite();
    let world = World::on(disk.clone()).await;
    let secret = "xyzzy-plugh-secret";
    world.prompt("a", "sleep 10ms; say public-words; think xyzzy-plugh-secret; progress done; hang").await;
    let (_, mut events) = world.subscribe("a", None).await;
    let seen = async {
        loop {
            if let Item::Thought(thought) = events.next().await.unwrap().unwrap() {
                return thought.text.to_string();
            }
        }
    };
    assert_eq!(world.turning(5, seen).await, secret);
    // Who comes later is not shown it.
    let (_, mut late) = world.subscribe("a", Some(Position::START)).await;
    let items = read_until(&mut late, "progress.updated").await;
    assert!(!items.iter().any(|item| matches!(item, Item::Thought(_))));
    world.turning(100, world.kernel.shutdown()).await;
    let file = disk.file.clone().unwrap();
    let mut found = 0;
    for name in std::fs::read_dir(file.parent().unwrap()).unwrap() {
        let bytes = std::fs::read(name.unwrap().path()).unwrap();
        let holds =
            |text: &str| bytes.windows(text.len()).filter(|window| *window == text.as_bytes()).count();
        found += holds("public-words\n");
        // The prompt, which is a script here, says it itself: as `think …`, and nowhere else.
        assert_eq!(holds(secret), holds("think xyzzy-plugh-secret"));
    }
    assert!(found > 0, "what was said is there");
}

#[tokio::test]
async fn a_reader_that_comes_after_a_message_is_whole_sees_what_was_thought_in_it_before_it() {
    let disk = Disk::memory();
    let (adapter, mut hands) = puppet(&disk.store, Manners::default());
    let world = World::with(disk, Options::default(), vec![adapter]).await;
    let run = world.send(pull("a", "go")).await.unwrap().run;
    let strings = hands.next().await;
    let (_, mut events) = world.subscribe("a", None).await;
    strings.handle.delta(0, "one").unwrap();
    strings.handle.thought("two").unwrap();
    strings.handle.delta(0, "three").unwrap();
    strings.end(End::succeeded());
    world.ended(run.id).await;
    let mut shown = vec![];
    while shown.len() < 2 {
        match soon(events.next()).await.unwrap().unwrap() {
            Item::Thought(thought) => shown.push(thought.text.to_string()),
            Item::Event(event) => {
                if let Body::MessageCompleted { message, .. } = &event.body {
                    shown.push(message.text());
                }
            }
            item => panic!("{item:?}"),
        }
    }
    assert_eq!(shown, ["two", "onethree"]);
}

#[tokio::test]
async fn a_reader_that_lags_sees_each_thought_where_it_was_thought() {
    let disk = Disk::memory();
    let (adapter, mut hands) = puppet(&disk.store, Manners::default());
    let world = World::with(disk, Options::default(), vec![adapter]).await;
    world.send(pull("a", "go")).await.unwrap();
    let strings = hands.next().await;
    let (_, mut events) = world.subscribe("a", None).await;
    let handle = &strings.handle;
    handle.thought("first").unwrap();
    handle.delta(0, "one ").unwrap();
    handle.delta(0, "two ").unwrap();
    handle.thought("second").unwrap();
    handle.delta(0, "three").unwrap();
    handle.record(vec![Record::Progress { text: "half".into() }]).await.unwrap();
    handle.thought("third").unwrap();
    handle.record(vec![Record::Progress { text: "whole".into() }]).await.unwrap();
    let mut seen = vec![];
    while seen.last().is_none_or(|last| last != "whole") {
        seen.push(match soon(events.next()).await.unwrap().unwrap() {
            Item::Thought(thought) => format!("({})", thought.text),
            Item::Delta(delta) => delta.text,
            Item::Event(event) => match &event.body {
                Body::ProgressUpdated { text } => text.clone(),
                body => format!("{body:?}"),
            },
            other => format!("{other:?}"),
        });
    }
    assert_eq!(seen, ["(first)", "one two ", "(second)", "three", "half", "(third)", "whole"]);
}

#[tokio::test]
async fn a_reader_that_stalls_costs_the_writer_nothing_and_misses_nothing() {
    let world = World::on(Disk::memory()).await;
    world.play("a", "say hi").await;
    let (_, mut stalled) = world.subscribe("a", None).await;
    for _ in 0..90 {
        let run = world.play("a", "stream 300 word").await;
        assert_eq!(run.state.status(), RunStatus::Succeeded);
    }
    let stored = world.events("a").await;
    assert!(stored.len() > 512, "more than a feed keeps");
    let mut shown = Shown::default();
    while shown.events.last().map(|event| event.cursor) != stored.last().map(|event| event.cursor) {
        shown.take(soon(stalled.next()).await.unwrap().unwrap());
    }
    let from = stored.iter().position(|event| event.cursor == shown.events[0].cursor).unwrap();
    assert_eq!(shown.events.len(), stored.len() - from);
    assert_eq!(shown.messages.len(), 180);
    settle().await;
}

#[tokio::test]
async fn a_large_text_comes_in_stretches_that_end_between_characters() {
    let disk = Disk::memory();
    let (adapter, mut hands) = puppet(&disk.store, Manners::default());
    let world = World::with(disk, Options::default(), vec![adapter]).await;
    world.send(pull("a", "go")).await.unwrap();
    let strings = hands.next().await;
    let (snapshot, mut events) = world.subscribe("a", None).await;
    let whole = "中🦀éa".repeat(30_000);
    strings.handle.delta(0, &whole).unwrap();
    let (mut text, mut at) = (String::new(), snapshot.position);
    while text.len() < whole.len() {
        let Item::Delta(delta) = soon(events.next()).await.unwrap().unwrap() else { panic!("a delta") };
        assert!(delta.text.len() <= 64 << 10, "{}", delta.text.len());
        // Whoever comes back between two stretches is shown the same.
        let again = world.kernel.session_observe(&world.me, &by("a"), Some(at)).await.unwrap().next().await;
        assert_eq!(again.unwrap().unwrap(), Item::Delta(delta.clone()));
        text += &delta.text;
        at = delta.position;
    }
    assert_eq!(text, whole);
    assert_eq!(at.pos, whole.len() as u64);
}
