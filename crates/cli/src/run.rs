//! `mainspring run`

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use clap::Subcommand;
use mainspring_client::{ArtifactListQuery, Delegate, EventsQuery, RunListQuery, SessionTarget};
use mainspring_core::{
    Answer, Approval, Budget, ClientResult, Cost, Cursor, DelegationMode, Event, Mode, Position, RunId,
    RunLimits, RunOptions, RunStatus, SessionId,
};
use serde_json::{Value, json};

use super::Context;
use super::fail::{Exit, Fail};
use super::home::{Home, Purpose};
use super::output::{self, BOLD, DIM, moment, span};
use super::watch::{tell_wait, watch};

/// List, show, cancel, retry, answer and delegate runs
#[derive(Subcommand)]
pub(super) enum Run {
    /// List runs, the newest first
    List {
        /// Only those of this session
        #[arg(long, short, value_name = "KEY|ID")]
        session: Option<String>,
        /// Only those in this status
        #[arg(long, value_parser = parse_status)]
        status: Option<RunStatus>,
        /// How many
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
    },
    /// Show a run and its attempts
    Show {
        /// The run
        run: RunId,
    },
    /// Stop a run
    Cancel {
        /// The run
        run: RunId,
    },
    /// Try a failed, timed-out or orphaned run again
    Retry {
        /// The run
        run: RunId,
    },
    /// Answer a run that waits
    Answer {
        /// The run
        run: RunId,
        /// The answer
        #[arg(
            required_unless_present_any = ["allow", "deny", "tool_result", "tool_error"],
            conflicts_with_all = ["allow", "deny", "tool_result", "tool_error"]
        )]
        text: Vec<String>,
        /// Approve
        #[arg(long, conflicts_with = "deny")]
        allow: bool,
        /// Refuse
        #[arg(long)]
        deny: bool,
        /// What came of a call of one of your tools; may be given more than once
        #[arg(long, value_name = "ID=TEXT", value_parser = parse_result, conflicts_with_all = ["allow", "deny"])]
        tool_result: Vec<(String, String)>,
        /// Why such a call failed; may be given more than once
        #[arg(long, value_name = "ID=TEXT", value_parser = parse_result, conflicts_with_all = ["allow", "deny"])]
        tool_error: Vec<(String, String)>,
    },
    /// Hand work of a run that is at work to a session of its own
    Delegate {
        /// The run
        run: RunId,
        /// What is to be achieved
        #[arg(required = true)]
        objective: Vec<String>,
        /// call or continue: wait for what comes of it; spawn: go on at once
        #[arg(long, value_parser = parse_mode, default_value = "call")]
        mode: DelegationMode,
        /// What the child needs to know; it sees nothing else of its parent
        #[arg(long, value_name = "TEXT")]
        context: Option<String>,
        /// The session of an earlier child, to continue
        #[arg(long, value_name = "ID")]
        session: Option<SessionId>,
        /// Let the child act, not only answer
        #[arg(long)]
        act: bool,
        /// The adapter; the run's if not given
        #[arg(long, value_name = "NAME")]
        adapter: Option<String>,
        /// The model
        #[arg(long, value_name = "NAME")]
        model: Option<String>,
        /// US dollars that it may cost
        #[arg(long, value_name = "USD")]
        max_cost: Option<f64>,
    },
    /// Replay the events of a run
    Events {
        /// The run
        run: RunId,
        /// Only those after this cursor
        #[arg(long, value_name = "CURSOR", default_value_t = 0)]
        after: u64,
    },
}

fn parse_status(name: &str) -> Result<RunStatus, String> {
    RunStatus::from_name(name).ok_or_else(|| {
        "one of queued, starting, running, waiting_input, waiting_approval, cancelling, succeeded, failed, cancelled, \
         timed_out, orphaned"
            .into()
    })
}

fn parse_mode(name: &str) -> Result<DelegationMode, String> {
    DelegationMode::from_name(name).ok_or_else(|| "one of call, spawn, continue".into())
}

fn parse_result(text: &str) -> Result<(String, String), String> {
    let (id, text) = text.split_once('=').ok_or("expected ID=TEXT, with the id of the call")?;
    Ok((id.to_owned(), text.to_owned()))
}

impl Run {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, Fail> {
        let mut from = None;
        if let Self::Retry { run } = &self {
            // Recorded before any run executes, so that runs queued later do not start first.
            let mut home = context.home(Purpose::Records).await?;
            let retried = retry(&mut home, *run).await;
            home.leave().await?;
            from = Some(retried?);
        }
        let executes = matches!(self, Self::Retry { .. } | Self::Answer { .. } | Self::Delegate { .. });
        let mut home = context.home(if executes { Purpose::Execute } else { Purpose::Records }).await?;
        let outcome = self.carry_out(context, &mut home, from).await;
        home.leave().await.and(outcome)
    }

    async fn carry_out(
        self,
        context: &Context<'_>,
        home: &mut Home<'_>,
        from: Option<Position>,
    ) -> Result<Exit, Fail> {
        let output = context.output;
        match self {
            Self::List { session, status, limit } => {
                let query = RunListQuery { session, status, limit: Some(limit), before: None };
                let page = home.ask(async |client| client.run_list(&query).await).await?;
                list(context, home, &page.items, limit).await?;
            }
            Self::Show { run } => show(context, home, run).await?,
            Self::Cancel { run } => {
                let outcome = home.ask(async |client| client.run_cancel(run).await).await?;
                match output.json {
                    true => output.object(&outcome)?,
                    false => output.line(format_args!("{} {run}", output::status(outcome.status)))?,
                }
            }
            Self::Retry { run } => {
                let run = home.ask(async |client| client.run_get(run).await).await?;
                return watch(context, home, &run, from.unwrap_or(Position::START)).await;
            }
            Self::Answer { run, text, allow, deny, tool_result, tool_error } => {
                let waiting = home.ask(async |client| client.run_get(run).await).await?;
                let Some(wait) = waiting.state.wait().map(|wait| wait.id) else {
                    let status = waiting.state.status();
                    let fail = Fail::bad_request(format!("{run} is {status} and waits for nothing"));
                    return Err(Fail { exit: Exit::Refused, code: "not_waiting".into(), ..fail });
                };
                let text = Some(text.join(" ")).filter(|text| !text.is_empty());
                let given = tool_result.into_iter().map(|result| (result, false));
                let results: Vec<ClientResult> = given
                    .chain(tool_error.into_iter().map(|result| (result, true)))
                    .map(|((tool_use_id, text), is_error)| ClientResult {
                        tool_use_id,
                        content: Value::String(text),
                        is_error,
                    })
                    .collect();
                if text.is_none() && !allow && !deny && results.is_empty() {
                    return Err(Fail::bad_request("an answer must not be empty"));
                }
                let answer = match text {
                    None if !results.is_empty() => Answer::Tools { results },
                    Some(text) => Answer::Input { input: Value::String(text) },
                    None if allow => Answer::Approval { decision: Approval::Allowed },
                    None => Answer::Approval { decision: Approval::Denied },
                };
                let now = position(home, run).await?;
                let answered = home.ask(async |client| client.run_answer(run, wait, &answer).await).await?;
                if let Some(open) = answered.state.wait().filter(|open| open.answer.is_none()) {
                    match output.json {
                        true => output.object(&answered)?,
                        false => tell_wait(context, run, open)?,
                    }
                    return Ok(Exit::Waiting);
                }
                return watch(context, home, &waiting, now).await;
            }
            Self::Delegate {
                run,
                objective,
                mode,
                context: told,
                session,
                act,
                adapter,
                model,
                max_cost,
            } => {
                let limits = RunLimits { max_cost: max_cost.map(Cost::from), ..RunLimits::default() };
                let delegate = Delegate {
                    context: told,
                    session: SessionTarget { session_id: session, ..SessionTarget::default() },
                    adapter,
                    run_mode: if act { Mode::Act } else { Mode::Ask },
                    options: RunOptions { model, limits, ..RunOptions::default() },
                    ..Delegate::new(mode, objective.join(" "))
                };
                let made = home.ask(async |client| client.run_delegate(run, &delegate).await).await?;
                if mode.is_awaited() {
                    return watch(context, home, &made.run, Position::START).await;
                }
                match output.json {
                    true => output.object(&made.delegation)?,
                    false => output.line(format_args!(
                        "{} {} works on it in {}",
                        made.delegation.id, made.run.id, made.run.session
                    ))?,
                }
            }
            Self::Events { run, after } => events(context, home, run, Cursor(after)).await?,
        }
        Ok(Exit::Done)
    }
}

/// Puts the run back into the queue and returns the previous position of its session's stream.
async fn retry(home: &mut Home<'_>, run: RunId) -> Result<Position, Fail> {
    let now = position(home, run).await?;
    home.ask(async |client| client.run_retry(run).await).await?;
    Ok(now)
}

/// Returns the current position of the session's stream.
async fn position(home: &mut Home<'_>, run: RunId) -> Result<Position, Fail> {
    let session = home.ask(async |client| client.run_get(run).await).await?.session.to_string();
    Ok(home.ask(async |client| client.session_snapshot(&session).await).await?.position)
}

async fn list(
    context: &Context<'_>,
    home: &mut Home<'_>,
    runs: &[mainspring_core::Run],
    limit: usize,
) -> Result<(), Fail> {
    if context.output.json {
        return Ok(runs.iter().try_for_each(|run| context.output.object(run))?);
    }
    if runs.is_empty() {
        return Ok(context.output.note("no runs")?);
    }
    let mut names: HashMap<SessionId, String> = HashMap::new();
    for run in runs {
        if let Entry::Vacant(vacant) = names.entry(run.session) {
            let id = run.session.to_string();
            let session = home.ask(async |client| client.session_get(&id).await).await?;
            vacant.insert(session.key.unwrap_or_else(|| "-".into()));
        }
    }
    let rows = runs.iter().map(|run| {
        let error = run.state.error().map(|error| error.code.clone()).unwrap_or_default();
        vec![
            run.id.to_string(),
            names.get(&run.session).cloned().unwrap_or_default(),
            output::status(run.state.status()),
            run.attempts.to_string(),
            moment(run.created_at),
            took(run),
            error,
        ]
    });
    let headings = ["run", "session", "status", "attempts", "accepted", "took", "error"];
    context.output.table(&headings, rows.collect())?;
    Ok(context.output.maybe_more(runs.len(), limit)?)
}

fn took(run: &mainspring_core::Run) -> String {
    run.completed_at.map(|end| span(end.since(run.created_at))).unwrap_or_default()
}

/// Describes the budget a run has left.
fn left(budget: &Budget) -> String {
    let steps = budget.max_steps.zip(budget.steps_left);
    let tokens = budget.max_tokens.zip(budget.tokens_left);
    let cost = budget.max_cost.zip(budget.cost_left);
    let parts = [
        steps.map(|(max, left)| format!("{left} of {max} model calls left")),
        tokens.map(|(max, left)| format!("{left} of {max} tokens left")),
        cost.map(|(max, left)| format!("{left} of {max} left")),
        budget.ends_at.map(|end| format!("until {}", moment(end))),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Maximum number of artifacts shown for a run, newest first.
const ARTIFACTS: usize = 50;

async fn show(context: &Context<'_>, home: &mut Home<'_>, run: RunId) -> Result<(), Fail> {
    let output = context.output;
    let run = home.ask(async |client| client.run_get(run).await).await?;
    let attempts = home.ask(async |client| client.run_attempts(run.id).await).await?;
    let grants = home.ask(async |client| client.run_grants(run.id).await).await?;
    let query = ArtifactListQuery { limit: Some(ARTIFACTS), before: None };
    let artifacts = home.ask(async |client| client.run_artifacts(run.id, &query).await).await?.items;
    let kin = home.ask(async |client| client.run_delegations(run.id).await).await?;
    if output.json {
        let mut json = serde_json::to_value(&run).unwrap_or_default();
        json["attemptList"] = json!(attempts);
        json["grantList"] = json!(grants);
        json["artifactList"] = json!(artifacts);
        json["delegationList"] = json!(kin.children);
        json["delegatedBy"] = json!(kin.parent);
        return Ok(output.object(&json)?);
    }
    output.line(format_args!("{BOLD}{}{BOLD:#} {}", run.id, output::status(run.state.status())))?;
    if let Some(error) = run.state.error() {
        output.line(format_args!("error     {} ({})", error.message, error.code))?;
    }
    if let Some(wait) = run.state.wait() {
        output.line(format_args!("waits     {} ({})", wait.question, wait.request))?;
        for call in &wait.calls {
            let answered = if call.answered { ", answered" } else { "" };
            let input = output::excerpt(&call.input.to_string(), 100);
            output.line(format_args!("  {} {} {input}{answered}", call.tool_use_id, call.name))?;
        }
    }
    output.line(format_args!("session   {} (run {} of it)", run.session, run.no))?;
    output.line(format_args!("adapter   {}, mode {}", run.adapter, run.mode))?;
    output.line(format_args!("accepted  {}  {}", moment(run.created_at), took(&run)))?;
    if let Some(request) = &run.request.request_id {
        output.line(format_args!("request   {request}"))?;
    }
    if !run.usage.is_zero() {
        let usage = &run.usage;
        output.line(format_args!(
            "usage     {} in, {} out, {}",
            usage.input_tokens, usage.output_tokens, usage.cost
        ))?;
    }
    if let Some(budget) = &run.budget {
        output.line(format_args!("budget    {}", left(budget)))?;
    }
    if let Some(parent) = kin.parent {
        output.line(format_args!(
            "parent    {} ({}) {DIM}{}{DIM:#}",
            parent.parent_run,
            parent.mode.name(),
            parent.id
        ))?;
    }
    for child in kin.children {
        let objective = output::excerpt(&child.objective, 60);
        output.line(format_args!(
            "child     {} ({}) {}: {objective} {DIM}{}{DIM:#}",
            child.child_run,
            child.mode.name(),
            child.status.name(),
            child.id
        ))?;
    }
    for grant in grants {
        let (effect, of) =
            (grant.effect, [grant.capability, grant.operation, grant.resource_pattern].join(" "));
        output.line(format_args!("grant     {effect} {of} ({}) {DIM}{}{DIM:#}", grant.source, grant.id))?;
    }
    for attempt in attempts {
        let error =
            attempt.error.map(|error| format!(": {} ({})", error.message, error.code)).unwrap_or_default();
        let took = attempt.completed_at.map(|end| span(end.since(attempt.created_at))).unwrap_or_default();
        output.line(format_args!(
            "attempt {} {}{error} {DIM}{took} {}{DIM:#}",
            attempt.no,
            output::status(attempt.status),
            attempt.id
        ))?;
        let stages = attempt.cancellation;
        for (stage, at) in [
            ("requested", stages.requested_at),
            ("dispatched", stages.dispatched_at),
            ("acknowledged", stages.acknowledged_at),
        ] {
            if let Some(at) = at {
                output.line(format_args!("  cancellation {stage} {}", moment(at)))?;
            }
        }
    }
    for artifact in artifacts {
        let name = artifact.name.as_deref().unwrap_or(&artifact.kind);
        let size = artifact.size_bytes.map(|size| format!(", {size} bytes")).unwrap_or_default();
        output
            .line(format_args!("artifact  {name} ({}{size}) {DIM}{}{DIM:#}", artifact.role, artifact.id))?;
    }
    Ok(())
}

async fn events(context: &Context<'_>, home: &mut Home<'_>, run: RunId, after: Cursor) -> Result<(), Fail> {
    let events = all_events(home, run).await?;
    for event in events.into_iter().filter(|event| event.cursor > after) {
        if context.output.json {
            context.output.object(&event)?;
            continue;
        }
        context.output.line(one_line(&event))?;
    }
    Ok(())
}

/// Formats an event on one line.
pub(super) fn one_line(event: &Event) -> String {
    let payload =
        serde_json::to_value(&event.body).map(|json| json["payload"].to_string()).unwrap_or_default();
    let payload = output::excerpt(&payload, 100);
    let (cursor, at, kind) = (event.cursor.0, moment(event.at), event.body.kind());
    format!("{DIM}{cursor:>6} {at}{DIM:#} {kind:<28} {payload}")
}

/// Fetches every event of a run.
pub(super) async fn all_events(home: &mut Home<'_>, run: RunId) -> Result<Vec<Event>, Fail> {
    let mut events: Vec<Event> = vec![];
    loop {
        let after = events.last().map_or(Position::START, Event::position);
        let query = EventsQuery::after(after, None);
        let page = home.ask(async |client| client.run_events_page(run, &query).await).await?;
        let last = page.next.is_none();
        events.extend(page.items);
        if last {
            return Ok(events);
        }
    }
}
