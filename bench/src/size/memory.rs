//! Memory of the daemon: with many sessions that have left memory, with many loaded ones, and with many readers.

use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::http::client::{Client, SseStream, between};
use crate::http::server::Server;
use crate::soak::raise_open_file_limit;
use crate::table::{Goal, Table};
use crate::world;

/// Sessions that had a turn and have left memory.
const UNLOADED: usize = 20_000;
/// The memory of a loaded session is the difference between these numbers of sessions.
const LOADED: [usize; 2] = [2_000, 12_000];
const READERS: usize = 2_000;
const CLIENTS: usize = 64;

pub(super) fn measure(runtime: &Runtime, table: &mut Table) {
    raise_open_file_limit(READERS);
    runtime.block_on(async {
        unloaded(table).await;
        loaded(table).await;
        readers(table).await;
    });
}

fn daemon(folder: &world::Folder, idle_unload_ms: &str) -> Server {
    let settings = [("MAINSPRING_MAX_WORKERS", "1024"), ("MAINSPRING_IDLE_UNLOAD_MS", idle_unload_ms)];
    Server::daemon_with(&folder.file("state"), &settings)
}

async fn unloaded(table: &mut Table) {
    let folder = world::Folder::new();
    let server = daemon(&folder, "1000");
    let before = server.resident().0;
    let count = world::scaled(UNLOADED);
    turns(&server, 0..count).await;
    wait_unloaded(&server).await;
    let after = server.resident().0;
    let measure = format!("RSS of the daemon after {count} sessions, all unloaded");
    table.line(measure, after, Some((before, "before")), "MB", Goal::AtMost(70.0));
}

async fn loaded(table: &mut Table) {
    let folder = world::Folder::new();
    let server = daemon(&folder, "3600000");
    let [few, many] = LOADED.map(world::scaled);
    turns(&server, 0..few).await;
    let before = server.resident().0;
    turns(&server, few..many).await;
    let kilobytes = (server.resident().0 - before) * 1024.0 / (many - few).max(1) as f64;
    table.line(
        format!("memory of a loaded session, {many} sessions"),
        kilobytes,
        None,
        "KB",
        Goal::AtMost(22.0),
    );
}

async fn readers(table: &mut Table) {
    let folder = world::Folder::new();
    let server = daemon(&folder, "3600000");
    turns(&server, 0..1).await;
    let before = server.resident().0;
    let count = world::scaled(READERS);
    let mut open = vec![];
    for _ in 0..count {
        open.push(SseStream::open(server.port, &server.token, "GET", "/v1/sessions/m0/events", "").await);
    }
    let kilobytes = (server.resident().0 - before) * 1024.0 / count as f64;
    table.line(format!("memory of a reader, {count} readers"), kilobytes, None, "KB", Goal::AtMost(20.0));
}

/// Runs a turn of each of these sessions.
async fn turns(server: &Server, sessions: std::ops::Range<usize>) {
    let mut tasks = JoinSet::new();
    for task in 0..CLIENTS {
        let mut client = Client::open(server.port, &server.token).await;
        let own: Vec<usize> = sessions.clone().skip(task).step_by(CLIENTS).collect();
        tasks.spawn(async move {
            for no in own {
                let body =
                    format!(r#"{{"prompt":"say hello","adapter":"script","session":{{"key":"m{no}"}}}}"#);
                let answer = client.send_waiting("/v1/runs", &body).await;
                assert!(answer.contains(r#""status":"succeeded""#), "{answer}");
            }
        });
    }
    tasks.join_all().await;
}

/// Waits until no session is in memory, and until the idle store has given its memory back.
async fn wait_unloaded(server: &Server) {
    let mut client = Client::open(server.port, &server.token).await;
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let metrics = client.get("/metrics").await;
        if between(&metrics, "\nmainspring_sessions_in_memory ", "\n")
            .is_some_and(|count| count.starts_with('0'))
        {
            break;
        }
    }
    tokio::time::sleep(Duration::from_secs(8)).await;
}
