//! `mainspring state`

use clap::{Args, Subcommand};
use mainspring_client::{Client, Error, StateHistoryQuery, StateListQuery, StateQuery};
use mainspring_core::{Expect, MessageId, RunId, StateChange, StateEntry, StateWriter};
use serde_json::Value;

use super::Context;
use super::connection::{Connection, Purpose};
use super::error::{CliError, Exit};
use super::ids::{find_message, find_run, find_session};
use super::output::{excerpt, format_table_time};

/// Longest value in a table, in characters.
const VALUE_CHARS: usize = 60;

/// Get, set, delete and list state: versioned JSON values by key, of a session, a run or the owner
#[derive(Subcommand)]
pub(super) enum State {
    /// Print the value of a key
    Get {
        /// Key
        key: String,
        #[command(flatten)]
        of: StateSelector,
        /// Value as of this message of the session (id or its beginning)
        #[arg(long, value_name = "MESSAGE", requires = "session")]
        at: Option<String>,
    },
    /// Set a key to a value
    Set {
        /// Key
        key: String,
        /// Value: JSON; a text that is no JSON is stored as text
        value: String,
        #[command(flatten)]
        of: StateSelector,
        #[command(flatten)]
        expected: Expected,
    },
    /// Delete a key
    Delete {
        /// Key
        key: String,
        #[command(flatten)]
        of: StateSelector,
        #[command(flatten)]
        expected: Expected,
    },
    /// List keys and values, by key
    List {
        #[command(flatten)]
        of: StateSelector,
        /// Values as of this message of the session (id or its beginning)
        #[arg(long, value_name = "MESSAGE", requires = "session")]
        at: Option<String>,
        /// List only keys after this one
        #[arg(long, value_name = "KEY")]
        after: Option<String>,
        /// Maximum number of keys to list
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
    },
    /// List the last changes of a key and who made them, newest first
    History {
        /// Key
        key: String,
        #[command(flatten)]
        of: StateSelector,
        /// Maximum number of changes to list
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
    },
}

/// Selects a state: that of a session or run, or of the owner if neither is given.
#[derive(Args)]
pub(super) struct StateSelector {
    /// State of this session (key, or id or its beginning)
    #[arg(long, short, value_name = "KEY|ID")]
    session: Option<String>,
    /// State of this run (id or its beginning)
    #[arg(long, short, value_name = "RUN", conflicts_with = "session")]
    run: Option<String>,
}

/// The condition of a change.
#[derive(Args)]
#[group(multiple = false)]
pub(super) struct Expected {
    /// Change the key only if it has this version
    #[arg(long, value_name = "VERSION")]
    if_version: Option<u64>,
    /// Change the key only if it has no value
    #[arg(long)]
    if_absent: bool,
    /// Change the key only if it has a value
    #[arg(long)]
    if_present: bool,
}

impl Expected {
    fn expect(&self) -> Expect {
        match (self.if_version, self.if_absent, self.if_present) {
            (Some(version), _, _) => Expect::Version(version),
            (None, true, _) => Expect::Absent,
            (None, false, true) => Expect::Present,
            (None, false, false) => Expect::Any,
        }
    }
}

/// A selected state, with a session key or complete id.
enum Place {
    Session(String),
    Run(RunId),
    Owner,
}

impl State {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        let work = async |connection: &mut Connection<'_>| self.dispatch(context, connection).await;
        context.with_connection(Purpose::Records, work).await.map(|()| Exit::Done)
    }

    async fn dispatch(self, context: &Context<'_>, connection: &mut Connection<'_>) -> Result<(), CliError> {
        let output = context.output;
        match self {
            Self::Get { key, of, at } => {
                let place = of.resolve(connection).await?;
                let at = message(connection, &place, at.as_deref()).await?;
                let entry = connection.request(async |client| place.get(client, &key, at).await).await?;
                match output.json {
                    true => Ok(output.print_json(&entry)?),
                    false => Ok(output.print_line(&entry.value)?),
                }
            }
            Self::Set { key, value, of, expected } => {
                let (place, expect) = (of.resolve(connection).await?, expected.expect());
                let value = serde_json::from_str(&value).unwrap_or(Value::String(value));
                let set = async |client: &Client| place.set(client, &key, &value, expect).await;
                let entry = connection.request(set).await?;
                match output.json {
                    true => Ok(output.print_json(&entry)?),
                    false => Ok(output.print_line(format_args!("{key} has version {}", entry.version))?),
                }
            }
            Self::Delete { key, of, expected } => {
                let (place, expect) = (of.resolve(connection).await?, expected.expect());
                connection.request(async |client| place.delete(client, &key, expect).await).await?;
                match output.json {
                    true => Ok(output.print_json(&serde_json::json!({"key": key, "deleted": true}))?),
                    false => Ok(output.print_line(format_args!("deleted {key}"))?),
                }
            }
            Self::List { of, at, after, limit } => {
                let place = of.resolve(connection).await?;
                let at = message(connection, &place, at.as_deref()).await?;
                let query = StateListQuery { at, after, limit: Some(limit) };
                let page = connection.request(async |client| place.list(client, &query).await).await?;
                output.print_damaged(&page.damaged)?;
                print_entries(context, &page.items, limit)
            }
            Self::History { key, of, limit } => {
                let place = of.resolve(connection).await?;
                let query = StateHistoryQuery { before: None, limit: Some(limit) };
                let page =
                    connection.request(async |client| place.history(client, &key, &query).await).await?;
                output.print_damaged(&page.damaged)?;
                print_changes(context, &key, &page.items, limit)
            }
        }
    }
}

impl StateSelector {
    async fn resolve(&self, connection: &mut Connection<'_>) -> Result<Place, CliError> {
        Ok(match (&self.session, &self.run) {
            (Some(session), _) => Place::Session(find_session(connection, session).await?),
            (None, Some(run)) => Place::Run(find_run(connection, run).await?),
            (None, None) => Place::Owner,
        })
    }
}

/// Finds the message of `--at`.
async fn message(
    connection: &mut Connection<'_>,
    place: &Place,
    at: Option<&str>,
) -> Result<Option<MessageId>, CliError> {
    match (place, at) {
        (Place::Session(session), Some(at)) => find_message(connection, session, at).await.map(Some),
        _ => Ok(None),
    }
}

type Page<T> = mainspring_client::Page<T>;

impl Place {
    async fn get(&self, client: &Client, key: &str, at: Option<MessageId>) -> Result<StateEntry, Error> {
        match self {
            Self::Session(session) => client.session_state_get(session, key, &StateQuery { at }).await,
            Self::Run(run) => client.run_state_get(*run, key).await,
            Self::Owner => client.owner_state_get(key).await,
        }
    }

    async fn set(
        &self,
        client: &Client,
        key: &str,
        value: &Value,
        expect: Expect,
    ) -> Result<StateEntry, Error> {
        match self {
            Self::Session(session) => client.session_state_set(session, key, value, expect).await,
            Self::Run(run) => client.run_state_set(*run, key, value, expect).await,
            Self::Owner => client.owner_state_set(key, value, expect).await,
        }
    }

    async fn delete(&self, client: &Client, key: &str, expect: Expect) -> Result<(), Error> {
        match self {
            Self::Session(session) => client.session_state_delete(session, key, expect).await,
            Self::Run(run) => client.run_state_delete(*run, key, expect).await,
            Self::Owner => client.owner_state_delete(key, expect).await,
        }
    }

    async fn list(&self, client: &Client, query: &StateListQuery) -> Result<Page<StateEntry>, Error> {
        match self {
            Self::Session(session) => client.session_state_list(session, query).await,
            Self::Run(run) => client.run_state_list(*run, query).await,
            Self::Owner => client.owner_state_list(query).await,
        }
    }

    async fn history(
        &self,
        client: &Client,
        key: &str,
        query: &StateHistoryQuery,
    ) -> Result<Page<StateChange>, Error> {
        match self {
            Self::Session(session) => client.session_state_history(session, key, query).await,
            Self::Run(run) => client.run_state_history(*run, key, query).await,
            Self::Owner => client.owner_state_history(key, query).await,
        }
    }
}

fn print_entries(context: &Context<'_>, entries: &[StateEntry], limit: usize) -> Result<(), CliError> {
    let output = context.output;
    if output.json {
        return Ok(entries.iter().try_for_each(|entry| output.print_json(entry))?);
    }
    if entries.is_empty() {
        return Ok(output.print_note("there is no state")?);
    }
    let row = |entry: &StateEntry| {
        let value = excerpt(&entry.value.to_string(), VALUE_CHARS);
        vec![entry.key.clone(), entry.version.to_string(), format_table_time(entry.updated_at), value]
    };
    output.print_table(&["key", "version", "changed", "value"], entries.iter().map(row).collect())?;
    Ok(output.print_limit_note(entries.len(), limit)?)
}

fn print_changes(
    context: &Context<'_>,
    key: &str,
    changes: &[StateChange],
    limit: usize,
) -> Result<(), CliError> {
    let output = context.output;
    if output.json {
        return Ok(changes.iter().try_for_each(|change| output.print_json(change))?);
    }
    if changes.is_empty() {
        return Ok(output.print_note(format_args!("{key} has no changes that are kept"))?);
    }
    let row = |change: &StateChange| {
        let value = match (&change.value, change.deleted) {
            (_, true) => "(deleted)".into(),
            (Some(value), _) => excerpt(&value.to_string(), VALUE_CHARS),
            (None, false) => "(large)".into(),
        };
        let by = writer(&change.by);
        vec![change.version.to_string(), format_table_time(change.changed_at), by, value]
    };
    output.print_table(&["version", "changed", "by", "value"], changes.iter().map(row).collect())?;
    Ok(output.print_limit_note(changes.len(), limit)?)
}

fn writer(by: &StateWriter) -> String {
    match by {
        StateWriter::Caller { key_id: Some(key) } => key.to_string(),
        StateWriter::Caller { key_id: None } => "caller".into(),
        StateWriter::Agent { run_id, tool: Some(tool), .. } => format!("{tool} in {run_id}"),
        StateWriter::Agent { run_id, tool: None, .. } => run_id.to_string(),
    }
}
