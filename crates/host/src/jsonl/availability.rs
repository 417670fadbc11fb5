//! Availability: while queries are open, the server is asked whether it is ready. The host is told for each query when the
//! server does not answer or cannot write its store, and again when work goes on.
//!
//! ```text
//! available ──no answer, or a refusal──▶ unavailable: `status`, once for each query and reason
//!     ▲                                       │
//!     └───────────────ready───────────────────┘ `status` for each query that was told
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use mainspring_api::jsonl::{Code, Reply};
use mainspring_client::{Client, Error};

use super::{Shared, code_and_message};
use crate::link::Link;

/// Time between two checks.
const INTERVAL_MS: u64 = 500;
/// Time that the server has to answer. With the interval, the host is told within five seconds.
const ANSWER_TIMEOUT_MS: u64 = 3_500;

/// The code of a server that does not answer.
const NOT_RESPONDING: &str = "not_responding";
const NOT_RESPONDING_MESSAGE: &str = "the process that serves the sessions does not answer: it is stopped or overloaded. The query goes \
     on when it answers again";
const AVAILABLE_MESSAGE: &str = "the query goes on";

/// Why work cannot go on: a stable code and a message.
type Obstacle = (String, String);

/// The live queries that were told that they cannot go on, by number, each with the code it was told.
type Told = HashMap<u64, String>;

/// Watches until the connection to the host is dropped.
pub(super) async fn watch(host: Weak<Shared>) {
    let mut told = Told::new();
    loop {
        let Some(shared) = host.upgrade() else { return };
        let (mut live, link, clock) = (shared.live.count(), shared.link.clone(), shared.clock.clone());
        drop(shared);
        // Fails once the connection to the host is dropped.
        if live.wait_for(|count| *count > 0).await.is_err() {
            return;
        }
        let check = check(&link);
        tokio::pin!(check);
        let mut deadline = clock.now().plus(ANSWER_TIMEOUT_MS);
        let obstacle = loop {
            tokio::select! {
                obstacle = &mut check => break obstacle,
                () = clock.sleep_until(deadline), if !link.is_local() => {
                    let obstacle = (NOT_RESPONDING.to_owned(), NOT_RESPONDING_MESSAGE.to_owned());
                    let Some(shared) = host.upgrade() else { return };
                    tell(&shared, &mut told, Some(&obstacle)).await;
                    // Queries that begin meanwhile are told as well.
                    deadline = clock.now().plus(INTERVAL_MS);
                }
            }
        };
        let Some(shared) = host.upgrade() else { return };
        tell(&shared, &mut told, obstacle.as_ref()).await;
        drop(shared);
        clock.sleep_until(clock.now().plus(INTERVAL_MS)).await;
    }
}

/// Asks the server whether it is ready. Returns the reason if it is not.
async fn check(link: &Link) -> Option<Obstacle> {
    match link.ask("", |client: Client| async move { client.ready().await }).await {
        Err(error @ Error::Refused(_)) => Some(code_and_message(&error)),
        // Without a server, each query reports its own error.
        Ok(_) | Err(_) => None,
    }
}

/// Tells each live query of the obstacle, unless it was told; without an obstacle, that it goes on.
async fn tell(shared: &Arc<Shared>, told: &mut Told, obstacle: Option<&Obstacle>) {
    let live = shared.live.all();
    told.retain(|no, _| live.iter().any(|query| query.no() == *no));
    for query in live.into_iter().rev() {
        let status = match obstacle {
            Some((code, message)) if told.get(&query.no()) != Some(code) => {
                told.insert(query.no(), code.clone());
                Reply::Status { available: false, code: Some(Code::new(code)), message: message.into() }
            }
            None if told.remove(&query.no()).is_some() => {
                Reply::Status { available: true, code: None, message: AVAILABLE_MESSAGE.into() }
            }
            _ => continue,
        };
        shared.reply(&status, &query.line_ids(None)).await;
    }
}
