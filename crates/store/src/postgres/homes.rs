//! Servers that execute sessions at the same time: each is the home of some of them.
//!
//! ```text
//!     no server outside the group has the database        its lease was not renewed in time, or another server took it
//! joining ─────────────────────────────────────▶ at work ─────────────────────────────────────────▶ (a new process)
//!                                                  │ ▲                                                     ▲
//!                        the leader's lease is free│ │steps down                                           │
//!                                                  ▼ │                                                     │
//!                                                leading ──────────────────────────────────────────────────┘
//! ```
//!
//! Each server renews a lease of its own, by the rules of `core::lease`. One of them, the leader, also has
//! the lease of the database. Only the leader takes over from servers whose lease has expired and whose grace
//! period is over: one statement deletes the row of such a server and changes the epochs of all its sessions,
//! so that no later commit of that server succeeds.
//!
//! All servers of the group have the same boot number. A server that joins an empty group begins a new one. A server
//! outside the group needs the database for itself: it waits until no server of the group can act, and then begins a new
//! boot number, which ends the group.
//!
//! Invariant: a session belongs to the server that its lease names for as long as that server has a row in `node_leases`.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use mainspring_core::NodeId;
use mainspring_core::placement::{Candidate, Offer};
use mainspring_kernel::boot_time::boot_time_ms;
use tokio::sync::watch;
use tokio_postgres::{Client, Error, Row};

use super::connect::Connector;
use super::lease::{self, Connections, Lease, LocalServer, Renewal, durations};
use super::migrate::{self, SCHEMA_VERSION};
use super::permits::SharedPermits;
use super::server;
use super::values::typed;
use super::writer::Shared;

/// Time between two reads of the other servers' rows.
pub(super) const POLL_MS: u64 = 200;

/// The servers that execute sessions, as this server last read them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Homes {
    /// The servers that can act, by name.
    pub servers: Vec<HomeServer>,
    /// The server that has the lease of the database, if it can act.
    pub leader: Option<NodeId>,
    /// Grows whenever sessions may have lost their home, and this server has to recover them.
    pub lost_homes: u64,
    /// Grows whenever an API key is written.
    pub keys_version: i64,
}

impl Homes {
    /// Finds a server that can act.
    pub fn server(&self, node: NodeId) -> Option<&HomeServer> {
        self.servers.iter().find(|server| server.candidate.node == node)
    }
}

/// A server that executes sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HomeServer {
    /// The server, what it can execute, and its sessions.
    pub candidate: Candidate,
    /// The address at which the other servers reach it.
    pub address: String,
}

/// Joins the group, unless a server outside the group has the database. Returns whether this server has joined.
pub(super) async fn join(client: &Client, shared: &Shared, local: &LocalServer) -> Result<bool, Error> {
    client.batch_execute(&shared.begin()).await?;
    let joined = join_in_transaction(client, shared, local).await;
    let end = if matches!(joined, Ok(true)) { "COMMIT" } else { "ROLLBACK" };
    client.batch_execute(end).await?;
    joined
}

async fn join_in_transaction(client: &Client, shared: &Shared, local: &LocalServer) -> Result<bool, Error> {
    if !server::try_lock_for_transaction(client).await? {
        return Ok(false);
    }
    // Since the tables were checked, a copy may have begun, or a later version may have changed them.
    if migrate::is_closed(client).await? {
        return Ok(false);
    }
    // The lock of this row also keeps two servers from joining at the same time.
    let sql = "SELECT 1 FROM server_lease AS l
               WHERE free_at IS NULL OR clock_timestamp() >= free_at OR place = $1
                  OR EXISTS (SELECT 1 FROM node_leases AS n WHERE n.node_id = l.node_id) FOR UPDATE";
    if client.query_typed(sql, &typed(&[&local.place])).await?.is_empty() {
        return Ok(false);
    }
    match client.query_typed("SELECT 1 FROM node_leases LIMIT 1", &[]).await?.is_empty() {
        true => drop(server::begin_history(client, shared).await?),
        false => server::continue_history(client, shared).await?,
    }
    let sql = "INSERT INTO node_leases (node_id, place, expires_at, free_at, schema_version) VALUES ($1, $2,
                 clock_timestamp() + $3 * interval '1 millisecond', clock_timestamp() + $4 * interval '1 millisecond', $5)";
    let (node, (lease_ms, free_ms)) = (local.node.as_bytes().as_slice(), durations(local.times));
    let version = SCHEMA_VERSION as i64;
    client.execute_typed(sql, &typed(&[&node, &local.place, &lease_ms, &free_ms, &version])).await?;
    lease::report_alive(client, local).await?;
    Ok(true)
}

/// Removes the earlier servers in the same place. The caller knows that they and their agents have ended.
pub(super) async fn replace_earlier(client: &Client, local: &LocalServer) -> Result<(), Error> {
    let sql = format!("{} SELECT 1 FROM gone", remove_servers("place = $1 AND node_id <> $2"));
    let node = local.node.as_bytes().as_slice();
    client.execute_typed(&sql, &typed(&[&local.place, &node])).await.map(drop)
}

/// Returns the beginning of a statement that removes the servers that match `condition`, as `gone`, and voids the
/// leases of their sessions: none of their commits succeeds from then on.
fn remove_servers(condition: &str) -> String {
    format!(
        "WITH gone AS (DELETE FROM node_leases WHERE {condition} RETURNING node_id),
         fenced AS (
           UPDATE leases SET epoch = nextval('lease_epochs'), released = true
           FROM gone WHERE leases.node_id = gone.node_id AND NOT released)"
    )
}

/// Removes a server that stops: its sessions have no home any more.
pub(super) async fn leave(client: &Client, local: &LocalServer) -> Result<(), Error> {
    let node = local.node.as_bytes().as_slice();
    let sql = format!("{} SELECT 1 FROM gone", remove_servers("node_id = $1"));
    client.execute_typed(&sql, &typed(&[&node])).await.map(drop)
}

/// Records that a server hands its sessions over: from now on, other servers place no session on it.
pub(super) async fn drain(client: &Client, local: &LocalServer) -> Result<(), Error> {
    let node = local.node.as_bytes().as_slice();
    let sql = "UPDATE node_leases SET draining = true WHERE node_id = $1";
    client.execute_typed(sql, &typed(&[&node])).await.map(drop)
}

/// Renews the lease of a server at work, takes the lead if no server has it, and publishes the known servers.
pub(super) struct HomeKeeper {
    pub(super) shared: Arc<Shared>,
    pub(super) local: Arc<LocalServer>,
    pub(super) homes: watch::Sender<Homes>,
    /// The permits that the servers share, once the kernel of this one has started.
    pub(super) permits: Arc<OnceLock<SharedPermits>>,
    /// True if this server must not lead any more, because it is going to stop.
    pub(super) is_stepping_down: Arc<AtomicBool>,
    /// When the lease is renewed next, in milliseconds since the start of the machine.
    pub(super) renewal_at_ms: u64,
    /// True if sessions may have lost their home and the kernel does not know yet.
    pub(super) has_lost_homes: bool,
    /// The servers that had not been removed at the last read.
    pub(super) known: BTreeSet<NodeId>,
}

impl HomeKeeper {
    /// Renews the lease until it is lost or released. `client` is an open connection, if there is one.
    pub(super) async fn keep(self, connector: Connector, client: Option<Client>) {
        let (shared, local) = (Arc::clone(&self.shared), Arc::clone(&self.local));
        let lease = Lease { name: "the lease of this server", interval_ms: POLL_MS };
        lease.keep(&shared, &local, Connections { connector, client }, self).await;
    }

    /// Renews the lease of this server, and that of the database if this server leads.
    async fn renew(&self, client: &Client) -> Result<bool, Error> {
        let node = self.local.node.as_bytes().as_slice();
        let boot = self.shared.boot.load(Ordering::Acquire);
        let (lease_ms, free_ms) = durations(self.local.times);
        let own = "UPDATE node_leases SET expires_at = clock_timestamp() + $3 * interval '1 millisecond',
                     free_at = clock_timestamp() + $4 * interval '1 millisecond'
                   WHERE node_id = $1 AND EXISTS (SELECT 1 FROM meta WHERE name = 'boot' AND value = $2)";
        let params = typed(&[&node, &boot, &lease_ms, &free_ms]);
        if client.execute_typed(own, &params).await? == 0 {
            return Ok(false);
        }
        if self.shared.leads.load(Ordering::Acquire)
            && client.execute_typed(lease::RENEW, &params).await? == 0
        {
            if !self.is_stepping_down.load(Ordering::Acquire) {
                return Ok(false);
            }
            // The lease of the database was released earlier, and the answer to the release was lost.
            self.shared.leads.store(false, Ordering::Release);
        }
        Ok(true)
    }

    /// Records that this server is alive, and the number of its sessions.
    async fn report(&self, client: &Client) -> Result<(), Error> {
        lease::report_alive(client, &self.local).await?;
        let node = self.local.node.as_bytes().as_slice();
        let count = "UPDATE nodes SET sessions =
                       (SELECT count(*) FROM leases WHERE leases.node_id = $1 AND NOT released) WHERE node_id = $1";
        client.execute_typed(count, &typed(&[&node])).await.map(drop)
    }

    /// Releases the lease of the database if this server has it and another one can take it.
    async fn step_down(&self, client: &Client) -> Result<(), Error> {
        let sql = "UPDATE server_lease SET expires_at = NULL, free_at = NULL WHERE node_id = $1 AND epoch = $2
                     AND EXISTS (SELECT 1 FROM node_leases AS n
                                 WHERE n.node_id <> $1 AND NOT n.draining AND clock_timestamp() < n.expires_at)";
        let node = self.local.node.as_bytes().as_slice();
        let boot = self.shared.boot.load(Ordering::Acquire);
        if client.execute_typed(sql, &typed(&[&node, &boot])).await? > 0 {
            self.shared.leads.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Takes the lease of the database if it is free, unless a server of a later version can take it: the leader reads the
    /// records of all sessions. Returns whether this server leads now.
    async fn lead(&self, client: &Client) -> Result<bool, Error> {
        let sql =
            "UPDATE server_lease SET node_id = $1, place = $2, epoch = $3, taken_at = clock_timestamp(),
                     expires_at = clock_timestamp() + $4 * interval '1 millisecond',
                     free_at = clock_timestamp() + $5 * interval '1 millisecond'
                   WHERE (free_at IS NULL OR clock_timestamp() >= free_at OR place = $2)
                     AND NOT EXISTS (SELECT 1 FROM node_leases AS n WHERE n.schema_version > $6
                                       AND NOT n.draining AND clock_timestamp() < n.expires_at)";
        let node = self.local.node.as_bytes().as_slice();
        let boot = self.shared.boot.load(Ordering::Acquire);
        let (lease_ms, free_ms) = durations(self.local.times);
        let version = SCHEMA_VERSION as i64;
        let params = typed(&[&node, &self.local.place, &boot, &lease_ms, &free_ms, &version]);
        Ok(client.execute_typed(sql, &params).await? > 0)
    }
}

impl Renewal for HomeKeeper {
    /// Renews the lease when it is due, takes or releases the lead, takes over from ended servers, exchanges permits
    /// and publishes the known servers.
    async fn tick(&mut self, client: &Client) -> Result<bool, Error> {
        let sent_ms = boot_time_ms();
        if sent_ms >= self.renewal_at_ms {
            if !self.renew(client).await? {
                return Ok(false);
            }
            // Extended before the next statements, which may have to wait.
            if self.local.extend_in_time(&self.shared, sent_ms) {
                self.renewal_at_ms = sent_ms + self.local.times.renewal_ms();
            }
            self.report(client).await?;
        }
        if self.is_stepping_down.load(Ordering::Acquire) {
            self.step_down(client).await?;
        } else if !self.shared.leads.load(Ordering::Acquire) && self.lead(client).await? {
            self.shared.leads.store(true, Ordering::Release);
            // Servers may have ended while there was no leader.
            self.has_lost_homes = true;
        }
        let leads = self.shared.leads.load(Ordering::Acquire);
        if leads {
            take_over(client, &self.local).await?;
        }
        if let Some(permits) = self.permits.get() {
            permits.exchange(client, &self.local).await?;
            if leads {
                permits.divide(client, &self.shared).await?;
            }
        }
        let (mut seen, all) = read_servers(client).await?;
        let has_lost_homes =
            std::mem::take(&mut self.has_lost_homes) || (leads && !self.known.is_subset(&all));
        self.known = all;
        self.homes.send_if_modified(|homes| {
            seen.lost_homes = homes.lost_homes + u64::from(has_lost_homes);
            let is_new = *homes != seen;
            *homes = seen;
            is_new
        });
        Ok(true)
    }
}

/// Removes the servers whose lease has expired and whose grace period is over: their sessions lose their home.
async fn take_over(client: &Client, local: &LocalServer) -> Result<(), Error> {
    let sql = format!(
        "{} UPDATE server_lease SET takeovers = takeovers + (SELECT count(*) FROM gone)
            WHERE EXISTS (SELECT 1 FROM gone)",
        remove_servers("node_id <> $1 AND clock_timestamp() >= free_at")
    );
    let node = local.node.as_bytes().as_slice();
    if client.execute_typed(&sql, &typed(&[&node])).await? > 0 {
        tracing::warn!(
            "this server takes over from another one of the cluster that does not renew its lease"
        );
    }
    Ok(())
}

/// Reads the servers that can act, and the ids of all that have not been removed.
async fn read_servers(client: &Client) -> Result<(Homes, BTreeSet<NodeId>), Error> {
    let sql =
        "SELECT w.node_id, clock_timestamp() < w.expires_at, coalesce(n.name, ''), coalesce(n.address, ''),
                 coalesce(n.offer, ''), coalesce(n.sessions, 0),
                 coalesce(l.node_id = w.node_id AND clock_timestamp() < l.expires_at, false), w.draining, w.schema_version
               FROM node_leases AS w LEFT JOIN nodes AS n USING (node_id), server_lease AS l ORDER BY 3, 1";
    let keys = "SELECT coalesce((SELECT value FROM meta WHERE name = 'keys'), 0)";
    let rows = client.query_typed(sql, &[]).await?;
    let keys_version = client.query_typed_one(keys, &[]).await?.try_get(0)?;
    let (mut homes, mut all) = (Homes { keys_version, ..Homes::default() }, BTreeSet::new());
    for row in &rows {
        let Ok(id) = row.try_get::<_, &[u8]>(0)?.try_into() else { continue };
        let node = NodeId::from_bytes(id);
        all.insert(node);
        let (can_act, address): (bool, &str) = (row.try_get(1)?, row.try_get(3)?);
        // A server without an address has ended: another process at the same address has removed its row in `nodes`.
        if !can_act || address.is_empty() {
            continue;
        }
        if row.try_get(6)? {
            homes.leader = Some(node);
        }
        homes.servers.push(home_server(row, node)?);
    }
    Ok((homes, all))
}

fn home_server(row: &Row, node: NodeId) -> Result<HomeServer, Error> {
    let offer = serde_json::from_str::<Offer>(row.try_get(4)?).unwrap_or_default();
    let sessions = u64::try_from(row.try_get::<_, i64>(5)?).unwrap_or(0);
    let (name, is_draining) = (row.try_get(2)?, row.try_get(7)?);
    let schema_version = u64::try_from(row.try_get::<_, i64>(8)?).unwrap_or(0);
    let candidate = Candidate { node, name, offer, sessions, is_draining, schema_version };
    Ok(HomeServer { candidate, address: row.try_get(3)? })
}
