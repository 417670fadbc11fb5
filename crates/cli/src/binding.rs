//! `mainspring binding`

use clap::Subcommand;
use mainspring_client::BindingListQuery;
use mainspring_core::Binding;

use super::Context;
use super::connection::{Connection, Purpose};
use super::error::{CliError, Exit};
use super::ids::find_session;
use super::output::{DIM, format_table_time};

/// List and invalidate the bindings of a session to agents' own sessions
#[derive(Subcommand)]
pub(super) enum BindingCommand {
    /// List the bindings of a session, newest generation of each adapter first
    List {
        /// Session key, or id (ses_…) or its beginning
        session: String,
        /// Maximum number of bindings to list
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
        /// List the bindings after this one: ADAPTER.GENERATION
        #[arg(long, value_name = "PLACE")]
        after: Option<String>,
    },
    /// Invalidate a binding: the next run opens a new session of the agent; asks first on a terminal
    Invalidate {
        /// Session key, or id (ses_…) or its beginning
        session: String,
        /// Adapter name
        adapter: String,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
}

impl BindingCommand {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        let work = async |connection: &mut Connection<'_>| self.dispatch(context, connection).await;
        context.with_connection(Purpose::Records, work).await.map(|()| Exit::Done)
    }

    async fn dispatch(self, context: &Context<'_>, connection: &mut Connection<'_>) -> Result<(), CliError> {
        let output = context.output;
        match self {
            Self::List { session, limit, after } => {
                let session = find_session(connection, &session).await?;
                let query = BindingListQuery { after, limit: Some(limit) };
                let page =
                    connection.request(async |client| client.binding_page(&session, &query).await).await?;
                if output.json {
                    return Ok(page.items.iter().try_for_each(|binding| output.print_json(binding))?);
                }
                let heads = ["adapter", "generation", "status", "native session", "fidelity", "created"];
                output.print_table(&heads, page.items.iter().map(row).collect())?;
                match page.next {
                    Some(next) => Ok(output.print_note(format_args!("{DIM}more: --after {next}{DIM:#}"))?),
                    None => Ok(()),
                }
            }
            Self::Invalidate { session, adapter, yes } => {
                let session = find_session(connection, &session).await?;
                if !yes {
                    let question = format!(
                        "Give up the session of {adapter} that {session} is bound to? The agent loses what only it \
                         remembers."
                    );
                    connection.confirm(&question).await?;
                }
                let binding = connection
                    .request(async |client| client.binding_invalidate(&session, &adapter).await)
                    .await?;
                match output.json {
                    true => Ok(output.print_json(&binding)?),
                    false => Ok(output.print_line(format_args!("{} {}", binding.adapter, binding.status))?),
                }
            }
        }
    }
}

fn row(binding: &Binding) -> Vec<String> {
    let native = binding.native.as_deref().unwrap_or("–").to_owned();
    let fidelity = match binding.reconstructed {
        true => format!("{}, reconstructed", binding.fidelity),
        false => binding.fidelity.to_string(),
    };
    let created = format_table_time(binding.created_at);
    vec![
        binding.adapter.clone(),
        binding.generation.to_string(),
        binding.status.to_string(),
        native,
        fidelity,
        created,
    ]
}
