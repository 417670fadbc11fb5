//! The listeners of a server, and the TCP address that is opened while it runs, for browsers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use axum::Router;
use axum::serve::{Listener, ListenerExt};
use mainspring_api::AuditOrigin;
use mainspring_http::{Connections, ListenerRequest, Peer, TlsFiles, TlsListener};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::tasks::Tasks;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Accepts connections for one router, at several addresses.
#[derive(Clone)]
pub(super) struct Serving {
    pub(super) router: Router,
    pub(super) connections: Connections,
    pub(super) closing: CancellationToken,
    pub(super) tasks: Tasks,
}

impl Serving {
    /// Accepts TCP connections until `closing` is cancelled: with TLS if there is a certificate. `clock` measures the
    /// timeout of TLS handshakes.
    pub(super) fn accept_tcp(&self, tcp: TcpListener, tls: Option<TlsFiles>, clock: Clock) -> JoinHandle<()> {
        match tls {
            Some(files) => self.accept(TlsListener::with_clock(tcp, files, clock)),
            None => self.accept_without_tls(tcp),
        }
    }

    fn accept_without_tls(&self, tcp: TcpListener) -> JoinHandle<()> {
        // Streamed data is sent without delay. A connection that refuses the option is slower, but works.
        self.accept(tcp.tap_io(|stream| stream.set_nodelay(true).unwrap_or_default()))
    }

    /// Accepts the connections of `listener` until `closing` is cancelled.
    pub(super) fn accept<L>(&self, listener: L) -> JoinHandle<()>
    where
        L: Listener<Addr: Peer + Into<AuditOrigin>>,
    {
        let Self { router, connections, closing, tasks } = self.clone();
        tasks.spawn(mainspring_http::serve(listener, router, connections, closing))
    }
}

/// Answers requests for a TCP address: with the address that the server has, else with a new address on a free port
/// that only this machine reaches. At most one new address is opened.
pub(super) struct ListenerOpener {
    pub(super) address: Option<SocketAddr>,
    pub(super) is_tls: bool,
    pub(super) serving: Serving,
}

impl ListenerOpener {
    /// Answers until the server closes.
    pub(super) async fn answer(mut self, mut requests: mpsc::Receiver<ListenerRequest>) {
        loop {
            let reply = tokio::select! {
                Some(reply) = requests.recv() => reply,
                // The router holds a sender, so the channel alone would never end.
                () = self.serving.closing.cancelled() => return,
            };
            let address = match self.address {
                Some(address) => Ok(address),
                None => self.open().await,
            };
            let url = address.map(|address| url(address, self.is_tls)).map_err(|error| error.to_string());
            // The caller may have disconnected.
            let _ = reply.send(url);
        }
    }

    async fn open(&mut self) -> std::io::Result<SocketAddr> {
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = tcp.local_addr()?;
        self.serving.accept_without_tls(tcp);
        self.address = Some(address);
        self.is_tls = false;
        tracing::info!(%address, "opened an address for browsers of this machine");
        Ok(address)
    }
}

/// The URL of an address for clients on the same machine.
fn url(address: SocketAddr, is_tls: bool) -> String {
    let ip = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    };
    let scheme = if is_tls { "https" } else { "http" };
    format!("{scheme}://{}", SocketAddr::new(ip, address.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_of_an_address_works_on_this_machine() {
        for (address, is_tls, expected) in [
            ("127.0.0.1:7433", false, "http://127.0.0.1:7433"),
            ("0.0.0.0:80", true, "https://127.0.0.1:80"),
            ("[::]:80", false, "http://[::1]:80"),
            ("192.168.1.2:443", true, "https://192.168.1.2:443"),
        ] {
            assert_eq!(url(address.parse().unwrap(), is_tls), expected);
        }
    }
}
