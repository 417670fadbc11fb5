//! The durable store on PostgreSQL.
//!
//! ```text
//! commits ──▶ writers (a session belongs to one) ──▶ one transaction per batch
//! reads   ──▶ pool                               ──▶ one statement, or several in one snapshot
//! ```
//!
//! Rows are stored as the JSON of their public form, beside the columns by which they are found. A cursor is made of
//! the transaction id; docs/decisions/0034-cursors-in-postgresql.md says why. All statements are unnamed and no setting
//! outlives a transaction, so that they work through a transaction pooler; only the lock of the server needs a
//! connection of its own.
//!
//! Invariant: one server at a time writes a database: it holds the lock, or in a cluster the lease. A server that
//! starts voids all leases of sessions, so that a server that has lost the database without noticing cannot write.
//! Servers that share the work count as one server here, and each of them writes its own sessions (`homes.rs`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use deadpool_postgres::Pool;
use mainspring_kernel::store::{Fence, StoreError};
use tokio::runtime::{Handle, Runtime};

use self::connect::{Connector, Pooled};
pub use self::diagnosis::{FeedHolder, PostgresCheck, ServerRow};
pub use self::homes::{HomeServer, Homes};
pub use self::lease::LocalServer;
pub use self::permits::SharedPermits;
use self::read::Reader;
pub use self::settings::AnnouncedSettings;
pub use self::standby::{ServerSeen, ServersSeen, Standby};
pub use self::view::PostgresView;
use self::writer::{Inlet, Shared, Writer};
use crate::Fault;

mod batch;
mod blobs;
mod change;
mod connect;
pub(crate) mod copy;
mod diagnosis;
mod error;
mod homes;
mod lease;
mod meters;
mod migrate;
mod notices;
mod outcome;
mod owner_blocks;
mod permits;
mod read;
mod rows;
mod server;
mod settings;
mod standby;
mod store;
mod tables;
mod values;
mod verify;
mod view;
mod writer;

/// How a store on PostgreSQL is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PostgresOptions {
    /// The number of connections that write, from 1. More than 4 rarely help.
    pub writers: usize,
    /// Takes the lock of the server. The lock needs a connection of its own, which a transaction pooler does not give.
    /// Without the lock, nothing prevents a second server from voiding the leases of this one.
    pub takes_lock: bool,
    /// Milliseconds for which a reader of all sessions waits for transactions that are older than an event. It then
    /// returns the events before those transactions.
    pub feed_wait_ms: u64,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self { writers: 2, takes_lock: true, feed_wait_ms: 5_000 }
    }
}

/// Why a store on PostgreSQL was not opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostgresError {
    /// The URL, or a file that it names, cannot be used.
    #[error("the store's address is not usable: {0}")]
    Url(String),
    /// The database cannot be reached or refuses.
    #[error("{0}")]
    Database(String),
    /// A newer version has made the tables.
    #[error(
        "the database was made by a newer version (tables {found}, this version knows {known}): upgrade mainspring"
    )]
    Newer {
        /// The version of the tables.
        found: usize,
        /// The newest version known.
        known: usize,
    },
    /// An earlier version has made the tables, and the command does not change them.
    #[error(
        "the database was made by an earlier version (tables {found}, this version reads {known}): start a server of this \
         version once, which migrates it"
    )]
    Older {
        /// The version of the tables.
        found: usize,
        /// The version that can be read.
        known: usize,
    },
    /// The database is the target of a copy that has not ended.
    #[error(
        "the database is an unfinished copy of another store: run `mainspring store copy` again to finish it, or remove \
         it with `mainspring store discard`"
    )]
    UnfinishedCopy,
    /// Another server uses the database.
    #[error(
        "another mainspring server or a copy uses this database: stop it first, or give each server a database of its own"
    )]
    InUse,
    /// A setting differs from that of another server of the cluster.
    #[error("{0}")]
    Settings(String),
    /// The file with the time limit of agents cannot be written.
    #[error("{} cannot be written: {reason}", file.display())]
    LimitFile {
        /// The file.
        file: std::path::PathBuf,
        /// The error of the operating system.
        reason: String,
    },
}

/// A store on PostgreSQL.
pub struct PostgresStore {
    pool: Pool,
    inlets: Vec<Arc<Inlet>>,
    shared: Arc<Shared>,
    feed_wait_ms: u64,
    /// Dropped last: the connections run on these threads.
    _threads: Arc<Threads>,
}

/// The threads of the store.
struct Threads(Option<Runtime>);

impl Threads {
    fn start() -> Result<(Self, Handle), PostgresError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("store-postgres")
            .enable_all()
            .build()
            .map_err(|error| PostgresError::Database(format!("no threads for the store: {error}")))?;
        let handle = runtime.handle().clone();
        Ok((Self(Some(runtime)), handle))
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // The store may be dropped inside a task, which must not wait for threads.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl PostgresStore {
    /// Opens the database at `url`, and makes or updates its tables. Waits some seconds for a server that is stopping.
    pub fn open(url: &str, options: PostgresOptions) -> Result<Self, PostgresError> {
        let (threads, runtime) = Threads::start()?;
        let connector = Connector::new(url, runtime.clone())?;
        let shared = Arc::<Shared>::default();
        // On a thread of its own: the caller may be a task of another runtime, which must not block on this one.
        let opened = std::thread::scope(|scope| {
            let open = || runtime.block_on(server::start(&connector, &shared, options.takes_lock));
            scope.spawn(open).join()
        });
        opened.map_err(|_| PostgresError::Database("the thread that opens the store panicked".into()))??;
        Self::assemble(&connector, &shared, options, Arc::new(threads))
    }

    /// Starts the writers of a server that may write.
    fn assemble(
        connector: &Connector,
        shared: &Arc<Shared>,
        options: PostgresOptions,
        threads: Arc<Threads>,
    ) -> Result<Self, PostgresError> {
        let inlets: Vec<Arc<Inlet>> = (0..options.writers.max(1)).map(|_| Arc::default()).collect();
        for (number, inlet) in inlets.iter().enumerate() {
            let (connector, shared, inlet) = (connector.clone(), Arc::clone(shared), Arc::clone(inlet));
            let writer = Writer { number, connector: connector.clone(), inlet, shared, client: None };
            connector.spawn(writer.run());
        }
        let (pool, shared) = (connector.pool()?, Arc::clone(shared));
        Ok(Self { pool, inlets, shared, feed_wait_ms: options.feed_wait_ms, _threads: threads })
    }

    /// Injects `fault` into the next group of commits, or into the next load of a session.
    #[doc(hidden)]
    pub fn inject_fault(&self, fault: Fault) {
        *self.shared.fault.lock() = Some(fault);
    }

    /// Simulates a full disk until it is called with false.
    #[doc(hidden)]
    pub fn set_full(&self, is_full: bool) {
        self.shared.is_full.store(is_full, Ordering::Release);
    }

    /// Returns the index of the writer of a session.
    fn inlet(&self, fence: Fence) -> usize {
        // Ids begin with the time, and end with random bits.
        usize::from(fence.session.as_bytes()[15]) % self.inlets.len()
    }

    async fn reader(&self) -> Result<Reader, StoreError> {
        let object = self.pool.get().await;
        let unreachable = |error: deadpool_postgres::PoolError| match error {
            deadpool_postgres::PoolError::Backend(error) => error::read_error(&error),
            error => StoreError::Unavailable(format!("PostgreSQL: {error}")),
        };
        Ok(Reader::new(Pooled::new(object.map_err(unreachable)?)))
    }
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore").finish_non_exhaustive()
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.inlets.iter().for_each(|inlet| inlet.close());
        self.pool.close();
    }
}
