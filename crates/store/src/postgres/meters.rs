//! Meters of the store: its connections, the transactions of its writers, and the state that the database reports.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mainspring_kernel::boot_time::boot_time_ms;
use mainspring_kernel::meters::COMMIT_SECONDS;
use mainspring_kernel::store::{DatabaseMeters, StoreError};

use super::PostgresStore;
use super::values::{get, get_u64};
use super::writer::pause;

/// The longest wait for the database. A scrape of metrics must end even if the database does not answer.
const ANSWER_TIMEOUT_MS: u64 = 1_000;

/// Selects the age in seconds of the oldest open transaction that has written, in any database, and the number of
/// takeovers.
///
/// A database user that may not see the sessions of other users does not see their transactions. Prepared transactions
/// have no session, so they are read from a view of their own.
const STATE: &str = "SELECT
    coalesce((extract(epoch FROM clock_timestamp() - least(
      (SELECT min(xact_start) FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()),
      (SELECT min(prepared) FROM pg_prepared_xacts))))::float8, 0),
    (SELECT takeovers FROM server_lease)";

/// Counts the transactions of writers.
#[derive(Debug, Default)]
pub(super) struct BatchMeters {
    buckets: [AtomicU64; COMMIT_SECONDS.len() + 1],
    nanos: AtomicU64,
    commits: AtomicU64,
}

impl BatchMeters {
    /// Counts a transaction of `commits` commits that began at `started`.
    pub(super) fn add(&self, commits: usize, started: Instant) {
        let took: Duration = started.elapsed();
        let seconds = took.as_secs_f64();
        let bucket = COMMIT_SECONDS.iter().position(|edge| seconds <= *edge).unwrap_or(COMMIT_SECONDS.len());
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.commits.fetch_add(commits as u64, Ordering::Relaxed);
    }
}

/// Returns the start of a measurement. Nothing but the measurement depends on this time.
#[expect(clippy::disallowed_methods, reason = "the database's time passes in tests with a manual clock too")]
pub(super) fn start() -> Instant {
    Instant::now()
}

impl PostgresStore {
    /// Reads all meters. Meters from the database are missing if it does not answer in time.
    pub(super) async fn meters(&self) -> DatabaseMeters {
        let status = self.pool.status();
        let batches = &self.shared.batches;
        let acts_until = self.shared.acts_until_ms.load(Ordering::Acquire);
        let state = tokio::select! {
            state = self.database_state() => state.ok(),
            () = pause(ANSWER_TIMEOUT_MS) => None,
        };
        let is_member = acts_until != 0;
        DatabaseMeters {
            connections_used: status.size.saturating_sub(status.available),
            connections_idle: status.available,
            connections_awaited: status.waiting,
            batch_buckets: std::array::from_fn(|bucket| batches.buckets[bucket].load(Ordering::Relaxed)),
            batch_seconds: batches.nanos.load(Ordering::Relaxed) as f64 / 1e9,
            batch_commits: batches.commits.load(Ordering::Relaxed),
            feed_lag_seconds: state.map(|(lag, _)| lag),
            lease_left_seconds: is_member.then(|| acts_until.saturating_sub(boot_time_ms()) as f64 / 1e3),
            takeovers: state.map(|(_, takeovers)| takeovers).filter(|_| is_member),
        }
    }

    async fn database_state(&self) -> Result<(f64, u64), StoreError> {
        let reader = self.reader().await?;
        let row = reader.row(STATE, &[]).await?;
        reader.done();
        let row = row.ok_or_else(|| StoreError::Unavailable("the database has answered nothing".into()))?;
        let lag: f64 = get(&row, 0)?;
        Ok((lag.max(0.0), get_u64(&row, 1)?))
    }
}
