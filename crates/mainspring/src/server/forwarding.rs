//! The server of a process that stands by in a cluster: it forwards to the active server.

use std::io;
use std::net::SocketAddr;

use mainspring_client::Socket;
use mainspring_http::{Connections, Forward, ForwardOptions, UnixPeers};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::files::read_small;
use mainspring_kernel::tasks::Tasks;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::listener::Serving;
use super::{ServeError, allowed_hosts, bind_socket, raise_open_files, tls_files};
use crate::cluster_secret::peer_key;
use crate::config::Config;

/// Returns the options with which a server of a cluster forwards.
pub(crate) fn options(config: &Config, is_tls: bool) -> Result<ForwardOptions, ServeError> {
    Ok(ForwardOptions {
        hosts: allowed_hosts(config),
        origins: config.cors_origins.clone(),
        is_tls,
        ca: match &config.tls_ca {
            Some(file) => Some(read_small(file).map_err(|error| {
                ServeError::Cluster(format!("tls_ca: {} cannot be read: {error}", file.display()))
            })?),
            None => None,
        },
        header_ms: config.http.header_ms,
        key: match &config.cluster.secret_file {
            Some(file) => Some(peer_key(file).map_err(|error| ServeError::Cluster(error.to_string()))?),
            None => None,
        },
    })
}

/// A running server that forwards.
pub struct Forwarding {
    socket: Socket,
    address: Option<SocketAddr>,
    is_tls: bool,
    tcp: std::net::TcpListener,
    listeners: Vec<JoinHandle<()>>,
}

impl Forwarding {
    /// Forwards the requests that arrive at `tcp` and at the state directory's socket to the server that `active`
    /// names.
    pub fn start(
        config: &Config,
        tcp: TcpListener,
        active: watch::Receiver<Option<String>>,
    ) -> Result<Self, ServeError> {
        let failed = |source: io::Error| ServeError::Listen {
            address: config.listen.clone(),
            source,
            remedy: "choose another address with --listen",
        };
        let tls = tls_files(config)?;
        let is_tls = tls.is_some();
        let address = tcp.local_addr().ok();
        let options = options(config, is_tls)?;
        let router = Forward::new(active, options).map_err(ServeError::Cluster)?.router();
        let connections = Connections::from(raise_open_files(config.http));
        // The listener stays open: clients that connect while this process becomes the active server wait in its queue.
        let tcp = tcp.into_std().map_err(failed)?;
        let accepting = TcpListener::from_std(tcp.try_clone().map_err(failed)?).map_err(failed)?;
        let socket = Socket::in_state_dir(&config.state_dir);
        let unix = UnixPeers(bind_socket(&socket)?);
        let (tasks, closing) = (Tasks::default(), CancellationToken::new());
        let serving = Serving { router, connections, closing, tasks };
        let listeners = vec![serving.accept_tcp(accepting, tls, Clock::system()), serving.accept(unix)];
        Ok(Self { socket, address, is_tls, tcp, listeners })
    }

    /// Returns the TCP address.
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

    /// Closes all connections, since they lead to a server that is not the active one any more. Returns the TCP listener,
    /// which has stayed open.
    pub async fn stop(self) -> io::Result<TcpListener> {
        for listener in self.listeners {
            listener.abort();
            // The task was cancelled, or has already ended.
            let _ = listener.await;
        }
        TcpListener::from_std(self.tcp)
    }
}
