//! Latency of a model's text: from the moment the provider writes a delta until a subscriber receives it, for a
//! hundred concurrent runs, through HTTP, the provider's protocol, the native loop, the kernel and a subscription.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body as Bytes;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::post;
use axum::serve::ListenerExt;
use futures_util::StreamExt;
use futures_util::stream;
use mainspring_agent::provider::{Connections, GenaiProvider, KeySource, Kind, install_tls};
use mainspring_agent::{Definitions, Models, ModelsConfig, NativeAdapter, Toolbox, native};
use mainspring_core::{Body, RunOptions};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::feed::Item;
use mainspring_kernel::ids::Ids;
use mainspring_kernel::kernel::{Kernel, Options, RunRequest};
use mainspring_kernel::store::SessionRef;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::time::Instant;

use crate::adapter::{ages, timestamp};
use crate::stats::{ms, percentile};
use crate::table::{Goal, Table};
use crate::world;

/// Concurrent runs.
const RUNS: usize = 100;
/// Deltas per run, and the interval between them.
const DELTAS: u32 = 150;
const INTERVAL: Duration = Duration::from_millis(20);
const ROUNDS: usize = 3;

pub(crate) fn measure(runtime: &Runtime, table: &mut Table) {
    let folder = world::Folder::new();
    let store = world::store(&folder.file("ours.sqlite3"));
    runtime.block_on(async {
        install_tls();
        let provider = serve().await;
        let options = Options { max_workers: RUNS, adapter: native::NAME.into(), ..Options::default() };
        let base = format!("http://{provider}/v1/");
        let provider_client =
            GenaiProvider::new("bench", Kind::OpenAi, &base, KeySource::None, &Connections::direct());
        let models =
            Models::new(&ModelsConfig::default()).unwrap().with_provider("bench", Arc::new(provider_client));
        let adapter = NativeAdapter::new(models, Toolbox::default(), Definitions::new(None));
        let kernel = Kernel::start(store, vec![Arc::new(adapter)], options, Clock::system(), Ids::system());
        let kernel = kernel.await.unwrap();
        let (mut ours, mut baseline) = (vec![], vec![]);
        for round in 0..ROUNDS {
            ours.extend(run_concurrently(|no| run(kernel.clone(), format!("r{round}-{no}"))).await);
            baseline.extend(run_concurrently(|_| read(base.clone())).await);
        }
        kernel.shutdown().await;
        assert_eq!(
            (ours.len(), baseline.len()),
            (RUNS * DELTAS as usize * ROUNDS, ours.len()),
            "every delta"
        );
        for (name, part, goal) in [("p50", 0.5, Goal::None), ("p99", 0.99, Goal::AtMost(2_000.0))] {
            table.line(
                format!("a model's delta to its subscriber, {RUNS} runs at once, {name}, 5,000/s"),
                percentile(&ours, part) * 1e3,
                Some((percentile(&baseline, part) * 1e3, "the same bytes, read by a bare client")),
                "µs",
                goal,
            );
        }
    });
}

/// Runs a hundred tasks concurrently and collects their results.
async fn run_concurrently<F: Future<Output = Vec<f64>> + Send + 'static>(
    make: impl Fn(usize) -> F,
) -> Vec<f64> {
    let running: Vec<_> = (0..RUNS).map(|no| tokio::spawn(make(no))).collect();
    let mut latencies_ms = vec![];
    for task in running {
        latencies_ms.extend(task.await.unwrap());
    }
    latencies_ms
}

/// The latency of each delta of a run at a subscription.
async fn run(kernel: Kernel, key: String) -> Vec<f64> {
    let options = RunOptions { model: Some("bench/any".into()), ..RunOptions::default() };
    let request = RunRequest { options, ..RunRequest::text(key, "continue") };
    let accepted = kernel.run_create(&world::caller(), request).await.unwrap();
    let by = SessionRef::Id(accepted.session.id);
    let mut feed = kernel.session_subscribe(&world::caller(), &by, Some(accepted.position)).await.unwrap();
    let mut latencies_ms = vec![];
    while let Some(item) = feed.next().await {
        match item.unwrap() {
            Item::Delta(delta) => latencies_ms.extend(ages(&delta.text).map(ms)),
            Item::Event(event) => match &event.body {
                Body::RunSucceeded { .. } => break,
                Body::RunFailed { error, .. } => panic!("{error:?}"),
                _ => {}
            },
            other => panic!("{other:?}"),
        }
    }
    latencies_ms
}

/// The latency of each delta at a client that reads the bytes, extracts the timestamp and does nothing else.
async fn read(base: String) -> Vec<f64> {
    let client = reqwest::Client::builder().no_proxy().tcp_nodelay(true).build().unwrap();
    let answer = client.post(format!("{base}chat/completions")).json(&json!({})).send().await.unwrap();
    let (mut bytes, mut latencies_ms) = (answer.bytes_stream(), vec![]);
    let mut open = String::new();
    while let Some(piece) = bytes.next().await {
        open += std::str::from_utf8(&piece.unwrap()).unwrap();
        while let Some((frame, rest)) = open.split_once("\n\n") {
            if let Some((_, text)) = frame.split_once("\"content\":\"") {
                latencies_ms.extend(ages(text.split('"').next().unwrap()).map(ms));
            }
            open = rest.to_owned();
        }
    }
    latencies_ms
}

/// A provider that sends the current time as the text of each delta.
async fn serve() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let listener = listener.tap_io(|stream| stream.set_nodelay(true).unwrap());
    let router = Router::new().route("/v1/chat/completions", post(answer));
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    address
}

async fn answer() -> impl IntoResponse {
    let begin = Instant::now();
    let frames = stream::unfold(0, move |no| async move {
        if no > DELTAS {
            return None;
        }
        tokio::time::sleep_until(begin + INTERVAL * (no + 1)).await;
        let chunk = |delta: serde_json::Value, end: Option<&str>| {
            let choice = json!({"index": 0, "delta": delta, "finish_reason": end});
            json!({"id": "c", "object": "chat.completion.chunk", "model": "any", "choices": [choice]})
        };
        let frame = match no {
            DELTAS => format!("data: {}\n\ndata: [DONE]\n\n", chunk(json!({}), Some("stop"))),
            _ => format!("data: {}\n\n", chunk(json!({"content": timestamp()}), None)),
        };
        Some((Ok::<_, std::io::Error>(frame), no + 1))
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Bytes::from_stream(frames))
}
