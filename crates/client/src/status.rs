//! The status of all of the caller's sessions: a projection of the server's lists and events only.
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

use mainspring_core::{Body, ExternalRef, Position, RunId, RunStatus, SessionId};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::backoff::Backoff;
use crate::bridge::Surface;
use crate::{Client, Error, OwnerEventsQuery, OwnerItem, RunListQuery, SessionListQuery};

mod statuses;

use statuses::Statuses;
pub use statuses::{ArtifactView, RunView, SessionView};

/// The type prefixes of the events that change a status.
const EVENT_TYPE_PREFIXES: &str = "session,run,attempt,progress,usage,artifact";
const RECONNECT_BACKOFF: Backoff =
    Backoff { initial: Duration::from_millis(20), max: Duration::from_secs(2) };
/// Number of sessions or runs per page.
const PAGE_SIZE: usize = 200;
/// The statuses of runs that have not ended.
const UNFINISHED_STATUSES: [RunStatus; 6] = [
    RunStatus::Queued,
    RunStatus::Starting,
    RunStatus::Running,
    RunStatus::WaitingInput,
    RunStatus::WaitingApproval,
    RunStatus::Cancelling,
];

/// How up to date the statuses are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Freshness {
    /// No status was received yet.
    #[default]
    Unknown,
    /// The statuses are up to date.
    Current,
    /// The statuses are those of the last connection. Later changes are unknown.
    Stale {
        /// The reason why the connection was lost.
        reason: String,
    },
}

/// The statuses of one caller's sessions and runs. Follows their events until dropped.
pub struct StatusStore {
    shared: Arc<SharedStatuses>,
    _task: JoinSet<()>,
}

#[derive(Default)]
struct SharedStatuses {
    statuses: Mutex<(Statuses, Freshness)>,
    version: watch::Sender<u64>,
}

impl StatusStore {
    /// Follows the sessions of `client`, also across restarts of its server.
    pub fn follow(client: Client) -> Self {
        let shared = Arc::<SharedStatuses>::default();
        let mut task = JoinSet::new();
        task.spawn(follow(shared.clone(), client));
        Self { shared, _task: task }
    }

    /// Returns how up to date the statuses are.
    pub fn freshness(&self) -> Freshness {
        self.shared.lock().1.clone()
    }

    /// Returns a session; `None` if it is unknown.
    pub fn session(&self, session: SessionId) -> Option<SessionView> {
        self.shared.lock().0.session(session).cloned()
    }

    /// Returns a run that has not ended or is its session's latest; `None` if it is unknown.
    pub fn run(&self, run: RunId) -> Option<RunView> {
        self.shared.lock().0.run(run).cloned()
    }

    /// Returns a session's latest run.
    pub fn latest_run(&self, session: SessionId) -> Option<RunView> {
        self.shared.lock().0.latest_run(session).cloned()
    }

    /// Returns the session of a surface, and its latest run.
    pub fn surface(&self, surface: &Surface) -> Option<(SessionView, Option<RunView>)> {
        self.external(&surface.external_ref)
    }

    /// Returns the session with an external reference, and its latest run.
    pub fn external(&self, external: &ExternalRef) -> Option<(SessionView, Option<RunView>)> {
        let shared = self.shared.lock();
        let session = shared.0.session_by_external_ref(external)?;
        Some((session.clone(), shared.0.latest_run(session.session_id).cloned()))
    }

    /// Watches for changes of any status.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.version.subscribe()
    }

    /// Waits until `condition` returns a value: now, or after a change.
    pub async fn until<T>(&self, condition: impl Fn(&Self) -> Option<T>) -> T {
        let mut changes = self.changes();
        loop {
            changes.mark_unchanged();
            if let Some(found) = condition(self) {
                return found;
            }
            // The sender lives as long as `self`, so the wait cannot fail.
            let _ = changes.changed().await;
        }
    }
}

impl SharedStatuses {
    fn lock(&self) -> std::sync::MutexGuard<'_, (Statuses, Freshness)> {
        self.statuses.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Statuses, &mut Freshness)) {
        let mut guard = self.lock();
        let (statuses, freshness) = &mut *guard;
        change(statuses, freshness);
        drop(guard);
        self.version.send_modify(|version| *version += 1);
    }
}

/// Follows the events. Reconnects whenever the connection ends, and never returns.
async fn follow(shared: Arc<SharedStatuses>, client: Client) {
    let mut failures = 0;
    loop {
        RECONNECT_BACKOFF.wait(failures).await;
        failures += 1;
        let reason = match follow_connection(&shared, &client, &mut failures).await {
            Ok(()) => "the connection has ended".to_owned(),
            Err(error) => error.to_string(),
        };
        shared.change(|_, freshness| {
            if *freshness != Freshness::Unknown {
                *freshness = Freshness::Stale { reason };
            }
        });
    }
}

/// Lists the current statuses, then follows events until the connection ends.
async fn follow_connection(
    shared: &SharedStatuses,
    client: &Client,
    failures: &mut u32,
) -> Result<(), Error> {
    let Some(begin) = latest_position(client).await? else { return Ok(()) };
    // The list is at least as new as `begin`. Events in between are replayed, which does not change the final
    // statuses.
    let mut statuses = list_statuses(client).await?;
    let mut events = client.owner_events(&events_after(Some(begin))).await?;
    loop {
        match events.next().await.transpose()? {
            None => return Ok(()),
            Some(OwnerItem::Event(event)) => drop(statuses.replay(&event)),
            Some(OwnerItem::CaughtUp(_)) => break,
            Some(OwnerItem::Store(_) | OwnerItem::Unknown) => {}
        }
    }
    shared.change(|current, freshness| (*current, *freshness) = (statuses, Freshness::Current));
    *failures = 0;
    while let Some(item) = events.next().await.transpose()? {
        let OwnerItem::Event(event) = item else { continue };
        if matches!(event.body, Body::EventDamaged { .. }) {
            // The damaged event may have changed a status: the next connection lists all of them again.
            return Ok(());
        }
        let mut undescribed = None;
        shared.change(|statuses, _| undescribed = statuses.apply(&event));
        if let Some(undescribed) = undescribed {
            match client.session_get(&undescribed.to_string()).await {
                Ok(session) => shared.change(|statuses, _| statuses.record_session(&session)),
                // The session was deleted in the meantime; the event of its deletion follows.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Selects the events that change a status.
fn events_after(after: Option<Position>) -> OwnerEventsQuery {
    OwnerEventsQuery {
        after: after.map(|after| after.to_string()),
        types: Some(EVENT_TYPE_PREFIXES.into()),
        ..OwnerEventsQuery::default()
    }
}

/// Returns the position of the latest event; `None` if the connection broke.
async fn latest_position(client: &Client) -> Result<Option<Position>, Error> {
    let mut events = client.owner_events(&events_after(None)).await?;
    while let Some(item) = events.next().await.transpose()? {
        if let OwnerItem::CaughtUp(position) = item {
            return Ok(Some(position));
        }
    }
    Ok(None)
}

/// Lists the most recently active sessions with their latest runs, and all runs that have not ended.
async fn list_statuses(client: &Client) -> Result<Statuses, Error> {
    let mut statuses = Statuses::default();
    let mut page = SessionListQuery { limit: Some(PAGE_SIZE), ..SessionListQuery::default() };
    loop {
        let sessions = client.session_list(&page).await?;
        for listed in &sessions.items {
            statuses.record_session(&listed.session);
            if let Some(run) = &listed.latest_run {
                statuses.record_run(run, true);
            }
        }
        page.before = sessions.next;
        if page.before.is_none() || statuses.is_full() {
            break;
        }
    }
    for status in UNFINISHED_STATUSES {
        let mut page =
            RunListQuery { status: Some(status), limit: Some(PAGE_SIZE), ..RunListQuery::default() };
        loop {
            let runs = client.run_list(&page).await?;
            runs.items.iter().for_each(|run| statuses.record_run(run, false));
            page.before = runs.next;
            if page.before.is_none() {
                break;
            }
        }
    }
    Ok(statuses)
}
