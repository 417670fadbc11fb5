//! Snapshots: the session at one instant between two commits. The actor hands out its state in memory; the messages are
//! read outside the actor, since the path to a point never changes.

use std::sync::Arc;

use mainspring_core::tree::before;
use mainspring_core::{Damage, Message, Point, Position, Rows, Run, Session};

use super::Actor;
use crate::error::Error;
use crate::feed::{OpenText, open_texts};
use crate::kernel::Snapshot;
use crate::store::{Loaded, Store, StoreError};

/// The number of messages in a snapshot; earlier ones are read by page.
const TAIL_MESSAGES: usize = 50;

/// The number of queued prompts in a snapshot: each is one read.
const QUEUED_PROMPTS: usize = 20;

/// A snapshot without its messages.
pub(crate) struct Instant {
    pub(crate) session: Session,
    pub(crate) active: Option<Run>,
    pub(crate) queued: Vec<Run>,
    pub(crate) partial: Vec<OpenText>,
    pub(crate) position: Position,
}

impl Instant {
    /// The last written message: of the active run, else of the session's path.
    pub(crate) fn head(&self) -> Option<Point> {
        let pen = self.active.as_ref().and_then(|run| run.pen);
        pen.map_or(self.session.tip, before)
    }
}

impl Actor {
    pub(super) fn instant(&self) -> Instant {
        let (position, partial) = self.feed.snapshot();
        Instant {
            session: Session::clone(&self.hot.session),
            active: self.active.as_ref().map(|active| Run::clone(active.run())),
            queued: self.hot.merged.iter().chain(self.queue.iter()).cloned().collect(),
            partial,
            position,
        }
    }
}

impl Instant {
    /// The instant of a session that is not loaded, from the store.
    pub(crate) fn of(loaded: Loaded) -> Self {
        let (active, queued) = loaded
            .runs
            .into_iter()
            .map(|(run, _)| run)
            .partition::<Vec<_>, _>(|run| run.state.holder().is_some());
        Self {
            session: loaded.session,
            active: active.into_iter().next(),
            queued,
            partial: open_texts(loaded.chunks.iter().map(|chunk| (chunk.message, chunk.block, &*chunk.text))),
            position: Position { cursor: loaded.cursor, pos: loaded.pos },
        }
    }

    /// Completes the snapshot with messages from the store.
    pub(crate) async fn complete(self, store: &dyn Store) -> Result<Snapshot, Error> {
        let Self { session, active, queued, partial, position } = self;
        let Rows { items: messages, mut damaged } = latest_messages(store, session.tip).await?;
        let head = active.as_ref().and_then(|run| run.pen).and_then(before);
        let Rows { items: mut pending, damaged: unfinished } = latest_messages(store, head).await?;
        let merged = |run: &&Run| run.merged_into.is_some();
        let writers: Vec<_> = active.iter().chain(queued.iter().filter(merged)).map(|run| run.id).collect();
        pending.retain(|message| message.run.is_some_and(|run| writers.contains(&run)));
        let path_end = messages.len();
        let queued_prompts = queued_prompts(store, &session, &queued).await?;
        Ok(Snapshot {
            session,
            active_run: active,
            queued_runs: queued,
            queued_prompts,
            messages,
            pending,
            partial,
            position,
            damaged: {
                let known: Vec<_> = damaged.iter().map(|damage| damage.id.clone()).collect();
                let new = unfinished.into_iter().filter(|damage| !known.contains(&damage.id));
                damaged.extend(new.map(|damage| Damage { index: path_end, ..damage }));
                damaged
            },
        })
    }
}

/// The prompts of queued runs. A damaged one is left out: its run reports it when it starts.
async fn queued_prompts(
    store: &dyn Store,
    session: &Session,
    queued: &[Run],
) -> Result<Vec<Arc<Message>>, Error> {
    let waiting = queued.iter().filter(|run| run.merged_into.is_none());
    let mut prompts = vec![];
    for prompt in waiting.filter_map(|run| run.prompt).take(QUEUED_PROMPTS) {
        match store.message_get(session.id, prompt).await {
            Ok(found) => prompts.extend(found.map(|(placed, _)| placed.message)),
            Err(StoreError::Corrupt(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(prompts)
}

async fn latest_messages(store: &dyn Store, tip: Option<Point>) -> Result<Rows<Arc<Message>>, Error> {
    let Some(tip) = tip else { return Ok(Rows::from(vec![])) };
    Ok(store.path(tip, None, TAIL_MESSAGES).await?.map(|placed| placed.message))
}
