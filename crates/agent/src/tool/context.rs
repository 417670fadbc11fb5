//! The access of a tool to the session it is called for.

use std::fmt;
use std::sync::Arc;

use mainspring_core::{
    Artifact, ArtifactId, ArtifactRole, Block, Delegation, DelegationId, DelegationResult, Expect,
    StateEntry, StateOutcome, StateScope,
};
use mainspring_kernel::adapter::{AttemptHandle, HandleError, NewArtifact, Record};
use mainspring_kernel::kernel::{Delegated, DelegationRequest, KernelPlane};
use parking_lot::Mutex;
use serde_json::Value;

use super::{ToolError, ToolState};

/// Reads and writes the session that a tool is called for. Calls fail once the attempt has lost its authority.
#[derive(Clone)]
pub struct ToolContext {
    attempt: AttemptHandle,
    max_result_bytes: usize,
    /// The name of the tool.
    tool: Option<Arc<str>>,
    /// Files that the call has added to its result.
    files: Arc<Mutex<Vec<Block>>>,
    /// The scope of a call that reads or changes state and names no scope.
    default_scope: StateScope,
}

impl ToolContext {
    /// Creates the context of an attempt.
    pub(crate) fn new(attempt: AttemptHandle, max_result_bytes: usize) -> Self {
        let default_scope = StateScope::Session;
        Self { attempt, max_result_bytes, tool: None, files: Arc::default(), default_scope }
    }

    /// Sets the name of the tool, which the history of state records.
    pub(crate) fn for_tool(self, name: &str) -> Self {
        Self { tool: Some(name.into()), ..self }
    }

    /// Sets the default scope of state: the run if `shares`, because the members of a network share its state; else the
    /// session.
    #[must_use]
    pub(crate) fn sharing_run_state(mut self, shares: bool) -> Self {
        self.default_scope = if shares { StateScope::Run } else { StateScope::Session };
        self
    }

    /// Returns the scope of a call that names no scope: the session, or the run for a member of a network.
    pub fn default_scope(&self) -> StateScope {
        self.default_scope
    }

    /// Returns typed access to the state of `scope`.
    pub fn state(&self, scope: StateScope) -> ToolState<'_> {
        ToolState::new(self, scope)
    }

    /// Takes the files that the call has added to its result.
    pub(crate) fn take_files(&self) -> Vec<Block> {
        std::mem::take(&mut *self.files.lock())
    }

    /// Stores `content` as an artifact of the run and adds the artifact to the call's result as an attachment. The
    /// model gets the name, the media type and the id of the artifact.
    pub async fn add_file(
        &self,
        name: Option<String>,
        mime_type: String,
        content: &[u8],
    ) -> Result<Artifact, ToolError> {
        let new = NewArtifact {
            kind: "tool_output".into(),
            role: ArtifactRole::ToolOutput,
            name: name.clone(),
            mime_type: Some(mime_type.clone()),
            ..NewArtifact::default()
        };
        let artifact = self.artifact_write(new, content).await?;
        let mime_type = artifact.mime_type.clone().unwrap_or(mime_type);
        self.files.lock().push(Block::Attachment { artifact: artifact.id, mime_type, name });
        Ok(artifact)
    }

    /// Makes a fact about the run durable.
    pub(crate) async fn record(&self, record: Record) -> Result<(), ToolError> {
        self.attempt.record(vec![record]).await.map_err(|error| tool_error(&error))
    }

    /// Returns the maximum size of a tool result in a request; a larger one is stored as an artifact.
    pub fn max_result_bytes(&self) -> usize {
        self.max_result_bytes
    }

    /// Returns the value of a state key.
    pub async fn state_get(&self, scope: StateScope, key: &str) -> Result<Option<StateEntry>, ToolError> {
        self.attempt.state_get(scope, key).await.map_err(|error| tool_error(&error))
    }

    /// Lists state in the order of its keys, starting after `after`.
    pub async fn state_list(
        &self,
        scope: StateScope,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<StateEntry>, ToolError> {
        self.attempt.state_list(scope, after, limit).await.map_err(|error| tool_error(&error))
    }

    /// Sets a state key, or deletes it if `value` is `None`. Fails if its version is not the expected one.
    pub async fn state_set(
        &self,
        scope: StateScope,
        key: &str,
        value: Option<Value>,
        expect: Expect,
    ) -> Result<StateOutcome, ToolError> {
        let set = self.attempt.state_set_by(self.tool.as_deref(), scope, key, value, expect).await;
        set.map_err(|error| tool_error(&error))
    }

    /// Delegates work of the run. Repeating the call with the same request name creates no second child.
    pub async fn delegate(&self, delegate: DelegationRequest) -> Result<Delegated, ToolError> {
        self.attempt.delegate(delegate).await.map_err(|error| tool_error(&error))
    }

    /// Waits until delegated work has ended and returns its result; `None` if the child was deleted.
    pub async fn settled(
        &self,
        delegation: DelegationId,
    ) -> Result<(Delegation, Option<DelegationResult>), ToolError> {
        self.attempt.settled(delegation).await.map_err(|error| tool_error(&error))
    }

    /// Returns the operations of the control tools, on behalf of the session's owner.
    pub(crate) fn control(&self) -> Result<KernelPlane, ToolError> {
        // The round of tools has already checked the call against the rules.
        self.attempt.control_of_approved_call().map_err(|error| tool_error(&error))
    }

    /// Stores `content` as an artifact of the run.
    pub async fn artifact_write(&self, new: NewArtifact, content: &[u8]) -> Result<Artifact, ToolError> {
        self.attempt.artifact(new, &mut &*content).await.map_err(|error| tool_error(&error))
    }

    /// Lists the artifacts of the session, newest first.
    pub async fn artifact_list(&self, limit: usize) -> Result<Vec<Artifact>, ToolError> {
        self.attempt.artifact_list(limit).await.map_err(|error| tool_error(&error))
    }

    /// Returns an artifact and at most `length` of its bytes, starting at `offset`.
    pub async fn artifact_read(
        &self,
        id: ArtifactId,
        offset: u64,
        length: u64,
    ) -> Result<(Artifact, Vec<u8>), ToolError> {
        let artifact = self.attempt.artifact_get(id).await.map_err(|error| tool_error(&error))?;
        let bytes = self
            .attempt
            .artifact_read(&artifact, offset, length)
            .await
            .map_err(|error| tool_error(&error))?;
        Ok((artifact, bytes))
    }
}

impl fmt::Debug for ToolContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolContext").field("attempt", &self.attempt.id()).finish_non_exhaustive()
    }
}

fn tool_error(error: &HandleError) -> ToolError {
    ToolError::new(error.to_string())
}
