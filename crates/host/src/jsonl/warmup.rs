//! `warmup`: hints of what later queries will want. They make nothing and open nothing.

use mainspring_api::jsonl::{Warmup, WarmupSession};
use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;

use super::Options;

/// How many hints are kept; the oldest go first.
const MOST: usize = 1_024;

/// What a query of a session key wants unless it says otherwise.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Hint {
    pub(super) cwd: Option<String>,
    pub(super) model: Option<String>,
    pub(super) system_prompt: Option<String>,
}

/// The hints of all owners, by their session keys.
#[derive(Default)]
pub(super) struct Hints(Mutex<State>);

#[derive(Default)]
struct State {
    hints: HashMap<(String, String), Hint>,
    order: VecDeque<(String, String)>,
}

impl Hints {
    /// Remembers what a line says.
    pub(super) fn hear(&self, owner: &str, warmup: Warmup, options: &Options) {
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
            if state.order.len() > MOST
                && let Some(oldest) = state.order.pop_front()
            {
                state.hints.remove(&oldest);
            }
        }
    }

    /// What is known of a session key.
    pub(super) fn get(&self, owner: &str, key: &str) -> Hint {
        self.0.lock().hints.get(&(owner.to_owned(), key.to_owned())).cloned().unwrap_or_default()
    }

    /// Forgets what is known of a session key.
    pub(super) fn forget(&self, owner: &str, key: &str) {
        let name = (owner.to_owned(), key.to_owned());
        let mut state = self.0.lock();
        if state.hints.remove(&name).is_some() {
            state.order.retain(|known| *known != name);
        }
    }
}
