//! Transcripts: a session at one instant, with every message of its path.
//!
//! A snapshot has the last messages and is for a reader that follows events. A transcript is for an edge whose clients
//! number the messages of a conversation. The path to a point never changes, so a reader that has an earlier transcript
//! reads only the messages after it.

use std::sync::Arc;

use mainspring_core::{Message, Point, Position, Run, Session};

use super::{Caller, Kernel};
use crate::error::Error;
use crate::feed::{OpenText, SubscriptionMode};
use crate::store::{SessionRef, Store};

/// Messages in a page of a path that is read from its end to its root.
const PAGE_MESSAGES: usize = 500;
/// Messages in the first page for a reader that has an earlier transcript.
const TAIL_MESSAGES: usize = 16;

/// A session at one instant, with every message of its path.
#[derive(Debug, Clone)]
pub struct Transcript {
    /// The session.
    pub session: Session,
    /// The run that is being executed or waits.
    pub active: Option<Run>,
    /// The queued runs.
    pub queued: Vec<Run>,
    /// The messages from the root to the last one, with those that the active run has written so far.
    pub path: Vec<Arc<Message>>,
    /// The text that is being streamed.
    pub partial: Vec<OpenText>,
    /// The position of the session's event stream.
    pub position: Position,
}

impl Kernel {
    /// Reads a session with every message of its path. None if nothing has happened since `known`, an earlier transcript.
    ///
    /// Does not load a session that is not in memory.
    pub async fn session_transcript(
        &self,
        caller: &Caller,
        by: &SessionRef,
        known: Option<&Transcript>,
    ) -> Result<Option<Transcript>, Error> {
        let session = self.session_get(caller, by).await?.id;
        let reader = self.shared.subscribe(session, SubscriptionMode::Observer).await?;
        if known.is_some_and(|known| known.position == reader.feed().position()) {
            return Ok(None);
        }
        let instant = self.shared.instant(reader.feed()).await?;
        // The session's visibility may have changed since the lookup.
        if !caller.may_read(&instant.session) {
            return Err(Error::not_found("session", session));
        }
        let known = known.map_or(&[][..], |known| &known.path);
        let path = match read_path(&*self.shared.store, instant.head(), known).await {
            Ok(path) => path,
            // The session may have been deleted during the read.
            Err(error) => {
                self.session_get(caller, by).await?;
                return Err(error);
            }
        };
        let (session, active, queued) = (instant.session, instant.active, instant.queued);
        let (partial, position) = (instant.partial, instant.position);
        Ok(Some(Transcript { session, active, queued, path, partial, position }))
    }
}

/// Reads the path to `head`, root first, as far as `known` does not have it.
async fn read_path(
    store: &dyn Store,
    head: Option<Point>,
    known: &[Arc<Message>],
) -> Result<Vec<Arc<Message>>, Error> {
    let Some(head) = head else { return Ok(vec![]) };
    let (mut above, mut limit) = (None, if known.is_empty() { PAGE_MESSAGES } else { TAIL_MESSAGES });
    let mut tail: Vec<Arc<Message>> = vec![];
    loop {
        let page = store.path(head, above, limit).await?.items;
        let depth = |point: Option<Point>| point.map(|point| point.pos);
        let shared = page.iter().enumerate().rev().find_map(|(at, placed)| {
            let depth = usize::try_from(depth(placed.point)?).ok()?;
            (known.get(depth)?.id == placed.message.id).then_some((at, depth))
        });
        let first = page.first().and_then(|placed| depth(placed.point)).filter(|depth| *depth > 0);
        let new = page.into_iter().map(|placed| placed.message);
        if let Some((at, depth)) = shared {
            let new: Vec<_> = new.skip(at + 1).collect();
            return Ok(known[..=depth].iter().cloned().chain(new).chain(tail).collect());
        }
        tail = new.chain(tail).collect();
        match first {
            Some(depth) => (above, limit) = (Some(depth), PAGE_MESSAGES),
            None => return Ok(tail),
        }
    }
}
