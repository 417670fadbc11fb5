//! Agents that speak the Agent Client Protocol over their standard input and output.
//!
//! One that can neither resume nor load gets a new native session with the text of the path whenever the process that
//! knew the old one is gone.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use agent_client_protocol::ErrorCode;
use mainspring_core::{AuthMethod, Failure, Mode, Run, Usage};
use mainspring_kernel::adapter::{AttemptHandle, End};
use mainspring_kernel::policy::{Permissions, Rule};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::driver::{Dialect, Ground, Lost, SetupError, Turn, Turned};
use crate::process::Launch;

mod client;
mod files;
mod login;
mod mcp;
mod prompt;
mod terminal;
mod turn;
mod wire;
mod worker;
use client::Offer;
use login::Login;
pub use mcp::McpServer;
use prompt::Piece;
use turn::Play;
use wire::CallError;
use worker::{Choice, House, Worker};

/// What is particular to an agent that speaks ACP.
#[derive(Debug, Clone, Default)]
pub struct AcpOptions {
    /// How it is to authenticate; not at all if none.
    pub auth_method: Option<String>,
    /// The agent's mode for runs that may act.
    pub act_mode: Option<String>,
    /// The agent's mode for runs that may only answer.
    pub ask_mode: Option<String>,
    /// The MCP servers that its sessions get, by name, or why one cannot be used.
    pub mcp: Vec<(String, Result<McpServer, String>)>,
}

/// The Agent Client Protocol, version 1.
pub(crate) struct Acp {
    options: AcpOptions,
    login: Login,
    offer: Offer,
    /// What native sessions have cost so far, as their agents say.
    costs: Mutex<HashMap<String, f64>>,
    house: Arc<House>,
}

impl Acp {
    /// For agents of the adapter `name` that are offered what `rules` let happen.
    pub(crate) fn new(name: &str, options: AcpOptions, rules: &[Rule]) -> Self {
        let login = Login::new(options.auth_method.clone());
        let house = Arc::new(House { adapter: name.to_owned(), served: Mutex::default() });
        Self { options, login, offer: Offer::of(rules), costs: Mutex::default(), house }
    }

    /// The MCP servers that the session of `attempt` gets.
    fn servers(&self, worker: &Worker, attempt: &AttemptHandle) -> Result<Vec<Value>, Failure> {
        mcp::told(&self.options.mcp, &worker.capabilities.mcp_capabilities, attempt)
    }
}

impl Dialect for Acp {
    type Worker = Worker;
    type Prompt = Vec<Piece>;

    const PINNED: bool = false;
    const STEERS: bool = false;
    const AUTHENTICATES: bool = true;

    fn arguments(&self, _permissions: Permissions) -> &'static [&'static str] {
        // What it may do is decided when it asks.
        &[]
    }

    async fn prompt(&self, attempt: &AttemptHandle) -> Result<Self::Prompt, Failure> {
        prompt::pieces(attempt, &attempt.assignment().prompt).await
    }

    async fn start(&self, launch: &Launch, ground: &Ground) -> Result<Worker, SetupError> {
        let worker = Worker::start(launch, self.offer, &self.house, ground).await?;
        self.login.greet(&worker).await?;
        Ok(worker)
    }

    fn auth_methods(&self) -> Vec<AuthMethod> {
        self.login.methods()
    }

    async fn authenticate(&self, launch: &Launch, ground: &Ground, method: &str) -> Result<(), Failure> {
        let started = Worker::start(launch, self.offer, &self.house, ground).await;
        self.login.try_out(started.map_err(|error| error.failure)?, method).await
    }

    async fn open(&self, worker: &Worker, cwd: &Path, attempt: &AttemptHandle) -> Result<String, SetupError> {
        let servers = self.servers(worker, attempt)?;
        worker.open(cwd, &servers).await
    }

    async fn resume(
        &self,
        worker: &Worker,
        native: &str,
        cwd: &Path,
        attempt: &AttemptHandle,
    ) -> Result<(), Lost> {
        let servers = self.servers(worker, attempt).map_err(Lost::Refused)?;
        worker.resume(native, cwd, &servers).await.map_err(|error| lost(worker, error))
    }

    async fn fork(
        &self,
        worker: &Worker,
        native: &str,
        cwd: &Path,
        attempt: &AttemptHandle,
    ) -> Result<String, Lost> {
        let servers = self.servers(worker, attempt).map_err(Lost::Refused)?;
        worker.fork(native, cwd, &servers).await.map_err(|error| lost(worker, error))
    }

    async fn close(&self, worker: &Worker, native: &str) {
        self.costs.lock().remove(native);
        self.house.served.lock().remove(native);
        worker.close(native).await;
    }

    async fn choose(
        &self,
        worker: &Worker,
        native: &str,
        run: &Run,
        model: Option<&str>,
    ) -> Result<(), Failure> {
        let mode = match run.mode {
            Mode::Act => self.options.act_mode.as_deref(),
            Mode::Ask => self.options.ask_mode.as_deref(),
        };
        let wanted = [(Choice::Model, model), (Choice::Mode, mode)];
        for (what, value) in wanted.into_iter().filter_map(|(what, value)| Some((what, value?))) {
            worker.choose(native, what, value).await?;
        }
        Ok(())
    }

    async fn play(&self, turn: Turn<'_, Worker>, prompt: Self::Prompt) -> Turned {
        let native = turn.native.to_owned();
        // Some say it as they take it up.
        let said = turn.worker.connection.cost(&native);
        let cost_before = match turn.opened {
            true => Some(0.0),
            false => said.or_else(|| self.costs.lock().get(&native).copied()),
        };
        let blocks = match prompt::blocks(prompt, &turn.worker.capabilities.prompt_capabilities) {
            Ok(blocks) => blocks,
            // The agent has heard nothing of it.
            Err(error) => {
                return Turned::Ended(End::Failed { error, retryable: false, usage: Usage::default() });
            }
        };
        let told = turn.preface.as_deref().map(prompt::text_block);
        let prompt = told.into_iter().chain(blocks).collect();
        let (turned, cost) = Play::new(turn, cost_before).play(prompt).await;
        match cost {
            Some(cost) => self.costs.lock().insert(native, cost),
            // What comes next is more than the next turn has cost.
            None => self.costs.lock().remove(&native),
        };
        turned
    }

    fn cancel(&self, worker: &Worker, native: &str) -> bool {
        worker.connection.notify("session/cancel", json!({"sessionId": native}))
    }
}

/// An error that is no failure of the connection means that the agent does not know the session any more.
fn lost(worker: &Worker, error: CallError) -> Lost {
    match error {
        CallError::Gone => Lost::Gone,
        CallError::Refused { code: ErrorCode::AUTH_REQUIRED, .. } => Lost::Refused(worker.failure(&error)),
        error => Lost::Unknown(error.to_string()),
    }
}
