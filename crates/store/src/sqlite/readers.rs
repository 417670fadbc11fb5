//! Reader threads, each with its own read-only connection.
//!
//! They are not the runtime's blocking pool, so that each connection and its prepared statements stay on one thread,
//! and a point read costs one wakeup in each direction.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use mainspring_kernel::contain::contain_call;
use mainspring_kernel::store::StoreError;
use parking_lot::{Condvar, Mutex};
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::error;

type Job = Box<dyn FnOnce(&Connection) + Send>;

/// The pool of reader threads. Dropping it waits for running reads.
#[derive(Debug)]
pub(super) struct Readers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    inner: Mutex<Inner>,
    filled: Condvar,
}

#[derive(Default)]
struct Inner {
    jobs: VecDeque<Job>,
    closed: bool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Readers {
    /// Starts one thread per connection.
    pub(super) fn start(connections: Vec<Connection>) -> std::io::Result<Self> {
        let mut readers = Self { shared: Arc::default(), threads: vec![] };
        for connection in connections {
            let shared = Arc::clone(&readers.shared);
            let thread = std::thread::Builder::new().name("store-reader".into());
            readers.threads.push(thread.spawn(move || shared.serve(&connection))?);
        }
        Ok(readers)
    }

    /// Runs `read` in one read transaction, so that all its queries see the same snapshot.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move |connection| {
            let result = in_transaction(connection, read);
            // The caller may have stopped waiting.
            let _ = answer.send(result);
        });
        self.shared.inner.lock().jobs.push_back(job);
        self.shared.filled.notify_one();
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
    // A thread that ended with a panic would leave the reads of all others to fewer threads, at last to none.
    let result =
        contain_call(|| read(connection)).unwrap_or_else(|panic| Err(error::panicked("a read", &panic)));
    execute("COMMIT")?;
    result
}

impl Shared {
    fn serve(&self, connection: &Connection) {
        loop {
            let mut inner = self.inner.lock();
            let job = loop {
                match inner.jobs.pop_front() {
                    Some(job) => break job,
                    None if inner.closed => return,
                    None => self.filled.wait(&mut inner),
                }
            };
            drop(inner);
            job(connection);
        }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.shared.inner.lock().closed = true;
        self.shared.filled.notify_all();
        for thread in self.threads.drain(..) {
            // The caller of a read that panicked has received an error.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_read_that_panics_is_answered_and_costs_no_thread() {
        let readers = Readers::start(vec![Connection::open_in_memory().unwrap()]).unwrap();
        for _ in 0..3 {
            let panicked = readers.read::<()>(|_| panic!("a row of a kind that nobody knows")).await;
            let Err(StoreError::Corrupt(why)) = panicked else { panic!("{panicked:?}") };
            assert!(why.contains("panicked") && !why.contains("nobody knows"), "{why}");
        }
        let sum = readers.read(|connection| Ok(connection.query_row("SELECT 1 + 1", [], |row| row.get(0))));
        assert_eq!(sum.await.unwrap(), Ok(2));
    }
}
