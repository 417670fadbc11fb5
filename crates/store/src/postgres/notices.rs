//! Notices between servers at work: a server that has written notifies the others, so that their readers of all
//! sessions need not wait for the next poll.
//!
//! ```text
//! commits ──▶ announcer ──NOTIFY, at most one in 10 ms──▶ listeners of the other servers ──▶ their kernels read
//! ```
//!
//! A notice only names the server that has written, and may be lost: a broken connection misses some, and a transaction
//! pooler forwards none. So the other servers also poll every second.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mainspring_core::NodeId;
use tokio::sync::{mpsc, watch};
use tokio_postgres::Error;

use super::connect::Connector;
use super::error::describe;
use super::values::typed;
use super::writer::{Shared, pause};

/// The channel of the notices.
const CHANNEL: &str = "mainspring_written";
/// Time between two notices of a server.
const INTERVAL_MS: u64 = 10;
/// Time before a broken connection is replaced.
const RECONNECT_MS: u64 = 1_000;

/// Notifies the other servers of commits, until this server may not write any more.
pub(super) async fn announce(connector: Connector, shared: Arc<Shared>, node: NodeId) {
    let (mut client, name) = (None, node.to_string());
    while !shared.lost.load(Ordering::Acquire) {
        shared.written.notified().await;
        let announced = async {
            let open = match client.take() {
                Some(open) => open,
                None => connector.connect().await?,
            };
            open.execute_typed("SELECT pg_notify($1, $2)", &typed(&[&CHANNEL, &name])).await?;
            Ok::<_, Error>(open)
        };
        match announced.await {
            Ok(open) => client = Some(open),
            Err(error) => {
                tracing::debug!(error = %describe(&error), "a notice to the other servers was not sent");
            }
        }
        pause(INTERVAL_MS).await;
    }
}

/// Adds the notices of other servers to `count`, until this server may not write any more.
pub(super) async fn listen(
    connector: Connector,
    shared: Arc<Shared>,
    node: NodeId,
    count: watch::Sender<u64>,
) {
    let own = node.to_string();
    while !shared.lost.load(Ordering::Acquire) {
        match connector.listen(CHANNEL).await {
            Ok((_client, notices)) => {
                // Some notices may have been missed.
                count.send_modify(|count| *count += 1);
                count_others(notices, &own, &count).await;
            }
            Err(error) => {
                tracing::debug!(error = %describe(&error), "notices of the other servers are not heard");
            }
        }
        pause(RECONNECT_MS).await;
    }
}

/// Adds the notices of all servers except `own` to `count`, until the connection breaks.
async fn count_others(mut notices: mpsc::Receiver<String>, own: &str, count: &watch::Sender<u64>) {
    while let Some(by) = notices.recv().await {
        if by != own {
            count.send_modify(|count| *count += 1);
        }
    }
}
