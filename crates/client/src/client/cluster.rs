//! The servers of a cluster.

use mainspring_api::Cluster;

use super::Client;
use crate::Error;

impl Client {
    /// Returns the servers that share the server's database. Only for an admin of the server.
    pub async fn cluster_status(&self) -> Result<Cluster, Error> {
        self.get(&["v1", "cluster"], &()).await
    }
}
