//! `mainspring run steps`

use mainspring_core::{RunId, Step, Usage};

use crate::Context;
use crate::connection::Connection;
use crate::error::CliError;
use crate::output::{excerpt, format_duration};

/// Prints the model calls of a run.
pub(super) async fn print_steps(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    run: RunId,
) -> Result<(), CliError> {
    let steps = connection.request(async |client| client.run_steps(run).await).await?;
    context.output.print_damaged(&steps.damaged)?;
    if context.output.json {
        return Ok(steps.iter().try_for_each(|step| context.output.print_json(step))?);
    }
    if steps.is_empty() {
        return Ok(context.output.print_note("no model calls: only the native agent records them")?);
    }
    let headings = ["step", "model", "in", "out", "cost", "took", "tools", "stop"];
    Ok(context.output.print_table(&headings, steps.iter().map(row).collect())?)
}

fn row(step: &Step) -> Vec<String> {
    let stop = match &step.error {
        Some(error) => format!("{}: {}", error.code, excerpt(&error.message, 60)),
        None => step.stop_reason.to_string(),
    };
    let count = |of: fn(&Usage) -> String| step.usage.as_ref().map_or_else(|| "unknown".into(), of);
    vec![
        step.no.to_string(),
        format!("{}/{}", step.provider, step.model),
        count(|usage| usage.input_tokens.to_string()),
        count(|usage| usage.output_tokens.to_string()),
        count(|usage| usage.cost.to_string()),
        format_duration(step.completed_at.since(step.started_at)),
        step.tool_calls.len().to_string(),
        stop,
    ]
}
