//! The live feed: the activity of the caller's sessions on the board.

use mainspring_api::{FeedItem, FeedSnapshot, LiveChange};

use crate::json::FromJson;
use crate::stream::Frames;
use crate::{Client, Error};

/// The activity of all of the caller's sessions that are in memory or wait for a person. After a reconnect the feed
/// starts with a new snapshot.
pub struct Feed(Frames);

impl Feed {
    pub(crate) fn new(client: Client) -> Self {
        Self(Frames::new(client, &["v1", "feed"]))
    }

    /// Gives up after `failures` consecutive failures to reconnect; by default never.
    pub fn give_up_after(mut self, failures: u32) -> Self {
        self.0.max_failures = failures;
        self
    }

    /// Waits for the next item. Cancel-safe.
    pub async fn next(&mut self) -> Result<FeedItem, Error> {
        loop {
            let Some(frame) = self.0.next(None).await? else { continue };
            let (Some(kind), Some(data)) = (frame.event, frame.data) else { continue };
            let item = match kind.as_str() {
                FeedSnapshot::KIND => FeedSnapshot::from_json(&data).map(FeedItem::Snapshot),
                kind if LiveChange::KINDS.contains(&kind) => {
                    LiveChange::from_json(&data).map(FeedItem::Change)
                }
                _ => Ok(FeedItem::Unknown),
            };
            return item.map_err(|error| self.0.client.protocol_error(format!("{error} in {data:?}")));
        }
    }
}
