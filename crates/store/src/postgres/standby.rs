//! A server that waits for the lease of its database, and later holds it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use mainspring_core::NodeId;
use mainspring_core::placement::Offer;
use mainspring_kernel::boot_time::boot_time_ms;
use mainspring_kernel::store::StoreError;
use tokio::sync::watch;
use tokio_postgres::{Client, Error, Row};

use super::connect::Connector;
use super::error::describe;
use super::homes::{self, HomeKeeper, Homes, POLL_MS};
use super::lease::{self, Keeper, LocalServer};
use super::migrate::migrate;
use super::settings::{self, Announced};
use super::values::{get, get_id, get_u64};
use super::writer::{Shared, pause};
use super::{PostgresError, PostgresOptions, PostgresStore, SharedPermits, Threads, notices, server};

/// The servers of a cluster, as the database knows them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServersSeen {
    /// The servers, by name.
    pub servers: Vec<ServerSeen>,
    /// The number of times that a server took the lease of another server that had not released it.
    pub takeovers: u64,
    /// Milliseconds until the lease expires if it is not renewed.
    pub lease_left_ms: u64,
    /// The labels of sessions that have unfinished work and no home, and the number of sessions with these labels.
    pub waiting: Vec<(Vec<String>, u64)>,
}

/// A server of a cluster, as the database knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSeen {
    /// The id of the process.
    pub node: NodeId,
    /// The name of the server.
    pub name: String,
    /// The address at which the other servers reach it.
    pub address: String,
    /// The version that it runs.
    pub version: String,
    /// True if it has the lease.
    pub is_active: bool,
    /// True if it executes sessions: as the active server, or as one of several at work.
    pub is_working: bool,
    /// The names of the adapters that it can execute.
    pub adapters: Vec<String>,
    /// The labels that sessions may demand.
    pub labels: Vec<String>,
    /// The shared permits that it holds: for runs with a process, and for runs without one.
    pub permits: [u64; 2],
    /// The sessions that it has in memory, if it is one of several at work.
    pub sessions: u64,
    /// The groups of settings in which it differs from the active server.
    pub differs: Vec<String>,
    /// True if it hands its sessions over because it is going to stop.
    pub is_draining: bool,
    /// Milliseconds since it joined.
    pub up_ms: u64,
    /// Milliseconds since the server last reported that it is alive.
    pub seen_ms: u64,
}

/// A server of a cluster that waits for the lease.
pub struct Standby {
    connector: Connector,
    options: PostgresOptions,
    local: Arc<LocalServer>,
    shared: Arc<Shared>,
    active: watch::Sender<Option<String>>,
    homes: watch::Sender<Homes>,
    notices: watch::Sender<u64>,
    listener: Connector,
    permits: Arc<OnceLock<SharedPermits>>,
    is_stepping_down: Arc<AtomicBool>,
    threads: Arc<Threads>,
}

impl Standby {
    /// Connects to the database at `url`, and makes or updates its tables. Takes no lease.
    pub async fn join(
        url: &str,
        options: PostgresOptions,
        local: LocalServer,
    ) -> Result<Self, PostgresError> {
        let (threads, runtime) = Threads::start()?;
        let connector = Connector::new(url, runtime)?;
        let listener = connector.clone();
        let fail = |error: Error| PostgresError::Database(describe(&error));
        let client = connector.connect().await.map_err(fail)?;
        migrate(&client).await?;
        lease::join(&client, &local).await.map_err(fail)?;
        settings::check(&client, &local).await?;
        let shared = Arc::<Shared>::default();
        shared.idle_limit_ms.store(local.times.idle_limit_ms(), Ordering::Release);
        let (active, homes) = (watch::Sender::new(None), watch::Sender::new(Homes::default()));
        let (local, threads, notices) = (Arc::new(local), Arc::new(threads), watch::Sender::new(0));
        let (permits, is_stepping_down) = (Arc::default(), Arc::default());
        Ok(Self {
            connector,
            options,
            local,
            shared,
            active,
            homes,
            notices,
            listener,
            permits,
            is_stepping_down,
            threads,
        })
    }

    /// Receives notices of other servers through the database at `url`, for a store that is reached through a
    /// transaction pooler.
    pub fn listening_at(mut self, url: &str) -> Result<Self, PostgresError> {
        self.listener = Connector::new(url, self.connector.runtime())?;
        Ok(self)
    }

    /// Waits until this server can execute sessions beside others, and opens the store. May be cancelled.
    pub async fn work(&self) -> Result<PostgresStore, PostgresError> {
        let mut client = None;
        loop {
            let sent_ms = boot_time_ms();
            match self.try_work(&mut client).await {
                Ok(true) => break self.open_at_work(client, sent_ms),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(error = %describe(&error), "the database cannot be joined");
                    client = None;
                }
            }
            pause(POLL_MS).await;
        }
    }

    async fn try_work(&self, slot: &mut Option<Client>) -> Result<bool, Error> {
        let client = match slot.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => self.connector.connect().await?,
        };
        let joined = homes::join(&client, &self.shared, &self.local).await?;
        *slot = Some(client);
        Ok(joined)
    }

    /// Opens the store of a server that has just joined others, and begins to renew its lease.
    fn open_at_work(&self, client: Option<Client>, sent_ms: u64) -> Result<PostgresStore, PostgresError> {
        self.extend(sent_ms)?;
        let _ = self.shared.home.set(self.local.node);
        let (shared, local) = (Arc::clone(&self.shared), Arc::clone(&self.local));
        let homes = self.homes.clone();
        let permits = Arc::clone(&self.permits);
        let is_stepping_down = Arc::clone(&self.is_stepping_down);
        let keeper = HomeKeeper {
            shared,
            local,
            homes,
            permits,
            is_stepping_down,
            renewal_at_ms: 0,
            has_lost_homes: false,
            known: BTreeSet::new(),
        };
        self.connector.spawn(keeper.keep(self.connector.clone(), client));
        let (connector, shared, node) = (self.connector.clone(), Arc::clone(&self.shared), self.local.node);
        self.connector.spawn(notices::announce(connector, Arc::clone(&shared), node));
        self.connector.spawn(notices::listen(self.listener.clone(), shared, node, self.notices.clone()));
        PostgresStore::assemble(&self.connector, &self.shared, self.options, Arc::clone(&self.threads))
    }

    /// Shares permits with the other servers from now on.
    pub fn share_permits(&self, permits: SharedPermits) {
        // Once: a process has one kernel.
        let _ = self.permits.set(permits);
    }

    /// Watches the servers that execute sessions; empty until this server is one of them.
    pub fn homes(&self) -> watch::Receiver<Homes> {
        self.homes.subscribe()
    }

    /// Watches a counter that grows when another server at work has written something. Notices may be lost.
    pub fn notices(&self) -> watch::Receiver<u64> {
        self.notices.subscribe()
    }

    /// Announces that this server hands its sessions over: others place nothing on it from now on.
    pub async fn drain(&self) -> Result<(), PostgresError> {
        let fail = |error: Error| PostgresError::Database(describe(&error));
        let client = self.connector.connect().await.map_err(fail)?;
        homes::drain(&client, &self.local).await.map_err(fail)
    }

    /// Releases the lease of the database as soon as another server can take it.
    pub fn step_down(&self) {
        self.is_stepping_down.store(true, Ordering::Release);
    }

    /// Frees the sessions of an earlier process in the same place. The caller knows that the agents of that process
    /// have ended.
    pub async fn replace_earlier(&self) -> Result<(), PostgresError> {
        let fail = |error: Error| PostgresError::Database(describe(&error));
        let client = self.connector.connect().await.map_err(fail)?;
        homes::replace_earlier(&client, &self.local).await.map_err(fail)
    }

    /// Watches the address of the active server, if there is one.
    pub fn active(&self) -> watch::Receiver<Option<String>> {
        self.active.subscribe()
    }

    /// Waits until this server has the lease, and opens the store. May be cancelled.
    pub async fn lead(&self) -> Result<PostgresStore, PostgresError> {
        let (mut client, mut report_at_ms) = (None, 0);
        loop {
            let sent_ms = boot_time_ms();
            match self.try_lead(&mut client, &mut report_at_ms).await {
                Ok(true) => return self.open(client, sent_ms),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(error = %describe(&error), "the lease of the database cannot be read");
                    client = None;
                    self.active.send_replace(None);
                }
            }
            pause(POLL_MS).await;
        }
    }

    /// Removes this server from the cluster, and releases the lease if this server has it: another server may take it
    /// at once. The caller has ended all agents.
    pub async fn leave(&self) -> Result<(), PostgresError> {
        self.shared.lost.store(true, Ordering::Release);
        let fail = |error: Error| PostgresError::Database(describe(&error));
        let client = self.connector.connect().await.map_err(fail)?;
        homes::leave(&client, &self.local).await.map_err(fail)?;
        lease::leave(&client, &self.local, self.shared.boot.load(Ordering::Acquire)).await.map_err(fail)
    }

    /// Reads the servers of the cluster.
    pub async fn servers(&self) -> Result<ServersSeen, PostgresError> {
        let fail = |error: Error| PostgresError::Database(describe(&error));
        let client = self.connector.connect().await.map_err(fail)?;
        let ms = |interval: &str| {
            format!("greatest(coalesce((extract(epoch FROM {interval}) * 1000)::bigint, 0), 0)")
        };
        let left = ms("expires_at - clock_timestamp()");
        let lease = format!("SELECT takeovers, {left} FROM server_lease");
        let (up, seen) = (ms("clock_timestamp() - n.started_at"), ms("clock_timestamp() - n.seen_at"));
        let servers = format!(
            "SELECT n.node_id, n.name, n.address, n.version,
               coalesce(l.node_id = n.node_id AND clock_timestamp() < l.expires_at, false), {up}, {seen},
               coalesce(clock_timestamp() < w.expires_at, false), n.offer, n.sessions,
               coalesce(w.workers_held, 0), coalesce(w.in_process_held, 0), n.settings, coalesce(w.draining, false)
             FROM nodes n LEFT JOIN node_leases w USING (node_id), server_lease l ORDER BY n.name, n.started_at"
        );
        let lease = client.query_typed_one(&lease, &[]).await.map_err(fail)?;
        let rows = client.query_typed(&servers, &[]).await.map_err(fail)?;
        let read = |row: &Row| -> Result<ServerSeen, StoreError> {
            let (is_active, is_at_work): (bool, bool) = (get(row, 4)?, get(row, 7)?);
            let offer: Offer = serde_json::from_str(get(row, 8)?).unwrap_or_default();
            Ok(ServerSeen {
                node: NodeId::from_bytes(get_id(row, 0)?),
                name: get(row, 1)?,
                address: get(row, 2)?,
                version: get(row, 3)?,
                is_active,
                is_working: is_active || is_at_work,
                adapters: offer.adapters,
                labels: offer.labels,
                permits: [get_u64(row, 10)?, get_u64(row, 11)?],
                differs: vec![],
                sessions: if is_at_work { get_u64(row, 9)? } else { 0 },
                is_draining: get(row, 13)?,
                up_ms: get_u64(row, 5)?,
                seen_ms: get_u64(row, 6)?,
            })
        };
        let damaged = |error: StoreError| PostgresError::Database(error.to_string());
        let mut servers = rows.iter().map(read).collect::<Result<Vec<_>, _>>().map_err(damaged)?;
        let announced = rows.iter().map(|row| Announced::read(row, [4, 3, 12]));
        let announced = announced.collect::<Result<Vec<_>, _>>().map_err(fail)?;
        for (server, differs) in servers.iter_mut().zip(settings::differences(&announced)) {
            server.differs = differs;
        }
        let takeovers = get_u64(&lease, 0).map_err(damaged)?;
        let waiting = waiting(&client).await.map_err(fail)?;
        Ok(ServersSeen { servers, takeovers, lease_left_ms: get_u64(&lease, 1).map_err(damaged)?, waiting })
    }

    /// Resolves when this server may not act any more: the process must end at once.
    pub async fn lost(&self) {
        loop {
            let mut notice = std::pin::pin!(self.shared.lost_notice.notified());
            notice.as_mut().enable();
            if self.shared.lost.load(Ordering::Acquire) {
                return;
            }
            notice.await;
        }
    }

    /// True if this server has the lease of the database or is one of several at work, and has time left.
    pub fn is_active(&self) -> bool {
        self.shared.acts_until_ms.load(Ordering::Acquire) != 0 && self.shared.check_held().is_ok()
    }

    /// Opens the store of the server that has just taken the lease, and begins to renew it.
    fn open(&self, client: Option<Client>, sent_ms: u64) -> Result<PostgresStore, PostgresError> {
        self.extend(sent_ms)?;
        let (shared, local) = (Arc::clone(&self.shared), Arc::clone(&self.local));
        self.connector.spawn(Keeper { shared, local }.keep(self.connector.clone(), client));
        PostgresStore::assemble(&self.connector, &self.shared, self.options, Arc::clone(&self.threads))
    }

    /// Extends the time for which this server may act, after it took or renewed a lease at `sent_ms`.
    fn extend(&self, sent_ms: u64) -> Result<(), PostgresError> {
        self.local.extend(&self.shared, sent_ms).map_err(|error| {
            let file = self.local.limit_file.as_deref().unwrap_or(Path::new(""));
            PostgresError::LimitFile { file: file.into(), reason: error.to_string() }
        })
    }

    async fn try_lead(&self, client: &mut Option<Client>, report_at_ms: &mut u64) -> Result<bool, Error> {
        if !self.check_lease(client, report_at_ms).await? {
            return Ok(false);
        }
        match client {
            Some(client) => server::boot(client, &self.shared, Some(&self.local)).await,
            None => Ok(false),
        }
    }

    /// Reports that this server is alive when that is due, and reads the lease. Returns true if this server may try to
    /// take it.
    async fn check_lease(&self, slot: &mut Option<Client>, report_at_ms: &mut u64) -> Result<bool, Error> {
        let client = match slot.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => self.connector.connect().await?,
        };
        if boot_time_ms() >= *report_at_ms {
            lease::report_alive(&client, &self.local).await?;
            *report_at_ms = boot_time_ms() + self.local.times.renewal_ms();
        }
        let sql = "SELECT n.address, coalesce(clock_timestamp() >= l.free_at, true) OR coalesce(l.place = $1, false),
                     coalesce(clock_timestamp() < l.expires_at, false)
                   FROM server_lease l LEFT JOIN nodes n USING (node_id)";
        let params = super::values::typed(&[&self.local.place]);
        let row = client.query_typed_one(sql, &params).await?;
        let (is_free, is_held): (bool, bool) = (row.try_get(1)?, row.try_get(2)?);
        let active: Option<String> = row.try_get(0)?;
        let active = active.filter(|_| is_held && !is_free);
        self.active.send_if_modified(|known| {
            let changes = *known != active;
            *known = active;
            changes
        });
        *slot = Some(client);
        Ok(is_free)
    }
}

/// Counts the sessions that have unfinished runs, labels and no home.
async fn waiting(client: &Client) -> Result<Vec<(Vec<String>, u64)>, Error> {
    // PostgreSQL refuses to read a value of a JSON text that has `\u0000` in any of its strings. The replacement keeps
    // the text valid, also after an escaped backslash. Labels have no control characters.
    let sql = r"SELECT j.body ->> 'labels', count(*) FROM sessions AS s,
                 LATERAL (SELECT replace(s.body, '\u0000', '\u0001')::json AS body) AS j
               WHERE s.session_id IN (SELECT session_id FROM runs WHERE NOT ended) AND s.status <> 'deleted'
                 AND j.body ->> 'labels' IS NOT NULL
                 AND NOT EXISTS (SELECT 1 FROM leases AS l JOIN node_leases AS n USING (node_id)
                                 WHERE l.session_id = s.session_id)
               GROUP BY 1 ORDER BY 1";
    let mut waiting = vec![];
    for row in client.query_typed(sql, &[]).await? {
        let labels = serde_json::from_str(row.try_get(0)?).unwrap_or_default();
        waiting.push((labels, u64::try_from(row.try_get::<_, i64>(1)?).unwrap_or(0)));
    }
    Ok(waiting)
}

impl std::fmt::Debug for Standby {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Standby").field("local", &self.local).finish_non_exhaustive()
    }
}
