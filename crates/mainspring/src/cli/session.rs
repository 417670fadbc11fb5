//! `mainspring session`

use clap::Subcommand;
use mainspring_client::{Item, SessionChanges, SessionList, Snapshot};
use mainspring_core::{Body, Position, RunStatus, SessionStatus};

use super::fail::{Exit, Fail};
use super::home::{Home, Purpose};
use super::output::{self, BOLD, DIM, moment};
use super::watch::interrupted;
use super::{Context, run, tree};

/// List, show and change sessions
#[derive(Subcommand)]
pub(super) enum Session {
    /// List sessions, the latest activity first
    List {
        /// How many
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
        /// Archived ones instead of open ones
        #[arg(long)]
        archived: bool,
    },
    /// Show a session and its conversation
    Show {
        /// A key or a ses_… id
        session: String,
        /// How many messages
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
    },
    /// Follow what happens in a session, until Ctrl-C
    Tail {
        /// A key or a ses_… id
        session: String,
        /// Begin after this position (CURSOR.POS), or with `start` [default: now]
        #[arg(long, value_name = "POSITION")]
        after: Option<String>,
    },
    /// Draw a session's tree of messages
    Tree {
        /// A key or a ses_… id
        session: String,
    },
    /// Give a session a title
    Rename {
        /// A key or a ses_… id
        session: String,
        /// The title; empty for none
        title: String,
    },
    /// Put a session away; a new prompt takes it out again
    Archive {
        /// A key or a ses_… id
        session: String,
    },
    /// Take an archived session out again
    Reopen {
        /// A key or a ses_… id
        session: String,
    },
    /// Delete a session and everything of it
    Delete {
        /// A key or a ses_… id
        session: String,
    },
}

impl Session {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, Fail> {
        // Who follows a session for long serves it meanwhile, and so does its work.
        let purpose = if let Self::Tail { .. } = self { Purpose::Execute } else { Purpose::Records };
        let mut home = context.home(purpose).await?;
        let outcome = self.carry_out(context, &mut home).await;
        home.leave().await.and(outcome).map(|()| Exit::Done)
    }

    async fn carry_out(self, context: &Context<'_>, home: &mut Home<'_>) -> Result<(), Fail> {
        match self {
            Self::List { limit, archived } => list(context, home, limit, archived).await,
            Self::Show { session, limit } => show(context, home, &session, limit).await,
            Self::Tail { session, after } => tail(context, home, &session, after.as_deref()).await,
            Self::Tree { session } => {
                let nodes = home.ask(async |client| client.session_tree(&session).await).await?;
                match context.output.json {
                    true => nodes.iter().try_for_each(|node| context.output.object(node))?,
                    false => tree::draw(&nodes).iter().try_for_each(|line| context.output.line(line))?,
                }
                Ok(())
            }
            Self::Rename { session, title } => {
                let changes = SessionChanges { title: Some(Some(title)), ..SessionChanges::default() };
                change(context, home, &session, &changes, "renamed").await
            }
            Self::Archive { session } => {
                change(context, home, &session, &to(SessionStatus::Archived), "archived").await
            }
            Self::Reopen { session } => {
                change(context, home, &session, &to(SessionStatus::Open), "reopened").await
            }
            Self::Delete { session } => {
                let found = home.ask(async |client| client.session_get(&session).await).await?;
                home.ask(async |client| client.session_delete(&session).await).await?;
                let deleted = mainspring_core::Session { status: SessionStatus::Deleted, ..found };
                changed(context, &deleted, "deleted")
            }
        }
    }
}

fn to(status: SessionStatus) -> SessionChanges {
    SessionChanges { status: Some(status), ..SessionChanges::default() }
}

async fn change(
    context: &Context<'_>,
    home: &mut Home<'_>,
    session: &str,
    changes: &SessionChanges,
    what: &str,
) -> Result<(), Fail> {
    let session = home.ask(async |client| client.session_patch(session, changes, None).await).await?;
    changed(context, &session, what)
}

fn changed(context: &Context<'_>, session: &mainspring_core::Session, what: &str) -> Result<(), Fail> {
    let output = context.output;
    match output.json {
        true => output.object(session)?,
        false => {
            let name = session.key.clone().unwrap_or_else(|| session.id.to_string());
            output.line(format_args!("{what} {name}"))?;
        }
    }
    Ok(())
}

/// Shows events and text as they come.
async fn tail(
    context: &Context<'_>,
    home: &mut Home<'_>,
    session: &str,
    after: Option<&str>,
) -> Result<(), Fail> {
    let output = context.output;
    let from = match after {
        Some("start") => Position::START,
        Some(text) => {
            text.parse().map_err(|bad: mainspring_core::BadPosition| Fail::bad_request(bad.to_string()))?
        }
        None => home.ask(async |client| client.session_snapshot(session).await).await?.position,
    };
    let mut events = home.events(session, from);
    let mut mid_line = false;
    loop {
        let item = tokio::select! {
            item = events.next() => item,
            signal = interrupted() => return Ok(signal?),
        };
        let item = match item {
            None => return Ok(()),
            Some(Err(error)) if error.is_gone() && home.is_guest() => {
                home.renew().await?;
                events = home.events(session, events.position().unwrap_or(from));
                continue;
            }
            Some(item) => item?,
        };
        if let (Item::Live(live), false) = (&item, output.json) {
            if let Body::MessageDelta { text, .. } = &live.body {
                output.part(text)?;
                mid_line = !text.ends_with('\n');
            }
            continue;
        }
        if std::mem::take(&mut mid_line) {
            output.part("\n")?;
        }
        match item {
            Item::Event(event) if output.json => output.object(&event)?,
            Item::Live(live) => output.object(&live)?,
            Item::Event(event) => output.line(run::one_line(&event))?,
            Item::Reset(now) if output.json => output.object(&now)?,
            Item::Reset(_) => output.note("older events are not kept any more; going on from now")?,
            Item::Thought(thought) => output.note(format_args!("{DIM}· ({}){DIM:#}", thought.text))?,
            Item::Unknown { kind, .. } => output.note(format_args!("{DIM}· {kind}{DIM:#}"))?,
        }
    }
}

async fn list(context: &Context<'_>, home: &mut Home<'_>, limit: usize, archived: bool) -> Result<(), Fail> {
    let status = if archived { SessionStatus::Archived } else { SessionStatus::Open };
    let list = SessionList { status: Some(status), limit: Some(limit), ..SessionList::default() };
    let sessions = home.ask(async |client| client.session_list(&list).await).await?.items;
    if context.output.json {
        return Ok(sessions.iter().try_for_each(|session| context.output.object(session))?);
    }
    if sessions.is_empty() {
        context.output.note(match archived {
            true => "no archived sessions",
            false => "no sessions yet; begin one with: mainspring prompt --session NAME TEXT",
        })?;
        return Ok(());
    }
    let shown = sessions.len();
    let rows = sessions.into_iter().map(|listed| {
        let (session, latest) = (listed.session, listed.latest_run);
        let status = latest.as_ref().map_or_else(|| "-".into(), |run| output::status(run.state.status()));
        let name = session.key.clone().unwrap_or_else(|| session.id.to_string());
        vec![
            name,
            session.title.unwrap_or_default(),
            latest.map_or(0, |run| run.no).to_string(),
            status,
            moment(session.last_activity_at),
        ]
    });
    context.output.table(&["session", "title", "runs", "latest run", "last activity"], rows.collect())?;
    Ok(context.output.maybe_more(shown, limit)?)
}

async fn show(context: &Context<'_>, home: &mut Home<'_>, name: &str, limit: usize) -> Result<(), Fail> {
    let output = context.output;
    let messages = home.ask(async |client| client.session_messages(name, None, Some(limit)).await).await?;
    let snapshot = home.ask(async |client| client.session_snapshot(name).await).await?;
    let snapshot = Snapshot { messages, ..snapshot };
    if output.json {
        return Ok(output.object(&snapshot)?);
    }
    let session = &snapshot.session;
    output.line(format_args!(
        "{BOLD}{}{BOLD:#}",
        session.title.as_deref().or(session.key.as_deref()).unwrap_or("untitled")
    ))?;
    output.line(format_args!(
        "{DIM}{}  {}  adapter {}  since {}{DIM:#}",
        session.id,
        session.status.name(),
        session.adapter,
        moment(session.created_at)
    ))?;
    for run in snapshot.active_run.iter().chain(&snapshot.queued_runs) {
        output.line(format_args!("{} {}", output::status(run.state.status()), run.id))?;
        if let Some(wait) = run.state.wait().filter(|_| run.state.status() != RunStatus::Running) {
            output.line(format_args!("  {}", wait.question))?;
        }
    }
    for message in snapshot.messages.iter().chain(&snapshot.pending) {
        output.line("")?;
        output.line(format_args!(
            "{BOLD}{}{BOLD:#} {DIM}{} {}{DIM:#}",
            message.role, message.id, message.status
        ))?;
        for line in tree::blocks(&message.content) {
            output.line(line)?;
        }
    }
    if snapshot.messages.is_empty() && snapshot.pending.is_empty() {
        output.line(format_args!("{DIM}{}{DIM:#}", "no messages yet"))?;
    }
    Ok(())
}
