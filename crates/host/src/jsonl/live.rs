//! Queries that have no end yet.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use mainspring_api::jsonl::Names;
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
    known: Mutex<Known>,
    accepted: watch::Sender<Acceptance>,
    /// Held by whoever tells what became of a wish to stop, so that the end is told after it.
    pub(super) acknowledging: Arc<RwLock<()>>,
}

/// What is known of a query's run.
#[derive(Debug, Default, Clone)]
pub(super) struct Known {
    pub(super) session: Option<SessionId>,
    pub(super) run: Option<RunId>,
    pub(super) attempt: Option<AttemptId>,
    /// The runtime's own name for the session.
    pub(super) native: Option<String>,
    /// The agent works on it.
    pub(super) running: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Acceptance {
    Waiting,
    Accepted(RunId),
    Refused,
}

impl Query {
    /// What is known of its run.
    pub(super) fn known(&self) -> Known {
        self.known.lock().clone()
    }

    pub(super) fn learn(&self, learn: impl FnOnce(&mut Known)) {
        learn(&mut self.known.lock());
    }

    /// What its lines carry; nothing in version 1.
    pub(super) fn names(&self, event: Option<EventId>) -> Names {
        if self.version == Version::V1 {
            return Names::default();
        }
        let known = self.known();
        Names {
            session_id: known.session,
            run_id: known.run,
            attempt_id: known.attempt,
            event_id: event,
            adapter_session_id: known.native,
            ..self.request_names()
        }
    }

    /// What a line carries that is about its name, and not about its run.
    pub(super) fn request_names(&self) -> Names {
        match self.version {
            Version::V1 => Names::default(),
            Version::V2 => Names {
                protocol_version: Some(2),
                request_id: Some(self.request.clone()),
                client_id: Some(self.client.clone()),
                ..Names::default()
            },
        }
    }

    /// Its run was accepted.
    pub(super) fn accept(&self, session: SessionId, run: RunId) {
        self.learn(|known| (known.session, known.run) = (Some(session), Some(run)));
        self.accepted.send_replace(Acceptance::Accepted(run));
    }

    /// Its run, once it is accepted; none if it is not.
    pub(super) async fn run(&self) -> Option<RunId> {
        let mut accepted = self.accepted.subscribe();
        let answer = accepted.wait_for(|accepted| *accepted != Acceptance::Waiting).await;
        match answer.as_deref() {
            Ok(Acceptance::Accepted(run)) => Some(*run),
            _ => None,
        }
    }
}

/// All of them.
#[derive(Default)]
pub(super) struct Live(Mutex<State>, watch::Sender<usize>);

#[derive(Default)]
struct State {
    last: u64,
    /// In the order of their lines.
    queries: BTreeMap<u64, Arc<Query>>,
    by_name: HashMap<(String, String, String), u64>,
}

impl Live {
    /// A query that was read; the one that lives under the same names, if there is one.
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
            known: Mutex::default(),
            accepted: watch::Sender::new(Acceptance::Waiting),
            acknowledging: Arc::default(),
        });
        state.by_name.insert(name, no);
        state.queries.insert(no, query.clone());
        self.1.send_replace(state.queries.len());
        Ok(query)
    }

    /// A query has its end.
    pub(super) fn end(&self, query: &Query) {
        let mut state = self.0.lock();
        if state.queries.remove(&query.no).is_some() {
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
    }

    /// The latest that `fits`.
    pub(super) fn latest(&self, fits: impl Fn(&Query) -> bool) -> Option<Arc<Query>> {
        self.0.lock().queries.values().rev().find(|query| fits(query)).cloned()
    }

    /// The one that `fits`, if it is the only one.
    pub(super) fn only(&self, fits: impl Fn(&Query) -> bool) -> Option<Arc<Query>> {
        let state = self.0.lock();
        let mut fitting = state.queries.values().filter(|query| fits(query));
        let first = fitting.next()?;
        fitting.next().is_none().then(|| first.clone())
    }

    /// All of them, the latest first.
    pub(super) fn all(&self) -> Vec<Arc<Query>> {
        self.0.lock().queries.values().rev().cloned().collect()
    }

    /// Resolves once there is none.
    pub(super) async fn over(&self) {
        // The sender lives as long as this.
        let _ = self.1.subscribe().wait_for(|count| *count == 0).await;
    }
}

/// How many attempts are remembered.
const ATTEMPTS: usize = 4_096;

/// Which runs the latest attempts belong to: thoughts and agents name their attempt alone.
#[derive(Default)]
pub(super) struct Attempts(Mutex<(HashMap<AttemptId, RunId>, VecDeque<AttemptId>)>);

impl Attempts {
    pub(super) fn note(&self, attempt: AttemptId, run: RunId) {
        let mut known = self.0.lock();
        if known.0.insert(attempt, run).is_none() {
            known.1.push_back(attempt);
        }
        if known.1.len() > ATTEMPTS
            && let Some(oldest) = known.1.pop_front()
        {
            known.0.remove(&oldest);
        }
    }

    pub(super) fn run_of(&self, attempt: AttemptId) -> Option<RunId> {
        self.0.lock().0.get(&attempt).copied()
    }
}
