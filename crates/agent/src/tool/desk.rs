//! The desk: what a tool may read and write of the session it is called for.

use std::fmt;

use mainspring_core::{
    Artifact, ArtifactId, Delegation, DelegationId, DelegationResult, Expect, StateEntry, StateOutcome,
    StateScope,
};
use mainspring_kernel::adapter::{AttemptHandle, HandleError, NewArtifact};
use mainspring_kernel::kernel::{Delegated, DelegationRequest};
use serde_json::Value;

use super::ToolError;

/// What a tool may read and write of the session it is called for. It serves as long as the attempt has authority.
#[derive(Clone)]
pub struct Desk {
    attempt: AttemptHandle,
    reads: usize,
}

impl Desk {
    /// The desk of an attempt, whose model is shown `reads` bytes of a tool's answer.
    pub(crate) fn new(attempt: AttemptHandle, reads: usize) -> Self {
        Self { attempt, reads }
    }

    /// Bytes of a tool's answer that the model is shown; the rest becomes an artifact.
    pub fn shown_bytes(&self) -> usize {
        self.reads
    }

    /// What a key of state holds, as the run sees it now.
    pub async fn state_get(&self, scope: StateScope, key: &str) -> Result<Option<StateEntry>, ToolError> {
        self.attempt.state_get(scope, key).await.map_err(|error| refused(&error))
    }

    /// Entries of state in the order of their keys, those after `after`.
    pub async fn state_list(
        &self,
        scope: StateScope,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<StateEntry>, ToolError> {
        self.attempt.state_list(scope, after, limit).await.map_err(|error| refused(&error))
    }

    /// Sets a key of state, or removes it, if what is expected is there.
    pub async fn state_set(
        &self,
        scope: StateScope,
        key: &str,
        value: Option<Value>,
        expect: Expect,
    ) -> Result<StateOutcome, ToolError> {
        self.attempt.state_set(scope, key, value, expect).await.map_err(|error| refused(&error))
    }

    /// Delegates work of the run: exactly one child for it, however often it is asked under the same name.
    pub async fn delegate(&self, delegate: DelegationRequest) -> Result<Delegated, ToolError> {
        self.attempt.delegate(delegate).await.map_err(|error| refused(&error))
    }

    /// Waits until delegated work has ended, and says what came of it; nothing if the child was deleted.
    pub async fn settled(
        &self,
        delegation: DelegationId,
    ) -> Result<(Delegation, Option<DelegationResult>), ToolError> {
        self.attempt.settled(delegation).await.map_err(|error| refused(&error))
    }

    /// Keeps `content` as an artifact of the run.
    pub async fn artifact_write(&self, new: NewArtifact, content: &[u8]) -> Result<Artifact, ToolError> {
        self.attempt.artifact(new, &mut &*content).await.map_err(|error| refused(&error))
    }

    /// Artifacts of the session, the newest first.
    pub async fn artifact_list(&self, limit: usize) -> Result<Vec<Artifact>, ToolError> {
        self.attempt.artifact_list(limit).await.map_err(|error| refused(&error))
    }

    /// One artifact, and at most `length` of its bytes from `from` on.
    pub async fn artifact_read(
        &self,
        id: ArtifactId,
        from: u64,
        length: u64,
    ) -> Result<(Artifact, Vec<u8>), ToolError> {
        let artifact = self.attempt.artifact_get(id).await.map_err(|error| refused(&error))?;
        let bytes =
            self.attempt.artifact_read(&artifact, from, length).await.map_err(|error| refused(&error))?;
        Ok((artifact, bytes))
    }
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").field("attempt", &self.attempt.id()).finish_non_exhaustive()
    }
}

fn refused(error: &HandleError) -> ToolError {
    ToolError::new(error.to_string())
}
