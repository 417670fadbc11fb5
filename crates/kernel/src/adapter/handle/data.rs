//! State and artifacts, as an attempt reads and writes them.

use mainspring_core::memory::{check_candidate, is_undecided};
use mainspring_core::{
    Artifact, ArtifactId, Block, Expect, Message, Point, StateChange, StateEntry, StateOutcome, StateScope,
    StateWriter,
};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::AttemptHandle;
use crate::actor::{Report, StateWrite};
use crate::adapter::{HandleError, Record};
use crate::blobs::BlobReader;
use crate::error::Error;
use crate::kernel::NewArtifact;
use crate::store::{ArtifactPage, SessionRef, StateAt, StateHistoryOf};

impl AttemptHandle {
    /// Gets a state entry, as the run sees it now.
    pub async fn state_get(&self, scope: StateScope, key: &str) -> Result<Option<StateEntry>, HandleError> {
        let at = self.state_at(scope).await?;
        Ok(self.parts.store.state_get(&at, key).await.map_err(Error::from)?.entry)
    }

    /// Lists state entries by key, as the run sees them now. `after` pages past that key.
    pub async fn state_list(
        &self,
        scope: StateScope,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<StateEntry>, HandleError> {
        let at = self.state_at(scope).await?;
        Ok(self
            .parts
            .store
            .state_page(&at, after, limit)
            .await
            .map_err(Error::from)?
            .intact()
            .map_err(Error::from)?)
    }

    /// Sets a key of state, or removes it if `value` is none, provided that the present entry is as expected. Durable
    /// before it returns.
    ///
    /// State of the session is written at the run's next message, so it is rolled back with the run's branch.
    pub async fn state_set(
        &self,
        scope: StateScope,
        key: &str,
        value: Option<Value>,
        expect: Expect,
    ) -> Result<StateOutcome, HandleError> {
        self.state_set_by(None, scope, key, value, expect).await
    }

    /// Sets or removes a key of state, as [`Self::state_set`] does, for `tool`, which the history of the key names.
    pub async fn state_set_by(
        &self,
        tool: Option<&str>,
        scope: StateScope,
        key: &str,
        value: Option<Value>,
        expect: Expect,
    ) -> Result<StateOutcome, HandleError> {
        self.parts.shared.check_state_entry(key, value.as_ref())?;
        let (by, tool) = (self.id(), tool.map(str::to_owned));
        let writer = StateWriter::Agent { run_id: self.assignment.run.id, attempt_id: by, tool };
        let run = match scope {
            StateScope::Owner => return self.owner_state_set(key, value, expect, writer).await,
            StateScope::Session => None,
            StateScope::Run => Some(self.assignment.run.id),
        };
        let write = StateWrite { run, key: key.to_owned(), value, expect, by: writer };
        self.call(|reply| Report::StateWrite { by, write: Box::new(write), reply }).await
    }

    /// Changes state of the owner, then records the change as an event of this session. A crash in between loses the event;
    /// the history of the key has the change.
    async fn owner_state_set(
        &self,
        key: &str,
        value: Option<Value>,
        expect: Expect,
        by: StateWriter,
    ) -> Result<StateOutcome, HandleError> {
        // Owner state bypasses the actor: this checks that the attempt still has authority.
        self.head()?;
        let owner = &self.assignment.session.owner;
        let of = StateHistoryOf::Owner(owner.clone());
        let newest = async || -> Result<Option<StateChange>, Error> {
            Ok(self.parts.store.state_history(&of, key, None, 1).await?.intact()?.pop())
        };
        let before = newest().await?.map_or(0, |change| change.version);
        let outcome = self.parts.shared.owner_state_put(owner, key, value, expect, by.clone()).await?;
        let change = newest().await?.filter(|change| change.version > before && change.by == by);
        if let Some(change) = change {
            self.record(vec![Record::OwnerState(Box::new(change))]).await?;
        }
        Ok(outcome)
    }

    /// Stores `content` as an artifact of the run. Durable before it returns.
    pub async fn artifact(
        &self,
        new: NewArtifact,
        content: &mut (impl AsyncRead + Unpin + Send + ?Sized),
    ) -> Result<Artifact, HandleError> {
        let (by, run) = (self.id(), self.assignment.run.id);
        let session = &self.assignment.session;
        check_candidate(&new.kind, true, &new.metadata).map_err(Error::from)?;
        let (staged, artifact) =
            self.parts.shared.artifact_stage(&session.owner, session.id, new, content).await?;
        let artifact = Artifact { run: Some(run), attempt: Some(by), ..artifact };
        let (handle, made) = (self.clone(), artifact.clone());
        let commit = async move {
            handle.call(|reply| Report::ArtifactAdd { by, artifact: Box::new(made), reply }).await
        };
        self.parts.shared.artifact_keep(staged, commit).await?;
        if is_undecided(&artifact) {
            self.parts.shared.memory_proposed.notify_one();
        }
        Ok(artifact)
    }

    /// Lists artifacts of the session, newest first.
    pub async fn artifact_list(&self, limit: usize) -> Result<Vec<Artifact>, HandleError> {
        let page = ArtifactPage { session: self.assignment.session.id, run: None, before: None, limit };
        Ok(self.parts.store.artifact_page(&page).await.map_err(Error::from)?.intact().map_err(Error::from)?)
    }

    /// Gets an artifact of the session's owner, or one that the session has inherited as a fork. The former may belong to
    /// another session, since messages may refer to it.
    pub async fn artifact_get(&self, id: ArtifactId) -> Result<Artifact, HandleError> {
        let (store, owner) = (&self.parts.store, &self.assignment.session.owner);
        let unknown = || Error::not_found("artifact", id);
        let found = store.artifact_get(id).await.map_err(Error::from)?;
        if let Some(artifact) = found {
            let session = SessionRef::Id(artifact.session);
            let session = store.session_find(owner, &session).await.map_err(Error::from)?;
            if session.is_some_and(|session| session.owner == *owner) {
                return Ok(artifact);
            }
        }
        let copies = store.artifact_heirs(id).await.map_err(Error::from)?;
        let own = copies.into_iter().find(|copy| copy.session == self.assignment.session.id);
        own.ok_or_else(|| unknown().into())
    }

    /// Reads at most `length` bytes of an artifact from offset `from`.
    pub async fn artifact_read(
        &self,
        artifact: &Artifact,
        from: u64,
        length: u64,
    ) -> Result<Vec<u8>, HandleError> {
        let mut reader = self.parts.shared.artifact_open(artifact, from, Some(length)).await?;
        let mut bytes = vec![];
        let read = reader.read_to_end(&mut bytes).await;
        read.map_err(|error| Error::Corrupt(format!("the bytes of {}: {error}", artifact.id)))?;
        Ok(bytes)
    }

    /// Opens an attachment of `prompt`, which may be a message that the session has inherited as a fork.
    pub async fn attachment(
        &self,
        prompt: &Message,
        id: ArtifactId,
    ) -> Result<(Artifact, BlobReader), HandleError> {
        let is_attached =
            |block: &Block| matches!(block, Block::Attachment { artifact, .. } if *artifact == id);
        if !prompt.content.iter().any(is_attached) {
            return Err(Error::not_found("artifact", id).into());
        }
        let artifact = self.artifact_get(id).await?;
        let bytes = self.parts.shared.artifact_open(&artifact, 0, None).await?;
        Ok((artifact, bytes))
    }

    /// The place of state in `scope`, as the run sees it now. Session state includes the point of the run's next message.
    async fn state_at(&self, scope: StateScope) -> Result<StateAt, HandleError> {
        Ok(match scope {
            StateScope::Run => StateAt::Run(self.assignment.run.id),
            StateScope::Owner => StateAt::Owner(self.assignment.session.owner.clone()),
            StateScope::Session => {
                let at = self.head()?.map(|head| Point { pos: head.pos + 1, ..head });
                StateAt::Session { session: self.assignment.session.id, at }
            }
        })
    }
}
