//! The kernel's promises, driven from outside: a deterministic agent, a clock that stands still unless it is turned,
//! ids from a seed, and every store.

#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod acceptance;
mod access;
mod bindings;
mod branches;
mod cancellation;
mod check;
mod keys;
mod life;
mod order;
mod puppet;
mod recovery;
mod retries;
mod scheduling;
mod settings;
mod simulation;
mod streaming;
mod waiting;
mod world;
