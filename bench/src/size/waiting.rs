//! Memory of a native run that has waited a minute for the result of a client tool.
//!
//! The kernel is a separate process: this program with the argument [`CHILD`].

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::post;
use mainspring_agent::provider::{Connections, GenaiProvider, KeySource, Kind, install_tls};
use mainspring_agent::{Definitions, Models, ModelsConfig, NativeAdapter, Toolbox, native};
use mainspring_core::{ClientTool, RunOptions, RunStatus};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::ids::Ids;
use mainspring_kernel::kernel::{Kernel, Options, RunRequest};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::start::resident;
use crate::table::{Goal, Table};
use crate::world;

/// The argument that selects the child mode.
pub(crate) const CHILD: &str = "--waiting";
/// The number of runs, for the child.
const RUNS_VARIABLE: &str = "MAINSPRING_BENCH_RUNS";
const RUNS: usize = 5_000;
/// How long the runs wait before memory is read. After some seconds their sessions leave memory, and then the idle
/// process gives freed memory back.
const WAIT: Duration = Duration::from_secs(60);
const TASKS: usize = 16;

pub(super) fn measure(table: &mut Table) {
    let folder = world::Folder::new();
    let runs = world::scaled(RUNS).max(20);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg(CHILD).arg(folder.file("ours.sqlite3")).env(RUNS_VARIABLE, runs.to_string());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let kilobytes: f64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    let measure = format!("memory of a native run that has waited a minute, {runs} runs");
    table.line(measure, kilobytes, None, "KB", Goal::AtMost(5.0));
}

/// The child process: prints the kilobytes of each waiting run.
pub(crate) fn child(path: &Path) {
    let runs: usize = std::env::var(RUNS_VARIABLE).unwrap().parse().unwrap();
    world::runtime().block_on(async {
        install_tls();
        let base = format!("http://{}/v1/", serve().await);
        let provider =
            GenaiProvider::new("bench", Kind::OpenAi, &base, KeySource::None, &Connections::direct());
        let models =
            Models::new(&ModelsConfig::default()).unwrap().with_provider("bench", Arc::new(provider));
        let adapter = NativeAdapter::new(models, Toolbox::default(), Definitions::new(None));
        let options = Options {
            adapter: native::NAME.into(),
            idle_unload_ms: 500,
            auto_title: false,
            ..Options::default()
        };
        let store = world::store(path);
        let kernel = Kernel::start(store, vec![Arc::new(adapter)], options, Clock::system(), Ids::system());
        let kernel = kernel.await.unwrap();
        // The first runs fill caches and pools, which do not grow with further ones.
        let few = runs / 10;
        let wait = if runs >= RUNS { WAIT } else { Duration::from_secs(1) };
        wait_for_tools(&kernel, 0..few, wait).await;
        let before = resident();
        wait_for_tools(&kernel, few..runs, wait).await;
        println!("{}", (resident() - before) * 1024.0 / (runs - few) as f64);
        kernel.shutdown().await;
    });
}

/// Starts runs, and returns when all of them have waited for `wait`.
async fn wait_for_tools(kernel: &Kernel, runs: std::ops::Range<usize>, wait: Duration) {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (kernel, own) = (kernel.clone(), runs.clone().skip(task).step_by(TASKS));
        tasks.spawn(async move {
            for no in own {
                let tool = ClientTool {
                    name: "lookup".into(),
                    description: "looks up".into(),
                    input_schema: json!({"type": "object"}),
                    ..ClientTool::default()
                };
                let options = RunOptions {
                    model: Some("bench/any".into()),
                    tools: vec![tool],
                    ..RunOptions::default()
                };
                let request = RunRequest { options, ..RunRequest::text(format!("w{no}"), "look it up") };
                let run = kernel.run_create(&world::caller(), request).await.unwrap().run.id;
                while kernel.run_status(&world::caller(), run).await.unwrap() != RunStatus::WaitingInput {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        });
    }
    tasks.join_all().await;
    tokio::time::sleep(wait).await;
}

/// A provider whose model calls the tool `lookup`.
async fn serve() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().route("/v1/chat/completions", post(answer));
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    address
}

async fn answer() -> impl IntoResponse {
    let chunk = |delta: serde_json::Value, end: Option<&str>| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": end});
        json!({"id": "c", "object": "chat.completion.chunk", "model": "any", "choices": [choice]})
    };
    let function = json!({"name": "lookup", "arguments": "{}"});
    let call = json!({"index": 0, "id": "call_1", "type": "function", "function": function});
    let (call, end) = (
        chunk(json!({"role": "assistant", "tool_calls": [call]}), None),
        chunk(json!({}), Some("tool_calls")),
    );
    (
        [(header::CONTENT_TYPE, "text/event-stream")],
        format!("data: {call}\n\ndata: {end}\n\ndata: [DONE]\n\n"),
    )
}
