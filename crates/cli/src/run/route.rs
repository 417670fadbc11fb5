//! `mainspring run route`

use std::path::PathBuf;

use crate::Context;
use crate::connection::Connection;
use crate::drawing;
use crate::error::CliError;
use crate::file::file_error;
use crate::ids::find_run;

/// Arguments of `run route`.
#[derive(clap::Args)]
pub(crate) struct RouteArgs {
    /// Run id, or its beginning
    run: String,
    /// Write the drawing as an SVG image to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl RouteArgs {
    pub(super) async fn dispatch(
        self,
        context: &Context<'_>,
        connection: &mut Connection<'_>,
    ) -> Result<(), CliError> {
        let run = find_run(connection, &self.run).await?;
        let route = connection.request(async |client| client.run_route(run).await).await?;
        match self.svg {
            Some(file) => {
                let drawn = drawing::route_svg(&route);
                std::fs::write(&file, drawn).map_err(|error| file_error(&file, &error))
            }
            None if context.output.json => Ok(context.output.print_json(&route)?),
            None if route.decisions.is_empty() => {
                Ok(context.output.print_note("no decisions: the agent of this run is not a network")?)
            }
            None => Ok(context.output.print(&drawing::route_text(&route))?),
        }
    }
}
