//! Replaces the module `cluster` in a build without PostgreSQL, which has no clusters.

use mainspring_api::Cluster;
use mainspring_core::NodeId;
use mainspring_kernel::Kernel;
use tokio::sync::watch;

use crate::config::Config;
use crate::node::NodeError;

/// A server of a cluster. The type has no values.
#[derive(Debug)]
pub enum Member {}

impl Member {
    /// True if this server is the active one, or one of several at work.
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

    pub(crate) fn follow(&self, _: &Kernel) {
        match *self {}
    }

    pub(crate) fn homes(
        &self,
        _: &Config,
    ) -> Result<Option<mainspring_kernel::kernel::homes::Homes>, NodeError> {
        match *self {}
    }

    pub(crate) fn servers(&self) -> Option<watch::Receiver<mainspring_http::Servers>> {
        match *self {}
    }

    pub(crate) async fn leads(&self) {
        match *self {}
    }

    pub(crate) async fn replace_earlier(&self, _: &Config) -> Result<(), NodeError> {
        match *self {}
    }
}
