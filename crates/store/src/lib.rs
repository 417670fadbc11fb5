//! Where mainspring keeps what it knows.
//!
//! [`SqliteStore`] is the durable one, [`MemoryStore`] the reference it is compared with; both implement
//! [`mainspring_kernel::store::Store`]. [`StateDir`] says which process may write a folder. Only this crate knows
//! SQL, and no rule lives in it: it keeps the image that the rules of `core` have made.

mod fault;
mod memory;
mod sqlite;
mod state_dir;

pub use fault::Fault;
pub use memory::MemoryStore;
pub use sqlite::{
    Durability, OMI_DATABASE, OmiArtifact, OmiError, OmiNote, OmiOptions, OmiReport, OmiSource, OpenError,
    SCHEMA_VERSION, SqliteCheck, SqliteOptions, SqliteStore,
};
pub use state_dir::{Owner, StateDir, StateDirError};
