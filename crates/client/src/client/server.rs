//! The server itself, and the events of all sessions.

use mainspring_api::{AuditListQuery, AuditRecord, Health, OwnerEventsQuery, Page};
use mainspring_core::Event;
use reqwest::Method;
use serde_json::Value;

use super::Client;
use crate::{Error, Feed, OwnerEvents};

impl Client {
    /// Checks that the process answers.
    pub async fn health(&self) -> Result<Health, Error> {
        self.get(&["health"], &()).await
    }

    /// Checks that the server accepts work.
    pub async fn ready(&self) -> Result<Health, Error> {
        self.get(&["ready"], &()).await
    }

    /// Reads the OpenAPI document.
    pub async fn openapi(&self) -> Result<Value, Error> {
        self.get(&["openapi.json"], &()).await
    }

    /// Reads the metrics in the text format of Prometheus.
    pub async fn metrics(&self) -> Result<String, Error> {
        let response = self.send(self.request(Method::GET, &["metrics"])).await?;
        response.text().await.map_err(|error| self.transport_error(error))
    }

    /// Reads a page of the audit records that concern the caller, oldest first.
    pub async fn audit_list(&self, query: &AuditListQuery) -> Result<Page<AuditRecord>, Error> {
        self.get(&["v1", "audit"], query).await
    }

    /// Follows the live activity of all of the caller's sessions that are in memory or wait for a person.
    pub fn feed(&self) -> Feed {
        Feed::new(self.clone())
    }

    /// Follows the events of all of the caller's sessions, in one order; from now on if the query has no position.
    pub async fn owner_events(&self, query: &OwnerEventsQuery) -> Result<OwnerEvents, Error> {
        OwnerEvents::open(self.clone(), query).await
    }

    /// Reads a page of the events of all of the caller's sessions.
    pub async fn owner_events_page(&self, query: &OwnerEventsQuery) -> Result<Page<Event>, Error> {
        self.get(&["v1", "events"], query).await
    }
}
