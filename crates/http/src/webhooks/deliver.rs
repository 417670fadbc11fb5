//! Delivers events to webhooks: one task per webhook reads the durable log after the webhook's cursor and sends each event
//! in its order, again and again until it is delivered or dead.

use std::collections::HashMap;
use std::time::Duration;

use mainspring_api::ToJson;
use mainspring_core::{Delivery, Event, Webhook, WebhookId};
use mainspring_kernel::owner_events::OwnerItem;
use mainspring_kernel::{Error, Kernel};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::WebhookSender;

/// Pause after the store could not be read or written.
const STORE_PAUSE: Duration = Duration::from_secs(5);

/// Delivers until `stop` is cancelled.
pub async fn deliver_webhooks(kernel: Kernel, sender: WebhookSender, stop: CancellationToken) {
    let mut changed = kernel.webhooks_changed();
    let mut tasks = JoinSet::new();
    let mut following: HashMap<WebhookId, AbortHandle> = HashMap::new();
    loop {
        changed.mark_unchanged();
        let known = kernel.webhooks_all().await;
        let is_unknown = known.is_err();
        match known {
            Ok(webhooks) => {
                following.retain(|id, task| {
                    let is_kept = webhooks.iter().any(|webhook| webhook.id == *id);
                    if !is_kept {
                        task.abort();
                    }
                    is_kept
                });
                for webhook in webhooks {
                    following
                        .entry(webhook.id)
                        .or_insert_with(|| tasks.spawn(follow(kernel.clone(), sender.clone(), webhook)));
                }
            }
            Err(error) => tracing::warn!(%error, "the webhooks cannot be read"),
        }
        tokio::select! {
            () = stop.cancelled() => break,
            change = changed.changed() => if change.is_err() { break },
            () = kernel.sleep(STORE_PAUSE), if is_unknown => {}
            Some(ended) = tasks.join_next() => if let Err(error) = ended && error.is_panic() {
                tracing::error!(%error, "the delivery of a webhook panicked");
            },
        }
    }
    // An event that is being sent is sent again by the next process.
    tasks.shutdown().await;
}

/// Delivers the events of one webhook. Goes on after errors of the store; ends when the key of the webhook has ended.
async fn follow(kernel: Kernel, sender: WebhookSender, mut webhook: Webhook) {
    loop {
        match follow_once(&kernel, &sender, &mut webhook).await {
            Ok(()) => return,
            Err(error) => tracing::warn!(%error, webhook = %webhook.id, "deliveries pause"),
        }
        kernel.sleep(STORE_PAUSE).await;
    }
}

async fn follow_once(kernel: &Kernel, sender: &WebhookSender, webhook: &mut Webhook) -> Result<(), Error> {
    let mut events = kernel.webhook_events(webhook).await?;
    loop {
        let OwnerItem::Event(event) = events.next().await? else { continue };
        if !deliver(kernel, sender, webhook, &event).await? {
            return Ok(());
        }
    }
}

/// Sends an event until it is delivered or dead. Returns false if the key of the webhook has ended.
async fn deliver(
    kernel: &Kernel,
    sender: &WebhookSender,
    webhook: &mut Webhook,
    event: &Event,
) -> Result<bool, Error> {
    loop {
        if !kernel.webhook_is_valid(webhook).await? {
            tracing::info!(webhook = %webhook.id, "the key that made the webhook has ended");
            return Ok(false);
        }
        let delivery = match event.to_json() {
            Ok(body) => sender.send(webhook, &event.id.to_string(), body, kernel.now()).await,
            Err(error) => Delivery::Refused(error.to_string()),
        };
        match kernel.webhook_delivered(webhook, event, delivery).await? {
            Some(pause_ms) => kernel.sleep(Duration::from_millis(pause_ms)).await,
            None => return Ok(true),
        }
    }
}
