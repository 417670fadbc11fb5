//! `mainspring run delegate`

use clap::Args;
use mainspring_client::{Delegate, SessionTarget};
use mainspring_core::{BadId, Cost, DelegationMode, Mode, Position, RunLimits, RunOptions};

use crate::Context;
use crate::connection::Connection;
use crate::error::{CliError, Exit};
use crate::follow::follow_run;
use crate::ids::{find_run, find_session};

#[derive(Args)]
pub(crate) struct DelegateArgs {
    /// Id of the running run, or its beginning
    run: String,
    /// Objective of the child run
    #[arg(required = true)]
    objective: Vec<String>,
    /// Mode: call and continue wait for the result, spawn does not
    #[arg(long, value_parser = parse_mode, default_value = "call")]
    mode: DelegationMode,
    /// Background for the child, which sees nothing else of its parent
    #[arg(long, value_name = "TEXT")]
    context: Option<String>,
    /// Session of an earlier child to continue
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Let the child act instead of only answering
    #[arg(long)]
    act: bool,
    /// Adapter of the child [default: the run's]
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
    /// Model of the child
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Maximum cost in US dollars
    #[arg(long, value_name = "USD")]
    max_cost: Option<f64>,
}

fn parse_mode(name: &str) -> Result<DelegationMode, String> {
    DelegationMode::from_name(name).ok_or_else(|| "one of call, spawn, continue".into())
}

impl DelegateArgs {
    /// Delegates the work, and follows the child run if its result is awaited.
    pub(super) async fn dispatch(
        self,
        context: &Context<'_>,
        connection: &mut Connection<'_>,
    ) -> Result<Exit, CliError> {
        let (run, mode, output) = (find_run(connection, &self.run).await?, self.mode, context.output);
        let session_id = match self.session {
            Some(name) => {
                let id = find_session(connection, &name).await?;
                Some(id.parse().map_err(|bad: BadId| CliError::bad_request(bad.to_string()))?)
            }
            None => None,
        };
        let limits = RunLimits { max_cost: self.max_cost.map(Cost::from), ..RunLimits::default() };
        let delegate = Delegate {
            context: self.context,
            session: SessionTarget { session_id, ..SessionTarget::default() },
            adapter: self.adapter,
            run_mode: if self.act { Mode::Act } else { Mode::Ask },
            options: RunOptions { model: self.model, limits, ..RunOptions::default() },
            ..Delegate::new(mode, self.objective.join(" "))
        };
        let delegated = connection.request(async |client| client.run_delegate(run, &delegate).await).await?;
        if mode.is_awaited() {
            return follow_run(context, connection, &delegated.run, Position::START).await;
        }
        let (delegation, child) = (&delegated.delegation, &delegated.run);
        match output.json {
            true => output.print_json(delegation)?,
            false => output
                .print_line(format_args!("{} started {} in {}", delegation.id, child.id, child.session))?,
        }
        Ok(Exit::Done)
    }
}
