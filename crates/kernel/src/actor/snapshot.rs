//! Snapshots: what a new subscriber starts from, at one instant between two commits.

use std::sync::Arc;

use mainspring_core::{Message, Point};

use super::{Actor, before};
use crate::error::Error;
use crate::feed::Subscription;
use crate::kernel::{Caller, Snapshot};

/// How many messages of the path a snapshot shows; the rest is read by page.
const TAIL: usize = 50;

impl Actor {
    pub(super) async fn snapshot(&self, caller: &Caller) -> Result<(Snapshot, Subscription), Error> {
        if !caller.reads(&self.hot.session) {
            return Err(Error::not_found("session", self.fence.session));
        }
        let guest = caller.owner != self.hot.session.owner;
        let (position, partial) = self.feed.now();
        let active = self.active.as_ref().map(|active| active.run.clone());
        let messages = self.tail(self.hot.session.tip).await?;
        let head = active.as_ref().and_then(|run| run.pen).and_then(before);
        let mut pending = self.tail(head).await?;
        pending.retain(|message| message.run == active.as_ref().map(|run| run.id));
        let snapshot = Snapshot {
            session: self.hot.session.clone(),
            active,
            queued: self.queue.iter().cloned().collect(),
            messages,
            pending,
            partial,
            position,
        };
        // Made here, so that the session has its reader before it could leave memory.
        let subscription =
            Subscription::new(self.feed.clone(), self.shared.store.clone(), position).guest(guest);
        Ok((snapshot, subscription))
    }

    async fn tail(&self, tip: Option<Point>) -> Result<Vec<Arc<Message>>, Error> {
        let Some(tip) = tip else { return Ok(vec![]) };
        let path = self.shared.store.path(tip, None, TAIL).await?;
        Ok(path.into_iter().map(|placed| placed.message).collect())
    }
}
