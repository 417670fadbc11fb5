//! Without PostgreSQL there are no clusters.

use mainspring_api::Cluster;
use mainspring_core::NodeId;

/// A server of a cluster: none exists.
#[derive(Debug)]
pub enum Member {}

impl Member {
    /// True if this server is the active one.
    pub fn is_active(&self) -> bool {
        match *self {}
    }

    /// Leaves the cluster.
    pub async fn leave(&self) {
        match *self {}
    }

    /// Reads the servers of the cluster.
    pub async fn status(&self) -> Result<Cluster, String> {
        match *self {}
    }

    pub(crate) fn node(&self) -> NodeId {
        match *self {}
    }
}
