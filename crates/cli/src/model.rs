//! `mainspring model`

use clap::Subcommand;
use mainspring_core::{KeyPresence, ModelPrice};

use super::Context;
use super::fail::{Exit, Fail};
use super::home::Purpose;
use super::output::DIM;

/// List models
#[derive(Subcommand)]
pub(super) enum Model {
    /// List the models that are configured, who runs models, and whether their keys are there
    List,
}

impl Model {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, Fail> {
        let Self::List = self;
        let mut home = context.home(Purpose::Records).await?;
        let asked = home.ask(async |client| client.model_list().await).await;
        home.leave().await?;
        let (list, output) = (asked?, context.output);
        if output.json {
            output.object(&list)?;
            return Ok(Exit::Done);
        }
        if list.profiles.is_empty() {
            output.note(
                "no model is configured; docs/models.md says how. Without a key: --model scripted/any",
            )?;
        } else {
            let rows = list.profiles.iter().map(|profile| {
                vec![
                    profile.profile.clone(),
                    format!("{}/{}", profile.provider, profile.model),
                    key(profile.key).to_owned(),
                    profile.context_tokens.map_or("unknown".into(), |tokens| tokens.to_string()),
                    profile.price.as_ref().map_or("unknown".into(), price),
                ]
            });
            output.table(&["profile", "model", "key", "window", "$ per million in/out"], rows.collect())?;
            if let Some(day) = list.profiles.iter().find_map(|profile| profile.price.as_ref()?.as_of.clone())
            {
                output.note(format_args!(
                    "{DIM}prices with a * are those of {day}; [prices] has your own{DIM:#}"
                ))?;
            }
        }
        let rows = list.providers.iter().map(|provider| {
            vec![provider.provider.clone(), provider.kind.clone(), key(provider.key).to_owned()]
        });
        output.table(&["provider", "protocol", "key"], rows.collect())?;
        Ok(Exit::Done)
    }
}

fn key(key: KeyPresence) -> &'static str {
    match key {
        KeyPresence::Present => "present",
        KeyPresence::Missing => "missing",
        KeyPresence::NotNeeded => "not needed",
    }
}

fn price(price: &ModelPrice) -> String {
    let mark = if price.as_of.is_some() { "*" } else { "" };
    format!("{}/{}{mark}", price.input, price.output)
}
