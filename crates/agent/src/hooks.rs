//! Hooks: an embedder's code inside the agent loop. All are optional; the defaults change nothing.

use async_trait::async_trait;
use mainspring_core::{Failure, WaitRequest};
use mainspring_kernel::adapter::End;
use serde::{Deserialize, Serialize};

pub use crate::native::Plan;
use crate::provider::{ModelError, ToolUse};

mod context;
pub use context::HookContext;
pub(crate) use context::PlanChanges;
pub use mainspring_kernel::adapter::SessionMemory;

/// Decisions of an embedder during a run.
#[async_trait]
pub trait Hooks: Send + Sync + 'static {
    /// Called before the first step of each execution; in a network, before each call of a member. May change
    /// the plan, refuse the run, or stop it without a model call ([`Plan::stop`]).
    async fn on_start(&self, _context: HookContext, _plan: &mut Plan) -> Result<(), Failure> {
        Ok(())
    }

    /// Called when the model calls a tool with valid arguments, and no rule denies the call or asks a person
    /// about it. Not called for the tool that asks a person. Decides about the call.
    async fn on_tool_use(&self, _context: HookContext, _call: &ToolUse) -> ToolDecision {
        ToolDecision::Execute
    }

    /// Called with the result of every tool call, also of one that did not run. Returns the result for the model.
    async fn on_tool_result(&self, _context: HookContext, _call: &ToolUse, result: ToolResult) -> ToolResult {
        result
    }

    /// Called when the model has answered without calling tools, unless pending goals or the output schema
    /// require another answer.
    async fn on_turn(&self, _context: HookContext, _text: &str) -> AfterTurn {
        AfterTurn::Stop
    }

    /// Called when the execution has succeeded, stopped or failed. Not called when the run waits or was killed.
    async fn on_end(&self, _context: HookContext, _end: &End) {}

    /// Called when a model call has failed. May change the plan for the retry. The number of retries is bounded in any
    /// case.
    async fn on_error(&self, _context: HookContext, _error: &ModelError, _plan: &mut Plan) -> AfterError {
        AfterError::Default
    }
}

/// Hooks that change nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHooks;

impl Hooks for NoHooks {}

/// The decision about a tool call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ToolDecision {
    /// The tool runs.
    Execute,
    /// The tool does not run, and the model gets the reason as an error.
    Reject {
        /// The reason.
        reason: String,
    },
    /// The tool does not run, and the model gets this result.
    Result {
        /// The result.
        result: ToolResult,
    },
    /// The run waits for a person.
    Pause {
        /// The question.
        question: String,
        /// The kind of answer: an approval runs the tool, an input becomes its result.
        request: WaitRequest,
    },
}

/// The result of a tool call for the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolResult {
    /// The text.
    pub text: String,
    /// True if the call failed.
    pub is_error: bool,
}

impl ToolResult {
    /// Creates the result of a failed call.
    pub fn error(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_error: true }
    }
}

/// The decision after an answer of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AfterTurn {
    /// The run ends.
    Stop,
    /// The model is called again with this prompt.
    Continue(String),
}

/// The decision after a failed model call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterError {
    /// Retries if the error is retryable.
    Default,
    /// Retries even if the error is not retryable.
    Retry,
    /// Does not retry.
    Stop,
}
