//! mainspring: durable sessions for AI agents, as one binary and one library.
//!
//! This crate is where concrete parts meet: it alone reads the configuration and names a store and adapters.

pub mod config;
