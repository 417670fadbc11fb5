//! `mainspring key`

use clap::Subcommand;
use mainspring_client::{KeyListQuery, NewKey};
use mainspring_core::{AccessRole, ApiKey, Time};
use mainspring_kernel::clock::Clock;
use serde_json::json;

use super::Context;
use super::connection::{Connection, Purpose};
use super::error::{CliError, Exit};
use super::ids::find_key;
use super::output::{DIM, YELLOW, format_time};

/// Create, list and revoke API keys
#[derive(Subcommand)]
pub(super) enum Key {
    /// Create a key and print its secret, which is shown only once
    Create {
        /// Name of the key
        name: String,
        /// Owner that the key acts for [default: you]
        #[arg(long = "for", value_name = "OWNER")]
        owner: Option<String>,
        /// Organisation of the key
        #[arg(long, value_name = "NAME")]
        org: Option<String>,
        /// Role of the key: admin, member or viewer
        #[arg(long, default_value = "member", value_parser = parse_role)]
        role: AccessRole,
        /// Days until the key expires [default: never]
        #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u64).range(1..=36_500))]
        days: Option<u64>,
        /// Folder in which agents may work with this key; may be repeated [default: any for you, none for others]
        #[arg(long = "folder", value_name = "DIR")]
        folders: Vec<String>,
    },
    /// List keys, newest first; secrets are not stored
    List {
        /// Maximum number of keys to list
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
    },
    /// Revoke a key; asks first on a terminal
    Revoke {
        /// Key id, or its beginning
        key: String,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
}

fn parse_role(name: &str) -> Result<AccessRole, String> {
    AccessRole::from_name(name).ok_or_else(|| "one of admin, member, viewer".into())
}

impl Key {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        let mut connection = context.connect(Purpose::Records).await?;
        let outcome = self.dispatch(context, &mut connection).await;
        connection.close().await.and(outcome).map(|()| Exit::Done)
    }

    async fn dispatch(self, context: &Context<'_>, connection: &mut Connection<'_>) -> Result<(), CliError> {
        let (output, now) = (context.output, Clock::system().now());
        match self {
            Self::Create { name, owner, org, role, days, folders } => {
                let expires_at_ms = days.map(|days| now.plus(days * 24 * 60 * 60 * 1_000));
                let folders = (!folders.is_empty()).then_some(folders);
                let new = NewKey { name, owner_id: owner, org_id: org, role, expires_at_ms, folders };
                let created = connection.request(async |client| client.key_create(&new).await).await?;
                if output.json {
                    return Ok(output.print_json(&created)?);
                }
                let key = &created.key;
                let org = key.org.as_ref().map(|org| format!(" of {org}")).unwrap_or_default();
                output.print_note(format_args!(
                    "{DIM}· {} for {}{org}, {}; the secret is shown only once:{DIM:#}",
                    key.id, key.owner, key.role
                ))?;
                Ok(output.print_line(created.secret.unwrap_or_default())?)
            }
            Self::List { limit } => {
                let query = KeyListQuery { limit: Some(limit), before: None };
                let keys = connection.request(async |client| client.key_list(&query).await).await?.items;
                if output.json {
                    return Ok(keys.iter().try_for_each(|key| output.print_json(key))?);
                }
                if keys.is_empty() {
                    return Ok(output.print_note("no keys; create one with: mainspring key create NAME")?);
                }
                let count = keys.len();
                let rows = keys.iter().map(|key| row(key, now)).collect();
                output.print_table(&["key", "name", "owner", "org", "role", "created", "state"], rows)?;
                Ok(output.print_limit_note(count, limit)?)
            }
            Self::Revoke { key, yes } => {
                let key = find_key(connection, &key).await?;
                if !yes {
                    output.confirm(&format!("Revoke {key} for good? Programs that use it are refused."))?;
                }
                connection.request(async |client| client.key_revoke(key).await).await?;
                match output.json {
                    true => Ok(output.print_json(&json!({"keyId": key, "revoked": true}))?),
                    false => Ok(output.print_line(format_args!("revoked {key}"))?),
                }
            }
        }
    }
}

fn row(key: &ApiKey, now: Time) -> Vec<String> {
    let state = match (key.revoked_at, key.expires_at) {
        (Some(at), _) => format!("{DIM}revoked {}{DIM:#}", format_time(at)),
        (None, Some(end)) if end <= now => format!("{DIM}expired {}{DIM:#}", format_time(end)),
        (None, Some(end)) => format!("{YELLOW}until {}{YELLOW:#}", format_time(end)),
        (None, None) => "valid".into(),
    };
    vec![
        key.id.to_string(),
        key.name.clone(),
        key.owner.clone(),
        key.org.clone().unwrap_or_default(),
        key.role.to_string(),
        format_time(key.created_at),
        state,
    ]
}
