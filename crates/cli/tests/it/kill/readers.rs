//! Readers of the killed processes: everything they received is stored, or they are told exactly which text is lost.

use std::collections::HashMap;
use std::time::Duration;

use mainspring::core::{Body, MessageId, Position, SessionId};
use mainspring::{Caller, Item, Kernel};
use mainspring_kernel::store::SessionRef;

/// A reader of one session.
#[derive(Clone, Default)]
pub(super) struct Reader {
    at: Position,
    /// The text that the reader received of each incomplete message, with the position of its first byte. A prompt may be
    /// queued behind a run of the previous process: then a part of the first message was streamed before the reader came.
    open: HashMap<MessageId, (u64, String)>,
}

impl Reader {
    pub(super) fn received(&mut self, at: &str) {
        self.at = at.parse().unwrap();
    }

    pub(super) fn shown(&mut self, at: &str, message: &str, text: &str) {
        self.received(at);
        let text: String = serde_json::from_str(text).unwrap();
        let start = self.at.pos - text.len() as u64;
        let (_, shown) = self.open.entry(message.parse().unwrap()).or_insert((start, String::new()));
        shown.push_str(&text);
    }

    pub(super) fn completed(&mut self, at: &str, message: &str, text: &str) {
        self.received(at);
        let text: String = serde_json::from_str(text).unwrap();
        if let Some((_, shown)) = self.open.remove(&message.parse().unwrap()) {
            assert!(text.contains(&shown), "{message}: {shown:?} was shown of {text:?}");
        }
    }

    /// Subscribes again at the reader's position, in the process after the kill, and compares the text that the reader
    /// received with the stored text. Returns how often the subscription reports lost text.
    pub(super) async fn check(self, kernel: &Kernel, me: &Caller, session: SessionId, round: u64) -> usize {
        let by = SessionRef::Id(session);
        let latest = kernel.session_snapshot(me, &by).await.unwrap().position;
        let mut items = kernel.session_subscribe(me, &by, Some(self.at)).await.unwrap();
        if items.position() != self.at {
            // The position was lost with a restore, and the reader begins anew.
            let first = items.next().await.unwrap().unwrap();
            assert!(matches!(first, Item::Reset(_)), "round {round}: {first:?}");
            return 0;
        }
        let (mut stored, mut cut) = (HashMap::new(), None);
        while items.position().cursor < latest.cursor {
            let next = tokio::time::timeout(Duration::from_secs(30), items.next()).await;
            match next.expect("an event is missing").unwrap().unwrap() {
                Item::Truncated(at) => assert!(cut.replace(at.pos).is_none(), "round {round}: told twice"),
                Item::Event(event) => {
                    if let Body::MessageCompleted { message, .. } = &event.body {
                        stored.insert(message.id, message.text());
                    }
                }
                _ => {}
            }
        }
        for (message, (start, shown)) in self.open {
            let stored = stored.remove(&message).unwrap_or_default();
            let end = start + shown.len() as u64;
            let kept = match cut {
                Some(cut) if cut < end => {
                    assert!(
                        !stored.contains(&shown),
                        "round {round}: {message}: nothing was lost of {shown:?}"
                    );
                    &shown[..usize::try_from(cut.saturating_sub(start)).unwrap()]
                }
                _ => &shown[..],
            };
            let told = cut.map_or("nothing".into(), |cut| format!("that text after {cut} is lost"));
            assert!(
                stored.contains(kept),
                "round {round}: {message}: {shown:?} was shown from {start} on, {stored:?} is stored, and it was told {told}"
            );
        }
        usize::from(cut.is_some())
    }
}
