//! Approvals: an agent's request as data, its possible answers, and the later requests that an answer covers.
//!
//! ```text
//! requested ──▶ allowed once | allowed for the session | denied | result supplied | expired
//! ```
//!
//! Invariant: an approval for the session covers the same request again and nothing broader: the same action of the same
//! tool, in the same folder and on the same adapter, with the same input or on the same files.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::message::names;
use crate::{
    AccessRole, Block, FileLocation, Grant, GrantEffect, GrantId, GrantSource, KeyId, Mode, Refusal,
    SessionId, Time, WaitId,
};

/// The largest input that a grant for a session remembers. A request with a larger input is allowed only once.
pub const MAX_GRANTED_INPUT_BYTES: usize = 16 * 1024;
/// The default lifetime of a grant for a session: 8 hours.
pub const GRANT_LIFETIME_MS: i64 = 8 * 60 * 60 * 1000;
/// The maximum lifetime of a grant for a session: 30 days.
pub const MAX_GRANT_LIFETIME_MS: i64 = 30 * 24 * 60 * 60 * 1000;
/// Kinds of tool calls that are described by the files they work on.
const FILE_KINDS: [&str; 5] = ["read", "edit", "delete", "move", "search"];

/// A request of an agent that needs a decision.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ApprovalRequest {
    /// The action, in the terms of the policy's rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<RequestedAction>,
    /// The tool call that the agent wants to make.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<RequestedCall>,
    /// The possible answers; absent if no person was asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<ApprovalChoice>,
    /// The callers who may answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub may_answer: Option<MayAnswer>,
}

/// An action in the terms of the policy's rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct RequestedAction {
    /// The capability, for example `fs`.
    pub capability: String,
    /// The operation of the capability, for example `write`.
    pub operation: String,
    /// The object of the operation, for example a path.
    pub resource: String,
}

/// A tool call that an agent wants to make. All fields are as the agent reports them, unverified.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct RequestedCall {
    /// The id of the call in the messages; absent for files and commands that the agent asks mainspring for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_use_id: Option<String>,
    /// The name of the tool.
    pub name: String,
    /// A description of the call for people, if the agent gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The kind of the call: `read`, `edit`, `delete`, `move`, `search`, `execute`, `think`, `fetch`, `other` …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The arguments. Absent if the agent does not report them, and if no person was asked.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub input: Value,
    /// The files that the call works on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub locations: Vec<FileLocation>,
    /// The changes of files that the call would make, as blocks of the type `diff`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(no_recursion))]
    pub diff: Vec<Block>,
    /// True if input and changes are too large to be shown here; the call in the messages has them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

impl RequestedCall {
    /// The files that describe the call, sorted; empty if its input describes it.
    fn paths(&self) -> Vec<&str> {
        if !self.kind.as_deref().is_some_and(|kind| FILE_KINDS.contains(&kind)) {
            return vec![];
        }
        let changed = self.diff.iter().filter_map(|block| match block {
            Block::Diff { path, .. } => Some(path.as_str()),
            _ => None,
        });
        let mut paths: Vec<&str> = self.locations.iter().map(|at| at.path.as_str()).chain(changed).collect();
        paths.sort_unstable();
        paths.dedup();
        paths
    }
}

/// An answer that an approval may get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ApprovalChoice {
    /// Allow this request.
    AllowOnce,
    /// Allow this request, and the same one again in this session.
    AllowSession,
    /// Deny this request.
    Deny,
    /// Deny this request and tell the agent why.
    DenyWithReason,
    /// Supply a result instead of running the tool.
    SupplyResult,
}
names!(ApprovalChoice {
    AllowOnce => "allow_once",
    AllowSession => "allow_session",
    Deny => "deny",
    DenyWithReason => "deny_with_reason",
    SupplyResult => "supply_result",
});

/// The callers who may answer an approval: those of the owner who have one of the roles. Agents never answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct MayAnswer {
    /// The owner.
    pub owner_id: String,
    /// The roles.
    pub roles: Vec<AccessRole>,
}

impl MayAnswer {
    /// The members and admins of `owner`.
    pub fn of_owner(owner: &str) -> Self {
        Self { owner_id: owner.to_owned(), roles: vec![AccessRole::Member, AccessRole::Admin] }
    }
}

/// The answer to an approval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ApprovalAnswer {
    /// The decision.
    pub decision: Approval,
    /// For `allowed`: whether the same request is allowed again. Default: once.
    #[serde(default, skip_serializing_if = "ApprovalScope::is_once")]
    pub scope: ApprovalScope,
    /// For the scope `session`: how long the grant holds, in milliseconds. Default: 8 hours; at most 30 days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<i64>,
    /// For `denied`: the reason that the agent gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// For `supplied`: the result that the agent gets instead of running the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<SuppliedResult>,
}

impl From<Approval> for ApprovalAnswer {
    fn from(decision: Approval) -> Self {
        Self { decision, scope: ApprovalScope::Once, expires_in_ms: None, reason: None, result: None }
    }
}

/// Whether an allowed request is allowed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ApprovalScope {
    /// This request only.
    #[default]
    Once,
    /// The same request again, in this session.
    Session,
}

impl ApprovalScope {
    const fn is_once(&self) -> bool {
        matches!(self, Self::Once)
    }
}

/// A result that a person supplies instead of running a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct SuppliedResult {
    /// The text of the result.
    pub text: String,
    /// True if the agent gets the result as the result of a failed call.
    #[serde(default)]
    pub is_error: bool,
}

impl ApprovalAnswer {
    /// Checks that a caller's answer to `wait` is consistent and among the answers that the wait offers.
    pub(crate) fn check(&self, wait: WaitId, offered: &[ApprovalChoice]) -> Result<(), Refusal> {
        let wrong = |wanted, given| Err(Refusal::WrongAnswer { wait, wanted, given });
        let choice = match (self.decision, self.scope) {
            // Only the clock can expire a wait.
            (Approval::Expired, _) => return wrong("allowed, denied or supplied", "expired"),
            (Approval::Denied | Approval::Supplied, ApprovalScope::Session) => {
                return wrong("the scope once, unless the decision is allowed", "session");
            }
            (Approval::Allowed, ApprovalScope::Once) => ApprovalChoice::AllowOnce,
            (Approval::Allowed, ApprovalScope::Session) => ApprovalChoice::AllowSession,
            (Approval::Denied, _) if self.reason.is_some() => ApprovalChoice::DenyWithReason,
            (Approval::Denied, _) => ApprovalChoice::Deny,
            (Approval::Supplied, _) => ApprovalChoice::SupplyResult,
        };
        if self.reason.is_some() && self.decision != Approval::Denied {
            return wrong("a reason only with the decision denied", "a reason");
        }
        match (self.decision, &self.result) {
            (Approval::Supplied, None) => return wrong("a result with the decision supplied", "none"),
            (Approval::Supplied, Some(_)) | (_, None) => {}
            (_, Some(_)) => return wrong("a result only with the decision supplied", "a result"),
        }
        match self.expires_in_ms {
            Some(_) if self.scope.is_once() => {
                return wrong("expiresInMs only with the scope session", "expiresInMs");
            }
            Some(ms) if !(1..=MAX_GRANT_LIFETIME_MS).contains(&ms) => {
                return wrong("expiresInMs from 1 to 2592000000", "another number");
            }
            _ => {}
        }
        if offered.contains(&choice) {
            return Ok(());
        }
        let names = offered.iter().map(|choice| choice.name()).collect::<Vec<_>>().join(", ");
        Err(Refusal::NotOffered { wait, given: choice.name(), offered: names })
    }
}

impl ApprovalRequest {
    /// A request about no particular action: it can be allowed once or denied.
    pub fn plain() -> Self {
        Self { answers: vec![ApprovalChoice::AllowOnce, ApprovalChoice::Deny], ..Self::default() }
    }

    /// A request to do `action` by `call`. It can be allowed for the session if a grant can remember the request.
    pub fn of(action: RequestedAction, call: Option<RequestedCall>) -> Self {
        let mut request = Self { action: Some(action), call, ..Self::plain() };
        if request.remembered().is_some() {
            request.answers.insert(1, ApprovalChoice::AllowSession);
        }
        request
    }

    /// Adds further possible answers.
    #[must_use]
    pub fn offer(mut self, choices: &[ApprovalChoice]) -> Self {
        self.answers.extend_from_slice(choices);
        self
    }

    /// The request without its details, for the record of a decision that needed no person: the call itself is recorded
    /// with its input.
    #[must_use]
    pub fn summary(self) -> Self {
        let call = self.call.map(|call| RequestedCall { input: Value::Null, diff: vec![], ..call });
        Self { call, answers: vec![], ..self }
    }

    /// Drops the details of a request that is too large to be stored with its wait.
    pub fn truncate(&mut self) {
        if let Some(call) = &mut self.call {
            (call.input, call.diff, call.truncated) = (Value::Null, vec![], true);
        }
        self.answers.retain(|choice| *choice != ApprovalChoice::AllowSession);
    }

    /// The properties that a later request must share to be the same request; `None` if they are too long to remember.
    fn remembered(&self) -> Option<Map<String, Value>> {
        let mut same = Map::new();
        if let Some(call) = &self.call {
            same.insert("tool".into(), call.name.clone().into());
            match call.paths() {
                paths if paths.is_empty() => same.insert("input".into(), call.input.clone()),
                paths => same.insert("paths".into(), paths.into()),
            };
        }
        let bytes = serde_json::to_vec(&same).map_or(usize::MAX, |bytes| bytes.len());
        (bytes <= MAX_GRANTED_INPUT_BYTES).then_some(same)
    }

    /// Makes the grant that an answer for the session records; `None` if the request cannot be allowed for the session.
    pub fn session_grant(&self, given: NewGrant) -> Option<Grant> {
        let action = self.action.clone()?;
        let mut constraints = given.circumstances;
        constraints.extend(self.remembered()?);
        constraints.insert("waitId".into(), given.wait.to_string().into());
        constraints.insert("decidedBy".into(), serde_json::to_value(&given.by).unwrap_or_default());
        Some(Grant {
            id: given.id,
            session: given.session,
            run: None,
            capability: action.capability,
            operation: action.operation,
            resource_pattern: action.resource,
            effect: GrantEffect::Allow,
            source: GrantSource::User,
            constraints,
            created_at: given.at,
            expires_at: Some(given.expires_at),
            revoked_at: None,
            revoked_by: None,
        })
    }

    /// True if `grant`, which a person gave for the session, allows this request in these circumstances. The resource is
    /// compared as a text, not as a pattern.
    pub fn is_covered_by(&self, grant: &Grant, circumstances: &Map<String, Value>) -> bool {
        let Some((action, remembered)) = self.action.as_ref().zip(self.remembered()) else { return false };
        let names_files = remembered.contains_key("paths");
        let same_action = grant.capability == action.capability
            && grant.operation == action.operation
            // A call on files is compared by its files: its resource is a title, which may describe the change.
            && (names_files || grant.resource_pattern == action.resource);
        let covers_paths = |granted: Option<&Value>, wanted: &Value| {
            let granted = granted.and_then(Value::as_array);
            let wanted = wanted.as_array().map(Vec::as_slice).unwrap_or_default();
            granted.is_some_and(|granted| wanted.iter().all(|path| granted.contains(path)))
        };
        let has_same = |(key, value): (&String, &Value)| match key.as_str() {
            "paths" => covers_paths(grant.constraints.get(key), value),
            _ => grant.constraints.get(key) == Some(value),
        };
        let is_given = grant.source == GrantSource::User
            && grant.effect == GrantEffect::Allow
            && grant.run.is_none()
            && grant.constraints.contains_key("waitId");
        // A grant for a folder does not cover a request without one.
        let same_place = grant.constraints.get("cwd") == circumstances.get("cwd");
        let here = circumstances.iter().all(has_same) && same_place;
        is_given && here && same_action && remembered.iter().all(has_same)
    }
}

/// The facts that a grant for a session records besides its request.
#[derive(Debug, Clone)]
pub struct NewGrant {
    /// The id of the grant.
    pub id: GrantId,
    /// The session.
    pub session: SessionId,
    /// The wait that was answered.
    pub wait: WaitId,
    /// The party that answered.
    pub by: Decider,
    /// The circumstances in which the grant holds: adapter, mode and folder.
    pub circumstances: Map<String, Value>,
    /// When the grant was given.
    pub at: Time,
    /// When the grant expires.
    pub expires_at: Time,
}

/// The circumstances of a run that a grant is bound to.
pub fn circumstances(adapter: &str, mode: Mode, folder: Option<&str>) -> Map<String, Value> {
    let mut all =
        Map::from_iter([("adapter".to_owned(), adapter.into()), ("mode".to_owned(), mode.name().into())]);
    all.extend(folder.map(|folder| ("cwd".to_owned(), folder.into())));
    all
}

/// The decision on an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Approval {
    /// Allowed.
    Allowed,
    /// Denied.
    Denied,
    /// Not run: a person supplied the result.
    Supplied,
    /// The run ended or the wait expired before a decision.
    Expired,
}
names!(Approval { Allowed => "allowed", Denied => "denied", Supplied => "supplied", Expired => "expired" });

/// The person, API key, rule or setting that decided on an approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Decider {
    /// A person with the token of the state directory.
    #[serde(rename_all = "camelCase")]
    Person {
        /// The owner that the person acts for.
        owner_id: String,
    },
    /// The holder of an API key.
    #[serde(rename_all = "camelCase")]
    Key {
        /// The owner of the key.
        owner_id: String,
        /// The key.
        key_id: KeyId,
    },
    /// A rule of the server, the owner, the adapter, the agent definition or the session, or of a run above.
    #[serde(rename_all = "camelCase")]
    Rule {
        /// The rule.
        rule: String,
    },
    /// A setting that decides without a rule.
    #[serde(rename_all = "camelCase")]
    Policy {
        /// The setting: `legacy`, `deny`, `mode_ask` (the run may only answer), `session_folder` (the path is outside
        /// of the session's folder), `no_allow_option` (the agent offers no option that allows), `turn_ended` (the
        /// agent has ended its turn without waiting for the answer), `hook` (a hook of the embedding program),
        /// `no_rule` (no rule concerns the tool), `control` (no rule concerns the control call), `approved_call` (a
        /// person or a grant has allowed the control call before).
        policy: String,
    },
}

impl std::fmt::Display for Decider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Person { owner_id } => write!(f, "{owner_id}"),
            Self::Key { owner_id, key_id } => write!(f, "{owner_id} ({key_id})"),
            Self::Rule { rule } => write!(f, "the rule {rule:?}"),
            Self::Policy { policy } => write!(f, "the policy {policy}"),
        }
    }
}

impl Decider {
    /// Makes the decider of a setting.
    pub fn policy(policy: &str) -> Self {
        Self::Policy { policy: policy.to_owned() }
    }
}

/// The reply to an agent for each decision on its request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replies {
    /// The reply if the request is allowed.
    pub allowed: String,
    /// The reply if the request is denied.
    pub denied: String,
}

impl Replies {
    /// Returns the reply for a decision; `None` if the agent gets no reply.
    pub fn to(&self, decision: Approval) -> Option<String> {
        match decision {
            Approval::Allowed => Some(self.allowed.clone()),
            Approval::Denied => Some(self.denied.clone()),
            // The agent gets the result, which is recorded with the call.
            Approval::Supplied => Some("result".to_owned()),
            Approval::Expired => None,
        }
    }
}

#[cfg(test)]
mod tests;
