//! `mainspring network`

use std::path::PathBuf;

use clap::Subcommand;

use super::Context;
use super::connection::{Connection, Purpose};
use super::error::{CliError, Exit};
use super::file::file_error;
use super::ids::suggest_agent;
use crate::drawing;

/// Draw networks of agents
#[derive(Subcommand)]
pub(super) enum NetworkCommand {
    /// Draw a network: its members and its router
    Show {
        /// Agent definition of the network: ID@VERSION, or ID for the latest version
        network: String,
        /// Write the drawing as an SVG image to this file
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
}

impl NetworkCommand {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        let work = async |connection: &mut Connection<'_>| self.dispatch(context, connection).await;
        context.with_connection(Purpose::Records, work).await.map(|()| Exit::Done)
    }

    async fn dispatch(self, context: &Context<'_>, connection: &mut Connection<'_>) -> Result<(), CliError> {
        let Self::Show { network, svg } = self;
        let agent = match connection.request(async |client| client.agent_get(&network).await).await {
            Err(error) => return Err(suggest_agent(connection, &network, error).await),
            Ok(agent) => agent,
        };
        let Some(members) = &agent.definition.network else {
            let message = format!("{} is one agent, not a network", agent.definition.name());
            return Err(CliError::bad_request(message));
        };
        match svg {
            Some(file) => {
                let drawn = drawing::network_svg(&agent.definition, members);
                std::fs::write(&file, drawn).map_err(|error| file_error(&file, &error))
            }
            None if context.output.json => Ok(context.output.print_json(&agent)?),
            None => Ok(context.output.print(&drawing::network_text(&agent.definition, members))?),
        }
    }
}
