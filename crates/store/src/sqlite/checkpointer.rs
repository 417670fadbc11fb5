//! Merges the WAL into the database in a thread of its own, so that commits do not wait for it.
//!
//! ```text
//! writer        commits … [PASS_FRAMES] commits … [RESTART_FRAMES] last pass ─▶ the next commit restarts the WAL
//! checkpointer                └─▶ pass              └─▶ pass, until little is left
//! ```
//!
//! SQLite restarts a WAL only when the database holds all of its frames. A pass in another thread copies the frames
//! that are in the WAL when the pass begins, and while commits go on there are always more. So the writer makes the
//! last pass itself, between two transactions, when few frames are left; if possible when no commit waits. If commits
//! are faster than the passes, the WAL reaches `MAX_FRAMES`: then commits wait for a pass, as they would for SQLite's
//! own checkpoint. Only a reader that blocks passes, or a disk on which they fail, lets the WAL grow further.
//!
//! Invariant: a pass never restarts or truncates the WAL, so the writer alone decides which transaction is the first of
//! a WAL (see [`super::wal`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::Durability;
use super::wal::FrameCounts;
use super::writer::Shared;

/// The number of frames after which a pass is due. Pages are written repeatedly: the more frames, the fewer pages per
/// frame to copy.
const PASS_FRAMES: u32 = 1_500;
/// The length from which the WAL is restarted, 16 MB.
const RESTART_FRAMES: u32 = 4_000;
/// The length from which the WAL is restarted even if commits wait.
const RESTART_AT_ONCE_FRAMES: u32 = 2 * RESTART_FRAMES;
/// The length at which commits wait until the WAL is merged, 48 MB.
const MAX_FRAMES: u32 = 12_000;
/// The most frames that the writer merges itself before the WAL reaches [`MAX_FRAMES`]. Also the number of frames that
/// the WAL must grow by before another pass of the same kind is due.
const LAST_PASS_FRAMES: u32 = 250;

/// The work that is due after a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    /// A pass of the checkpointer.
    Pass,
    /// The last pass, by the writer, unless the checkpointer is at work.
    LastPass,
    /// The last pass, by the writer, after waiting for the checkpointer.
    LongPass,
}

/// Decides when passes are due.
#[derive(Debug, Default)]
pub(super) struct Plan {
    written: u32,
    /// The length from which the next pass may be due, like `next_last_pass` and `next_long_pass` for their kinds.
    /// Without these limits, a reader that blocks passes would cause a pass after every transaction.
    next_pass: u32,
    next_last_pass: u32,
    next_long_pass: u32,
}

impl Plan {
    /// Decides which work is due for a WAL of `frames`; `is_idle` if no commit waits.
    pub(super) fn next(&mut self, frames: FrameCounts, is_idle: bool) -> Due {
        let FrameCounts { written, merged } = frames;
        if written < self.written {
            // The WAL was restarted.
            *self = Self::default();
        }
        self.written = written;
        let left = written.saturating_sub(merged);
        if written >= MAX_FRAMES && left > 0 && written >= self.next_long_pass {
            self.next_long_pass = written + LAST_PASS_FRAMES;
            return Due::LongPass;
        }
        let restarts = written >= RESTART_FRAMES && left > 0;
        let is_last = restarts && left <= LAST_PASS_FRAMES && (is_idle || written >= RESTART_AT_ONCE_FRAMES);
        if is_last && written >= self.next_last_pass {
            self.next_last_pass = written + LAST_PASS_FRAMES;
            return Due::LastPass;
        }
        let is_pass = left >= PASS_FRAMES || (restarts && left > LAST_PASS_FRAMES);
        if is_pass && written >= self.next_pass {
            self.next_pass = written + LAST_PASS_FRAMES;
            return Due::Pass;
        }
        Due::Nothing
    }
}

/// Merges as many frames of the WAL as possible without waiting for readers.
fn pass(connection: &Connection) -> rusqlite::Result<()> {
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
}

/// Requests for passes, and passes by the writer.
#[derive(Debug, Default)]
pub(super) struct Passes {
    state: Mutex<PassState>,
    changed: Condvar,
    /// Held during a pass: SQLite ignores a second concurrent one.
    merging: Mutex<()>,
}

#[derive(Debug, Default)]
struct PassState {
    is_requested: bool,
    closed: bool,
}

impl Passes {
    /// Requests a pass. A request during a pass causes another one.
    pub(super) fn request(&self) {
        self.state.lock().is_requested = true;
        self.changed.notify_one();
    }

    /// Makes a pass on the connection of the writer. If a pass of the checkpointer is in progress, waits for its end if
    /// `waits` is set, and does nothing otherwise.
    pub(super) fn make(&self, connection: &Connection, waits: bool) -> rusqlite::Result<()> {
        let merging = match waits {
            true => Some(self.merging.lock()),
            false => self.merging.try_lock(),
        };
        merging.map_or(Ok(()), |_merging| pass(connection))
    }

    /// Waits for a request. Returns false when the store is closed.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        while !state.is_requested && !state.closed {
            self.changed.wait(&mut state);
        }
        state.is_requested = false;
        !state.closed
    }
}

/// The thread that merges the WAL. Dropping it waits for a pass that is in progress.
#[derive(Debug)]
pub(super) struct Checkpointer {
    passes: Arc<Passes>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpointer {
    /// Starts the thread for the database at `path`. Its connection is opened for the first pass.
    pub(super) fn start(
        path: &Path,
        durability: Durability,
        passes: &Arc<Passes>,
        shared: &Arc<Shared>,
    ) -> std::io::Result<Self> {
        let thread = std::thread::Builder::new().name("store-merge".into());
        let merge =
            Merge { path: path.into(), durability, passes: Arc::clone(passes), shared: Arc::clone(shared) };
        let thread = Some(thread.spawn(move || merge.run())?);
        Ok(Self { passes: Arc::clone(passes), thread })
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.passes.state.lock().closed = true;
        self.passes.changed.notify_one();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that merges the WAL panicked");
        }
    }
}

/// The state of the thread.
struct Merge {
    path: PathBuf,
    durability: Durability,
    passes: Arc<Passes>,
    shared: Arc<Shared>,
}

impl Merge {
    fn run(self) {
        let mut connection = None;
        let mut has_failed = false;
        while self.passes.wait() {
            // A file that was moved or is damaged is not written any more.
            if self.shared.check_writable().is_err() {
                continue;
            }
            let merging = self.passes.merging.lock();
            let passed = match &connection {
                Some(connection) => pass(connection),
                None => self.open().and_then(|opened| pass(connection.insert(opened))),
            };
            drop(merging);
            // A full disk fails every pass: one line is enough.
            if let (Err(error), false) = (&passed, has_failed) {
                tracing::warn!(%error, "the WAL cannot be merged into the database now; it grows until it can");
            }
            has_failed = passed.is_err();
        }
    }

    fn open(&self) -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        // Only the writer merges the WAL when the database is closed.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        let synchronous = match self.durability {
            Durability::Full => "FULL",
            Durability::Normal => "NORMAL",
        };
        connection.pragma_update(None, "synchronous", synchronous)?;
        // SQLite notices at the first read that the database has a WAL.
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
        Ok(connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(written: u32, merged: u32) -> FrameCounts {
        FrameCounts { written, merged }
    }

    #[test]
    fn a_pass_is_due_by_frames_and_the_last_one_when_few_frames_are_left_and_no_commit_waits() {
        let mut plan = Plan::default();
        assert_eq!(plan.next(frames(PASS_FRAMES - 1, 0), true), Due::Nothing);
        assert_eq!(plan.next(frames(PASS_FRAMES, 0), true), Due::Pass);
        assert_eq!(plan.next(frames(PASS_FRAMES + 10, 0), true), Due::Nothing, "requested already");
        assert_eq!(plan.next(frames(RESTART_FRAMES, PASS_FRAMES), true), Due::Pass);
        assert_eq!(plan.next(frames(RESTART_FRAMES + 300, RESTART_FRAMES), false), Due::Pass, "300 are left");
        assert_eq!(plan.next(frames(RESTART_FRAMES + 400, RESTART_FRAMES + 300), false), Due::Nothing);
        assert_eq!(plan.next(frames(RESTART_FRAMES + 400, RESTART_FRAMES + 300), true), Due::LastPass);
        assert_eq!(plan.next(frames(20, 0), true), Due::Nothing, "the WAL was restarted");
        assert_eq!(plan.next(frames(PASS_FRAMES, 0), true), Due::Pass);
    }

    #[test]
    fn a_long_wal_is_restarted_even_if_commits_wait() {
        let mut plan = Plan::default();
        let (long, merged) = (RESTART_AT_ONCE_FRAMES, RESTART_AT_ONCE_FRAMES - 50);
        assert_eq!(plan.next(frames(long - 1, merged), false), Due::Nothing);
        assert_eq!(plan.next(frames(long, merged), false), Due::LastPass);
        assert_eq!(plan.next(frames(long + 20, merged), false), Due::Nothing, "a reader blocked it");
        assert_eq!(plan.next(frames(long + LAST_PASS_FRAMES, long + 20), false), Due::LastPass);
    }

    #[test]
    fn commits_that_are_faster_than_the_passes_wait_for_one() {
        let mut plan = Plan::default();
        assert_eq!(plan.next(frames(MAX_FRAMES - 1, 3_000), false), Due::Pass);
        assert_eq!(plan.next(frames(MAX_FRAMES, 3_000), false), Due::LongPass);
        assert_eq!(plan.next(frames(MAX_FRAMES + 20, 3_000), false), Due::Nothing, "a reader blocked it");
        assert_eq!(plan.next(frames(MAX_FRAMES + 300, 3_000), false), Due::LongPass);
    }
}
