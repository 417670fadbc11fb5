//! Logins: authentication of adapter runtimes.
//!
//! A run whose agent requires a login fails. After a successful login, the runs that failed for this reason a short
//! time ago continue with their next attempt.

use std::collections::{HashMap, VecDeque};

use mainspring_core::{AuthMethod, FailureCode, Run, RunChange, RunId, SessionId, Time};
use parking_lot::Mutex;

use super::{Caller, Kernel};
use crate::actor::{Command, Retry};
use crate::error::Error;

/// A run that failed longer ago than this does not continue by itself after a login.
const CONTINUE_WITHIN_MS: u64 = 15 * 60 * 1_000;
/// The maximum number of runs of an adapter that continue after a login: the latest ones.
const MAX_CONTINUED_RUNS: usize = 1_000;

/// The logins of each adapter, since this process has started.
#[derive(Default)]
pub(crate) struct Logins(Mutex<HashMap<String, AdapterLogins>>);

#[derive(Default)]
struct AdapterLogins {
    /// The last successful login.
    last: Option<Time>,
    /// Runs that failed since then because a login was required, oldest first.
    failed: VecDeque<(Time, SessionId, RunId)>,
}

impl Logins {
    /// Records the end of a run, if the run failed because a login was required.
    pub(crate) fn record_end(&self, run: &Run, now: Time) {
        if !needs_login(run) {
            return;
        }
        let mut logins = self.0.lock();
        let failed = &mut logins.entry(run.adapter.clone()).or_default().failed;
        failed.push_back((now, run.session, run.id));
        if failed.len() > MAX_CONTINUED_RUNS {
            failed.pop_front();
        }
    }

    /// True when a retry of `run` continues after a login: the run failed because a login was required, and a
    /// login of its adapter has succeeded since.
    pub(crate) fn continues(&self, run: &Run, change: &RunChange) -> bool {
        let is_same_adapter = change.adapter.as_ref().is_none_or(|adapter| *adapter == run.adapter);
        let last = self.0.lock().get(&run.adapter).and_then(|logins| logins.last);
        needs_login(run)
            && is_same_adapter
            && last.zip(run.completed_at).is_some_and(|(last, end)| last >= end)
    }

    /// Records a successful login. Returns the runs that it continues: those that failed a short time ago.
    fn succeeded(&self, adapter: &str, now: Time) -> Vec<(SessionId, RunId)> {
        let mut logins = self.0.lock();
        let logins = logins.entry(adapter.to_owned()).or_default();
        logins.last = Some(now);
        let failed = std::mem::take(&mut logins.failed).into_iter();
        let recent = failed.filter(|(at, ..)| now.since(*at) <= CONTINUE_WITHIN_MS);
        recent.map(|(_, session, run)| (session, run)).collect()
    }
}

/// True when the run failed because its agent requires a login.
fn needs_login(run: &Run) -> bool {
    run.state.error().is_some_and(|error| error.code == FailureCode::Authentication)
}

impl Kernel {
    /// Lists the authentication methods of an adapter's runtime; empty before its first process has started.
    pub fn login_list(&self, adapter: &str) -> Result<Vec<AuthMethod>, Error> {
        Ok(self.shared.adapter(adapter)?.login().map(|login| login.methods()).unwrap_or_default())
    }

    /// Authenticates an adapter's runtime and waits until that is done, possibly for a person. Needs an admin without
    /// an org, since the login holds for everybody who uses the adapter. Retries the runs that failed a short time ago
    /// because the login was required.
    pub async fn login_create(&self, caller: &Caller, adapter: &str, method: &str) -> Result<(), Error> {
        caller.check_server_admin()?;
        let login = self.shared.adapter(adapter)?.login();
        let login = login
            .ok_or_else(|| Error::Unsupported { adapter: adapter.to_owned(), what: "be authenticated" })?;
        mainspring_core::limits::check_text("an authentication method", method)?;
        let done = login.authenticate(method).await;
        done.map_err(|failure| Error::LoginFailed { adapter: adapter.to_owned(), why: failure.message })?;
        for (session, run) in self.shared.logins.succeeded(adapter, self.shared.clock.now()) {
            let retry = |reply| Command::Retry(run, Box::<Retry>::default(), reply);
            if let Err(error) = self.shared.call(session, retry).await {
                // The session has a later run by now, or a caller has already retried this one.
                tracing::info!(%error, %run, "a run does not go on after the login");
            }
        }
        Ok(())
    }
}
