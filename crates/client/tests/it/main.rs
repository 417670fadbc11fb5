//! The client beside the server's own description of its API.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod operations;
