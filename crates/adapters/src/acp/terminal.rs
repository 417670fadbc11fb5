//! Terminals: commands that an agent asks its client to run. Each has its own guard, no input, and a bounded output
//! buffer that keeps the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use agent_client_protocol::v1::schema::CreateTerminalRequest;
use agent_client_protocol::{Error, ErrorCode};
use mainspring_kernel::adapter::Death;
use mainspring_kernel::clock::Clock;
use mainspring_kernel::policy::Resource;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::process::ChildStdin;
use tokio::sync::watch;

use super::client::invalid_params;
use crate::driver::ProcessContext;
use crate::process::{Launch, OUTPUT_DRAIN_TIMEOUT_MS, Process, Tail, read_chunks};

/// The largest output that is kept.
const MAX_OUTPUT_BYTES: usize = 1 << 20;
/// The exit code of a guard whose command was ended by SIGKILL.
const EXIT_SIGKILL: i32 = 128 + 9;
/// Starts a command without input and with its standard error in its output.
const SHELL_WRAPPER: [&str; 4] = ["/bin/sh", "-c", "exec \"$@\" </dev/null 2>&1", "sh"];

/// A command that runs or has ended. Dropping it kills the command.
pub(super) struct Terminal {
    process: Process,
    output: Arc<Mutex<Tail>>,
    /// Set once the command has ended and its output was read. The inner value is the exit code, if known.
    exit: watch::Receiver<Option<Option<i32>>>,
    killed: Arc<AtomicBool>,
    /// Held open, because a guard ends when its input is closed.
    _input: ChildStdin,
}

impl Terminal {
    pub(super) fn start(
        launch: Launch,
        request: &CreateTerminalRequest,
        context: &ProcessContext,
    ) -> Result<Self, Error> {
        let words = std::iter::once(&request.command).chain(&request.args);
        let has_nul = |text: &str| text.contains('\0');
        if request.command.is_empty() || { words }.any(|word| has_nul(word)) {
            return Err(invalid_params("a command needs a name and must not contain NUL characters"));
        }
        let is_invalid = |name: &str, value: &str| {
            name.is_empty() || name.contains('=') || has_nul(name) || has_nul(value)
        };
        if let Some(variable) = request.env.iter().find(|it| is_invalid(&it.name, &it.value)) {
            return Err(invalid_params(format!("{:?} is not a valid variable", variable.name)));
        }
        let launch = Launch {
            command: command_line(request),
            env: request.env.iter().map(|it| (it.name.clone(), it.value.clone())).collect(),
            ..launch
        };
        let (process, pipes) = Process::start(&launch, &context.tasks, &context.clock)
            .map_err(|error| Error::new(ErrorCode::INTERNAL_ERROR, error.to_string()))?;
        let limit = request.output_byte_limit.and_then(|limit| usize::try_from(limit).ok());
        let limit = limit.unwrap_or(MAX_OUTPUT_BYTES).min(MAX_OUTPUT_BYTES);
        let output = Arc::new(Mutex::new(Tail::new(limit)));
        let (exits, exit) = watch::channel(None);
        let (ended, clock, tail) = (process.ended(), context.clock.clone(), output.clone());
        context.tasks.spawn(async move {
            let read = read_chunks(pipes.stdout, move |bytes| tail.lock().push(bytes));
            let _ = exits.send(Some(exit_code(ended, read, &clock).await));
        });
        Ok(Self { process, output, exit, killed: Arc::default(), _input: pipes.stdin })
    }

    /// The result of `terminal/output`: the output so far, and the exit status if the command has ended.
    pub(super) fn output(&self) -> Value {
        let output = self.output.lock();
        let mut result = json!({"output": output.text(), "truncated": output.is_truncated()});
        if let Some(code) = *self.exit.borrow() {
            result["exitStatus"] = exit_status(code, &self.killed);
        }
        result
    }

    /// The output so far.
    pub(super) fn text(&self) -> String {
        self.output.lock().text()
    }

    /// Waits until the command has ended. Returns its exit status.
    pub(super) fn exited(&self) -> impl Future<Output = Value> + Send + use<> {
        let (mut exit, killed) = (self.exit.clone(), self.killed.clone());
        async move {
            let code = exit.wait_for(Option::is_some).await.ok().and_then(|code| *code);
            exit_status(code.flatten(), &killed)
        }
    }

    /// Kills the command and its process tree.
    pub(super) async fn kill(&self) -> Death {
        if self.exit.borrow().is_none() {
            self.killed.store(true, Ordering::Relaxed);
        }
        self.process.kill().await
    }
}

/// Waits until a command has `ended` and its output was `read`. Returns its exit code, if known.
async fn exit_code(
    ended: impl Future<Output = Option<i32>>,
    read: impl Future<Output = ()>,
    clock: &Clock,
) -> Option<i32> {
    tokio::pin!(read, ended);
    tokio::select! {
        () = &mut read => ended.await,
        code = &mut ended => {
            tokio::select! {
                () = read => {}
                () = clock.sleep_for(OUTPUT_DRAIN_TIMEOUT_MS) => {}
            }
            code
        }
    }
}

/// The command in the terms of the policy: a line for a shell, or a program with its arguments. A command without
/// arguments that contains shell syntax is run by a shell, since agents also send whole command lines.
pub(super) fn resource(request: &CreateTerminalRequest) -> Resource {
    let CreateTerminalRequest { command, args, .. } = request;
    let is_shell_line =
        args.is_empty() && command.contains(|c: char| c.is_whitespace() || "|&;<>()$`\"'*?".contains(c));
    match is_shell_line {
        true => Resource::ShellLine(command.clone()),
        false => Resource::Command(std::iter::once(command).chain(args).cloned().collect()),
    }
}

/// The command line to run, made from the resource that the policy decides about.
fn command_line(request: &CreateTerminalRequest) -> Vec<String> {
    let words = match resource(request) {
        Resource::ShellLine(line) => vec!["/bin/sh".to_owned(), "-c".to_owned(), line],
        Resource::Command(words) => words,
        // A terminal has no other resource.
        Resource::Text(_) | Resource::Path(_) => vec![],
    };
    SHELL_WRAPPER.into_iter().map(str::to_owned).chain(words).collect()
}

/// True for variables that only change how a program writes its output.
pub(super) fn is_harmless_variable(name: &str) -> bool {
    const HARMLESS: [&str; 9] =
        ["LANG", "LANGUAGE", "TZ", "TERM", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR"];
    HARMLESS.contains(&name) || name.starts_with("LC_")
}

/// The exit status in the protocol's format. The code is unknown if the guard was killed from outside.
fn exit_status(code: Option<i32>, killed: &AtomicBool) -> Value {
    match code.filter(|code| *code != EXIT_SIGKILL || !killed.load(Ordering::Relaxed)) {
        None if killed.load(Ordering::Relaxed) => json!({"exitCode": null, "signal": "SIGKILL"}),
        code => json!({"exitCode": code, "signal": null}),
    }
}
