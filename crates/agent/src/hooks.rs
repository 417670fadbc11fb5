//! Hooks: where an embedder takes part in the loop. All are optional; the defaults change nothing.

use async_trait::async_trait;
use mainspring_core::{Failure, RunId, SessionId, WaitRequest};
use mainspring_kernel::adapter::End;
use serde::{Deserialize, Serialize};

use crate::native::Plan;
use crate::provider::{Call, ModelError};

/// Which run a hook is called for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Occasion {
    pub session: SessionId,
    pub run: RunId,
}

/// What an embedder may decide while a run goes on.
#[async_trait]
pub trait Hooks: Send + Sync + 'static {
    /// Before the first step of each execution: may change what the run follows, or refuse it.
    async fn on_start(&self, _of: Occasion, _plan: &mut Plan) -> Result<(), Failure> {
        Ok(())
    }

    /// A model calls a tool that it may call, with arguments that fit.
    async fn on_tool_use(&self, _of: Occasion, _call: &Call) -> Decision {
        Decision::Execute
    }

    /// A tool was called, refused or answered for: the model is told what this returns.
    async fn on_tool_result(&self, _of: Occasion, _call: &Call, result: ToolResult) -> ToolResult {
        result
    }

    /// The model has answered without calling tools.
    async fn on_turn(&self, _of: Occasion, _text: &str) -> Next {
        Next::Stop
    }

    /// The execution is over: it did its work, was stopped or went wrong. Not called when it only waits, nor when it was
    /// killed.
    async fn on_end(&self, _of: Occasion, _end: &End) {}

    /// The model did not answer. What is retryable is tried again in any case, a bounded number of times; the plan may
    /// be changed for that.
    async fn on_error(&self, _of: Occasion, _error: &ModelError, _plan: &mut Plan) -> OnError {
        OnError::Default
    }
}

/// Nothing is decided.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHooks;

impl Hooks for NoHooks {}

/// What becomes of a tool call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Decision {
    /// It runs.
    Execute,
    /// It does not, and the model is told why.
    Reject {
        /// Why.
        reason: String,
    },
    /// It does not, and this is its answer.
    Result {
        /// What the model is told.
        result: ToolResult,
    },
    /// A person decides.
    Pause {
        /// What is asked.
        question: String,
        /// What kind of answer it takes: yes runs the tool, an input is its answer.
        request: WaitRequest,
    },
}

/// What a model is told of a tool call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolResult {
    /// The answer.
    pub text: String,
    /// True when it went wrong.
    pub is_error: bool,
}

impl ToolResult {
    /// It went wrong.
    pub fn error(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_error: true }
    }
}

/// What comes after an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// The run ends.
    Stop,
    /// The model is told this, and goes on.
    Continue(String),
}

/// What comes after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// What is retryable is tried again.
    Default,
    /// It is tried again, whatever it is.
    Retry,
    /// It is not tried again.
    Stop,
}
