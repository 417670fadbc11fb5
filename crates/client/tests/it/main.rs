//! The client against the real router, over sockets of this process.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stderr, reason = "a seed must be seen to be played again")]

mod adapters;
mod agents;
mod append;
mod artifacts;
mod bindings;
mod bridge;
mod connections;
mod delegations;
mod errors;
mod goals;
mod grants;
mod host_calls;
mod keys;
mod operations;
mod overview;
mod runs;
mod server;
mod sessions;
mod state;
mod status;
mod streams;
mod threads;
mod tls;
mod tree;
mod world;
