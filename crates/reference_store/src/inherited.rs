//! The artifacts that forks have inherited.

use mainspring_core::{Artifact, ArtifactId, SessionId};

use super::tables::Tables;

impl Tables {
    pub(super) fn inherited_write(&mut self, artifact: &Artifact) {
        self.inherited.entry((artifact.session, artifact.id)).or_insert_with(|| artifact.clone());
    }

    pub(super) fn inherited_by_id(&self, id: ArtifactId) -> Vec<Artifact> {
        let copies = self.inherited.values().filter(|copy| copy.id == id);
        copies.filter(|copy| self.session(copy.session).is_some()).cloned().collect()
    }

    pub(super) fn inherited_of(&self, fork: SessionId) -> Vec<Artifact> {
        self.inherited.values().filter(|copy| copy.session == fork).cloned().collect()
    }

    /// Removes the copies of a fork. Their hashes become loose: possibly unused.
    pub(super) fn inherited_purge(&mut self, fork: SessionId) {
        let gone = self.inherited.values().filter(|copy| copy.session == fork);
        let hashes: Vec<String> = gone.filter_map(|copy| copy.content_hash.clone()).collect();
        self.loose_blobs.extend(hashes);
        self.inherited.retain(|(session, _), _| *session != fork);
    }
}
