//! `auth_required` and `authenticate`: an agent requires a login, and the user completes it.
//!
//! ```text
//! run.failed: authentication ──▶ auth_required, the query stays open ──authenticate──▶ the run's next attempt
//!                                             │
//!                                             └──interrupt, stop, end of input, or another run of the session──▶ error
//! ```
//!
//! If the agent names no login methods, the query ends at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainspring_api::jsonl::{Authenticate, LineIds, Reply};
use mainspring_client::{Client, RetryOptions};
use mainspring_core::{AuthMethod, RunId, SessionId};
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;

use super::line::{Envelope, Version};
use super::live::Query;
use super::{Shared, code_and_message, follow};

/// The state of logins.
#[derive(Default)]
pub(super) struct Logins(Mutex<State>);

#[derive(Default)]
struct State {
    /// The adapter that last required a login: `authenticate` names a method but no adapter.
    adapter: Option<String>,
    /// The queries that wait for a login, by their number.
    waiting: BTreeMap<u64, Waiting>,
    /// True once the host sends no more lines: from then on no query waits.
    closed: bool,
}

/// A query whose run failed because a login is required.
struct Waiting {
    query: Arc<Query>,
    session: SessionId,
    run: RunId,
    end: QueryEnd,
}

/// How to end a query that waits for a login, if the login does not happen.
pub(super) struct QueryEnd {
    /// The line that ends the query.
    pub(super) last: Vec<u8>,
    /// Removes the query from the reader of its run.
    pub(super) stop_following: Box<dyn FnOnce() + Send>,
}

impl Logins {
    /// True while the query waits for a login.
    pub(super) fn is_waiting(&self, query: &Query) -> bool {
        self.0.lock().waiting.contains_key(&query.no())
    }

    /// Removes a query that no longer waits for a login: its run continues, or the query ends.
    pub(super) fn remove(&self, query: &Query) {
        self.0.lock().waiting.remove(&query.no());
    }

    /// Removes and returns the waiting queries for which `matches` is true.
    fn take(&self, matches: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        self.0
            .lock()
            .waiting
            .extract_if(.., |_, waiting| matches(waiting))
            .map(|(_, waiting)| waiting)
            .collect()
    }
}

/// Sends `auth_required` for a query whose run failed because a login is required. Returns false if the query ends:
/// the agent names no login methods, or the host cannot log in any more. Without an `end`, the query has ended
/// already.
pub(super) async fn require(shared: &Shared, query: &Arc<Query>, end: Option<QueryEnd>) -> bool {
    shared.logins.0.lock().adapter = Some(query.adapter.clone());
    let methods = login_methods(shared, &query.owner, &query.adapter).await;
    let details = query.details();
    let mut waits = false;
    if let (Some(end), Some(session), Some(run), false) =
        (end, details.session, details.run, methods.is_empty())
    {
        let mut logins = shared.logins.0.lock();
        waits = !logins.closed;
        if waits {
            logins.waiting.insert(query.no(), Waiting { query: query.clone(), session, run, end });
        }
    }
    send_auth_required(shared, &methods, &query.line_ids(None)).await;
    waits
}

/// Ends the waiting queries of a session in which another run has started: their runs cannot go on any more.
pub(super) async fn another_run_started(shared: &Shared, session: SessionId, run: RunId) {
    end(shared, shared.logins.take(|waiting| waiting.session == session && waiting.run != run)).await;
}

/// Ends a query if it waits for a login: the host has interrupted it.
pub(super) async fn interrupted(shared: &Shared, query: &Query) {
    end(shared, shared.logins.take(|waiting| waiting.query.no() == query.no())).await;
}

/// Ends all queries that wait for a login, now and later: the host sends no more lines.
pub(super) async fn close(shared: &Shared) {
    shared.logins.0.lock().closed = true;
    end(shared, shared.logins.take(|_| true)).await;
}

async fn end(shared: &Shared, waiting: Vec<Waiting>) {
    for Waiting { query, end, .. } in waiting {
        (end.stop_following)();
        follow::finish(shared, &query, end.last).await;
    }
}

async fn login_methods(shared: &Shared, owner: &str, adapter: &str) -> Vec<AuthMethod> {
    let ask = |client: Client| async move { client.login_list(adapter).await };
    // The host must learn that a login is required even if the methods are unknown. A query without login methods then
    // ends with an error.
    shared.link.ask(owner, ask).await.unwrap_or_else(|error| {
        tracing::warn!(%error, adapter, "login methods are not available");
        vec![]
    })
}

async fn send_auth_required(shared: &Shared, methods: &[AuthMethod], line_ids: &LineIds) {
    shared.reply(&Reply::AuthRequired { methods: methods.into(), auth_url: None }, line_ids).await;
}

/// Authenticates the adapter that last required a login, else the default adapter.
pub(super) fn handle(
    shared: &Arc<Shared>,
    envelope: Envelope,
    line: Authenticate,
    permit: OwnedSemaphorePermit,
) {
    let shared = shared.clone();
    shared.tasks.clone().spawn(async move {
        let required = shared.logins.0.lock().adapter.clone();
        let default = &shared.options.adapter;
        let adapter =
            required.unwrap_or_else(|| shared.options.aliases.get(default).unwrap_or(default).clone());
        let ask = |client: Client| {
            let (adapter, method) = (&adapter, &line.method_id);
            async move { client.login_create(adapter, method).await }
        };
        let (owner, line_ids) = (shared.owner(&envelope), LineIds::from(&envelope));
        match (shared.link.ask(owner, ask).await, envelope.version) {
            (Ok(()), _) => {
                shared.reply(&Reply::AuthSuccess {}, &line_ids).await;
                retry_waiting(&shared, &adapter).await;
            }
            (Err(error), Version::V2) => {
                let (code, message) = code_and_message(&error);
                shared.reply(&Reply::error(&code, &message), &line_ids).await;
            }
            // A version 1 host would interpret an error as the end of a query.
            (Err(error), Version::V1) => {
                tracing::warn!(%error, adapter, "login failed");
                let methods = login_methods(&shared, owner, &adapter).await;
                send_auth_required(&shared, &methods, &LineIds::default()).await;
            }
        }
        drop(permit);
    });
}

/// True if the run has not ended.
async fn is_active(shared: &Shared, owner: &str, run: RunId) -> bool {
    let found = shared.link.ask(owner, |client| async move { client.run_get(run).await }).await;
    found.is_ok_and(|run| !run.state.status().is_ended())
}

/// Retries the runs that wait for this login. Skips runs that are active again: the server itself retries runs that
/// failed a short time ago.
async fn retry_waiting(shared: &Shared, adapter: &str) {
    for waiting in shared.logins.take(|waiting| waiting.query.adapter == adapter) {
        let (owner, run) = (&waiting.query.owner, waiting.run);
        if is_active(shared, owner, run).await {
            continue;
        }
        let retry = |client: Client| async move { client.run_retry(run, &RetryOptions::default()).await };
        // A retry whose answer was lost was repeated, and then refused because the run is active.
        if let Err(error) = shared.link.ask(owner, retry).await
            && !is_active(shared, owner, run).await
        {
            tracing::info!(%error, %run, "a query does not go on after the login");
            end(shared, vec![waiting]).await;
        }
    }
}
