//! Compaction: old events are pruned, and the pruning is recorded.

use mainspring_core::{Body, Cursor, Position, SessionChange};

use super::Actor;
use crate::error::Error;
use crate::store::Row;

impl Actor {
    /// Prunes the events before `before`, except events of runs that have not ended. Returns the position up to which
    /// events are pruned.
    pub(super) async fn compact(&mut self, before: Cursor) -> Result<Position, Error> {
        let now = self.feed.position();
        if before > now.cursor {
            return Err(Error::Invalid(format!(
                "the cursor {} is after the last event of the session, {now}",
                before.0
            )));
        }
        let session = self.fence.session;
        let known = self.shared.store.session_load(session).await?.and_then(|loaded| loaded.floor);
        let known = known.unwrap_or(Position::START);
        let before = before.min(self.first_needed().await?.unwrap_or(before));
        let floor = self.shared.store.event_before(session, before).await?;
        let Some(floor) = floor.filter(|floor| floor.cursor > known.cursor) else { return Ok(known) };
        let mut draft = self.draft();
        draft.emit(Body::SessionUpdated { change: SessionChange::Compacted { floor: floor.cursor } });
        draft.row(Row::Floor(floor));
        self.commit(draft).await?;
        self.feed.prune(floor.cursor);
        self.shared.prune(session);
        Ok(floor)
    }

    /// The first event of the oldest run that has not ended. Runs get their first events in the order of their numbers.
    async fn first_needed(&self) -> Result<Option<Cursor>, Error> {
        let runs = self.active.iter().map(|active| active.run().as_ref()).chain(self.queue.iter());
        let Some(oldest) = runs.min_by_key(|run| run.no) else { return Ok(None) };
        let events =
            self.shared.store.events_after(self.fence.session, Some(oldest.id), Cursor::START, 1).await;
        match events {
            Ok(events) => Ok(events.first().map(|event| event.cursor)),
            // The run was retried after its first events were pruned: nothing more is pruned until it ends.
            Err(crate::store::StoreError::Pruned(floor)) => Ok(Some(floor.cursor)),
            Err(error) => Err(error.into()),
        }
    }
}
