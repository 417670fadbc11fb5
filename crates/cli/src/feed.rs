//! `mainspring feed`

use std::collections::HashMap;

use clap::Args;
use mainspring_client::{FeedItem, LiveChange, LiveSession, LiveStatus};
use mainspring_core::SessionId;
use mainspring_kernel::clock::Clock;
use serde_json::{Value, json};

use super::Context;
use super::fail::{Exit, Fail};
use super::home::Purpose;
use super::output::{CYAN, DIM, GREEN, YELLOW, moment};
use super::watch::interrupted;

/// Follow what all sessions do, until Ctrl-C
#[derive(Args)]
pub(super) struct Feed {}

impl Feed {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, Fail> {
        // A long-running watcher may own the state directory, so it also executes queued runs.
        let mut home = context.home(Purpose::Execute).await?;
        let (output, clock) = (context.output, Clock::system());
        let mut names = HashMap::new();
        let mut interrupt = std::pin::pin!(interrupted());
        let outcome = 'feed: loop {
            let mut feed = home.feed();
            loop {
                let item = tokio::select! {
                    item = feed.next() => item,
                    signal = &mut interrupt => break 'feed signal.map_err(Fail::from),
                };
                let item = match item {
                    Err(error) if error.is_gone() && home.is_guest() => break,
                    Err(error) => break 'feed Err(error.into()),
                    Ok(item) => item,
                };
                let shown = if output.json {
                    output.object(&json(&item))
                } else {
                    let at = moment(clock.now());
                    lines(&mut names, item)
                        .iter()
                        .try_for_each(|line| output.line(format_args!("{DIM}{at}{DIM:#} {line}")))
                };
                if let Err(error) = shown {
                    break 'feed Err(error.into());
                }
            }
            if let Err(fail) = home.renew().await {
                break Err(fail);
            }
        };
        home.leave().await.and(outcome).map(|()| Exit::Done)
    }
}

/// Builds a JSON object of the item, with its type.
fn json(item: &FeedItem) -> Value {
    match item {
        FeedItem::Snapshot(snapshot) => json!({"type": "snapshot", "sessions": snapshot.sessions}),
        FeedItem::Change(change) => json!(change),
        FeedItem::Unknown => json!({"type": "unknown"}),
    }
}

/// Formats an item; `names` caches the display names of sessions.
fn lines(names: &mut HashMap<SessionId, String>, item: FeedItem) -> Vec<String> {
    let mut meet = |session: &LiveSession| {
        let name = session.key.clone().unwrap_or_else(|| session.session_id.to_string());
        let title = session.title.as_ref().map(|title| format!("  {title}")).unwrap_or_default();
        let line = format!("{} {name}{DIM}{title}{DIM:#}", status(session.status));
        names.insert(session.session_id, name);
        line
    };
    let called = |names: &HashMap<_, _>, id: SessionId| names.get(&id).cloned().unwrap_or(id.to_string());
    match item {
        FeedItem::Snapshot(snapshot) if snapshot.sessions.is_empty() => {
            vec![format!("{DIM}no session is in memory{DIM:#}")]
        }
        FeedItem::Snapshot(snapshot) => snapshot.sessions.iter().map(meet).collect(),
        FeedItem::Change(LiveChange::Opened(session)) => vec![meet(&session)],
        FeedItem::Change(LiveChange::Status { session_id, status: now }) => {
            vec![format!("{} {}", status(now), called(names, session_id))]
        }
        FeedItem::Change(LiveChange::Title { session_id, title }) => {
            let title = title.unwrap_or_default();
            vec![format!("title  {}{DIM}  {title}{DIM:#}", called(names, session_id))]
        }
        FeedItem::Change(LiveChange::Closed { session_id }) => {
            vec![format!("{DIM}closed {}{DIM:#}", called(names, session_id))]
        }
        FeedItem::Change(LiveChange::Deleted { session_id }) => {
            vec![format!("deleted {}", called(names, session_id))]
        }
        FeedItem::Unknown => vec![],
    }
}

fn status(status: LiveStatus) -> String {
    match status {
        LiveStatus::Idle => format!("{GREEN}idle{GREEN:#}  "),
        LiveStatus::Busy => format!("{CYAN}busy{CYAN:#}  "),
        LiveStatus::Paused => format!("{YELLOW}paused{YELLOW:#}"),
    }
}
