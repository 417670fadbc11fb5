//! Agents that speak the Agent Client Protocol over their standard input and output.
//!
//! An agent that can neither resume nor load a session gets a new native session with a transcript of the path whenever the
//! process of the earlier native session has ended.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use mainspring_core::{AuthMethod, Failure, Mode, Run, Usage, UsageReports};
use mainspring_kernel::adapter::{self, AttemptHandle, End};
use mainspring_kernel::policy::{Permissions, Rule};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::driver::{
    AgentWorker as _, Cause, Dialect, Driver, LoginDialect, ModelError, ProcessContext, ResumeError,
    SetupError, TurnContext, TurnOutcome,
};
use crate::process::Launch;

mod client;
mod files;
mod login;
mod mcp;
mod permission;
mod prompt;
mod settings;
mod terminal;
mod tool_call;
mod turn;
mod wire;
mod worker;
use client::ClientFeatures;
use login::AcpLogin;
pub use mcp::McpServer;
use prompt::PromptPart;
use settings::Setting;
use turn::AcpTurn;
use wire::CallError;
use worker::{AcpWorker, AgentRegistry};

/// Options of an agent that speaks ACP.
#[derive(Debug, Clone, Default)]
pub struct AcpOptions {
    /// The authentication method to use. `None` means no authentication.
    pub auth_method: Option<String>,
    /// The agent's mode for runs that may act.
    pub act_mode: Option<String>,
    /// The agent's mode for runs that may only answer.
    pub ask_mode: Option<String>,
    /// The MCP servers of the agent's sessions by name; for a server that cannot be used, the reason.
    pub mcp: Vec<(String, Result<McpServer, String>)>,
    /// The rules of the server and of owners: agents are offered the client features that these or the adapter's own rules
    /// can allow.
    pub other_rules: Vec<Rule>,
}

/// The Agent Client Protocol, version 1.
pub(crate) struct Acp {
    options: AcpOptions,
    login: AcpLogin,
    features: ClientFeatures,
    /// The cost of native sessions so far, as their agents report it.
    costs: Mutex<HashMap<String, f64>>,
    registry: Arc<AgentRegistry>,
}

impl Acp {
    /// Creates the dialect of the adapter `name`. Agents are offered the client features that `rules` can allow.
    pub(crate) fn new(name: &str, options: AcpOptions, rules: &[Rule]) -> Self {
        let login = AcpLogin::new(options.auth_method.clone());
        let registry = Arc::new(AgentRegistry { adapter: name.to_owned(), last_process: Mutex::default() });
        Self { options, login, features: ClientFeatures::of(rules), costs: Mutex::default(), registry }
    }

    /// The MCP servers for the session of `attempt`.
    fn servers(&self, worker: &AcpWorker, attempt: &AttemptHandle) -> Result<Vec<Value>, Failure> {
        let endpoint = worker.process().endpoint();
        mcp::server_params(&self.options.mcp, &worker.capabilities.mcp_capabilities, endpoint, attempt)
    }
}

impl LoginDialect for Acp {
    fn auth_methods(&self) -> Vec<AuthMethod> {
        self.login.methods()
    }

    async fn authenticate(
        &self,
        launch: &Launch,
        context: &ProcessContext,
        method: &str,
    ) -> Result<(), Failure> {
        let started = AcpWorker::start(launch, self.features, &self.registry, context).await;
        self.login.try_method(started.map_err(|error| error.failure)?, method).await
    }
}

impl Dialect for Acp {
    type Worker = AcpWorker;
    type Prompt = Vec<PromptPart>;

    const PINS_PROCESS: bool = false;
    const CAN_STEER: bool = false;
    const USAGE_REPORTS: UsageReports = UsageReports::AtEnd;
    const KEEPS_CANCELLED_PROMPT: bool = false;

    fn login(driver: &Driver<Self>) -> Option<&dyn adapter::Login> {
        Some(driver)
    }

    fn arguments(&self, _permissions: Permissions) -> &'static [&'static str] {
        // Permissions are decided when the agent asks.
        &[]
    }

    async fn prompt(&self, attempt: &AttemptHandle) -> Result<Self::Prompt, Failure> {
        prompt::read_parts(attempt, &attempt.assignment().prompt).await
    }

    async fn start(&self, launch: &Launch, context: &ProcessContext) -> Result<AcpWorker, SetupError> {
        let worker = AcpWorker::start(launch, self.features, &self.registry, context).await?;
        self.login.authenticate_started(&worker).await?;
        Ok(worker)
    }

    async fn open(
        &self,
        worker: &AcpWorker,
        cwd: &Path,
        attempt: &AttemptHandle,
    ) -> Result<String, SetupError> {
        let servers = self.servers(worker, attempt)?;
        worker.open(cwd, &servers).await
    }

    async fn resume(
        &self,
        worker: &AcpWorker,
        native: &str,
        cwd: &Path,
        attempt: &AttemptHandle,
    ) -> Result<(), ResumeError> {
        let servers = self.servers(worker, attempt).map_err(ResumeError::Refused)?;
        worker.resume(native, cwd, &servers).await.map_err(|error| resume_error(worker, &error))
    }

    async fn fork(
        &self,
        worker: &AcpWorker,
        native: &str,
        cwd: &Path,
        attempt: &AttemptHandle,
    ) -> Result<String, ResumeError> {
        let servers = self.servers(worker, attempt).map_err(ResumeError::Refused)?;
        worker.fork(native, cwd, &servers).await.map_err(|error| resume_error(worker, &error))
    }

    async fn close(&self, worker: &AcpWorker, native: &str) {
        self.costs.lock().remove(native);
        self.registry.last_process.lock().remove(native);
        worker.close(native).await;
    }

    async fn configure(
        &self,
        worker: &AcpWorker,
        native: &str,
        run: &Run,
        model: Option<&str>,
    ) -> Result<Option<String>, Failure> {
        let mode = match run.mode {
            Mode::Act => self.options.act_mode.as_deref(),
            Mode::Ask => self.options.ask_mode.as_deref(),
        };
        let wanted = [(Setting::Model, model), (Setting::Mode, mode)];
        for (setting, value) in wanted.into_iter().filter_map(|(setting, value)| Some((setting, value?))) {
            worker.configure(native, setting, value).await?;
        }
        Ok(worker.current_model(native))
    }

    async fn run_turn(&self, turn: TurnContext<'_, AcpWorker>, prompt: Self::Prompt) -> TurnOutcome {
        let native = turn.native.to_owned();
        // Some agents report the cost so far when they resume a session.
        let reported = turn.worker.connection.take_cost(&native);
        let cost_before = match turn.is_new_session {
            true => Some(0.0),
            false => reported.or_else(|| self.costs.lock().get(&native).copied()),
        };
        let blocks = match prompt::to_blocks(prompt, &turn.worker.capabilities.prompt_capabilities) {
            Ok(blocks) => blocks,
            // Nothing was sent to the agent.
            Err(error) => {
                return TurnOutcome::Ended(End::Failed { error, retryable: false, usage: Usage::default() });
            }
        };
        let preface = turn.preface.as_deref().map(prompt::text_block);
        let prompt = preface.into_iter().chain(blocks).collect();
        let (outcome, cost) = AcpTurn::new(turn, cost_before).run(prompt).await;
        match cost {
            Some(cost) => self.costs.lock().insert(native, cost),
            // Without a report now, the next report covers several turns, and its cost cannot be assigned to one of
            // them.
            None => self.costs.lock().remove(&native),
        };
        outcome
    }

    fn cancel(&self, worker: &AcpWorker, native: &str) -> bool {
        worker.connection.notify("session/cancel", json!({"sessionId": native}))
    }
}

/// Classifies an error of a resume or fork request. Every refusal but a missing login means that the agent no longer
/// knows the session.
fn resume_error(worker: &AcpWorker, error: &CallError) -> ResumeError {
    match error.cause() {
        Cause::Disconnected => ResumeError::Disconnected,
        Cause::Reported(ModelError::Unauthenticated) => ResumeError::Refused(worker.failure(error)),
        _ => ResumeError::Unknown(error.to_string()),
    }
}
