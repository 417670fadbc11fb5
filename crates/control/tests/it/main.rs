//! The control tools over both control planes: the kernel's own and that of a client.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod bounds;
mod contract;
mod document;
mod profiled;
mod world;
