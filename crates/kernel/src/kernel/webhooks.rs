//! Operations on webhooks. The HTTP edge delivers the events; this file holds the state of the deliveries.

use mainspring_core::webhook::{
    ATTENTION, MAX_URL_BYTES, Next, deliverable_types, event_types, is_deliverable,
};
use mainspring_core::{Cursor, DeadLetter, Delivery, Event, Time, Webhook, WebhookId};
use tokio::sync::watch;

use super::runs::check_size;
use super::{Caller, Kernel};
use crate::error::Error;
use crate::owner_events::OwnerEvents;
use crate::store::WebhookChange;

/// Webhooks that an owner may have.
const MAX_PER_OWNER: usize = 20;
/// Dead letters that a webhook keeps; further ones replace the oldest.
const MAX_LETTERS: usize = 1_000;

impl Kernel {
    /// Adds a webhook for the events of the caller's sessions from now on. Without `types` it receives the events that
    /// concern a person.
    pub async fn webhook_create(
        &self,
        caller: &Caller,
        url: String,
        types: Option<Vec<String>>,
    ) -> Result<Webhook, Error> {
        self.check_makes_webhooks(caller)?;
        check_size("the URL", url.len(), MAX_URL_BYTES)?;
        let types = types.unwrap_or_else(|| ATTENTION.iter().map(|&kind| kind.to_owned()).collect());
        if types.is_empty() || !types.iter().all(|name| is_deliverable(name)) {
            let all: Vec<&str> = deliverable_types().collect();
            return Err(Error::Invalid(format!(
                "`types` must name types of events, or their first words, such as run; the types are {}",
                all.join(", ")
            )));
        }
        let store = &self.shared.store;
        if store.webhooks(Some(&caller.owner)).await?.len() >= MAX_PER_OWNER {
            return Err(Error::Invalid(format!(
                "an owner has at most {MAX_PER_OWNER} webhooks: remove one first"
            )));
        }
        let webhook = Webhook {
            id: self.shared.ids.webhook(),
            owner: caller.owner.clone(),
            key: caller.key,
            url,
            types,
            cursor: store.event_last().await?,
            failures: 0,
            last_error: None,
            delivered_at: None,
            created_at: self.shared.clock.now(),
        };
        store.webhook_write(&WebhookChange::Add(webhook.clone())).await?;
        self.shared.webhooks_changed.send_replace(());
        Ok(webhook)
    }

    /// Refuses a caller that may not change webhooks: a viewer, and an agent.
    pub fn check_makes_webhooks(&self, caller: &Caller) -> Result<(), Error> {
        caller.check_person()?;
        caller.check_writes()
    }

    /// Lists the caller's webhooks.
    pub async fn webhook_list(&self, caller: &Caller) -> Result<Vec<Webhook>, Error> {
        Ok(self.shared.store.webhooks(Some(&caller.owner)).await?)
    }

    /// Gets a webhook of the caller that the caller may change.
    pub async fn webhook_for_change(&self, caller: &Caller, id: WebhookId) -> Result<Webhook, Error> {
        let webhook = self.webhook_get(caller, id).await?;
        self.check_makes_webhooks(caller)?;
        Ok(webhook)
    }

    async fn webhook_get(&self, caller: &Caller, id: WebhookId) -> Result<Webhook, Error> {
        let own = self.shared.store.webhooks(Some(&caller.owner)).await?;
        own.into_iter().find(|webhook| webhook.id == id).ok_or_else(|| Error::not_found("webhook", id))
    }

    /// Removes a webhook and its dead letters.
    pub async fn webhook_remove(&self, caller: &Caller, id: WebhookId) -> Result<(), Error> {
        self.webhook_for_change(caller, id).await?;
        self.shared.store.webhook_write(&WebhookChange::Remove(id)).await?;
        self.shared.webhooks_changed.send_replace(());
        Ok(())
    }

    /// Lists the events that could not be delivered to a webhook, in their order, after the event `after`.
    pub async fn webhook_dead(
        &self,
        caller: &Caller,
        id: WebhookId,
        after: Cursor,
        limit: Option<usize>,
    ) -> Result<Vec<DeadLetter>, Error> {
        self.webhook_get(caller, id).await?;
        Ok(self.shared.store.dead_letters(id, after, self.page(limit)?).await?)
    }

    /// Finds a dead letter and its event, to send it again.
    pub async fn webhook_letter(
        &self,
        caller: &Caller,
        id: WebhookId,
        cursor: Cursor,
    ) -> Result<(Webhook, DeadLetter, Event), Error> {
        let webhook = self.webhook_for_change(caller, id).await?;
        let before = Cursor(cursor.0.saturating_sub(1));
        let store = &self.shared.store;
        let found =
            store.dead_letters(id, before, 1).await?.into_iter().find(|letter| letter.cursor == cursor);
        let letter = found.ok_or_else(|| Error::not_found("dead letter", cursor.0))?;
        let events = store.events_after(letter.session, None, before, 1).await?;
        let event = events.into_iter().find(|event| event.cursor == cursor);
        let event = event.ok_or_else(|| Error::not_found("event", letter.event))?;
        Ok((webhook, letter, event))
    }

    /// Records the result of sending a dead letter again.
    pub async fn webhook_resent(&self, letter: DeadLetter, delivery: &Delivery) -> Result<(), Error> {
        let change = match delivery {
            Delivery::Delivered => WebhookChange::Forget(letter.webhook, letter.cursor),
            Delivery::Failed(error) | Delivery::Refused(error) => {
                let (attempts, failed_at) = (letter.attempts.saturating_add(1), self.shared.clock.now());
                WebhookChange::Replace(DeadLetter { attempts, error: error.clone(), failed_at, ..letter })
            }
        };
        self.shared.store.webhook_write(&change).await?;
        Ok(())
    }

    /// Lists the webhooks of all owners, for the component that delivers events.
    pub async fn webhooks_all(&self) -> Result<Vec<Webhook>, Error> {
        Ok(self.shared.store.webhooks(None).await?)
    }

    /// Changes whenever a webhook is added or removed.
    pub fn webhooks_changed(&self) -> watch::Receiver<()> {
        self.shared.webhooks_changed.subscribe()
    }

    /// True if the key that created the webhook is still valid, or if no key created it.
    pub async fn webhook_is_valid(&self, webhook: &Webhook) -> Result<bool, Error> {
        let caller = Caller { key: webhook.key, ..Caller::new(&webhook.owner) };
        let end: Option<Time> = self.key_end(&caller).await?;
        Ok(end.is_some_and(|end| end > self.shared.clock.now()))
    }

    /// Reads the events that a webhook has not received. If a restore from a backup has lost the webhook's cursor, reads only
    /// the events from now on.
    pub async fn webhook_events(&self, webhook: &Webhook) -> Result<OwnerEvents, Error> {
        let caller = Caller::new(&webhook.owner);
        let types = || Some(event_types(&webhook.types));
        match self.owner_events(&caller, types(), Some(webhook.cursor)).await {
            Err(Error::Lost { .. }) => self.owner_events(&caller, types(), None).await,
            events => events,
        }
    }

    /// Records the result of an attempt to deliver an event. Returns the pause before the next attempt in milliseconds; none
    /// if the event was delivered or has become a dead letter.
    pub async fn webhook_delivered(
        &self,
        webhook: &mut Webhook,
        event: &Event,
        delivery: Delivery,
    ) -> Result<Option<u64>, Error> {
        let (now, attempts) = (self.shared.clock.now(), webhook.failures + 1);
        let mut changed = webhook.clone();
        let next = changed.apply(event.cursor, delivery, now);
        let letter = match &next {
            Next::Advance | Next::Pause(_) => None,
            Next::DeadLetter(error) => Some(DeadLetter {
                webhook: webhook.id,
                cursor: event.cursor,
                event: event.id,
                session: event.session,
                event_type: event.body.kind().to_owned(),
                attempts,
                error: error.clone(),
                failed_at: now,
            }),
        };
        let is_dead = letter.is_some();
        self.shared.store.webhook_write(&WebhookChange::Progress(changed.clone(), letter)).await?;
        // Assigned after the commit: an event whose result is not stored is sent again.
        *webhook = changed;
        if is_dead {
            self.forget_oldest_letters(webhook.id).await?;
        }
        Ok(match next {
            Next::Pause(pause) => Some(pause),
            Next::Advance | Next::DeadLetter(_) => None,
        })
    }

    async fn forget_oldest_letters(&self, id: WebhookId) -> Result<(), Error> {
        let letters = self.shared.store.dead_letters(id, Cursor::START, MAX_LETTERS + 1).await?;
        let excess = letters.len().saturating_sub(MAX_LETTERS);
        for letter in letters.iter().take(excess) {
            self.shared.store.webhook_write(&WebhookChange::Forget(id, letter.cursor)).await?;
        }
        Ok(())
    }
}
