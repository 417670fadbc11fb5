//! Tests of the native runtime: real HTTP to a scripted model server, a real kernel, a manual clock.

#![allow(clippy::unwrap_used, reason = "a failed assumption should fail the test")]

mod agent_state;
mod behaviours;
mod client_tools;
mod context;
mod contract;
mod control;
mod data;
mod decisions;
mod delegation;
mod goals;
mod mcp;
mod networks;
mod provider;
mod steering;
mod titles;
mod tools;
mod turns;
mod world;
