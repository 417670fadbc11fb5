//! Inbound protocols over standard input and output: JSON lines for a host, the control tools over MCP.
//!
//! Both are clients of the HTTP API of the process that owns the sessions. They only translate between protocols.

pub mod jsonl;
mod link;
pub mod mcp;
pub mod mcp_relay;
mod plane;

pub use link::{Keeper, Link, Successor};
pub use plane::LinkPlane;
