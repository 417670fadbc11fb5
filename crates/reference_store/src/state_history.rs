//! The history of state.

use mainspring_core::state::HISTORY_CHANGES;
use mainspring_core::{SessionId, StateChange};
use mainspring_kernel::store::StateHistoryOf;

use super::tables::Tables;

impl Tables {
    /// Adds a change, and drops the oldest changes of its key beyond [`HISTORY_CHANGES`].
    pub(super) fn state_change_apply(&mut self, of: &StateHistoryOf, change: StateChange) {
        let changes = self.state_history.entry((of.place(), change.key.clone())).or_default();
        changes.insert(change.version, change);
        while changes.len() > HISTORY_CHANGES {
            changes.pop_first();
        }
    }

    /// Lists the changes of a key before a version, newest first.
    pub(super) fn state_history(
        &self,
        of: &StateHistoryOf,
        key: &str,
        before: Option<u64>,
        limit: usize,
    ) -> Vec<StateChange> {
        let changes = self.state_history.get(&(of.place(), key.to_owned()));
        let changes = changes.into_iter().flatten().rev();
        let earlier = changes.filter(|(version, _)| before.is_none_or(|before| **version < before));
        earlier.map(|(_, change)| change.clone()).take(limit).collect()
    }

    /// Lists the changes of all keys, by key and version.
    pub(super) fn state_changes(
        &self,
        of: &StateHistoryOf,
        after: Option<&(String, u64)>,
        limit: usize,
    ) -> Vec<StateChange> {
        let place = of.place();
        let of_place = self.state_history.iter().filter(|((at, _), _)| *at == place);
        let mut changes: Vec<StateChange> =
            of_place.flat_map(|(_, changes)| changes.values().cloned()).collect();
        changes.retain(|change| {
            after.is_none_or(|(key, version)| (&change.key, change.version) > (key, *version))
        });
        changes.sort_by(|a, b| (&a.key, a.version).cmp(&(&b.key, b.version)));
        changes.truncate(limit);
        changes
    }

    /// Removes the history of `session`, and of runs that are gone.
    pub(super) fn state_history_purge(&mut self, session: SessionId) {
        let Self { state_history, runs, .. } = self;
        let place = session.to_string();
        state_history.retain(|(of, _), _| {
            let run = of.parse().ok();
            *of != place && run.is_none_or(|run| runs.contains_key(&run))
        });
    }
}
