//! The implementations of [`mainspring_kernel::store::Store`].
//!
//! [`SqliteStore`] and, with the feature `postgres`, `PostgresStore` are durable. With the feature `s3`,
//! `S3Blobs` keeps the bytes of artifacts in an object store. [`StateDir`] locks a state directory for one process. Only
//! this crate contains SQL. It contains no rules: it stores the rows that the rules of `core` produce. Tests compare the
//! stores with the crate `reference_store`.

mod copy;
mod fault;
mod order;
mod payload;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "s3")]
mod s3;
mod sqlite;
mod state_dir;

pub use copy::{CopyEnd, CopyError, CopyOptions, CopyReport, CopyStep, CopySteps, copy_discard, store_copy};
pub use fault::Fault;
#[cfg(feature = "postgres")]
pub use postgres::{
    AnnouncedSettings, FeedHolder, HomeServer, Homes, LocalServer, PostgresCheck, PostgresError,
    PostgresOptions, PostgresStore, PostgresView, ServerRow, ServerSeen, ServersSeen, SharedPermits, Standby,
};
#[cfg(feature = "s3")]
pub use s3::{CredentialsError, S3Blobs, S3Credentials, S3Options};
pub use sqlite::{
    ChecksumReport, CopySummary, Durability, OMI_DATABASE, OmiArtifact, OmiError, OmiNote, OmiOffer,
    OmiOptions, OmiReport, OmiSource, OpenError, Repaired, RestoredCursors, SCHEMA_VERSION, SqliteCheck,
    SqliteOptions, SqliteStore, SqliteView, UnfinishedRuns, Verification, Verified, database_repair,
    database_restore, database_vacuum, omi_offer_without_store,
};
pub use state_dir::{Exposure, Owner, StateDir, StateDirError};
