//! The store's promises: the same tests over every store, then what is SQLite's own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod agents;
mod contract;
mod data;
mod delegations;
mod digests;
mod fixtures;
mod grants;
mod keys;
mod migrations;
mod names;
mod open;
mod purge;
mod random;
mod retention;
mod sqlite;
mod state_dir;
mod steps;
mod streams;
mod tree;
