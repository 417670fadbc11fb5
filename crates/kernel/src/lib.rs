//! The authority of mainspring: session actors, scheduling, cancellation, feeds.
//!
//! Two traits connect it to the outside: [`store::Store`] and [`adapter::Adapter`]. The kernel decides by the rules of
//! `mainspring-core`, makes the outcome durable through the store, then acts through the adapter.

mod actor;
pub mod adapter;
pub mod agents;
pub mod audit;
mod blobs;
pub mod board;
pub mod error;
pub mod feed;
mod flusher;
pub mod folders;
mod images;
mod indexer;
pub mod kernel;
pub mod meters;
pub mod names;
mod owner_blocks;
pub mod owner_events;
mod parked;
mod pins;
pub mod policy;
pub mod quotas;
mod retention;
mod scheduler;
pub mod search;
pub mod store;
mod store_health;

pub use blobs::{BlobBytes, BlobError, BlobReader, BlobStore, Blobs, KeptBlob, StagedBlob};
pub use error::Error;
pub use kernel::{Kernel, Options};
pub use mainspring_system::{boot_time, clock, contain, files, ids, tasks};
