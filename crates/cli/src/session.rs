//! `mainspring session`

use std::path::PathBuf;

use clap::{Args, Subcommand};
use mainspring_client::{
    Fork, Item, MessageListQuery, NewName, SearchQuery, SessionListQuery, SessionPatch, SessionTarget,
    Snapshot,
};
use mainspring_core::{BadId, Body, MessageId, Position, RunOptions, RunStatus, SessionStatus};
use mainspring_system::ids::Ids;
use serde::Serialize;

use super::fail::{Exit, Fail};
use super::home::{Home, Purpose};
use super::output::{self, BOLD, DIM, moment};
use super::prompt::deliver;
use super::watch::interrupted;
use super::{Context, adopt, file, run, tree};

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
    /// Make a session; its key must be free
    New {
        /// Its key [default: none; it is found by its id]
        key: Option<String>,
        #[command(flatten)]
        like: Like,
    },
    /// Take a session up again: what its prompts are to be sent with, once these options count. Writes nothing
    Load {
        /// A key or a ses_… id
        session: String,
        #[command(flatten)]
        like: Like,
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
    /// Draw a session's tree of messages: its branches, the active path, where each message's cursor leads
    Tree {
        /// A key or a ses_… id
        session: String,
        /// Write a picture to this file instead
        #[arg(long, value_name = "FILE", conflicts_with = "json")]
        svg: Option<PathBuf>,
    },
    /// Branch: answer a user message again, or say something else after an assistant message
    Branch {
        /// A key or a ses_… id
        session: String,
        /// The message to branch from; none with --root
        #[arg(required_unless_present = "root", conflicts_with = "root")]
        message: Option<MessageId>,
        /// What to say: after an assistant message, and as a new root
        text: Vec<String>,
        /// Begin a new conversation within the session
        #[arg(long, value_name = "TEXT")]
        root: Option<String>,
    },
    /// Move the active path to a message, or to none: the next prompt goes on from there
    Navigate {
        /// A key or a ses_… id
        session: String,
        /// The message; `none` for an empty path
        message: String,
    },
    /// Make a new session that goes on from a message of this one; nothing is copied
    Fork {
        /// A key or a ses_… id
        session: String,
        /// The message
        message: MessageId,
        /// The fork's key
        #[arg(long = "as", value_name = "KEY")]
        key: Option<String>,
        /// The fork's title
        #[arg(long)]
        title: Option<String>,
    },
    /// Find sessions by their titles and by what was said in them
    Search {
        /// The words
        #[arg(required = true)]
        words: Vec<String>,
        /// How many
        #[arg(long, value_name = "N", default_value_t = 20)]
        limit: usize,
    },
    /// Write a session to a file of JSON Lines, with everything that was said in it
    Export {
        /// A key or a ses_… id
        session: String,
        /// The file [default: standard output]
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Make a session of such a file, all of it or nothing
    Import {
        /// The file; `-` for standard input
        file: PathBuf,
    },
    /// Tie a session to an agent's own session that exists already; the session is made if there is none
    Adopt(adopt::Adopt),
    /// Keep a session at hand
    Pin {
        /// A key or a ses_… id
        session: String,
    },
    /// Not any more
    Unpin {
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

/// What a session is like.
#[derive(Args)]
pub(super) struct Like {
    /// A title, if it is new
    #[arg(long)]
    title: Option<String>,
    /// The agent runtime, if it is new
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
    /// The model, unless it has one
    #[arg(long)]
    model: Option<String>,
    /// Instructions for the agent
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// The folder the agent works in
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
}

/// A started session, as JSON: the same whether it was in memory or not.
#[derive(Serialize)]
struct Started<'a> {
    #[serde(flatten)]
    session: &'a mainspring_core::Session,
    options: Option<&'a RunOptions>,
}

async fn start(
    context: &Context<'_>,
    home: &mut Home<'_>,
    new: Option<NewName>,
    load: Option<String>,
    like: Like,
) -> Result<(), Fail> {
    let Like { title, adapter, model, system, cwd } = like;
    let (what, surface_kind) = (if new.is_some() { "made" } else { "loaded" }, Some("cli".to_owned()));
    let target = SessionTarget {
        new,
        load,
        title,
        adapter,
        surface_kind,
        model,
        system_prompt: system,
        cwd,
        ..SessionTarget::default()
    };
    let started = home.ask(async |client| client.session_resolve(&target, None).await).await?;
    match context.output.json {
        true => Ok(context
            .output
            .object(&Started { session: &started.session, options: started.options.as_ref() })?),
        false => changed(context, &started.session, what),
    }
}

impl Session {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, Fail> {
        if let Self::Branch { session, message, text, root } = self {
            let prompt = tree::branch(context, session, message, text.join(" "), root).await?;
            return deliver(context, &prompt).await;
        }
        // A long-running `tail` may own the state directory, so it also executes queued runs.
        let purpose = if let Self::Tail { .. } = self { Purpose::Execute } else { Purpose::Records };
        let mut home = context.home(purpose).await?;
        let outcome = self.carry_out(context, &mut home).await;
        home.leave().await.and(outcome).map(|()| Exit::Done)
    }

    async fn carry_out(self, context: &Context<'_>, home: &mut Home<'_>) -> Result<(), Fail> {
        match self {
            Self::List { limit, archived } => list(context, home, limit, archived).await,
            Self::New { key, like } => {
                start(context, home, Some(key.map_or(NewName::Any(true), NewName::Key)), None, like).await
            }
            Self::Load { session, like } => start(context, home, None, Some(session), like).await,
            Self::Show { session, limit } => show(context, home, &session, limit).await,
            Self::Tail { session, after } => tail(context, home, &session, after.as_deref()).await,
            // `Branch` is sent as a prompt before this point.
            Self::Branch { .. } => Ok(()),
            Self::Tree { session, svg } => tree::show(context, home, &session, svg.as_deref()).await,
            Self::Navigate { session, message } => {
                let message = match message.as_str() {
                    "none" => None,
                    id => Some(id.parse().map_err(|bad: BadId| Fail::bad_request(bad.to_string()))?),
                };
                let session =
                    home.ask(async |client| client.session_navigate(&session, message, None).await).await?;
                changed(context, &session, "navigated")
            }
            Self::Fork { session, message, key, title } => {
                let (fork, name) = (Fork { message_id: message, key, title }, Ids::system().secret());
                let made = home.ask(async |client| client.session_fork(&session, &fork, &name).await).await?;
                changed(context, &made, "forked")
            }
            Self::Search { words, limit } => search(context, home, &words.join(" "), limit).await,
            Self::Export { session, output } => file::export(home, &session, output.as_deref()).await,
            Self::Import { file } => {
                let bytes = file::read(&file)?;
                let made = home.ask(async |client| client.session_import(bytes.clone()).await).await?;
                changed(context, &made, "imported")
            }
            Self::Adopt(adopt) => adopt.carry_out(context, home).await,
            Self::Pin { session } => change(context, home, &session, &pin(true), "pinned").await,
            Self::Unpin { session } => change(context, home, &session, &pin(false), "unpinned").await,
            Self::Rename { session, title } => {
                let changes = SessionPatch { title: Some(Some(title)), ..SessionPatch::default() };
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

fn pin(pinned: bool) -> SessionPatch {
    SessionPatch { pinned: Some(pinned), ..SessionPatch::default() }
}

async fn search(context: &Context<'_>, home: &mut Home<'_>, words: &str, limit: usize) -> Result<(), Fail> {
    let output = context.output;
    let query = SearchQuery { q: words.to_owned(), limit: Some(limit), before: None };
    let found = home.ask(async |client| client.session_search(&query).await).await?.items;
    if output.json {
        return Ok(found.iter().try_for_each(|hit| output.object(hit))?);
    }
    if found.is_empty() {
        return Ok(output.note("nothing found")?);
    }
    for hit in &found {
        let id = hit.session_id.to_string();
        let title = hit.title.as_deref().unwrap_or("untitled");
        output.line(format_args!("{BOLD}{title}{BOLD:#} {DIM}{id}{DIM:#}"))?;
        if let (Some(message), Some(role)) = (hit.message_id, hit.role) {
            output.line(format_args!("  {role} {DIM}{message}{DIM:#}"))?;
            output.line(format_args!("  {}", hit.snippet))?;
        }
    }
    Ok(output.maybe_more(found.len(), limit)?)
}

fn to(status: SessionStatus) -> SessionPatch {
    SessionPatch { status: Some(status), ..SessionPatch::default() }
}

async fn change(
    context: &Context<'_>,
    home: &mut Home<'_>,
    session: &str,
    changes: &SessionPatch,
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

/// Shows events and text as they arrive.
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
    let mut interrupt = std::pin::pin!(interrupted());
    loop {
        let item = tokio::select! {
            item = events.next() => item,
            signal = &mut interrupt => return Ok(signal?),
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
    let list = SessionListQuery { status: Some(status), limit: Some(limit), ..SessionListQuery::default() };
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
    let query = MessageListQuery { limit: Some(limit), before: None };
    let messages = home.ask(async |client| client.session_messages(name, &query).await).await?;
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
