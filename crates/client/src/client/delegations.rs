//! Delegations: work that a run hands to a child session.

use mainspring_api::{Delegate, Delegated, DelegationView, RunDelegations};
use mainspring_core::{DelegationId, RunId};

use super::Client;
use crate::Error;

impl Client {
    /// Delegates work of a running run to a child session.
    pub async fn run_delegate(&self, run: RunId, delegate: &Delegate) -> Result<Delegated, Error> {
        let path = ["v1", "runs", &run.to_string(), "delegations"];
        self.post_idempotent(&path, delegate, delegate.idempotency_key.as_deref()).await
    }

    /// Lists the delegations of a run: the one that created the run, and those that the run made.
    pub async fn run_delegations(&self, run: RunId) -> Result<RunDelegations, Error> {
        self.get(&["v1", "runs", &run.to_string(), "delegations"], &()).await
    }

    /// Reads a delegation with its result.
    pub async fn delegation_get(&self, delegation: DelegationId) -> Result<DelegationView, Error> {
        self.get(&["v1", "delegations", &delegation.to_string()], &()).await
    }
}
