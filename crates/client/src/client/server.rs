//! The server itself, and the events of all sessions.

use mainspring_api::{AuditListQuery, AuditRecord, Health, OwnerEventsQuery, Page};
use mainspring_core::{Event, Position};
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

    /// Follows the events of all of the caller's sessions after `after`, in one order; from now on if `None`. With
    /// `type_prefixes`, only events whose types begin with one of them, for example `run`.
    pub async fn owner_events(
        &self,
        type_prefixes: &[&str],
        after: Option<Position>,
    ) -> Result<OwnerEvents, Error> {
        OwnerEvents::open(self.clone(), type_prefixes, after).await
    }

    /// Reads a page of the events of all of the caller's sessions.
    pub async fn owner_events_page(&self, query: &OwnerEventsQuery) -> Result<Page<Event>, Error> {
        self.get(&["v1", "events"], query).await
    }
}
