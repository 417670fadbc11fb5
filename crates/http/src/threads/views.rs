//! The views of threads that were read last. All readers of a thread share one.

use std::collections::HashMap;
use std::sync::Arc;

use mainspring_api::GoalsSnapshot;
use mainspring_core::SessionId;
use mainspring_kernel::Error;
use mainspring_kernel::kernel::Caller;
use mainspring_kernel::store::SessionRef;
use parking_lot::Mutex;

use super::view::View;
use crate::Http;

/// The most threads that are kept.
const MAX_VIEWS: usize = 256;

/// The views of threads that were read last.
#[derive(Debug, Default)]
pub(crate) struct Views(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// Each view with the number of its last use.
    views: HashMap<SessionId, (Arc<View>, u64)>,
    uses: u64,
}

impl Views {
    fn get(&self, thread: SessionId) -> Option<Arc<View>> {
        let mut kept = self.0.lock();
        kept.uses += 1;
        let now = kept.uses;
        let (view, used) = kept.views.get_mut(&thread)?;
        *used = now;
        Some(view.clone())
    }

    fn put(&self, view: &Arc<View>) {
        let mut kept = self.0.lock();
        kept.uses += 1;
        let (thread, now) = (view.transcript.session.id, kept.uses);
        if kept.views.len() >= MAX_VIEWS && !kept.views.contains_key(&thread) {
            let oldest = kept.views.iter().min_by_key(|(_, (_, used))| *used).map(|(thread, _)| *thread);
            oldest.map(|oldest| kept.views.remove(&oldest));
        }
        let is_newer = |(known, _): &(Arc<View>, u64)| known.transcript.position > view.transcript.position;
        if !kept.views.get(&thread).is_some_and(is_newer) {
            kept.views.insert(thread, (view.clone(), now));
        }
    }
}

/// Reads a thread as it is now.
pub(super) async fn view(http: &Http, caller: &Caller, thread: SessionId) -> Result<Arc<View>, Error> {
    let by = SessionRef::Id(thread);
    let known = http.threads.get(thread);
    let transcript =
        http.kernel.session_transcript(caller, &by, known.as_deref().map(|view| &view.transcript)).await?;
    let transcript = match (transcript, known.as_ref()) {
        (None, Some(known)) => return Ok(known.clone()),
        (Some(transcript), _) => transcript,
        (None, None) => return Err(Error::not_found("session", thread)),
    };
    // Only events change goals and plans; streamed text does not.
    let unchanged =
        known.as_ref().filter(|known| known.transcript.position.cursor == transcript.position.cursor);
    let view = match unchanged {
        Some(known) => View::with_plan_of(transcript, known),
        None => {
            let plan: GoalsSnapshot = http.kernel.session_goals(caller, &by, None).await?;
            View::new(transcript, &plan, known.as_deref())
        }
    };
    let view = Arc::new(view);
    http.threads.put(&view);
    Ok(view)
}
