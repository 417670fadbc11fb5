//! The measured servers, each a separate process: mainspring, and a bare server that writes the same rows in one commit, or
//! does one read.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Path as Named, State};
use axum::http::header;
use axum::response::IntoResponse;
use axum::response::sse::{Event, Sse};
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use axum::{Json, Router};
use futures_util::stream;
use mainspring_http::{Access, Http, HttpLimits};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::ids::Ids;
use mainspring_kernel::kernel::{Kernel, Options};
use parking_lot::Mutex;
use rusqlite::Connection;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::adapter;
use crate::by_hand::ByHand;
use crate::{raw, world};

/// The argument that selects our server.
pub(crate) const OURS: &str = "--serve-ours";
/// The argument that selects the bare server.
pub(crate) const BARE: &str = "--serve-bare";
pub(crate) const TOKEN: &str = "benchmark";
/// The bare server's number of reading connections, the same as ours.
const READERS: usize = 4;

/// A server process. Dropping it ends the process.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    pub(crate) token: String,
}

impl Server {
    /// Starts this program in `mode` on the database at `path`.
    pub(crate) fn start(mode: &str, path: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let mut child =
            command.arg(mode).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { child, port: line.trim().parse().unwrap(), token: TOKEN.into() }
    }

    /// Starts the program as users run it, on the state directory `dir`, with 1,024 workers. The executable is beside this
    /// one.
    pub(crate) fn daemon(dir: &Path) -> Self {
        Self::daemon_with(dir, &[("MAINSPRING_MAX_WORKERS", "1024")])
    }

    /// Starts the program with these settings and the defaults of all others.
    pub(crate) fn daemon_with(dir: &Path, settings: &[(&str, &str)]) -> Self {
        let mut child = mainspring(dir)
            .env_remove("MAINSPRING_MAX_WORKERS")
            .envs(settings.iter().copied())
            .args(["serve", "--listen", "127.0.0.1:0"])
            .stderr(Stdio::piped())
            .spawn()
            .expect("build it first: cargo build --profile dist -p mainspring-cli");
        let mut line = String::new();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        stderr.read_line(&mut line).unwrap();
        let address = line.split_whitespace().find_map(|word| word.strip_prefix("http://127.0.0.1:"));
        let port = address.unwrap_or_else(|| panic!("{line}")).parse().unwrap();
        // Drain its standard error, so that the process never blocks on it.
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
        let token = std::fs::read_to_string(dir.join("token")).unwrap().trim().to_owned();
        Self { child, port, token }
    }

    /// Resident memory now and at its peak, in megabytes.
    pub(crate) fn resident(&self) -> (f64, f64) {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let megabytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().trim_end_matches("kB").trim().parse::<f64>().unwrap() / 1024.0
        };
        (megabytes("VmRSS:"), megabytes("VmHWM:"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command for the program on the state directory `dir`. The executable is beside this one.
pub(crate) fn mainspring(dir: &Path) -> Command {
    let mut path: PathBuf = std::env::current_exe().unwrap();
    path.set_file_name("mainspring");
    let mut command = Command::new(path);
    command.env("MAINSPRING_STATE_DIR", dir).env("MAINSPRING_MAX_IN_PROCESS_RUNS", "1024");
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// The child process that is our server.
pub(crate) fn ours(path: &Path) {
    world::runtime().block_on(async {
        let options = Options {
            adapter: adapter::ANSWER.into(),
            idle_unload_ms: 60 * 60 * 1_000,
            max_workers: 1_024,
            ..Options::default()
        };
        let store = world::store(path);
        let kernel =
            Kernel::start(store, adapter::all(), options, Clock::system(), Ids::system()).await.unwrap();
        let access = Access::new(TOKEN, world::OWNER);
        let http = Http::new(kernel, access, HttpLimits::default(), CancellationToken::new());
        serve(http.with_threads(true).router()).await;
    });
}

struct Bare {
    path: PathBuf,
    /// Made with the first prompt: a server that has just started has no sessions.
    writer: OnceLock<Mutex<ByHand>>,
    readers: Vec<Mutex<Connection>>,
    /// Sends the frames of a broadcast to its readers.
    frames: broadcast::Sender<Bytes>,
}

/// The sessions to which the bare server writes in turn: as many as 64 clients of ours use.
const BARE_SESSIONS: usize = 1_024;

/// The child process that is the bare server.
pub(crate) fn bare(path: &Path) {
    let readers = (0..READERS).map(|_| Mutex::new(raw::connect(path))).collect();
    let state = Arc::new(Bare {
        path: path.into(),
        writer: OnceLock::new(),
        readers,
        frames: broadcast::channel(64).0,
    });
    world::runtime().block_on(async {
        let router = Router::new()
            .route("/commit", post(commit))
            .route("/session/{session}", get(session))
            .route("/events/{session}", get(events))
            .route("/pace/{count}", get(pace))
            .route("/broadcast", get(broadcast_read))
            .route("/broadcast/{count}", post(broadcast_write))
            .with_state(state);
        serve(router).await;
    });
}

async fn serve(router: Router) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{}", listener.local_addr().unwrap().port());
    // The process exits with its parent.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    // Like our server.
    let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
    axum::serve(listener, router).await.unwrap();
}

/// Writes the rows of an accepted prompt in one transaction.
async fn commit(State(bare): State<Arc<Bare>>, Json(body): Json<Value>) -> Json<Value> {
    let text = body["prompt"].as_str().unwrap().to_owned();
    let writer = || Mutex::new(ByHand::new(raw::connect(&bare.path), BARE_SESSIONS));
    let id = tokio::task::block_in_place(|| bare.writer.get_or_init(writer).lock().prompt(text));
    Json(json!({"id": id}))
}

/// Sends each frame of a broadcast, which is serialized once for all readers.
async fn broadcast_read(State(bare): State<Arc<Bare>>) -> impl IntoResponse {
    let frames = stream::unfold(bare.frames.subscribe(), |mut frames| async move {
        let frame = frames.recv().await.ok()?;
        (!frame.is_empty()).then_some((Ok::<_, std::convert::Infallible>(frame), frames))
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(frames))
}

/// Sends the current time to all readers, 20 times per second.
async fn broadcast_write(State(bare): State<Arc<Bare>>, Named(count): Named<usize>) -> Json<Value> {
    let mut tick = tokio::time::interval(adapter::READ_INTERVAL);
    for _ in 0..count {
        tick.tick().await;
        let data = json!({"text": adapter::timestamp()});
        let _ = bare.frames.send(Bytes::from(format!("data: {data}\n\n")));
    }
    // An empty frame ends the streams.
    let _ = bare.frames.send(Bytes::new());
    Json(json!({}))
}

impl Bare {
    /// Reads with a free connection.
    fn read<T>(&self, read: impl FnOnce(&Connection) -> T) -> T {
        tokio::task::block_in_place(|| {
            let free = self.readers.iter().find_map(Mutex::try_lock);
            read(&free.unwrap_or_else(|| self.readers[0].lock()))
        })
    }
}

async fn session(State(bare): State<Arc<Bare>>, Named(session): Named<String>) -> Json<Value> {
    let id = session_bytes(&session);
    Json(bare.read(|connection| {
        let sql =
            "SELECT owner_id, title, status, metadata_json, version FROM sessions WHERE session_id = ?1";
        let mut statement = connection.prepare_cached(sql).unwrap();
        statement
            .query_row([id], |row| {
                Ok(json!({
                    "owner": row.get::<_, String>(0)?, "title": row.get::<_, Option<String>>(1)?,
                    "status": row.get::<_, String>(2)?, "metadata": row.get::<_, String>(3)?,
                    "version": row.get::<_, i64>(4)?, "session": session,
                }))
            })
            .unwrap()
    }))
}

async fn events(State(bare): State<Arc<Bare>>, Named(session): Named<String>) -> Json<Value> {
    let id = session_bytes(&session);
    Json(bare.read(|connection| {
        let sql = "SELECT event_seq, e.type, payload, m.content FROM events AS e LEFT JOIN messages AS m USING (message_id)
                   WHERE e.session_id = ?1 ORDER BY event_seq LIMIT 50";
        let mut statement = connection.prepare_cached(sql).unwrap();
        let rows = statement.query_map([id], |row| {
            Ok(json!({
                "cursor": row.get::<_, i64>(0)?, "type": row.get::<_, String>(1)?,
                "payload": row.get::<_, String>(2)?, "content": row.get::<_, Option<String>>(3)?,
            }))
        });
        rows.unwrap().collect::<Result<_, _>>().unwrap()
    }))
}

fn session_bytes(session: &str) -> Vec<u8> {
    session.parse::<mainspring_core::SessionId>().unwrap().as_bytes().to_vec()
}

async fn pace(
    Named(count): Named<usize>,
) -> Sse<impl stream::Stream<Item = Result<Event, std::convert::Infallible>>> {
    let tick = tokio::time::interval(Duration::from_millis(1));
    Sse::new(stream::unfold((tick, count), |(mut tick, left)| async move {
        tick.tick().await;
        let frame = || Event::default().data(json!({"text": adapter::timestamp()}).to_string());
        (left > 0).then(|| (Ok(frame()), (tick, left - 1)))
    }))
}
