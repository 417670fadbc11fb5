//! The server of a node: the HTTP API on the state directory's socket, and optionally on a TCP address.
//!
//! Any process that owns the state directory serves it, also a short command, so that a second process is always a
//! client of the first.

use std::fs::Permissions;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use mainspring_client::Socket;
use mainspring_http::{
    Access, Homes, Http, HttpLimits, Oidc, TlsError, TlsFiles, UnixPeers, WebhookSender, deliver_webhooks,
    only_while,
};
use mainspring_kernel::Kernel;
use mainspring_kernel::tasks::Tasks;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpSocket, UnixListener};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::attention::run_on_attention;
use crate::cluster::Member;
use crate::config::Config;
use crate::node::Node;
use crate::token;

pub(crate) mod forwarding;
mod listener;
pub use forwarding::Forwarding;
use listener::{ListenerOpener, Serving};

/// Time that connections and notifiers may take to end; a stopping server does not wait longer.
const CONNECTION_END_TIMEOUT: Duration = Duration::from_secs(5);

/// A running server.
pub struct Server {
    kernel: Kernel,
    socket: Socket,
    address: Option<SocketAddr>,
    is_tls: bool,
    closing: CancellationToken,
    stop: CancellationToken,
    tasks: Tasks,
    notifying: CancellationToken,
    notifiers: Tasks,
}

/// Why a server could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The token cannot be read or created.
    #[error("the token of the state directory cannot be used: {0}")]
    Token(io::Error),
    /// The address can be reached by other machines, and there is no TLS.
    #[error(
        "other machines reach {address}, and keys would be sent to it in the clear: set tls_cert and tls_key, listen on \
         127.0.0.1, or set insecure_http = true if something else encrypts the way"
    )]
    Insecure {
        /// The address.
        address: SocketAddr,
    },
    /// Only one of certificate and key is given.
    #[error("tls_cert and tls_key belong together: set both, or none of them")]
    HalfTls,
    /// The certificate or the key cannot be used.
    #[error("no TLS: {0}")]
    Tls(#[from] TlsError),
    /// The identity provider cannot be used.
    #[error("oidc.issuer cannot be used: {0}")]
    Oidc(String),
    /// Requests cannot be forwarded to the other servers of the cluster.
    #[error("{0}")]
    Cluster(String),
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
            Self::Insecure { .. } => "tls_required",
            Self::HalfTls | Self::Tls(_) => "tls_unusable",
            Self::Oidc(_) | Self::Cluster(_) => "invalid_config",
            Self::Listen { .. } => "cannot_listen",
        }
    }
}

impl Server {
    /// Serves `node` on its socket, and on `listen` if given.
    pub async fn start(node: &Node, config: &Config, listen: Option<SocketAddr>) -> Result<Self, ServeError> {
        let tcp = match listen {
            Some(address) => Some(Self::bind(config, address)?),
            None => None,
        };
        Self::start_on(node, config, tcp).await
    }

    /// Binds a TCP address, if the configuration allows listening on it.
    pub fn bind(config: &Config, address: SocketAddr) -> Result<TcpListener, ServeError> {
        match config.tls_cert.is_none() && !config.insecure_http && !is_local(address) {
            true => Err(ServeError::Insecure { address }),
            false => bind_tcp(address),
        }
    }

    /// Serves `node` on its socket, and on `tcp` if given.
    pub async fn start_on(
        node: &Node,
        config: &Config,
        tcp: Option<TcpListener>,
    ) -> Result<Self, ServeError> {
        let token = token::read_or_create(&config.state_dir).map_err(ServeError::Token)?;
        let limits = raise_open_files(config.http);
        let kernel = node.kernel().clone();
        let tls = tls_files(config)?;
        let oidc = Oidc::new(config.oidc.clone()).map_err(ServeError::Oidc)?;
        let address = tcp.as_ref().and_then(|tcp| tcp.local_addr().ok());
        let socket = Socket::in_state_dir(&config.state_dir);
        let unix = bind_socket(&socket)?;
        let (closing, stop, tasks) = (CancellationToken::new(), CancellationToken::new(), Tasks::default());
        let access = Access::new(&token, &config.owner);
        let http = Http::new(kernel.clone(), access, limits, stop.clone());
        let connections = http.connections();
        let http = http.with_hosts(&allowed_hosts(config)).with_origins(&config.cors_origins);
        let (listeners, listener_requests) = mpsc::channel(1);
        let webhooks = WebhookSender::new(&token, config.webhooks_private);
        let http =
            http.with_listeners(listeners).with_webhooks(webhooks.clone()).with_threads(config.threads);
        let is_tls = tls.is_some();
        let mut http = http.with_tls(is_tls).with_oidc(oidc);
        if let Some(member) = node.member().cloned() {
            http = http.with_peer_key(forwarding::options(config, is_tls)?.key);
            http = http.with_cluster(Arc::new(move || {
                let member = Arc::clone(&member);
                Box::pin(async move { member.status().await })
            }));
        }
        let mut router = http.router();
        if let Some(member) = node.member().cloned() {
            if let Some(servers) = member.servers() {
                let options = forwarding::options(config, is_tls)?;
                let homes = Homes::new(kernel.clone(), servers, options, stop.clone());
                router = homes.map_err(ServeError::Cluster)?.layer(router);
            }
            router = only_while(router, move || member.is_active());
        }
        let serving = Serving { router, connections, closing: closing.clone(), tasks: tasks.clone() };
        if let Some(tcp) = tcp {
            serving.accept_tcp(tcp, tls, kernel.clock().clone());
        }
        tasks.spawn(ListenerOpener { address, is_tls, serving: serving.clone() }.answer(listener_requests));
        serving.accept(UnixPeers(unix));
        // Started last: a server that fails to start must not notify anybody.
        let (notifying, notifiers) = (closing.child_token(), Tasks::default());
        Notifiers { tasks: notifiers.clone(), kernel: kernel.clone(), webhooks, closing: notifying.clone() }
            .start(node.member().cloned(), config);
        Ok(Self { kernel, socket, address, is_tls, closing, stop, tasks, notifying, notifiers })
    }

    /// Returns the TCP address, if the server listens on one.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// True if the TCP address speaks HTTPS.
    pub fn is_tls(&self) -> bool {
        self.is_tls
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

    /// Ends the delivery of webhooks and the command of `on_attention`: another server of the cluster continues them.
    pub async fn end_notifications(&self) {
        self.notifying.cancel();
        tokio::select! {
            () = self.notifiers.wait() => {}
            () = self.kernel.sleep(CONNECTION_END_TIMEOUT) => {}
        }
    }

    /// Stops the kernel first, so that streams report the end of every run, then the streams.
    pub async fn stop(self) {
        self.close();
        self.kernel.shutdown().await;
        self.stop.cancel();
        let ended = async {
            self.notifiers.wait().await;
            self.tasks.wait().await;
        };
        tokio::select! {
            () = ended => {}
            () = self.kernel.sleep(CONNECTION_END_TIMEOUT) => {}
        }
    }
}

/// Loads the certificate and the key of a configuration.
fn tls_files(config: &Config) -> Result<Option<TlsFiles>, ServeError> {
    match (&config.tls_cert, &config.tls_key) {
        (Some(cert), Some(key)) => Ok(Some(TlsFiles::load(cert, key)?)),
        (None, None) => Ok(None),
        _ => Err(ServeError::HalfTls),
    }
}

/// Returns the names that requests may use for this server; in a cluster also the one that the other servers use.
fn allowed_hosts(config: &Config) -> Vec<String> {
    let authority = config.cluster.address.as_deref().and_then(|url| url.split("://").nth(1));
    let host = authority.and_then(|authority| match authority.strip_prefix('[') {
        Some(ipv6) => ipv6.split(']').next(),
        None => authority.split([':', '/']).next(),
    });
    config.allowed_hosts.iter().cloned().chain(host.map(str::to_owned)).collect()
}

/// Delivers webhooks, and runs the command of `on_attention`.
struct Notifiers {
    tasks: Tasks,
    kernel: Kernel,
    webhooks: WebhookSender,
    closing: CancellationToken,
}

impl Notifiers {
    /// Starts at once, or when `member` becomes the leader: of several servers at work, only one notifies.
    fn start(self, member: Option<Arc<Member>>, config: &Config) {
        let attention = (config.owner.clone(), config.on_attention.clone());
        let Some(member) = member else { return self.spawn(attention) };
        self.tasks.clone().spawn(async move {
            tokio::select! {
                () = member.leads() => self.spawn(attention),
                () = self.closing.cancelled() => {}
            }
        });
    }

    fn spawn(&self, (owner, command): (String, Vec<String>)) {
        let Self { tasks, kernel, webhooks, closing } = self;
        tasks.spawn(deliver_webhooks(kernel.clone(), webhooks.clone(), closing.clone()));
        if !command.is_empty() {
            tasks.spawn(run_on_attention(kernel.clone(), owner, command, closing.clone()));
        }
    }
}

/// The number of open files that are reserved for the store, agents and artifacts.
const OTHER_OPEN_FILES: u64 = 1024;
/// Connections that may wait to be accepted; the system may allow fewer. With a short queue, thousands of clients
/// that connect at once, such as readers after a restart, are refused or wait for a second.
const BACKLOG: u32 = 4096;

/// Raises the limit of open files: every connection is an open file, and most systems allow a process 1,024 by default.
/// If the limit cannot be raised enough, the returned limits allow fewer connections, so that files remain for other
/// purposes.
fn raise_open_files(limits: HttpLimits) -> HttpLimits {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // Twice the streams and requests: the other half is for idle connections, the store and agents. Not the system's
    // maximum: agents inherit the limit, and some programs start by closing every possible file.
    let streams = u64::try_from(2 * (limits.streams + limits.requests)).unwrap_or(u64::MAX);
    let connections = u64::try_from(limits.connections).unwrap_or(u64::MAX);
    let wanted = streams.max(connections.saturating_add(OTHER_OPEN_FILES));
    let possible = maximum.map_or(wanted, |maximum| maximum.min(wanted));
    let mut allowed = current.unwrap_or(u64::MAX);
    if allowed < possible {
        match setrlimit(Resource::Nofile, Rlimit { current: Some(possible), maximum }) {
            Ok(()) => allowed = possible,
            Err(error) => {
                tracing::warn!(%error, wanted, "the limit of open files cannot be raised: fewer connections can be open");
            }
        }
    }
    let for_connections = allowed.saturating_sub(OTHER_OPEN_FILES.min(allowed / 2)).max(1);
    let connections = limits.connections.min(usize::try_from(for_connections).unwrap_or(usize::MAX));
    HttpLimits { connections, ..limits }
}

/// True for an address that only this machine reaches.
fn is_local(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

fn bind_tcp(address: SocketAddr) -> Result<TcpListener, ServeError> {
    let bind = || {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        // A restarted server can bind its address while connections of the earlier process are closing.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    bind().map_err(|source| ServeError::Listen {
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
    let listener = UnixListener::bind(socket.address()).map_err(failed)?;
    // The folder is private. The socket gets private permissions too, with any umask.
    std::fs::set_permissions(socket.path(), Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_the_cluster_address_is_allowed() {
        for (address, host) in [
            ("http://agents.example.com", "agents.example.com"),
            ("https://agents.example.com:7433/", "agents.example.com"),
            ("http://10.0.0.7:7433", "10.0.0.7"),
            ("http://[fd00::7]", "fd00::7"),
            ("http://[fd00::7]:7433", "fd00::7"),
        ] {
            let mut config = Config::with_state_dir("unused");
            config.cluster.address = Some(address.into());
            assert_eq!(allowed_hosts(&config), [host], "{address}");
        }
    }
}
