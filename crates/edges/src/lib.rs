//! Inbound protocols: they translate and decide nothing.

mod control;
pub mod http;
pub mod jsonl;
pub mod mcp;
