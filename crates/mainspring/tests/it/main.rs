//! mainspring from outside: its binary, its files, its death.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stderr, reason = "a seed must be seen to be played again")]

mod access;
mod acp;
mod agents;
mod cli;
mod client;
mod docs;
mod guard;
mod guests;
mod http;
mod kill;
mod limits;
mod metrics;
mod native;
mod pi;
mod streams;
