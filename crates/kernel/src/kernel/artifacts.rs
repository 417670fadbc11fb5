//! Verbs on artifacts, and the care of their bytes.

use mainspring_core::limits::{check_media_type, check_text};
use mainspring_core::{
    Artifact, ArtifactId, ArtifactRole, BadId, BadName, Block, RunId, Session, SessionId, Time,
};
use serde::Serialize;
use tokio::io::AsyncRead;

use super::{Caller, Kernel, Shared};
use crate::actor::Command;
use crate::blobs::{BlobReader, Blobs, Staged};
use crate::error::{CreateError, Error};
use crate::store::{ArtifactPage, Request, SessionRef, Unique};

/// What a new artifact is like.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NewArtifact {
    /// What it is, for example `patch`.
    pub kind: String,
    /// What it is for.
    pub role: ArtifactRole,
    /// Its name for people.
    pub name: Option<String>,
    /// Its media type; any bytes if not given.
    pub mime_type: Option<String>,
}

impl Default for NewArtifact {
    fn default() -> Self {
        Self { kind: "file".into(), role: ArtifactRole::Other, name: None, mime_type: None }
    }
}

/// Which artifacts to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactQuery {
    /// Whose: a session's, or one run's.
    pub of: Result<SessionRef, RunId>,
    /// Only those before this one.
    pub before: Option<(Time, ArtifactId)>,
    /// How many; 50 if not given.
    pub limit: Option<usize>,
}

/// The health of artifacts' bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BlobsCheck {
    /// Different contents.
    pub blobs: u64,
    /// Bytes of them all.
    pub bytes: u64,
    /// What is wrong.
    pub problems: Vec<String>,
}

/// The verb whose idempotency keys are remembered.
const PUT: &str = "artifact_put";

impl Kernel {
    /// Keeps all of `content` as an artifact of the session; the same request again gives the same artifact. Says
    /// whether it was made.
    pub async fn artifact_put(
        &self,
        caller: &Caller,
        by: &SessionRef,
        new: NewArtifact,
        idempotency_key: Option<&str>,
        content: &mut (impl AsyncRead + Unpin + Send + ?Sized),
    ) -> Result<(Artifact, bool), Error> {
        let session = self.session_changed(caller, by).await?.id;
        let (staged, artifact) = self.shared.artifact_stage(session, new.clone(), content).await?;
        let asked =
            idempotency_key.map(|key| self.request_of(caller, PUT, key, &(session, new, &staged.hash)));
        let request = asked.transpose()?.map(|asked| Request { answer: artifact.id.to_string(), ..asked });
        if let Some(request) = &request
            && let Some(earlier) = self.artifact_replayed(request).await?
        {
            return Ok((earlier, false));
        }
        let (shared, made, asked) = (self.shared.clone(), artifact.clone(), request.clone());
        let commit = async move {
            shared
                .call(session, |reply| Command::ArtifactAdd(Box::new(made), asked.map(Box::new), reply))
                .await
        };
        match (self.shared.artifact_keep(staged, commit).await, request) {
            (Ok(()), _) => Ok((artifact, true)),
            // A concurrent request with the same key has committed first: answer with its artifact.
            (Err(CreateError::Taken(Unique::RequestKey)), Some(request)) => {
                match self.artifact_replayed(&request).await? {
                    Some(earlier) => Ok((earlier, false)),
                    None => Err(Error::Unavailable("the same request is under way; try again".into())),
                }
            }
            (Err(error), _) => Err(error.into()),
        }
    }

    /// What an earlier request under the same key made.
    async fn artifact_replayed(&self, request: &Request) -> Result<Option<Artifact>, Error> {
        let Some(earlier) = self.request_known(request).await? else {
            return Ok(None);
        };
        let id: ArtifactId = earlier.parse().map_err(|bad: BadId| Error::Corrupt(bad.to_string()))?;
        let found = self.shared.store.artifact_get(id).await?;
        found.map(Some).ok_or_else(|| Error::not_found("artifact", id))
    }

    /// One artifact.
    pub async fn artifact_get(&self, caller: &Caller, id: ArtifactId) -> Result<Artifact, Error> {
        Ok(self.artifact_known(caller, id).await?.0)
    }

    /// One artifact that the caller may see, and its session: whoever may see a session may see what it made.
    async fn artifact_known(&self, caller: &Caller, id: ArtifactId) -> Result<(Artifact, Session), Error> {
        let not_found = || Error::not_found("artifact", id);
        let artifact = self.shared.store.artifact_get(id).await?.ok_or_else(not_found)?;
        match self.session_get(caller, &SessionRef::Id(artifact.session)).await {
            Ok(session) => Ok((artifact, session)),
            Err(Error::NotFound { .. }) => Err(not_found()),
            Err(error) => Err(error),
        }
    }

    /// Artifacts of a session or of a run, the newest first.
    pub async fn artifact_list(&self, caller: &Caller, query: ArtifactQuery) -> Result<Vec<Artifact>, Error> {
        let (session, run) = match &query.of {
            Ok(by) => (self.session_get(caller, by).await?.id, None),
            Err(run) => (self.run_get(caller, *run).await?.session, Some(*run)),
        };
        let page = ArtifactPage { session, run, before: query.before, limit: self.page(query.limit)? };
        Ok(self.shared.store.artifact_page(&page).await?)
    }

    /// The bytes of an artifact, `length` of them from `from` on; all that follow if no length is given.
    pub async fn artifact_read(
        &self,
        caller: &Caller,
        id: ArtifactId,
        from: u64,
        length: Option<u64>,
    ) -> Result<(Artifact, BlobReader), Error> {
        let artifact = self.artifact_get(caller, id).await?;
        let read = self.shared.artifact_open(&artifact, from, length).await?;
        Ok((artifact, read))
    }

    /// Deletes an artifact, and its bytes unless others have the same.
    pub async fn artifact_delete(&self, caller: &Caller, id: ArtifactId) -> Result<(), Error> {
        let (_, session) = self.artifact_known(caller, id).await?;
        caller.check_changes(&session)?;
        self.shared.call(session.id, |reply| Command::ArtifactDelete(id, reply)).await?;
        self.shared.blobs_settle().await;
        Ok(())
    }

    /// Looks whether the bytes of every artifact are there; `thorough` reads them all.
    pub async fn blobs_check(&self, thorough: bool) -> Result<BlobsCheck, Error> {
        let mut check = BlobsCheck::default();
        let mut after = None;
        loop {
            let page = self.shared.store.blob_page(after.as_deref(), 500).await?;
            let Some((last, _)) = page.last() else { return Ok(check) };
            after = Some(last.clone());
            for (hash, size) in page {
                check.blobs += 1;
                check.bytes += size;
                check.problems.extend(self.shared.blobs()?.check(&hash, size, thorough).await);
            }
        }
    }

    /// A prompt whose attachments name artifacts that exist and are the owner's: what they are is the artifacts' word,
    /// not the caller's.
    pub(super) async fn attached(
        &self,
        caller: &Caller,
        mut prompt: Vec<Block>,
    ) -> Result<Vec<Block>, Error> {
        for block in &mut prompt {
            if let Block::Attachment { artifact, mime_type, name } = block {
                let (known, session) = self.artifact_known(caller, *artifact).await?;
                if session.owner != caller.owner {
                    return Err(Error::not_found("artifact", known.id));
                }
                *mime_type = known.mime_type.unwrap_or_else(|| ANY.into());
                *name = name.take().or(known.name);
            }
        }
        Ok(prompt)
    }
}

/// Refuses what no artifact may be called.
pub(super) fn check_names(kind: &str, name: Option<&str>, mime_type: Option<&str>) -> Result<(), BadName> {
    check_text("an artifact's kind", kind)?;
    name.map_or(Ok(()), |name| check_text("an artifact's name", name))?;
    mime_type.map_or(Ok(()), check_media_type)
}

/// Where the bytes of a hash are.
pub(super) fn uri_of(hash: &str) -> String {
    format!("blake3:{hash}")
}

/// The media type of any bytes.
const ANY: &str = "application/octet-stream";

impl Shared {
    pub(super) fn blobs(&self) -> Result<&Blobs, Error> {
        let none =
            || Error::Invalid("artifacts are not kept here: start the kernel with a folder for them".into());
        self.blobs.as_ref().ok_or_else(none)
    }

    /// The bytes of an artifact, `length` of them from `from` on; all that follow if no length is given.
    pub(crate) async fn artifact_open(
        &self,
        artifact: &Artifact,
        from: u64,
        length: Option<u64>,
    ) -> Result<BlobReader, Error> {
        let Artifact { id, uri, .. } = artifact;
        let Some(hash) = &artifact.content_hash else {
            return Err(Error::Invalid(format!("the bytes of {id} are not kept here but at {uri}")));
        };
        let left = artifact.size_bytes.unwrap_or(u64::MAX).saturating_sub(from);
        let read = self.blobs()?.read(hash, from, length.map_or(left, |length| length.min(left))).await;
        read.map_err(|error| Error::Corrupt(format!("the bytes of {id}: {error}")))
    }

    /// Writes `content` where it is durable, and says what artifact it is to be.
    pub(crate) async fn artifact_stage(
        &self,
        session: SessionId,
        new: NewArtifact,
        content: &mut (impl AsyncRead + Unpin + Send + ?Sized),
    ) -> Result<(Staged, Artifact), Error> {
        check_names(&new.kind, new.name.as_deref(), new.mime_type.as_deref())?;
        let id = self.ids.artifact();
        let staged = self.blobs()?.stage(id, content, self.options.limits.artifact_bytes).await?;
        let artifact = Artifact {
            id,
            session,
            run: None,
            attempt: None,
            kind: new.kind,
            role: new.role,
            uri: uri_of(&staged.hash),
            name: new.name,
            mime_type: new.mime_type.or_else(|| Some(ANY.into())),
            content_hash: Some(staged.hash.clone()),
            size_bytes: Some(staged.size),
            created_at: self.clock.now(),
        };
        Ok((staged, artifact))
    }

    /// Keeps what was staged and commits its row; both or, but for a crash, neither. Goes on to its end even if
    /// nobody waits for it.
    pub(crate) async fn artifact_keep<T, E>(
        &self,
        staged: Staged,
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
            let kept = blobs.keep(staged).await?;
            let outcome = commit.await;
            if outcome.is_ok() {
                blobs.done(kept).await;
            } else {
                let (hash, marker) = Blobs::give_up(kept);
                // What could not be looked at now is looked at by the next start.
                if me.blob_settle(&hash).await.is_ok() {
                    blobs.marker_remove(&marker).await;
                }
            }
            outcome
        });
        kept.await.unwrap_or_else(|_| Err(Error::ShuttingDown.into()))
    }

    /// Removes the bytes of `hash` if nothing names it.
    async fn blob_settle(&self, hash: &str) -> Result<(), Error> {
        let blobs = self.blobs()?;
        let _alone = blobs.alone().await;
        if !self.store.blob_is_used(hash).await? {
            blobs.remove(hash).await?;
            self.store.blob_forget(hash).await?;
        }
        Ok(())
    }

    /// Removes the bytes that artifacts named which are gone. What cannot be removed now is found again later.
    pub(crate) async fn blobs_settle(&self) {
        if self.blobs.is_none() {
            return;
        }
        let settle = async {
            loop {
                let loose = self.store.blob_loose(100).await?;
                if loose.is_empty() || self.tasks.is_stopping() {
                    return Ok::<_, Error>(());
                }
                for hash in loose {
                    self.blob_settle(&hash).await?;
                }
            }
        };
        if let Err(error) = settle.await {
            tracing::warn!(%error, "bytes of artifacts that are gone could not be removed");
        }
    }

    /// Looks at what an earlier process left half done: as much work as there are leftovers.
    pub(super) async fn blobs_recover(&self) -> Result<(), Error> {
        let Some(blobs) = &self.blobs else { return Ok(()) };
        for (hash, marker) in blobs.leftovers().await? {
            self.blob_settle(&hash).await?;
            blobs.marker_remove(&marker).await;
        }
        self.blobs_settle().await;
        Ok(())
    }
}
