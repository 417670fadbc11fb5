//! Agents that speak ACP: turns, permissions, cancellation, crashes, and no process left behind.

use std::path::PathBuf;
use std::time::Duration;

use mainspring_core::{Approval, Body, Decider, Fidelity, Mode, RunId, RunStatus, SandboxProfile};
use mainspring_kernel::kernel::{Caller, RunRequest, session_ref};
use mainspring_kernel::policy::Permissions;

use crate::world::{Kind, PICTURE, Setup, World, compile, event_types, failure_code, request, with_timeout};

mod calls;
mod client;
mod facts;
mod faults;
mod forks;
mod leftovers;
mod login;
mod lost_sessions;
mod mcp;
mod quirks;
mod sandbox;
mod tools;
mod turns;
mod unasked;

async fn world(features: &str) -> World {
    world_with(features, |_| {}).await
}

/// A world whose scripted agent has these features, adapted by `change`.
async fn world_with(features: &str, change: impl Fn(&mut Setup)) -> World {
    let set_up = |setup: &mut Setup| {
        setup.run_example("scripted_acp_agent", features);
        change(setup);
    };
    World::open(Kind::Acp, set_up).await
}
