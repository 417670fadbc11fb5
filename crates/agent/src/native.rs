//! The native adapter: runs an agent on any model.
//!
//! ```text
//!            ┌──────── results ────────┐
//!            ▼                         │
//! limits ─▶ step ──calls──▶ decide ─▶ tools
//!   ▲        │                │
//!   │        └─said─▶ form, on_turn ──▶ end
//!   └── continue ────────┘    └─ pause ─▶ a person
//! ```
//!
//! The path is the state: whoever executes next looks at its head and goes on from there. What is decided and not yet
//! on the path waits in [`resume::Resume`], with the question it waits for.

use std::sync::Arc;

use async_trait::async_trait;
use mainspring_core::{AttemptId, Failure, Fidelity, RunLimits};
use mainspring_kernel::adapter::{
    Adapter, AttemptHandle, Capabilities, Death, Dispatch, End, Executed, HandleError, RestartBehavior,
};

use crate::definition::Definitions;
use crate::hooks::{Hooks, NoHooks, Occasion};
use crate::models::Models;
use crate::provider::ModelError;
use crate::tool::Toolbox;
use crate::tool::mcp::McpServers;

mod aside;
mod context;
mod estimate;
mod files;
mod plan;
mod prompt;
mod resume;
mod round;
mod step;
mod summary;
mod title;
mod turn;
pub use plan::Plan;

/// The adapter's name.
pub const NAME: &str = "native";

/// How the loop behaves where nothing else says so.
#[derive(Debug, Clone)]
pub struct NativeOptions {
    /// How often a model is asked again that did not answer.
    pub tries: u32,
    /// Milliseconds before it is asked again; each further time waits twice as long.
    pub retry_base: u64,
    /// Milliseconds that no such wait exceeds, unless the provider asks for it.
    pub retry_max: u64,
    /// Bytes of a tool's answer that the model is shown.
    pub result_bytes: usize,
    /// How much a run may use.
    pub limits: RunLimits,
}

impl Default for NativeOptions {
    fn default() -> Self {
        Self {
            tries: 3,
            retry_base: 1_000,
            retry_max: 60_000,
            result_bytes: 64 << 10,
            limits: RunLimits { max_steps: Some(100), ..RunLimits::default() },
        }
    }
}

impl NativeOptions {
    /// Milliseconds to wait before a model is asked again that did not answer for the `tries`th time.
    fn wait(&self, tries: u32, error: &ModelError) -> u64 {
        let doubled =
            self.retry_base.saturating_mul(1 << tries.saturating_sub(1).min(32)).min(self.retry_max);
        error.retry_after.unwrap_or(0).max(doubled)
    }
}

/// Runs an agent on any model.
#[derive(Clone)]
pub struct NativeAdapter {
    models: Arc<Models>,
    tools: Arc<Toolbox>,
    mcp: McpServers,
    definitions: Arc<Definitions>,
    hooks: Arc<dyn Hooks>,
    options: NativeOptions,
}

impl NativeAdapter {
    /// An adapter for `models`, with `tools`, for the agents of `definitions`.
    pub fn new(models: Models, tools: Toolbox, definitions: impl Into<Arc<Definitions>>) -> Self {
        Self {
            models: Arc::new(models),
            tools: Arc::new(tools),
            mcp: McpServers::default(),
            definitions: definitions.into(),
            hooks: Arc::new(NoHooks),
            options: NativeOptions::default(),
        }
    }

    /// With the tools of these MCP servers.
    #[must_use]
    pub fn with_mcp(mut self, servers: McpServers) -> Self {
        self.mcp = servers;
        self
    }

    /// The MCP servers there are.
    pub fn mcp(&self) -> &McpServers {
        &self.mcp
    }

    /// With these hooks.
    #[must_use]
    pub fn with_hooks(mut self, hooks: impl Hooks) -> Self {
        self.hooks = Arc::new(hooks);
        self
    }

    /// With these options.
    #[must_use]
    pub fn with_options(mut self, options: NativeOptions) -> Self {
        self.options = options;
        self
    }

    /// The agents there are.
    pub fn definitions(&self) -> &Definitions {
        &self.definitions
    }
}

/// Why an execution returns before its end.
#[derive(Debug)]
enum Stop {
    /// It returns this.
    With(Box<Executed>),
    /// A call of its handle was not applied.
    Handle(HandleError),
}

impl From<HandleError> for Stop {
    fn from(error: HandleError) -> Self {
        Self::Handle(error)
    }
}

impl From<Executed> for Stop {
    fn from(executed: Executed) -> Self {
        Self::With(Box::new(executed))
    }
}

impl Stop {
    fn failed(code: &str, message: impl Into<String>) -> Self {
        End::failed(Failure::new(code, message), false).into()
    }
}

#[async_trait]
impl Adapter for NativeAdapter {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            adapter: NAME.into(),
            resume_fidelity: Fidelity::Reconstructed,
            supports_native_resume: false,
            supports_cancellation: true,
            acknowledges_cancellation: false,
            requires_pinned_worker: false,
            supports_model_switching: true,
            supports_artifact_emission: true,
            supports_tools: true,
            supports_client_tools: true,
            supports_steering: true,
            restart_behavior: RestartBehavior::ResumesFromMessages,
            uses_bindings: false,
            supports_authentication: false,
            keeps_limits: true,
        }
    }

    async fn execute(&self, attempt: AttemptHandle) -> Executed {
        let about = attempt.assignment();
        let occasion = Occasion { session: about.session.id, run: about.run.id };
        let executed = match turn::Looper::run(self, attempt).await {
            Ok(executed) => executed,
            Err(Stop::With(executed)) => *executed,
            // Without authority nobody listens; what is returned is not applied.
            Err(Stop::Handle(HandleError::Revoked)) => End::stopped(),
            Err(Stop::Handle(HandleError::Kernel(error))) => {
                End::failed(Failure::new(error.code(), error.to_string()), error.is_retryable())
            }
        };
        if let Executed::Ended(end) = &executed {
            self.hooks.on_end(occasion, end).await;
        }
        executed
    }

    async fn cancel(&self, _attempt: AttemptId) -> Dispatch {
        // The loop listens to its handle.
        Dispatch { dispatched: true, acknowledged: false }
    }

    async fn kill(&self, _attempt: AttemptId) -> Death {
        // Model calls and tools live inside the execution, and it was dropped.
        Death::Proven
    }

    fn forget(&self, _native: &str) {}
}
