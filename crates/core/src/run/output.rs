//! The structured output of a run.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Failure;

/// The structured output of a run that has an output schema.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RunOutput {
    /// The output; null if the agent's answer does not fit the schema.
    pub value: Value,
    /// True if the answer fits the schema.
    pub fits: bool,
    /// Why the answer does not fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}

impl RunOutput {
    /// Builds the output of a checked answer. With an `error`, the answer does not fit the schema.
    pub fn new(value: Value, error: Option<Failure>) -> Self {
        Self { value, fits: error.is_none(), error }
    }
}
