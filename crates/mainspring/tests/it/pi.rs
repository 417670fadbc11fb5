//! Pi beneath a real node: turns, dialogs, cancellation, death, and nothing left behind.

use std::path::PathBuf;

use mainspring::config::{AdapterConfig, AdapterKind, Permissions};
use mainspring::core::{Answer, Approval, Block, Body, Fidelity, Mode, Policy, RunId, RunStatus, WaitId};
use mainspring::{RunRequest, session_ref};
use mainspring_kernel::adapter::NewArtifact;
use serde_json::json;

use crate::agents::{World, failure, folder_of, installed, kinds, model, request, soon};
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

/// A picture of four pixels.
const PICTURE: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\0\x02\0\0\0\x02\x08\x02\0\0\0\xfd\xd4\x9as\
    \0\0\0\x12IDATx\x9cc\xf8\xcf\xc0\xc0\0\xc2\x0c\xff\x81\0\0\x1f\xee\x05\xfb\x0b\xd9h\x8b\0\0\0\0IEND\xaeB`\x82";

/// A prompt in a session that exists, with a file of this media type.
async fn with_file(world: &World, key: &str, text: &str, mime_type: &str) -> RunRequest {
    let new = NewArtifact { mime_type: Some(mime_type.into()), ..NewArtifact::default() };
    let (kernel, session) = (world.node().kernel(), session_ref(key).unwrap());
    let (artifact, _) = kernel.artifact_put(&world.me, &session, new, None, &mut { PICTURE }).await.unwrap();
    let mut request = request(key, text);
    request.prompt.push(Block::Attachment { artifact: artifact.id, mime_type: String::new(), name: None });
    request
}

/// A prompt that is to join the run that is at work.
fn steer(key: &str, text: &str) -> RunRequest {
    RunRequest { policy: Policy::Steer, ..request(key, text) }
}

async fn input(world: &World, run: RunId, wait: WaitId, text: &str) {
    let answer = Answer::Input { input: json!(text) };
    soon(world.node().kernel().run_answer(&world.me, run, wait, answer)).await.unwrap();
}
