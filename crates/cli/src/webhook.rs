//! `mainspring webhook`

use clap::Subcommand;
use mainspring_client::{DeadLetterQuery, NewWebhook, WebhookDelivery};
use mainspring_core::{Cursor, Webhook as Hook, WebhookId};

use super::Context;
use super::connection::{Connection, Purpose};
use super::error::{CliError, Exit};
use super::output::{excerpt, format_table_time};

/// Number of dead letters per page.
const PAGE: usize = 100;

/// Add, list, test and remove webhooks: addresses that receive your events
#[derive(Subcommand)]
pub(super) enum Webhook {
    /// Add a webhook; its secret is shown once
    Add {
        /// Address that events are posted to
        #[arg(id = "address", value_name = "URL")]
        url: String,
        /// Types of events, or their first words, with commas, such as run.failed,approval
        #[arg(long, value_name = "TYPES", value_delimiter = ',')]
        types: Option<Vec<String>>,
    },
    /// List webhooks and whether they receive their events
    List,
    /// Remove a webhook and its dead letters; asks first on a terminal
    Remove {
        /// Webhook id, or its beginning
        webhook: String,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
    /// Send a test event to a webhook
    Test {
        /// Webhook id, or its beginning
        webhook: String,
    },
    /// List the events that could not be delivered
    Dead {
        /// Webhook id, or its beginning
        webhook: String,
    },
    /// Send events that could not be delivered again
    Retry {
        /// Webhook id, or its beginning
        webhook: String,
        /// Cursor of the event; all of them if not given
        cursor: Option<u64>,
    },
}

impl Webhook {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        let work = async |connection: &mut Connection<'_>| self.dispatch(context, connection).await;
        context.with_connection(Purpose::Records, work).await
    }

    async fn dispatch(
        self,
        context: &Context<'_>,
        connection: &mut Connection<'_>,
    ) -> Result<Exit, CliError> {
        match self {
            Self::Add { url, types } => add(context, connection, NewWebhook { url, types }).await,
            Self::List => list(context, connection).await,
            Self::Remove { webhook, yes } => {
                let id = find(connection, &webhook).await?;
                if !yes {
                    connection.confirm(&format!("Remove {id} and its dead letters?")).await?;
                }
                connection.request(async |client| client.webhook_remove(id).await).await?;
                context.output.print_note(format_args!("removed {id}"))?;
                Ok(Exit::Done)
            }
            Self::Test { webhook } => {
                let id = find(connection, &webhook).await?;
                let sent = connection.request(async |client| client.webhook_test(id).await).await?;
                print_delivery(context, "the test event", &sent)
            }
            Self::Dead { webhook } => dead(context, connection, &webhook).await,
            Self::Retry { webhook, cursor } => retry(context, connection, &webhook, cursor).await,
        }
    }
}

async fn add(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    new: NewWebhook,
) -> Result<Exit, CliError> {
    let made = connection.request(async |client| client.webhook_create(&new).await).await?;
    if context.output.json {
        context.output.print_json(&made)?;
        return Ok(Exit::Done);
    }
    context.output.print_note(format_args!(
        "added {} for {}",
        made.webhook.id,
        made.webhook.types.join(", ")
    ))?;
    context.output.print_note("the secret that signs its deliveries is shown only now:")?;
    context.output.print_line(&made.secret)?;
    Ok(Exit::Done)
}

async fn list(context: &Context<'_>, connection: &mut Connection<'_>) -> Result<Exit, CliError> {
    let output = context.output;
    let hooks = connection.request(async |client| client.webhook_list().await).await?.items;
    if output.json {
        hooks.iter().try_for_each(|hook| output.print_json(hook))?;
    } else if hooks.is_empty() {
        output.print_note("there are no webhooks: mainspring webhook add URL")?;
    } else {
        let rows = hooks.iter().map(row).collect();
        output.print_table(&["webhook", "url", "types", "delivered", "state"], rows)?;
    }
    Ok(Exit::Done)
}

fn row(hook: &Hook) -> Vec<String> {
    let state = match (&hook.last_error, hook.failures) {
        (None, _) => "ok".to_owned(),
        (Some(error), 0) => format!("last event dead: {error}"),
        (Some(error), failures) => format!("failed {failures} times: {error}"),
    };
    let delivered = hook.delivered_at.map(format_table_time).unwrap_or_default();
    vec![
        hook.id.to_string(),
        hook.url.clone(),
        excerpt(&hook.types.join(", "), 60),
        delivered,
        excerpt(&state, 100),
    ]
}

/// Finds a webhook by its id or the beginning of it.
async fn find(connection: &mut Connection<'_>, text: &str) -> Result<WebhookId, CliError> {
    let hooks = connection.request(async |client| client.webhook_list().await).await?.items;
    let digits = text.strip_prefix("hook_").unwrap_or(text);
    if digits.is_empty() {
        return Err(CliError::bad_request("give some digits of the webhook's id, such as hook_1a2b"));
    }
    let starts = |id: &WebhookId| id.to_string().trim_start_matches("hook_").starts_with(digits);
    let found: Vec<WebhookId> = hooks.iter().map(|hook| hook.id).filter(starts).collect();
    match found[..] {
        [id] => Ok(id),
        [] => Err(CliError::not_found(format!("there is no webhook {text:?}: mainspring webhook list"))),
        _ => Err(CliError::bad_request(format!("several webhooks begin with {text:?}: use more of the id"))),
    }
}

async fn letters(
    connection: &mut Connection<'_>,
    id: WebhookId,
) -> Result<Vec<mainspring_core::DeadLetter>, CliError> {
    let mut all = vec![];
    let mut query = DeadLetterQuery { limit: Some(PAGE), after: None };
    loop {
        let page = connection.request(async |client| client.webhook_dead(id, &query).await).await?;
        query.after = page.items.last().map(|letter| letter.cursor.0);
        all.extend(page.items);
        if page.next.is_none() {
            return Ok(all);
        }
    }
}

async fn dead(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    webhook: &str,
) -> Result<Exit, CliError> {
    let (output, id) = (context.output, find(connection, webhook).await?);
    let letters = letters(connection, id).await?;
    if output.json {
        letters.iter().try_for_each(|letter| output.print_json(letter))?;
    } else if letters.is_empty() {
        output.print_note("every event was delivered")?;
    } else {
        let row = |letter: &mainspring_core::DeadLetter| {
            let (cursor, attempts) = (letter.cursor.0.to_string(), letter.attempts.to_string());
            let failed = format_table_time(letter.failed_at);
            vec![cursor, letter.event_type.clone(), attempts, failed, excerpt(&letter.error, 100)]
        };
        let rows = letters.iter().map(row).collect();
        output.print_table(&["cursor", "event", "attempts", "failed", "error"], rows)?;
    }
    Ok(Exit::Done)
}

async fn retry(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    webhook: &str,
    cursor: Option<u64>,
) -> Result<Exit, CliError> {
    let id = find(connection, webhook).await?;
    let cursors = match cursor {
        Some(cursor) => vec![Cursor(cursor)],
        None => letters(connection, id).await?.into_iter().map(|letter| letter.cursor).collect(),
    };
    let mut exit = Exit::Done;
    for cursor in cursors {
        let sent = connection.request(async |client| client.webhook_retry(id, cursor).await).await?;
        if print_delivery(context, &format!("event {}", cursor.0), &sent)? != Exit::Done {
            exit = Exit::Refused;
        }
    }
    Ok(exit)
}

fn print_delivery(context: &Context<'_>, what: &str, sent: &WebhookDelivery) -> Result<Exit, CliError> {
    match (context.output.json, &sent.error) {
        (true, _) => context.output.print_json(sent)?,
        (false, None) => context.output.print_line(format_args!("{what} was delivered"))?,
        (false, Some(error)) => {
            context.output.print_line(format_args!("{what} was not delivered: {error}"))?;
        }
    }
    Ok(if sent.delivered { Exit::Done } else { Exit::Refused })
}
