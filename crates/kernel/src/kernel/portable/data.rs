//! Import of artifacts and state. The bytes of an artifact are durable before its row is committed.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mainspring_core::limits::check_text;
use mainspring_core::{Artifact, StateEntry};

use super::check::check_time;
use super::import::{LineError, refuse};
use super::partial::{PartialSession, Section};
use super::state::check_version;
use crate::blobs::{StagedBlob, StagingBlob};
use crate::error::Error;
use crate::kernel::artifacts::{check_names, metadata_size, uri_of};
use crate::kernel::runs::check_size;
use crate::store::{Commit, NewId, Row, StatePlace, StateRow, StoreError, Unique};

/// An artifact whose bytes are being imported.
pub(super) struct OpenArtifact {
    pub(super) artifact: Artifact,
    hash: String,
    size: u64,
    staging: StagingBlob,
}

impl From<Error> for LineError {
    fn from(error: Error) -> Self {
        Self::Kernel(error)
    }
}

impl PartialSession {
    pub(super) async fn artifact(&mut self, artifact: Artifact) -> Result<(), LineError> {
        self.enter(Section::Artifacts)?;
        let id = artifact.id;
        if artifact.session != self.session.id {
            return refuse(format!("{id} is not an artifact of this session"));
        }
        if artifact.run.is_none() && artifact.attempt.is_some() {
            return refuse(format!("{id} is of an attempt and of no run"));
        }
        if let Some(run) = artifact.run.filter(|run| !self.facts.has_run(*run)) {
            return refuse(format!("{run} does not stand above in this file"));
        }
        check_time(&format!("createdAtMs of {id}"), artifact.created_at)?;
        check_names(&artifact.kind, artifact.name.as_deref(), artifact.mime_type.as_deref())?;
        check_text("an artifact's uri", &artifact.uri)?;
        let limit = self.shared.options.limits.metadata_bytes;
        check_size("metadata", metadata_size(&artifact.metadata), limit)?;
        // The rows that the artifact refers to are written first.
        self.write().await?;
        let (hash, size) = match (&artifact.content_hash, artifact.size_bytes) {
            (None, _) => return self.artifact_commit(artifact, None).await,
            (Some(hash), Some(size)) => (hash.clone(), size),
            (Some(_), None) => return refuse(format!("{id} does not say how many bytes it has")),
        };
        if artifact.uri != uri_of(&hash) {
            return refuse(format!("{id} has its bytes at {}, not at {}", uri_of(&hash), artifact.uri));
        }
        let staging = {
            let shared = &self.shared;
            let limit = shared.options.limits.artifact_bytes;
            if size > limit as u64 {
                let size = usize::try_from(size).unwrap_or(usize::MAX);
                return Err(Error::TooLarge { what: "the artifact", size, limit }.into());
            }
            // Another import may bring the same artifact: the staged file gets an id of its own.
            shared.blobs()?.stage_begin(shared.ids.artifact(), limit).await?
        };
        self.artifact = Some(OpenArtifact { artifact, hash, size, staging });
        self.finish_artifact().await
    }

    pub(super) async fn bytes(&mut self, data: &str) -> Result<(), LineError> {
        let Some(open) = &mut self.artifact else {
            return refuse("there is no artifact above that lacks bytes");
        };
        let bytes =
            STANDARD.decode(data).map_err(|error| LineError::Line(format!("this is no base64: {error}")))?;
        if bytes.is_empty() || open.staging.size() + bytes.len() as u64 > open.size {
            return refuse(format!(
                "{} has {} bytes, and this line does not fit",
                open.artifact.id, open.size
            ));
        }
        open.staging.write(&bytes).await?;
        self.finish_artifact().await
    }

    /// Commits the artifact once all its bytes have been read.
    async fn finish_artifact(&mut self) -> Result<(), LineError> {
        let Some(open) = self.artifact.take_if(|open| open.staging.size() == open.size) else {
            return Ok(());
        };
        let staged = open.staging.end().await?;
        if staged.hash != open.hash {
            let (id, hash) = (open.artifact.id, staged.hash.clone());
            return refuse(format!("the bytes of {id} have the hash {hash}, not {}", open.hash));
        }
        self.artifact_commit(open.artifact, Some(staged)).await
    }

    async fn artifact_commit(&self, artifact: Artifact, staged: Option<StagedBlob>) -> Result<(), LineError> {
        let id = artifact.id;
        let rows = vec![Row::NewId(NewId::Artifact(id)), Row::Artifact(Box::new(artifact))];
        let commit = Arc::new(Commit { fence: self.fence, events: vec![], rows });
        let store = self.shared.store.clone();
        let write = async move {
            match store.commit(commit).await {
                Ok(_) => Ok(()),
                Err(StoreError::Conflict(Unique::Id)) => refuse(format!("{id} exists already")),
                Err(StoreError::Conflict(_)) => refuse(format!("{id} is of no attempt in this file")),
                Err(error) => Err(error.into()),
            }
        };
        match staged {
            Some(staged) => self.shared.artifact_keep(staged, write).await,
            None => write.await,
        }
    }

    pub(super) async fn state(&mut self, entry: StateEntry, bytes: usize) -> Result<(), LineError> {
        self.enter(Section::State)?;
        let place = match self.tip_state_place {
            Some(place) => place,
            None => self.state_place().await?,
        };
        self.tip_state_place = Some(place);
        self.facts.add_state(&entry)?;
        self.push_state(place, vec![entry])?;
        self.line_done(bytes).await
    }

    /// The place of the session's state at the tip.
    async fn state_place(&mut self) -> Result<StatePlace, LineError> {
        // Lines are looked up in the store, so pending rows are written first.
        self.write().await?;
        let Some(tip) = self.session.tip_message else {
            return Ok(StatePlace::Session { at: None, aside: false });
        };
        let at = self.point_of(tip).await?;
        let lines = self.shared.store.lines_to_root(self.session.id, at.line, 1).await?;
        let aside = lines.first().is_some_and(|own| own.line.end > at.pos + 1);
        Ok(StatePlace::Session { at: Some(at), aside })
    }

    /// Adds state entries at `place`.
    pub(super) fn push_state(
        &mut self,
        place: StatePlace,
        entries: Vec<StateEntry>,
    ) -> Result<(), LineError> {
        let limit = self.shared.options.limits.state_keys;
        self.keys += entries.len();
        if self.keys > limit {
            return Err(Error::TooMany { what: "keys", limit }.into());
        }
        for StateEntry { key, value, version, updated_at: at } in entries {
            let checked = self.shared.check_state_entry(&key, Some(&value));
            checked.map_err(|error| LineError::Line(error.to_string()))?;
            check_version(&key, version)?;
            check_time(&format!("updatedAtMs of the state {key:?}"), at)?;
            let value = Some(value);
            self.rows.push(Row::State(Box::new(StateRow { place, key, version, value, at })));
        }
        Ok(())
    }
}
