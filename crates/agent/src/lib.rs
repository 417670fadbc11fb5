//! The native runtime: model providers, the agent loop and its tools.

pub mod provider;
