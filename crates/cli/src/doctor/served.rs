//! Findings that the process which serves the state directory reports.

use std::time::Duration;

use super::{Health, MAX_PROBLEMS, Report};
use crate::Context;
use crate::connection::owner_client;
use crate::output::format_time;

/// The longest wait for the process.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Reports the sessions that have failed in the process.
pub(super) async fn check_sessions(context: &Context<'_>, report: &mut Report) {
    let Ok(Some(client)) = owner_client(context) else { return };
    let failed = match tokio::time::timeout(ANSWER_TIMEOUT, client.health()).await {
        Ok(Ok(health)) => health.failed_sessions,
        Ok(Err(error)) => return report.add(Health::Bad, "server", error.to_string()),
        Err(_) => {
            let seconds = ANSWER_TIMEOUT.as_secs();
            return report.add(Health::Bad, "server", format!("no answer within {seconds} s"));
        }
    };
    for session in failed.into_iter().take(MAX_PROBLEMS) {
        let (count, at) = (session.failures, format_time(session.failed_at));
        let times = if count == 1 { "time" } else { "times" };
        let found = format!("{}, {count} {times} in a row, last at {at}", session.message);
        report.add(Health::Bad, "session", found);
    }
}
