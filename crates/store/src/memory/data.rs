//! State and artifacts: applied, and read by looking at everything.

use std::collections::BTreeMap;

use mainspring_core::state::decide;
use mainspring_core::{
    Artifact, ArtifactId, Line, Point, SessionId, StateEntry, StateOutcome, StateSlot, Time, VersionMismatch,
};
use mainspring_kernel::store::{ArtifactPage, OwnerState, StateAt, StatePlace, StateRow, StoreError};
use serde_json::Value;

use super::state::State;

/// Who opened a line, and the last event before.
#[derive(Debug, Clone, Copy)]
pub(super) struct Opened {
    pub(super) by: SessionId,
    pub(super) seq: u64,
}

/// A row of a session's state.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    pub(super) session: SessionId,
    /// The last event before.
    seq: u64,
    pub(super) at: Option<Point>,
    aside: bool,
    pub(super) key: String,
    pub(super) version: u64,
    value: Option<Value>,
    updated_at: Time,
}

impl State {
    pub(super) fn line_opened(&mut self, session: SessionId, line: &Line) {
        let foreign = line.parent.is_some_and(|parent| self.opened_by(parent) != Some(session));
        let seq = if foreign { self.birth(session).unwrap_or(self.seq) } else { self.seq };
        self.opened.insert(line.id, Opened { by: session, seq });
    }

    fn opened_by(&self, at: Point) -> Option<SessionId> {
        self.opened.get(&at.line).map(|opened| opened.by)
    }

    /// The last event before the session was made.
    fn birth(&self, session: SessionId) -> Option<u64> {
        self.events.values().find(|event| event.session == session).map(|event| event.cursor.0 - 1)
    }

    pub(super) fn state_apply(&mut self, session: SessionId, row: &StateRow) {
        let StateRow { place, key, version, value, at: updated_at } = row.clone();
        match place {
            StatePlace::Session { at, aside } => {
                let seq = self.seq;
                self.session_states.push(Kept { session, seq, at, aside, key, version, value, updated_at });
            }
            StatePlace::Run(run) => {
                let entry = value.map(|value| StateEntry { key: key.clone(), value, version, updated_at });
                self.run_states.insert((run, key), StateSlot { entry, version });
            }
        }
    }

    pub(super) fn state_back(&mut self, from: Point, key: &str) {
        let there = self.session_states.iter_mut().filter(|kept| kept.at == Some(from) && kept.key == key);
        let Some(pos) = from.pos.checked_sub(1) else { return };
        there.for_each(|kept| kept.at = Some(Point { pos, ..from }));
    }

    /// Every row that counts from a point on, the nearest first.
    fn state_seen(&self, session: SessionId, at: Option<Point>) -> Result<Vec<&Kept>, StoreError> {
        let (mut next, mut owner, mut bound) = (at, session, u64::MAX);
        let (mut guest, mut guest_bound) = (session, u64::MAX);
        if let Some(by) = at.and_then(|at| self.opened_by(at)).filter(|by| *by != session) {
            (owner, bound) = (by, self.birth(session).unwrap_or(u64::MAX));
        }
        let mut seen = vec![];
        while let Some(point) = next {
            let missing = || StoreError::Corrupt(format!("line {} is not there", point.line.0));
            let line = self.line(point.line).ok_or_else(missing)?;
            let opened = self.opened.get(&line.id).ok_or_else(missing)?;
            owner = opened.by;
            let counts = |kept: &&Kept| {
                let here = kept.at.is_some_and(|at| {
                    at.line == line.id && at.pos <= point.pos && (at.pos == point.pos || !kept.aside)
                });
                let own = kept.session == owner && kept.seq <= bound;
                here && (own || kept.session != owner && kept.session == guest && kept.seq <= guest_bound)
            };
            let mut rows: Vec<&Kept> = self.session_states.iter().filter(counts).collect();
            rows.sort_by_key(|kept| std::cmp::Reverse((kept.at, kept.version)));
            seen.extend(rows);
            (guest, guest_bound, bound) = (owner, bound, bound.min(opened.seq));
            next = line.parent;
        }
        let before = |kept: &&Kept| kept.at.is_none() && kept.session == owner && kept.seq <= bound;
        let mut rows: Vec<&Kept> = self.session_states.iter().filter(before).collect();
        rows.sort_by_key(|kept| std::cmp::Reverse(kept.version));
        seen.extend(rows);
        Ok(seen)
    }

    pub(super) fn state_get(&self, at: &StateAt, key: &str) -> Result<StateSlot, StoreError> {
        Ok(match at {
            StateAt::Session { session, at } => {
                let nearest = self.state_seen(*session, *at)?.into_iter().find(|kept| kept.key == key);
                let own =
                    self.session_states.iter().filter(|kept| kept.session == *session && kept.key == key);
                let version = own.chain(nearest).map(|kept| kept.version).max().unwrap_or(0);
                StateSlot { entry: nearest.and_then(Kept::entry), version }
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
                let mut keys: BTreeMap<&str, &Kept> = BTreeMap::new();
                for kept in self.state_seen(*session, *at)? {
                    keys.entry(&kept.key).or_insert(kept);
                }
                keys.into_values().filter_map(Kept::entry).collect()
            }
            StateAt::Run(run) => {
                let own = self.run_states.iter().filter(|((of, _), _)| of == run);
                own.filter_map(|(_, slot)| slot.entry.clone()).collect()
            }
            StateAt::Owner(owner) => {
                let own = self.owner_states.iter().filter(|((of, _), _)| of == owner);
                own.map(|(_, entry)| entry.clone()).collect()
            }
        })
    }

    pub(super) fn state_put(&mut self, put: OwnerState) -> Result<StateOutcome, VersionMismatch> {
        let at = (put.owner, put.key.clone());
        let slot = StateSlot { entry: self.owner_states.get(&at).cloned(), version: self.owner_version };
        let version = decide(&slot, put.value.as_ref(), put.expect)?;
        let outcome = StateOutcome::of(slot, &put.key, put.value, version, put.at);
        if let Some(version) = version {
            self.owner_version = version;
            match &outcome.entry {
                Some(entry) => drop(self.owner_states.insert(at, entry.clone())),
                None => drop(self.owner_states.remove(&at)),
            }
        }
        Ok(outcome)
    }

    /// Removes an artifact; its hash becomes loose.
    pub(super) fn artifact_remove(&mut self, id: ArtifactId) {
        let gone = self.artifacts.remove(&id);
        self.loose.extend(gone.and_then(|artifact| artifact.content_hash));
    }

    pub(super) fn artifact_get(&self, id: ArtifactId) -> Option<Artifact> {
        let artifact = self.artifacts.get(&id)?;
        self.session(artifact.session).map(|_| artifact.clone())
    }

    pub(super) fn artifact_page(&self, page: &ArtifactPage) -> Vec<Artifact> {
        let place = |artifact: &Artifact| (artifact.created_at, artifact.id);
        let wanted = |artifact: &&Artifact| {
            artifact.session == page.session
                && self.session(artifact.session).is_some()
                && page.run.is_none_or(|run| artifact.run == Some(run))
                && page.before.is_none_or(|before| place(artifact) < before)
        };
        let mut found: Vec<&Artifact> = self.artifacts.values().filter(wanted).collect();
        found.sort_by_key(|artifact| std::cmp::Reverse(place(artifact)));
        found.into_iter().take(page.limit).cloned().collect()
    }

    pub(super) fn blob_page(&self, after: Option<&str>, limit: usize) -> Vec<(String, u64)> {
        let named = self
            .artifacts
            .values()
            .filter_map(|artifact| Some((artifact.content_hash.clone()?, artifact.size_bytes?)));
        let mut blobs: BTreeMap<String, u64> = BTreeMap::new();
        for (hash, size) in named.filter(|(hash, _)| after.is_none_or(|after| hash.as_str() > after)) {
            let known = blobs.entry(hash).or_default();
            *known = size.max(*known);
        }
        blobs.into_iter().take(limit).collect()
    }

    pub(super) fn blob_used(&self, hash: &str) -> bool {
        self.artifacts.values().any(|artifact| artifact.content_hash.as_deref() == Some(hash))
    }

    /// Removes what a session that is gone wrote on no line of its own, unless lines of it are still read.
    pub(super) fn away_purge(&mut self) {
        let Self { sessions, lines, opened, session_states, .. } = self;
        opened.retain(|id, _| lines.iter().any(|(_, line)| line.id == *id));
        session_states.retain(|kept| {
            let line = kept.at.map(|at| opened.get(&at.line));
            let lives = || {
                sessions.contains_key(&kept.session)
                    || opened.values().any(|opened| opened.by == kept.session)
            };
            match line {
                Some(None) => false,
                Some(Some(opened)) if opened.by == kept.session => true,
                _ => lives(),
            }
        });
    }
}

impl Kept {
    fn entry(&self) -> Option<StateEntry> {
        let (key, version, updated_at) = (self.key.clone(), self.version, self.updated_at);
        self.value.clone().map(|value| StateEntry { key, value, version, updated_at })
    }
}
