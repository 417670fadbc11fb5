//! Meters of a database that runs as a separate server.

use crate::meters::COMMIT_SECONDS;

/// The connections, transactions and leases of this process in a database server.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DatabaseMeters {
    /// Connections that read or change something now.
    pub connections_used: usize,
    /// Open connections that wait for work.
    pub connections_idle: usize,
    /// Callers that wait for a connection.
    pub connections_awaited: usize,
    /// Transactions of writers per bucket of [`COMMIT_SECONDS`]; the last entry counts longer ones.
    pub batch_buckets: [u64; COMMIT_SECONDS.len() + 1],
    /// Total duration of the transactions of writers, in seconds.
    pub batch_seconds: f64,
    /// The number of commits in these transactions.
    pub batch_commits: u64,
    /// Age of the oldest open transaction that has written, in any database of the server, in seconds; 0 without one. Events
    /// that were committed after it began are not readable across sessions yet. `None` if the database does not answer.
    pub feed_lag_seconds: Option<f64>,
    /// Seconds for which this server may act without a renewal of its lease; `None` without a cluster.
    pub lease_left_seconds: Option<f64>,
    /// How often a server of the cluster took over from another that had not released its lease.
    pub takeovers: Option<u64>,
}
