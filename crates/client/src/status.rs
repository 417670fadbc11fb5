//! The status of all of the caller's sessions: a projection of their events, and of nothing else.
//!
//! ```text
//! unknown ──list, then events up to now──▶ current ──the connection breaks──▶ stale
//!                                             ▲                                 │
//!                                             └──list, then events up to now────┘
//! ```
//!
//! Invariants: a status is what mainspring said, never what this process concludes; that nobody answers makes what is known
//! stale, and ends no run. While the past is being caught up with, nothing of it is shown.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainspring_core::{ExternalRef, Position, RunId, RunStatus, SessionId};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::bridge::Surface;
use crate::pause::pause;
use crate::{Client, Error, OwnerItem, RunListQuery, SessionListQuery};

mod statuses;

use statuses::Statuses;
pub use statuses::{RunView, SessionView};

/// The events that a status is made of, by the first words of their types.
const WORDS: &[&str] = &["session", "run", "attempt", "progress", "usage"];
/// The pauses between tries to come back: the first, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));
/// How many sessions are listed at a time.
const PAGE: usize = 200;
/// Where a run stands that has not ended.
const LIVE: [RunStatus; 6] = [
    RunStatus::Queued,
    RunStatus::Starting,
    RunStatus::Running,
    RunStatus::WaitingInput,
    RunStatus::WaitingApproval,
    RunStatus::Cancelling,
];

/// How true what is known is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Standing {
    /// Nothing is known yet.
    #[default]
    Unknown,
    /// It is as mainspring says.
    Current,
    /// It was so when mainspring was last heard. What became of it since is not known.
    Stale {
        /// Why it is not heard.
        why: String,
    },
}

/// Where the sessions and runs of one caller stand. Follows their events as long as it lives.
pub struct StatusStore {
    known: Arc<Known>,
    _follows: JoinSet<()>,
}

#[derive(Default)]
struct Known {
    statuses: Mutex<(Statuses, Standing)>,
    version: watch::Sender<u64>,
}

impl StatusStore {
    /// Follows the sessions of `client`, also when its server leaves and comes back.
    pub fn follow(client: Client) -> Self {
        let known = Arc::<Known>::default();
        let mut follows = JoinSet::new();
        follows.spawn(follow(known.clone(), client));
        Self { known, _follows: follows }
    }

    /// How true what is known is.
    pub fn standing(&self) -> Standing {
        self.known.lock().1.clone()
    }

    /// A session; none if it is not known.
    pub fn session(&self, session: SessionId) -> Option<SessionView> {
        self.known.lock().0.session(session).cloned()
    }

    /// A run that has not ended, or is its session's latest; none if it is not known.
    pub fn run(&self, run: RunId) -> Option<RunView> {
        self.known.lock().0.run(run).cloned()
    }

    /// A session's latest run.
    pub fn latest_run(&self, session: SessionId) -> Option<RunView> {
        self.known.lock().0.latest(session).cloned()
    }

    /// The session of a surface, and its latest run.
    pub fn surface(&self, surface: &Surface) -> Option<(SessionView, Option<RunView>)> {
        self.external(&surface.external_ref)
    }

    /// The session that stands for something, and its latest run.
    pub fn external(&self, external: &ExternalRef) -> Option<(SessionView, Option<RunView>)> {
        let known = self.known.lock();
        let session = known.0.external(external)?;
        Some((session.clone(), known.0.latest(session.session_id).cloned()))
    }

    /// Changes whenever something that is known does.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.known.version.subscribe()
    }

    /// What `look` finds, once it finds something: now, or after some change.
    pub async fn until<T>(&self, look: impl Fn(&Self) -> Option<T>) -> T {
        let mut changes = self.changes();
        loop {
            changes.mark_unchanged();
            if let Some(found) = look(self) {
                return found;
            }
            // The sender lives as long as this.
            let _ = changes.changed().await;
        }
    }
}

impl Known {
    fn lock(&self) -> std::sync::MutexGuard<'_, (Statuses, Standing)> {
        self.statuses.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Statuses, &mut Standing)) {
        let mut known = self.lock();
        let (statuses, standing) = &mut *known;
        change(statuses, standing);
        drop(known);
        self.version.send_modify(|version| *version += 1);
    }
}

/// Follows, whatever happens to the connection.
async fn follow(known: Arc<Known>, client: Client) {
    let mut failures = 0;
    loop {
        pause(failures, PAUSE.0, PAUSE.1).await;
        failures += 1;
        let why = match attend(&known, &client, &mut failures).await {
            Ok(()) => "the connection has ended".to_owned(),
            Err(error) => error.to_string(),
        };
        known.change(|_, standing| {
            if *standing != Standing::Unknown {
                *standing = Standing::Stale { why };
            }
        });
    }
}

/// One connection, from what holds now to its end.
async fn attend(known: &Known, client: &Client, failures: &mut u32) -> Result<(), Error> {
    let Some(begin) = present(client).await? else { return Ok(()) };
    // What is listed is as new as that or newer: what happened meanwhile is told again, which changes nothing in the end.
    let mut statuses = list(client).await?;
    let mut events = client.owner_events(WORDS, Some(begin)).await?;
    loop {
        match events.next().await.transpose()? {
            None => return Ok(()),
            Some(OwnerItem::Event(event)) => drop(statuses.replay(&event)),
            Some(OwnerItem::CaughtUp(_)) => break,
            Some(OwnerItem::Unknown) => {}
        }
    }
    known.change(|shown, standing| (*shown, *standing) = (statuses, Standing::Current));
    *failures = 0;
    while let Some(item) = events.next().await.transpose()? {
        let OwnerItem::Event(event) = item else { continue };
        let mut stranger = None;
        known.change(|statuses, _| stranger = statuses.apply(&event));
        if let Some(stranger) = stranger {
            match client.session_get(&stranger.to_string()).await {
                Ok(session) => known.change(|statuses, _| statuses.describe(&session)),
                // The session was deleted meanwhile; its event follows.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Where all events end now; none if the connection broke.
async fn present(client: &Client) -> Result<Option<Position>, Error> {
    let mut events = client.owner_events(WORDS, None).await?;
    while let Some(item) = events.next().await.transpose()? {
        if let OwnerItem::CaughtUp(position) = item {
            return Ok(Some(position));
        }
    }
    Ok(None)
}

/// The sessions of the latest activity with their latest runs, and all runs that have not ended.
async fn list(client: &Client) -> Result<Statuses, Error> {
    let mut statuses = Statuses::default();
    let mut page = SessionListQuery { limit: Some(PAGE), ..SessionListQuery::default() };
    loop {
        let sessions = client.session_list(&page).await?;
        for listed in &sessions.items {
            statuses.describe(&listed.session);
            if let Some(run) = &listed.latest_run {
                statuses.put(run, true);
            }
        }
        page.before = sessions.next;
        if page.before.is_none() || statuses.is_full() {
            break;
        }
    }
    for status in LIVE {
        let mut page = RunListQuery { status: Some(status), limit: Some(PAGE), ..RunListQuery::default() };
        loop {
            let runs = client.run_list(&page).await?;
            runs.items.iter().for_each(|run| statuses.put(run, false));
            page.before = runs.next;
            if page.before.is_none() {
                break;
            }
        }
    }
    Ok(statuses)
}
