//! Tests of the store's contract over every store, then of SQLite's and PostgreSQL's own behaviour.

#![allow(clippy::unwrap_used, reason = "a failed setup should stop the test")]

mod agents;
mod background;
mod backup;
mod checksums;
mod cluster;
mod contract;
mod crash;
mod damage;
mod data;
mod delegations;
mod diagnosis;
mod digests;
mod edge;
mod feedback;
mod files;
mod fixtures;
mod goals;
mod grants;
mod homes;
mod ids;
mod inbox;
mod keys;
mod large;
mod lease;
mod migrations;
mod names;
mod open;
mod owners;
mod postgres;
mod purge;
mod races;
mod random;
mod readers;
mod retention;
mod sqlite;
mod state_dir;
mod steps;
mod streams;
mod tree;
mod usage;
mod view;
mod views;
mod wal;
mod webhooks;
