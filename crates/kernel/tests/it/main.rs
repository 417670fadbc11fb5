//! Tests of the kernel through its public interface: with a deterministic agent, a manual clock, seeded ids, and every
//! store.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod acceptance;
mod access;
mod agents;
mod append;
mod approvals;
mod artifacts;
mod bindings;
mod branches;
mod cancellation;
mod check;
mod client_tools;
#[path = "../../../store/tests/it/cluster.rs"]
mod cluster;
mod commits;
mod compaction;
mod delegation;
mod failures;
mod full_disk;
mod images;
mod keys;
mod lanes;
mod life;
mod lifetime;
mod limits;
mod livefeed;
mod logins;
mod model;
mod order;
mod owner_events;
mod parked;
mod portable;
mod portable_checks;
mod portable_data;
mod puppet;
mod recovery;
mod restored;
mod retries;
mod rules;
mod run_wait;
mod scheduling;
mod search;
mod settings;
mod simulation;
mod start;
mod state;
mod state_history;
mod steering;
mod streaming;
mod tenants;
mod tree;
mod usage;
mod waiting;
mod world;
