//! Inbound protocols: they translate and decide nothing.

pub mod http;
pub mod jsonl;
