//! `mainspring feedback`

use clap::{Subcommand, ValueEnum};
use mainspring_core::{Feedback as Given, NewFeedback, Sentiment};

use super::Context;
use super::connection::{Connection, Purpose};
use super::error::{CliError, Exit};
use super::ids::{find_message, find_session};
use super::output::{excerpt, format_table_time};

/// List and give feedback on messages
#[derive(Subcommand)]
pub(super) enum Feedback {
    /// List the feedback on the messages of a session, of all its readers
    List {
        /// Session id or its beginning, or key
        session: String,
    },
    /// Give feedback on a message, in place of your earlier one
    Put {
        /// Session id or its beginning, or key
        session: String,
        /// Message id, or its beginning
        message: String,
        /// Whether the message is good
        sentiment: GivenSentiment,
        /// Categories, with commas, such as incorrect,slow or helpful; other needs notes
        #[arg(long, value_name = "CATEGORIES", value_delimiter = ',')]
        categories: Vec<String>,
        /// Further words
        #[arg(long, value_name = "TEXT")]
        notes: Option<String>,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum GivenSentiment {
    Positive,
    Negative,
}

impl Feedback {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        let work = async |connection: &mut Connection<'_>| self.dispatch(context, connection).await;
        context.with_connection(Purpose::Records, work).await
    }

    async fn dispatch(
        self,
        context: &Context<'_>,
        connection: &mut Connection<'_>,
    ) -> Result<Exit, CliError> {
        let output = context.output;
        match self {
            Self::List { session } => {
                let session = find_session(connection, &session).await?;
                let given =
                    connection.request(async |client| client.feedback_list(&session).await).await?.items;
                match output.json {
                    true => given.iter().try_for_each(|given| output.print_json(given))?,
                    false => {
                        let headings = ["message", "by", "sentiment", "categories", "notes", "given"];
                        output.print_table(&headings, given.iter().map(row).collect())?;
                    }
                }
            }
            Self::Put { session, message, sentiment, categories, notes } => {
                let session = find_session(connection, &session).await?;
                let message = find_message(connection, &session, &message).await?;
                let sentiment = match sentiment {
                    GivenSentiment::Positive => Sentiment::Positive,
                    GivenSentiment::Negative => Sentiment::Negative,
                };
                let new = NewFeedback { sentiment, categories, notes };
                let given = connection
                    .request(async |client| client.feedback_give(&session, message, &new).await)
                    .await?;
                match output.json {
                    true => output.print_json(&given)?,
                    false => output.print_line(format_args!("{} feedback on {message}", given.sentiment))?,
                }
            }
        }
        Ok(Exit::Done)
    }
}

fn row(given: &Given) -> Vec<String> {
    vec![
        given.message.to_string(),
        given.owner.clone(),
        given.sentiment.to_string(),
        given.categories.join(", "),
        excerpt(given.notes.as_deref().unwrap_or_default(), 40),
        format_table_time(given.updated_at),
    ]
}
