//! The bytes of artifacts: kept before their row is committed, removed after the last row is gone.
//!
//! ```text
//! claim to store ──▶ bytes written ──▶ row committed ──▶ claim released
//! claim to remove ──▶ no row refers to them ──▶ bytes removed ──▶ claim released
//! ```
//!
//! Two claims on the same bytes exclude each other, unless both store them: within the process, and among all processes that
//! share the store. The claims of a process end with its lease, after which its commits are void. No lock is held while bytes
//! are written.

use mainspring_core::{ArtifactId, NodeId};

use super::Shared;
use crate::blobs::{Blobs, StagedBlob};
use crate::error::Error;
use crate::store::{BlobClaim, BlobPurpose, StoreError};

/// Time until a claim that could not be released is released again.
const RELEASE_RETRY_MS: u64 = 1_000;

/// How an attempt to remove bytes ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Removal {
    /// The bytes are removed, or an artifact uses them.
    Decided,
    /// Another task or another server stores or removes the same bytes.
    Claimed,
    /// The bytes must stay for now.
    Postponed,
}

impl Shared {
    /// Keeps staged bytes and commits their artifact: both or neither, unless the process crashes in between. Runs to
    /// its end even if the caller drops the future.
    pub(crate) async fn artifact_keep<T, E>(
        &self,
        staged: StagedBlob,
        commit: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        let Some(me) = self.me.upgrade() else {
            return Err(Error::ShuttingDown.into());
        };
        let kept = self.tasks.spawn(async move {
            let blobs = me.blobs()?;
            let (id, hash) = (staged.id, staged.hash.clone());
            let claim = BlobClaim { id, hash: hash.clone(), purpose: BlobPurpose::Store };
            let kept = match me.store.blob_claim(&claim).await {
                Ok(true) => blobs.keep(staged).await,
                Ok(false) => Err(Error::Unavailable(
                    "another server of the cluster is removing the same content; try again".into(),
                )),
                Err(error) => Err(error.into()),
            };
            let kept = match kept {
                Ok(kept) => kept,
                Err(error) => {
                    me.blob_release(id).await;
                    return Err(error.into());
                }
            };
            let outcome = commit.await;
            if outcome.is_ok() {
                blobs.done(kept).await;
                me.blob_release(id).await;
            } else {
                let marker = Blobs::give_up(kept);
                me.blob_release(id).await;
                match me.blob_remove_unused(&hash).await {
                    // The other party that has claimed the bytes has a marker of its own for them, or removes them.
                    Ok(Removal::Decided | Removal::Claimed) => blobs.marker_remove(&marker).await,
                    // The bytes are looked at again later.
                    Ok(Removal::Postponed) | Err(_) => {}
                }
            }
            outcome
        });
        kept.await.unwrap_or_else(|_| Err(Error::ShuttingDown.into()))
    }

    /// Releases a claim that this process has, or may have. If the store cannot be written, retries in the background.
    async fn blob_release(&self, claim: ArtifactId) {
        let Err(error) = self.store.blob_release(claim).await else { return };
        let Some(me) = self.me.upgrade() else { return };
        tracing::warn!(%error, "cannot release the claim on the bytes of an artifact; trying again");
        self.tasks.spawn(async move {
            loop {
                tokio::select! {
                    () = me.clock.sleep_for(RELEASE_RETRY_MS) => {}
                    () = me.tasks.stopping() => return,
                }
                // The claims of a process end with its lease.
                if matches!(me.store.blob_release(claim).await, Ok(()) | Err(StoreError::Lost(_))) {
                    return;
                }
            }
        });
    }

    /// Removes the bytes of `hash` if no artifact uses them. Runs to its end even if the caller drops the future, since the
    /// removal is complete only when the object store has answered.
    async fn blob_remove_unused(&self, hash: &str) -> Result<Removal, Error> {
        let me = self.me.upgrade().ok_or(Error::ShuttingDown)?;
        let hash = hash.to_owned();
        let removed = self.tasks.spawn(async move { me.blob_remove_claimed(hash).await });
        removed.await.unwrap_or(Err(Error::ShuttingDown))
    }

    async fn blob_remove_claimed(&self, hash: String) -> Result<Removal, Error> {
        let blobs = self.blobs()?;
        let Some(_here) = blobs.claim_removal(&hash) else { return Ok(Removal::Claimed) };
        let claim = BlobClaim { id: self.ids.artifact(), hash, purpose: BlobPurpose::Remove };
        let removed = match self.store.blob_claim(&claim).await {
            Ok(true) => self.blob_remove(blobs, &claim.hash).await,
            Ok(false) => return Ok(Removal::Claimed),
            Err(error) => Err(error.into()),
        };
        self.blob_release(claim.id).await;
        removed
    }

    /// Removes claimed bytes if no artifact uses them.
    async fn blob_remove(&self, blobs: &Blobs, hash: &str) -> Result<Removal, Error> {
        if self.store.blob_is_used(hash).await? {
            return Ok(Removal::Decided);
        }
        if !blobs.remove(hash).await? {
            return Ok(Removal::Postponed);
        }
        self.store.blob_forget(hash).await?;
        Ok(Removal::Decided)
    }

    /// Removes the bytes of deleted artifacts that no other artifact uses. Does nothing if the blob store keeps bytes
    /// for some time. Bytes that cannot be removed are retried later.
    pub(crate) async fn blobs_collect(&self) {
        if self.blobs.as_ref().is_some_and(|blobs| blobs.removal_delay_ms() == 0) {
            self.unused_blobs_remove().await;
        }
    }

    /// Removes the bytes of deleted artifacts that no other artifact uses, except bytes that must stay for now.
    pub(crate) async fn unused_blobs_remove(&self) {
        let collect = async {
            // The blobs that must stay for now.
            let mut kept = 0;
            loop {
                let loose = self.store.blob_loose(kept + 100).await?;
                if loose.len() <= kept || self.tasks.is_stopping() {
                    return Ok::<_, Error>(());
                }
                kept = 0;
                for hash in loose {
                    kept += usize::from(self.blob_try_remove(&hash).await != Some(Removal::Decided));
                }
            }
        };
        if let Err(error) = collect.await {
            tracing::warn!(%error, "cannot remove the bytes of deleted artifacts");
        }
    }

    /// Removes bytes if nothing uses them. `None` if that fails; the failure is logged.
    async fn blob_try_remove(&self, hash: &str) -> Option<Removal> {
        match self.blob_remove_unused(hash).await {
            Ok(removal) => Some(removal),
            Err(error) => {
                tracing::warn!(%error, hash, "cannot remove the bytes of a deleted artifact");
                None
            }
        }
    }

    /// Removes the bytes that nothing refers to. Problems are logged; the bytes are looked at again later.
    pub(crate) async fn blobs_clean(&self) {
        if let Err(error) = self.blobs_recover().await {
            tracing::warn!(%error, "cannot remove files of artifacts that an ended process has left");
        }
        self.unused_blobs_remove().await;
    }

    /// Finishes or undoes artifact writes that were left incomplete by processes that have ended.
    pub(crate) async fn blobs_recover(&self) -> Result<(), Error> {
        let Some(blobs) = &self.blobs else { return Ok(()) };
        // Read first: a process is at work before it stages, so a stager that is not at work afterwards has ended.
        let stagers = blobs.stagers().await?;
        let at_work = self.store.processes_at_work().await?;
        let is_gone = |node: &NodeId| *node != self.node && !at_work.contains(node);
        let gone: Vec<NodeId> = stagers.into_iter().filter(is_gone).collect();
        let mut has_failed = false;
        for marker in blobs.leftovers(gone.clone()).await? {
            match self.blob_try_remove(&marker.hash).await {
                Some(Removal::Decided) => blobs.marker_remove(&marker.file).await,
                // A marker of this process may be that of an upload under way, which has claimed the bytes.
                Some(_) => {}
                None => has_failed = true,
            }
        }
        if !has_failed {
            blobs.stagers_remove(&gone).await;
        }
        Ok(())
    }
}
