//! Compaction: events that nobody needs any more are pruned, and what is gone is recorded.

use mainspring_core::{Body, Cursor, Position, SessionChange};

use super::Actor;
use crate::error::Error;
use crate::store::Row;

impl Actor {
    /// Prunes the events before `before`, but none of a run that has not ended. Says up to where events are gone.
    pub(super) async fn compact(&mut self, before: Cursor) -> Result<Position, Error> {
        let now = self.feed.position();
        if before > now.cursor {
            return Err(Error::Invalid(format!(
                "the cursor {} lies ahead of the session, which stands at {now}",
                before.0
            )));
        }
        let session = self.fence.session;
        let known = self.shared.store.session_load(session).await?.and_then(|loaded| loaded.floor);
        let known = known.unwrap_or(Position::START);
        let before = before.min(self.first_needed().await?.unwrap_or(before));
        let floor = self.shared.store.event_before(session, before).await?;
        let Some(floor) = floor.filter(|floor| floor.cursor > known.cursor) else { return Ok(known) };
        let (mut draft, _) = self.draft(false);
        draft.emit(Body::SessionUpdated { change: SessionChange::Compacted { floor: floor.cursor } });
        draft.row(Row::Floor(floor));
        self.commit(draft).await?;
        self.feed.prune(floor.cursor);
        self.shared.prune(session);
        Ok(floor)
    }

    /// The first event of the oldest run that has not ended: runs are accepted, and begin to have events, in order.
    async fn first_needed(&self) -> Result<Option<Cursor>, Error> {
        let runs = self.active.iter().map(|active| &active.run).chain(&self.queue);
        let Some(oldest) = runs.min_by_key(|run| run.no) else { return Ok(None) };
        let events =
            self.shared.store.events_after(self.fence.session, Some(oldest.id), Cursor::START, 1).await;
        match events {
            Ok(events) => Ok(events.first().map(|event| event.cursor)),
            // It was tried again after its first events had been pruned: nothing more goes until it has ended.
            Err(crate::store::StoreError::Pruned(floor)) => Ok(Some(floor.cursor)),
            Err(error) => Err(error.into()),
        }
    }
}
