//! The bridge: runs the conversations of a local application through one daemon process.
//!
//! ```text
//! AgentBridge (main chat) ─┐                                 ┌─ pipes ─ mainspring stdio
//! AgentBridge (task chat) ─┼─▶ RuntimeProcess (one per state ┤
//! AgentBridge (a pill)    ─┘   directory and program)        └─ started again when it dies
//! ```
//!
//! A [`RuntimeProcess`] owns the process and routes each reply line to the handle of its query. An [`AgentBridge`] is
//! such a handle: it has one query at a time, and different handles work in parallel.
//!
//! Invariants: a query ends exactly once, with the daemon's own result or with the loss of the daemon, never with a
//! guess; a handle that does not read uses bounded memory and blocks no other handle.

mod error;
mod handle;
mod launch;
mod line;
mod process;
mod route;
mod shared;
mod supervise;
mod surface;
mod tail;

pub use error::BridgeError;
pub use handle::{AgentBridge, BridgeOptions, Query, QueryStream};
pub use launch::{Launch, Restart};
pub use line::{CancelAck, QueryIds, QueryResult};
pub use mainspring_api::jsonl::{Activity, Warmup, WarmupSession};
pub use process::{Health, Notice, Phase, RuntimeProcess};
pub use route::{QueryEvent, Question, ToolCall, Tools};
pub use surface::Surface;
