//! Transcripts: a session at one instant, with every message of its path.
//!
//! A snapshot has the last messages and is for a reader that follows events. A transcript is for an edge whose clients
//! number the messages of a conversation. The path to a point never changes, so a reader that has an earlier transcript
//! reads only the messages after it; while only text is streamed, it reads none.

use std::fmt;
use std::sync::Arc;

use mainspring_core::{Message, MessageId, Point, Position, Run, Session};

use super::{Caller, Kernel};
use crate::error::Error;
use crate::feed::{OpenText, Subscription, SubscriptionMode};
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
    /// The place of the path's last message. The path includes the messages that the active run has written so far.
    pub head: Option<Point>,
    /// The number of messages at the start of the path that the reader has from an earlier transcript.
    pub kept: usize,
    /// The messages of the path after the kept ones, up to `head`.
    pub new: Vec<Arc<Message>>,
    /// The text that is being streamed.
    pub partial: Vec<OpenText>,
    /// The position of the session's event stream.
    pub position: Position,
}

/// Detects whether a transcript is still current: a reader of the session's feed that does not keep the session in
/// memory.
pub struct TranscriptWatch(Subscription);

impl TranscriptWatch {
    /// True if nothing has happened in the session since `position`. Needs no read of the store.
    pub fn is_at(&self, position: Position) -> bool {
        self.0.feed().is_readable_at(position)
    }
}

impl fmt::Debug for TranscriptWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TranscriptWatch").field(&self.0.session()).finish()
    }
}

/// The path that a reader has from an earlier transcript.
#[derive(Clone, Copy)]
pub struct KnownPath<'a> {
    /// The place of its last message.
    pub head: Option<Point>,
    /// The number of its messages.
    pub count: usize,
    /// Returns the id of the message at an index of the path.
    pub id: &'a (dyn Fn(usize) -> Option<MessageId> + Sync),
}

impl Kernel {
    /// Reads a session with the messages of its path that the reader does not have.
    ///
    /// Does not load a session that is not in memory.
    pub async fn session_transcript(
        &self,
        caller: &Caller,
        by: &SessionRef,
        known: Option<KnownPath<'_>>,
    ) -> Result<(Transcript, TranscriptWatch), Error> {
        let session = self.session_get(caller, by).await?.id;
        let reader = self.shared.subscribe(session, SubscriptionMode::Observer).await?;
        let instant = self.shared.instant(reader.feed()).await?;
        // The session's visibility may have changed since the lookup.
        if !caller.may_read(&instant.session) {
            return Err(Error::not_found("session", session));
        }
        let head = instant.head();
        let (kept, new) = match read_path(&*self.shared.store, head, known).await {
            Ok(path) => path,
            // The session may have been deleted during the read.
            Err(error) => {
                self.session_get(caller, by).await?;
                return Err(error);
            }
        };
        let (session, active, queued) = (instant.session, instant.active, instant.queued);
        let (partial, position) = (instant.partial, instant.position);
        let transcript = Transcript { session, active, queued, head, kept, new, partial, position };
        Ok((transcript, TranscriptWatch(reader)))
    }
}

/// Reads the path to `head`, root first. Returns the number of messages that are in `known`, and the messages after
/// them.
async fn read_path(
    store: &dyn Store,
    head: Option<Point>,
    known: Option<KnownPath<'_>>,
) -> Result<(usize, Vec<Arc<Message>>), Error> {
    let Some(head) = head else { return Ok((0, vec![])) };
    if let Some(known) = known.filter(|known| known.head == Some(head)) {
        return Ok((known.count, vec![]));
    }
    let has_some = known.is_some_and(|known| known.count > 0);
    let (mut above, mut limit) = (None, if has_some { TAIL_MESSAGES } else { PAGE_MESSAGES });
    let mut tail: Vec<Arc<Message>> = vec![];
    loop {
        // Messages are identified by their numbers: an unreadable message must not shift the others.
        let page = store.path(head, above, limit).await?.intact()?;
        let depth = |point: Option<Point>| point.map(|point| point.pos);
        let shared = page.iter().enumerate().rev().find_map(|(at, placed)| {
            let depth = usize::try_from(depth(placed.point)?).ok()?;
            ((known?.id)(depth)? == placed.message.id).then_some((at, depth))
        });
        let first = page.first().and_then(|placed| depth(placed.point)).filter(|depth| *depth > 0);
        let new = page.into_iter().map(|placed| placed.message);
        if let Some((at, depth)) = shared {
            return Ok((depth + 1, new.skip(at + 1).chain(tail).collect()));
        }
        tail = new.chain(tail).collect();
        match first {
            Some(depth) => (above, limit) = (Some(depth), PAGE_MESSAGES),
            None => return Ok((0, tail)),
        }
    }
}
