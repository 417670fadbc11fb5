//! `mainspring run`

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use clap::Subcommand;
use mainspring_client::{EventsQuery, RunListQuery};
use mainspring_core::{Cursor, Event, Position, RunId, RunStatus, SessionId};

use super::Context;
use super::connection::{Connection, Purpose};
use super::error::{CliError, Exit};
use super::event_line::format_event;
use super::follow::follow_run;
use super::ids::{find_run, find_session, suggest_session};
use super::output;

mod answer;
mod delegate;
mod processes;
mod retry;
mod route;
mod show;
mod steps;

use show::{format_run_duration, show_run};

/// List, show, cancel, retry, answer and delegate runs
#[derive(Subcommand)]
pub(super) enum Run {
    /// List runs, newest first
    List {
        /// List only the runs of this session (key, or id or its beginning)
        #[arg(long, short, value_name = "KEY|ID")]
        session: Option<String>,
        /// List only the runs with this status
        #[arg(long, value_parser = parse_status)]
        status: Option<RunStatus>,
        /// Maximum number of runs to list
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
    },
    /// Show a run and its attempts
    Show {
        /// Run id, or its beginning
        run: String,
    },
    /// Cancel a run
    Cancel {
        /// Run id, or its beginning
        run: String,
    },
    /// Retry a failed, timed-out or orphaned run, with other limits, another model or another adapter if given
    Retry(retry::RetryArgs),
    /// List the model calls of a run
    Steps {
        /// Run id, or its beginning
        run: String,
    },
    /// Show one model call of a run, with its input and its results, as JSON
    Step {
        /// Run id, or its beginning
        run: String,
        /// Number of the model call, from 1
        number: u32,
    },
    /// Draw the route of a run through its network of agents
    Route(route::RouteArgs),
    /// List the processes that a run left running, or end them
    Processes(processes::ProcessesArgs),
    /// Answer a waiting run and follow it
    Answer(answer::AnswerArgs),
    /// Delegate work of a running run to a child session
    Delegate(delegate::DelegateArgs),
    /// Print the events of a run
    Events {
        /// Run id, or its beginning
        run: String,
        /// Print only the events after this cursor
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

impl Run {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        let mut from = None;
        if let Self::Retry(retry) = &self {
            // Records the retry before any run executes, so that runs queued after this one do not start first.
            let mut connection = context.connect(Purpose::Records).await?;
            let retried = retry_run(&mut connection, retry).await;
            connection.close().await?;
            from = Some(retried?);
        }
        let executes = matches!(self, Self::Retry(_) | Self::Answer(_) | Self::Delegate(_));
        let mut connection =
            context.connect(if executes { Purpose::Execute } else { Purpose::Records }).await?;
        let outcome = self.dispatch(context, &mut connection, from).await;
        connection.close().await.and(outcome)
    }

    async fn dispatch(
        self,
        context: &Context<'_>,
        connection: &mut Connection<'_>,
        from: Option<Position>,
    ) -> Result<Exit, CliError> {
        let output = context.output;
        match self {
            Self::List { session, status, limit } => {
                list_runs(context, connection, session, status, limit).await?;
            }
            Self::Show { run } => {
                let run = find_run(connection, &run).await?;
                show_run(context, connection, run).await?;
            }
            Self::Steps { run } => {
                let run = find_run(connection, &run).await?;
                steps::print_steps(context, connection, run).await?;
            }
            Self::Step { run, number } => {
                let run = find_run(connection, &run).await?;
                let step = connection.request(async |client| client.run_step(run, number).await).await?;
                output.print_json(&step)?;
            }
            Self::Route(route) => route.dispatch(context, connection).await?,
            Self::Processes(processes) => processes.dispatch(context, connection).await?,
            Self::Cancel { run } => {
                let run = find_run(connection, &run).await?;
                let outcome = connection.request(async |client| client.run_cancel(run).await).await?;
                match output.json {
                    true => output.print_json(&outcome)?,
                    false => {
                        output.print_line(format_args!("{} {run}", output::format_status(outcome.status)))?;
                    }
                }
            }
            Self::Retry(retry) => {
                let run = find_run(connection, &retry.run).await?;
                let run = connection.request(async |client| client.run_get(run).await).await?;
                return follow_run(context, connection, &run, from.unwrap_or(Position::START)).await;
            }
            Self::Answer(answer) => return answer.dispatch(context, connection).await,
            Self::Delegate(delegate) => return delegate.dispatch(context, connection).await,
            Self::Events { run, after } => {
                let run = find_run(connection, &run).await?;
                print_events(context, connection, run, Cursor(after)).await?;
            }
        }
        Ok(Exit::Done)
    }
}

/// Puts the run back into the queue. Returns the position of its session's stream before the retry.
async fn retry_run(connection: &mut Connection<'_>, retry: &retry::RetryArgs) -> Result<Position, CliError> {
    let (run, options) = (find_run(connection, &retry.run).await?, retry.options());
    let before = session_position(connection, run).await?;
    connection.request(async |client| client.run_retry(run, &options).await).await?;
    Ok(before)
}

/// Returns the current position of the stream of the run's session.
pub(super) async fn session_position(
    connection: &mut Connection<'_>,
    run: RunId,
) -> Result<Position, CliError> {
    let session = connection.request(async |client| client.run_get(run).await).await?.session.to_string();
    Ok(connection.request(async |client| client.session_snapshot(&session).await).await?.position)
}

async fn list_runs(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    session: Option<String>,
    status: Option<RunStatus>,
    limit: usize,
) -> Result<(), CliError> {
    let session = match session {
        Some(name) => Some(find_session(connection, &name).await?),
        None => None,
    };
    let query = RunListQuery { session, status, limit: Some(limit), before: None };
    match connection.request(async |client| client.run_list(&query).await).await {
        Ok(page) => {
            context.output.print_damaged(&page.damaged)?;
            print_runs(context, connection, &page.items, limit).await
        }
        Err(error) => {
            let name = query.session.as_deref().unwrap_or_default();
            Err(suggest_session(connection, name, error).await)
        }
    }
}

/// Describes what needs attention: the open question of a waiting run, or the error of a failed one.
pub(super) fn run_note(run: &mainspring_core::Run) -> String {
    let question = run.state.wait().filter(|wait| wait.answer.is_none());
    match (question, run.state.error()) {
        (Some(wait), _) => format!("? {}", output::excerpt(&wait.question, 200)),
        (None, Some(error)) => format!("{}: {}", error.code, output::excerpt(&error.message, 200)),
        (None, None) => String::new(),
    }
}

async fn print_runs(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    runs: &[mainspring_core::Run],
    limit: usize,
) -> Result<(), CliError> {
    if context.output.json {
        return Ok(runs.iter().try_for_each(|run| context.output.print_json(run))?);
    }
    if runs.is_empty() {
        return Ok(context.output.print_note("no runs")?);
    }
    let mut names: HashMap<SessionId, String> = HashMap::new();
    for run in runs {
        if let Entry::Vacant(vacant) = names.entry(run.session) {
            let id = run.session.to_string();
            let session = connection.request(async |client| client.session_get(&id).await).await?;
            vacant.insert(session.key.unwrap_or_else(|| "-".into()));
        }
    }
    let rows = runs.iter().map(|run| {
        vec![
            output::format_id(run.id),
            names.get(&run.session).cloned().unwrap_or_default(),
            output::format_status(run.state.status()),
            run.attempts.to_string(),
            output::format_table_time(run.created_at),
            format_run_duration(run),
            run_note(run),
        ]
    });
    let headings = ["run", "session", "status", "attempts", "accepted", "took", "note"];
    context.output.print_table(&headings, rows.collect())?;
    Ok(context.output.print_limit_note(runs.len(), limit)?)
}

async fn print_events(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    run: RunId,
    after: Cursor,
) -> Result<(), CliError> {
    let events = all_events(connection, run).await?;
    for event in events.into_iter().filter(|event| event.cursor > after) {
        if context.output.json {
            context.output.print_json(&event)?;
            continue;
        }
        context.output.print_line(format_event(&event))?;
    }
    Ok(())
}

/// Fetches every event of a run.
pub(super) async fn all_events(connection: &mut Connection<'_>, run: RunId) -> Result<Vec<Event>, CliError> {
    let mut events: Vec<Event> = vec![];
    loop {
        let after = events.last().map_or(Position::START, Event::position);
        let query = EventsQuery::after(after, None);
        let page = connection.request(async |client| client.run_events_page(run, &query).await).await?;
        let last = page.next.is_none();
        events.extend(page.items);
        if last {
            return Ok(events);
        }
    }
}
