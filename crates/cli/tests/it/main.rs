//! Tests of the mainspring binary from outside: its interfaces, its files, its crashes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stderr, reason = "a seed must be seen to be played again")]

mod acceptance;
mod acp;
mod agents;
mod attacks;
mod attention;
mod audit;
mod authority;
mod backup;
mod bridge;
mod chat;
mod cli;
mod cluster_chaos;
mod damage;
mod docs;
mod doctor;
mod full_disk;
mod guests;
mod history;
mod http;
mod import;
mod jsonl;
mod keys;
mod kill;
mod limits;
mod mcp;
mod model_server;
mod native;
mod networks;
mod object_store;
mod open;
mod pace;
mod people;
mod pi;
#[path = "../../../store/tests/it/cluster.rs"]
mod postgres_cluster;
mod postgres_moves;
mod postgres_seen;
mod private;
mod processes;
mod quotas;
mod readers;
mod servers;
mod session_agent;
mod startup;
mod state;
mod trust;
mod webhooks;
