//! Tests of the kernel through its public interface: with a deterministic agent, a manual clock, seeded ids, and every
//! store.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod acceptance;
mod access;
mod agents;
mod approvals;
mod artifacts;
mod bindings;
mod branches;
mod cancellation;
mod check;
mod client_tools;
mod compaction;
mod delegation;
mod full_disk;
mod images;
mod keys;
mod life;
mod lifetime;
mod limits;
mod livefeed;
mod logins;
mod model;
mod order;
mod owner_events;
mod portable;
mod portable_data;
mod puppet;
mod recovery;
mod restored;
mod retries;
mod run_wait;
mod scheduling;
mod search;
mod settings;
mod simulation;
mod start;
mod state;
mod steering;
mod streaming;
mod tree;
mod usage;
mod waiting;
mod world;
