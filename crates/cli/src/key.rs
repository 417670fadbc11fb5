//! `mainspring key`

use clap::Subcommand;
use mainspring_client::{KeyListQuery, NewKey};
use mainspring_core::{AccessRole, ApiKey, Cost, Time};
use mainspring_kernel::clock::Clock;
use mainspring_system::ids::Ids;
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
        // Not `owner`: the global argument of that name sets the owner that the command itself acts for.
        #[arg(long = "for", value_name = "OWNER")]
        holder: Option<String>,
        /// Organisation of the key
        #[arg(long, value_name = "NAME")]
        org: Option<String>,
        /// Role of the key: admin, member or viewer
        #[arg(long, default_value = "member", value_parser = parse_role)]
        role: AccessRole,
        /// Days until the key expires [default: with the key that creates it, or never]
        #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u64).range(1..=36_500))]
        days: Option<u64>,
        /// Folder in which agents may work with this key; may be repeated [default: any for you, none for others]
        #[arg(long = "folder", value_name = "DIR")]
        folders: Vec<String>,
        /// Adapter that the key may use; may be repeated [default: all]
        #[arg(long = "adapter", value_name = "NAME")]
        adapters: Vec<String>,
        /// Model or model profile that the key may use; may be repeated [default: all]
        #[arg(long = "model", value_name = "NAME")]
        models: Vec<String>,
        /// Tool that agents may call with this key; may be repeated [default: all]
        #[arg(long = "tool", value_name = "NAME")]
        tools: Vec<String>,
        /// Maximum cost of the key's runs per day of UTC, in US dollars [default: any]
        #[arg(long, value_name = "USD", value_parser = parse_usd)]
        spend_per_day: Option<Cost>,
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

fn parse_usd(text: &str) -> Result<Cost, String> {
    let usd = text.parse().ok().filter(|usd: &f64| usd.is_finite() && *usd >= 0.0);
    usd.map(Cost::from).ok_or_else(|| "an amount in US dollars, such as 5 or 0.50".into())
}

/// Formats the limits of a key as one cell of a table, such as `adapters: native; $5.000000 a day`.
fn limits(key: &ApiKey) -> String {
    let lists = [
        ("folders", &key.folders),
        ("adapters", &key.adapters),
        ("models", &key.models),
        ("tools", &key.tools),
    ];
    let lists = lists.into_iter().filter_map(|(name, list)| {
        let list = list.as_ref()?;
        Some(format!("{name}: {}", if list.is_empty() { "none".into() } else { list.join(" ") }))
    });
    let spend = key.spend_per_day.map(|cost| format!("{cost} a day"));
    lists.chain(spend).collect::<Vec<_>>().join("; ")
}

fn parse_role(name: &str) -> Result<AccessRole, String> {
    AccessRole::from_name(name).ok_or_else(|| "one of admin, member, viewer".into())
}

impl Key {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        let work = async |connection: &mut Connection<'_>| self.dispatch(context, connection).await;
        context.with_connection(Purpose::Records, work).await.map(|()| Exit::Done)
    }

    async fn dispatch(self, context: &Context<'_>, connection: &mut Connection<'_>) -> Result<(), CliError> {
        let (output, now) = (context.output, Clock::system().now());
        match self {
            Self::Create {
                name,
                holder,
                org,
                role,
                days,
                folders,
                adapters,
                models,
                tools,
                spend_per_day,
            } => {
                let expires_at_ms = days.map(|days| now.plus(days * 24 * 60 * 60 * 1_000));
                let listed = |list: Vec<String>| (!list.is_empty()).then_some(list);
                let new = NewKey {
                    name,
                    owner_id: holder,
                    org_id: org,
                    role,
                    expires_at_ms,
                    folders: listed(folders),
                    adapters: listed(adapters),
                    models: listed(models),
                    tools: listed(tools),
                    spend_per_day,
                };
                // A request that is repeated on a new connection creates no second key.
                let idempotency_key = Ids::system().secret();
                let created = connection
                    .request(async |client| client.key_create(&new, Some(&idempotency_key)).await)
                    .await?;
                let key = &created.key;
                let Some(secret) = &created.secret else { return Err(lost_secret(key)) };
                if output.json {
                    return Ok(output.print_json(&created)?);
                }
                let org = key.org.as_ref().map(|org| format!(" of {org}")).unwrap_or_default();
                output.print_note(format_args!(
                    "{DIM}· {} for {}{org}, {}; the secret is shown only once:{DIM:#}",
                    key.id, key.owner, key.role
                ))?;
                Ok(output.print_line(secret)?)
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
                output.print_table(
                    &["key", "name", "owner", "org", "role", "created", "state", "limits"],
                    rows,
                )?;
                Ok(output.print_limit_note(count, limit)?)
            }
            Self::Revoke { key, yes } => {
                let key = find_key(connection, &key).await?;
                if !yes {
                    connection
                        .confirm(&format!("Revoke {key} for good? Programs that use it are refused."))
                        .await?;
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

/// The connection broke after the server had made the key: its answer, which alone contains the secret, is lost.
fn lost_secret(key: &ApiKey) -> CliError {
    let id = key.id;
    let message = format!(
        "the key {id} was created, but its secret was lost with the connection; run `mainspring key revoke {id}` and \
         create another key"
    );
    CliError { exit: Exit::Unavailable, code: "transport_interruption".into(), message, retryable: false }
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
        limits(key),
    ]
}
