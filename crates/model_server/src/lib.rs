//! The scripted model server: Anthropic Messages, OpenAI Chat Completions and Responses, and Gemini, over real HTTP.
//!
//! `mainspring model-server`, the provider `scripted` and the tests use it; it needs no key. A reply comes from a queue
//! that a test fills ([`ModelServer::enqueue`]). When the queue is empty, the server follows the prompt as a script
//! ([`mainspring_core::script`]).

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::serve::ListenerExt;
use mainspring_system::clock::Clock;
use mainspring_system::tasks::Tasks;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

mod http;
mod protocol;
mod reply;
mod script;

pub use protocol::Protocol;
pub use reply::{Action, Fault, Gate, Reply, StopReason, Tokens};

/// A request that the server received.
#[derive(Debug, Clone)]
pub struct RecordedRequest {
    /// The protocol of the request.
    pub protocol: Protocol,
    /// The path, without the query.
    pub path: String,
    /// The headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Value,
}

impl RecordedRequest {
    /// Returns the value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// Counts of the requests so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Requests received.
    pub received: usize,
    /// Requests whose client disconnected before the reply was complete.
    pub aborted: usize,
}

/// The state that all requests share.
#[derive(Debug)]
struct Shared {
    queue: Mutex<VecDeque<Reply>>,
    /// The requests so far. `None` for a server that may run for weeks: its memory must not grow.
    recorded: Option<Mutex<Vec<RecordedRequest>>>,
    counts: watch::Sender<RequestCounts>,
    memory: Mutex<script::Memory>,
    /// The last number given to a reply or a tool call, so that ids are unique.
    last_no: Mutex<u64>,
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
    /// Starts a server on a free local port that records its requests.
    pub async fn start() -> std::io::Result<Self> {
        Self::bind("127.0.0.1:0", Some(Mutex::default())).await
    }

    /// Starts a server on `address` that records no requests.
    pub async fn listen(address: &str) -> std::io::Result<Self> {
        Self::bind(address, None).await
    }

    async fn bind(address: &str, recorded: Option<Mutex<Vec<RecordedRequest>>>) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        // Sends each delta at once. If the option cannot be set, the connection is slower but works.
        let listener = listener.tap_io(|stream| stream.set_nodelay(true).unwrap_or_default());
        let stop = CancellationToken::new();
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            recorded,
            counts: watch::Sender::new(RequestCounts::default()),
            memory: Mutex::default(),
            last_no: Mutex::default(),
            clock: Clock::system(),
            stop: stop.clone(),
        });
        let tasks = Tasks::default();
        let router = http::router(shared.clone());
        tasks.spawn(async move {
            let served = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await;
            served.unwrap_or_default();
        });
        Ok(Self { address, shared, tasks })
    }

    /// Returns the server's URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the address and port that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the base URL for a client of `protocol`.
    pub fn base_url(&self, protocol: Protocol) -> String {
        format!("{}/{}/", self.url(), protocol.version())
    }

    /// Queues `reply`. Each request takes one reply from the queue.
    pub fn enqueue(&self, reply: Reply) -> &Self {
        self.shared.queue.lock().push_back(reply);
        self
    }

    /// Returns the requests so far, in order; empty if the server does not record them.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.shared.recorded.as_ref().map(|recorded| recorded.lock().clone()).unwrap_or_default()
    }

    /// Returns the counts of the requests so far.
    pub fn counts(&self) -> RequestCounts {
        *self.shared.counts.borrow()
    }

    /// Waits until `condition` holds for the counts.
    pub async fn wait(&self, condition: impl FnMut(&RequestCounts) -> bool) -> RequestCounts {
        let counts = self.shared.counts.subscribe().wait_for(condition).await.map(|counts| *counts);
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
