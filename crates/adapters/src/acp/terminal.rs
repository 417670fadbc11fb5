//! A terminal: a command that is run for an agent, under a guard of its own. It has no input, and of its output the end
//! is kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use agent_client_protocol::v1::schema::CreateTerminalRequest;
use agent_client_protocol::{Error, ErrorCode};
use mainspring_kernel::adapter::Death;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::process::ChildStdin;
use tokio::sync::watch;

use super::client::invalid;
use crate::driver::Ground;
use crate::process::{Launch, Process, Tail, collect};

/// Bytes of output that are kept at most.
const OUTPUT: usize = 1 << 20;
/// How long the end of the output is waited for once the command has ended, in milliseconds.
const LAST_WORDS: u64 = 500;
/// What a guard exits with when its command was killed.
const KILLED: i32 = 128 + 9;
/// What starts a command without input, and with its errors in its output.
const SHELL: [&str; 4] = ["/bin/sh", "-c", "exec \"$@\" </dev/null 2>&1", "sh"];

/// A command that runs or has ended. Dropped, it is killed.
pub(super) struct Terminal {
    process: Process,
    output: Arc<Mutex<Tail>>,
    /// What it exited with, once it has and all of its output was read.
    exit: watch::Receiver<Option<Option<i32>>>,
    killed: Arc<AtomicBool>,
    /// Held open: a guard whose input is closed ends.
    _input: ChildStdin,
}

impl Terminal {
    pub(super) fn start(
        launch: Launch,
        request: &CreateTerminalRequest,
        ground: &Ground,
    ) -> Result<Self, Error> {
        let words = std::iter::once(&request.command).chain(&request.args);
        let is_odd = |text: &str| text.contains('\0');
        if request.command.is_empty() || { words }.any(|word| is_odd(word)) {
            return Err(invalid("a command has a name, and no NUL characters"));
        }
        if let Some(odd) = request
            .env
            .iter()
            .find(|it| it.name.is_empty() || it.name.contains('=') || is_odd(&it.name) || is_odd(&it.value))
        {
            return Err(invalid(format!("{:?} cannot be a variable", odd.name)));
        }
        let launch = Launch {
            command: command(request),
            env: request.env.iter().map(|it| (it.name.clone(), it.value.clone())).collect(),
            ..launch
        };
        let (process, pipes) = Process::start(&launch, &ground.tasks, &ground.clock)
            .map_err(|error| Error::new(ErrorCode::INTERNAL_ERROR, error.to_string()))?;
        let wanted =
            request.output_byte_limit.map_or(OUTPUT, |limit| usize::try_from(limit).unwrap_or(OUTPUT));
        let output = Arc::new(Mutex::new(Tail::new(wanted.min(OUTPUT))));
        let (exits, exit) = watch::channel(None);
        let (ended, clock, tail) = (process.ended(), ground.clock.clone(), output.clone());
        ground.tasks.spawn(async move {
            let read = collect(pipes.stdout, move |bytes| tail.lock().push(bytes));
            tokio::pin!(read, ended);
            let code = tokio::select! {
                () = &mut read => ended.await,
                code = &mut ended => {
                    let until = clock.now().plus(LAST_WORDS);
                    tokio::select! {
                        () = read => {}
                        () = clock.sleep_until(until) => {}
                    }
                    code
                }
            };
            let _ = exits.send(Some(code));
        });
        Ok(Self { process, output, exit, killed: Arc::default(), _input: pipes.stdin })
    }

    /// What it shows now, and how it exited if it has.
    pub(super) fn output(&self) -> Value {
        let output = self.output.lock();
        let mut answer = json!({"output": output.text(), "truncated": output.is_cut()});
        if let Some(code) = *self.exit.borrow() {
            answer["exitStatus"] = status(code, &self.killed);
        }
        answer
    }

    /// What it shows now.
    pub(super) fn text(&self) -> String {
        self.output.lock().text()
    }

    /// Resolves once it has exited: how.
    pub(super) fn exited(&self) -> impl Future<Output = Value> + Send + use<> {
        let (mut exit, killed) = (self.exit.clone(), self.killed.clone());
        async move {
            let code = exit.wait_for(Option::is_some).await.ok().and_then(|code| *code);
            status(code.flatten(), &killed)
        }
    }

    /// Ends it and all that it has started.
    pub(super) async fn kill(&self) -> Death {
        if self.exit.borrow().is_none() {
            self.killed.store(true, Ordering::Relaxed);
        }
        self.process.kill().await
    }
}

/// What is run: a program with its arguments, or, as agents also put it, a line for a shell.
fn command(request: &CreateTerminalRequest) -> Vec<String> {
    let CreateTerminalRequest { command, args, .. } = request;
    let is_line =
        args.is_empty() && command.contains(|c: char| c.is_whitespace() || "|&;<>()$`\"'*?".contains(c));
    let run: Vec<&str> = match is_line {
        true => vec!["/bin/sh", "-c", command],
        false => std::iter::once(command).chain(args).map(String::as_str).collect(),
    };
    SHELL.into_iter().chain(run).map(str::to_owned).collect()
}

/// How it exited. What became of it is not known where somebody has killed its guard.
fn status(code: Option<i32>, killed: &AtomicBool) -> Value {
    match code.filter(|code| *code != KILLED || !killed.load(Ordering::Relaxed)) {
        None if killed.load(Ordering::Relaxed) => json!({"exitCode": null, "signal": "SIGKILL"}),
        code => json!({"exitCode": code, "signal": null}),
    }
}
