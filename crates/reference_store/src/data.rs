//! State, artifacts, and the blobs that hold their bytes.

use std::collections::{BTreeMap, HashSet};

use mainspring_core::memory::is_undecided;
use mainspring_core::state::decide;
use mainspring_core::{
    Artifact, ArtifactAge, ArtifactId, Line, LineId, Point, SessionId, StateChange, StateEntry, StateOutcome,
    StateSlot, Time, VersionMismatch, artifact_ids,
};
use mainspring_kernel::store::{
    ArtifactPage, OwnerState, StateAt, StateHistoryOf, StatePlace, StateRow, StoreError,
};
use serde_json::Value;

use super::tables::Tables;

/// The session that opened a line, and the point in the order of events at which the line was opened.
#[derive(Debug, Clone, Copy)]
pub(super) struct LineOrigin {
    pub(super) session: SessionId,
    /// The number of the last event before the line was opened. For a line that a fork opened on an inherited
    /// line: the last event before the fork was created.
    pub(super) seq: i64,
}

/// A row of a session's state.
#[derive(Debug, Clone)]
pub(super) struct StateRecord {
    pub(super) session: SessionId,
    /// The number of the last event before the row.
    pub(super) seq: i64,
    pub(super) at: Option<Point>,
    pub(super) aside: bool,
    pub(super) key: String,
    pub(super) version: u64,
    pub(super) value: Option<Value>,
    pub(super) updated_at: Time,
}

impl Tables {
    /// Records the origin of a new line.
    pub(super) fn line_opened(&mut self, session: SessionId, line: &Line) {
        let now = self.seq.cast_signed();
        let is_foreign = line.parent.is_some_and(|parent| self.opened_by(parent) != Some(session));
        let seq = if is_foreign { self.seq_before_creation(session).unwrap_or(now) } else { now };
        self.line_origins.insert(line.id, LineOrigin { session, seq });
    }

    /// Replaces the number of the last event before a line was opened.
    pub(super) fn line_order_apply(&mut self, line: LineId, order: i64) {
        self.line_origins.entry(line).and_modify(|origin| origin.seq = order);
    }

    fn opened_by(&self, at: Point) -> Option<SessionId> {
        self.line_origins.get(&at.line).map(|origin| origin.session)
    }

    /// Returns the number of the last event before the session was created.
    pub(super) fn seq_before_creation(&self, session: SessionId) -> Option<i64> {
        let first = self.events.values().find(|event| event.session == session);
        first.map(|event| event.cursor.0.cast_signed() - 1)
    }

    /// Writes a row of state. `order`, given for an imported session, replaces the number of the last event as the
    /// position of the row in the order of events.
    pub(super) fn state_apply(&mut self, session: SessionId, row: &StateRow, order: Option<i64>) {
        let StateRow { place, key, version, value, at: updated_at } = row.clone();
        match place {
            StatePlace::Session { at, aside } => {
                let seq = order.unwrap_or(self.seq.cast_signed());
                self.session_states.push(StateRecord {
                    session,
                    seq,
                    at,
                    aside,
                    key,
                    version,
                    value,
                    updated_at,
                });
            }
            StatePlace::Run(run) => {
                let entry = value.map(|value| StateEntry { key: key.clone(), value, version, updated_at });
                self.run_states.insert((run, key), StateSlot { entry, version });
            }
        }
    }

    /// Moves state from a position that got no message to the message before it.
    pub(super) fn state_back(&mut self, from: Point, key: &str) {
        let moved =
            self.session_states.iter_mut().filter(|record| record.at == Some(from) && record.key == key);
        let Some(pos) = from.pos.checked_sub(1) else { return };
        moved.for_each(|record| record.at = Some(Point { pos, ..from }));
    }

    /// Returns the rows visible from a point, nearest first. `Segment` in the durable stores explains the bounds.
    fn visible_state(&self, session: SessionId, at: Option<Point>) -> Result<Vec<&StateRecord>, StoreError> {
        let (mut next, mut owner, mut bound) = (at, session, i64::MAX);
        let (mut child_owner, mut child_bound) = (session, i64::MAX);
        if let Some(by) = at.and_then(|at| self.opened_by(at)).filter(|by| *by != session) {
            (owner, bound) = (by, self.seq_before_creation(session).unwrap_or(i64::MAX));
        }
        let mut visible = vec![];
        while let Some(point) = next {
            let missing = || StoreError::Corrupt(format!("line {} is missing", point.line.0));
            let line = self.line(point.line).ok_or_else(missing)?;
            let origin = self.line_origins.get(&line.id).ok_or_else(missing)?;
            owner = origin.session;
            let is_visible = |record: &&StateRecord| {
                let is_on_segment = record.at.is_some_and(|at| {
                    at.line == line.id && at.pos <= point.pos && (at.pos == point.pos || !record.aside)
                });
                let own = record.session == owner && record.seq <= bound;
                is_on_segment
                    && (own
                        || record.session != owner
                            && record.session == child_owner
                            && record.seq <= child_bound)
            };
            let mut rows: Vec<&StateRecord> = self.session_states.iter().filter(is_visible).collect();
            rows.sort_by_key(|record| std::cmp::Reverse((record.at, record.version)));
            visible.extend(rows);
            (child_owner, child_bound, bound) = (owner, bound, bound.min(origin.seq));
            next = line.parent;
        }
        let at_root =
            |record: &&StateRecord| record.at.is_none() && record.session == owner && record.seq <= bound;
        let mut rows: Vec<&StateRecord> = self.session_states.iter().filter(at_root).collect();
        rows.sort_by_key(|record| std::cmp::Reverse(record.version));
        visible.extend(rows);
        Ok(visible)
    }

    pub(super) fn state_get(&self, at: &StateAt, key: &str) -> Result<StateSlot, StoreError> {
        Ok(match at {
            StateAt::Session { session, at } => {
                let nearest = self.visible_state(*session, *at)?.into_iter().find(|record| record.key == key);
                let own = self
                    .session_states
                    .iter()
                    .filter(|record| record.session == *session && record.key == key);
                let version = own.chain(nearest).map(|record| record.version).max().unwrap_or(0);
                StateSlot { entry: nearest.and_then(StateRecord::entry), version }
            }
            StateAt::Run(run) => self.run_states.get(&(*run, key.into())).cloned().unwrap_or_default(),
            StateAt::Owner(owner) => {
                let entry = self.owner_states.get(&(owner.clone(), key.into())).cloned();
                StateSlot { version: entry.as_ref().map_or(0, |entry| entry.version), entry }
            }
        })
    }

    pub(super) fn state_all(&self, at: &StateAt) -> Result<Vec<StateEntry>, StoreError> {
        Ok(match at {
            StateAt::Session { session, at } => {
                let mut keys: BTreeMap<&str, &StateRecord> = BTreeMap::new();
                for record in self.visible_state(*session, *at)? {
                    keys.entry(&record.key).or_insert(record);
                }
                keys.into_values().filter_map(StateRecord::entry).collect()
            }
            StateAt::Run(run) => {
                let own = self.run_states.iter().filter(|((id, _), _)| id == run);
                own.filter_map(|(_, slot)| slot.entry.clone()).collect()
            }
            StateAt::Owner(owner) => {
                let own = self.owner_states.iter().filter(|((by, _), _)| by == owner);
                own.map(|(_, entry)| entry.clone()).collect()
            }
        })
    }

    pub(super) fn state_put(&mut self, put: OwnerState) -> Result<StateOutcome, VersionMismatch> {
        let history = StateHistoryOf::Owner(put.owner.clone());
        let at = (put.owner.clone(), put.key.clone());
        let highest = self.owner_versions.get(&put.owner).copied().unwrap_or(0);
        let slot = StateSlot { entry: self.owner_states.get(&at).cloned(), version: highest };
        let version = decide(&slot, put.value.as_ref(), put.expect)?;
        let change =
            version.map(|version| StateChange::new(&put.key, version, put.value.as_ref(), put.at, put.by));
        let outcome = StateOutcome::of(slot, &put.key, put.value, version, put.at);
        if let (Some(version), Some(change)) = (version, change) {
            self.owner_versions.insert(put.owner, version);
            self.state_change_apply(&history, change);
            match &outcome.entry {
                Some(entry) => drop(self.owner_states.insert(at, entry.clone())),
                None => drop(self.owner_states.remove(&at)),
            }
        }
        Ok(outcome)
    }

    /// Removes an artifact. Its hash becomes loose: possibly unused.
    pub(super) fn artifact_remove(&mut self, id: ArtifactId) {
        let removed = self.artifacts.remove(&id);
        self.loose_blobs.extend(removed.and_then(|artifact| artifact.content_hash));
    }

    pub(super) fn artifact_get(&self, id: ArtifactId) -> Option<Artifact> {
        let artifact = self.artifacts.get(&id)?;
        self.session(artifact.session).map(|_| artifact.clone())
    }

    pub(super) fn artifact_page(&self, page: &ArtifactPage) -> Vec<Artifact> {
        let sort_key = |artifact: &Artifact| (artifact.created_at, artifact.id);
        let matches = |artifact: &&Artifact| {
            artifact.session == page.session
                && self.session(artifact.session).is_some()
                && page.run.is_none_or(|run| artifact.run == Some(run))
                && page.before.is_none_or(|before| sort_key(artifact) < before)
        };
        let mut found: Vec<&Artifact> = self.artifacts.values().filter(matches).collect();
        found.sort_by_key(|artifact| std::cmp::Reverse(sort_key(artifact)));
        found.into_iter().take(page.limit).cloned().collect()
    }

    pub(super) fn artifact_ages(&self, after: Option<(Time, ArtifactId)>, limit: usize) -> Vec<ArtifactAge> {
        let age = |artifact: &Artifact| {
            let owner = self.session(artifact.session)?.owner.clone();
            let (id, created_at) = (artifact.id, artifact.created_at);
            Some(ArtifactAge { id, owner, created_at, size: artifact.size_bytes.unwrap_or(0) })
        };
        let mut ages: Vec<ArtifactAge> = self.artifacts.values().filter_map(age).collect();
        ages.retain(|age| after.is_none_or(|after| (age.created_at, age.id) > after));
        ages.sort_by_key(|age| (age.created_at, age.id));
        ages.truncate(limit);
        ages
    }

    pub(super) fn memory_candidates(&self, after: Option<(Time, ArtifactId)>, limit: usize) -> Vec<Artifact> {
        let is_candidate =
            |artifact: &&Artifact| is_undecided(artifact) && self.session(artifact.session).is_some();
        let sort_key = |artifact: &Artifact| (artifact.created_at, artifact.id);
        let mut found: Vec<&Artifact> = self.artifacts.values().filter(is_candidate).collect();
        found.retain(|artifact| after.is_none_or(|after| sort_key(artifact) > after));
        found.sort_by_key(|artifact| sort_key(artifact));
        found.into_iter().take(limit).cloned().collect()
    }

    pub(super) fn artifacts_named(&self) -> HashSet<ArtifactId> {
        let json = |value: &Value| value.to_string();
        let messages =
            self.messages.values().filter_map(|placed| serde_json::to_string(&placed.message.content).ok());
        let session_values = self.session_states.iter().filter_map(|record| record.value.as_ref()).map(json);
        let run_values = self.run_states.values().filter_map(|slot| slot.entry.as_ref());
        let run_values = run_values.map(|entry| json(&entry.value));
        let owner_values = self.owner_states.values().map(|entry| json(&entry.value));
        let raw_responses = self.steps.values().map(|step| json(&step.raw));
        let ended_calls = self.effects.iter().filter_map(|(_, call)| call.ended.as_ref());
        let results = ended_calls.filter_map(|ended| serde_json::to_string(&ended.result.content).ok());
        let waits = self.runs.values().filter_map(|run| run.state.wait());
        let provided = waits.flat_map(|wait| &wait.results).map(|result| json(&result.content));
        let texts = messages.chain(session_values).chain(run_values).chain(owner_values).chain(raw_responses);
        let texts = texts.chain(results).chain(provided);
        let mut named: HashSet<ArtifactId> =
            texts.flat_map(|text| artifact_ids(&text).collect::<Vec<_>>()).collect();
        named.extend(self.delegations.values().filter_map(|delegation| delegation.result));
        named
    }

    pub(super) fn blob_page(&self, after: Option<&str>, limit: usize) -> Vec<(String, u64)> {
        let blobs_used = self
            .artifacts
            .values()
            .chain(self.inherited.values())
            .filter_map(|artifact| Some((artifact.content_hash.clone()?, artifact.size_bytes?)));
        let mut blobs: BTreeMap<String, u64> = BTreeMap::new();
        for (hash, size) in blobs_used.filter(|(hash, _)| after.is_none_or(|after| hash.as_str() > after)) {
            let known = blobs.entry(hash).or_default();
            *known = size.max(*known);
        }
        blobs.into_iter().take(limit).collect()
    }

    pub(super) fn blob_is_used(&self, hash: &str) -> bool {
        let mut all = self.artifacts.values().chain(self.inherited.values());
        all.any(|artifact| artifact.content_hash.as_deref() == Some(hash))
    }

    /// Removes state on lines that are gone. Also removes state that a purged session wrote before its first message or
    /// on a line of another session, unless a line that the purged session opened is still read.
    pub(super) fn away_state_purge(&mut self) {
        let Self { sessions, lines, line_origins, session_states, .. } = self;
        line_origins.retain(|id, _| lines.iter().any(|(_, line)| line.id == *id));
        session_states.retain(|record| {
            let line = record.at.map(|at| line_origins.get(&at.line));
            let is_needed = || {
                sessions.contains_key(&record.session)
                    || line_origins.values().any(|origin| origin.session == record.session)
            };
            match line {
                Some(None) => false,
                Some(Some(origin)) if origin.session == record.session => true,
                _ => is_needed(),
            }
        });
    }
}

impl StateRecord {
    fn entry(&self) -> Option<StateEntry> {
        let (key, version, updated_at) = (self.key.clone(), self.version, self.updated_at);
        self.value.clone().map(|value| StateEntry { key, value, version, updated_at })
    }
}
