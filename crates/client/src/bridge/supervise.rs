//! The supervisor: starts the process, reads and writes its pipes, and restarts it when it dies.
//!
//! ```text
//! starting ──init──▶ ready ──dies──▶ restarting ──delay──▶ starting
//!    │                 │                 └──too many failures in a row──▶ failed ──next query or login──▶ starting
//!    └───────stop──────┴──▶ stopped
//! ```

use std::pin::pin;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use mainspring_api::jsonl::{Request, RequestLine};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::BridgeError;
use super::process::Phase;
use super::shared::{Shared, lock};
use crate::backoff::{Backoff, sleep};

const READ_BUFFER_BYTES: usize = 64 << 10;
/// Time that a process may take to exit after it closed its output, and to deliver the rest of its standard error.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs one process after another until asked to stop.
pub(super) async fn supervise(shared: Arc<Shared>) {
    // Fails pending requests even if the runtime drops this task before the process exits.
    let guard = StopGuard(shared.clone());
    let (mut stop, restart) = (shared.stop.subscribe(), shared.launch.restart);
    let backoff = Backoff { initial: restart.initial_delay, max: restart.max_delay };
    let mut failures = 0;
    loop {
        let death = match run_process(&shared, &mut stop).await {
            End::Stopped => break,
            End::Died(death) => death,
        };
        failures = if death.was_healthy { 1 } else { failures + 1 };
        let given_up = !death.startable || failures >= restart.max_failures;
        shared.health.send_modify(|health| {
            health.phase = if given_up { Phase::Failed } else { Phase::Restarting };
            (health.pid, health.failures, health.reason) = (None, failures, Some(death.reason.clone()));
            health.restarts += u32::from(!given_up);
        });
        let stopped = stop.wait_for(|stop| *stop);
        if given_up {
            shared.give_up(&BridgeError::Lost { reason: death.reason }, false);
            tokio::select! {
                () = shared.restart_requested.notified() => {}
                _ = stopped => break,
            }
            failures = 0;
            shared.health.send_modify(|health| (health.restarts, health.failures) = (health.restarts + 1, 0));
        } else {
            tokio::select! {
                () = backoff.wait(failures) => {}
                _ = stopped => break,
            }
        }
    }
    drop(guard);
}

/// Fails pending requests and marks the process stopped when dropped.
struct StopGuard(Arc<Shared>);

impl Drop for StopGuard {
    fn drop(&mut self) {
        self.0.give_up(&BridgeError::Stopped, true);
        self.0.health.send_modify(|health| (health.phase, health.pid) = (Phase::Stopped, None));
    }
}

enum End {
    /// The process exited because it was asked to.
    Stopped,
    Died(Death),
}

struct Death {
    reason: String,
    /// The process had answered a request or lived long. Its death starts a new series of failures.
    was_healthy: bool,
    /// False if the program could not be started at all.
    startable: bool,
}

/// Runs one process from its start to its end.
async fn run_process(shared: &Arc<Shared>, stop: &mut watch::Receiver<bool>) -> End {
    let restart = shared.launch.restart;
    let mut child = match shared.launch.command().spawn() {
        Ok(child) => child,
        Err(error) => {
            let reason = format!("{} cannot be started: {error}", shared.launch.program.display());
            return End::Died(Death { reason, was_healthy: false, startable: false });
        }
    };
    shared.process_started(child.id());
    let started_at = Instant::now();
    let (Some(stdin), Some(stdout), Some(stderr)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return End::Died(Death { reason: "it has no pipes".into(), was_healthy: false, startable: false });
    };
    let (lines, queue) = mpsc::unbounded_channel();
    let mut reading = pin!(read_lines(shared, stdout, &lines));
    let (mut writing, mut stderr_reading) =
        (pin!(write_lines(stdin, queue)), pin!(keep_tail(shared, stderr)));
    let mut deadline = pin!(sleep(restart.ready_timeout));
    let (mut stdin_closed, mut stderr_closed) = (false, false);
    let (mut stopping, mut deadline_armed, mut overdue) = (false, true, false);
    loop {
        tokio::select! {
            () = &mut reading => break,
            // The process reads no more, but its output is still handled.
            () = &mut writing, if !stdin_closed => stdin_closed = true,
            () = &mut stderr_reading, if !stderr_closed => stderr_closed = true,
            stopped = stop.wait_for(|stop| *stop), if !stopping => {
                // The sender lives in `shared`, so the wait cannot fail.
                drop(stopped);
                (stopping, deadline_armed) = (true, true);
                let _ = lines.send(RequestLine::from(Request::Stop {}).encode());
                deadline.set(sleep(restart.stop_timeout));
            }
            () = &mut deadline, if deadline_armed => {
                deadline_armed = false;
                overdue = stopping || shared.health.borrow().phase == Phase::Starting;
                if overdue {
                    break;
                }
            }
        }
    }
    let exit = wait_for_exit(&mut child, overdue).await;
    if !stderr_closed {
        // The rest of standard error may still arrive.
        tokio::select! {
            () = &mut stderr_reading => {}
            () = sleep(EXIT_TIMEOUT) => {}
        }
    }
    let (has_answered, reported_error) = shared.process_ended();
    if stopping {
        return End::Stopped;
    }
    let was_healthy = has_answered || (!overdue && started_at.elapsed() > restart.max_delay);
    let mut reason = match (overdue, reported_error) {
        (_, Some(error)) => error,
        (true, None) => format!("it was not ready within {} s", restart.ready_timeout.as_secs()),
        (false, None) => exit,
    };
    let stderr_text = lock(&shared.stderr).text();
    if let Some(last) = stderr_text.lines().rfind(|line| !line.trim().is_empty()) {
        reason = format!("{reason}; it said last: {last}");
    }
    End::Died(Death { reason, was_healthy, startable: true })
}

/// Waits for the exit and describes it. With `kill`, kills the process first.
async fn wait_for_exit(child: &mut Child, kill: bool) -> String {
    if kill {
        // Fails if the process has exited in the meantime.
        let _ = child.start_kill();
    }
    let describe = |status: ExitStatus| format!("it ended with {status}");
    tokio::select! {
        status = child.wait() => return status.map_or_else(|error| error.to_string(), describe),
        // A live process with closed output is useless: kill it.
        () = sleep(EXIT_TIMEOUT) => {}
    }
    let _ = child.start_kill();
    child.wait().await.map_or_else(|error| error.to_string(), describe)
}

/// Reads and handles lines until the end of the output.
async fn read_lines(shared: &Shared, stdout: ChildStdout, stdin: &mpsc::UnboundedSender<Vec<u8>>) {
    let mut stdout = BufReader::with_capacity(READ_BUFFER_BYTES, stdout);
    let mut line = vec![];
    while stdout.read_until(b'\n', &mut line).await.is_ok_and(|read| read > 0) {
        // A partial line was cut off by the death of the process.
        if line.ends_with(b"\n") && !line.trim_ascii().is_empty() {
            shared.handle_line(&line, stdin);
        }
        line.clear();
    }
}

/// Writes queued lines until the process stops reading.
async fn write_lines(mut stdin: ChildStdin, mut queue: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(line) = queue.recv().await {
        if stdin.write_all(&line).await.is_err() {
            return;
        }
    }
}

/// Keeps the end of the standard error.
async fn keep_tail(shared: &Shared, mut stderr: ChildStderr) {
    let mut buffer = vec![0; READ_BUFFER_BYTES];
    while let Ok(read @ 1..) = stderr.read(&mut buffer).await {
        lock(&shared.stderr).push(&buffer[..read]);
    }
}
