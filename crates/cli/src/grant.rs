//! `mainspring grant`

use clap::Subcommand;
use mainspring_client::GrantListQuery;
use mainspring_core::{Grant as Granted, Time};
use mainspring_kernel::clock::Clock;

use super::Context;
use super::connection::{Connection, Purpose};
use super::error::{CliError, Exit};
use super::ids::{find_grant, find_session};
use super::output::{DIM, excerpt, format_table_time};

/// List and revoke grants: recorded decisions to allow or deny
#[derive(Subcommand)]
pub(super) enum Grant {
    /// List the grants that are in force, newest first
    List {
        /// List only the grants of this session (key, or id or its beginning)
        #[arg(long, short, value_name = "KEY|ID")]
        session: Option<String>,
        /// List also grants that were revoked, have expired, or belong to runs that have ended
        #[arg(long)]
        all: bool,
        /// Maximum number of grants to list
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
    },
    /// Revoke a grant at once, and the grants of delegated runs that depend on it
    Revoke {
        /// Grant id, or its beginning
        grant: String,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
}

impl Grant {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        let work = async |connection: &mut Connection<'_>| self.dispatch(context, connection).await;
        context.with_connection(Purpose::Records, work).await.map(|()| Exit::Done)
    }

    async fn dispatch(self, context: &Context<'_>, connection: &mut Connection<'_>) -> Result<(), CliError> {
        let output = context.output;
        match self {
            Self::List { session, all, limit } => {
                let session = match session {
                    Some(name) => Some(find_session(connection, &name).await?),
                    None => None,
                };
                let query = GrantListQuery { session, all: Some(all), limit: Some(limit), before: None };
                let grants = connection.request(async |client| client.grant_list(&query).await).await?.items;
                if output.json {
                    return Ok(grants.iter().try_for_each(|grant| output.print_json(grant))?);
                }
                if grants.is_empty() {
                    return Ok(output.print_note("no grants are in force")?);
                }
                let (count, now) = (grants.len(), Clock::system().now());
                let rows = grants.iter().map(|grant| row(grant, now)).collect();
                output.print_table(&["grant", "decision", "source", "state", "what"], rows)?;
                Ok(output.print_limit_note(count, limit)?)
            }
            Self::Revoke { grant, yes } => {
                let grant = find_grant(connection, &grant).await?;
                if !yes {
                    connection
                        .confirm(&format!("Revoke {grant}? The next request is decided without it."))
                        .await?;
                }
                let revoked = connection.request(async |client| client.grant_revoke(grant).await).await?;
                match output.json {
                    true => Ok(output.print_json(&revoked)?),
                    false => Ok(output.print_line(format_args!("revoked {grant}"))?),
                }
            }
        }
    }
}

fn row(grant: &Granted, now: Time) -> Vec<String> {
    let state = match (grant.revoked_at, grant.expires_at) {
        (Some(at), _) => format!("{DIM}revoked {}{DIM:#}", format_table_time(at)),
        (None, Some(end)) if end <= now => format!("{DIM}expired {}{DIM:#}", format_table_time(end)),
        (None, Some(end)) => format!("until {}", format_table_time(end)),
        (None, None) => "in force".into(),
    };
    let details = match (grant.constraints.get("paths"), grant.constraints.get("input")) {
        (Some(paths), _) => format!(" {paths}"),
        (None, Some(input)) if !input.is_null() => format!(" {input}"),
        (None, _) => String::new(),
    };
    let Granted { capability, operation, resource_pattern, .. } = grant;
    let what = format!("{capability} {operation} {resource_pattern}{details}");
    vec![grant.id.to_string(), grant.effect.to_string(), grant.source.to_string(), state, excerpt(&what, 200)]
}
