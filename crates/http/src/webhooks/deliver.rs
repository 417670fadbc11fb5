//! Delivers events to webhooks: one task per webhook reads the durable log after the webhook's cursor and sends each
//! event in its order, again and again until it is delivered or dead.

use std::collections::HashMap;
use std::time::Duration;

use mainspring_api::ToJson;
use mainspring_core::{Delivery, Event, Webhook, WebhookId};
use mainspring_kernel::owner_events::OwnerItem;
use mainspring_kernel::{Error, Kernel};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::WebhookSender;

/// Pause after the store could not be read or written, and after a delivery that panicked.
const STORE_PAUSE: Duration = Duration::from_secs(5);

/// Delivers until `stop` is cancelled.
pub async fn deliver_webhooks(kernel: Kernel, sender: WebhookSender, stop: CancellationToken) {
    let follow = |kernel: Kernel, webhook: Webhook| follow(kernel, sender.clone(), webhook);
    supervise(kernel, follow, stop).await;
}

/// Runs `follow` for each webhook until the webhook is removed. A delivery that panics begins again after a pause.
async fn supervise<F: Future<Output = ()> + Send + 'static>(
    kernel: Kernel,
    follow: impl Fn(Kernel, Webhook) -> F,
    stop: CancellationToken,
) {
    let mut changed = kernel.webhooks_changed();
    let mut tasks = JoinSet::new();
    let mut following: HashMap<WebhookId, AbortHandle> = HashMap::new();
    let mut is_paused = false;
    loop {
        changed.mark_unchanged();
        match kernel.webhooks_all().await {
            Ok(webhooks) => {
                stop_removed(&mut following, &webhooks);
                for webhook in webhooks.into_iter().filter(|_| !is_paused) {
                    let id = webhook.id;
                    following.entry(id).or_insert_with(|| tasks.spawn(follow(kernel.clone(), webhook)));
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the webhooks cannot be read");
                is_paused = true;
            }
        }
        tokio::select! {
            () = stop.cancelled() => break,
            change = changed.changed() => if change.is_err() { break },
            () = kernel.sleep(STORE_PAUSE), if is_paused => is_paused = false,
            Some(ended) = tasks.join_next_with_id() => if let Err(error) = ended && error.is_panic() {
                tracing::error!(%error, "the delivery of a webhook panicked");
                following.retain(|_, task| task.id() != error.id());
                is_paused = true;
            },
        }
    }
    // An event that is being sent is sent again by the next process.
    tasks.shutdown().await;
}

/// Stops the deliveries of webhooks that are not among `webhooks` any more.
fn stop_removed(following: &mut HashMap<WebhookId, AbortHandle>, webhooks: &[Webhook]) {
    following.retain(|id, task| {
        let is_kept = webhooks.iter().any(|webhook| webhook.id == *id);
        if !is_kept {
            task.abort();
        }
        is_kept
    });
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use mainspring_kernel::kernel::Caller;
    use mainspring_test_support::TestNode;
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_delivery_that_panics_begins_again_and_others_go_on() {
        let node = TestNode::builder().start().await;
        let (kernel, me) = (node.kernel.clone(), Caller::new("local"));
        let [bad, good] = ["https://bad.example/", "https://good.example/"];
        for url in [bad, good] {
            kernel.webhook_create(&me, url.into(), None).await.unwrap();
        }
        let (begun, mut begins) = mpsc::unbounded_channel();
        let panics = Arc::new(AtomicUsize::new(1));
        let follow = move |_: Kernel, webhook: Webhook| {
            let (begun, panics) = (begun.clone(), panics.clone());
            async move {
                begun.send(webhook.url.clone()).unwrap();
                assert!(
                    webhook.url != bad || panics.swap(0, Ordering::SeqCst) == 0,
                    "the first delivery to the bad webhook panics"
                );
                std::future::pending::<()>().await;
            }
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(supervise(kernel, follow, CancellationToken::new()));
        let mut first = [begins.recv().await.unwrap(), begins.recv().await.unwrap()];
        first.sort();
        assert_eq!(first, [bad, good]);
        // The supervisor may begin its pause only after an advance of the clock, so the clock advances until it ends.
        let again = loop {
            node.clock.advance(STORE_PAUSE.as_millis() as u64);
            tokio::task::yield_now().await;
            if let Ok(url) = begins.try_recv() {
                break url;
            }
        };
        assert_eq!(again, bad, "only the one that panicked begins again");
    }
}
