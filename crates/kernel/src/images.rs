//! Images: the stored state of loaded sessions and of their latest runs, which readers get without asking the store or the
//! actor.
//!
//! ```text
//! published ──a commit begins──▶ withdrawn ──the commit is durable──▶ published
//!                                    └───────the commit has failed──▶ none
//! ```
//!
//! Readers that find no published image ask the store.
//!
//! Invariant: a published image equals the rows of the store. So no reader gets an older state after a newer state,
//! even if one of the two comes from the store.

use std::collections::HashMap;
use std::sync::Arc;

use mainspring_core::{Run, RunId, Session, SessionId, SessionStatus};
use parking_lot::Mutex;

use self::texts::RunTexts;
use crate::store::{Row, SessionRef};

mod texts;

/// The images of all loaded sessions.
#[derive(Debug, Default)]
pub(crate) struct Images(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    sessions: HashMap<SessionId, Image>,
    runs: HashMap<RunId, SessionId>,
    /// The names of the sessions, by owner.
    names: HashMap<String, HashMap<SessionRef, SessionId>>,
}

#[derive(Debug)]
struct Image {
    is_published: bool,
    session: Arc<Session>,
    /// Unfinished runs, and the run that ended last. If `latest_no` is none, runs that were not changed since the session
    /// was loaded are missing.
    runs: Vec<Arc<Run>>,
    /// The number of the latest run, 0 if the session has none.
    latest_no: Option<u32>,
    /// The short texts that the agents of these runs have written.
    texts: RunTexts,
}

impl Images {
    /// Publishes a session that was loaded from the store with its unfinished runs.
    pub(crate) fn insert(&self, session: &Arc<Session>, unfinished: Vec<Arc<Run>>, latest_no: u32) {
        let mut state = self.0.lock();
        state.insert(session.clone(), true);
        let State { sessions, runs, .. } = &mut *state;
        if let Some(image) = sessions.get_mut(&session.id) {
            runs.extend(unfinished.iter().map(|run| (run.id, session.id)));
            (image.runs, image.latest_no) = (unfinished, Some(latest_no));
        }
    }

    /// Hides the image of a session whose rows are about to change.
    pub(crate) fn withdraw(&self, session: SessionId) {
        if let Some(image) = self.0.lock().sessions.get_mut(&session) {
            image.is_published = false;
        }
    }

    /// Applies the rows of a durable commit to the image and publishes it. If `is_new`, the rows contain the session.
    pub(crate) fn publish(&self, session: SessionId, rows: &[Row], is_new: bool) {
        let mut state = self.0.lock();
        for row in rows {
            if let Row::Session(changed) = row {
                state.insert(changed.clone(), false);
            }
        }
        let is_deleted = |image: &Image| image.session.status == SessionStatus::Deleted;
        if state.sessions.get(&session).is_some_and(is_deleted) {
            return state.remove(session);
        }
        let State { sessions, runs, .. } = &mut *state;
        let Some(image) = sessions.get_mut(&session) else { return };
        if is_new {
            image.latest_no = Some(0);
        }
        for row in rows {
            if let Row::Run(changed) = row {
                image.latest_no = image.latest_no.map(|no| no.max(changed.no));
                image.runs.retain(|run| run.id != changed.id);
                image.runs.push(changed.clone());
                runs.insert(changed.id, session);
            }
        }
        image.texts.apply(rows);
        image.forget_ended(runs);
        image.is_published = true;
    }

    /// Removes the image of a session that leaves memory.
    pub(crate) fn remove(&self, session: SessionId) {
        self.0.lock().remove(session);
    }

    /// Finds a session by a name of `owner`, or by its id; `None` if the store must be asked.
    pub(crate) fn session(&self, owner: &str, by: &SessionRef) -> Option<Arc<Session>> {
        let state = self.0.lock();
        let id = match by {
            SessionRef::Id(id) => id,
            name => state.names.get(owner)?.get(name)?,
        };
        state.sessions.get(id).filter(|image| image.is_published).map(|image| image.session.clone())
    }

    /// Finds a run; `None` if the store must be asked.
    pub(crate) fn run(&self, id: RunId) -> Option<Arc<Run>> {
        let state = self.0.lock();
        let image = state.sessions.get(state.runs.get(&id)?).filter(|image| image.is_published)?;
        image.runs.iter().find(|run| run.id == id).cloned()
    }

    /// The unfinished runs of a session and the number of its latest run, 0 if it has none; `None` if the store must be
    /// asked.
    pub(crate) fn unfinished(&self, session: SessionId) -> Option<(Vec<Arc<Run>>, u32)> {
        let state = self.0.lock();
        let image = state.sessions.get(&session).filter(|image| image.is_published)?;
        let unfinished = image.runs.iter().filter(|run| !run.state.status().is_ended());
        Some((unfinished.cloned().collect(), image.latest_no?))
    }

    /// The whole text that the agent of `run` wrote, up to the run's final message; `None` if the store must be asked.
    pub(crate) fn final_text(&self, run: &Run) -> Option<String> {
        let state = self.0.lock();
        let image = state.sessions.get(&run.session).filter(|image| image.is_published)?;
        image.texts.final_text(run)
    }
}

impl State {
    fn insert(&mut self, session: Arc<Session>, is_published: bool) {
        let id = session.id;
        match self.sessions.get_mut(&id) {
            // The names of a session never change.
            Some(image) => {
                image.session = session;
                image.is_published = is_published;
            }
            None => {
                let names = names(&session);
                if !names.is_empty() {
                    let of_owner = self.names.entry(session.owner.clone()).or_default();
                    of_owner.extend(names.into_iter().map(|name| (name, id)));
                }
                let (runs, texts) = (vec![], RunTexts::default());
                self.sessions.insert(id, Image { is_published, session, runs, latest_no: None, texts });
            }
        }
    }

    fn remove(&mut self, session: SessionId) {
        let Some(image) = self.sessions.remove(&session) else { return };
        for run in &image.runs {
            self.runs.remove(&run.id);
        }
        let owner = &image.session.owner;
        if let Some(known) = self.names.get_mut(owner) {
            for name in names(&image.session) {
                known.remove(&name);
            }
            if known.is_empty() {
                self.names.remove(owner);
            }
        }
        // Gives memory back after a peak.
        if self.sessions.len() < self.sessions.capacity() / 4 {
            self.sessions.shrink_to_fit();
            self.runs.shrink_to_fit();
        }
    }
}

impl Image {
    /// Drops the runs that have ended, except the run that ended last: callers still ask for that run.
    fn forget_ended(&mut self, index: &mut HashMap<RunId, SessionId>) {
        let last = self.runs.iter().rposition(|run| run.state.status().is_ended());
        let mut at = 0;
        self.runs.retain(|run| {
            let keeps = Some(at) == last || !run.state.status().is_ended();
            at += 1;
            if !keeps {
                index.remove(&run.id);
            }
            keeps
        });
        self.texts.retain(|id| self.runs.iter().any(|run| run.id == id));
    }
}

fn names(session: &Session) -> Vec<SessionRef> {
    let key = session.key.clone().map(SessionRef::Key);
    let external = session.external_ref.clone().map(SessionRef::External);
    let legacy = session.legacy_alias.clone().map(SessionRef::Legacy);
    [key, external, legacy].into_iter().flatten().collect()
}
