//! The views of threads that were read last. All readers of a thread share one view.
//!
//! A poll of a thread in which nothing has happened compares the position of the session's feed with that of the view,
//! and reads nothing. After a change one reader extends the view; readers that ask meanwhile wait for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use mainspring_api::GoalsSnapshot;
use mainspring_core::SessionId;
use mainspring_kernel::Error;
use mainspring_kernel::kernel::{Caller, KnownPath, TranscriptWatch};
use mainspring_kernel::store::SessionRef;
use parking_lot::Mutex;

use super::view::View;
use crate::Http;

/// Maximum number of threads that are kept.
const MAX_VIEWS: usize = 256;
/// Maximum bytes of messages that are kept. The thread that is read at the moment may have more.
const MAX_BYTES: usize = 64 << 20;
/// A view that nobody has read for this time is dropped when the view of any thread is rebuilt.
const UNREAD: Duration = Duration::from_secs(60);

/// The views of threads that were read last.
#[derive(Debug, Default)]
pub(crate) struct Views(Mutex<HashMap<SessionId, Kept>>);

#[derive(Debug)]
struct Kept {
    slot: Arc<Slot>,
    bytes: usize,
    /// When the thread was last read, since the start of the process.
    read_at: Duration,
}

/// A thread that was read.
#[derive(Debug, Default)]
struct Slot {
    latest: Mutex<Option<Latest>>,
    /// Held by the reader that extends the view.
    building: tokio::sync::Mutex<()>,
}

/// The latest view of a thread.
#[derive(Debug, Clone)]
struct Latest {
    view: Arc<View>,
    watch: Arc<TranscriptWatch>,
    /// The number of the view. It is assigned when the view begins to be built.
    number: u64,
}

impl Slot {
    fn latest(&self) -> Option<Latest> {
        self.latest.lock().clone()
    }
}

impl Latest {
    fn is_present(&self) -> bool {
        self.watch.is_at(self.view.position)
    }
}

impl Views {
    /// The slot of a thread. A new slot is not kept until it has a view.
    fn slot(&self, thread: SessionId, now: Duration) -> Arc<Slot> {
        let mut kept = self.0.lock();
        let Some(known) = kept.get_mut(&thread) else { return Arc::default() };
        known.read_at = now;
        known.slot.clone()
    }

    /// Keeps a slot. Drops views that were not read for [`UNREAD`], then the least recently read ones beyond
    /// the limits.
    fn keep(&self, thread: SessionId, slot: &Arc<Slot>, bytes: usize, now: Duration) {
        let mut kept = self.0.lock();
        kept.insert(thread, Kept { slot: slot.clone(), bytes, read_at: now });
        kept.retain(|_, other| now.saturating_sub(other.read_at) < UNREAD);
        while kept.len() > MAX_VIEWS || kept.values().map(|kept| kept.bytes).sum::<usize>() > MAX_BYTES {
            let others = kept.iter().filter(|(other, _)| **other != thread);
            let oldest = others.min_by_key(|(_, kept)| kept.read_at).map(|(oldest, _)| *oldest);
            let Some(oldest) = oldest else { break };
            kept.remove(&oldest);
        }
    }
}

/// Reads a thread as it is now.
pub(super) async fn view(http: &Http, caller: &Caller, thread: SessionId) -> Result<Arc<View>, Error> {
    let now = http.kernel.elapsed();
    let slot = http.threads.slot(thread, now);
    let known = slot.latest();
    if let Some(known) = known.as_ref().filter(|known| known.is_present()) {
        return readable(caller, &known.view);
    }
    let seen = known.map_or(0, |known| known.number);
    let _building = slot.building.lock().await;
    let known = slot.latest();
    // View `seen + 1` may have been under construction when this request arrived. A later view was begun after that, so
    // it is recent enough, even if the thread has changed again.
    let is_new = |known: &&Latest| known.number > seen + 1 || known.is_present();
    if let Some(known) = known.as_ref().filter(is_new) {
        return readable(caller, &known.view);
    }
    let number = known.as_ref().map_or(1, |known| known.number + 1);
    let (view, watch) = extend(http, caller, thread, known.as_ref().map(|known| &*known.view)).await?;
    *slot.latest.lock() = Some(Latest { view: view.clone(), watch: Arc::new(watch), number });
    http.threads.keep(thread, &slot, view.bytes(), now);
    Ok(view)
}

/// Refuses a caller who may not read the session.
fn readable(caller: &Caller, view: &Arc<View>) -> Result<Arc<View>, Error> {
    match caller.may_read(&view.session) {
        true => Ok(view.clone()),
        false => Err(Error::not_found("session", view.session.id)),
    }
}

/// Builds the present view of a thread from an earlier one and the messages, goals and tasks that have changed.
async fn extend(
    http: &Http,
    caller: &Caller,
    thread: SessionId,
    known: Option<&View>,
) -> Result<(Arc<View>, TranscriptWatch), Error> {
    let by = SessionRef::Id(thread);
    let id = |number: usize| known?.path.get(number)?.id;
    let path = known.map(|known| KnownPath { head: known.head, count: known.path.len(), id: &id });
    let (transcript, watch) = http.kernel.session_transcript(caller, &by, path).await?;
    // Only events change goals and plans; streamed text does not.
    let unchanged = known.filter(|known| known.position.cursor == transcript.position.cursor);
    let view = match unchanged {
        Some(known) => View::streamed(transcript, known),
        None => View::new(transcript, plan(http, caller, &by, known).await?, known),
    };
    Ok((Arc::new(view), watch))
}

/// Reads the goals and tasks of a thread, as far as they have changed.
async fn plan(
    http: &Http,
    caller: &Caller,
    by: &SessionRef,
    known: Option<&View>,
) -> Result<GoalsSnapshot, Error> {
    let Some(known) = known.map(|known| &known.plan.snapshot) else {
        return http.kernel.session_goals(caller, by, None).await;
    };
    let changed = match http.kernel.session_goals(caller, by, Some(known.cursor)).await {
        // The events were pruned during the read.
        Err(Error::Expired { .. }) => http.kernel.session_goals(caller, by, None).await?,
        changed => changed?,
    };
    Ok(GoalsSnapshot {
        goals: changed.goals.or_else(|| known.goals.clone()),
        tasks: changed.tasks.or_else(|| known.tasks.clone()),
        cursor: changed.cursor,
    })
}
