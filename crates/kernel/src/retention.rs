//! Retention: removes artifacts that have expired, and bytes that nothing refers to, in the background.

use std::sync::Weak;

use mainspring_core::{ArtifactAge, ArtifactId};

use crate::actor::Command;
use crate::clock::Clock;
use crate::error::Error;
use crate::kernel::Shared;
use crate::tasks::Tasks;

/// Time between two searches for expired artifacts. Each reads all messages once.
const INTERVAL_MS: u64 = 6 * 60 * 60 * 1_000;

/// Time between two searches for bytes that nothing refers to.
const BLOBS_INTERVAL_MS: u64 = 60 * 60 * 1_000;

/// Artifacts read at a time.
const PAGE_ROWS: usize = 1_000;

/// Removes expired artifacts every few hours, until the kernel stops. Waits before the first search, because the cost of
/// a start must not depend on how much is stored.
pub(crate) async fn run(shared: Weak<Shared>, clock: Clock, tasks: Tasks) {
    loop {
        tokio::select! {
            () = clock.sleep_for(INTERVAL_MS) => {}
            () = tasks.stopping() => return,
        }
        let Some(shared) = shared.upgrade() else { return };
        if let Err(error) = shared.artifacts_expire().await {
            tracing::warn!(%error, "cannot remove expired artifacts; trying again later");
        }
    }
}

/// Removes the bytes of deleted artifacts that could not be removed at once, and files that other processes have left, every
/// hour until the kernel stops.
pub(crate) async fn remove_unused_blobs(shared: Weak<Shared>, clock: Clock, tasks: Tasks) {
    loop {
        tokio::select! {
            () = clock.sleep_for(BLOBS_INTERVAL_MS) => {}
            () = tasks.stopping() => return,
        }
        let Some(shared) = shared.upgrade() else { return };
        shared.blobs_clean().await;
    }
}

impl Shared {
    /// Removes the artifacts that have expired, and returns their ids. An artifact that cannot be removed does not stop
    /// the removal of others, unless the whole server has failed.
    pub(crate) async fn artifacts_expire(&self) -> Result<Vec<ArtifactId>, Error> {
        let retention = self.options.artifact_retention;
        if !retention.is_limited() {
            return Ok(vec![]);
        }
        let artifacts = self.artifact_ages().await?;
        // Read after the artifacts, so that a message that names one of them by now is seen.
        let named = self.store.artifacts_named().await?;
        let mut removed = vec![];
        for id in retention.expired(&artifacts, &named, self.clock.now()) {
            if self.tasks.is_stopping() {
                break;
            }
            match self.artifact_expire(id).await {
                Ok(()) => removed.push(id),
                // The session is gone, or its home removes the artifact.
                Err(Error::NotFound { .. } | Error::Elsewhere { .. }) => {}
                Err(error) if error.is_of_server() => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, artifact = %id, "cannot remove an expired artifact; trying again later");
                }
            }
        }
        if !removed.is_empty() {
            tracing::info!(artifacts = removed.len(), "removed artifacts that have expired");
            self.blobs_collect().await;
        }
        Ok(removed)
    }

    async fn artifact_expire(&self, id: ArtifactId) -> Result<(), Error> {
        // The artifact's session may have been deleted meanwhile.
        let found = self.store.artifact_get(id).await?;
        let session = found.ok_or_else(|| Error::not_found("artifact", id))?.session;
        self.call(session, |reply| Command::ArtifactDelete(id, reply)).await
    }

    /// Lists all artifacts, oldest first.
    async fn artifact_ages(&self) -> Result<Vec<ArtifactAge>, Error> {
        let mut all: Vec<ArtifactAge> = vec![];
        loop {
            let after = all.last().map(|last| (last.created_at, last.id));
            let page = self.store.artifact_ages(after, PAGE_ROWS).await?;
            let is_last = page.len() < PAGE_ROWS;
            all.extend(page);
            if is_last {
                return Ok(all);
            }
        }
    }
}
