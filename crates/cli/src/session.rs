//! `mainspring session`

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use mainspring_client::{Client, Fork, NewName, SessionPatch, SessionTarget};
use mainspring_core::{Position, RunOptions, SessionStatus};
use mainspring_system::ids::Ids;
use serde::Serialize;

use super::connection::{Connection, Purpose};
use super::error::{CliError, Exit};
use super::ids::{find_message, find_session, suggest_session};
use super::prompt::send_prompt;
use super::{Context, file, tree};

mod adopt;
mod agent;
mod append;
mod list;
mod set;
mod show;
mod tail;

/// List, show and change sessions
#[derive(Subcommand)]
pub(super) enum Session {
    /// List sessions, latest activity first
    List {
        /// Maximum number of sessions to list
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
        /// List archived sessions instead of open ones
        #[arg(long)]
        archived: bool,
        /// List closed sessions instead of open ones
        #[arg(long, conflicts_with = "archived")]
        closed: bool,
        /// List only the sessions that are in the server's memory
        #[arg(long)]
        loaded: bool,
        /// Whose sessions to list
        #[arg(long, value_enum, default_value = "own")]
        scope: list::ScopeArg,
    },
    /// Create a session
    New {
        /// Key of the session; must be unused [default: none]
        key: Option<String>,
        #[command(flatten)]
        options: SessionOptions,
    },
    /// Load a session without changing it; --json prints its effective options
    Load {
        /// Session key, or id (ses_…) or its beginning
        session: String,
        #[command(flatten)]
        options: SessionOptions,
    },
    /// Show a session and its conversation
    Show {
        /// Session key, or id (ses_…) or its beginning
        session: String,
        /// Maximum number of messages to show
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
    },
    /// Show tokens and cost of all runs of a session, on every branch, and of the runs they delegated to
    Usage {
        /// Session key, or id (ses_…) or its beginning
        session: String,
    },
    /// Show the agent that the next run of a session would use, and where each part of it comes from
    Agent {
        /// Session key, or id (ses_…) or its beginning
        session: String,
    },
    /// Change the agent of an idle session, and its conversation, all at once
    SetAgent {
        /// Session key, or id (ses_…) or its beginning
        session: String,
        /// JSON file with the keys to replace: agentDefinition, model, modelProfile, systemPrompt, modelOptions, tools, messages; `-`
        /// for standard input
        file: PathBuf,
    },
    /// Add a tool that you execute to the later runs of a session, or replace the one of its name
    AddTool(agent::ToolArgs),
    /// Remove a tool from the later runs of a session
    RemoveTool {
        /// Session key, or id (ses_…) or its beginning
        session: String,
        /// Name of the tool
        name: String,
    },
    /// Print the events of a session as they happen, until Ctrl-C
    Tail {
        /// Session key, or id (ses_…) or its beginning
        session: String,
        /// Position to start after: CURSOR.POS or `start` [default: now]
        #[arg(long, value_name = "POSITION")]
        after: Option<String>,
    },
    /// Draw the message tree of a session with its branches and its active path
    Tree {
        /// Session key, or id (ses_…) or its beginning
        session: String,
        /// Write an SVG image to this file instead
        #[arg(long, value_name = "FILE", conflicts_with = "json")]
        svg: Option<PathBuf>,
    },
    /// Branch a session: answer a user message again, or send another prompt after an answer
    Branch {
        /// Session key, or id (ses_…) or its beginning
        session: String,
        /// Message to branch from; omit with --root
        #[arg(required_unless_present = "root", conflicts_with = "root")]
        message: Option<String>,
        /// Prompt to send after an assistant message
        text: Vec<String>,
        /// Prompt of a new conversation within the session
        #[arg(long, value_name = "TEXT")]
        root: Option<String>,
    },
    /// Move the active path to a message: the next prompt continues from there
    Navigate {
        /// Session key, or id (ses_…) or its beginning
        session: String,
        /// Message id, or `none` for an empty path
        message: String,
    },
    /// Create a session that continues from a message of this one
    Fork {
        /// Session key, or id (ses_…) or its beginning
        session: String,
        /// Message to continue from
        message: String,
        /// Key of the new session
        #[arg(long = "as", value_name = "KEY")]
        key: Option<String>,
        /// Title of the new session
        #[arg(long)]
        title: Option<String>,
    },
    /// Search the titles and messages of sessions
    Search {
        /// Words to search for
        #[arg(required = true)]
        words: Vec<String>,
        /// Maximum number of matches
        #[arg(long, value_name = "N", default_value_t = 20)]
        limit: usize,
        /// Whose sessions to search
        #[arg(long, value_enum, default_value = "own")]
        scope: list::ScopeArg,
    },
    /// Export a session and its messages as JSON Lines
    Export {
        /// Session key, or id (ses_…) or its beginning
        session: String,
        /// File to write [default: standard output]
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Create a session from an exported file
    Import {
        /// File to read; `-` for standard input
        file: PathBuf,
    },
    /// Bind a session to an existing session of an agent; creates the session if necessary
    Adopt(adopt::Adopt),
    /// Change the settings of a session's later runs: model, system prompt, working directory …
    Set {
        /// Session key, or id (ses_…) or its beginning
        session: String,
        #[command(flatten)]
        settings: set::Settings,
    },
    /// Prune the events of ended runs; messages stay; asks first on a terminal
    Compact {
        /// Session key, or id (ses_…) or its beginning
        session: String,
        /// Prune only events before this position: CURSOR.POS [default: now]
        #[arg(long, value_name = "POSITION")]
        before: Option<Position>,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
    /// Pin a session, for you alone
    Pin {
        /// Session key, or id (ses_…) or its beginning
        session: String,
    },
    /// Remove your pin of a session
    Unpin {
        /// Session key, or id (ses_…) or its beginning
        session: String,
    },
    /// Append a message of a person to a session, without a run
    Append {
        /// Session key, or id (ses_…) or its beginning
        session: String,
        /// Text of the message
        text: String,
        /// Own id of the message: the same id again appends nothing [default: a new one]
        #[arg(long, value_name = "ID")]
        id: Option<String>,
    },
    /// Set the title of a session
    Rename {
        /// Session key, or id (ses_…) or its beginning
        session: String,
        /// New title; empty to remove it
        title: String,
    },
    /// Archive a session; a new prompt reopens it
    Archive {
        /// Session key, or id (ses_…) or its beginning
        session: String,
    },
    /// Close a session: it takes no new prompts until it is reopened
    Close {
        /// Session key, or id (ses_…) or its beginning
        session: String,
    },
    /// Reopen an archived or closed session
    Reopen {
        /// Session key, or id (ses_…) or its beginning
        session: String,
    },
    /// Delete a session and everything in it; asks first on a terminal
    Delete {
        /// Session key, or id (ses_…) or its beginning
        session: String,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
}

/// Options of a session.
#[derive(Args)]
pub(super) struct SessionOptions {
    /// Title of a new session
    #[arg(long)]
    title: Option<String>,
    /// Adapter of a new session
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
    /// Model, if the session has none
    #[arg(long, conflicts_with = "profile")]
    model: Option<String>,
    /// Model profile, if the session has neither a model nor a profile
    #[arg(long, alias = "model-profile", value_name = "NAME")]
    profile: Option<String>,
    /// System prompt of the agent
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Working directory of the agent
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// Label that a server of a cluster must have to execute a new session; may be repeated
    #[arg(long, value_name = "LABEL")]
    label: Vec<String>,
}

/// A created or loaded session as JSON.
#[derive(Serialize)]
struct StartedSession<'a> {
    #[serde(flatten)]
    session: &'a mainspring_core::Session,
    options: Option<&'a RunOptions>,
}

/// Writes a session to the file `to`, or to standard output.
async fn export(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    session: &str,
    to: Option<&Path>,
) -> Result<(), CliError> {
    let stream = connection.request(async |client| client.session_export(session).await).await?;
    file::write_stream(context.output, to, stream).await
}

async fn start_session(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    new: Option<NewName>,
    load: Option<String>,
    options: SessionOptions,
) -> Result<(), CliError> {
    let SessionOptions { title, adapter, model, profile, system, cwd, label } = options;
    let cwd = match new.is_some() {
        true => context.new_session_folder(cwd.as_deref(), adapter.as_deref())?,
        false => context.folder(cwd.as_deref())?,
    };
    let (verb, surface_kind) = (if new.is_some() { "created" } else { "loaded" }, Some("cli".to_owned()));
    let target = SessionTarget {
        new,
        load,
        title,
        adapter,
        surface_kind,
        model,
        model_profile: profile,
        system_prompt: system,
        cwd,
        labels: label,
        ..SessionTarget::default()
    };
    let started = connection.request(async |client| client.session_resolve(&target, None).await).await?;
    match context.output.json {
        true => Ok(context.output.print_own_json(&StartedSession {
            session: &started.session,
            options: started.options.as_ref(),
        })?),
        false => print_changed(context, &started.session, verb),
    }
}

impl Session {
    pub(super) async fn execute(mut self, context: &Context<'_>) -> Result<Exit, CliError> {
        if let Self::Branch { session, message, text, root } = self {
            let prompt = tree::branch_prompt(context, session, message, text.join(" "), root).await?;
            return send_prompt(context, &prompt).await;
        }
        // A long-running `tail` may own the state directory, so it also executes queued runs.
        let purpose = if let Self::Tail { .. } = self { Purpose::Execute } else { Purpose::Records };
        let mut connection = context.connect(purpose).await?;
        let name = self.session_mut().map(|name| name.clone());
        let outcome = async {
            if let Some(session) = self.session_mut() {
                *session = find_session(&mut connection, session).await?;
            }
            self.dispatch(context, &mut connection).await
        };
        let outcome = match (outcome.await, name) {
            (Err(error), Some(name)) => Err(suggest_session(&mut connection, &name, error).await),
            (outcome, _) => outcome,
        };
        connection.close().await.and(outcome).map(|()| Exit::Done)
    }

    /// Returns the session argument of a command that needs an existing session.
    fn session_mut(&mut self) -> Option<&mut String> {
        match self {
            Self::List { .. }
            | Self::New { .. }
            | Self::Search { .. }
            | Self::Import { .. }
            | Self::Adopt(_) => None,
            Self::Load { session, .. }
            | Self::Show { session, .. }
            | Self::Usage { session }
            | Self::Agent { session }
            | Self::SetAgent { session, .. }
            | Self::AddTool(agent::ToolArgs { session, .. })
            | Self::RemoveTool { session, .. }
            | Self::Tail { session, .. }
            | Self::Tree { session, .. }
            | Self::Branch { session, .. }
            | Self::Navigate { session, .. }
            | Self::Fork { session, .. }
            | Self::Export { session, .. }
            | Self::Set { session, .. }
            | Self::Compact { session, .. }
            | Self::Pin { session }
            | Self::Unpin { session }
            | Self::Append { session, .. }
            | Self::Rename { session, .. }
            | Self::Archive { session }
            | Self::Close { session }
            | Self::Reopen { session }
            | Self::Delete { session, .. } => Some(session),
        }
    }

    async fn dispatch(self, context: &Context<'_>, connection: &mut Connection<'_>) -> Result<(), CliError> {
        match self {
            Self::List { limit, archived, closed, loaded, scope } => {
                let status = listed_status(archived, closed);
                list::list(context, connection, limit, (status, loaded), scope).await
            }
            Self::New { key, options } => {
                let name = key.map_or(NewName::Any(true), NewName::Key);
                start_session(context, connection, Some(name), None, options).await
            }
            Self::Load { session, options } => {
                start_session(context, connection, None, Some(session), options).await
            }
            Self::Show { session, limit } => show::show(context, connection, &session, limit).await,
            Self::Usage { session } => show::show_usage(context, connection, &session).await,
            Self::Agent { session } => agent::show(context, connection, &session).await,
            Self::SetAgent { session, file } => agent::set(context, connection, &session, &file).await,
            Self::AddTool(tool) => agent::add_tool(context, connection, tool).await,
            Self::RemoveTool { session, name } => {
                agent::remove_tool(context, connection, &session, &name).await
            }
            Self::Tail { session, after } => {
                tail::tail(context, connection, &session, after.as_deref()).await
            }
            // `Branch` is sent as a prompt before this point.
            Self::Branch { .. } => Ok(()),
            Self::Tree { session, svg } => {
                tree::print_tree(context, connection, &session, svg.as_deref()).await
            }
            Self::Navigate { session, message } => navigate(context, connection, &session, &message).await,
            Self::Fork { session, message, key, title } => {
                let message_id = find_message(connection, &session, &message).await?;
                fork(context, connection, &session, &Fork { message_id, key, title }).await
            }
            Self::Search { words, limit, scope } => {
                list::search(context, connection, &words.join(" "), limit, scope).await
            }
            Self::Export { session, output } => {
                export(context, connection, &session, output.as_deref()).await
            }
            Self::Import { file } => {
                let bytes = file::read_file(&file)?;
                let created =
                    connection.request(async |client| client.session_import(bytes.clone()).await).await?;
                print_changed(context, &created, "imported")
            }
            Self::Adopt(adopt) => adopt.dispatch(context, connection).await,
            Self::Set { session, settings } => set::set(context, connection, &session, settings).await,
            Self::Compact { session, before, yes } => {
                set::compact(context, connection, &session, before, yes).await
            }
            Self::Pin { session } => {
                let changed = connection.request(async |client| client.session_pin(&session).await).await?;
                print_changed(context, &changed, "pinned")
            }
            Self::Unpin { session } => {
                let changed = connection.request(async |client| client.session_unpin(&session).await).await?;
                print_changed(context, &changed, "unpinned")
            }
            Self::Append { session, text, id } => {
                append::append(context, connection, &session, &text, id).await
            }
            Self::Rename { session, title } => {
                let changes = SessionPatch { title: Some(Some(title)), ..SessionPatch::default() };
                patch_session(context, connection, &session, &changes, "renamed").await
            }
            Self::Archive { session } => {
                let changes = status_patch(SessionStatus::Archived);
                patch_session(context, connection, &session, &changes, "archived").await
            }
            Self::Close { session } => {
                let changes = status_patch(SessionStatus::Closed);
                patch_session(context, connection, &session, &changes, "closed").await
            }
            Self::Reopen { session } => {
                let changes = status_patch(SessionStatus::Open);
                patch_session(context, connection, &session, &changes, "reopened").await
            }
            Self::Delete { session, yes } => delete(context, connection, &session, yes).await,
        }
    }
}

fn listed_status(archived: bool, closed: bool) -> SessionStatus {
    match (archived, closed) {
        (true, _) => SessionStatus::Archived,
        (_, true) => SessionStatus::Closed,
        _ => SessionStatus::Open,
    }
}

async fn fork(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    session: &str,
    fork: &Fork,
) -> Result<(), CliError> {
    let name = Ids::system().secret();
    let created = connection.request(async |client| client.session_fork(session, fork, &name).await).await?;
    print_changed(context, &created, "forked")
}

async fn navigate(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    session: &str,
    message: &str,
) -> Result<(), CliError> {
    let message = match message {
        "none" => None,
        id => Some(find_message(connection, session, id).await?),
    };
    let navigate = async |client: &Client| client.session_navigate(session, message, None).await;
    let session = connection.request(navigate).await?;
    print_changed(context, &session, "navigated")
}

async fn delete(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    session: &str,
    yes: bool,
) -> Result<(), CliError> {
    let found = connection.request(async |client| client.session_get(session).await).await?;
    let title = found.title.as_ref().map(|title| format!(" ({title})")).unwrap_or_default();
    if !yes {
        let question = format!("Delete the session {session}{title} and everything in it?");
        connection.confirm(&question).await?;
    }
    connection.request(async |client| client.session_delete(session).await).await?;
    let deleted = mainspring_core::Session { status: SessionStatus::Deleted, ..found };
    print_changed(context, &deleted, "deleted")
}

fn status_patch(status: SessionStatus) -> SessionPatch {
    SessionPatch { status: Some(status), ..SessionPatch::default() }
}

async fn patch_session(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    session: &str,
    changes: &SessionPatch,
    verb: &str,
) -> Result<(), CliError> {
    let session =
        connection.request(async |client| client.session_patch(session, changes, None).await).await?;
    print_changed(context, &session, verb)
}

fn print_changed(
    context: &Context<'_>,
    session: &mainspring_core::Session,
    verb: &str,
) -> Result<(), CliError> {
    let output = context.output;
    match output.json {
        true => output.print_json(session)?,
        false => {
            let name = session.key.clone().unwrap_or_else(|| session.id.to_string());
            output.print_line(format_args!("{verb} {name}"))?;
        }
    }
    Ok(())
}
