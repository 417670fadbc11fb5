//! The standard error of an agent's process. It is kept as an artifact of the attempt when the attempt ends.

use mainspring_api::AttemptStderr;
use mainspring_core::{Artifact, ArtifactRole, Attempt, AttemptId};
use tokio::io::AsyncReadExt;

use super::{Caller, Kernel};
use crate::adapter::{STDERR_STREAM, STREAM_KEY};
use crate::error::Error;
use crate::store::ArtifactPage;

/// Artifacts that are read at once.
const PAGE: usize = 100;
/// Bytes of the text that are returned. Adapters keep fewer, but an agent may have written a larger artifact
/// with the same metadata.
const MAX_BYTES: u64 = 128 << 10;

impl Kernel {
    /// Reads the kept standard error of the agent process of an attempt.
    pub async fn attempt_stderr(&self, caller: &Caller, attempt: AttemptId) -> Result<AttemptStderr, Error> {
        let attempt = self.attempt_get(caller, attempt).await?;
        let mut answer =
            AttemptStderr { attempt_id: attempt.id, run_id: attempt.run, text: None, artifact_id: None };
        if let Some(artifact) = self.stderr_artifact(caller, &attempt).await? {
            let mut bytes = vec![];
            let content = self.shared.artifact_open(&artifact, 0, Some(MAX_BYTES)).await?;
            let read = content.take(MAX_BYTES).read_to_end(&mut bytes).await;
            read.map_err(|error| Error::Corrupt(format!("the bytes of {}: {error}", artifact.id)))?;
            answer.text = Some(String::from_utf8_lossy(&bytes).into_owned());
            answer.artifact_id = Some(artifact.id);
        }
        Ok(answer)
    }

    async fn stderr_artifact(&self, caller: &Caller, attempt: &Attempt) -> Result<Option<Artifact>, Error> {
        let session = self.run_readable(caller, attempt.run).await?.session;
        let mut page = ArtifactPage { session, run: Some(attempt.run), before: None, limit: PAGE };
        loop {
            let found = self.shared.store.artifact_page(&page).await?.items;
            page.before = found.last().map(|last| (last.created_at, last.id));
            let is_last = found.len() < PAGE;
            if let Some(artifact) = found.into_iter().find(|artifact| is_stderr(artifact, attempt)) {
                return Ok(Some(artifact));
            }
            if is_last {
                return Ok(None);
            }
        }
    }
}

fn is_stderr(artifact: &Artifact, attempt: &Attempt) -> bool {
    artifact.attempt == Some(attempt.id)
        && artifact.role == ArtifactRole::Log
        && artifact.metadata.get(STREAM_KEY).is_some_and(|stream| stream == STDERR_STREAM)
}
