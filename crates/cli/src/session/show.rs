//! `mainspring session show`

use mainspring_client::{MessageListQuery, Snapshot};
use mainspring_core::RunStatus;

use crate::Context;
use crate::connection::Connection;
use crate::error::CliError;
use crate::output::{self, BOLD, DIM, format_time};
use crate::tree;

pub(super) async fn show(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    name: &str,
    limit: usize,
) -> Result<(), CliError> {
    let output = context.output;
    let query = MessageListQuery { limit: Some(limit), before: None };
    let messages = connection.request(async |client| client.session_messages(name, &query).await).await?;
    let snapshot = connection.request(async |client| client.session_snapshot(name).await).await?;
    let snapshot = Snapshot { messages: messages.items, damaged: messages.damaged, ..snapshot };
    if output.json {
        return Ok(output.print_json(&snapshot)?);
    }
    output.print_damaged(&snapshot.damaged)?;
    let session = &snapshot.session;
    output.print_line(format_args!(
        "{BOLD}{}{BOLD:#}",
        session.title.as_deref().or(session.key.as_deref()).unwrap_or("untitled")
    ))?;
    output.print_line(format_args!(
        "{DIM}{}  {}  adapter {}  since {}{DIM:#}",
        session.id,
        session.status.name(),
        session.adapter,
        format_time(session.created_at)
    ))?;
    for rule in &session.rules {
        output.print_line(format_args!("{DIM}rule {rule}{DIM:#}"))?;
    }
    for run in snapshot.active_run.iter().chain(&snapshot.queued_runs) {
        output.print_line(format_args!("{} {}", output::format_status(run.state.status()), run.id))?;
        if let Some(wait) = run.state.wait().filter(|_| run.state.status() != RunStatus::Running) {
            output.print_line(format_args!("  {}", wait.question))?;
        }
    }
    for message in snapshot.messages.iter().chain(&snapshot.pending) {
        output.print_line("")?;
        output.print_line(format_args!(
            "{BOLD}{}{BOLD:#} {DIM}{} {}{DIM:#}",
            message.role, message.id, message.status
        ))?;
        for line in tree::format_blocks(&message.content) {
            output.print_line(line)?;
        }
    }
    if snapshot.messages.is_empty() && snapshot.pending.is_empty() {
        output.print_line(format_args!("{DIM}{}{DIM:#}", "no messages yet"))?;
    }
    Ok(())
}

/// `session usage`
pub(super) async fn show_usage(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    name: &str,
) -> Result<(), CliError> {
    let used = connection.request(async |client| client.session_usage(name).await).await?;
    match context.output.json {
        true => context.output.print_json(&used)?,
        false => {
            let line = |usage, runs| {
                let (usage, plural) = (output::format_usage(usage), if runs == 1 { "" } else { "s" });
                format!("{usage} in {runs} run{plural}")
            };
            context.output.print_line(line(&used.usage, used.runs))?;
            if used.delegated_runs > 0 {
                let delegated = line(&used.delegated_usage, used.delegated_runs);
                context.output.print_line(format_args!("{delegated} delegated to other sessions"))?;
                let total = line(&used.total_usage, used.runs + used.delegated_runs);
                context.output.print_line(format_args!("{total} together"))?;
            }
        }
    }
    Ok(())
}
