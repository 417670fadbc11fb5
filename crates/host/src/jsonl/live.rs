//! Live queries: those that have not ended.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mainspring_api::jsonl::LineIds;
use mainspring_core::{AttemptId, EventId, RunId, SessionId};
use parking_lot::Mutex;
use tokio::sync::{RwLock, watch};

use super::line::Version;

/// One query, from its line to its end.
pub(super) struct Query {
    no: u64,
    pub(super) version: Version,
    pub(super) request: String,
    pub(super) client: String,
    pub(super) owner: String,
    pub(super) adapter: String,
    details: Mutex<RunDetails>,
    accepted: watch::Sender<Acceptance>,
    ended: AtomicBool,
    /// Read-locked while an interrupt is acknowledged. The end is sent under the write lock, so after the
    /// acknowledgement.
    pub(super) acknowledging: Arc<RwLock<()>>,
}

/// The details of a query's run, as far as known.
#[derive(Debug, Default, Clone)]
pub(super) struct RunDetails {
    pub(super) session: Option<SessionId>,
    pub(super) run: Option<RunId>,
    pub(super) attempt: Option<AttemptId>,
    /// The agent's native session id.
    pub(super) native: Option<String>,
    /// The agent is working on the run.
    pub(super) running: bool,
    /// The host answers the query's questions.
    pub(super) questions: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Acceptance {
    Waiting,
    Accepted(RunId),
    Refused,
}

impl Query {
    /// Returns the number of the query on its connection.
    pub(super) fn no(&self) -> u64 {
        self.no
    }

    /// True once the query has ended. After that, at most its last line is still sent.
    pub(super) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Returns the details of the query's run.
    pub(super) fn details(&self) -> RunDetails {
        self.details.lock().clone()
    }

    /// Updates the details of the query's run.
    pub(super) fn update(&self, update: impl FnOnce(&mut RunDetails)) {
        update(&mut self.details.lock());
    }

    /// Returns the ids that the query's replies carry; none in version 1.
    pub(super) fn line_ids(&self, event: Option<EventId>) -> LineIds {
        if self.version == Version::V1 {
            return LineIds::default();
        }
        let details = self.details();
        LineIds {
            session_id: details.session,
            run_id: details.run,
            attempt_id: details.attempt,
            event_id: event,
            adapter_session_id: details.native,
            protocol_version: Some(2),
            request_id: Some(self.request.clone()),
            client_id: Some(self.client.clone()),
        }
    }

    /// Records that the query's run was accepted.
    pub(super) fn accept(&self, session: SessionId, run: RunId) {
        self.update(|known| (known.session, known.run) = (Some(session), Some(run)));
        self.accepted.send_replace(Acceptance::Accepted(run));
    }

    /// Waits for the query's run; `None` if the query is refused.
    pub(super) async fn run(&self) -> Option<RunId> {
        let mut accepted = self.accepted.subscribe();
        let answer = accepted.wait_for(|accepted| *accepted != Acceptance::Waiting).await;
        match answer.as_deref() {
            Ok(Acceptance::Accepted(run)) => Some(*run),
            _ => None,
        }
    }
}

/// All live queries.
#[derive(Default)]
pub(super) struct Live(Mutex<LiveQueries>, watch::Sender<usize>);

#[derive(Default)]
struct LiveQueries {
    last: u64,
    /// In the order of arrival.
    queries: BTreeMap<u64, Arc<Query>>,
    by_name: HashMap<(String, String, String), u64>,
}

impl Live {
    /// Finds the live query of this name.
    pub(super) fn find(&self, owner: &str, client: &str, request: &str) -> Option<Arc<Query>> {
        let state = self.0.lock();
        let no = state.by_name.get(&(owner.to_owned(), client.to_owned(), request.to_owned()))?;
        state.queries.get(no).cloned()
    }

    /// Registers a query; fails with the live query of the same owner, client and request id, if there is one.
    pub(super) fn begin(
        &self,
        version: Version,
        client: &str,
        owner: &str,
        request: String,
        adapter: String,
    ) -> Result<Arc<Query>, Arc<Query>> {
        let mut state = self.0.lock();
        let name = (owner.to_owned(), client.to_owned(), request.clone());
        if let Some(no) = state.by_name.get(&name) {
            return Err(state.queries[no].clone());
        }
        state.last += 1;
        let no = state.last;
        let query = Arc::new(Query {
            no,
            version,
            request,
            client: client.to_owned(),
            owner: owner.to_owned(),
            adapter,
            details: Mutex::default(),
            accepted: watch::Sender::new(Acceptance::Waiting),
            ended: AtomicBool::new(false),
            acknowledging: Arc::default(),
        });
        state.by_name.insert(name, no);
        state.queries.insert(no, query.clone());
        self.1.send_replace(state.queries.len());
        Ok(query)
    }

    /// Removes a query that ends. Returns true if the caller must send its last line, false if the query had ended before.
    pub(super) fn end(&self, query: &Query) -> bool {
        let mut state = self.0.lock();
        let is_live = state.queries.remove(&query.no).is_some();
        query.ended.store(true, Ordering::Release);
        if is_live {
            let name = (query.owner.clone(), query.client.clone(), query.request.clone());
            state.by_name.remove(&name);
        }
        query.accepted.send_if_modified(|accepted| match accepted {
            Acceptance::Waiting => {
                *accepted = Acceptance::Refused;
                true
            }
            _ => false,
        });
        self.1.send_replace(state.queries.len());
        is_live
    }

    /// Returns the latest query that `matches`.
    pub(super) fn latest(&self, matches: impl Fn(&Query) -> bool) -> Option<Arc<Query>> {
        self.0.lock().queries.values().rev().find(|query| matches(query)).cloned()
    }

    /// Returns the query that `matches`, if it is the only one.
    pub(super) fn only(&self, matches: impl Fn(&Query) -> bool) -> Option<Arc<Query>> {
        let state = self.0.lock();
        let mut matching = state.queries.values().filter(|query| matches(query));
        let first = matching.next()?;
        matching.next().is_none().then(|| first.clone())
    }

    /// Returns all live queries, latest first.
    pub(super) fn all(&self) -> Vec<Arc<Query>> {
        self.0.lock().queries.values().rev().cloned().collect()
    }

    /// Watches the number of live queries.
    pub(super) fn count(&self) -> watch::Receiver<usize> {
        self.1.subscribe()
    }

    /// Resolves once there are no live queries.
    pub(super) async fn drained(&self) {
        // The sender lives as long as `self`.
        let _ = self.1.subscribe().wait_for(|count| *count == 0).await;
    }
}

/// Maximum number of remembered attempts.
const MAX_ATTEMPTS: usize = 4_096;

/// The runs of the latest attempts: a thought names only its attempt.
#[derive(Default)]
pub(super) struct Attempts(Mutex<(HashMap<AttemptId, RunId>, VecDeque<AttemptId>)>);

impl Attempts {
    pub(super) fn note(&self, attempt: AttemptId, run: RunId) {
        let mut known = self.0.lock();
        if known.0.insert(attempt, run).is_none() {
            known.1.push_back(attempt);
        }
        if known.1.len() > MAX_ATTEMPTS
            && let Some(oldest) = known.1.pop_front()
        {
            known.0.remove(&oldest);
        }
    }

    pub(super) fn run_of(&self, attempt: AttemptId) -> Option<RunId> {
        self.0.lock().0.get(&attempt).copied()
    }
}
