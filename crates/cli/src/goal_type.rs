//! `mainspring goal-type`

use std::path::PathBuf;

use clap::Subcommand;
use mainspring_client::{AgentScope, GoalTypeRecord};
use mainspring_core::GoalType as Type;

use super::Context;
use super::connection::{Connection, Purpose};
use super::error::{CliError, Exit};
use super::file;
use super::output::excerpt;

/// List, show and set goal types: the outcomes that runs may declare
#[derive(Subcommand)]
pub(super) enum GoalType {
    /// List goal types by name: yours and the shared ones
    List,
    /// Print a goal type as JSON
    Get {
        /// Name of the goal type
        name: String,
    },
    /// Create a goal type, or replace yours of its name
    Put {
        /// File with the goal type as JSON: name, description, schema, dataSchema; - for standard input
        file: PathBuf,
    },
}

impl GoalType {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        let work = async |connection: &mut Connection<'_>| self.dispatch(context, connection).await;
        context.with_connection(Purpose::Records, work).await
    }

    async fn dispatch(
        self,
        context: &Context<'_>,
        connection: &mut Connection<'_>,
    ) -> Result<Exit, CliError> {
        let output = context.output;
        match self {
            Self::List => list(context, connection).await?,
            Self::Get { name } => {
                let found = connection.request(async |client| client.goal_type_get(&name).await).await?;
                output.print_json(&found)?;
            }
            Self::Put { file } => {
                let goal_type = read(&file::read_file(&file)?)?;
                let made =
                    connection.request(async |client| client.goal_type_create(&goal_type).await).await?;
                match output.json {
                    true => output.print_json(&made)?,
                    false => output.print_line(format_args!("stored {}", made.goal_type.name))?,
                }
            }
        }
        Ok(Exit::Done)
    }
}

/// Reads a goal type. Its rules are checked by the server.
fn read(json: &[u8]) -> Result<Type, CliError> {
    serde_json::from_slice(json).map_err(|error| CliError::bad_request(format!("not a goal type: {error}")))
}

async fn list(context: &Context<'_>, connection: &mut Connection<'_>) -> Result<(), CliError> {
    let output = context.output;
    let types = connection.request(async |client| client.goal_type_list().await).await?.items;
    if output.json {
        types.iter().try_for_each(|record| output.print_json(record))?;
        return Ok(());
    }
    let row = |record: &GoalTypeRecord| {
        let scope = match record.scope {
            AgentScope::Owner => "owner",
            AgentScope::Shared => "shared",
        };
        let GoalTypeRecord { goal_type, .. } = record;
        vec![goal_type.name.clone(), scope.to_owned(), excerpt(&goal_type.description, 60)]
    };
    output.print_table(&["goal type", "scope", "description"], types.iter().map(row).collect())?;
    Ok(())
}
