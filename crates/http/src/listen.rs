//! Listening: connections are taken, bounded in what their headers may cost, and ended in an orderly way.
//!
//! What is too much never reaches a handler: more or longer headers than allowed are answered 431 and the connection
//! is closed; one whose headers do not come in time is closed without an answer.

use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::HttpLimits;

/// How many headers hyper takes without allocating for each request.
const USUAL_HEADERS: usize = 100;
/// The least that hyper reads at once.
const LEAST_BUFFER: usize = 8 << 10;

/// Serves `router` on `listener` until `closing`; then takes no more connections and returns once those that are
/// there have ended, each after the answer it is giving. Dropping it ends them at once.
pub async fn serve(
    mut listener: impl Listener,
    router: Router,
    limits: HttpLimits,
    closing: CancellationToken,
) {
    let protocol = protocol(&limits);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            (stream, _) = listener.accept() => {
                connections.spawn(connection(protocol.clone(), stream, router.clone(), closing.clone()));
            }
            Some(ended) = connections.join_next() => told(ended),
            () = closing.cancelled() => break,
        }
    }
    drop(listener);
    while let Some(ended) = connections.join_next().await {
        told(ended);
    }
}

/// A connection whose handler broke does not break the others, and does not go unseen.
fn told(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a request could not be carried out");
    }
}

fn protocol(limits: &HttpLimits) -> http1::Builder {
    let mut protocol = http1::Builder::new();
    protocol
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(limits.header_ms))
        .max_header_size(limits.header_bytes)
        .max_buf_size(limits.header_bytes.max(LEAST_BUFFER));
    if limits.headers != USUAL_HEADERS {
        protocol.max_headers(limits.headers);
    }
    protocol
}

async fn connection(
    protocol: http1::Builder,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    closing: CancellationToken,
) {
    let connection = protocol.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = closing.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        // The other side went away, was too slow, or sent what is no HTTP: nobody is left to be told.
        tracing::debug!(%error, "a connection broke off");
    }
}
