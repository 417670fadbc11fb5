//! Pi in its RPC mode (`pi --mode rpc`): JSON lines over its standard input and output.
//!
//! A pi process has one session open at a time and stores it in a file, so that another process can resume it. A native
//! session keeps its process as long as the pool may start others. When the pool is full, the process that has been idle
//! longest switches to another session. A pi without session files (`--no-session`) gets a transcript of the path, like every
//! agent that cannot resume.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mainspring_core::{Block, Failure, FailureCode, Message, Run, UsageReports};
use mainspring_kernel::adapter::{AttemptHandle, Login};
use mainspring_kernel::policy::Permissions;
use serde_json::{Value, json};

use crate::driver::{
    Dialect, Driver, ProcessContext, ResumeError, SetupError, TurnContext, TurnOutcome, read_attachment,
};
use crate::process::Launch;

mod dialog;
mod turn;
mod wire;
mod worker;
use worker::PiWorker;

/// Arguments for runs that may change nothing. Pi does not ask before it uses a tool, so it gets only tools that read.
const READ_ONLY: &[&str] = &["--tools", "read,grep,find,ls"];

/// Pi's RPC mode.
pub(crate) struct Pi;

/// A prompt in pi's format.
pub(crate) struct PiPrompt {
    text: String,
    images: Vec<Value>,
}

impl PiPrompt {
    /// Converts `message` and reads its images.
    async fn read(attempt: &AttemptHandle, message: &Message) -> Result<Self, Failure> {
        let mut prompt = Self { text: String::new(), images: vec![] };
        for block in &message.content {
            match block {
                Block::Text { text } => prompt.text.push_str(text),
                Block::Attachment { artifact, mime_type, .. } if mime_type.starts_with("image/") => {
                    let data = STANDARD.encode(read_attachment(attempt, message, *artifact).await?);
                    prompt.images.push(json!({"type": "image", "data": data, "mimeType": mime_type}));
                }
                Block::Attachment { .. } => {
                    return Err(Failure::new(
                        FailureCode::AdapterIncompatible,
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
    type Worker = PiWorker;
    type Prompt = PiPrompt;

    const PINS_PROCESS: bool = true;
    const CAN_STEER: bool = true;
    const USAGE_REPORTS: UsageReports = UsageReports::Live;
    const KEEPS_CANCELLED_PROMPT: bool = true;
    const NATIVE_IS_PATH: bool = true;

    fn login(_driver: &Driver<Self>) -> Option<&dyn Login> {
        // Pi takes its keys from its own configuration or its environment.
        None
    }

    fn arguments(&self, permissions: Permissions) -> &'static [&'static str] {
        match permissions {
            Permissions::Deny => READ_ONLY,
            Permissions::Ask | Permissions::Legacy => &[],
        }
    }

    async fn prompt(&self, attempt: &AttemptHandle) -> Result<PiPrompt, Failure> {
        PiPrompt::read(attempt, &attempt.assignment().prompt).await
    }

    async fn start(&self, launch: &Launch, context: &ProcessContext) -> Result<PiWorker, SetupError> {
        PiWorker::start(launch, context).await
    }

    async fn open(
        &self,
        worker: &PiWorker,
        _cwd: &Path,
        _attempt: &AttemptHandle,
    ) -> Result<String, SetupError> {
        worker.open().await
    }

    async fn resume(
        &self,
        worker: &PiWorker,
        native: &str,
        _cwd: &Path,
        _attempt: &AttemptHandle,
    ) -> Result<(), ResumeError> {
        worker.resume(native).await
    }

    async fn fork(
        &self,
        _worker: &PiWorker,
        native: &str,
        _cwd: &Path,
        _attempt: &AttemptHandle,
    ) -> Result<String, ResumeError> {
        Err(ResumeError::Unknown(format!("pi does not fork {native}")))
    }

    async fn close(&self, _worker: &PiWorker, _native: &str) {}

    async fn configure(
        &self,
        worker: &PiWorker,
        _native: &str,
        _run: &Run,
        model: Option<&str>,
    ) -> Result<Option<String>, Failure> {
        if let Some(model) = model {
            worker.set_model(model).await?;
        }
        Ok(worker.current_model())
    }

    async fn run_turn(&self, turn: TurnContext<'_, PiWorker>, prompt: PiPrompt) -> TurnOutcome {
        turn::PiTurn::run(turn, prompt).await
    }

    fn cancel(&self, worker: &PiWorker, _native: &str) -> bool {
        worker.connection.send(wire::command("abort"));
        worker.connection.is_open()
    }
}
