//! Streams of events over connections that break.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mainspring_client::{Client, EventsQuery, Item, Opening, OwnerEventsQuery, Prompt, SessionTarget};
use mainspring_core::{Body, Position, Role};
use mainspring_test_support::{TOKEN, TestNode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::world::{World, code};

/// Proxies connections to `to` and cuts each one after a random number of bytes.
async fn proxy_with_cuts(listener: TcpListener, to: String, seed: u64, cuts: Arc<AtomicUsize>) {
    let (mut seed, mut connections) = (seed, JoinSet::new());
    loop {
        let (mut local, _) = listener.accept().await.unwrap();
        let mut remote = TcpStream::connect(&to).await.unwrap();
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // The head of a response has about 200 bytes, so some connections break before any content.
        let budget = usize::try_from(seed >> 33).unwrap() % 1_600 + 150;
        let cuts = cuts.clone();
        connections.spawn(async move {
            if relay(&mut local, &mut remote, budget).await.is_some() {
                cuts.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
}

/// Relays both directions until `budget` bytes of the response have passed. None if one side has closed before.
async fn relay(local: &mut TcpStream, remote: &mut TcpStream, mut budget: usize) -> Option<()> {
    let (mut request, mut response) = ([0; 4096], [0; 4096]);
    while budget > 0 {
        tokio::select! {
            read = local.read(&mut request) => {
                let read = read.ok().filter(|read| *read > 0)?;
                remote.write_all(&request[..read]).await.unwrap();
            }
            read = remote.read(&mut response) => {
                let read = read.ok().filter(|read| *read > 0)?.min(budget);
                budget -= read;
                local.write_all(&response[..read]).await.ok()?;
            }
        }
    }
    Some(())
}

#[tokio::test]
async fn an_interrupted_stream_delivers_each_event_and_byte_once() {
    let World { client: direct, listening, node: _node } =
        World::with(TestNode::builder().system_clock()).await;
    let seed = std::env::var("SEED").map_or(7, |seed| seed.parse().unwrap());
    eprintln!("SEED={seed}");
    let (listener, cuts) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), Arc::new(AtomicUsize::new(0)));
    let through = format!("http://{}", listener.local_addr().unwrap());
    let mut proxy = JoinSet::new();
    proxy.spawn(proxy_with_cuts(listener, listening.address.clone(), seed, cuts.clone()));

    const TURNS: usize = 8;
    for _ in 0..TURNS {
        let script =
            format!("stream 30 every 1ms wörd; {} say end", "tool add {\"a\":1,\"b\":1}; ".repeat(5));
        direct.run_create(&Prompt::text("long", script)).await.unwrap();
    }
    let client = Client::over_tcp(&through, TOKEN).unwrap();
    let mut events = client.session_events("long", Position::START);
    let mut turns = 0;
    let (mut text, mut event_ids, mut last) = (String::new(), vec![], Position::START);
    let mut complete = String::new();
    while turns < TURNS {
        let position = match events.next().await.unwrap().unwrap() {
            Item::Event(event) => {
                turns += usize::from(event.body.ends_run());
                if let Body::MessageCompleted { message, .. } = &event.body
                    && message.role == Role::Assistant
                {
                    complete.push_str(&message.text());
                    // The complete text replaces the deltas, some of which were not sent again.
                    text.clone_from(&complete);
                }
                event_ids.push(event.id);
                event.position()
            }
            Item::Live(live) => {
                let Body::MessageDelta { text: delta, .. } = &live.body else { panic!("{live:?}") };
                text.push_str(delta);
                assert!(
                    live.position.pos - last.pos == delta.len() as u64 || last == Position::START,
                    "bytes were lost or given twice: {last} then {live:?}"
                );
                live.position
            }
            other => panic!("{other:?}"),
        };
        assert!(position > last, "{position} after {last}");
        last = position;
    }
    let mut expected = vec![];
    let mut after = Some(Position::START);
    while let Some(at) = after {
        let page = direct.session_events_page("long", &EventsQuery::after(at, None)).await.unwrap();
        expected.extend(page.items.iter().map(|event| event.id));
        after = page.next.map(|next| next.parse().unwrap());
    }
    assert_eq!(event_ids, expected, "each event once and in order");
    assert_eq!((text == complete, text.matches("wörd").count()), (true, 30 * TURNS));
    let cuts = cuts.load(Ordering::Relaxed);
    assert!(cuts >= 200, "only {cuts} cuts");
}

#[tokio::test]
async fn a_stream_resumes_at_its_position_when_its_server_listens_again() {
    let World { node, client, listening } = World::start().await;
    let run = client.run_create(&Prompt::text("a", "say before; ask Go?; say after")).await.unwrap();
    let mut events = client.run_events(run.run.id, Some(run.position));
    let wait = loop {
        let item = events.next().await.unwrap().unwrap();
        if let Item::Event(event) = item
            && let Body::InputRequested { wait_id, .. } = event.body
        {
            break wait_id;
        }
    };
    let (address, at) = (listening.address.clone(), events.position());
    drop(listening);
    let (elsewhere, answer) = (node.listen().await, mainspring_core::Answer::Input { input: "x".into() });
    let other = Client::over_tcp(&elsewhere.url(), TOKEN).unwrap();
    other.run_answer(run.run.id, wait, &answer).await.unwrap();
    assert_eq!(events.position(), at);
    let _listening = node.listen_on(&address).await;
    let mut kinds = vec![];
    while let Some(item) = events.next().await.transpose().unwrap() {
        if let Item::Event(event) = item {
            kinds.push(event.body.kind());
        }
    }
    let expected =
        ["run.waiting_input", "input.provided", "run.running", "message.completed", "run.succeeded"];
    assert_eq!(kinds, expected, "each event once");
    let messages = other.session_snapshot("a").await.unwrap().messages;
    let complete: String = messages
        .iter()
        .filter(|message| message.role == Role::Assistant)
        .map(|message| message.text())
        .collect();
    assert!(complete.ends_with("You answered: x\nafter\n"), "{complete}");
}

#[tokio::test]
async fn a_stream_gives_up_after_the_configured_number_of_failures() {
    let World { client, listening, node: _node } = World::start().await;
    client.session_resolve(&SessionTarget::key("a"), None).await.unwrap();
    let mut events = client.session_events("a", Position::START).give_up_after(2);
    events.connect().await.unwrap();
    assert!(matches!(events.next().await, Some(Ok(Item::Event(_)))));
    let mut feed = client.feed().give_up_after(2);
    feed.next().await.unwrap();
    drop(listening);
    assert!(events.next().await.unwrap().unwrap_err().is_gone());
    assert!(feed.next().await.unwrap_err().is_gone());
}

#[tokio::test]
async fn a_session_stream_ends_with_the_session_and_fails_at_once_for_an_unknown_session() {
    let World { client, node: _node, listening: _listening } = &World::start().await;
    client.session_resolve(&SessionTarget::key("a"), None).await.unwrap();
    let mut events = client.session_events("a", Position::START);
    let mut last = Some(events.next().await.unwrap().unwrap());
    client.session_delete("a").await.unwrap();
    while let Some(item) = events.next().await {
        last = Some(item.unwrap());
    }
    let Some(Item::Event(event)) = last else { panic!("{last:?}") };
    assert!(matches!(event.body, Body::SessionDeleted {}), "{event:?}");
    let mut events = client.session_events("nobody", Position::START);
    assert!(events.next().await.unwrap().unwrap_err().is_not_found());
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn a_stream_from_a_pruned_position_continues_after_a_snapshot() {
    let world = World::start().await;
    let client = &world.client;
    world.play("a", "say one").await;
    let page = client.session_events_page("a", &EventsQuery::default()).await.unwrap();
    client.session_compact("a", page.items.last().unwrap().position()).await.unwrap();
    let mut events = client.session_events("a", Position::START);
    let Item::Reset(snapshot) = events.next().await.unwrap().unwrap() else { panic!("no reset") };
    assert_eq!(*snapshot, client.session_snapshot("a").await.unwrap());
    assert_eq!(events.position(), Some(snapshot.position));
    world.prompt("a", "say two").await;
    assert!(
        matches!(events.next().await.unwrap().unwrap(), Item::Event(event) if event.body.kind() == "run.queued")
    );
}

#[tokio::test]
async fn a_stream_of_an_ended_run_whose_events_are_pruned_ends_with_the_snapshot() {
    let world = World::start().await;
    let run = world.play("a", "say one").await.id;
    let page = world.client.session_events_page("a", &EventsQuery::default()).await.unwrap();
    world.client.session_compact("a", page.items.last().unwrap().position()).await.unwrap();
    let mut events = world.client.run_events(run, Some(Position::START));
    assert!(matches!(events.next().await.unwrap().unwrap(), Item::Reset(_)));
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn thoughts_are_streamed_to_connected_readers() {
    let world = World::start().await;
    let run = world.prompt("a", "ask Go?; think deeply; say done").await;
    let wait = world.question(run.run.id).await;
    let mut events = world.client.run_events(run.run.id, None);
    events.connect().await.unwrap();
    let answer = mainspring_core::Answer::Input { input: "x".into() };
    world.client.run_answer(run.run.id, wait.id, &answer).await.unwrap();
    let mut thoughts = vec![];
    while let Some(item) = events.next().await {
        if let Item::Thought(thought) = item.unwrap() {
            thoughts.push(thought.text);
        }
    }
    assert_eq!(thoughts, ["deeply"]);
}

#[tokio::test]
async fn an_observer_does_not_keep_its_session_in_memory() {
    /// The default of `idle_unload_ms`.
    const IDLE_UNLOAD_MS: u64 = 30_000;
    let World { client, node, listening: _listening } = &World::start().await;
    let mut controller = client.session_events("controlled", Position::START);
    let mut observer = client.session_events("observed", Position::START).observing();
    for (key, events) in [("controlled", &mut controller), ("observed", &mut observer)] {
        client.run_create(&Prompt::text(key, "say first")).await.unwrap();
        while !matches!(events.next().await.unwrap().unwrap(), Item::Event(event) if event.body.ends_run()) {}
    }
    while node.kernel.sessions_in_memory() > 1 {
        node.clock.advance(IDLE_UNLOAD_MS);
        tokio::task::yield_now().await;
    }
    for (key, expected) in [("controlled", Opening::Existing), ("observed", Opening::Started)] {
        let opened = client.session_resolve(&SessionTarget::key(key), None).await.unwrap();
        assert_eq!(opened.opening, expected, "{key}");
    }
    client.run_create(&Prompt::text("observed", "say second")).await.unwrap();
    let item = observer.next().await.unwrap().unwrap();
    assert!(matches!(item, Item::Event(event) if event.body.kind() == "run.queued"), "the stream goes on");
}

#[tokio::test]
async fn a_position_of_another_history_is_refused_or_reset() {
    let world = World::with(TestNode::builder().sqlite()).await;
    let other = World::with(TestNode::builder().sqlite()).await;
    world.play("a", "say one").await;
    let page = world.client.session_events_page("a", &EventsQuery::default()).await.unwrap();
    let position = page.items.last().unwrap().position();
    let events = world.client.owner_events(&OwnerEventsQuery::default()).await.unwrap();
    let own = events.history().unwrap().to_owned();
    let events = other.client.owner_events(&OwnerEventsQuery::default()).await.unwrap();
    let foreign = events.history().unwrap().to_owned();
    let after = |history: &str| OwnerEventsQuery {
        after: Some(position.to_string()),
        history: Some(history.to_owned()),
        ..OwnerEventsQuery::default()
    };
    assert_eq!(code(world.client.owner_events(&after(&foreign)).await), "cursor_expired");
    assert_eq!(code(world.client.owner_events_page(&after(&foreign)).await), "cursor_expired");
    assert_eq!(world.client.owner_events(&after(&own)).await.unwrap().history(), Some(&*own));
    assert_eq!(world.client.owner_events_page(&after(&own)).await.unwrap().items, []);
    let mut events = world.client.session_events("a", position).in_history(Some(foreign));
    assert!(matches!(events.next().await.unwrap().unwrap(), Item::Reset(_)));
    assert_eq!(events.history(), Some(&*own));
}

#[tokio::test]
async fn the_stream_of_a_run_that_is_resumed_after_its_end_ends() {
    let world = World::start().await;
    let run = world.play("a", "say one").await.id;
    let mut events = world.client.run_events(run, None);
    while events.next().await.transpose().unwrap().is_some() {}
    let mut resumed = world.client.run_events(run, events.position());
    let next = tokio::time::timeout(Duration::from_secs(30), resumed.next()).await;
    assert!(next.expect("the stream does not end").is_none());
}
