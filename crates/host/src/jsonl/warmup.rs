//! `warmup`: defaults for later queries. A warmup creates and opens nothing.

use mainspring_api::jsonl::{Warmup, WarmupSession};
use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;

use super::Options;

/// Maximum number of hints; the oldest are dropped first.
const MAX_HINTS: usize = 1_024;

/// Defaults for the queries of a session key.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Hint {
    pub(super) cwd: Option<String>,
    pub(super) model: Option<String>,
    pub(super) system_prompt: Option<String>,
}

/// Hints by owner and session key.
#[derive(Default)]
pub(super) struct Hints(Mutex<HintMap>);

#[derive(Default)]
struct HintMap {
    hints: HashMap<(String, String), Hint>,
    order: VecDeque<(String, String)>,
}

impl Hints {
    /// Stores the hints of a `warmup` line.
    pub(super) fn record(&self, owner: &str, warmup: Warmup, options: &Options) {
        let named =
            |model: String| WarmupSession { key: model.clone(), model: Some(model), system_prompt: None };
        let sessions = match (warmup.sessions, warmup.models, warmup.model) {
            (Some(sessions), ..) if !sessions.is_empty() => sessions,
            (_, Some(models), _) => models.into_iter().map(named).collect(),
            (_, None, Some(model)) => vec![named(model)],
            (_, None, None) => vec![WarmupSession {
                key: super::query::default_key(options).to_owned(),
                model: options.model.clone(),
                system_prompt: None,
            }],
        };
        let mut state = self.0.lock();
        for session in sessions {
            let name = (owner.to_owned(), session.key);
            let (model, system_prompt) = (session.model, session.system_prompt);
            let hint = Hint { cwd: warmup.cwd.clone(), model, system_prompt };
            if state.hints.insert(name.clone(), hint).is_none() {
                state.order.push_back(name);
            }
            if state.order.len() > MAX_HINTS
                && let Some(oldest) = state.order.pop_front()
            {
                state.hints.remove(&oldest);
            }
        }
    }

    /// Returns the hint of a session key, or an empty one.
    pub(super) fn get(&self, owner: &str, key: &str) -> Hint {
        self.0.lock().hints.get(&(owner.to_owned(), key.to_owned())).cloned().unwrap_or_default()
    }

    /// Removes the hint of a session key.
    pub(super) fn forget(&self, owner: &str, key: &str) {
        let name = (owner.to_owned(), key.to_owned());
        let mut state = self.0.lock();
        if state.hints.remove(&name).is_some() {
            state.order.retain(|other| *other != name);
        }
    }
}
