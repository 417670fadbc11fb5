//! `mainspring run show`

use std::io;

use mainspring_client::{ArtifactListQuery, RunDelegations};
use mainspring_core::{Artifact, Attempt, Budget, Grant, Rows, Run, RunId, RunOutput, Sandbox};
use serde_json::Value;

use crate::Context;
use crate::connection::Connection;
use crate::error::CliError;
use crate::output::{self, BOLD, DIM, Output, format_duration, format_time, json_value};

/// Maximum number of artifacts shown for a run, newest first.
const MAX_ARTIFACTS: usize = 50;
/// Maximum length in characters of each text shown of a run: its answer, its output, its goals and tasks.
const ANSWER_CHARS: usize = 200;

/// Everything that is shown of a run.
struct RunView {
    run: Run,
    attempts: Rows<Attempt>,
    grants: Vec<Grant>,
    artifacts: Rows<Artifact>,
    delegations: RunDelegations,
}

impl RunView {
    async fn fetch(connection: &mut Connection<'_>, run: RunId) -> Result<Self, CliError> {
        let query = ArtifactListQuery { limit: Some(MAX_ARTIFACTS), before: None };
        Ok(Self {
            run: connection.request(async |client| client.run_get(run).await).await?,
            attempts: connection.request(async |client| client.run_attempts(run).await).await?,
            grants: connection.request(async |client| client.run_grants(run).await).await?,
            artifacts: connection
                .request(async |client| client.run_artifacts(run, &query).await)
                .await?
                .rows(),
            delegations: connection.request(async |client| client.run_delegations(run).await).await?,
        })
    }

    fn to_json(&self) -> Value {
        let mut json = json_value(&self.run);
        json["attemptList"] = self.attempts.items.iter().map(json_value).collect();
        json["grantList"] = self.grants.iter().map(json_value).collect();
        json["artifactList"] = self.artifacts.items.iter().map(json_value).collect();
        json["delegationList"] = self.delegations.children.iter().map(json_value).collect();
        json["delegatedBy"] = self.delegations.parent.as_ref().map(json_value).unwrap_or_default();
        json
    }
}

/// `run show`
pub(super) async fn show_run(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    run: RunId,
) -> Result<(), CliError> {
    let (output, view) = (context.output, RunView::fetch(connection, run).await?);
    output.print_damaged(&view.attempts.damaged)?;
    output.print_damaged(&view.artifacts.damaged)?;
    if output.json {
        return Ok(output.print_json(&view.to_json())?);
    }
    print_run(output, &view.run)?;
    print_delegations(output, &view.delegations)?;
    for grant in &view.grants {
        let Grant { effect, capability, operation, resource_pattern, source, id, .. } = grant;
        output.print_line(format_args!(
            "grant     {effect} {capability} {operation} {resource_pattern} ({source}) {DIM}{id}{DIM:#}"
        ))?;
    }
    view.attempts.iter().try_for_each(|attempt| print_attempt(output, attempt))?;
    for artifact in view.artifacts.iter() {
        let name = artifact.name.as_deref().unwrap_or(&artifact.kind);
        let size = artifact.size_bytes.map(|size| format!(", {size} bytes")).unwrap_or_default();
        let (role, id) = (artifact.role, artifact.id);
        output.print_line(format_args!("artifact  {name} ({role}{size}) {DIM}{id}{DIM:#}"))?;
    }
    Ok(())
}

fn print_run(output: &Output, run: &Run) -> io::Result<()> {
    output.print_line(format_args!(
        "{BOLD}{}{BOLD:#} {}",
        run.id,
        output::format_status(run.state.status())
    ))?;
    if let Some(error) = run.state.error() {
        output.print_line(format_args!("error     {} ({})", error.message, error.code))?;
    }
    if let Some(wait) = run.state.wait() {
        output.print_line(format_args!("waits     {} ({})", wait.question, wait.request))?;
        for call in &wait.calls {
            let answered = if call.answered { ", answered" } else { "" };
            let input = output::excerpt(&call.input.to_string(), 100);
            output.print_line(format_args!("  {} {} {input}{answered}", call.tool_use_id, call.name))?;
        }
    }
    output.print_line(format_args!("session   {} (its run {})", run.session, run.no))?;
    output.print_line(format_args!("adapter   {}, mode {}", run.adapter, run.mode))?;
    output.print_line(format_args!(
        "accepted  {}  {}",
        format_time(run.created_at),
        format_run_duration(run)
    ))?;
    if let Some(request) = &run.request.request_id {
        output.print_line(format_args!("request   {request}"))?;
    }
    if !run.usage.is_zero() {
        output.print_line(format_args!("usage     {}", output::format_usage(&run.usage)))?;
    }
    if let Some(budget) = &run.budget {
        output.print_line(format_args!("budget    {}", format_budget(budget)))?;
    }
    if let Some(text) = run.final_text.as_ref().filter(|text| !text.is_empty()) {
        output.print_line(format_args!("answer    {}", output::excerpt(text, ANSWER_CHARS)))?;
    }
    print_goals(output, run)?;
    match run.output.as_deref() {
        Some(RunOutput { error: Some(error), .. }) => {
            output.print_line(format_args!("output    {} ({})", error.message, error.code))
        }
        Some(structured) => {
            let value = output::excerpt(&structured.value.to_string(), ANSWER_CHARS);
            output.print_line(format_args!("output    {value}"))
        }
        None => Ok(()),
    }
}

/// Prints the goals of a run and the plan of its agent.
fn print_goals(output: &Output, run: &Run) -> io::Result<()> {
    for goal in &run.goals {
        let detail = match (&goal.value, &goal.error) {
            (Some(value), _) => format!(": {}", output::excerpt(&value.to_string(), ANSWER_CHARS)),
            (None, Some(error)) => format!(": {}", output::excerpt(&error.message, ANSWER_CHARS)),
            (None, None) => String::new(),
        };
        let (goal_type, status, id) = (&goal.goal_type, goal.status, goal.id);
        output.print_line(format_args!("goal      {goal_type} {status}{detail} {DIM}{id}{DIM:#}"))?;
    }
    for task in &run.tasks {
        let title = output::excerpt(&task.title, ANSWER_CHARS);
        output.print_line(format_args!("task {:<4} {title} ({})", task.id, task.status))?;
    }
    Ok(())
}

fn print_delegations(output: &Output, delegations: &RunDelegations) -> io::Result<()> {
    if let Some(parent) = &delegations.parent {
        let (run, mode, id) = (parent.parent_run, parent.mode.name(), parent.id);
        output.print_line(format_args!("parent    {run} ({mode}) {DIM}{id}{DIM:#}"))?;
    }
    for child in &delegations.children {
        let (run, mode, status, id) = (child.child_run, child.mode.name(), child.status.name(), child.id);
        let objective = output::excerpt(&child.objective, 60);
        output.print_line(format_args!("child     {run} ({mode}) {status}: {objective} {DIM}{id}{DIM:#}"))?;
    }
    Ok(())
}

fn print_attempt(output: &Output, attempt: &Attempt) -> io::Result<()> {
    let error = attempt.error.as_ref().map(|error| format!(": {} ({})", error.message, error.code));
    let reason = attempt.retry_reason.map(|reason| format!("{} ({reason}) ", attempt.adapter));
    let duration = attempt.completed_at.map(|end| format_duration(end.since(attempt.created_at)));
    output.print_line(format_args!(
        "attempt {} {}{} {DIM}{}{} {}{DIM:#}",
        attempt.no,
        output::format_status(attempt.status),
        error.unwrap_or_default(),
        reason.unwrap_or_default(),
        duration.unwrap_or_default(),
        attempt.id
    ))?;
    if let Some(Sandbox { profile, note, .. }) = &attempt.sandbox {
        let note = note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
        output.print_line(format_args!("  sandbox {profile}{note}"))?;
    }
    for process in &attempt.left_running {
        output.print_line(format_args!("  left running {} {DIM}{}{DIM:#}", process.pid, process.command))?;
    }
    let stages = &attempt.cancellation;
    for (stage, at) in [
        ("requested", stages.requested_at),
        ("dispatched", stages.dispatched_at),
        ("acknowledged", stages.acknowledged_at),
    ] {
        if let Some(at) = at {
            output.print_line(format_args!("  cancellation {stage} {}", format_time(at)))?;
        }
    }
    Ok(())
}

pub(super) fn format_run_duration(run: &Run) -> String {
    run.completed_at.map(|end| format_duration(end.since(run.created_at))).unwrap_or_default()
}

/// Describes the budget a run has left.
fn format_budget(budget: &Budget) -> String {
    let steps = budget.max_steps.zip(budget.steps_left);
    let tokens = budget.max_tokens.zip(budget.tokens_left);
    let cost = budget.max_cost.zip(budget.cost_left);
    let parts = [
        steps.map(|(max, left)| format!("{left} of {max} model calls left")),
        tokens.map(|(max, left)| format!("{left} of {max} tokens left")),
        cost.map(|(max, left)| format!("{left} of {max} left")),
        budget.ends_at.map(|end| format!("until {}", format_time(end))),
        budget.exceeded.then(|| "a limit was exceeded".to_owned()),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
