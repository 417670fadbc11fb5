//! `mainspring wait`

use clap::Subcommand;
use mainspring_client::{OpenWait, WaitListQuery};

use super::Context;
use super::connection::Purpose;
use super::error::{CliError, Exit};
use super::output::{excerpt, format_table_time};

/// List questions and requests for approval of all sessions that wait for a person
#[derive(Subcommand)]
pub(super) enum Wait {
    /// List open questions and requests for approval of all sessions, oldest first
    List {
        /// Maximum number of waits to list
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
    },
}

impl Wait {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        let Self::List { limit } = self;
        let mut connection = context.connect(Purpose::Records).await?;
        let query = WaitListQuery { limit: Some(limit), after: None };
        let waits = connection.request(async |client| client.wait_list(&query).await).await;
        connection.close().await?;
        let (waits, output) = (waits?.items, context.output);
        if output.json {
            waits.iter().try_for_each(|wait| output.print_json(wait))?;
        } else if waits.is_empty() {
            output.print_note("nobody waits for you")?;
        } else {
            let count = waits.len();
            output.print_table(
                &["run", "since", "agent", "session", "question"],
                waits.iter().map(row).collect(),
            )?;
            output.print_limit_note(count, limit)?;
        }
        Ok(Exit::Done)
    }
}

fn row(open: &OpenWait) -> Vec<String> {
    let session =
        open.title.clone().or_else(|| open.key.clone()).unwrap_or_else(|| open.session_id.to_string());
    let since = format_table_time(open.updated_at);
    vec![
        open.run_id.to_string(),
        since,
        open.adapter.clone(),
        excerpt(&session, 40),
        excerpt(&open.wait.question, 120),
    ]
}
