//! mainspring from outside: its binary, its files, its death.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod cli;
mod docs;
mod http;
mod kill;
