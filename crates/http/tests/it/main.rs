//! The HTTP API through its real router: without a socket, except where a test is about sockets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stderr, reason = "a seed must be seen to be played again")]

mod access;
mod adapters;
mod agents;
mod append;
mod approvals;
mod artifacts;
mod audit;
mod bindings;
mod cors;
mod delegations;
mod docs;
mod errors;
mod feedback;
mod forward;
mod goal_types;
mod ids;
mod issuer;
mod keys;
mod limits;
mod lists;
mod mcp;
mod metrics;
mod oidc;
mod overview;
mod page;
mod quotas;
mod runs;
mod sessions;
mod sign_in;
mod state;
mod streams;
mod strict;
mod threads;
mod tree;
mod webhooks;
mod words;
mod world;
