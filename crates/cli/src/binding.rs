//! `mainspring binding`

use clap::Subcommand;
use mainspring_client::BindingListQuery;
use mainspring_core::Binding;

use super::Context;
use super::fail::{Exit, Fail};
use super::home::{Home, Purpose};
use super::output::{DIM, moment};

/// List the agents' own sessions that a session is tied to, or have one not used again
#[derive(Subcommand)]
pub(super) enum BindingCommand {
    /// List what a session is or was tied to, the newest generation of each agent runtime first
    List {
        /// A key or a ses_… id
        session: String,
        /// How many
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
        /// Those after this one: ADAPTER.GENERATION
        #[arg(long, value_name = "PLACE")]
        after: Option<String>,
    },
    /// Have the agent's own session not used again; the session stays, and its next run opens another
    Invalidate {
        /// A key or a ses_… id
        session: String,
        /// The agent runtime
        adapter: String,
    },
}

impl BindingCommand {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, Fail> {
        let mut home = context.home(Purpose::Records).await?;
        let outcome = self.carry_out(context, &mut home).await;
        home.leave().await.and(outcome).map(|()| Exit::Done)
    }

    async fn carry_out(self, context: &Context<'_>, home: &mut Home<'_>) -> Result<(), Fail> {
        let output = context.output;
        match self {
            Self::List { session, limit, after } => {
                let query = BindingListQuery { after, limit: Some(limit) };
                let page = home.ask(async |client| client.binding_page(&session, &query).await).await?;
                if output.json {
                    return Ok(page.items.iter().try_for_each(|binding| output.object(binding))?);
                }
                let heads = ["adapter", "generation", "status", "native session", "survives", "made"];
                output.table(&heads, page.items.iter().map(row).collect())?;
                match page.next {
                    Some(next) => Ok(output.note(format_args!("{DIM}more with --after {next}{DIM:#}"))?),
                    None => Ok(()),
                }
            }
            Self::Invalidate { session, adapter } => {
                let binding =
                    home.ask(async |client| client.binding_invalidate(&session, &adapter).await).await?;
                match output.json {
                    true => Ok(output.object(&binding)?),
                    false => Ok(output.line(format_args!("{} {}", binding.adapter, binding.status))?),
                }
            }
        }
    }
}

fn row(binding: &Binding) -> Vec<String> {
    let native = binding.native.as_deref().unwrap_or("–").to_owned();
    let survives = match binding.reconstructed {
        true => format!("{}, reconstructed", binding.fidelity),
        false => binding.fidelity.to_string(),
    };
    let made = moment(binding.created_at);
    vec![
        binding.adapter.clone(),
        binding.generation.to_string(),
        binding.status.to_string(),
        native,
        survives,
        made,
    ]
}
