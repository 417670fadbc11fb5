//! The protocols of a host, through pipes, against a server in the same process.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stderr, reason = "a seed must be seen to be played again")]

mod codes;
mod docs;
mod faults;
mod golden;
mod leave;
mod many;
mod mcp;
mod names;
mod questions;
mod relay;
mod world;
