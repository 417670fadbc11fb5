//! `mainspring adapter`

use clap::Subcommand;
use mainspring_client::Capabilities;

use super::Context;
use super::connection::{Connection, Purpose};
use super::error::{CliError, Exit};
use super::output::{DIM, GREEN};

/// List adapters and log in to their agents
#[derive(Subcommand)]
pub(super) enum Adapter {
    /// List adapters and their capabilities
    List,
    /// Log in to the agent of an adapter, for all its users
    #[command(
        after_help = "The agent stores the login itself. A running `mainspring serve` uses the chosen method until it exits; \
set `auth_method` of the adapter to make the choice permanent."
    )]
    Login {
        /// Adapter name
        adapter: String,
        /// Id of the login method [default: list the known methods]
        method: Option<String>,
    },
}

impl Adapter {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        let work = async |connection: &mut Connection<'_>| self.dispatch(context, connection).await;
        context.with_connection(Purpose::Records, work).await.map(|()| Exit::Done)
    }

    async fn dispatch(self, context: &Context<'_>, connection: &mut Connection<'_>) -> Result<(), CliError> {
        let output = context.output;
        match self {
            Self::List => {
                let adapters = connection.request(async |client| client.adapter_list().await).await?;
                if output.json {
                    return Ok(adapters.iter().try_for_each(|adapter| output.print_json(adapter))?);
                }
                let yes_no = |value: bool| if value { "yes" } else { "no" }.to_owned();
                let row = |adapter: &Capabilities| {
                    vec![
                        adapter.adapter.clone(),
                        adapter.resume_fidelity.name().to_owned(),
                        yes_no(adapter.supports_steering),
                        yes_no(adapter.supports_authentication),
                        adapter
                            .sandbox
                            .as_ref()
                            .map(|sandbox| sandbox.profile.name().to_owned())
                            .unwrap_or_default(),
                        adapter.unavailable.clone().unwrap_or_else(|| "none".to_owned()),
                    ]
                };
                let rows = adapters.iter().map(row).collect();
                Ok(output
                    .print_table(&["adapter", "resumes", "steers", "logs in", "sandbox", "problem"], rows)?)
            }
            Self::Login { adapter, method: None } => {
                let methods = connection.request(async |client| client.login_list(&adapter).await).await?;
                if output.json {
                    return Ok(methods.iter().try_for_each(|method| output.print_json(method))?);
                }
                if methods.is_empty() {
                    let hint = "no login method is known; an agent names its methods when it starts";
                    return Ok(output.print_note(format_args!("{DIM}{hint}{DIM:#}"))?);
                }
                let rows =
                    methods.into_iter().map(|method| vec![method.id, method.kind, method.display_name]);
                Ok(output.print_table(&["method", "type", "name"], rows.collect())?)
            }
            Self::Login { adapter, method: Some(method) } => {
                let busy = output.start_spinner("waiting for the login");
                connection.request(async |client| client.login_create(&adapter, &method).await).await?;
                drop(busy);
                Ok(output.print_line(format_args!("{GREEN}logged in{GREEN:#} to {adapter} with {method}"))?)
            }
        }
    }
}
