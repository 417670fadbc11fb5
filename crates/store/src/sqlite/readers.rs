//! Reader threads, each with its own read-only connection.
//!
//! Reads do not use the runtime's blocking pool, so that each connection and its prepared statements stay on one
//! thread, and a point read costs one wakeup in each direction. A read goes to the idle thread that became idle last:
//! its pages, statements and schema are warm, and a connection that the load does not need stays unused. A connection
//! that is unused for a while releases its cached pages.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::Duration;

use mainspring_kernel::contain::contain_call;
use mainspring_kernel::store::StoreError;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::{OpenError, error};

/// The time after which an unused connection releases its cached pages. Reading them again costs less than a commit.
pub(super) const IDLE: Duration = Duration::from_secs(5);

/// Releases the cached pages of a connection.
pub(super) fn release_memory(connection: &Connection) {
    if let Err(error) = connection.execute_batch("PRAGMA shrink_memory") {
        tracing::warn!(%error, "an unused connection keeps its cached pages");
    }
}

/// Parses the schema, which a connection otherwise does at its first read.
fn parse_schema(connection: &Connection) {
    // If the schema cannot be read, the first read fails with the error.
    let _ = connection.prepare("SELECT 1 FROM sqlite_schema");
}

/// A read, in two parts: the thread becomes idle before the caller gets the result, so that the caller's next read
/// finds it idle.
trait Job: Send {
    fn execute(&mut self, connection: &Connection);
    fn answer(self: Box<Self>);
}

struct Read<F, T> {
    read: Option<F>,
    result: Option<Result<T, StoreError>>,
    answer: oneshot::Sender<Result<T, StoreError>>,
}

impl<F, T> Job for Read<F, T>
where
    F: FnOnce(&Connection) -> Result<T, StoreError> + Send,
    T: Send,
{
    fn execute(&mut self, connection: &Connection) {
        self.result = self.read.take().map(|read| in_transaction(connection, read));
    }

    fn answer(self: Box<Self>) {
        if let Some(result) = self.result {
            // The caller may have stopped waiting.
            let _ = self.answer.send(result);
        }
    }
}

/// The pool of reader threads. Dropping it waits for running reads.
#[derive(Debug)]
pub(super) struct Readers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// The connections of the readers, while their threads open them.
#[must_use]
pub(super) struct Opening(Receiver<Result<(), OpenError>>);

impl Opening {
    /// Waits until all connections are open and the one of the first read has parsed the schema. While it parses, it holds
    /// a snapshot, and frames of later commits cannot be merged.
    pub(super) fn finish(self) -> Result<(), OpenError> {
        self.0.into_iter().collect()
    }
}

struct Shared {
    inner: Mutex<Inner>,
    /// Wakes the thread with this index.
    wakes: Vec<Condvar>,
    idle_time: Duration,
}

struct Inner {
    /// The reads that wait for a thread.
    jobs: VecDeque<Box<dyn Job>>,
    /// The read that was given to an idle thread, by the index of the thread.
    given: Vec<Option<Box<dyn Job>>>,
    /// The idle threads; the one that became idle last comes last.
    idle: Vec<usize>,
    closed: bool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Readers {
    /// Starts `count` threads, each of which opens a connection of its own. A connection that is unused for `idle_time`
    /// releases its cached pages.
    pub(super) fn start(
        count: usize,
        open: impl Fn() -> Result<Connection, OpenError> + Send + Clone + 'static,
        idle_time: Duration,
    ) -> std::io::Result<(Self, Opening)> {
        let given = (0..count).map(|_| None).collect();
        let inner = Inner { jobs: VecDeque::new(), given, idle: (0..count).collect(), closed: false };
        let wakes = (0..count).map(|_| Condvar::new()).collect();
        let shared = Arc::new(Shared { inner: inner.into(), wakes, idle_time });
        let mut readers = Self { shared, threads: vec![] };
        let (opened, opening) = mpsc::channel();
        // The last thread gets the first read, so it starts first.
        for index in (0..count).rev() {
            let (shared, open, opened) = (Arc::clone(&readers.shared), open.clone(), opened.clone());
            let thread = std::thread::Builder::new().name("store-reader".into());
            // If the start has failed, nobody waits for the result.
            readers.threads.push(thread.spawn(move || match open() {
                Ok(connection) => {
                    if index == count - 1 {
                        parse_schema(&connection);
                    }
                    let _ = opened.send(Ok(()));
                    drop(opened);
                    shared.serve(index, &connection);
                }
                Err(error) => drop(opened.send(Err(error))),
            })?);
        }
        Ok((readers, Opening(opening)))
    }

    /// Runs `read` in one read transaction, so that all its queries see the same snapshot.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let job = Box::new(Read { read: Some(read), result: None, answer });
        self.shared.add(job);
        answered.await.unwrap_or_else(|_| Err(StoreError::Unavailable("the reader stopped".into())))
    }
}

/// Runs `read` in a transaction. Begins and ends it with cached statements: rusqlite's transaction type would recompile
/// them for every read.
fn in_transaction<T>(
    connection: &Connection,
    read: impl FnOnce(&Connection) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let execute = |sql| {
        let executed = connection.prepare_cached(sql).and_then(|mut statement| statement.execute([]));
        executed.map_err(|failure| error::read_error(&failure))
    };
    execute("BEGIN")?;
    // A panic must not end the thread: the remaining threads would have to serve all reads.
    let result =
        contain_call(|| read(connection)).unwrap_or_else(|panic| Err(error::panicked("a read", &panic)));
    let ended = execute("COMMIT");
    // After some errors SQLite has ended the transaction itself, and COMMIT fails too. The first error says why.
    let read = result?;
    ended.map(|_| read)
}

impl Shared {
    fn add(&self, job: Box<dyn Job>) {
        let mut inner = self.inner.lock();
        let Some(index) = inner.idle.pop() else { return inner.jobs.push_back(job) };
        inner.given[index] = Some(job);
        drop(inner);
        self.wakes[index].notify_one();
    }

    fn serve(&self, index: usize, connection: &Connection) {
        let mut next = self.wait(index, connection);
        while let Some(mut job) = next {
            job.execute(connection);
            let queued = self.queued_or_idle(index);
            job.answer();
            next = queued.or_else(|| self.wait(index, connection));
        }
    }

    /// Returns a read that waits for a thread. If there is none, the thread is idle from now on.
    fn queued_or_idle(&self, index: usize) -> Option<Box<dyn Job>> {
        let mut inner = self.inner.lock();
        let queued = inner.jobs.pop_front();
        if queued.is_none() {
            inner.idle.push(index);
        }
        queued
    }

    /// Waits until a read is given to an idle thread. Returns `None` when the pool is closed.
    fn wait(&self, index: usize, connection: &Connection) -> Option<Box<dyn Job>> {
        let mut inner = self.inner.lock();
        let mut is_released = false;
        loop {
            if let Some(job) = inner.given[index].take() {
                return Some(job);
            }
            if inner.closed {
                return None;
            }
            if is_released {
                self.wakes[index].wait(&mut inner);
            } else if self.wakes[index].wait_for(&mut inner, self.idle_time).timed_out() {
                MutexGuard::unlocked(&mut inner, || release_memory(connection));
                is_released = true;
            }
        }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.shared.inner.lock().closed = true;
        self.shared.wakes.iter().for_each(|wake| _ = wake.notify_one());
        for thread in self.threads.drain(..) {
            // The caller of a read that panicked has received an error.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread::ThreadId;

    use super::*;

    fn start(count: usize, idle_time: Duration) -> Readers {
        let open = || Ok(Connection::open_in_memory().unwrap());
        let (readers, opening) = Readers::start(count, open, idle_time).unwrap();
        opening.finish().unwrap();
        readers
    }

    #[test]
    fn a_connection_that_cannot_be_opened_is_reported() {
        let open = || Err(OpenError::NotAFile { path: "missing".into() });
        let (_readers, opening) = Readers::start(2, open, IDLE).unwrap();
        assert!(matches!(opening.finish(), Err(OpenError::NotAFile { .. })));
    }

    #[tokio::test]
    async fn reads_one_after_the_other_use_one_connection() {
        let readers = start(4, IDLE);
        let thread = |_: &Connection| Ok(std::thread::current().id());
        let first: ThreadId = readers.read(thread).await.unwrap();
        for _ in 0..100 {
            assert_eq!(readers.read(thread).await.unwrap(), first);
        }
    }

    #[tokio::test]
    async fn a_thread_that_releases_memory_gets_its_next_read() {
        let readers = start(1, Duration::ZERO);
        for number in 0..1_000 {
            assert_eq!(readers.read(move |_: &Connection| Ok(number)).await.unwrap(), number);
        }
    }

    #[tokio::test]
    async fn reads_at_the_same_time_use_several_connections() {
        let readers = start(2, IDLE);
        let (send, receive) = mpsc::channel();
        // The first read ends when the second one runs.
        let first = readers.read(move |_| Ok(receive.recv().unwrap()));
        let second = readers.read(move |_| send.send(7).map_err(|_| StoreError::Unavailable("gone".into())));
        assert_eq!(tokio::join!(first, second).0.unwrap(), 7);
    }

    #[tokio::test]
    async fn a_read_that_panics_returns_an_error_and_its_thread_continues() {
        let readers = start(1, IDLE);
        for _ in 0..3 {
            let panicked = readers.read::<()>(|_| panic!("a row of an unknown kind")).await;
            let Err(StoreError::Corrupt(why)) = panicked else { panic!("{panicked:?}") };
            assert!(why.contains("panicked") && !why.contains("unknown kind"), "{why}");
        }
        let sum = readers.read(|connection| Ok(connection.query_row("SELECT 1 + 1", [], |row| row.get(0))));
        assert_eq!(sum.await.unwrap(), Ok(2));
    }

    #[tokio::test]
    async fn the_error_of_a_read_whose_transaction_has_ended_is_returned() {
        let readers = start(1, IDLE);
        let failed = StoreError::Unavailable("disk I/O error".into());
        let error = failed.clone();
        let read = readers.read::<()>(move |connection| {
            // SQLite does the same after an I/O error.
            connection.execute_batch("ROLLBACK").unwrap();
            Err(error)
        });
        assert_eq!(read.await, Err(failed));
        assert_eq!(readers.read(|_| Ok(7)).await, Ok(7));
    }
}
