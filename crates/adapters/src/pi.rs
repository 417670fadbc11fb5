//! Pi, driven by `pi --mode rpc`: JSON lines over its standard input and output.
//!
//! A pi process has one session open at a time and keeps it in a file, so that another process can take it up. A native
//! session keeps its process while there is room for others; where there is none, the process that has been idle longest
//! opens another session, and what was said in the one before stays there. One that keeps no sessions (`--no-session`)
//! is told the text of the path, like every agent that cannot resume.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mainspring_core::{Block, Failure, Message, Run};
use mainspring_kernel::adapter::AttemptHandle;
use mainspring_kernel::policy::Permissions;
use serde_json::{Value, json};

use crate::driver::{Dialect, Ground, Lost, SetupError, Turn, Turned, attached};
use crate::process::Launch;

mod dialog;
mod fault;
mod turn;
mod wire;
mod worker;
use worker::Worker;

/// Pi asks nobody before it uses a tool. Where nothing is allowed it gets only those that change nothing.
const READ_ONLY: &[&str] = &["--tools", "read,grep,find,ls"];

/// Pi's RPC mode.
pub(crate) struct Pi;

/// A prompt as pi gets it.
pub(crate) struct Prompt {
    text: String,
    images: Vec<Value>,
}

impl Prompt {
    /// What `message` says and shows.
    async fn of(attempt: &AttemptHandle, message: &Message) -> Result<Self, Failure> {
        let mut prompt = Self { text: String::new(), images: vec![] };
        for block in &message.content {
            match block {
                Block::Text { text } => prompt.text.push_str(text),
                Block::Attachment { artifact, mime_type, .. } if mime_type.starts_with("image/") => {
                    let data = STANDARD.encode(attached(attempt, message, *artifact).await?);
                    prompt.images.push(json!({"type": "image", "data": data, "mimeType": mime_type}));
                }
                Block::Attachment { .. } => {
                    return Err(Failure::new(
                        "adapter_incompatible",
                        "only images can be handed to this agent; put the file's path into the prompt instead",
                    ));
                }
                _ => {}
            }
        }
        Ok(prompt)
    }
}

impl Dialect for Pi {
    type Worker = Worker;
    type Prompt = Prompt;

    const PINNED: bool = true;
    const STEERS: bool = true;
    // Its keys are its own configuration's, or its environment's.
    const AUTHENTICATES: bool = false;

    fn arguments(&self, permissions: Permissions) -> &'static [&'static str] {
        match permissions {
            Permissions::Deny => READ_ONLY,
            Permissions::Ask | Permissions::Legacy => &[],
        }
    }

    async fn prompt(&self, attempt: &AttemptHandle) -> Result<Prompt, Failure> {
        Prompt::of(attempt, &attempt.assignment().prompt).await
    }

    async fn start(&self, launch: &Launch, ground: &Ground) -> Result<Worker, SetupError> {
        Worker::start(launch, ground).await
    }

    async fn open(
        &self,
        worker: &Worker,
        _cwd: &Path,
        _attempt: &AttemptHandle,
    ) -> Result<String, SetupError> {
        worker.open().await
    }

    async fn resume(
        &self,
        worker: &Worker,
        native: &str,
        _cwd: &Path,
        _attempt: &AttemptHandle,
    ) -> Result<(), Lost> {
        worker.resume(native).await
    }

    async fn fork(
        &self,
        _worker: &Worker,
        native: &str,
        _cwd: &Path,
        _attempt: &AttemptHandle,
    ) -> Result<String, Lost> {
        Err(Lost::Unknown(format!("pi does not fork {native}")))
    }

    async fn close(&self, _worker: &Worker, _native: &str) {}

    async fn choose(
        &self,
        worker: &Worker,
        _native: &str,
        _run: &Run,
        model: Option<&str>,
    ) -> Result<(), Failure> {
        match model {
            Some(model) => worker.choose(model).await,
            None => Ok(()),
        }
    }

    async fn play(&self, turn: Turn<'_, Worker>, prompt: Prompt) -> Turned {
        turn::Play::play(turn, prompt).await
    }

    fn cancel(&self, worker: &Worker, _native: &str) -> bool {
        worker.connection.send(wire::command("abort"));
        worker.connection.is_open()
    }
}
