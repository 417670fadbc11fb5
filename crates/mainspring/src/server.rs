//! The server of a node: the HTTP API on the state directory's socket, and optionally on a TCP address.
//!
//! Any process that owns the state directory serves it, also a short command, so that a second process is always a
//! client of the first.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::serve::ListenerExt;
use mainspring_client::Socket;
use mainspring_http::{Access, Http, HttpLimits};
use mainspring_kernel::Kernel;
use mainspring_kernel::tasks::Tasks;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::node::Node;
use crate::token;

/// Time that connections may take to end after everything else has stopped.
const CONNECTION_END_TIMEOUT: Duration = Duration::from_secs(5);

/// A running server.
pub struct Server {
    kernel: Kernel,
    socket: Socket,
    address: Option<SocketAddr>,
    closing: CancellationToken,
    stop: CancellationToken,
    tasks: Tasks,
}

/// Why a server could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The token cannot be read or created.
    #[error("the token of the state directory cannot be used: {0}")]
    Token(io::Error),
    /// The address cannot be bound.
    #[error("cannot listen on {address}: {source}; {remedy}")]
    Listen {
        /// The address.
        address: String,
        /// The error of the operating system.
        source: io::Error,
        /// The remedy, for people.
        remedy: &'static str,
    },
}

impl ServeError {
    /// Returns the stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Token(_) => "state_dir_unusable",
            Self::Listen { .. } => "cannot_listen",
        }
    }
}

impl Server {
    /// Serves `node` on its socket, and on `listen` if given.
    pub async fn start(node: &Node, config: &Config, listen: Option<SocketAddr>) -> Result<Self, ServeError> {
        let token = token::read_or_create(&config.state_dir).map_err(ServeError::Token)?;
        raise_open_file_limit(config.http);
        let kernel = node.kernel().clone();
        let tcp = match listen {
            Some(address) => Some(bind_tcp(address).await?),
            None => None,
        };
        let address = tcp.as_ref().and_then(|tcp| tcp.local_addr().ok());
        let socket = Socket::in_state_dir(&config.state_dir);
        let unix = bind_socket(&socket)?;
        let (closing, stop, tasks) = (CancellationToken::new(), CancellationToken::new(), Tasks::default());
        let access = Access::new(&token, &config.owner);
        let http = Http::new(kernel.clone(), access, config.http, stop.clone());
        let router = http.with_hosts(&config.allowed_hosts).router();
        if let Some(tcp) = tcp {
            // Streamed data is sent without delay. A connection that refuses the option is slower, but works.
            let tcp = tcp.tap_io(|stream| stream.set_nodelay(true).unwrap_or_default());
            tasks.spawn(mainspring_http::serve(tcp, router.clone(), config.http, closing.clone()));
        }
        tasks.spawn(mainspring_http::serve(unix, router, config.http, closing.clone()));
        Ok(Self { kernel, socket, address, closing, stop, tasks })
    }

    /// Returns the TCP address, if the server listens on one.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Returns the socket.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Refuses new connections. A new client finds no socket and waits for the state directory.
    pub fn close(&self) {
        // The lock decides which process may serve; the socket of a stopping server would mislead clients.
        let _ = std::fs::remove_file(self.socket.path());
        self.closing.cancel();
    }

    /// Stops the kernel first, so that streams report the end of every run, then the streams.
    pub async fn stop(self) {
        self.close();
        self.kernel.shutdown().await;
        self.stop.cancel();
        tokio::select! {
            () = self.tasks.wait() => {}
            () = self.kernel.sleep(CONNECTION_END_TIMEOUT) => {}
        }
    }
}

/// Raises the limit of open files: every stream is one, and most systems allow a process 1,024 by default.
fn raise_open_file_limit(limits: HttpLimits) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // Twice the streams and requests: the other half is for idle connections, the store and agents. Not the system's
    // maximum: agents inherit the limit, and some programs start by closing every possible file.
    let wanted = u64::try_from(2 * (limits.streams + limits.requests)).unwrap_or(u64::MAX);
    let wanted = maximum.map_or(wanted, |maximum| maximum.min(wanted));
    if current.is_none_or(|current| current >= wanted) {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }) {
        tracing::warn!(%error, wanted, "the limit of open files cannot be raised: fewer streams can be open");
    }
}

async fn bind_tcp(address: SocketAddr) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address).await.map_err(|source| ServeError::Listen {
        address: address.to_string(),
        source,
        remedy: "choose another address with --listen",
    })
}

/// Binds the socket. This process owns the folder, so an existing socket was left by a dead process.
fn bind_socket(socket: &Socket) -> Result<UnixListener, ServeError> {
    let failed = |source| ServeError::Listen {
        address: socket.path().display().to_string(),
        source,
        remedy: "check the folder, or choose another with --state-dir",
    };
    match std::fs::remove_file(socket.path()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    UnixListener::bind(socket.address()).map_err(failed)
}
