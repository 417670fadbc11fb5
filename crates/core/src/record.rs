//! Grants, artifacts and ways to authenticate: records without a machine of their own.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::message::names;
use crate::{ArtifactId, AttemptId, GrantId, RunId, SessionId, Time};

/// A recorded capability decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Grant {
    /// Its id.
    #[serde(rename = "grantId")]
    pub id: GrantId,
    /// Where it holds.
    #[serde(rename = "sessionId")]
    pub session: SessionId,
    /// The one run it holds for; all of the session's if none.
    #[serde(rename = "runId", skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// What is granted, for example `fs`.
    pub capability: String,
    /// Which part of it, for example `write`.
    pub operation: String,
    /// On what.
    pub resource_pattern: String,
    /// Allowed or denied.
    pub effect: Effect,
    /// Who decided.
    pub source: GrantSource,
    /// When it was decided.
    #[serde(rename = "createdAtMs")]
    pub created_at: Time,
    /// When it ends.
    #[serde(rename = "expiresAtMs", skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
}

/// Whether a grant allows or denies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Effect {
    Allow,
    Deny,
}
names!(Effect { Allow => "allow", Deny => "deny" });

/// Who decided a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum GrantSource {
    LegacyDefault,
    Policy,
    User,
    System,
}
names!(GrantSource { LegacyDefault => "legacy_default", Policy => "policy", User => "user", System => "system" });

/// A concrete result: a file, a patch, a report, a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Artifact {
    /// Its id.
    #[serde(rename = "artifactId")]
    pub id: ArtifactId,
    /// Whose it is.
    #[serde(rename = "sessionId")]
    pub session: SessionId,
    /// The run that made it.
    #[serde(rename = "runId", skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// The attempt that made it.
    #[serde(rename = "attemptId", skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptId>,
    /// What it is, for example `patch`.
    pub kind: String,
    /// What it is for.
    pub role: ArtifactRole,
    /// Where its bytes are.
    pub uri: String,
    /// Its name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its media type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mime_type: Option<String>,
    /// The hash of its bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_hash: Option<String>,
    /// How many bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// When it was made.
    #[serde(rename = "createdAtMs")]
    pub created_at: Time,
}

/// What an artifact is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum ArtifactRole {
    Input,
    Result,
    Checkpoint,
    ToolOutput,
    Log,
    Other,
}
names!(ArtifactRole {
    Input => "input", Result => "result", Checkpoint => "checkpoint", ToolOutput => "tool_output", Log => "log",
    Other => "other",
});

/// A way to authenticate a runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct AuthMethod {
    /// Its id, for the runtime.
    pub id: String,
    /// `agent`: the runtime does it when asked; `terminal`: its command is run in a terminal with `args` and `env`.
    #[serde(rename = "type")]
    pub kind: String,
    /// For people.
    pub display_name: String,
    /// For people, where there is more to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// What the runtime's command is given besides, in a terminal.
    pub args: Vec<String>,
    /// What it finds in its environment besides, in a terminal.
    pub env: BTreeMap<String, String>,
}
