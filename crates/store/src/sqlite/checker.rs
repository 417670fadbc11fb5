//! Checks a large database in the background, if the last process did not close it.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use mainspring_kernel::store::StoreError;
use rusqlite::{Connection, ErrorCode, InterruptHandle};
use tokio::sync::oneshot;

use super::writer::{Job, Shared};
use super::{check, error};

/// Time before the check begins. The check reads the whole file, which would slow down the start of the process.
const DELAY: Duration = Duration::from_millis(300);

/// The thread of the check. Dropping it ends an unfinished check, which the next start repeats.
pub(super) struct Checker {
    interrupt: InterruptHandle,
    /// Dropped to end the delay. Never sends.
    delay: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Checker {
    /// Starts the check on a connection of its own.
    pub(super) fn start(connection: Connection, path: &Path, shared: Arc<Shared>) -> std::io::Result<Self> {
        let interrupt = connection.get_interrupt_handle();
        let path = path.display().to_string();
        let thread = std::thread::Builder::new().name("store-check".into());
        let (delay, delayed) = mpsc::channel();
        let thread = thread.spawn(move || {
            if is_due(&delayed) {
                run(&connection, &path, &shared);
            }
        })?;
        Ok(Self { interrupt, delay: Some(delay), thread: Some(thread) })
    }
}

/// Waits for the delay. False if the store was closed meanwhile.
fn is_due(delayed: &Receiver<()>) -> bool {
    delayed.recv_timeout(DELAY) == Err(RecvTimeoutError::Timeout)
}

fn run(connection: &Connection, path: &str, shared: &Shared) {
    match check::quick_check(connection) {
        Ok(problems) => match problems.first() {
            None => {
                let (answer, _) = oneshot::channel();
                // If the queue is closed, the next start repeats the check.
                let _ = shared.queue.push_urgent(Job::CrashChecked(answer));
            }
            Some(problem) => shared.set_damaged(path, problem),
        },
        Err(failure) if failure.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) => {}
        Err(failure) => match error::read_error(&failure) {
            StoreError::Corrupt(problem) => shared.set_damaged(path, &problem),
            failure => tracing::error!(%failure, "the check after an unclean stop failed"),
        },
    }
}

impl Drop for Checker {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        drop(self.delay.take());
        // The interrupt has no effect before the check has begun.
        while !thread.is_finished() {
            self.interrupt.interrupt();
            std::thread::yield_now();
        }
        if thread.join().is_err() {
            tracing::error!("the check after an unclean stop panicked");
        }
    }
}

impl std::fmt::Debug for Checker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checker").finish_non_exhaustive()
    }
}
