//! `mainspring agent`

use std::path::{Path, PathBuf};

use clap::Subcommand;
use mainspring_agent::definition::{self, Definition, Definitions};
use mainspring_client::{Agent, AgentListQuery, AgentScope};
use mainspring_core::AgentDefinition;
use serde_json::json;

use super::Context;
use super::connection::{Connection, Purpose};
use super::error::{CliError, Exit};
use super::file::file_error;
use super::ids::suggest_agent;
use super::output::{DIM, GREEN, RED, excerpt};

/// List, show, check, create and delete agent definitions
#[derive(Subcommand)]
pub(super) enum AgentCommand {
    /// List agent definitions: your own and the shared ones
    List {
        /// Maximum number of agents to list
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
    },
    /// Show an agent definition as TOML
    Show {
        /// Agent: ID@VERSION, or ID for the latest version
        agent: String,
    },
    /// Check definition files without creating agents
    Check {
        /// Files to check [default: those in the agents directory]
        files: Vec<PathBuf>,
    },
    /// Create agent definitions from files, for you only; a version never changes
    Create {
        /// Definition files
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Delete a version of an agent that you created; asks first on a terminal
    Delete {
        /// Agent: ID@VERSION
        agent: String,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
}

impl AgentCommand {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        if let Self::Check { files } = &self {
            return check_files(context, files);
        }
        let work = async |connection: &mut Connection<'_>| self.dispatch(context, connection).await;
        context.with_connection(Purpose::Records, work).await.map(|()| Exit::Done)
    }

    async fn dispatch(self, context: &Context<'_>, connection: &mut Connection<'_>) -> Result<(), CliError> {
        let output = context.output;
        match self {
            Self::List { limit } => {
                let query = AgentListQuery { limit: Some(limit), after: None };
                let page = connection.request(async |client| client.agent_list(&query).await).await?;
                if output.json {
                    return Ok(page.items.iter().try_for_each(|agent| output.print_json(agent))?);
                }
                let count = page.items.len();
                output.print_table(
                    &["agent", "scope", "model", "description"],
                    page.items.iter().map(row).collect(),
                )?;
                Ok(output.print_limit_note(count, limit)?)
            }
            Self::Show { agent } => {
                let agent = get(connection, &agent).await?;
                match definition::to_toml(&agent.definition) {
                    Some(file) if !output.json => Ok(output.print(&file)?),
                    // Values that TOML cannot express are printed as JSON.
                    _ => Ok(output.print_json(&agent)?),
                }
            }
            Self::Create { files } => create(context, connection, &files).await,
            Self::Delete { agent, yes } => {
                get(connection, &agent).await?;
                if !yes {
                    let question =
                        format!("Delete the agent {agent}? Sessions that follow it cannot run without it.");
                    connection.confirm(&question).await?;
                }
                connection.request(async |client| client.agent_delete(&agent).await).await?;
                match output.json {
                    true => Ok(output.print_json(&json!({"agent": agent, "deleted": true}))?),
                    false => Ok(output.print_line(format_args!("deleted {agent}"))?),
                }
            }
            // `Check` only reads files: `execute` handles it before it connects.
            Self::Check { .. } => Ok(()),
        }
    }
}

/// Gets an agent definition. The error for an unknown one names a similar one.
async fn get(connection: &mut Connection<'_>, name: &str) -> Result<Agent, CliError> {
    match connection.request(async |client| client.agent_get(name).await).await {
        Err(error) => Err(suggest_agent(connection, name, error).await),
        found => found,
    }
}

async fn create(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    files: &[PathBuf],
) -> Result<(), CliError> {
    let read = |file: &PathBuf| read_definition(file).map_err(|problem| invalid_file(file, &problem));
    // All files are checked before the first agent is created.
    let definitions = files.iter().map(read).collect::<Result<Vec<_>, CliError>>()?;
    for definition in definitions {
        let created = connection.request(async |client| client.agent_create(&definition).await).await?;
        match context.output.json {
            true => context.output.print_json(&created)?,
            false => context.output.print_line(created.definition.name())?,
        }
    }
    Ok(())
}

fn row(agent: &Agent) -> Vec<String> {
    let definition = &agent.definition;
    let model = definition.model.clone().or_else(|| definition.profile.clone()).unwrap_or_default();
    let scope =
        if agent.scope == AgentScope::Owner { "yours".to_owned() } else { format!("{DIM}shared{DIM:#}") };
    vec![definition.name().to_string(), scope, model, excerpt(&definition.description, 60)]
}

/// Reads and validates the definition in a file.
fn read_definition(file: &Path) -> Result<AgentDefinition, String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let definition = definition::from_toml(&text)?;
    definition.check_name().map_err(|bad| bad.to_string())?;
    Definition::new(definition.clone())?;
    Ok(definition)
}

fn invalid_file(file: &Path, problem: &str) -> CliError {
    CliError::bad_request(format!("{}: {problem}", file.display()))
}

/// Reports the errors of each file.
fn check_files(context: &Context<'_>, files: &[PathBuf]) -> Result<Exit, CliError> {
    let directory = &context.config().agents_dir;
    let files = match files {
        [] => Definitions::new(Some(directory.clone()))
            .list()
            .into_iter()
            .filter_map(|known| known.path)
            .collect(),
        files => files.to_vec(),
    };
    if files.is_empty() {
        context.output.print_note(format_args!("no definitions in {}", directory.display()))?;
    }
    let mut exit = Exit::Done;
    for file in files {
        if !file.exists() {
            return Err(file_error(&file, &std::io::Error::from(std::io::ErrorKind::NotFound)));
        }
        let definition = read_definition(&file);
        let (path, name) =
            (file.display(), definition.as_ref().map(|definition| definition.name().to_string()));
        if definition.is_err() {
            exit = Exit::BadRequest;
        }
        match (context.output.json, name) {
            (true, name) => {
                let (name, problem) = (name.as_ref().ok(), definition.as_ref().err());
                let path = path.to_string();
                context.output.print_json(&json!({"file": path, "agent": name, "problem": problem}))?;
            }
            (false, Ok(name)) => {
                context.output.print_line(format_args!("{GREEN}✓{GREEN:#} {path}: {name}"))?;
            }
            (false, Err(problem)) => {
                context.output.print_line(format_args!("{RED}✗{RED:#} {path}: {problem}"))?;
            }
        }
    }
    Ok(exit)
}
