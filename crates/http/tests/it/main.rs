//! The HTTP API through its real router: without a socket, except where a test is about sockets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stderr, reason = "a seed must be seen to be played again")]

mod access;
mod adapters;
mod agents;
mod approvals;
mod artifacts;
mod bindings;
mod delegations;
mod docs;
mod errors;
mod ids;
mod keys;
mod limits;
mod lists;
mod mcp;
mod metrics;
mod page;
mod runs;
mod sessions;
mod sign_in;
mod state;
mod streams;
mod strict;
mod tree;
mod world;
