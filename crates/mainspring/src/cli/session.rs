//! `mainspring session`

use clap::Subcommand;
use mainspring_core::{RunStatus, SessionStatus};
use mainspring_kernel::kernel::{Kernel, SessionPatch, SessionQuery, session_ref};
use mainspring_kernel::store::SessionRef;
use serde_json::json;

use super::fail::{Exit, Fail};
use super::output::{self, BOLD, DIM, moment};
use super::{Context, tree};

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
        let node = context.records().await?;
        let outcome = self.carry_out(context, node.kernel()).await;
        node.close().await;
        outcome.map(|()| Exit::Done)
    }

    async fn carry_out(self, context: &Context<'_>, kernel: &Kernel) -> Result<(), Fail> {
        let (caller, output) = (context.caller(), context.output);
        let changed = |session: mainspring_core::Session, what: &str| match output.json {
            true => output.object(&session),
            false => output
                .line(format_args!("{what} {}", session.key.as_deref().unwrap_or(&session.id.to_string()))),
        };
        match self {
            Self::List { limit, archived } => list(context, kernel, limit, archived).await?,
            Self::Show { session, limit } => show(context, kernel, &session_ref(&session)?, limit).await?,
            Self::Tree { session } => {
                let tree = kernel.session_tree(&caller, &session_ref(&session)?).await?;
                match output.json {
                    true => tree.nodes.iter().try_for_each(|node| output.object(node))?,
                    false => tree::draw(&tree).iter().try_for_each(|line| output.line(line))?,
                }
            }
            Self::Rename { session, title } => {
                let session = kernel
                    .session_patch(
                        &caller,
                        &session_ref(&session)?,
                        SessionPatch { title: Some(Some(title)), ..SessionPatch::default() },
                    )
                    .await?;
                changed(session, "renamed")?;
            }
            Self::Archive { session } => changed(
                kernel.session_patch(&caller, &session_ref(&session)?, to(SessionStatus::Archived)).await?,
                "archived",
            )?,
            Self::Reopen { session } => changed(
                kernel.session_patch(&caller, &session_ref(&session)?, to(SessionStatus::Open)).await?,
                "reopened",
            )?,
            Self::Delete { session } => {
                changed(kernel.session_delete(&caller, &session_ref(&session)?).await?, "deleted")?;
            }
        }
        Ok(())
    }
}

fn to(status: SessionStatus) -> SessionPatch {
    SessionPatch { status: Some(status), ..SessionPatch::default() }
}

async fn list(context: &Context<'_>, kernel: &Kernel, limit: usize, archived: bool) -> Result<(), Fail> {
    let status = if archived { SessionStatus::Archived } else { SessionStatus::Open };
    let query = SessionQuery { status: Some(status), limit: Some(limit), ..SessionQuery::default() };
    let sessions = kernel.session_list(&context.caller(), query).await?;
    if context.output.json {
        for (session, latest) in &sessions {
            let mut json = serde_json::to_value(session).unwrap_or_default();
            json["latestRun"] = json!(latest);
            context.output.object(&json)?;
        }
        return Ok(());
    }
    if sessions.is_empty() {
        context.output.note(match archived {
            true => "no archived sessions",
            false => "no sessions yet; begin one with: mainspring prompt --session NAME TEXT",
        })?;
        return Ok(());
    }
    let shown = sessions.len();
    let rows = sessions.into_iter().map(|(session, latest)| {
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

async fn show(context: &Context<'_>, kernel: &Kernel, by: &SessionRef, limit: usize) -> Result<(), Fail> {
    let (caller, output) = (context.caller(), context.output);
    let session = kernel.session_get(&caller, by).await?;
    let messages = kernel.session_path(&caller, by, None, Some(limit)).await?;
    let snapshot = kernel.session_snapshot(&caller, by).await?;
    if output.json {
        let mut json = serde_json::to_value(&session).unwrap_or_default();
        json["messages"] = json!(messages);
        json["activeRun"] = json!(snapshot.active);
        json["queuedRuns"] = json!(snapshot.queued);
        json["position"] = json!(snapshot.position);
        return Ok(output.object(&json)?);
    }
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
    for run in snapshot.active.iter().chain(&snapshot.queued) {
        output.line(format_args!("{} {}", output::status(run.state.status()), run.id))?;
        if let Some(wait) = run.state.wait().filter(|_| run.state.status() != RunStatus::Running) {
            output.line(format_args!("  {}", wait.question))?;
        }
    }
    for message in messages.iter().chain(&snapshot.pending) {
        output.line("")?;
        output.line(format_args!(
            "{BOLD}{}{BOLD:#} {DIM}{} {}{DIM:#}",
            message.role, message.id, message.status
        ))?;
        for line in tree::blocks(&message.content) {
            output.line(line)?;
        }
    }
    if session.tip.is_none() && snapshot.pending.is_empty() {
        output.line(format_args!("{DIM}{}{DIM:#}", "no messages yet"))?;
    }
    Ok(())
}
