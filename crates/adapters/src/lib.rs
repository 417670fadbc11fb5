//! What drives agent runtimes beneath the kernel.

pub mod acp;
mod pool;
pub mod process;
pub mod script;

pub use acp::{AcpAdapter, AcpOptions};
pub use script::ScriptAdapter;
