//! Webhooks and their dead letters.

use mainspring_core::{Cursor, DeadLetter, Webhook, WebhookId};
use mainspring_kernel::store::WebhookChange;

use super::tables::Tables;

impl Tables {
    pub(super) fn webhook_write(&mut self, change: &WebhookChange) -> bool {
        match change {
            WebhookChange::Add(webhook) => {
                self.webhooks.insert(webhook.id, webhook.clone());
                true
            }
            WebhookChange::Remove(id) => {
                self.dead_letters.retain(|(webhook, _), _| webhook != id);
                self.webhooks.remove(id).is_some()
            }
            WebhookChange::Progress(webhook, letter) => {
                let Some(known) = self.webhooks.get_mut(&webhook.id) else { return false };
                known.clone_from(webhook);
                let letter = letter.iter().map(|letter| ((letter.webhook, letter.cursor.0), letter.clone()));
                self.dead_letters.extend(letter);
                true
            }
            WebhookChange::Replace(letter) => {
                let Some(known) = self.dead_letters.get_mut(&(letter.webhook, letter.cursor.0)) else {
                    return false;
                };
                known.clone_from(letter);
                true
            }
            WebhookChange::Forget(id, cursor) => self.dead_letters.remove(&(*id, cursor.0)).is_some(),
        }
    }

    pub(super) fn webhooks(&self, owner: Option<&str>) -> Vec<Webhook> {
        let matches = |webhook: &&Webhook| owner.is_none_or(|owner| webhook.owner == owner);
        self.webhooks.values().filter(matches).cloned().collect()
    }

    pub(super) fn dead_letters(&self, webhook: WebhookId, after: Cursor, limit: usize) -> Vec<DeadLetter> {
        let of_webhook = self.dead_letters.range((webhook, after.0.saturating_add(1))..=(webhook, u64::MAX));
        of_webhook.map(|(_, letter)| letter.clone()).take(limit).collect()
    }
}
