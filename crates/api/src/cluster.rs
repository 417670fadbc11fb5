//! Servers that share a database.

use mainspring_core::NodeId;
use serde::{Deserialize, Serialize};

/// The servers of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Cluster {
    /// The servers, by name; none if the server is not one of a cluster.
    pub servers: Vec<ClusterServer>,
    /// How often a server took over from a server that had not handed over its work.
    pub takeovers: u64,
    /// Milliseconds for which the active server has the database if it does not renew its lease; absent without a
    /// cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_left_ms: Option<u64>,
    /// The sessions with unfinished runs that wait because no server has their labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<ClusterWaiting>,
}

/// Sessions with unfinished runs that no server executes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClusterWaiting {
    /// The labels that the sessions need.
    pub labels: Vec<String>,
    /// The number of sessions.
    pub sessions: u64,
}

/// A server of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClusterServer {
    /// The id of the process.
    pub node_id: NodeId,
    /// The name of the server.
    pub name: String,
    /// The address at which the other servers reach it.
    pub address: String,
    /// The version that it runs.
    pub version: String,
    /// True for the server that has the lease of the database. It does all work while the others stand by, or, if all
    /// servers execute sessions, coordinates them.
    pub active: bool,
    /// True if the server executes sessions.
    #[serde(default)]
    pub working: bool,
    /// True if the server hands its sessions over to others, because it is going to stop.
    #[serde(default)]
    pub draining: bool,
    /// The sessions that the server has in memory, if all servers execute sessions.
    #[serde(default)]
    pub sessions: u64,
    /// The adapters of the server, if all servers execute sessions.
    #[serde(default)]
    pub adapters: Vec<String>,
    /// The labels of the server, which sessions may need.
    #[serde(default)]
    pub labels: Vec<String>,
    /// The groups of settings in which the server differs from the active one, such as `models`. They have to be the
    /// same on all servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differs: Vec<String>,
    /// The number of runs with an agent process that the server may execute now, if all servers share a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<u64>,
    /// The number of runs without an agent process that the server may execute now, if all servers share a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_process_runs: Option<u64>,
    /// Milliseconds since the server was started.
    pub up_ms: u64,
    /// Milliseconds since the server last reported that it is alive.
    pub seen_ms: u64,
}
