//! `mainspring adapter`

use clap::Subcommand;
use mainspring_client::Capabilities;

use super::Context;
use super::fail::{Exit, Fail};
use super::home::{Home, Purpose};
use super::output::{DIM, GREEN};

/// List agent runtimes, and log in to them
#[derive(Subcommand)]
pub(super) enum Adapter {
    /// List adapters and what they can do
    List,
    /// Log in to an adapter's agent, for everybody who uses it. Agents keep their logins in their own way
    #[command(
        after_help = "A running `mainspring serve` keeps to what was chosen until it ends; `auth_method` of the \
adapter's settings says it for good."
    )]
    Login {
        /// The adapter
        adapter: String,
        /// One of the agent's ways, by its id [default: list those that it has named]
        method: Option<String>,
    },
}

impl Adapter {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, Fail> {
        let mut home = context.home(Purpose::Records).await?;
        let outcome = self.carry_out(context, &mut home).await;
        home.leave().await.and(outcome).map(|()| Exit::Done)
    }

    async fn carry_out(self, context: &Context<'_>, home: &mut Home<'_>) -> Result<(), Fail> {
        let output = context.output;
        match self {
            Self::List => {
                let adapters = home.ask(async |client| client.adapter_list().await).await?;
                if output.json {
                    return Ok(adapters.iter().try_for_each(|adapter| output.object(adapter))?);
                }
                let yes = |can: bool| if can { "yes" } else { "no" }.to_owned();
                let row = |adapter: &Capabilities| {
                    vec![
                        adapter.adapter.clone(),
                        adapter.resume_fidelity.name().to_owned(),
                        yes(adapter.supports_steering),
                        yes(adapter.supports_authentication),
                    ]
                };
                let rows = adapters.iter().map(row).collect();
                Ok(output.table(&["adapter", "resumes", "steers", "logs in"], rows)?)
            }
            Self::Login { adapter, method: None } => {
                let methods = home.ask(async |client| client.login_list(&adapter).await).await?;
                if output.json {
                    return Ok(methods.iter().try_for_each(|method| output.object(method))?);
                }
                if methods.is_empty() {
                    let none = "it has named no way to log in; an agent does when it is started";
                    return Ok(output.note(format_args!("{DIM}{none}{DIM:#}"))?);
                }
                let rows =
                    methods.into_iter().map(|method| vec![method.id, method.kind, method.display_name]);
                Ok(output.table(&["method", "type", "name"], rows.collect())?)
            }
            Self::Login { adapter, method: Some(method) } => {
                let busy = output.busy("the agent waits for the login");
                home.ask(async |client| client.login_create(&adapter, &method).await).await?;
                drop(busy);
                Ok(output.line(format_args!("{GREEN}logged in{GREEN:#} to {adapter} by {method}"))?)
            }
        }
    }
}
