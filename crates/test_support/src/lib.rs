//! One mainspring inside the process of a test: a kernel with the script agent and a manual clock, the HTTP router in
//! front of it, and real sockets where a test needs them.
//!
//! Only for the tests of crates that use the kernel over HTTP. Code that only one crate needs stays in the tests of
//! that crate.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod agent;
mod event_stream;
pub mod jsonl;
mod node;
mod rng;

pub use agent::{FnAgent, asking_agent, native_agent};
pub use event_stream::{EventStream, SseFrame};
pub use node::{Listening, NOW, NodeBuilder, OWNER, TOKEN, TestNode, tls_file};
pub use rng::Rng;
