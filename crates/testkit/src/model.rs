//! The scripted model server: Anthropic Messages, OpenAI Chat Completions and Responses, and Gemini, over real HTTP.
//!
//! What it says comes from a queue that a test fills ([`ModelServer::then`]), or, when the queue is empty, from the
//! prompt itself, in the little language of the script agent. It records every request it gets.

use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use mainspring_kernel::clock::Clock;
use mainspring_kernel::tasks::Tasks;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

mod reply;
mod script;
mod serve;
mod wire;

pub use reply::{Act, Fault, Gate, Reply, Stop, Tokens};
pub use wire::Wire;

/// A request that the server got.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// In which protocol.
    pub wire: Wire,
    /// The path, without the query.
    pub path: String,
    /// The headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Value,
}

impl Recorded {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// How many requests came, and how many of them their caller gave up before the answer was whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that came.
    pub asked: usize,
    /// Answers that the caller did not wait for.
    pub aborted: usize,
}

/// What requests share.
#[derive(Debug)]
struct Shared {
    queue: Mutex<VecDeque<Reply>>,
    recorded: Mutex<Vec<Recorded>>,
    counts: watch::Sender<Counts>,
    /// Prompts that were to fail once, and have.
    failed: Mutex<HashSet<String>>,
    /// Answers and tool calls, counted, so that their ids differ.
    made: Mutex<u64>,
    clock: Clock,
    stop: CancellationToken,
}

/// A model server that listens until it is dropped.
#[derive(Debug)]
pub struct ModelServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    tasks: Tasks,
}

impl ModelServer {
    /// A server on a free port of this machine.
    pub async fn start() -> std::io::Result<Self> {
        Self::listen("127.0.0.1:0").await
    }

    /// A server on `address`.
    pub async fn listen(address: &str) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let stop = CancellationToken::new();
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            recorded: Mutex::default(),
            counts: watch::Sender::new(Counts::default()),
            failed: Mutex::default(),
            made: Mutex::default(),
            clock: Clock::system(),
            stop: stop.clone(),
        });
        let tasks = Tasks::default();
        let router = serve::router(shared.clone());
        tasks.spawn(async move {
            let served = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await;
            served.unwrap_or_default();
        });
        Ok(Self { address, shared, tasks })
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The base URL that a client of `wire` is given.
    pub fn base_url(&self, wire: Wire) -> String {
        format!("{}/{}/", self.url(), wire.version())
    }

    /// Answers the next request that has no answer yet with `reply`.
    pub fn then(&self, reply: Reply) -> &Self {
        self.shared.queue.lock().push_back(reply);
        self
    }

    /// The requests so far, in order.
    pub fn requests(&self) -> Vec<Recorded> {
        self.shared.recorded.lock().clone()
    }

    /// How many requests there were.
    pub fn counts(&self) -> Counts {
        *self.shared.counts.borrow()
    }

    /// Returns once `until` is true of the counts.
    pub async fn wait(&self, until: impl FnMut(&Counts) -> bool) -> Counts {
        let counts = self.shared.counts.subscribe().wait_for(until).await.map(|counts| *counts);
        // The sender lives as long as the server.
        counts.unwrap_or_default()
    }

    /// Serves until `stop` resolves.
    pub async fn serve_until(self, stop: impl Future<Output = ()>) {
        stop.await;
        self.shared.stop.cancel();
        self.tasks.wait().await;
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}
