//! `mainspring feed`

use std::collections::HashMap;

use clap::Args;
use mainspring_client::{FeedItem, LiveChange, LiveSession, LiveStatus};
use mainspring_core::SessionId;
use mainspring_kernel::clock::Clock;
use serde_json::{Value, json};

use super::Context;
use super::connection::{Connection, Purpose};
use super::error::{CliError, Exit};
use super::follow::interrupt_signal;
use super::output::{CYAN, DIM, GREEN, Output, RED, YELLOW, format_time, json_value};

/// Print status changes of all sessions, until Ctrl-C
#[derive(Args)]
pub(super) struct Feed {}

impl Feed {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        // A long-running watcher may own the state directory, so it also executes queued runs.
        let work = async |connection: &mut Connection<'_>| print_feed(context.output, connection).await;
        context.with_connection(Purpose::Execute, work).await.map(|()| Exit::Done)
    }
}

/// Prints the feed until Ctrl-C.
async fn print_feed(output: &Output, connection: &mut Connection<'_>) -> Result<(), CliError> {
    let (clock, mut names) = (Clock::system(), HashMap::new());
    let mut interrupt = std::pin::pin!(interrupt_signal());
    let mut feed = connection.feed();
    loop {
        let item = tokio::select! {
            item = feed.next() => item,
            signal = &mut interrupt => return Ok(signal?),
        };
        let item = match item {
            Err(error) if error.is_gone() && connection.is_guest() => {
                connection.reconnect().await?;
                feed = connection.feed();
                continue;
            }
            item => item?,
        };
        if output.json {
            output.print_json(&to_json(&item))?;
            continue;
        }
        let at = format_time(clock.now());
        for line in format_item(&mut names, item) {
            output.print_line(format_args!("{DIM}{at}{DIM:#} {line}"))?;
        }
    }
}

/// Builds a JSON object of the item, with its type.
fn to_json(item: &FeedItem) -> Value {
    match item {
        FeedItem::Snapshot(snapshot) => {
            json!({"type": "snapshot", "sessions": json_value(snapshot)["sessions"]})
        }
        FeedItem::Change(change) => json_value(change),
        FeedItem::Unknown => json!({"type": "unknown"}),
    }
}

/// Formats an item; `names` caches the display names of sessions.
fn format_item(names: &mut HashMap<SessionId, String>, item: FeedItem) -> Vec<String> {
    let mut session_line = |session: &LiveSession| {
        let name = session.key.clone().unwrap_or_else(|| session.session_id.to_string());
        let title = session.title.as_ref().map(|title| format!("  {title}")).unwrap_or_default();
        let line = format!("{} {name}{DIM}{title}{DIM:#}", format_status(session.status));
        names.insert(session.session_id, name);
        line
    };
    let name_of = |names: &HashMap<_, _>, id: SessionId| names.get(&id).cloned().unwrap_or(id.to_string());
    match item {
        FeedItem::Snapshot(snapshot) if snapshot.sessions.is_empty() => {
            vec![format!("{DIM}no session is loaded{DIM:#}")]
        }
        FeedItem::Snapshot(snapshot) => snapshot.sessions.iter().map(session_line).collect(),
        FeedItem::Change(LiveChange::Opened(session)) => vec![session_line(&session)],
        FeedItem::Change(LiveChange::Status { session_id, status }) => {
            vec![format!("{} {}", format_status(status), name_of(names, session_id))]
        }
        FeedItem::Change(LiveChange::Title { session_id, title }) => {
            let title = title.unwrap_or_default();
            vec![format!("title  {}{DIM}  {title}{DIM:#}", name_of(names, session_id))]
        }
        FeedItem::Change(LiveChange::Closed { session_id }) => {
            vec![format!("{DIM}closed {}{DIM:#}", name_of(names, session_id))]
        }
        FeedItem::Change(LiveChange::Deleted { session_id }) => {
            vec![format!("deleted {}", name_of(names, session_id))]
        }
        FeedItem::Change(LiveChange::StoreFailed { message, .. }) => {
            vec![format!("{RED}nothing can be stored{RED:#}: {message}")]
        }
        FeedItem::Change(LiveChange::StoreRecovered {}) => {
            vec![format!("{DIM}the store can be written again{DIM:#}")]
        }
        FeedItem::Unknown => vec![],
    }
}

fn format_status(status: LiveStatus) -> String {
    match status {
        LiveStatus::Idle => format!("{GREEN}idle{GREEN:#}  "),
        LiveStatus::Busy => format!("{CYAN}busy{CYAN:#}  "),
        LiveStatus::Paused => format!("{YELLOW}paused{YELLOW:#}"),
    }
}
