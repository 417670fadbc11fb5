//! `mainspring mcp`

use clap::Args;
use mainspring_core::SessionId;
use mainspring_host::Link;
use mainspring_host::mcp;
use mainspring_system::ids::Ids;

use super::Context;
use super::fail::{Exit, Fail};
use super::home::{Home, Purpose};
use super::stdio::at;

/// Serve the control tools over MCP, on standard input and output: for agents, and for any MCP client
#[derive(Args)]
#[command(
    after_help = "Tools: list_agent_sessions, get_agent_run, cancel_agent_run, inspect_agent_artifacts, \
send_agent_message. They act for one owner (--owner). Agents of `[adapters.NAME]` are given this server by \
mcp = [\"mainspring\"]."
)]
pub(super) struct Mcp {
    /// The session whose agent this is for: it cannot send messages to itself, and ends with its server
    #[arg(long, value_name = "ID")]
    session: Option<SessionId>,
}

impl Mcp {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, Fail> {
        // An agent's MCP server must not take over the state directory that its agent runs in.
        let mut home = match self.session {
            Some(_) => Home::visit(context).await?,
            None => context.home(Purpose::Execute).await?,
        };
        let renews = home.is_guest() && self.session.is_none();
        let (link, mut keeper) = Link::new(home.client().clone(), renews);
        // With an API key, the key determines the owner.
        let owner = match context.config().url {
            Some(_) => String::new(),
            None => context.config().owner.clone(),
        };
        let options = mcp::Options { owner, session: self.session };
        let served = mcp::serve(link, options, Ids::system(), tokio::io::stdin(), tokio::io::stdout());
        let served = Box::pin(served);
        let served = at(&mut home, &mut keeper, served).await;
        home.leave_within(context.config().drain_ms).await;
        served?.map_err(Fail::bad_request)?;
        Ok(Exit::Done)
    }
}
