//! Readers of the killed processes: everything they received is stored, or is reported to them as lost.

use std::collections::HashMap;
use std::time::Duration;

use mainspring::core::{Body, MessageId, Position, SessionId};
use mainspring::{Caller, Item, Kernel};
use mainspring_kernel::store::SessionRef;

/// A reader of one session.
#[derive(Clone, Default)]
pub(super) struct Reader {
    at: Position,
    /// For each incomplete message: the position of the first byte that the reader received, and the text since then.
    /// The text may lack the beginning of the message: if the prompt was queued behind a run of the previous process,
    /// that run streamed before the reader subscribed.
    open: HashMap<MessageId, (u64, String)>,
}

impl Reader {
    pub(super) fn record_position(&mut self, at: &str) {
        self.at = at.parse().unwrap();
    }

    pub(super) fn record_text(&mut self, at: &str, message: &str, text: &str) {
        self.record_position(at);
        let text: String = serde_json::from_str(text).unwrap();
        let start = self.at.pos - text.len() as u64;
        let (_, received) = self.open.entry(message.parse().unwrap()).or_insert((start, String::new()));
        received.push_str(&text);
    }

    pub(super) fn record_message(&mut self, at: &str, message: &str, text: &str) {
        self.record_position(at);
        let text: String = serde_json::from_str(text).unwrap();
        if let Some((_, received)) = self.open.remove(&message.parse().unwrap()) {
            assert!(text.contains(&received), "{message}: {received:?} was received of {text:?}");
        }
    }

    /// Subscribes again at the reader's position, in the process after the kill, and compares the text that the reader
    /// received with the stored text. Returns whether the subscription reports lost text.
    pub(super) async fn check(self, kernel: &Kernel, me: &Caller, session: SessionId, round: u64) -> bool {
        let by = SessionRef::Id(session);
        let latest = kernel.session_snapshot(me, &by).await.unwrap().position;
        let mut items = kernel.session_subscribe(me, &by, Some(self.at)).await.unwrap();
        if items.position() != self.at {
            // The position is not in the restored backup: the reader gets a reset instead of the missing events.
            let first = items.next().await.unwrap().unwrap();
            assert!(matches!(first, Item::Reset(_)), "round {round}: {first:?}");
            return false;
        }
        let (mut stored, mut truncated_at) = (HashMap::new(), None);
        while items.position().cursor < latest.cursor {
            let next = tokio::time::timeout(Duration::from_secs(30), items.next()).await;
            match next.expect("an event is missing").unwrap().unwrap() {
                Item::Truncated(at) => {
                    assert!(truncated_at.replace(at.pos).is_none(), "round {round}: reported twice");
                }
                Item::Event(event) => {
                    if let Body::MessageCompleted { message, .. } = &event.body {
                        stored.insert(message.id, message.text());
                    }
                }
                _ => {}
            }
        }
        for (message, (start, received)) in self.open {
            let stored = stored.remove(&message).unwrap_or_default();
            let end = start + received.len() as u64;
            let kept = match truncated_at {
                Some(position) if position < end => {
                    assert!(
                        !stored.contains(&received),
                        "round {round}: {message}: nothing was lost of {received:?}"
                    );
                    &received[..usize::try_from(position.saturating_sub(start)).unwrap()]
                }
                _ => &received[..],
            };
            let loss = truncated_at.map_or("no loss".into(), |at| format!("the loss of text after {at}"));
            assert!(
                stored.contains(kept),
                "round {round}: {message}: {received:?} was received from {start} on, {stored:?} is stored, and {loss} was reported"
            );
        }
        truncated_at.is_some()
    }
}
