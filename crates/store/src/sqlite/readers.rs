//! Reader threads, each with its own read-only connection.
//!
//! They are not the runtime's blocking pool, so that each connection and its prepared statements stay on one thread,
//! and a point read costs one wakeup in each direction. A read goes to the idle thread that became idle last: its pages,
//! statements and schema are warm, and a connection that the load does not need reads nothing at all. A connection that
//! nobody has used for a while gives its cached pages back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use mainspring_kernel::contain::contain_call;
use mainspring_kernel::store::StoreError;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::error;

/// The time after which an unused connection gives its cached pages back. Reading them again costs less than a commit.
pub(super) const IDLE: Duration = Duration::from_secs(5);

/// Gives the cached pages of a connection back.
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
    /// Starts one thread per connection. A connection that is unused for `idle_time` gives its cached pages back.
    pub(super) fn start(connections: Vec<Connection>, idle_time: Duration) -> std::io::Result<Self> {
        let given = connections.iter().map(|_| None).collect();
        let idle = (0..connections.len()).collect();
        let inner = Inner { jobs: VecDeque::new(), given, idle, closed: false };
        let wakes = connections.iter().map(|_| Condvar::new()).collect();
        let shared = Arc::new(Shared { inner: inner.into(), wakes, idle_time });
        let mut readers = Self { shared, threads: vec![] };
        let first_used = connections.len().saturating_sub(1);
        for (index, connection) in connections.into_iter().enumerate() {
            let shared = Arc::clone(&readers.shared);
            let thread = std::thread::Builder::new().name("store-reader".into());
            readers.threads.push(thread.spawn(move || {
                if index == first_used {
                    parse_schema(&connection);
                }
                shared.serve(index, &connection);
            })?);
        }
        Ok(readers)
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

/// Uses cached statements: rusqlite's transaction type recompiles them for every read.
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
    execute("COMMIT")?;
    result
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

    #[tokio::test]
    async fn reads_one_after_the_other_use_one_connection() {
        let connections = (0..4).map(|_| Connection::open_in_memory().unwrap()).collect();
        let readers = Readers::start(connections, IDLE).unwrap();
        let thread = |_: &Connection| Ok(std::thread::current().id());
        let first: ThreadId = readers.read(thread).await.unwrap();
        for _ in 0..100 {
            assert_eq!(readers.read(thread).await.unwrap(), first);
        }
    }

    #[tokio::test]
    async fn a_thread_that_releases_memory_gets_its_next_read() {
        let connections = vec![Connection::open_in_memory().unwrap()];
        let readers = Readers::start(connections, Duration::ZERO).unwrap();
        for number in 0..1_000 {
            assert_eq!(readers.read(move |_: &Connection| Ok(number)).await.unwrap(), number);
        }
    }

    #[tokio::test]
    async fn reads_at_the_same_time_use_several_connections() {
        let connections = (0..2).map(|_| Connection::open_in_memory().unwrap()).collect();
        let readers = Readers::start(connections, IDLE).unwrap();
        let (send, receive) = std::sync::mpsc::channel();
        // The first read ends when the second one runs.
        let first = readers.read(move |_| Ok(receive.recv().unwrap()));
        let second = readers.read(move |_| send.send(7).map_err(|_| StoreError::Unavailable("gone".into())));
        assert_eq!(tokio::join!(first, second).0.unwrap(), 7);
    }

    #[tokio::test]
    async fn a_read_that_panics_is_answered_and_costs_no_thread() {
        let readers = Readers::start(vec![Connection::open_in_memory().unwrap()], IDLE).unwrap();
        for _ in 0..3 {
            let panicked = readers.read::<()>(|_| panic!("a row of a kind that nobody knows")).await;
            let Err(StoreError::Corrupt(why)) = panicked else { panic!("{panicked:?}") };
            assert!(why.contains("panicked") && !why.contains("nobody knows"), "{why}");
        }
        let sum = readers.read(|connection| Ok(connection.query_row("SELECT 1 + 1", [], |row| row.get(0))));
        assert_eq!(sum.await.unwrap(), Ok(2));
    }
}
