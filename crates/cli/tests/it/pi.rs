//! Pi beneath a real node: turns, dialogs, cancellation, death, and nothing left behind.

use std::path::PathBuf;

use mainspring::config::{AdapterConfig, AdapterKind, Permissions};
use mainspring::core::{Answer, Approval, Body, Fidelity, Mode, Policy, RunId, RunStatus, WaitId};
use mainspring::{RunRequest, session_ref};
use serde_json::json;

use crate::agents::{PICTURE, World, failure, folder_of, installed, kinds, model, node, request, soon};
use crate::kill::example;

mod dialogs;
mod faults;
mod real;
mod turns;

async fn world(manner: &str) -> World {
    world_with(manner, |_| {}).await
}

/// A node whose scripted pi behaves in this manner, set up further by `change`.
async fn world_with(manner: &str, change: impl Fn(&mut AdapterConfig)) -> World {
    let set_up = |adapter: &mut AdapterConfig| {
        let agent = folder_of(adapter).join("agent");
        let command = [example("pi_agent"), agent, manner.into()];
        adapter.command = Some(command.map(|word| word.to_string_lossy().into_owned()).into());
        change(adapter);
    };
    World::open(AdapterKind::Pi, set_up).await
}

/// A prompt that is to join the run that is at work.
fn steer(key: &str, text: &str) -> RunRequest {
    RunRequest { policy: Policy::Steer, ..request(key, text) }
}

async fn input(world: &World, run: RunId, wait: WaitId, text: &str) {
    let answer = Answer::Input { input: json!(text) };
    soon(world.node().kernel().run_answer(&world.me, run, wait, answer)).await.unwrap();
}
