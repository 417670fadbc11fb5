//! Agents that speak ACP, beneath a real node: turns, permissions, cancellation, death, and nothing left behind.

use std::path::PathBuf;

use mainspring::config::{AdapterConfig, AdapterKind, Permissions};
use mainspring::core::{Approval, Body, Fidelity, Mode, RunId, RunStatus};
use mainspring::{Caller, RunRequest, session_ref};

use crate::agents::{
    FOLDER, PICTURE, World, everything_server, failure, folder_of, installed, kinds, model, node, request,
    soon,
};
use crate::kill::example;

mod client;
mod faults;
mod forks;
mod manners;
mod mcp;
mod real;
mod turns;

async fn world(resumes: &str) -> World {
    world_with(resumes, |_| {}).await
}

/// A node whose scripted agent resumes in this way, set up further by `change`.
async fn world_with(resumes: &str, change: impl Fn(&mut AdapterConfig)) -> World {
    let set_up = |adapter: &mut AdapterConfig| {
        let agent = folder_of(adapter).join("agent");
        let command = [example("acp_agent"), agent, resumes.into()];
        adapter.command = Some(command.map(|word| word.to_string_lossy().into_owned()).into());
        change(adapter);
    };
    World::open(AdapterKind::Acp, set_up).await
}
