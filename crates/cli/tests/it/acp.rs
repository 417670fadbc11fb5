//! ACP agents under a real node: tests that need the program or a published agent. The adapter's own suite is in
//! `crates/adapters/tests`.

use std::path::PathBuf;

use mainspring::config::{AdapterConfig, AdapterKind};
use mainspring::core::{Approval, Fidelity, Mode, RunStatus};
use mainspring::{RunRequest, session_ref};

use crate::agents::{
    FOLDER_VARIABLE, PNG_IMAGE, World, error_code, everything_server, folder_of, installed, kinds, model,
    node, request, with_timeout,
};
use crate::kill::example;

mod mcp;
mod real;
mod restart;
mod workspaces;

async fn world(resumes: &str) -> World {
    world_with(resumes, |_| {}).await
}

/// Opens a node whose scripted agent resumes in the way `resumes` names, configured further by `change`.
async fn world_with(resumes: &str, change: impl Fn(&mut AdapterConfig)) -> World {
    let set_up = |adapter: &mut AdapterConfig| {
        let agent = folder_of(adapter).join("agent");
        let command = [example("acp_agent"), agent, resumes.into()];
        adapter.command = Some(command.map(|word| word.to_string_lossy().into_owned()).into());
        change(adapter);
    };
    World::open(AdapterKind::Acp, set_up).await
}
