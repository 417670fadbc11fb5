//! Time, randomness and spawning, each in one place; tests replace the clock and the source of ids. Also: contained
//! panics, the time since the machine started, small files.
//!
//! Other crates take a [`clock::Clock`], [`ids::Ids`] or [`tasks::Tasks`]; `clippy.toml` bans the functions that these
//! types wrap.

pub mod boot_time;
pub mod clock;
pub mod contain;
pub mod files;
pub mod ids;
pub mod tasks;
