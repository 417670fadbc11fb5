//! `mainspring run processes`

use clap::Args;
use mainspring_core::LeftProcess;

use super::find_run;
use crate::Context;
use crate::connection::Connection;
use crate::error::CliError;

/// The arguments of `run processes`.
#[derive(Args)]
pub(crate) struct ProcessesArgs {
    /// Run id, or its beginning
    run: String,
    /// End the processes
    #[arg(long)]
    end: bool,
}

impl ProcessesArgs {
    pub(super) async fn dispatch(
        self,
        context: &Context<'_>,
        connection: &mut Connection<'_>,
    ) -> Result<(), CliError> {
        let (run, output) = (find_run(connection, &self.run).await?, context.output);
        let processes = match self.end {
            true => connection.request(async |client| client.run_processes_end(run).await).await?,
            false => connection.request(async |client| client.run_processes(run).await).await?,
        };
        if output.json {
            return Ok(processes.iter().try_for_each(|process| output.print_json(process))?);
        }
        if processes.is_empty() {
            return Ok(output.print_note("no process of this run is running")?);
        }
        let row = |process: &LeftProcess| vec![process.pid.to_string(), process.command.clone()];
        Ok(output.print_table(&["pid", "command"], processes.iter().map(row).collect())?)
    }
}
