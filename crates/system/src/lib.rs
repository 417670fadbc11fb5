//! Time, randomness and spawning: each in one place, each replaceable in a test.
//!
//! Everything else takes a [`clock::Clock`], [`ids::Ids`] or [`tasks::Tasks`]; `clippy.toml` bans the functions beneath.

pub mod clock;
pub mod contain;
pub mod ids;
pub mod tasks;
