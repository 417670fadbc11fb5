//! Delegation: work that a run hands to a child run in another session.

use mainspring_core::{Delegation, DelegationMode, DelegationResult, Mode, Run, RunOptions};
use serde::{Deserialize, Serialize};

use crate::SessionTarget;

/// Work to delegate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Work))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Delegate {
    /// How to delegate: `call` and `continue` wait for the child, `spawn` does not.
    pub mode: DelegationMode,
    /// The objective of the child.
    #[cfg_attr(feature = "schema", schema(min_length = 1))]
    pub objective: String,
    /// Context for the objective; the child sees nothing else of its parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(max_length = 4000))]
    pub context: Option<String>,
    /// With `continue` the child's session, by its id; else the description of a new session. Adapter, folder and agent are
    /// the parent's if not given, the surface kind is `delegated_agent`.
    #[serde(default)]
    pub session: SessionTarget,
    /// The adapter; the session's if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// Whether the child may act; never more than its parent, and `ask` if not given.
    #[serde(default = "ask")]
    pub run_mode: Mode,
    /// Further options of the child's run: instructions, model, limits. A limit is at most what the parent has left.
    #[serde(default, deserialize_with = "crate::request::OptionsForm::deserialize")]
    pub options: RunOptions,
    /// The maximum depth of delegation, including the child; 3 if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 5))]
    pub max_depth: Option<u32>,
    /// The client; needed with a `requestId`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 512))]
    pub client_id: Option<String>,
    /// The client's own name for this request: the same name again gives the same delegation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 512))]
    pub request_id: Option<String>,
    /// Sent as the header `Idempotency-Key`: the same request under the same key gives the same delegation for 24 hours.
    #[serde(skip)]
    pub idempotency_key: Option<String>,
}

impl Delegate {
    /// Builds work for a new session that may only answer.
    pub fn new(mode: DelegationMode, objective: impl Into<String>) -> Self {
        Self {
            mode,
            objective: objective.into(),
            context: None,
            session: SessionTarget::default(),
            adapter: None,
            run_mode: Mode::Ask,
            options: RunOptions::default(),
            max_depth: None,
            client_id: None,
            request_id: None,
            idempotency_key: None,
        }
    }
}

fn ask() -> Mode {
    Mode::Ask
}

/// Delegated work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Delegated {
    /// The link between the two runs.
    pub delegation: Delegation,
    /// The child's run.
    pub run: Run,
    /// True if the same request was sent before: this is the delegation that it created.
    pub replayed: bool,
    /// The child's result; absent until the child has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<DelegationResult>,
}

/// The delegations of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Kin))]
#[serde(rename_all = "camelCase")]
pub struct RunDelegations {
    /// The delegation that created the run; absent if the run was not delegated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Delegation>,
    /// The delegations that the run made, the oldest first.
    pub children: Vec<Delegation>,
}

/// A delegation with its result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Settled))]
#[serde(rename_all = "camelCase")]
pub struct DelegationView {
    /// The delegation.
    #[serde(flatten)]
    pub delegation: Delegation,
    /// The child's result; absent until the child has ended, and once the child is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<DelegationResult>,
}
