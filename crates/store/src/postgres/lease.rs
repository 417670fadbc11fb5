//! The lease of a database: the active server of a cluster holds it, renews it, and stops before it expires.
//!
//! ```text
//!            free, or of a server that has ended in the same place
//! standby ─────────────────────────────────────────────────────────▶ active ──released──▶ (ended)
//!    ▲  polls                                     renews it every   │
//!    └── (a new process) ◀── not renewed in time, or taken ─────────┘
//! ```
//!
//! Times in the table are those of the database's clock, so that the clocks of servers do not matter. What the holder may
//! still do follows from its own clock and from when it sent the last renewal: see `core::lease`.
//!
//! Invariant: a server writes only while it holds the lease. The lease is taken in the transaction that voids the leases of
//! all sessions, so that a commit of an earlier holder fails even if that holder does not know about it.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use mainspring_core::placement::Offer;
use mainspring_core::{LeaseTimes, NodeId};
use mainspring_kernel::boot_time::boot_time_ms;
use tokio_postgres::{Client, Error};

use super::connect::Connector;
use super::error::describe;
use super::settings::AnnouncedSettings;
use super::values::{int, typed};
use super::writer::{Shared, pause};

/// Locks the lease if the server in the place `$1` may take it for itself: no server at work may still act. Skips a lease
/// that another server takes or renews at this moment. Servers whose places are unknown are not in the same place.
pub(super) const FREE: &str = "SELECT 1 FROM server_lease
    WHERE (free_at IS NULL OR clock_timestamp() >= free_at OR place = $1) AND NOT EXISTS (
      SELECT 1 FROM node_leases AS n WHERE clock_timestamp() < n.free_at AND (n.place = $1) IS NOT TRUE)
    FOR UPDATE SKIP LOCKED";

/// Renews the lease of the database: the node, the number of its boot, and the two durations in milliseconds.
pub(super) const RENEW: &str = "UPDATE server_lease SET
      expires_at = clock_timestamp() + $3 * interval '1 millisecond',
      free_at = clock_timestamp() + $4 * interval '1 millisecond'
    WHERE node_id = $1 AND epoch = $2 AND free_at IS NOT NULL";

/// This server, as a member of a cluster.
#[derive(Debug, Clone)]
pub struct LocalServer {
    /// The id of the process.
    pub node: NodeId,
    /// The name of the server, for people.
    pub name: String,
    /// The address at which the other servers reach this one.
    pub address: String,
    /// The machine, its start and the state directory, which one process at a time owns. So a server in the same place as
    /// the holder of a lease knows that the holder has ended. `None` if they are unknown.
    pub place: Option<String>,
    /// The durations of the lease.
    pub times: LeaseTimes,
    /// The file from which the guards of agents read the time until which agents may live, in milliseconds since the
    /// start of the machine.
    pub limit_file: Option<PathBuf>,
    /// What the server can execute.
    pub offer: Offer,
    /// The settings that have to be the same on all servers.
    pub settings: AnnouncedSettings,
}

impl LocalServer {
    /// Writes the time until which agents may live to the file that their guards read.
    fn limit_agents(&self, until_ms: u64) -> io::Result<()> {
        match &self.limit_file {
            Some(file) => write_limit(file, until_ms),
            None => Ok(()),
        }
    }

    /// Extends the time for which this server and its agents may act, after a renewal that was sent at `sent_ms`.
    /// Returns false if the lease has expired meanwhile, because the process was paused: the renewal does not count.
    pub(super) fn extend_in_time(&self, shared: &Shared, sent_ms: u64) -> bool {
        let is_in_time = shared.left_ms() > 0;
        if is_in_time && let Err(error) = self.extend(shared, sent_ms) {
            tracing::error!(%error, "the file that keeps agents alive cannot be written");
        }
        is_in_time
    }

    /// Extends the time for which this server and its agents may act, after a renewal that was sent at `sent_ms`.
    pub(super) fn extend(&self, shared: &Shared, sent_ms: u64) -> io::Result<()> {
        let until = self.times.acts_until(sent_ms);
        self.limit_agents(until)?;
        shared.acts_until_ms.store(until, Ordering::Release);
        Ok(())
    }
}

/// Replaces the file as a whole: a guard reads the earlier time or this one.
fn write_limit(file: &Path, until_ms: u64) -> io::Result<()> {
    let part = file.with_extension("part");
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    writeln!(options.open(&part)?, "{until_ms}")?;
    std::fs::rename(&part, file)
}

/// Records the holder of the lease, within the transaction that has locked it. A server outside a cluster (`None`)
/// needs no lease: the lease is then recorded as free.
pub(super) async fn take(client: &Client, boot: i64, local: Option<&LocalServer>) -> Result<(), Error> {
    let Some(local) = local else {
        let sql = "UPDATE server_lease SET node_id = NULL, place = NULL, epoch = $1, expires_at = NULL, free_at = NULL,
                     taken_at = NULL";
        return client.execute_typed(sql, &typed(&[&boot])).await.map(drop);
    };
    let sql = "UPDATE server_lease SET node_id = $1, place = $2, epoch = $3, taken_at = clock_timestamp(),
                 takeovers = takeovers + (free_at IS NOT NULL)::int,
                 expires_at = clock_timestamp() + $4 * interval '1 millisecond',
                 free_at = clock_timestamp() + $5 * interval '1 millisecond'";
    let node = local.node.as_bytes().as_slice();
    let (lease_ms, free_ms) = durations(local.times);
    client.execute_typed(sql, &typed(&[&node, &local.place, &boot, &lease_ms, &free_ms])).await?;
    // Forgets servers that ended without removing their row.
    client.batch_execute("DELETE FROM nodes WHERE seen_at < clock_timestamp() - interval '1 day'").await?;
    report_alive(client, local).await
}

/// Records a server that has started. An earlier server at the same address has ended.
pub(super) async fn join(client: &Client, local: &LocalServer) -> Result<(), Error> {
    let sql = "DELETE FROM nodes WHERE name = $1 AND address = $2";
    client.execute_typed(sql, &typed(&[&local.name, &local.address])).await?;
    report_alive(client, local).await
}

/// Records that a server is alive.
pub(super) async fn report_alive(client: &Client, local: &LocalServer) -> Result<(), Error> {
    let sql =
        "INSERT INTO nodes (node_id, name, address, version, offer, settings) VALUES ($1, $2, $3, $4, $5, $6)
               ON CONFLICT (node_id) DO UPDATE SET seen_at = clock_timestamp()";
    let (node, version) = (local.node.as_bytes().as_slice(), env!("CARGO_PKG_VERSION"));
    let offer = serde_json::to_string(&local.offer).unwrap_or_default();
    let settings = serde_json::to_string(&local.settings).unwrap_or_default();
    let params = typed(&[&node, &local.name, &local.address, &version, &offer, &settings]);
    client.execute_typed(sql, &params).await.map(drop)
}

/// Removes a server that stops, and releases the lease if this server holds it.
pub(super) async fn leave(client: &Client, local: &LocalServer, boot: i64) -> Result<(), Error> {
    let node = local.node.as_bytes().as_slice();
    let release =
        "UPDATE server_lease SET expires_at = NULL, free_at = NULL WHERE node_id = $1 AND epoch = $2";
    client.execute_typed(release, &typed(&[&node, &boot])).await?;
    client.execute_typed("DELETE FROM nodes WHERE node_id = $1", &typed(&[&node])).await.map(drop)
}

/// Returns the milliseconds from a renewal to the expiry, and to the time from which another server may take the lease.
pub(super) fn durations(times: LeaseTimes) -> (i64, i64) {
    (int(times.lease_ms()), int(times.lease_ms() + times.grace_ms()))
}

/// Renews the lease of the active server.
pub(super) struct Keeper {
    pub(super) shared: Arc<Shared>,
    pub(super) local: Arc<LocalServer>,
}

impl Keeper {
    /// Renews the lease until it is lost or released. `client` is an open connection, if there is one.
    pub(super) async fn keep(self, connector: Connector, client: Option<Client>) {
        let (shared, local) = (Arc::clone(&self.shared), Arc::clone(&self.local));
        let lease = Lease { name: "the lease of the database", interval_ms: local.times.renewal_ms() };
        lease.keep(&shared, &local, Connections { connector, client }, self).await;
    }
}

impl Renewal for Keeper {
    async fn tick(&mut self, client: &Client) -> Result<bool, Error> {
        let sent_ms = boot_time_ms();
        let node = self.local.node.as_bytes().as_slice();
        let boot = self.shared.boot.load(Ordering::Acquire);
        let (lease_ms, free_ms) = durations(self.local.times);
        let params = typed(&[&node, &boot, &lease_ms, &free_ms]);
        if client.execute_typed(RENEW, &params).await? == 0 {
            return Ok(false);
        }
        self.local.extend_in_time(&self.shared, sent_ms);
        report_alive(client, &self.local).await?;
        Ok(true)
    }
}

/// Renews a lease.
pub(super) trait Renewal {
    /// Renews the lease if that is due. Returns false if another server has it. May be dropped at any point, and called
    /// again with another connection.
    fn tick(&mut self, client: &Client) -> impl Future<Output = Result<bool, Error>> + Send;
}

/// A lease that this server renews.
pub(super) struct Lease {
    /// The name of the lease in the log.
    pub(super) name: &'static str,
    /// Time between two ticks of the renewal.
    pub(super) interval_ms: u64,
}

impl Lease {
    /// Calls `renewal` until the lease is lost or released.
    pub(super) async fn keep(
        self,
        shared: &Shared,
        local: &LocalServer,
        mut connections: Connections,
        mut renewal: impl Renewal,
    ) {
        loop {
            let left = shared.left_ms();
            if left == 0 {
                shared.lose("its lease was not renewed in time");
                return;
            }
            pause(self.interval_ms.min(left)).await;
            let ticked = tokio::select! {
                ticked = connections.tick(&mut renewal, shared, local.times.renewal_ms()) => ticked,
                () = expired(shared) => continue,
            };
            match ticked {
                Ok(true) => {}
                Ok(false) => {
                    shared.lose("another server has taken its lease");
                    return;
                }
                Err(error) => tracing::warn!(error = %describe(&error), "{} was not renewed", self.name),
            }
        }
    }
}

/// Resolves when this server may not act any more.
async fn expired(shared: &Shared) {
    loop {
        match shared.left_ms() {
            0 => return,
            // The lease may be renewed meanwhile.
            left => pause(left).await,
        }
    }
}

/// Waits for two thirds of the time that is left, again if the lease is renewed meanwhile.
async fn patience(shared: &Shared) {
    loop {
        let left = shared.left_ms();
        pause(left * 2 / 3).await;
        if shared.left_ms() <= left / 2 {
            return;
        }
    }
}

/// The connection on which a lease is renewed.
///
/// A connection that does not answer may be dead, or the database may be slow. A slow database takes even
/// longer to open a connection than to answer. So a connection gets two thirds of the time that is left.
/// Meanwhile another connection is opened, which then replaces it. While no connection is open, no attempt to
/// open one is given up for being slow.
pub(super) struct Connections {
    pub(super) connector: Connector,
    pub(super) client: Option<Client>,
}

impl Connections {
    /// Calls `renewal` once; again whenever the connection is replaced.
    async fn tick(
        &mut self,
        renewal: &mut impl Renewal,
        shared: &Shared,
        slow_ms: u64,
    ) -> Result<bool, Error> {
        let mut client = match self.client.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => self.connect(slow_ms).await?,
        };
        loop {
            tokio::select! {
                ticked = renewal.tick(&client) => {
                    if ticked.is_ok() {
                        self.client = Some(client);
                    }
                    return ticked;
                }
                (replacement, ()) = async { tokio::join!(self.replacement(slow_ms), patience(shared)) } => {
                    client = replacement;
                }
            }
            tracing::warn!(
                "PostgreSQL does not answer, or takes long: the lease is renewed on another connection"
            );
        }
    }

    /// Opens a connection, beginning after `slow_ms`. Retries until one is open.
    async fn replacement(&self, slow_ms: u64) -> Client {
        loop {
            pause(slow_ms).await;
            if let Ok(client) = self.connect(slow_ms).await {
                return client;
            }
        }
    }

    /// Opens a connection. Starts another attempt whenever none has ended for `slow_ms`, and returns the first connection.
    async fn connect(&self, slow_ms: u64) -> Result<Client, Error> {
        let mut attempts = FuturesUnordered::from_iter([self.connector.connect()]);
        loop {
            tokio::select! {
                Some(opened) = attempts.next() => match opened {
                    Err(_) if !attempts.is_empty() => {}
                    opened => return opened,
                },
                () = pause(slow_ms) => attempts.push(self.connector.connect()),
            }
        }
    }
}
