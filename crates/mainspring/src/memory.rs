//! Memory candidates: passes each candidate to the command that the operator has configured, and records the command's
//! decision.
//!
//! The command gets the candidate as JSON on its standard input, and decides by its exit code: 0 accepts, 1 rejects.
//! Any other exit code is no decision, and the candidate is offered again later. A crash between the command's end and
//! the record of its decision makes the command run again with the same artifact id.

use std::process::Stdio;
use std::time::Duration;

use mainspring_core::Artifact;
use mainspring_core::memory::MemoryDecision;
use mainspring_kernel::{Error, Kernel};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{ChildStdin, ChildStdout, Command};

/// The number of candidates that are read at a time.
const PAGE_ROWS: usize = 50;

/// Time that the command has for one candidate.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// Time after which undecided candidates are offered again.
const RETRY_INTERVAL: Duration = Duration::from_secs(10 * 60);

/// The number of bytes of the command's standard output that are kept as the reason.
const REASON_BYTES: u64 = 2_000;

/// Variables of the environment that the command inherits.
const INHERITED_ENV: [&str; 5] = ["PATH", "HOME", "LANG", "TMPDIR", "USER"];

/// Runs `command` for every candidate until the kernel stops.
pub(crate) async fn run(kernel: Kernel, command: Vec<String>) {
    let tasks = kernel.tasks().clone();
    loop {
        tokio::select! {
            outcome = decide_all(&kernel, &command) => {
                if let Err(why) = outcome {
                    tracing::warn!(%why, "a memory candidate was not decided; trying again later");
                }
            }
            () = tasks.stopping() => return,
        }
        tokio::select! {
            () = kernel.memory_proposed() => {}
            () = kernel.sleep(RETRY_INTERVAL) => {}
            () = tasks.stopping() => return,
        }
    }
}

/// Runs the command for all candidates. A candidate without a decision does not stop the others, nor does one
/// whose text is missing or cannot be read. A command that cannot be started does, and so does any other
/// error of the kernel. Returns the last reason why a candidate was not decided.
async fn decide_all(kernel: &Kernel, command: &[String]) -> Result<(), String> {
    let (mut after, mut undecided) = (None, Ok(()));
    loop {
        let candidates =
            kernel.memory_candidates(after, PAGE_ROWS).await.map_err(|error| error.to_string())?;
        let Some(last) = candidates.last() else { return undecided };
        after = Some((last.created_at, last.id));
        for candidate in candidates {
            if !kernel.session_is_here(candidate.session).await.map_err(|error| error.to_string())? {
                continue;
            }
            let text = match kernel.memory_text(&candidate).await {
                Ok(text) => text,
                Err(Error::NotFound { .. }) => continue,
                Err(error @ (Error::Corrupt(_) | Error::Invalid(_))) => {
                    // Only the bytes of this candidate cannot be read.
                    undecided = Err(error.to_string());
                    continue;
                }
                Err(error) => return Err(error.to_string()),
            };
            let asked = tokio::select! {
                asked = ask(command, &candidate, &text) => asked?,
                () = kernel.sleep(COMMAND_TIMEOUT) => Asked::Undecided("it did not end in time".into()),
            };
            match asked {
                Asked::Decided(decision, reason) => {
                    let decided = kernel.memory_decide(candidate.id, decision, reason.as_deref()).await;
                    decided.map_err(|error| error.to_string())?;
                }
                Asked::Undecided(why) => {
                    undecided =
                        Err(format!("the memory command did not decide about {}: {why}", candidate.id));
                }
            }
        }
    }
}

/// The outcome of one run of the command.
enum Asked {
    /// A decision and its reason.
    Decided(MemoryDecision, Option<String>),
    /// No decision, and why.
    Undecided(String),
}

/// Runs the command for one candidate. Its output is the reason. Fails if the command cannot be run.
async fn ask(command: &[String], candidate: &Artifact, text: &str) -> Result<Asked, String> {
    let (program, arguments) = command.split_first().ok_or("no command is configured")?;
    let failed = |error: std::io::Error| format!("{program:?}: {error}");
    let env = INHERITED_ENV.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    let mut process = Command::new(program);
    process.args(arguments).env_clear().envs(env).kill_on_drop(true);
    process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = process.spawn().map_err(failed)?;
    let input = json!({"artifact": candidate, "text": text}).to_string();
    let (stdin, stdout) = (process.stdin.take(), process.stdout.take());
    // Concurrently, since the command may write before it reads.
    let (_, output) = tokio::join!(write_input(stdin, &input), read_reason(stdout));
    let output = output.map_err(failed)?;
    let status = process.wait().await.map_err(failed)?;
    let reason = String::from_utf8_lossy(&output).trim().to_owned();
    let reason = Some(reason).filter(|reason| !reason.is_empty());
    Ok(match status.code() {
        Some(0) => Asked::Decided(MemoryDecision::Accepted, reason),
        Some(1) => Asked::Decided(MemoryDecision::Rejected, reason),
        _ => Asked::Undecided(format!("it ended with {status}, which is no decision")),
    })
}

/// Writes the whole input. A command that decides without reading it closes it early.
async fn write_input(stdin: Option<ChildStdin>, input: &str) {
    if let Some(mut stdin) = stdin {
        let _ = stdin.write_all(input.as_bytes()).await;
    }
}

/// Reads the output to its end, so that a command that writes much is not killed, and returns its beginning.
async fn read_reason(stdout: Option<ChildStdout>) -> std::io::Result<Vec<u8>> {
    let mut output = vec![];
    if let Some(mut stdout) = stdout {
        (&mut stdout).take(REASON_BYTES).read_to_end(&mut output).await?;
        tokio::io::copy(&mut stdout, &mut tokio::io::sink()).await?;
    }
    Ok(output)
}

#[cfg(test)]
mod tests;
