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
/// that another server takes or renews at this moment.
pub(super) const FREE: &str = "SELECT 1 FROM server_lease
    WHERE (free_at IS NULL OR clock_timestamp() >= free_at OR place = $1) AND NOT EXISTS (
      SELECT 1 FROM node_leases AS n WHERE clock_timestamp() < n.free_at AND n.place IS DISTINCT FROM $1)
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
    pub(super) connector: Connector,
    pub(super) shared: Arc<Shared>,
    pub(super) local: Arc<LocalServer>,
    pub(super) client: Option<Client>,
}

impl Keeper {
    /// Renews the lease until it is lost or released.
    pub(super) async fn keep(self) {
        let (shared, local) = (Arc::clone(&self.shared), Arc::clone(&self.local));
        keep_lease(&shared, &local, "the lease of the database", local.times.renewal_ms(), self).await;
    }
}

impl Renewal for Keeper {
    async fn tick(&mut self) -> Result<bool, Error> {
        let sent_ms = boot_time_ms();
        let client = match self.client.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => self.connector.connect().await?,
        };
        let node = self.local.node.as_bytes().as_slice();
        let boot = self.shared.boot.load(Ordering::Acquire);
        let (lease_ms, free_ms) = durations(self.local.times);
        let params = typed(&[&node, &boot, &lease_ms, &free_ms]);
        let is_renewed = client.execute_typed(RENEW, &params).await? > 0;
        report_alive(&client, &self.local).await?;
        if is_renewed {
            self.local.extend_in_time(&self.shared, sent_ms);
        }
        self.client = Some(client);
        Ok(is_renewed)
    }
}

/// Renews a lease.
pub(super) trait Renewal {
    /// Renews the lease if that is due. Returns false if another server has it. Dropped if it takes too long.
    fn tick(&mut self) -> impl Future<Output = Result<bool, Error>> + Send;
}

/// Calls `renewal` every `interval_ms` until the lease is lost or released. `lease` names the lease in the log.
pub(super) async fn keep_lease(
    shared: &Shared,
    local: &LocalServer,
    lease: &str,
    interval_ms: u64,
    mut renewal: impl Renewal,
) {
    loop {
        let left = shared.left_ms();
        if left == 0 {
            shared.lose("its lease was not renewed in time");
            return;
        }
        pause(interval_ms.min(left)).await;
        let timeout = local.times.renewal_ms().min(shared.left_ms());
        let ticked = tokio::select! {
            ticked = renewal.tick() => ticked,
            () = pause(timeout) => continue,
        };
        match ticked {
            Ok(true) => {}
            Ok(false) => {
                shared.lose("another server has taken its lease");
                return;
            }
            Err(error) => tracing::warn!(error = %describe(&error), "{lease} was not renewed"),
        }
    }
}
