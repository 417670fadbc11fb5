//! Starts a store: opens its connections and starts its threads.

use std::path::Path;
use std::sync::Arc;

use mainspring_core::Time;

use super::checker::Checker;
use super::checkpointer::{Checkpointer, Passes, Plan};
use super::event_blocks::EventBlocks;
use super::failure_log::FailureLog;
use super::files::Files;
use super::readers::{self, Readers};
use super::usage::COUNTED_AT_ONCE;
use super::wal::{FrameCounts, WalIndex};
use super::writer::{LEASE_BITS, Shared, Writer};
use super::{OpenError, SqliteOptions, SqliteStore, boot, open};

impl SqliteStore {
    /// Opens the database at `path`, or creates it. A database that is refused is not changed.
    pub fn open(path: &Path, options: SqliteOptions, now: Time) -> Result<Self, OpenError> {
        let open::Opened { connection, check_due } = open::open_writer(path, &options, now)?;
        let fail = |error| open::failed(path, error);
        let io = |error: std::io::Error| OpenError::Io { path: path.into(), source: error.into() };
        let pragmas = open::pragmas(&connection).map_err(fail)?;
        let open_reader = {
            let path = path.to_path_buf();
            move || open::open_reader(&path)
        };
        let count = options.readers.max(1);
        let (readers, opening) = Readers::start(count, open_reader, readers::IDLE).map_err(io)?;
        let (boot, seq) = boot::boot(path, &connection, check_due, now).map_err(fail)?;
        // Before the merge: if it finds the snapshot of a reader, SQLite sleeps for milliseconds.
        opening.finish()?;
        boot::merge(&connection).map_err(fail)?;
        let shared = Arc::new(Shared::new(Files::of(path).map_err(io)?));
        let wal_index = WalIndex::open(path).map_err(io)?;
        let passes = Arc::<Passes>::default();
        let checkpointer = Checkpointer::start(path, options.durability, &passes, &shared).map_err(io)?;
        let writer = Writer {
            shared: Arc::clone(&shared),
            connection,
            wal_index,
            frames: FrameCounts::default(),
            plan: Plan::default(),
            passes,
            durability: options.durability,
            is_synced: false,
            last_epoch: boot << LEASE_BITS,
            seq,
            failures: FailureLog::default(),
            event_blocks: EventBlocks::default(),
            // An earlier process may have left some.
            uncounted_messages: COUNTED_AT_ONCE,
        };
        let thread = std::thread::Builder::new().name("store-writer".into());
        let writer = Some(thread.spawn(move || writer.run()).map_err(io)?);
        let checker = match check_due {
            true => Some(Checker::start(open::open_reader(path)?, path, Arc::clone(&shared)).map_err(io)?),
            false => None,
        };
        let checkpointer = Some(checkpointer);
        Ok(Self { path: path.into(), shared, pragmas, checker, readers: Some(readers), checkpointer, writer })
    }
}
