//! The status of all of the caller's sessions: a projection of their events only.
//!
//! ```text
//! unknown ──list, then events up to now──▶ current ──the connection breaks──▶ stale
//!                                             ▲                                 │
//!                                             └──list, then events up to now────┘
//! ```
//!
//! Invariants: a status is always one that mainspring reported, never a conclusion of this process; a lost connection
//! makes the statuses stale and ends no run. While past events are replayed, none of their effects is visible.

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
pub use statuses::{ArtifactView, RunView, SessionView};

/// The type prefixes of the events that change a status.
const WORDS: &[&str] = &["session", "run", "attempt", "progress", "usage", "artifact"];
/// The delays between reconnects: the first, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));
/// Number of sessions per page.
const PAGE: usize = 200;
/// The statuses of runs that have not ended.
const LIVE: [RunStatus; 6] = [
    RunStatus::Queued,
    RunStatus::Starting,
    RunStatus::Running,
    RunStatus::WaitingInput,
    RunStatus::WaitingApproval,
    RunStatus::Cancelling,
];

/// How up to date the statuses are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Standing {
    /// No status was received yet.
    #[default]
    Unknown,
    /// The statuses are those of mainspring now.
    Current,
    /// The statuses are those of the last connection. Later changes are unknown.
    Stale {
        /// The reason why the connection was lost.
        why: String,
    },
}

/// The statuses of one caller's sessions and runs. Follows their events until dropped.
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
    /// Follows the sessions of `client`, also across restarts of its server.
    pub fn follow(client: Client) -> Self {
        let known = Arc::<Known>::default();
        let mut follows = JoinSet::new();
        follows.spawn(follow(known.clone(), client));
        Self { known, _follows: follows }
    }

    /// Returns how up to date the statuses are.
    pub fn standing(&self) -> Standing {
        self.known.lock().1.clone()
    }

    /// Returns a session; `None` if it is unknown.
    pub fn session(&self, session: SessionId) -> Option<SessionView> {
        self.known.lock().0.session(session).cloned()
    }

    /// Returns a run that has not ended or is its session's latest; `None` if it is unknown.
    pub fn run(&self, run: RunId) -> Option<RunView> {
        self.known.lock().0.run(run).cloned()
    }

    /// Returns a session's latest run.
    pub fn latest_run(&self, session: SessionId) -> Option<RunView> {
        self.known.lock().0.latest(session).cloned()
    }

    /// Returns the session of a surface, and its latest run.
    pub fn surface(&self, surface: &Surface) -> Option<(SessionView, Option<RunView>)> {
        self.external(&surface.external_ref)
    }

    /// Returns the session with an external reference, and its latest run.
    pub fn external(&self, external: &ExternalRef) -> Option<(SessionView, Option<RunView>)> {
        let known = self.known.lock();
        let session = known.0.external(external)?;
        Some((session.clone(), known.0.latest(session.session_id).cloned()))
    }

    /// Watches for changes of any status.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.known.version.subscribe()
    }

    /// Waits until `look` returns a value: now, or after a change.
    pub async fn until<T>(&self, look: impl Fn(&Self) -> Option<T>) -> T {
        let mut changes = self.changes();
        loop {
            changes.mark_unchanged();
            if let Some(found) = look(self) {
                return found;
            }
            // The sender lives as long as `self`, so the wait cannot fail.
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

/// Follows the events, and reconnects for ever.
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

/// Runs one connection: lists the present statuses, then follows events until the connection ends.
async fn attend(known: &Known, client: &Client, failures: &mut u32) -> Result<(), Error> {
    let Some(begin) = present(client).await? else { return Ok(()) };
    // The list is at least as new as `begin`. Events in between are replayed, which does not change the final
    // statuses.
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
                // The session was deleted in the meantime; its event follows.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Returns the position of the latest event; `None` if the connection broke.
async fn present(client: &Client) -> Result<Option<Position>, Error> {
    let mut events = client.owner_events(WORDS, None).await?;
    while let Some(item) = events.next().await.transpose()? {
        if let OwnerItem::CaughtUp(position) = item {
            return Ok(Some(position));
        }
    }
    Ok(None)
}

/// Lists the most recently active sessions with their latest runs, and all runs that have not ended.
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
