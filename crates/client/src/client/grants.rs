//! Grants.

use mainspring_api::{GrantListQuery, Page};
use mainspring_core::{Grant, GrantId};
use serde_json::json;

use super::Client;
use crate::Error;

impl Client {
    /// Lists the grants of a session, or of all of the caller's sessions, the newest first.
    pub async fn grant_list(&self, query: &GrantListQuery) -> Result<Page<Grant>, Error> {
        self.get(&["v1", "grants"], query).await
    }

    /// Revokes a grant at once, and the grants of delegated runs that depend on it.
    pub async fn grant_revoke(&self, grant: GrantId) -> Result<Grant, Error> {
        self.post(&["v1", "grants", &grant.to_string(), "revoke"], &json!({})).await
    }
}
