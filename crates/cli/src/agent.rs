//! `mainspring agent`

use std::path::{Path, PathBuf};

use clap::Subcommand;
use mainspring_agent::definition::{self, Definition, Definitions};
use mainspring_client::{Agent, AgentListQuery, AgentScope};
use mainspring_core::AgentDefinition;
use serde_json::json;

use super::Context;
use super::fail::{Exit, Fail};
use super::file::unusable;
use super::home::{Home, Purpose};
use super::output::{DIM, GREEN, RED, excerpt};

/// List, show, check, make and delete agent definitions
#[derive(Subcommand)]
pub(super) enum AgentCommand {
    /// List the agents there are: yours, and those that are everybody's
    List {
        /// How many
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
    },
    /// Show an agent, as a file that could be its own
    Show {
        /// The agent: ID@VERSION, or ID for its latest version
        agent: String,
    },
    /// Say what is wrong with definitions, without making anything
    Check {
        /// The files [default: those of the folder of agents]
        files: Vec<PathBuf>,
    },
    /// Make agents of files, yours alone; a version never changes
    Create {
        /// The files
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Delete a version of an agent that you made
    Delete {
        /// The agent: ID@VERSION
        agent: String,
    },
}

impl AgentCommand {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, Fail> {
        if let Self::Check { files } = &self {
            return check(context, files);
        }
        let mut home = context.home(Purpose::Records).await?;
        let outcome = self.carry_out(context, &mut home).await;
        home.leave().await.and(outcome).map(|()| Exit::Done)
    }

    async fn carry_out(self, context: &Context<'_>, home: &mut Home<'_>) -> Result<(), Fail> {
        let output = context.output;
        match self {
            Self::List { limit } => {
                let query = AgentListQuery { limit: Some(limit), after: None };
                let page = home.ask(async |client| client.agent_list(&query).await).await?;
                if output.json {
                    return Ok(page.items.iter().try_for_each(|agent| output.object(agent))?);
                }
                let shown = page.items.len();
                output
                    .table(&["agent", "whose", "model", "what for"], page.items.iter().map(row).collect())?;
                Ok(output.maybe_more(shown, limit)?)
            }
            Self::Show { agent } => {
                let agent = home.ask(async |client| client.agent_get(&agent).await).await?;
                match definition::to_toml(&agent.definition) {
                    Some(file) if !output.json => Ok(output.part(&file)?),
                    // Values that TOML cannot express are shown as JSON.
                    _ => Ok(output.object(&agent)?),
                }
            }
            Self::Create { files } => {
                let read = files.iter().map(|file| read(file).map_err(|wrong| bad(file, &wrong)));
                let definitions = read.collect::<Result<Vec<_>, Fail>>()?;
                for definition in definitions {
                    let made = home.ask(async |client| client.agent_create(&definition).await).await?;
                    match output.json {
                        true => output.object(&made)?,
                        false => output.line(format_args!("{}", made.definition.name()))?,
                    }
                }
                Ok(())
            }
            Self::Delete { agent } => {
                home.ask(async |client| client.agent_delete(&agent).await).await?;
                match output.json {
                    true => Ok(output.object(&json!({"agent": agent, "deleted": true}))?),
                    false => Ok(output.line(format_args!("deleted {agent}"))?),
                }
            }
            // `Check` reads files only and runs before any session is opened.
            Self::Check { .. } => Ok(()),
        }
    }
}

fn row(agent: &Agent) -> Vec<String> {
    let definition = &agent.definition;
    let model = definition.model.clone().or_else(|| definition.profile.clone()).unwrap_or_default();
    let whose = if agent.scope == AgentScope::Owner {
        "yours".to_owned()
    } else {
        format!("{DIM}everybody's{DIM:#}")
    };
    vec![definition.name().to_string(), whose, model, excerpt(&definition.description, 60)]
}

/// Reads and validates the definition in a file.
fn read(file: &Path) -> Result<AgentDefinition, String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let definition = definition::from_toml(&text)?;
    definition.check_name().map_err(|bad| bad.to_string())?;
    Definition::new(definition.clone())?;
    Ok(definition)
}

fn bad(file: &Path, wrong: &str) -> Fail {
    Fail::bad_request(format!("{}: {wrong}", file.display()))
}

/// Reports the errors of each file.
fn check(context: &Context<'_>, files: &[PathBuf]) -> Result<Exit, Fail> {
    let folder = &context.config().agents_dir;
    let files = match files {
        [] => Definitions::new(Some(folder.clone())).list().into_iter().filter_map(|one| one.path).collect(),
        files => files.to_vec(),
    };
    if files.is_empty() {
        context.output.note(format_args!("no definitions in {}", folder.display()))?;
    }
    let mut exit = Exit::Done;
    for file in files {
        if !file.exists() {
            return Err(unusable(&file, &std::io::Error::from(std::io::ErrorKind::NotFound)));
        }
        let read = read(&file);
        let (path, name) = (file.display(), read.as_ref().map(|definition| definition.name().to_string()));
        if read.is_err() {
            exit = Exit::BadRequest;
        }
        match (context.output.json, name) {
            (true, name) => {
                let (name, problem) = (name.as_ref().ok(), read.as_ref().err());
                let path = path.to_string();
                context.output.object(&json!({"file": path, "agent": name, "problem": problem}))?;
            }
            (false, Ok(name)) => context.output.line(format_args!("{GREEN}✓{GREEN:#} {path}: {name}"))?,
            (false, Err(wrong)) => context.output.line(format_args!("{RED}✗{RED:#} {path}: {wrong}"))?,
        }
    }
    Ok(exit)
}
