//! `mainspring model`

use clap::Subcommand;
use mainspring_core::{KeyPresence, ModelPrice};

use super::Context;
use super::connection::Purpose;
use super::error::{CliError, Exit};
use super::output::DIM;

/// List models and providers
#[derive(Subcommand)]
pub(super) enum Model {
    /// List configured models and providers, and whether their keys are set
    List,
}

impl Model {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        let Self::List = self;
        let mut connection = context.connect(Purpose::Records).await?;
        let models = connection.request(async |client| client.model_list().await).await;
        connection.close().await?;
        let (list, output) = (models?, context.output);
        if output.json {
            output.print_json(&list)?;
            return Ok(Exit::Done);
        }
        if list.profiles.is_empty() {
            output.print_note(
                "no model is configured; see docs/models.md. Without a key: --model scripted/any",
            )?;
        } else {
            let rows = list.profiles.iter().map(|profile| {
                vec![
                    profile.profile.clone(),
                    format!("{}/{}", profile.provider, profile.model),
                    key_label(profile.key).to_owned(),
                    profile.context_tokens.map_or("unknown".into(), |tokens| tokens.to_string()),
                    profile.price.as_ref().map_or("unknown".into(), format_price),
                ]
            });
            output.print_table(
                &["profile", "model", "key", "window", "$ per million in/out"],
                rows.collect(),
            )?;
            if let Some(day) = list.profiles.iter().find_map(|profile| profile.price.as_ref()?.as_of.clone())
            {
                output.print_note(format_args!(
                    "{DIM}prices with a * are as of {day}; set your own in [prices]{DIM:#}"
                ))?;
            }
        }
        let rows = list.providers.iter().map(|provider| {
            vec![provider.provider.clone(), provider.kind.clone(), key_label(provider.key).to_owned()]
        });
        output.print_table(&["provider", "protocol", "key"], rows.collect())?;
        Ok(Exit::Done)
    }
}

fn key_label(key: KeyPresence) -> &'static str {
    match key {
        KeyPresence::Present => "present",
        KeyPresence::Missing => "missing",
        KeyPresence::NotNeeded => "not needed",
    }
}

fn format_price(price: &ModelPrice) -> String {
    let mark = if price.as_of.is_some() { "*" } else { "" };
    format!("{}/{}{mark}", price.input, price.output)
}
