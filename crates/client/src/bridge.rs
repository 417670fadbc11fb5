//! The bridge: how an application on the same machine has its conversations answered by one daemon process.
//!
//! ```text
//! AgentBridge (main chat) ─┐                                 ┌─ pipes ─ mainspring stdio
//! AgentBridge (task chat) ─┼─▶ RuntimeProcess (one per state ┤
//! AgentBridge (a pill)    ─┘   directory and program)        └─ started again when it dies
//! ```
//!
//! A [`RuntimeProcess`] owns the process and routes each of its lines to the handle that asked. An [`AgentBridge`] is such a
//! handle: it asks one thing at a time, and different handles ask side by side.
//!
//! Invariants: a query has exactly one end, and it is the daemon's word or that the daemon is lost, never a guess; a handle
//! that does not read costs bounded memory and makes nobody wait.

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
pub use route::{QueryEvent, ToolCall, Tools};
pub use surface::Surface;
