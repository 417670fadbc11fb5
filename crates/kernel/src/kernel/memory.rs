//! Operations on memory candidates, for the component that decides them.

use mainspring_core::memory::{self, CANDIDATE_BYTES, MemoryDecision};
use mainspring_core::{Artifact, ArtifactId, Time};
use tokio::io::AsyncReadExt;

use super::Kernel;
use crate::actor::Command;
use crate::error::Error;

impl Kernel {
    /// Lists candidates that were not decided yet, oldest first. `after` pages past that candidate.
    pub async fn memory_candidates(
        &self,
        after: Option<(Time, ArtifactId)>,
        limit: usize,
    ) -> Result<Vec<Artifact>, Error> {
        Ok(self.shared.store.memory_candidates(after, limit).await?)
    }

    /// Reads the text of a candidate.
    pub async fn memory_text(&self, candidate: &Artifact) -> Result<String, Error> {
        let mut reader = self.shared.artifact_open(candidate, 0, Some(CANDIDATE_BYTES as u64)).await?;
        let mut bytes = vec![];
        let read = reader.read_to_end(&mut bytes).await;
        read.map_err(|error| Error::Corrupt(format!("the bytes of {}: {error}", candidate.id)))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Records the decision about a candidate, once. `None` if it is gone or was decided before.
    pub async fn memory_decide(
        &self,
        id: ArtifactId,
        decision: MemoryDecision,
        reason: Option<&str>,
    ) -> Result<Option<Artifact>, Error> {
        let Some(candidate) = self.shared.store.artifact_get(id).await? else { return Ok(None) };
        let now = self.shared.clock.now();
        let Some(decided) = memory::decide(&candidate, decision, reason, now) else { return Ok(None) };
        let (session, row) = (decided.session, Box::new(decided.clone()));
        self.shared.call(session, |reply| Command::ArtifactChange(row, reply)).await?;
        Ok(Some(decided))
    }

    /// Waits until a candidate is proposed. One that was proposed since the last call counts.
    pub async fn memory_proposed(&self) {
        self.shared.memory_proposed.notified().await;
    }
}
