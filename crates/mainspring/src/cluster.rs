//! A server of a cluster: several `mainspring serve` on one PostgreSQL database, of which one at a time is active.
//!
//! The others stand by: they forward requests to the active server, and one of them takes over when the lease of the active
//! server has expired. With `cluster.spread` all of them are at work, and the active one leads (`homes.rs`). docs/cluster.md
//! describes what that means for callers and agents.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mainspring_api::{Cluster, ClusterServer, ClusterWaiting};
use mainspring_core::permits::PermitPool;
use mainspring_core::placement::Offer;
use mainspring_core::{LeaseTimes, NodeId};
use mainspring_http::{PeerClient, Servers};
use mainspring_kernel::Kernel;
use mainspring_kernel::clock::Clock;
use mainspring_kernel::ids::Ids;
use mainspring_kernel::kernel::reach::Peers;
use mainspring_store::{
    LocalServer, PostgresOptions, PostgresStore, ServerSeen, SharedPermits, Standby, StateDir,
};
use tokio::sync::watch;

use crate::cluster_secret::{settings_key, shared_token};
use crate::config::Config;
use crate::node::{Node, NodeError};
use crate::server::forwarding;
use crate::token;

mod homes;
mod settings;

/// The longest wait for another server to lead.
const STEP_DOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// This process as a server of its cluster. It owns its state directory.
#[derive(Debug)]
pub struct Member {
    standby: Standby,
    node: NodeId,
    name: String,
    address: String,
    /// True if this server executes sessions beside the others.
    is_spread: bool,
    /// The total of the permits that all servers share, by pool; `None` for a pool that is not shared.
    permit_limits: [Option<usize>; 2],
    /// The servers at work, for the HTTP edge.
    servers: watch::Sender<Servers>,
    // Released last.
    _state_dir: StateDir,
}

impl Member {
    /// Takes the state directory, and joins the cluster of the configuration as a server that stands by.
    pub async fn join(config: &Config) -> Result<Self, NodeError> {
        let missing = |what: &str| NodeError::Cluster(format!("a cluster needs the setting `{what}`"));
        let url = config.store.as_deref().ok_or_else(|| missing("store"))?;
        let address = config.cluster.address.clone().ok_or_else(|| missing("cluster.address"))?;
        let secret = config.cluster.secret_file.as_deref().ok_or_else(|| missing("cluster.secret_file"))?;
        let token = shared_token(secret)?;
        let mut offer = Offer {
            adapters: vec![],
            folders: config.cluster.folders.clone(),
            labels: config.cluster.labels.clone(),
        };
        if config.cluster.spread {
            offer.adapters = Node::adapters(config)?.into_iter().map(|adapter| adapter.adapter).collect();
        }
        let node = Ids::system().node();
        let state_dir = StateDir::open(&config.state_dir, Clock::system().now(), node)?;
        token::replace(&config.state_dir, &token).map_err(|error| {
            NodeError::Cluster(format!(
                "the token in {} cannot be written: {error}",
                config.state_dir.display()
            ))
        })?;
        let name = config.cluster.display_name().to_owned();
        let local = LocalServer {
            node,
            name: name.clone(),
            address: address.clone(),
            place: place(&config.state_dir),
            times: LeaseTimes::new(config.cluster.lease_ms),
            limit_file: Some(config.limit_file()),
            offer,
            settings: settings::announced(config, &*settings_key(secret)?),
        };
        let standby = Standby::join(url, PostgresOptions::default(), local).await;
        let standby = match &config.cluster.listen_url {
            Some(url) => standby.and_then(|standby| standby.listening_at(url)),
            None => standby,
        };
        let standby = standby.map_err(|error| NodeError::postgres(config, &error))?;
        warn_of_differences(&standby).await;
        let (is_spread, servers) = (config.cluster.spread, watch::Sender::new(Servers::default()));
        let permit_limits = config.cluster.permit_limits();
        Ok(Self { standby, node, name, address, is_spread, permit_limits, servers, _state_dir: state_dir })
    }

    /// Waits until this server can execute sessions beside others and one of them leads, and opens the store. May be
    /// cancelled.
    pub async fn work(&self, config: &Config) -> Result<PostgresStore, NodeError> {
        let store = self.standby.work().await.map_err(|error| NodeError::postgres(config, &error))?;
        let is_ready =
            |homes: &mainspring_store::Homes| homes.leader.is_some() && homes.server(self.node).is_some();
        // The sender lives as long as this server.
        let _ = self.standby.homes().wait_for(is_ready).await;
        Ok(store)
    }

    /// Follows the other servers at work for `kernel` until it stops, unless this server is active alone. Shares the
    /// permits of the pools that have a total.
    pub(crate) fn follow(self: &Arc<Self>, kernel: &Kernel) {
        if self.is_spread {
            kernel.tasks().spawn(homes::publish(Arc::clone(self), kernel.tasks().clone()));
            kernel.tasks().spawn(homes::follow(Arc::clone(self), kernel.clone()));
            kernel.tasks().spawn(homes::poll_changes(Arc::clone(self), kernel.clone()));
        }
        if self.permit_limits.iter().any(Option::is_some) {
            let (for_demand, for_resize) = (kernel.clone(), kernel.clone());
            self.standby.share_permits(SharedPermits::new(
                self.permit_limits,
                move |pool| for_demand.permit_demand(pool),
                move |pool, permits| for_resize.permits_resize(pool, permits),
            ));
        }
    }

    /// Returns the servers at work, for the placement of new sessions, and the client that reaches them; `None` for a
    /// server that is active alone.
    pub(crate) fn homes(
        &self,
        config: &Config,
    ) -> Result<Option<mainspring_kernel::kernel::homes::Homes>, NodeError> {
        if !self.is_spread {
            return Ok(None);
        }
        let options = forwarding::options(config, config.tls_cert.is_some());
        let options = options.map_err(|error| NodeError::Cluster(error.to_string()))?;
        let client = PeerClient::new(self.servers.subscribe(), &options).map_err(NodeError::Cluster)?;
        let client = Arc::new(client);
        let peers = Peers::new(move |node, request| {
            let client = Arc::clone(&client);
            Box::pin(async move { client.ask(node, &request).await })
        });
        let homes = self.standby.homes();
        let candidates =
            move || homes.borrow().servers.iter().map(|server| server.candidate.clone()).collect();
        let known = self.standby.homes();
        let homes = mainspring_kernel::kernel::homes::Homes::new(candidates).with_peers(peers);
        Ok(Some(homes.with_leader(move || known.borrow().leader)))
    }

    /// Watches the servers at work; `None` for a server that is active alone.
    pub(crate) fn servers(&self) -> Option<watch::Receiver<Servers>> {
        self.is_spread.then(|| self.servers.subscribe())
    }

    /// Resolves when this server leads: at once for a server that is active alone.
    pub(crate) async fn leads(&self) {
        if self.is_spread {
            // The sender lives as long as this server.
            let _ = self.standby.homes().wait_for(|homes| homes.leader == Some(self.node)).await;
        }
    }

    /// Releases the sessions of the process that ran in the same place before this one. The caller knows that
    /// the agents of that process have ended.
    pub(crate) async fn replace_earlier(&self, config: &Config) -> Result<(), NodeError> {
        self.standby.replace_earlier().await.map_err(|error| NodeError::postgres(config, &error))
    }

    /// Waits until this server is the active one, and opens the store. May be cancelled.
    pub async fn lead(&self, config: &Config) -> Result<PostgresStore, NodeError> {
        self.standby.lead().await.map_err(|error| NodeError::postgres(config, &error))
    }

    /// Watches the address of the active server, if there is one.
    pub fn active(&self) -> watch::Receiver<Option<String>> {
        self.standby.active()
    }

    /// True if this server is the active one, or one of several at work, and has time left to act.
    pub fn is_active(&self) -> bool {
        self.standby.is_active()
    }

    /// Resolves when this server may not act any more: the process must end at once.
    pub async fn lost(&self) {
        self.standby.lost().await;
    }

    /// Lets the runs of `kernel` finish for `time`. If this server executes sessions beside others, it announces that it
    /// drains and hands its sessions over.
    pub async fn drain(&self, kernel: &Kernel, time: Duration) {
        let drain = async {
            if self.is_spread
                && let Err(error) = self.standby.drain().await
            {
                tracing::warn!(%error, "the other servers do not know that this one stops");
            }
        };
        let begun = kernel.elapsed();
        tokio::select! {
            () = drain => {}
            () = kernel.sleep(time) => {}
        }
        kernel.drain_for(time.saturating_sub(kernel.elapsed().saturating_sub(begun))).await;
    }

    /// Hands the lease over to another server, if there is one. Waits until that server leads, at most
    /// `STEP_DOWN_TIMEOUT`.
    pub async fn step_down(&self, kernel: &Kernel) {
        let is_other = |homes: &mainspring_store::Homes| {
            let stays = |server: &mainspring_store::HomeServer| {
                server.candidate.node != self.node && !server.candidate.is_draining
            };
            homes.leader.is_some_and(|leader| leader != self.node) || !homes.servers.iter().any(stays)
        };
        self.standby.step_down();
        let mut homes = self.standby.homes();
        tokio::select! {
            // The sender lives as long as this server.
            _ = homes.wait_for(is_other) => {}
            () = kernel.sleep(STEP_DOWN_TIMEOUT) => {}
        }
    }

    /// True if this server executes sessions beside others.
    pub fn is_spread(&self) -> bool {
        self.is_spread
    }

    /// Leaves the cluster: if this server is the active one, another may take over at once. The caller has ended all agents.
    pub async fn leave(&self) {
        if let Err(error) = self.standby.leave().await {
            tracing::warn!(%error, "the lease of the database was not released: it expires by itself");
        }
    }

    /// Reads the servers of the cluster.
    pub async fn status(&self) -> Result<Cluster, String> {
        let seen = self.standby.servers().await.map_err(|error| error.to_string())?;
        let limits = self.permit_limits;
        let permits = |pool: PermitPool, held: [u64; 2]| limits[pool as usize].map(|_| held[pool as usize]);
        let server = |server: ServerSeen| ClusterServer {
            node_id: server.node,
            name: server.name,
            address: server.address,
            version: server.version,
            active: server.is_active,
            working: server.is_working,
            draining: server.is_draining,
            sessions: server.sessions,
            adapters: server.adapters,
            labels: server.labels,
            differs: server.differs,
            workers: permits(PermitPool::Workers, server.permits),
            in_process_runs: permits(PermitPool::InProcess, server.permits),
            up_ms: server.up_ms,
            seen_ms: server.seen_ms,
        };
        let servers = seen.servers.into_iter().map(server).collect();
        let waiting = seen.waiting.into_iter().map(|(labels, sessions)| ClusterWaiting { labels, sessions });
        Ok(Cluster {
            servers,
            takeovers: seen.takeovers,
            lease_left_ms: Some(seen.lease_left_ms),
            waiting: waiting.collect(),
        })
    }

    /// Returns the id of this process.
    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    /// Returns the name of this server.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the address at which the other servers reach this one.
    pub fn address(&self) -> &str {
        &self.address
    }
}

/// Logs the servers whose settings differ from those of the active one.
async fn warn_of_differences(standby: &Standby) {
    let servers = match standby.servers().await {
        Ok(seen) => seen.servers,
        Err(error) => return tracing::warn!(%error, "the settings of other servers cannot be read"),
    };
    for server in servers.iter().filter(|server| !server.differs.is_empty()) {
        let groups = server.differs.join(", ");
        tracing::warn!(
            server = server.name,
            groups,
            "settings of this server of the cluster differ from those of the active one"
        );
    }
}

/// Identifies the machine, its boot and the state directory. Only one process at a time owns the directory,
/// so a server in the same place as another one knows that the other one has ended. `None` if the boot or the
/// directory cannot be read.
fn place(state_dir: &Path) -> Option<String> {
    let read = || -> io::Result<String> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let folder = std::fs::metadata(state_dir)?;
        Ok(format!("{}:{}:{}", boot.trim(), folder.dev(), folder.ino()))
    };
    read().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_folders_of_a_machine_are_different_places() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let places = [a.path(), a.path(), b.path()].map(place);
        assert_eq!(places[0], places[1]);
        assert!(places[0].is_none() || places[0] != places[2]);
    }
}
