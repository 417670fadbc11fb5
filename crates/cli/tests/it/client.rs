//! The Rust client against a real server, over connections that break.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mainspring::core::{Body, Position};
use mainspring_client::{Client, EventsQuery, Item, Prompt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::guests::serve;

/// Proxies connections to `to` and cuts each one after a random number of bytes.
async fn proxy_with_cuts(listener: TcpListener, to: String, seed: u64, cuts: Arc<AtomicUsize>) {
    let (mut seed, mut connections) = (seed, JoinSet::new());
    loop {
        let (mut local, _) = listener.accept().await.unwrap();
        let mut remote = TcpStream::connect(&to).await.unwrap();
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // The head of a response has about 200 bytes, so some connections break before any content.
        let mut budget = usize::try_from(seed >> 33).unwrap() % 1_600 + 150;
        let cuts = cuts.clone();
        connections.spawn(async move {
            let (mut request, mut response) = ([0; 4096], [0; 4096]);
            while budget > 0 {
                tokio::select! {
                    read = local.read(&mut request) => match read {
                        Ok(read) if read > 0 => remote.write_all(&request[..read]).await.unwrap(),
                        _ => return,
                    },
                    read = remote.read(&mut response) => match read {
                        Ok(read) if read > 0 => {
                            let read = read.min(budget);
                            budget -= read;
                            if local.write_all(&response[..read]).await.is_err() {
                                return;
                            }
                        }
                        _ => return,
                    },
                }
            }
            cuts.fetch_add(1, Ordering::Relaxed);
        });
    }
}

fn token(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("state/token")).unwrap().trim().to_owned()
}

#[tokio::test]
async fn an_interrupted_stream_delivers_each_event_and_byte_once() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, url) = serve(dir.path());
    let direct = Client::over_tcp(&url, &token(dir.path())).unwrap();
    let seed = std::env::var("SEED").map_or(7, |seed| seed.parse().unwrap());
    eprintln!("SEED={seed}");
    let (listener, cuts) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), Arc::new(AtomicUsize::new(0)));
    let through = format!("http://{}", listener.local_addr().unwrap());
    let mut proxy = JoinSet::new();
    proxy.spawn(proxy_with_cuts(listener, url.trim_start_matches("http://").to_owned(), seed, cuts.clone()));

    const TURNS: usize = 8;
    for _ in 0..TURNS {
        let script =
            format!("stream 30 every 1ms wörd; {} say end", "tool add {\"a\":1,\"b\":1}; ".repeat(5));
        direct.run_create(&Prompt::text("long", script)).await.unwrap();
    }
    let client = Client::over_tcp(&through, &token(dir.path())).unwrap();
    let mut events = client.session_events("long", Position::START);
    let mut turns = 0;
    let (mut text, mut event_ids, mut last) = (String::new(), vec![], Position::START);
    let mut complete = String::new();
    while turns < TURNS {
        let position = match events.next().await.unwrap().unwrap() {
            Item::Event(event) => {
                turns += usize::from(event.body.ends_run());
                if let Body::MessageCompleted { message, .. } = &event.body
                    && message.role == mainspring::core::Role::Assistant
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
async fn client_errors_have_codes() {
    let dir = tempfile::tempdir().unwrap();
    let (server, url) = serve(dir.path());
    let client = Client::over_tcp(&url, &token(dir.path())).unwrap();
    let missing = client.session_get("no/such session?").await.unwrap_err();
    assert_eq!(missing.code(), "invalid_request", "{missing}");
    assert_eq!(client.session_get("nobody").await.unwrap_err().code(), "not_found");
    let unauthorized = Client::over_tcp(&url, "guess").unwrap();
    assert_eq!(unauthorized.session_get("nobody").await.unwrap_err().code(), "authentication");
    drop(server);
    let gone = client.session_get("nobody").await.unwrap_err();
    assert!(gone.is_gone() && gone.is_retryable(), "{gone}");
    assert!(Client::over_tcp("not an address", "x").is_err());
}
