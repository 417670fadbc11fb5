//! `mainspring mcp`

use clap::Args;
use mainspring_core::SessionId;
use mainspring_host::{Link, Successor, mcp, mcp_relay};
use mainspring_kernel::clock::Clock;
use mainspring_system::ids::Ids;

use super::Context;
use super::connection::{Connection, Purpose};
use super::error::{CliError, Exit};
use super::stdio::with_reconnect;

/// The variable with which an agent finds the endpoint of its process.
const PIPE_VARIABLE: &str = "OMI_BRIDGE_PIPE";

/// Serve the control tools over MCP on standard input and output
#[derive(Args)]
#[command(
    after_help = "Tools: list_agent_sessions, get_agent_run, cancel_agent_run, inspect_agent_artifacts, \
send_agent_message, delegate_agent. They act for one owner (--owner). To give an agent this server, set \
control_tools = true in `[adapters.NAME]`; mainspring then passes --session: the agent cannot send messages to its own \
session, and the command exits with its server."
)]
pub(super) struct Mcp {
    /// Session of the agent that uses this server
    #[arg(long, value_name = "ID")]
    session: Option<SessionId>,
}

impl Mcp {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        // mainspring sets this variable for agents. The MCP server of an agent is a relay: it reads no state directory
        // and has no access of its own.
        if let Some(socket) = std::env::var_os(PIPE_VARIABLE) {
            let (stdin, stdout) = (tokio::io::stdin(), tokio::io::stdout());
            let served = mcp_relay::serve(socket.into(), self.session, stdin, stdout).await;
            served.map_err(CliError::bad_request)?;
            return Ok(Exit::Done);
        }
        // An agent's MCP server must not take the state directory: the process that runs the agent owns it.
        let mut connection = match self.session {
            Some(_) => Connection::open_as_guest(context).await?,
            None => context.connect(Purpose::Execute).await?,
        };
        let successor = match self.session {
            Some(_) => Successor::None,
            None => connection.successor(),
        };
        let (link, mut keeper) = Link::new(connection.client().clone(), successor);
        // With an API key, the key determines the owner.
        let owner = match context.config().url {
            Some(_) => None,
            None => Some(context.config().owner.clone()),
        };
        let options = mcp::Options { owner, session: self.session };
        let served = mcp::serve(link, options, Ids::system(), tokio::io::stdin(), tokio::io::stdout());
        let served = Box::pin(served);
        let served = with_reconnect(&mut connection, &mut keeper, &Clock::system(), served).await;
        connection.close_within(context.config().drain_ms).await;
        served?.map_err(CliError::bad_request)?;
        Ok(Exit::Done)
    }
}
