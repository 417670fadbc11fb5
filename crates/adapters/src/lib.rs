//! Adapters that drive agent runtimes for the kernel: the built-in script agent, ACP agents, and pi.

use async_trait::async_trait;
use mainspring_core::{AttemptId, LeftProcess};
use mainspring_kernel::adapter::{Adapter, AttemptHandle, Capabilities, Death, Dispatch, Executed, Login};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::policy::Rule;

mod acp;
mod driver;
mod endpoint;
mod pi;
mod pool;
pub mod process;
pub mod sandbox;
pub mod script;

pub use acp::{AcpOptions, McpServer};
pub use driver::{AgentOptions, KeepLog};
pub use endpoint::{Endpoint, RelayOptions};
pub use script::ScriptAdapter;

/// An adapter whose agent runs in its own processes, started on demand.
pub struct ProcessAdapter(Box<dyn driver::ProcessDriver>);

impl ProcessAdapter {
    /// Creates an adapter for an agent that speaks the Agent Client Protocol.
    pub fn acp(options: AgentOptions, acp: AcpOptions, clock: Clock) -> Self {
        let offered: Vec<Rule> = options.rules.iter().chain(&acp.other_rules).cloned().collect();
        let dialect = acp::Acp::new(&options.name, acp, &offered);
        Self(Box::new(driver::Driver::new(dialect, options, clock)))
    }

    /// Creates an adapter for pi in its RPC mode.
    pub fn pi(options: AgentOptions, clock: Clock) -> Self {
        Self(Box::new(driver::Driver::new(pi::Pi, options, clock)))
    }

    /// The number of processes, and how many of them are idle.
    pub fn processes(&self) -> (usize, usize) {
        self.0.processes()
    }

    /// The number of agent messages that belonged to no current turn or could not be parsed.
    pub fn ignored(&self) -> u64 {
        self.0.ignored()
    }

    /// Stops every process and refuses to start others.
    pub async fn close(&self) {
        self.0.close().await;
    }
}

#[async_trait]
impl Adapter for ProcessAdapter {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn unavailable(&self) -> Option<String> {
        self.0.unavailable()
    }

    fn rules(&self) -> &[Rule] {
        self.0.rules()
    }

    fn otherwise(&self) -> Vec<Rule> {
        self.0.otherwise()
    }

    fn check_profile(&self, profile: &str) -> Result<(), String> {
        self.0.check_profile(profile)
    }

    fn check_native(&self, native: &str) -> Result<(), String> {
        self.0.check_native(native)
    }

    async fn execute(&self, attempt: AttemptHandle) -> Executed {
        self.0.execute(attempt).await
    }

    async fn cancel(&self, attempt: AttemptId) -> Dispatch {
        self.0.cancel(attempt).await
    }

    async fn kill(&self, attempt: AttemptId) -> Death {
        self.0.kill(attempt).await
    }

    fn login(&self) -> Option<&dyn Login> {
        self.0.login()
    }

    fn left_running(&self, attempt: AttemptId) -> Vec<LeftProcess> {
        self.0.left_running(attempt)
    }

    async fn end_left_running(&self, attempt: AttemptId) {
        self.0.end_left_running(attempt).await;
    }

    fn forget(&self, native: &str) {
        self.0.forget(native);
    }
}
