//! Checks the constraints that the schemas of the durable stores declare.

use std::collections::HashSet;
use std::hash::Hash;

use mainspring_core::{BindingStatus, RunStatus, SessionStatus, Visibility};
use mainspring_kernel::store::{StoreError, Unique};

use super::tables::Tables;

impl Tables {
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let conflict = |unique| Err(StoreError::Conflict(unique));
        if !self.names_unique() {
            return conflict(Unique::SessionName);
        }
        if !self.messages_valid() {
            return conflict(Unique::Other);
        }
        let requests = self.runs.values().filter_map(|run| {
            Some((&run.owner, run.request.client_id.as_ref()?, run.request.request_id.as_ref()?))
        });
        if !distinct(requests) {
            return conflict(Unique::RunRequest);
        }
        if self.runs_valid() && self.records_valid() && self.access_valid() {
            Ok(())
        } else {
            conflict(Unique::Other)
        }
    }

    fn names_unique(&self) -> bool {
        let named = || self.sessions.values().filter(|session| session.status != SessionStatus::Deleted);
        distinct(named().filter_map(|session| Some((&session.owner, session.key.as_ref()?))))
            && distinct(named().filter_map(|session| Some((&session.owner, session.external_ref.as_ref()?))))
            && distinct(named().filter_map(|session| Some((&session.owner, session.legacy_alias.as_ref()?))))
    }

    fn access_valid(&self) -> bool {
        let is_shared = |session: &&mainspring_core::Session| session.visibility == Visibility::Org;
        distinct(self.keys.values().map(|key| key.hash))
            && self.sessions.values().filter(is_shared).all(|session| session.org.is_some())
    }

    fn messages_valid(&self) -> bool {
        let places = || self.messages.values().filter_map(|message| message.point);
        let parents = || self.lines.iter().filter_map(|(_, line)| line.parent);
        let digests = || self.digests.keys().map(|(point, _)| *point);
        distinct(places())
            && places().chain(parents()).chain(digests()).all(|point| self.line(point.line).is_some())
    }

    fn runs_valid(&self) -> bool {
        let active = self.runs.values().filter(|run| {
            let status = run.state.status();
            status != RunStatus::Queued && !status.is_ended()
        });
        let live = self.attempts.values().filter(|attempt| !attempt.status.is_ended());
        distinct(self.runs.values().map(|run| (run.session, run.no)))
            && distinct(active.map(|run| run.session))
            && distinct(live.map(|attempt| attempt.run))
            && self.runs.values().all(|run| run.no > 0 && self.sessions.contains_key(&run.session))
            && self.attempts.values().all(|attempt| attempt.no > 0 && self.runs.contains_key(&attempt.run))
            && self.steps.values().all(|step| step.no > 0 && self.runs.contains_key(&step.run))
    }

    fn records_valid(&self) -> bool {
        let active = self.bindings.values().filter(|binding| binding.status == BindingStatus::Active);
        let sessions = (self.bindings.values().map(|binding| binding.session))
            .chain(self.grants.values().map(|grant| grant.session))
            .chain(self.artifacts.values().map(|artifact| artifact.session))
            .chain(self.delegations.values().map(|delegation| delegation.parent_session))
            .chain(self.floors.keys().copied())
            .chain(self.events.values().map(|event| event.session));
        let states = || self.session_states.iter();
        distinct(states().map(|record| (record.session, &record.key, record.version)))
            && states()
                .all(|record| record.version > 0 && record.at.is_none_or(|at| self.line(at.line).is_some()))
            && self.run_states.keys().all(|(run, _)| self.runs.contains_key(run))
            && distinct(
                self.bindings.values().map(|binding| (binding.session, &binding.adapter, binding.generation)),
            )
            && distinct(active.clone().map(|binding| (binding.session, &binding.adapter)))
            && distinct(active.filter_map(|binding| Some((&binding.adapter, binding.native.as_ref()?))))
            && self.bindings.values().all(|binding| binding.generation > 0)
            && distinct(self.delegations.values().map(|delegation| delegation.child_run))
            && { sessions }.all(|session| self.sessions.contains_key(&session))
    }
}

/// Returns true if no item occurs twice.
fn distinct<T: Hash + Eq>(mut items: impl Iterator<Item = T>) -> bool {
    let mut seen = HashSet::new();
    items.all(|item| seen.insert(item))
}
