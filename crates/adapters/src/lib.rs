//! What drives agent runtimes beneath the kernel.

pub mod script;

pub use script::ScriptAdapter;
