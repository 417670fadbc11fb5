//! `mainspring session list` and `mainspring session search`

use clap::ValueEnum;
use mainspring_client::{ListedSession, Scope, SearchQuery, SessionListQuery};
use mainspring_core::SessionStatus;

use crate::Context;
use crate::connection::Connection;
use crate::error::CliError;
use crate::output::{self, BOLD, DIM};
use crate::run::run_note;

/// Whose sessions a command reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ScopeArg {
    /// Your own sessions
    Own,
    /// The sessions that members of your org share with it
    Org,
    /// All sessions that you may read
    All,
}

impl ScopeArg {
    /// The scope to request; none for the server's default, because earlier servers do not know the field.
    fn query_scope(self) -> Option<Scope> {
        match self {
            Self::Own => None,
            Self::Org => Some(Scope::Org),
            Self::All => Some(Scope::All),
        }
    }
}

pub(super) async fn list(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    limit: usize,
    (status, loaded): (SessionStatus, bool),
    scope: ScopeArg,
) -> Result<(), CliError> {
    let list = SessionListQuery {
        scope: scope.query_scope(),
        status: Some(status),
        limit: Some(limit),
        open: loaded.then_some(true),
        ..SessionListQuery::default()
    };
    let page = connection.request(async |client| client.session_list(&list).await).await?;
    context.output.print_damaged(&page.damaged)?;
    let sessions = page.items;
    if context.output.json {
        return Ok(sessions.iter().try_for_each(|session| context.output.print_json(session))?);
    }
    if sessions.is_empty() {
        context.output.print_note(match status {
            SessionStatus::Archived => "no archived sessions",
            SessionStatus::Closed => "no closed sessions",
            _ if loaded => "no sessions in memory",
            _ if scope == ScopeArg::Org => "no member of the org shares a session",
            _ => "no sessions yet; start one with: mainspring prompt --session NAME TEXT",
        })?;
        return Ok(());
    }
    let count = sessions.len();
    let rows = sessions.into_iter().map(|listed| row(listed, scope));
    let mut headings = vec!["session", "title", "runs", "latest run", "last activity", "note"];
    if scope != ScopeArg::Own {
        headings.insert(1, "owner");
    }
    context.output.print_table(&headings, rows.collect())?;
    Ok(context.output.print_limit_note(count, limit)?)
}

/// Builds the row of a session. A key names a session only among those of one owner, so sessions of others are listed
/// by id.
fn row(listed: ListedSession, scope: ScopeArg) -> Vec<String> {
    let (session, latest) = (listed.session, listed.latest_run);
    let status = latest.as_ref().map_or_else(|| "-".into(), |run| output::format_status(run.state.status()));
    let key = session.key.clone().filter(|_| scope == ScopeArg::Own);
    let mut cells = vec![
        key.unwrap_or_else(|| output::format_id(session.id)),
        session.title.unwrap_or_default(),
        latest.as_ref().map_or(0, |run| run.no).to_string(),
        status,
        output::format_table_time(session.last_activity_at),
        latest.as_ref().map(run_note).unwrap_or_default(),
    ];
    if scope != ScopeArg::Own {
        cells.insert(1, session.owner);
    }
    cells
}

pub(super) async fn search(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    words: &str,
    limit: usize,
    scope: ScopeArg,
) -> Result<(), CliError> {
    let output = context.output;
    let (q, scope) = (words.to_owned(), scope.query_scope());
    let query = SearchQuery { q, limit: Some(limit), scope, ..SearchQuery::default() };
    let page = connection.request(async |client| client.session_search(&query).await).await?;
    output.print_damaged(&page.damaged)?;
    let hits = page.items;
    if output.json {
        return Ok(hits.iter().try_for_each(|hit| output.print_json(hit))?);
    }
    if hits.is_empty() {
        return Ok(output.print_note("nothing found")?);
    }
    for hit in &hits {
        let id = hit.session_id.to_string();
        let title = hit.title.as_deref().unwrap_or("untitled");
        output.print_line(format_args!("{BOLD}{title}{BOLD:#} {DIM}{id}{DIM:#}"))?;
        if let (Some(message), Some(role)) = (hit.message_id, hit.role) {
            output.print_line(format_args!("  {role} {DIM}{message}{DIM:#}"))?;
            output.print_line(format_args!("  {}", hit.snippet))?;
        }
    }
    Ok(output.print_limit_note(hits.len(), limit)?)
}
