//! Availability: while queries are open, asks the server whether it is ready. Sends a `status` line for each query
//! when the server does not answer or cannot write its store, and again when work continues.
//!
//! ```text
//! available ──no answer, or a refusal──▶ unavailable: `status`, once for each query and reason
//!     ▲                                       │
//!     └───────────────ready───────────────────┘ `status` for each query that got one
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use mainspring_api::jsonl::{Code, Reply};
use mainspring_client::Error;
use mainspring_system::clock::Clock;

use super::live::Query;
use super::{Shared, code_and_message};
use crate::link::{Link, Successor};

/// Time between two checks.
const INTERVAL_MS: u64 = 500;
/// Time that the server has to answer. Together with the interval, the host learns of an outage within five seconds.
const ANSWER_TIMEOUT_MS: u64 = 3_500;

const NOT_RESPONDING: &str = "not_responding";
const NOT_RESPONDING_MESSAGE: &str = "the process that serves the sessions does not answer: it is stopped or overloaded. The query goes \
     on when it answers again";
const AVAILABLE_MESSAGE: &str = "the query goes on";

const LEAVING: &str = "shutting_down";
const LEAVING_MESSAGE: &str =
    "the process that serves the sessions is ending. The query goes on with the next one";

/// The reason why queries cannot continue.
struct Obstacle {
    code: String,
    message: String,
    /// True when only queries that are not accepted yet are affected.
    before_acceptance: bool,
}

impl Obstacle {
    fn not_responding() -> Self {
        let (code, message) = (NOT_RESPONDING.into(), NOT_RESPONDING_MESSAGE.into());
        Self { code, message, before_acceptance: false }
    }

    /// The obstacle of a server that shuts down. It finishes accepted runs, so only queries that are not accepted yet
    /// are blocked.
    fn leaving() -> Self {
        Self { code: LEAVING.into(), message: LEAVING_MESSAGE.into(), before_acceptance: true }
    }

    fn affects(&self, query: &Query) -> bool {
        !self.before_acceptance || query.details().run.is_none()
    }
}

/// The answer of a server.
enum Answer {
    Ready,
    Refused(Obstacle),
    /// The server accepts no more requests, or has ended. Another one may follow.
    Gone,
}

/// The live queries that were reported as blocked, by number, each with the reported code.
type Reported = HashMap<u64, String>;

/// Watches until the connection to the host is dropped.
pub(super) async fn watch(host: Weak<Shared>) {
    let mut reported = Reported::new();
    let mut gone_since = None;
    loop {
        let Some(shared) = host.upgrade() else { return };
        let (mut live, link, clock) = (shared.live.count(), shared.link.clone(), shared.clock.clone());
        drop(shared);
        // Fails once the connection to the host is dropped.
        if live.wait_for(|count| *count > 0).await.is_err() {
            return;
        }
        let Some(answer) = await_answer(&host, &link, &clock, &mut reported).await else { return };
        let now = clock.moment();
        if !matches!(answer, Answer::Gone) {
            gone_since = None;
        }
        let obstacle = match answer {
            Answer::Ready => Some(None),
            Answer::Refused(obstacle) => Some(Some(obstacle)),
            // Another server usually follows at once.
            Answer::Gone => {
                let since = *gone_since.get_or_insert(now);
                let obstacle = || match link.successor() {
                    Successor::Remote => Obstacle::not_responding(),
                    Successor::None | Successor::Other | Successor::Local => Obstacle::leaving(),
                };
                (now.since(since) >= ANSWER_TIMEOUT_MS).then(|| Some(obstacle()))
            }
        };
        let Some(shared) = host.upgrade() else { return };
        if let Some(obstacle) = obstacle {
            report_status(&shared, &mut reported, obstacle.as_ref()).await;
        }
        drop(shared);
        clock.sleep_for(INTERVAL_MS).await;
    }
}

/// Asks the server whether it is ready. Reports a server that does not answer, unless it is this process. Returns
/// `None` once the connection to the host is dropped.
async fn await_answer(
    host: &Weak<Shared>,
    link: &Link,
    clock: &Clock,
    reported: &mut Reported,
) -> Option<Answer> {
    let check = check(link);
    tokio::pin!(check);
    let mut deadline = clock.moment().plus(ANSWER_TIMEOUT_MS);
    loop {
        tokio::select! {
            answer = &mut check => return Some(answer),
            () = clock.sleep_until_moment(deadline), if link.successor() != Successor::Local => {
                let shared = host.upgrade()?;
                report_status(&shared, reported, Some(&Obstacle::not_responding())).await;
                // Reports again after a while, to queries that have begun in the meantime.
                deadline = clock.moment().plus(INTERVAL_MS);
            }
        }
    }
}

/// Asks the server whether it is ready. If the server is gone, the requests of the queries find the next one.
async fn check(link: &Link) -> Answer {
    match link.client("").0.ready().await {
        Err(error) if error.is_gone() => Answer::Gone,
        Err(error @ Error::Refused(_)) => {
            let (code, message) = code_and_message(&error);
            Answer::Refused(Obstacle { code, message, before_acceptance: false })
        }
        Err(error) if error.is_not_responding() => Answer::Refused(Obstacle::not_responding()),
        // Each query reports an unreadable answer itself.
        Ok(_) | Err(_) => Answer::Ready,
    }
}

/// Sends a `status` line to each query that the obstacle affects, once per code. Without an obstacle, tells the
/// blocked queries that they continue.
async fn report_status(shared: &Arc<Shared>, reported: &mut Reported, obstacle: Option<&Obstacle>) {
    let live = shared.live.all();
    reported.retain(|no, _| live.iter().any(|query| query.no() == *no));
    for query in live.into_iter().rev() {
        let status = match obstacle.filter(|obstacle| obstacle.affects(&query)) {
            Some(Obstacle { code, message, .. }) if reported.get(&query.no()) != Some(code) => {
                reported.insert(query.no(), code.clone());
                Reply::Status { available: false, code: Some(Code::new(code)), message: message.into() }
            }
            None if reported.remove(&query.no()).is_some() => {
                Reply::Status { available: true, code: None, message: AVAILABLE_MESSAGE.into() }
            }
            _ => continue,
        };
        shared.reply(&status, &query.line_ids(None)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mainspring_client::Client;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_server_that_does_not_answer_in_time_is_not_ready() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client =
            Client::over_tcp(&format!("http://{}", listener.local_addr().unwrap()), "secret").unwrap();
        let (link, _keeper) =
            Link::new(client.with_response_timeout(Duration::from_millis(20)), Successor::Other);
        let Answer::Refused(obstacle) = check(&link).await else { panic!("it counts as ready or gone") };
        assert_eq!(obstacle.code, NOT_RESPONDING);
    }
}
