//! Time, randomness and spawning: each in one place, each replaceable in a test. Also contained panics and small files.
//!
//! Other crates take a [`clock::Clock`], [`ids::Ids`] or [`tasks::Tasks`]; `clippy.toml` bans the functions that these
//! types wrap.

pub mod boot_time;
pub mod clock;
pub mod contain;
pub mod files;
pub mod ids;
pub mod tasks;
