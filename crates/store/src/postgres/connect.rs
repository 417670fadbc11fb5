//! Connections: TLS, the pool of readers, and the runtime on which all connections run.
//!
//! The store has threads of its own, as the one for SQLite has: a connection must not end with the runtime of the task that
//! happened to open it.

use std::future::{Future, poll_fn};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use deadpool_postgres::{Connect, Manager, ManagerConfig, Object, Pool, RecyclingMethod};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_postgres::{AsyncMessage, Client, Config, Error, Socket};

use super::PostgresError;
use super::error::describe;

/// Connections that read at the same time.
const READERS: usize = 8;
/// Notices that are buffered until they are read.
const NOTICES: usize = 64;

/// Opens connections to one database.
#[derive(Clone)]
pub(super) struct Connector {
    config: Config,
    tls: Tls,
    runtime: Handle,
}

impl Connector {
    /// Parses a URL. Beside the parameters of tokio-postgres it may have `sslrootcert`, a file of PEM certificates.
    pub(super) fn new(url: &str, runtime: Handle) -> Result<Self, PostgresError> {
        let (url, root_file) = split_root_file(url);
        let mut config: Config = url.parse().map_err(|error: Error| PostgresError::Url(describe(&error)))?;
        if config.get_application_name().is_none() {
            config.application_name("mainspring");
        }
        let is_encrypted = config.get_ssl_mode() != SslMode::Disable;
        Ok(Self { config, tls: Tls::new(is_encrypted, root_file.as_deref())?, runtime })
    }

    /// Returns the runtime of the store.
    pub(super) fn runtime(&self) -> Handle {
        self.runtime.clone()
    }

    /// Opens a connection, driven by the runtime of the store.
    pub(super) async fn connect(&self) -> Result<Client, Error> {
        Ok(self.open().await?.0)
    }

    /// Opens a connection. Returns it with the task that drives it, which ends with the connection.
    pub(super) async fn open(&self) -> Result<(Client, JoinHandle<()>), Error> {
        let (config, tls, runtime) = (self.config.clone(), self.tls.clone(), self.runtime.clone());
        let opened = self.runtime.spawn(async move {
            let (client, connection) = config.connect(tls).await?;
            let driver = runtime.spawn(async move {
                if let Err(error) = connection.await {
                    tracing::warn!(error = %describe(&error), "a connection to PostgreSQL ended");
                }
            });
            Ok((client, driver))
        });
        match opened.await {
            Ok(opened) => opened,
            // The store is being dropped.
            Err(_) => Err(Error::__private_api_timeout()),
        }
    }

    /// Opens a connection that listens to a channel, and returns the payloads of its notices. The payloads end with the
    /// connection. Notices that are not read in time are dropped.
    pub(super) async fn listen(&self, channel: &str) -> Result<(Client, mpsc::Receiver<String>), Error> {
        let (config, tls, runtime) = (self.config.clone(), self.tls.clone(), self.runtime.clone());
        let opened = self.runtime.spawn(async move {
            let (client, mut connection) = config.connect(tls).await?;
            let (notices, received) = mpsc::channel(NOTICES);
            runtime.spawn(async move {
                while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
                    if let AsyncMessage::Notification(notice) = message {
                        let _ = notices.try_send(notice.payload().to_owned());
                    }
                }
            });
            Ok((client, received))
        });
        let (client, received) = match opened.await {
            Ok(opened) => opened?,
            // The store is being dropped.
            Err(_) => return Err(Error::__private_api_timeout()),
        };
        client.batch_execute(&format!("LISTEN {channel}")).await?;
        Ok((client, received))
    }

    /// Spawns a task on the runtime of the store.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.spawn(task));
    }

    /// Makes the pool of readers.
    pub(super) fn pool(&self) -> Result<Pool, PostgresError> {
        let method = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_connect(self.config.clone(), self.clone(), method);
        let pool = Pool::builder(manager).max_size(READERS).build();
        pool.map_err(|error| PostgresError::Url(error.to_string()))
    }
}

impl Connect for Connector {
    fn connect(
        &self,
        _config: &Config,
    ) -> Pin<Box<dyn Future<Output = Result<(Client, JoinHandle<()>), Error>> + Send + '_>> {
        Box::pin(self.open())
    }
}

/// A pooled connection that is closed instead of reused, unless [`Pooled::done`] is called: a read that was cancelled may
/// leave a transaction open.
pub(super) struct Pooled(Option<Object>);

impl Pooled {
    pub(super) fn new(object: Object) -> Self {
        Self(Some(object))
    }

    pub(super) fn client(&self) -> Option<&Client> {
        self.0.as_ref().map(|object| &***object)
    }

    /// Returns the connection to the pool.
    pub(super) fn done(mut self) {
        drop(self.0.take());
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(object) = self.0.take() {
            drop(Object::take(object));
        }
    }
}

/// The address of a database for messages: user, hosts and name, without the password.
pub(super) fn address(url: &str) -> String {
    let Ok(config) = split_root_file(url).0.parse::<Config>() else { return "the PostgreSQL".into() };
    let ports = config.get_ports();
    let host = |(at, host): (usize, &Host)| {
        let host = match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        };
        match ports.get(at).or(ports.first()) {
            Some(port) => format!("{host}:{port}"),
            None => host,
        }
    };
    let hosts: Vec<String> = config.get_hosts().iter().enumerate().map(host).collect();
    let user = config.get_user().map(|user| format!("{user}@")).unwrap_or_default();
    format!("postgres://{user}{}/{}", hosts.join(","), config.get_dbname().unwrap_or_default())
}

/// Takes `sslrootcert` out of a URL.
fn split_root_file(url: &str) -> (String, Option<String>) {
    let Some((address, query)) = url.split_once('?') else { return (url.to_owned(), None) };
    let (root, rest): (Vec<&str>, Vec<&str>) =
        query.split('&').partition(|param| param.starts_with("sslrootcert="));
    let root = root.first().and_then(|param| param.split_once('=')).map(|(_, file)| file.to_owned());
    let rest = rest.join("&");
    (if rest.is_empty() { address.to_owned() } else { format!("{address}?{rest}") }, root)
}

/// TLS by rustls. The server's certificate is always verified.
#[derive(Clone)]
struct Tls(Option<Arc<ClientConfig>>);

impl Tls {
    fn new(is_encrypted: bool, root_file: Option<&str>) -> Result<Self, PostgresError> {
        if !is_encrypted {
            return Ok(Self(None));
        }
        let mut roots = RootCertStore::empty();
        match root_file {
            Some(file) => {
                let problem = |error: &dyn std::fmt::Display| {
                    PostgresError::Url(format!("the certificates of sslrootcert={file}: {error}"))
                };
                let found =
                    CertificateDer::pem_file_iter(Path::new(file)).map_err(|error| problem(&error))?;
                for certificate in found {
                    let certificate = certificate.map_err(|error| problem(&error))?;
                    roots.add(certificate).map_err(|error| problem(&error))?;
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| PostgresError::Url(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(Some(Arc::new(config))))
    }
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = Encrypted;
    type TlsConnect = Handshake;
    type Error = std::io::Error;

    fn make_tls_connect(&mut self, domain: &str) -> Result<Handshake, std::io::Error> {
        Ok(Handshake { config: self.0.clone(), domain: domain.to_owned() })
    }
}

/// A TLS handshake that is about to begin.
struct Handshake {
    config: Option<Arc<ClientConfig>>,
    domain: String,
}

impl TlsConnect<Socket> for Handshake {
    type Stream = Encrypted;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = std::io::Result<Encrypted>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            let config =
                self.config.ok_or_else(|| std::io::Error::other("TLS is switched off by sslmode=disable"))?;
            let name = ServerName::try_from(self.domain).map_err(std::io::Error::other)?;
            let stream = tokio_rustls::TlsConnector::from(config).connect(name, socket).await?;
            Ok(Encrypted(Box::new(stream)))
        })
    }
}

/// An encrypted connection.
struct Encrypted(Box<tokio_rustls::client::TlsStream<Socket>>);

impl AsyncRead for Encrypted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

impl TlsStream for Encrypted {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn an_address_in_a_message_has_no_password() {
        let addresses = [
            ("postgres://ada:secret@db:5433/main?sslmode=require", "postgres://ada@db:5433/main"),
            ("postgresql://db/main?sslrootcert=/etc/ca.pem&password=secret", "postgres://db:5432/main"),
            ("postgres://ada:secret@a:1,b:2/main", "postgres://ada@a:1,b:2/main"),
            ("postgres:///main?host=/run&user=ada", "postgres://ada@/run/main"),
            ("postgres://ada:secret@db:many/main", "the PostgreSQL"),
        ];
        for (url, expected) in addresses {
            assert_eq!(address(url), expected, "{url}");
        }
    }
}
