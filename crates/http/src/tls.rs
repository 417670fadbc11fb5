//! TLS on a TCP listener: certificate and key from files, read again when they change.
//!
//! The listener passes a connection on at once. The handshake happens when the connection is first read, so that a slow
//! peer delays no other peer. Open connections keep the certificate that they began with.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::SystemTime;

use axum::serve::Listener;
use mainspring_kernel::Kernel;
use mainspring_kernel::clock::Clock;
use mainspring_kernel::files::read_small;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

/// Time in which a handshake must be done.
const HANDSHAKE_TIMEOUT_MS: u64 = 10_000;

/// Permissions that a private key must not have: others may read it, or anybody but its user may write it.
const EXPOSED_BITS: u32 = 0o026;

/// Why a certificate or a key cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{} {reason}", path.display())]
#[non_exhaustive]
pub struct TlsError {
    /// The file.
    pub path: PathBuf,
    /// The reason, as a phrase that follows the path in the message.
    pub reason: String,
}

/// The certificate and the key of a server.
#[derive(Debug)]
pub struct TlsFiles {
    cert: PathBuf,
    key: PathBuf,
    changed: [Option<SystemTime>; 2],
    config: Arc<ServerConfig>,
}

impl TlsFiles {
    /// Reads a chain of certificates and a private key, both as PEM.
    pub fn load(cert: &Path, key: &Path) -> Result<Self, TlsError> {
        let changed = [cert, key].map(changed_at);
        let config = read_config(cert, key)?;
        Ok(Self { cert: cert.to_owned(), key: key.to_owned(), changed, config })
    }

    /// The configuration for the next connection. Files that have changed are read again; if they cannot be used, the
    /// earlier ones stay in use until they change once more.
    fn current(&mut self) -> Arc<ServerConfig> {
        let changed = [&self.cert, &self.key].map(|path| changed_at(path));
        if changed != self.changed {
            self.changed = changed;
            match read_config(&self.cert, &self.key) {
                Ok(config) => {
                    tracing::info!(cert = %self.cert.display(), "the certificate was read again");
                    self.config = config;
                }
                Err(error) => tracing::error!(%error, "the changed certificate is not used"),
            }
        }
        self.config.clone()
    }
}

/// When a file was changed last; none if it cannot be read.
fn changed_at(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|file| file.modified()).ok()
}

fn read_config(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let failed = |path: &Path, reason: String| TlsError { path: path.to_owned(), reason };
    let read =
        |path: &Path| read_small(path).map_err(|error| failed(path, format!("cannot be read: {error}")));
    let chain = CertificateDer::pem_slice_iter(&read(cert)?).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|error| failed(cert, format!("is no PEM file of certificates: {error}")))?;
    if chain.is_empty() {
        let reason = "holds no certificate: it must begin with -----BEGIN CERTIFICATE-----";
        return Err(failed(cert, reason.into()));
    }
    let private = PrivateKeyDer::from_pem_slice(&read(key)?)
        .map_err(|error| failed(key, format!("holds no private key as PEM: {error}")))?;
    check_private(key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(cert, error.to_string()))?;
    let mut config = builder.with_no_client_auth().with_single_cert(chain, private).map_err(|error| {
        failed(key, format!("cannot be used with the certificate {}: {error}", cert.display()))
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Refuses a private key that everybody can read, or that others can write. A group may read it: that is how a key is
/// usually shared among services.
fn check_private(key: &Path) -> Result<(), TlsError> {
    let failed = |reason: String| TlsError { path: key.to_owned(), reason };
    let found = fs::metadata(key).map_err(|error| failed(format!("cannot be read: {error}")))?;
    let mode = found.permissions().mode() & 0o7777;
    if mode & EXPOSED_BITS == 0 {
        return Ok(());
    }
    Err(failed(format!(
        "is a private key that others can read or write (mode {mode:04o}): run `chmod 600 {0}` (640 if a group shares it), \
         and replace the key if somebody may have read it",
        key.display()
    )))
}

/// Accepts TLS connections.
pub struct TlsListener {
    tcp: TcpListener,
    files: TlsFiles,
    clock: Clock,
}

impl TlsListener {
    /// Accepts the connections of `tcp` with the certificate of `files`. The clock of `kernel` times handshakes.
    pub fn new(tcp: TcpListener, files: TlsFiles, kernel: &Kernel) -> Self {
        Self::with_clock(tcp, files, kernel.clock().clone())
    }

    /// Accepts the connections of `tcp` with the certificate of `files`. `clock` times handshakes.
    pub fn with_clock(tcp: TcpListener, files: TlsFiles, clock: Clock) -> Self {
        Self { tcp, files, clock }
    }
}

impl Listener for TlsListener {
    type Io = TlsIo;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TlsIo, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.tcp).await;
        // Streamed data is sent without delay. A connection that refuses the option is slower, but works.
        stream.set_nodelay(true).unwrap_or_default();
        let accept = TlsAcceptor::from(self.files.current()).accept(stream);
        let clock = self.clock.clone();
        let deadline = Box::pin(async move { clock.sleep_for(HANDSHAKE_TIMEOUT_MS).await });
        (TlsIo(State::Handshake(Box::new(accept), deadline)), address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

/// A TLS connection, which does its handshake when it is first read or written.
pub struct TlsIo(State);

enum State {
    Handshake(Box<Accept<TcpStream>>, Pin<Box<dyn Future<Output = ()> + Send>>),
    Open(Box<TlsStream<TcpStream>>),
    Failed(io::ErrorKind),
}

impl TlsIo {
    /// The open connection, once its handshake is done.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Pin<&mut TlsStream<TcpStream>>>> {
        if let State::Handshake(accept, deadline) = &mut self.0 {
            let done = match Pin::new(accept).poll(cx) {
                Poll::Ready(done) => done,
                Poll::Pending => {
                    ready!(deadline.as_mut().poll(cx));
                    Err(io::Error::new(io::ErrorKind::TimedOut, "the TLS handshake took too long"))
                }
            };
            match done {
                Ok(open) => self.0 = State::Open(Box::new(open)),
                Err(error) => {
                    self.0 = State::Failed(error.kind());
                    return Poll::Ready(Err(error));
                }
            }
        }
        match &mut self.0 {
            State::Open(open) => Poll::Ready(Ok(Pin::new(open))),
            State::Failed(kind) => Poll::Ready(Err((*kind).into())),
            State::Handshake(..) => Poll::Pending,
        }
    }
}

impl AsyncRead for TlsIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_open(cx))?.poll_read(cx, buffer)
    }
}

impl AsyncWrite for TlsIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(cx))?.poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            State::Open(open) => Pin::new(open).poll_flush(cx),
            // Nothing was written yet.
            State::Handshake(..) | State::Failed(_) => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            State::Open(open) => Pin::new(open).poll_shutdown(cx),
            State::Handshake(..) | State::Failed(_) => Poll::Ready(Ok(())),
        }
    }
}
