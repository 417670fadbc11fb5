//! Operations on artifacts. Their bytes are kept and removed in `blobs.rs`.

use mainspring_core::limits::{check_media_type, check_text};
use mainspring_core::media::{ANY, media_type};
use mainspring_core::memory::check_candidate;
use mainspring_core::{
    Artifact, ArtifactId, ArtifactRole, BadId, BadName, Block, Rows, RunId, Session, SessionId, Time,
};
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::io::AsyncRead;

use super::runs::{check_size, json_size};
use super::{Caller, Kernel, Shared};
use crate::actor::Command;
use crate::blobs::{BlobError, BlobReader, Blobs, StagedBlob};
use crate::error::{CreateError, Error};
use crate::feed::SubscriptionMode;
use crate::store::{ArtifactPage, Request, SessionRef, Unique};

/// Settings of a new artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NewArtifact {
    /// Kind, for example `patch`.
    pub kind: String,
    /// Purpose.
    pub role: ArtifactRole,
    /// Name to display.
    pub name: Option<String>,
    /// Media type; recognized by the content if not given, or if the content contradicts it.
    pub mime_type: Option<String>,
    /// Further facts about the artifact.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// The run of the session that the artifact belongs to. An artifact that an attempt makes belongs to its run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
}

impl Default for NewArtifact {
    fn default() -> Self {
        Self {
            kind: "file".into(),
            role: ArtifactRole::Other,
            name: None,
            mime_type: None,
            metadata: Map::new(),
            run: None,
        }
    }
}

/// Selects artifacts to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactQuery {
    /// A session, or one of its runs.
    pub of: ArtifactsOf,
    /// Only artifacts before this one.
    pub before: Option<(Time, ArtifactId)>,
    /// Page size; 50 if not given.
    pub limit: Option<usize>,
}

/// The session or run whose artifacts are listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArtifactsOf {
    /// All artifacts of a session.
    Session(SessionRef),
    /// The artifacts of one run.
    Run(RunId),
}

/// Result of checking the bytes of all artifacts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BlobsCheck {
    /// Number of distinct contents.
    pub blobs: u64,
    /// Total size in bytes.
    pub bytes: u64,
    /// Description of each problem found.
    pub problems: Vec<String>,
}

/// Operation name under which idempotency keys are stored.
const PUT_OPERATION: &str = "artifact_put";

impl Kernel {
    /// Stores `content` as an artifact of the session. Returns false with the artifact if the same request has made it
    /// before.
    pub async fn artifact_put(
        &self,
        caller: &Caller,
        by: &SessionRef,
        new: NewArtifact,
        idempotency_key: Option<&str>,
        content: &mut (impl AsyncRead + Unpin + Send + ?Sized),
    ) -> Result<(Artifact, bool), Error> {
        let session = self.session_for_change(caller, by).await?;
        let owner = session.owner;
        let session = session.id;
        if let Some(run) = new.run
            && self.run_for_change(caller, run).await? != session
        {
            return Err(Error::Invalid(format!("{run} is a run of another session")));
        }
        // Fails before the content is read if another server is the home of the session: the request is then sent there.
        // The subscription prevents the session from moving during the upload.
        let _reader = match self.shared.options.homes {
            Some(_) => Some(self.shared.subscribe(session, SubscriptionMode::Observer).await?),
            None => None,
        };
        check_candidate(&new.kind, false, &new.metadata)?;
        let (staged, artifact) = self.shared.artifact_stage(&owner, session, new.clone(), content).await?;
        let asked = idempotency_key
            .map(|key| self.request_new(caller, PUT_OPERATION, key, &(session, new, &staged.hash)));
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

    /// The artifact that an earlier request under the same key made.
    async fn artifact_replayed(&self, request: &Request) -> Result<Option<Artifact>, Error> {
        let Some(earlier) = self.request_replayed(request).await? else {
            return Ok(None);
        };
        let id: ArtifactId = earlier.parse().map_err(|bad: BadId| Error::Corrupt(bad.to_string()))?;
        let found = self.shared.store.artifact_get(id).await?;
        found.map(Some).ok_or_else(|| Error::not_found("artifact", id))
    }

    /// Gets an artifact that the caller may read.
    pub async fn artifact_get(&self, caller: &Caller, id: ArtifactId) -> Result<Artifact, Error> {
        Ok(self.artifact_readable(caller, id).await?.0)
    }

    /// Gets an artifact and its session, if the caller may read the session; else a copy that a fork has inherited, and
    /// the fork.
    async fn artifact_readable(&self, caller: &Caller, id: ArtifactId) -> Result<(Artifact, Session), Error> {
        if let Some(artifact) = self.shared.store.artifact_get(id).await? {
            match self.session_get(caller, &SessionRef::Id(artifact.session)).await {
                Ok(session) => return Ok((artifact, session)),
                Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        for copy in self.shared.store.artifact_heirs(id).await? {
            match self.session_get(caller, &SessionRef::Id(copy.session)).await {
                Ok(fork) => return Ok((copy, fork)),
                Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::not_found("artifact", id))
    }

    /// Lists artifacts of a session or run, newest first.
    pub async fn artifact_list(
        &self,
        caller: &Caller,
        query: ArtifactQuery,
    ) -> Result<Rows<Artifact>, Error> {
        let (session, run) = match &query.of {
            ArtifactsOf::Session(by) => (self.session_get(caller, by).await?.id, None),
            ArtifactsOf::Run(run) => (self.run_readable(caller, *run).await?.session, Some(*run)),
        };
        let page = ArtifactPage { session, run, before: query.before, limit: self.page(query.limit)? };
        Ok(self.shared.store.artifact_page(&page).await?)
    }

    /// Reads `length` bytes of an artifact from offset `from`; to the end if no length is given.
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

    /// Deletes an artifact, and its bytes unless another artifact has the same content.
    pub async fn artifact_delete(&self, caller: &Caller, id: ArtifactId) -> Result<(), Error> {
        let (_, session) = self.artifact_readable(caller, id).await?;
        self.check_session_change(caller, &session).await?;
        self.shared.call(session.id, |reply| Command::ArtifactDelete(id, reply)).await?;
        self.shared.blobs_collect().await;
        Ok(())
    }

    /// Removes the artifacts that have expired now, without waiting for the next periodic search. Returns their ids.
    pub async fn artifacts_expire(&self) -> Result<Vec<ArtifactId>, Error> {
        self.shared.artifacts_expire().await
    }

    /// Checks that the bytes of every artifact exist; `thorough` also reads them and compares their hashes.
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

    /// Checks that every attachment of a prompt is an artifact of the caller, and sets its media type from the artifact.
    pub(super) async fn resolve_attachments(
        &self,
        caller: &Caller,
        mut prompt: Vec<Block>,
    ) -> Result<Vec<Block>, Error> {
        for block in &mut prompt {
            if let Block::Attachment { artifact, mime_type, name } = block {
                let (known, session) = self.artifact_readable(caller, *artifact).await?;
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

/// Refuses an invalid kind, name or media type of an artifact.
pub(super) fn check_names(kind: &str, name: Option<&str>, mime_type: Option<&str>) -> Result<(), BadName> {
    check_text("an artifact's kind", kind)?;
    name.map_or(Ok(()), |name| check_text("an artifact's name", name))?;
    mime_type.map_or(Ok(()), check_media_type)
}

/// Size of the metadata of an artifact, in bytes.
pub(super) fn metadata_size(metadata: &Map<String, Value>) -> usize {
    json_size(Some(metadata).filter(|metadata| !metadata.is_empty()))
}

/// The URI of the bytes with a hash.
pub(super) fn uri_of(hash: &str) -> String {
    format!("blake3:{hash}")
}

impl Shared {
    pub(super) fn blobs(&self) -> Result<&Blobs, Error> {
        let none =
            || Error::Invalid("artifacts are not kept here: start the kernel with a folder for them".into());
        self.blobs.as_ref().ok_or_else(none)
    }

    /// Opens `length` bytes of an artifact from offset `from`; to the end if no length is given.
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
        let size = artifact.size_bytes.unwrap_or(u64::MAX);
        let left = size.saturating_sub(from);
        let length = length.map_or(left, |length| length.min(left));
        let read = self.blobs()?.read(hash, size, from, length).await;
        read.map_err(|error| match error {
            BlobError::Unavailable(text) => Error::Unavailable(format!("the bytes of {id}: {text}")),
            error => Error::Corrupt(format!("the bytes of {id}: {error}")),
        })
    }

    /// Writes `content` durably, and makes the artifact of `owner` for it. The artifact is not stored yet.
    pub(crate) async fn artifact_stage(
        &self,
        owner: &str,
        session: SessionId,
        new: NewArtifact,
        content: &mut (impl AsyncRead + Unpin + Send + ?Sized),
    ) -> Result<(StagedBlob, Artifact), Error> {
        // Checked before a byte is read: an owner that has reached its quota uploads nothing.
        self.check_storage(owner, 1, 1).await?;
        check_names(&new.kind, new.name.as_deref(), new.mime_type.as_deref())?;
        check_size("metadata", metadata_size(&new.metadata), self.options.limits.metadata_bytes)?;
        let id = self.ids.artifact();
        let staged = self.blobs()?.stage(id, content, self.options.limits.artifact_bytes).await?;
        self.check_storage(owner, staged.size, 1).await?;
        let artifact = Artifact {
            id,
            session,
            run: new.run,
            attempt: None,
            kind: new.kind,
            role: new.role,
            uri: uri_of(&staged.hash),
            name: new.name,
            mime_type: Some(media_type(new.mime_type.as_deref(), &staged.head)),
            content_hash: Some(staged.hash.clone()),
            size_bytes: Some(staged.size),
            metadata: new.metadata,
            created_at: self.clock.now(),
        };
        Ok((staged, artifact))
    }
}
