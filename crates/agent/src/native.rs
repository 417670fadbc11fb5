//! The native adapter: runs an agent on any model.
//!
//! ```text
//!            ┌──────── results ────────┐
//!            ▼                         │
//! limits ─▶ step ──calls──▶ decide ─▶ tools
//!   ▲        │                └─ pause ─▶ wait
//!   │        └─answer─▶ schema, on_turn ──▶ end
//!   └────── continue ───────────┘
//! ```
//!
//! The path is the state: an execution continues from the end of the path. Decisions that are not on the path yet are
//! stored in [`resume::Resume`], together with the question that the run waits for.

use std::sync::Arc;

use async_trait::async_trait;
use mainspring_core::goal::DEFAULT_REMINDERS;
use mainspring_core::{AttemptId, Failure, FailureCode, Fidelity, RunLimits, RunOption, UsageReports};
use mainspring_kernel::adapter::{
    Adapter, AttemptHandle, Capabilities, Death, Dispatch, End, Executed, HandleError, RestartBehavior,
};
use mainspring_kernel::policy::{Rule, own_tools_rules};

use crate::definition::Definitions;
use crate::hooks::{HookContext, Hooks, NoHooks};
use crate::models::Models;
use crate::network::Routers;
use crate::provider::ModelError;
use crate::tool::Toolbox;
use crate::tool::mcp::McpServers;

mod choice;
mod context;
mod describe;
mod estimate;
mod execution;
mod files;
mod goals;
mod network;
mod one_shot;
mod plan;
mod prompt;
mod resume;
mod round;
mod step;
mod step_limit;
mod summary;
mod title;
pub use plan::Plan;

/// The adapter's name.
pub const NAME: &str = "native";

/// Defaults of the agent loop.
#[derive(Debug, Clone)]
pub struct NativeOptions {
    /// How often a model is called for one step before the attempt fails.
    pub max_tries: u32,
    /// Milliseconds before the first retry; doubled for each further one.
    pub retry_base_ms: u64,
    /// The longest wait before a retry in milliseconds, unless the provider asks for more.
    pub retry_max_ms: u64,
    /// The maximum size of a tool result in a request.
    pub result_bytes: usize,
    /// How often a model is reminded of pending goals before its run fails.
    pub goal_reminders: u32,
    /// The limits of a run.
    pub limits: RunLimits,
    /// Rules of the server about calls of tools: `tool call NAME`. They come before the rules of agent definitions.
    pub rules: Vec<Rule>,
}

impl Default for NativeOptions {
    fn default() -> Self {
        Self {
            max_tries: 3,
            retry_base_ms: 1_000,
            retry_max_ms: 60_000,
            result_bytes: 64 << 10,
            goal_reminders: DEFAULT_REMINDERS,
            limits: RunLimits { max_steps: Some(100), ..RunLimits::default() },
            rules: vec![],
        }
    }
}

impl NativeOptions {
    /// Returns the milliseconds to wait after try number `tries` has failed.
    fn retry_delay_ms(&self, tries: u32, error: &ModelError) -> u64 {
        let backoff = self.retry_base_ms.saturating_mul(1 << tries.saturating_sub(1).min(32));
        error.retry_after_ms.unwrap_or(0).max(backoff.min(self.retry_max_ms))
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
    routers: Routers,
    options: NativeOptions,
}

impl NativeAdapter {
    /// Creates an adapter.
    pub fn new(models: Models, tools: Toolbox, definitions: impl Into<Arc<Definitions>>) -> Self {
        Self {
            models: Arc::new(models),
            tools: Arc::new(tools),
            mcp: McpServers::default(),
            definitions: definitions.into(),
            hooks: Arc::new(NoHooks),
            routers: Routers::default(),
            options: NativeOptions::default(),
        }
    }

    /// Adds the tools of MCP servers.
    #[must_use]
    pub fn with_mcp(mut self, servers: McpServers) -> Self {
        self.mcp = servers;
        self
    }

    /// Returns the MCP servers.
    pub fn mcp(&self) -> &McpServers {
        &self.mcp
    }

    /// Sets the hooks.
    #[must_use]
    pub fn with_hooks(mut self, hooks: Arc<dyn Hooks>) -> Self {
        self.hooks = hooks;
        self
    }

    /// Sets the routers that an embedder has written in Rust, which networks name as `router.code`.
    #[must_use]
    pub fn with_routers(mut self, routers: Routers) -> Self {
        self.routers = routers;
        self
    }

    /// Sets the options.
    #[must_use]
    pub fn with_options(mut self, options: NativeOptions) -> Self {
        self.options = options;
        self
    }

    /// Returns the agent definitions.
    pub fn definitions(&self) -> &Definitions {
        &self.definitions
    }
}

/// Why an execution returns early.
#[derive(Debug)]
enum Exit {
    /// The run ends or waits.
    Return(Box<Executed>),
    /// A call of the attempt handle failed.
    Handle(HandleError),
}

impl From<HandleError> for Exit {
    fn from(error: HandleError) -> Self {
        Self::Handle(error)
    }
}

impl From<Executed> for Exit {
    fn from(executed: Executed) -> Self {
        Self::Return(Box::new(executed))
    }
}

impl Exit {
    /// True if the run waits for an answer.
    fn is_waiting(&self) -> bool {
        matches!(self, Self::Return(executed) if matches!(**executed, Executed::Waiting(_)))
    }

    fn failed(code: impl Into<FailureCode>, message: impl Into<String>) -> Self {
        End::failed(Failure::new(code, message), false).into()
    }
}

#[async_trait]
impl Adapter for NativeAdapter {
    fn rules(&self) -> &[Rule] {
        &self.options.rules
    }

    fn otherwise(&self) -> Vec<Rule> {
        own_tools_rules()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            adapter: NAME.into(),
            resume_fidelity: Fidelity::Reconstructed,
            supports_native_resume: false,
            supports_cancellation: true,
            acknowledges_cancellation: false,
            requires_pinned_worker: false,
            in_process: true,
            supports_model_switching: true,
            supports_artifact_emission: true,
            supports_tools: true,
            supports_client_tools: true,
            supports_steering: true,
            restart_behavior: RestartBehavior::ResumesFromMessages,
            uses_bindings: false,
            supports_authentication: false,
            keeps_limits: true,
            limits_tools: true,
            usage_reports: UsageReports::Live,
            options: RunOption::ALL.to_vec(),
            sandbox: None,
            supervision: None,
            unavailable: None,
        }
    }

    async fn execute(&self, attempt: AttemptHandle) -> Executed {
        let hook_context = HookContext::new(&attempt, 0, None);
        let executed = match execution::Execution::run(self, attempt).await {
            Ok(executed) => executed,
            Err(Exit::Return(executed)) => *executed,
            // The attempt has lost its authority: the kernel ignores its result.
            Err(Exit::Handle(HandleError::Revoked)) => End::stopped(),
            Err(Exit::Handle(HandleError::Kernel(error))) => {
                End::failed(Failure::new(error.code(), error.to_string()), error.is_retryable())
            }
        };
        if let Executed::Ended(end) = &executed {
            self.hooks.on_end(hook_context, end).await;
        }
        executed
    }

    async fn cancel(&self, _attempt: AttemptId) -> Dispatch {
        // The loop watches its attempt handle.
        Dispatch { dispatched: true, acknowledged: false }
    }

    async fn kill(&self, _attempt: AttemptId) -> Death {
        // Model calls and tools are part of the execution's future, which has been dropped.
        Death::Proven
    }

    fn forget(&self, _native: &str) {}
}
