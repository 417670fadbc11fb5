//! Webhooks.

use mainspring_api::{DeadLetterQuery, MadeWebhook, NewWebhook, Page, WebhookDelivery};
use mainspring_core::{Cursor, DeadLetter, Webhook, WebhookId};
use serde_json::json;

use super::Client;
use crate::Error;

impl Client {
    /// Adds a webhook for the caller's events. Only this response contains its secret.
    pub async fn webhook_create(&self, new: &NewWebhook) -> Result<MadeWebhook, Error> {
        self.post(&["v1", "webhooks"], new).await
    }

    /// Lists the caller's webhooks.
    pub async fn webhook_list(&self) -> Result<Page<Webhook>, Error> {
        self.get(&["v1", "webhooks"], &()).await
    }

    /// Removes a webhook and its dead letters.
    pub async fn webhook_remove(&self, webhook: WebhookId) -> Result<(), Error> {
        self.delete(&["v1", "webhooks", &webhook.to_string()]).await
    }

    /// Sends a test event to a webhook.
    pub async fn webhook_test(&self, webhook: WebhookId) -> Result<WebhookDelivery, Error> {
        self.post(&["v1", "webhooks", &webhook.to_string(), "test"], &json!({})).await
    }

    /// Lists the events that could not be delivered to a webhook, in their order.
    pub async fn webhook_dead(
        &self,
        webhook: WebhookId,
        query: &DeadLetterQuery,
    ) -> Result<Page<DeadLetter>, Error> {
        self.get(&["v1", "webhooks", &webhook.to_string(), "dead"], query).await
    }

    /// Sends the dead letter of an event again.
    pub async fn webhook_retry(&self, webhook: WebhookId, event: Cursor) -> Result<WebhookDelivery, Error> {
        let (webhook, cursor) = (webhook.to_string(), event.0.to_string());
        self.post(&["v1", "webhooks", &webhook, "dead", &cursor, "retry"], &json!({})).await
    }
}
