//! Streaming: after a snapshot, a reader gets every event and every byte exactly once, even if it stalls or reconnects.

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

use crate::puppet::{PuppetBehavior, puppet, puppet_request};
use crate::simulation::Random;
use crate::world::{
    Disk, World, by_key, every_store, named, read_until, run_process, run_ready_tasks, with_timeout,
};

/// The state that a client builds from the stream.
#[derive(Default)]
struct ReaderState {
    events: Vec<Arc<Event>>,
    open: HashMap<MessageId, BTreeMap<u32, String>>,
    messages: Vec<Arc<Message>>,
    deltas: usize,
    truncated: usize,
}

impl ReaderState {
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
            Item::Thought(_) | Item::Store(..) => {}
            Item::Truncated(_) => self.truncated += 1,
            Item::Reset(_) => panic!("nothing was pruned"),
        }
    }

    /// Checks that the deltas are a prefix of the completed message, and replaces them.
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

/// Returns a word with characters of one to four bytes.
fn word(random: &mut Random) -> String {
    let letters = ['a', 'é', '中', '🦀', ' ', '\n'];
    (0..=random.below(6)).map(|_| letters[random.below(letters.len())]).collect()
}

/// Plays one run of the agent with text and tool calls. Returns the texts of the messages that end with a tool call.
async fn perform(handle: &AttemptHandle, random: &mut Random, world: &World) -> Vec<String> {
    let mut said = vec![];
    for round in 0..=random.below(3) {
        let (mut blocks, last) = ([String::new(), String::new()], round == 0 && random.below(3) == 0);
        for _ in 0..random.below(400) {
            let (text, block) = (word(random), random.below(20) / 19);
            handle.delta(u32::try_from(block).unwrap(), &text).unwrap();
            blocks[block] += &text;
            if random.below(8) == 0 {
                world.clock.advance(17);
                tokio::task::yield_now().await;
            }
        }
        if last {
            break;
        }
        let id = format!("{}-{round}", handle.id());
        let call = Block::tool_use(id.clone(), "t", json!({}));
        let message = Record::Message { blocks: vec![call], usage: None };
        handle.record(vec![message]).await.unwrap();
        let result = Block::tool_result(id, "t", vec![], false);
        handle.record(vec![Record::ToolResults { blocks: vec![result] }]).await.unwrap();
        said.push(blocks.concat());
    }
    said
}

/// Reads the stream with random reconnects until `done` is set and everything before that is read. If `fresh` is true,
/// begins with a snapshot, else at the start of the stream.
async fn read(
    kernel: Kernel,
    world_me: mainspring_kernel::kernel::Caller,
    seed: u64,
    done: Arc<AtomicBool>,
    fresh: bool,
) -> ReaderState {
    let mut random = Random(seed);
    let mut at = (!fresh).then_some(Position::START);
    let mut shown: Option<ReaderState> = None;
    let last = loop {
        let was_done = done.load(Ordering::Acquire);
        let snapshot = kernel.session_snapshot(&world_me, &by_key("a")).await.unwrap();
        let from = at.unwrap_or(snapshot.position);
        let mut events = kernel.session_subscribe(&world_me, &by_key("a"), Some(from)).await.unwrap();
        let now = snapshot.position;
        let shown = shown
            .get_or_insert_with(|| if fresh { ReaderState::from(&snapshot) } else { ReaderState::default() });
        // Reads a random number of items, then disconnects for a random time.
        for _ in 0..random.below(400) {
            if was_done && events.position() >= now {
                break;
            }
            // Dropping a pending read loses nothing.
            tokio::select! {
                biased;
                item = events.next() => shown.take(item.unwrap().unwrap()),
                () = run_ready_tasks() => break,
            }
        }
        at = Some(events.position());
        if was_done && events.position() >= now {
            break now;
        }
        drop(events);
        for _ in 0..random.below(10) * random.below(200) {
            tokio::task::yield_now().await;
        }
    };
    assert_eq!(at, Some(last));
    shown.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconnecting_readers_get_every_event_and_byte_exactly_once() {
    for (seed, disk) in [(1, Disk::memory()), (2, Disk::memory()), (3, Disk::sqlite()), (4, Disk::sqlite())] {
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let world = World::with(disk, Options::default(), vec![adapter]).await;
        world.play("a", "say first").await;
        let done = Arc::new(AtomicBool::new(false));
        let mut readers = JoinSet::new();
        for no in 0..8 {
            let (kernel, me) = (world.kernel.clone(), world.me.clone());
            readers.spawn(read(kernel, me, seed * 100 + no, done.clone(), no % 2 == 1));
        }
        let mut random = Random(seed);
        for no in 0..12 {
            let request = mainspring_kernel::kernel::RunRequest {
                adapter: Some("puppet".into()),
                ..named("a", "go", "app", &format!("{seed}-{no}"))
            };
            let run = world.send(request).await.unwrap().run;
            let execution = control.next().await;
            let said = with_timeout(perform(&execution.handle, &mut random, &world)).await;
            execution.end(End::succeeded());
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
        for shown in with_timeout(readers.join_all()).await {
            deltas += shown.deltas;
            assert_eq!(shown.truncated, 0, "seed {seed}");
            assert!(shown.open.is_empty(), "seed {seed}: {:?}", shown.open);
            let first = shown.events.first().map_or(stored.len(), |first| {
                stored.iter().position(|event| event.cursor == first.cursor).unwrap()
            });
            let events: Vec<Event> = shown.events.iter().map(|event| Event::clone(event)).collect();
            assert_eq!(events, stored[first..], "seed {seed}");
            assert_eq!(shown.messages, path, "seed {seed}: the streamed text equals the stored text");
        }
        assert!(deltas > 100, "seed {seed}: the readers saw text while it was streamed: {deltas}");
    }
}

#[test]
fn text_streamed_but_lost_in_a_crash_is_retracted() {
    for disk in every_store() {
        let (at, cursor) = run_process(async {
            let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
            let world = World::with(disk.clone(), Options::default(), vec![adapter]).await;
            world.send(puppet_request("a", "go")).await.unwrap();
            let execution = control.next().await;
            let (_, mut events) = world.subscribe("a", Some(Position::START)).await;
            read_until(&mut events, "run.running").await;
            execution.handle.delta(0, "shown and lost").unwrap();
            let item = with_timeout(events.next()).await.unwrap().unwrap();
            assert!(matches!(item, Item::Delta(delta) if delta.text == "shown and lost"));
            (events.position(), events.position().cursor)
        });
        run_process(async {
            let world = World::reboot(&disk).await;
            let (_, mut events) = world.subscribe("a", Some(at)).await;
            let first = with_timeout(events.next()).await.unwrap().unwrap();
            assert_eq!(first, Item::Truncated(Position { cursor, pos: 0 }), "{}", disk.name);
            let rest = read_until(&mut events, "run.orphaned").await;
            assert!(rest.iter().all(|item| matches!(item, Item::Event(event) if event.cursor > cursor)));
        });
    }
}

#[test]
fn a_crash_retracts_exactly_the_text_that_is_not_stored() {
    for disk in every_store() {
        let (covered, all) = run_process(async {
            let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
            let world = World::with(disk.clone(), Options::default(), vec![adapter]).await;
            world.send(puppet_request("a", "go")).await.unwrap();
            let execution = control.next().await;
            let (_, mut events) = world.subscribe("a", Some(Position::START)).await;
            read_until(&mut events, "run.running").await;
            execution.handle.delta(0, "covered").unwrap();
            // An event after text that no batch has stored: the clock stands still.
            let progress = Record::Progress { text: "half".into() };
            with_timeout(execution.handle.record(vec![progress])).await.unwrap();
            read_until(&mut events, "progress.updated").await;
            let covered = events.position();
            execution.handle.delta(0, " and lost").unwrap();
            with_timeout(events.next()).await.unwrap().unwrap();
            (covered, events.position())
        });
        assert_eq!((covered.pos, all.pos), (7, 16), "{}", disk.name);
        run_process(async {
            let world = World::reboot(&disk).await;
            for (from, truncated) in [(all, 1), (covered, 0)] {
                let (_, mut events) = world.subscribe("a", Some(from)).await;
                let items = read_until(&mut events, "run.orphaned").await;
                let told: Vec<_> = items.iter().filter(|item| matches!(item, Item::Truncated(_))).collect();
                assert_eq!(told.len(), truncated, "{}", disk.name);
                assert!(told.iter().all(|item| **item == Item::Truncated(Position { pos: 7, ..from })));
            }
            let events = world.events("a").await;
            let stored = events.iter().filter_map(|event| match &event.body {
                Body::MessageCompleted { message, .. } if message.role == Role::Assistant => {
                    Some(message.text())
                }
                _ => None,
            });
            assert_eq!(stored.collect::<Vec<_>>(), ["covered"], "{}", disk.name);
        });
    }
}

#[tokio::test]
async fn a_cursor_ahead_of_all_events_is_answered_with_a_reset() {
    let world = World::on(Disk::memory()).await;
    let run = world.play("a", "say hi").await;
    let (kernel, me) = (&world.kernel, &world.me);
    let ahead = Position { cursor: Cursor(u64::MAX), pos: 0 };
    let mut reader = kernel.session_subscribe(me, &by_key("a"), Some(ahead)).await.unwrap();
    let first = with_timeout(reader.next()).await.unwrap().unwrap();
    assert!(matches!(&first, Item::Reset(snapshot) if snapshot.messages.len() == 2), "{first:?}");
    for page in [
        kernel.session_events(me, &by_key("a"), ahead.cursor, None).await,
        kernel.run_events(me, run.id, ahead.cursor, None).await,
        kernel.owner_history(me, None, ahead.cursor, None).await,
    ] {
        assert_eq!(page.unwrap_err().code(), "cursor_expired");
    }
    let last = world.disk.store.event_last().await.unwrap();
    assert_eq!(kernel.session_events(me, &by_key("a"), last, None).await.unwrap(), [], "the end is no error");
}

#[tokio::test]
async fn a_thought_is_delivered_in_order() {
    let disk = Disk::memory();
    let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
    let world = World::with(disk, Options::default(), vec![adapter]).await;
    let run = world.send(puppet_request("a", "go")).await.unwrap().run;
    let execution = control.next().await;
    let (_, mut events) = world.subscribe("a", None).await;
    let handle = &execution.handle;
    handle.thought("one").unwrap();
    handle.delta(0, "two").unwrap();
    handle.thought("three").unwrap();
    with_timeout(handle.record(vec![Record::Progress { text: "four".into() }])).await.unwrap();
    handle.thought("five").unwrap();
    handle.delta(0, "six").unwrap();
    let mut shown = vec![];
    // The reader starts reading only now.
    while shown.len() < 6 {
        match with_timeout(events.next()).await.unwrap().unwrap() {
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
    execution.end(End::succeeded());
    world.ended(run.id).await;
}

#[tokio::test]
async fn thoughts_are_streamed_and_not_stored() {
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
    assert_eq!(world.advance_until(5, seen).await, secret);
    // A later reader does not get the thought.
    let (_, mut late) = world.subscribe("a", Some(Position::START)).await;
    let items = read_until(&mut late, "progress.updated").await;
    assert!(!items.iter().any(|item| matches!(item, Item::Thought(_))));
    world.advance_until(100, world.kernel.shutdown()).await;
    let file = disk.file.clone().unwrap();
    let mut found = 0;
    for name in std::fs::read_dir(file.parent().unwrap()).unwrap() {
        let bytes = std::fs::read(name.unwrap().path()).unwrap();
        let holds =
            |text: &str| bytes.windows(text.len()).filter(|window| *window == text.as_bytes()).count();
        found += holds("public-words\n");
        // Only the prompt, which is a script here, contains the text, as `think …`.
        assert_eq!(holds(secret), holds("think xyzzy-plugh-secret"));
    }
    assert!(found > 0, "the answer is stored");
}

#[tokio::test]
async fn a_late_reader_gets_the_thoughts_of_a_message_before_the_message() {
    let disk = Disk::memory();
    let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
    let world = World::with(disk, Options::default(), vec![adapter]).await;
    let run = world.send(puppet_request("a", "go")).await.unwrap().run;
    let execution = control.next().await;
    let (_, mut events) = world.subscribe("a", None).await;
    execution.handle.delta(0, "one").unwrap();
    execution.handle.thought("two").unwrap();
    execution.handle.delta(0, "three").unwrap();
    execution.end(End::succeeded());
    world.ended(run.id).await;
    let mut shown = vec![];
    while shown.len() < 2 {
        match with_timeout(events.next()).await.unwrap().unwrap() {
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
async fn a_lagging_reader_gets_each_thought_in_order() {
    let disk = Disk::memory();
    let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
    let world = World::with(disk, Options::default(), vec![adapter]).await;
    world.send(puppet_request("a", "go")).await.unwrap();
    let execution = control.next().await;
    let (_, mut events) = world.subscribe("a", None).await;
    let handle = &execution.handle;
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
        seen.push(match with_timeout(events.next()).await.unwrap().unwrap() {
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
async fn a_stalled_reader_does_not_block_the_writer_and_misses_nothing() {
    let world = World::on(Disk::memory()).await;
    world.play("a", "say hi").await;
    let (_, mut stalled) = world.subscribe("a", None).await;
    for _ in 0..90 {
        let run = world.play("a", "stream 300 word").await;
        assert_eq!(run.state.status(), RunStatus::Succeeded);
    }
    let stored = world.events("a").await;
    assert!(stored.len() > 512, "more than a feed keeps");
    let mut shown = ReaderState::default();
    while shown.events.last().map(|event| event.cursor) != stored.last().map(|event| event.cursor) {
        shown.take(with_timeout(stalled.next()).await.unwrap().unwrap());
    }
    let from = stored.iter().position(|event| event.cursor == shown.events[0].cursor).unwrap();
    assert_eq!(shown.events.len(), stored.len() - from);
    assert_eq!(shown.messages.len(), 180);
    run_ready_tasks().await;
}

#[tokio::test]
async fn a_large_text_is_split_between_characters() {
    let disk = Disk::memory();
    let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
    let world = World::with(disk, Options::default(), vec![adapter]).await;
    world.send(puppet_request("a", "go")).await.unwrap();
    let execution = control.next().await;
    let (snapshot, mut events) = world.subscribe("a", None).await;
    let whole = "中🦀éa".repeat(30_000);
    execution.handle.delta(0, &whole).unwrap();
    let (mut text, mut at) = (String::new(), snapshot.position);
    while text.len() < whole.len() {
        let Item::Delta(delta) = with_timeout(events.next()).await.unwrap().unwrap() else {
            panic!("a delta")
        };
        assert!(delta.text.len() <= 64 << 10, "{}", delta.text.len());
        // A reader that reconnects between two chunks gets the same text.
        let again =
            world.kernel.session_observe(&world.me, &by_key("a"), Some(at)).await.unwrap().next().await;
        assert_eq!(again.unwrap().unwrap(), Item::Delta(delta.clone()));
        text += &delta.text;
        at = delta.position;
    }
    assert_eq!(text, whole);
    assert_eq!(at.pos, whole.len() as u64);
}
