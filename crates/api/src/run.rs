//! Runs, and the prompts that make them.

use mainspring_core::{
    Answer, AttemptId, Block, Mode, Place, Policy, Position, Run, RunChange, RunId, RunLimits, RunOptions,
    RunStatus, WaitId,
};
use serde::{Deserialize, Serialize};

use crate::SessionTarget;

/// A prompt.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Prompt {
    /// The content; absent only if an earlier message is to be answered again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<PromptContent>,
    /// The session; a new one if this names none.
    #[serde(default)]
    pub session: SessionTarget,
    /// The adapter; the session's if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// Whether the agent may act.
    #[serde(default)]
    pub mode: Mode,
    /// Instructions, model, limits and everything else that the run needs.
    #[serde(default, deserialize_with = "crate::request::OptionsForm::deserialize")]
    pub options: RunOptions,
    /// True to ignore options that the adapter does not use; otherwise they are refused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ignore_unused_options: bool,
    /// Where in the session's tree the prompt goes.
    #[serde(default, deserialize_with = "crate::request::PlaceForm::deserialize")]
    pub place: Place,
    /// The effect of the prompt on a busy session.
    #[serde(default)]
    pub policy: Policy,
    /// The client; needed with a `requestId`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 512))]
    pub client_id: Option<String>,
    /// The client's own name for this request: the same name again gives the same run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 512))]
    pub request_id: Option<String>,
    /// Sent as the header `Idempotency-Key`: the same request under the same key gives the same run for 24 hours.
    #[serde(skip)]
    pub idempotency_key: Option<String>,
}

impl Prompt {
    /// Builds a prompt of plain text for the session of this key.
    pub fn text(key: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            session: SessionTarget::key(key),
            prompt: Some(PromptContent::Text(text.into())),
            ..Self::default()
        }
    }
}

/// The content of a prompt: a text, or blocks of text and attachments.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Said))]
#[serde(untagged)]
pub enum PromptContent {
    /// A plain text.
    Text(String),
    /// Blocks of text and attachments.
    Blocks(Vec<Block>),
}

impl PromptContent {
    /// Wraps blocks; `None` if there are none.
    pub fn from_blocks(blocks: Vec<Block>) -> Option<Self> {
        (!blocks.is_empty()).then_some(Self::Blocks(blocks))
    }

    /// Converts the content to blocks.
    pub fn into_blocks(self) -> Vec<Block> {
        match self {
            Self::Text(text) => vec![Block::text(text)],
            Self::Blocks(blocks) => blocks,
        }
    }
}

/// The changes that a retry makes to its run. Absent fields stay as they are.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct RetryOptions {
    /// The adapter. Another adapter uses its own default model unless a model is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// The model, by its provider's name. Replaces the run's model and model profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The model profile. Replaces the run's model and model profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_profile: Option<String>,
    /// The limits that change; the others stay. Tokens, cost and model calls of earlier attempts count; the time limit
    /// counts from the retry. A delegated run gets at most the rest of its parent's limits.
    #[serde(
        skip_serializing_if = "RunLimits::is_empty",
        deserialize_with = "crate::request::LimitsForm::deserialize"
    )]
    pub limits: RunLimits,
}

impl From<RetryOptions> for RunChange {
    fn from(options: RetryOptions) -> Self {
        let RetryOptions { adapter, model, model_profile, limits } = options;
        Self { adapter, model, model_profile, limits }
    }
}

/// An accepted run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct AcceptedRun {
    /// The run.
    #[serde(flatten)]
    pub run: Run,
    /// The policy that took effect.
    pub policy: Policy,
    /// A subscription from this position sees all of the run.
    pub position: Position,
    /// True if the same request was sent before: this is the run that it created.
    pub replayed: bool,
}

/// Selects runs to list.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunListQuery {
    /// Only runs of this session, by id or key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(pattern = "^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}$"))]
    pub session: Option<String>,
    /// Only runs with this status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<RunStatus>,
    /// The number of runs; 50 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// The `next` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(pattern = r"^[0-9]{1,18}\.run_[0-9a-f]{32}$"))]
    pub before: Option<String>,
}

/// The outcome of a cancel request so far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct CancelOutcome {
    /// True if the request to stop is recorded.
    pub accepted: bool,
    /// The run.
    pub run_id: RunId,
    /// The latest attempt of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_id: Option<AttemptId>,
    /// True if the adapter was asked to stop.
    pub dispatch_attempted: bool,
    /// True if the adapter has confirmed the request.
    pub adapter_acknowledged: bool,
    /// The run's status now.
    pub status: RunStatus,
}

/// An answer to a wait of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WaitAnswer {
    /// The wait that is answered.
    pub wait_id: WaitId,
    /// The answer.
    #[serde(deserialize_with = "crate::request::AnswerForm::deserialize")]
    pub answer: Answer,
}
