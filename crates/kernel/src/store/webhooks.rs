//! Webhooks as the store reads and writes them.

use mainspring_core::{Cursor, DeadLetter, Webhook, WebhookId};

/// A change of webhooks and their dead letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WebhookChange {
    /// Adds a webhook.
    Add(Webhook),
    /// Removes a webhook and its dead letters.
    Remove(WebhookId),
    /// Updates a webhook, and adds or replaces a dead letter. Without effect if the webhook was removed.
    Progress(Webhook, Option<DeadLetter>),
    /// Replaces a dead letter. Without effect if it was removed.
    Replace(DeadLetter),
    /// Removes the dead letter of an event.
    Forget(WebhookId, Cursor),
}
