//! The HTTP/1 server: accepts connections, limits their number and their headers and shuts them down gracefully.
//!
//! Requests over the limits never reach a handler. Too many or too long headers are answered with 431 and the
//! connection is closed. A connection whose headers do not arrive in time is closed without a response: the time runs
//! from the start of the connection, and again after each response.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use axum::serve::Listener;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use mainspring_api::AuditOrigin;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::HttpLimits;
use crate::connections::{AnswerBody, Connection, Connections, Peer};

/// Hyper's default for the number of headers. Setting any number makes hyper allocate for each request.
const HYPER_DEFAULT_HEADERS: usize = 100;
/// The smallest read buffer that hyper accepts.
const HYPER_MIN_BUFFER_BYTES: usize = 8 << 10;

/// A Unix socket whose connections have the user and process of their peer as address.
#[derive(Debug)]
pub struct UnixPeers(pub UnixListener);

impl Listener for UnixPeers {
    type Io = UnixStream;
    type Addr = AuditOrigin;

    async fn accept(&mut self) -> (UnixStream, AuditOrigin) {
        let (stream, _) = Listener::accept(&mut self.0).await;
        let from = match stream.peer_cred() {
            Ok(peer) => AuditOrigin::Unix { uid: peer.uid(), pid: peer.pid() },
            // The peer is gone already: there is nobody to answer.
            Err(_) => AuditOrigin::Inside {},
        };
        (stream, from)
    }

    fn local_addr(&self) -> std::io::Result<AuditOrigin> {
        Ok(AuditOrigin::Inside {})
    }
}

/// Serves `router` on `listener` until `closing` is cancelled. Then accepts no more connections, lets each open one
/// finish its current response, and returns. Dropping the future closes all connections at once.
pub async fn serve<L: Listener<Addr: Peer + Into<AuditOrigin>>>(
    mut listener: L,
    router: Router,
    connections: impl Into<Connections>,
    closing: CancellationToken,
) {
    let connections = connections.into();
    let protocol = protocol(connections.limits());
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            (stream, peer) = listener.accept() => {
                // Without room the stream is dropped, which closes it.
                if let Some(open) = connections.open(peer.counted()) {
                    let requests = Requests {
                        router: TowerToHyperService::new(router.clone()),
                        connection: Arc::new(open),
                        from: peer.into(),
                    };
                    tasks.spawn(connection(protocol.clone(), stream, requests, closing.clone()));
                }
            }
            Some(ended) = tasks.join_next() => log_panic(ended),
            () = closing.cancelled() => break,
        }
    }
    drop(listener);
    while let Some(ended) = tasks.join_next().await {
        log_panic(ended);
    }
}

/// Logs a connection task that panicked. Other connections go on.
fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "connection task panicked");
    }
}

fn protocol(limits: &HttpLimits) -> http1::Builder {
    let mut protocol = http1::Builder::new();
    protocol
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(limits.header_ms))
        .max_header_size(limits.header_bytes)
        .max_buf_size(limits.header_bytes.max(HYPER_MIN_BUFFER_BYTES));
    if limits.headers != HYPER_DEFAULT_HEADERS {
        protocol.max_headers(limits.headers);
    }
    protocol
}

async fn connection(
    protocol: http1::Builder,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    requests: Requests,
    closing: CancellationToken,
) {
    // Cancelled when this connection has to make room for a new one.
    let evicted = requests.connection.closing.clone();
    let connection = protocol.serve_connection(TokioIo::new(stream), requests);
    let mut connection = std::pin::pin!(connection);
    let serve = async {
        tokio::select! {
            ended = connection.as_mut() => ended,
            () = closing.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    let ended = tokio::select! {
        ended = serve => ended,
        () = evicted.cancelled() => Ok(()),
    };
    if let Err(error) = ended {
        // The peer disconnected, was too slow, or did not send HTTP: there is nobody to answer.
        tracing::debug!(%error, "connection ended with an error");
    }
}

/// Handles the requests of one connection, and reports to the table of connections when it is busy or idle.
struct Requests {
    router: TowerToHyperService<Router>,
    connection: Arc<Connection>,
    from: AuditOrigin,
}

impl Service<Request<Incoming>> for Requests {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        self.connection.busy();
        request.extensions_mut().insert(self.from);
        let (answer, connection) = (self.router.call(request), self.connection.clone());
        Box::pin(async move {
            let response = answer.await?;
            Ok(response.map(|body| Body::new(AnswerBody::new(body, connection))))
        })
    }
}
