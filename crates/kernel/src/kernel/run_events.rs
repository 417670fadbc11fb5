//! The stored events of a run, read page by page past events that were pruned.

use mainspring_core::{Cursor, Event, RunId, SessionId};

use super::Shared;
use crate::error::Error;
use crate::store::{StoreError, all_readable};

/// Events that are read at once.
const PAGE: usize = 500;

/// A reader of the remaining events of a run, in order.
pub(crate) struct RunEvents<'a> {
    shared: &'a Shared,
    session: SessionId,
    run: RunId,
    after: Cursor,
    has_skipped: bool,
}

impl Shared {
    /// Reads the events of a run from its first one that is not pruned.
    pub(crate) fn run_events(&self, session: SessionId, run: RunId) -> RunEvents<'_> {
        RunEvents { shared: self, session, run, after: Cursor::START, has_skipped: false }
    }
}

impl RunEvents<'_> {
    /// Reads the next page; `None` after the last event. Fails if an event is damaged.
    pub(crate) async fn next_page(&mut self) -> Result<Option<Vec<Event>>, Error> {
        loop {
            let store = &self.shared.store;
            let page = match store.events_after(self.session, Some(self.run), self.after, PAGE).await {
                Err(StoreError::Pruned(floor)) if floor.cursor > self.after => {
                    (self.after, self.has_skipped) = (floor.cursor, true);
                    continue;
                }
                page => all_readable(page?)?,
            };
            let Some(last) = page.last() else { return Ok(None) };
            self.after = last.cursor;
            return Ok(Some(page));
        }
    }

    /// True if events of the session were pruned that may have belonged to the run.
    pub(crate) fn has_skipped(&self) -> bool {
        self.has_skipped
    }
}
