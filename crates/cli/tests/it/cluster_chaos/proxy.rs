//! A proxy between a server and its database that delays bytes and cuts connections.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mainspring_kernel::clock::Clock;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

pub(super) struct Proxy {
    port: u16,
    delay_ms: Arc<AtomicU64>,
    cuts: watch::Sender<()>,
    _connections: JoinSet<()>,
}

impl Proxy {
    /// Listens on a port of its own, for the database at `socket`.
    pub(super) async fn start(socket: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, delay_ms, cuts) =
            (listener.local_addr().unwrap().port(), Arc::<AtomicU64>::default(), watch::Sender::new(()));
        let mut connections = JoinSet::new();
        connections.spawn(accept(listener, socket, Arc::clone(&delay_ms), cuts.clone()));
        Self { port, delay_ms, cuts, _connections: connections }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Delays all bytes that pass from now on.
    pub(super) fn delay(&self, ms: u64) {
        self.delay_ms.store(ms, Ordering::Release);
    }

    /// Cuts all connections. New ones are accepted.
    pub(super) fn cut(&self) {
        self.cuts.send_replace(());
    }
}

async fn accept(listener: TcpListener, socket: String, delay_ms: Arc<AtomicU64>, cuts: watch::Sender<()>) {
    let mut open = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        let (socket, delay_ms, mut cut) = (socket.clone(), Arc::clone(&delay_ms), cuts.subscribe());
        open.spawn(async move {
            tokio::select! {
                _ = cut.changed() => {}
                _ = pass(client, &socket, &delay_ms) => {}
            }
        });
        while open.try_join_next().is_some() {}
    }
}

/// Passes bytes in both directions until one side ends.
async fn pass(client: TcpStream, socket: &str, delay_ms: &AtomicU64) -> io::Result<()> {
    client.set_nodelay(true)?;
    let server = UnixStream::connect(socket).await?;
    let ((client_in, client_out), (server_in, server_out)) = (client.into_split(), server.into_split());
    tokio::select! {
        ended = pump(client_in, server_out, delay_ms) => ended,
        ended = pump(server_in, client_out, delay_ms) => ended,
    }
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    delay_ms: &AtomicU64,
) -> io::Result<()> {
    let (clock, mut buffer) = (Clock::system(), vec![0; 16 << 10]);
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        match delay_ms.load(Ordering::Acquire) {
            0 => {}
            ms => clock.sleep_for(ms).await,
        }
        to.write_all(&buffer[..read]).await?;
    }
}
