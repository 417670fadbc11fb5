//! `mainspring key`

use clap::Subcommand;
use mainspring_client::{KeyListQuery, NewKey};
use mainspring_core::{AccessRole, ApiKey, KeyId, Time};
use mainspring_kernel::clock::Clock;
use serde_json::json;

use super::Context;
use super::fail::{Exit, Fail};
use super::home::{Home, Purpose};
use super::output::{DIM, YELLOW, moment};

/// Make, list and revoke API keys
#[derive(Subcommand)]
pub(super) enum Key {
    /// Make a key, and show its secret this once
    Create {
        /// What it is for
        name: String,
        /// For whom its holder acts [default: you]
        #[arg(long = "for", value_name = "OWNER")]
        owner: Option<String>,
        /// The org its holder belongs to
        #[arg(long, value_name = "NAME")]
        org: Option<String>,
        /// What its holder may do: admin, member or viewer
        #[arg(long, default_value = "member", value_parser = parse_role)]
        role: AccessRole,
        /// After how many days it opens nothing any more [default: never]
        #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u64).range(1..=36_500))]
        days: Option<u64>,
    },
    /// List keys, the newest first; their secrets are kept nowhere
    List {
        /// How many
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
    },
    /// Revoke a key: it opens nothing from now on
    Revoke {
        /// The key
        key: KeyId,
    },
}

fn parse_role(name: &str) -> Result<AccessRole, String> {
    AccessRole::from_name(name).ok_or_else(|| "one of admin, member, viewer".into())
}

impl Key {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, Fail> {
        let mut home = context.home(Purpose::Records).await?;
        let outcome = self.carry_out(context, &mut home).await;
        home.leave().await.and(outcome).map(|()| Exit::Done)
    }

    async fn carry_out(self, context: &Context<'_>, home: &mut Home<'_>) -> Result<(), Fail> {
        let (output, now) = (context.output, Clock::system().now());
        match self {
            Self::Create { name, owner, org, role, days } => {
                let expires_at_ms = days.map(|days| now.plus(days * 24 * 60 * 60 * 1_000));
                let new = NewKey { name, owner_id: owner, org_id: org, role, expires_at_ms };
                let made = home.ask(async |client| client.key_create(&new).await).await?;
                if output.json {
                    return Ok(output.object(&made)?);
                }
                let key = &made.key;
                let org = key.org.as_ref().map(|org| format!(" of {org}")).unwrap_or_default();
                output.note(format_args!(
                    "{DIM}· {} for {}{org}, {}; its secret is shown this once:{DIM:#}",
                    key.id, key.owner, key.role
                ))?;
                Ok(output.line(made.secret.unwrap_or_default())?)
            }
            Self::List { limit } => {
                let query = KeyListQuery { limit: Some(limit), before: None };
                let keys = home.ask(async |client| client.key_list(&query).await).await?.items;
                if output.json {
                    return Ok(keys.iter().try_for_each(|key| output.object(key))?);
                }
                if keys.is_empty() {
                    return Ok(output.note("no keys; make one with: mainspring key create NAME")?);
                }
                let shown = keys.len();
                let rows = keys.iter().map(|key| row(key, now)).collect();
                output.table(&["key", "name", "owner", "org", "role", "made", "state"], rows)?;
                Ok(output.maybe_more(shown, limit)?)
            }
            Self::Revoke { key } => {
                home.ask(async |client| client.key_revoke(key).await).await?;
                match output.json {
                    true => Ok(output.object(&json!({"keyId": key, "revoked": true}))?),
                    false => Ok(output.line(format_args!("revoked {key}"))?),
                }
            }
        }
    }
}

fn row(key: &ApiKey, now: Time) -> Vec<String> {
    let state = match (key.revoked_at, key.expires_at) {
        (Some(at), _) => format!("{DIM}revoked {}{DIM:#}", moment(at)),
        (None, Some(end)) if end <= now => format!("{DIM}expired {}{DIM:#}", moment(end)),
        (None, Some(end)) => format!("{YELLOW}until {}{YELLOW:#}", moment(end)),
        (None, None) => "valid".into(),
    };
    vec![
        key.id.to_string(),
        key.name.clone(),
        key.owner.clone(),
        key.org.clone().unwrap_or_default(),
        key.role.to_string(),
        moment(key.created_at),
        state,
    ]
}
