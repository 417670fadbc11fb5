//! Grants, artifacts and authentication methods: records that have no state machine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::message::names;
use crate::{ArtifactId, AttemptId, Decider, GrantId, RunId, SessionId, Time};

/// A recorded decision to allow or deny a capability.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Grant {
    /// The grant's id.
    #[serde(rename = "grantId")]
    pub id: GrantId,
    /// The session the grant belongs to.
    #[serde(rename = "sessionId")]
    pub session: SessionId,
    /// The run the grant is limited to. Absent: it applies to every run of the session.
    #[serde(rename = "runId", skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// The capability, for example `fs`.
    pub capability: String,
    /// The operation of the capability, for example `write`.
    pub operation: String,
    /// A pattern of the resources the grant covers.
    pub resource_pattern: String,
    /// Whether the operation is allowed or denied.
    pub effect: GrantEffect,
    /// The source of the decision.
    pub source: GrantSource,
    /// The circumstances the decision was made for, such as the policy, the mode and the folder.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Object, required = false))]
    pub constraints: Map<String, Value>,
    /// When the decision was made.
    #[serde(rename = "createdAtMs")]
    pub created_at: Time,
    /// When the grant expires.
    #[serde(rename = "expiresAtMs", skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// When the grant was revoked.
    #[serde(rename = "revokedAtMs", default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Time>,
    /// The party that revoked the grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_by: Option<Box<Decider>>,
}

impl Grant {
    /// True if the grant holds at `now`: it is neither revoked nor expired.
    pub fn holds_at(&self, now: Time) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|expiry| now < expiry)
    }

    /// The grant of the parent's run that this grant of a delegated run depends on.
    pub fn parent_grant(&self) -> Option<GrantId> {
        self.constraints.get("parentGrantId")?.as_str()?.parse().ok()
    }
}

/// Whether a grant allows or denies an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Effect))]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum GrantEffect {
    Allow,
    Deny,
}
names!(GrantEffect { Allow => "allow", Deny => "deny" });

/// The source of a grant.
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

/// A file that a run uses or produces: an input, a patch, a report, a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Artifact {
    /// The artifact's id.
    #[serde(rename = "artifactId")]
    pub id: ArtifactId,
    /// The session the artifact belongs to.
    #[serde(rename = "sessionId")]
    pub session: SessionId,
    /// The run that created the artifact.
    #[serde(rename = "runId", skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// The attempt that created the artifact.
    #[serde(rename = "attemptId", skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptId>,
    /// The kind of artifact, for example `patch`.
    pub kind: String,
    /// The purpose of the artifact.
    pub role: ArtifactRole,
    /// The location of the artifact's bytes.
    pub uri: String,
    /// A display name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The media type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mime_type: Option<String>,
    /// The hash of the artifact's bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_hash: Option<String>,
    /// The size in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Further facts about the artifact, from the client or agent that created it.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Object, required = false))]
    pub metadata: Map<String, Value>,
    /// When the artifact was created.
    #[serde(rename = "createdAtMs")]
    pub created_at: Time,
}

/// The purpose of an artifact.
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

/// A way to authenticate with a runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct AuthMethod {
    /// The runtime's id of the method.
    pub id: String,
    /// `agent`: the runtime performs the login itself; `terminal`: the runtime's command is run in a terminal with
    /// `args` and `env`.
    #[serde(rename = "type")]
    pub kind: String,
    /// A display name.
    pub display_name: String,
    /// A longer description for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Additional arguments of the runtime's command when it is run in a terminal.
    pub args: Vec<String>,
    /// Additional environment variables of the command when it is run in a terminal.
    pub env: BTreeMap<String, String>,
}
