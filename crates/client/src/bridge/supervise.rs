//! The supervisor: starts the process, reads and writes its pipes, and restarts it when it dies.
//!
//! ```text
//! starting ──init──▶ ready ──dies──▶ restarting ──pause──▶ starting
//!    │                 │                 └──too many failures in a row──▶ failed ──next request──▶ starting
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
use crate::pause::{pause, sleep};

/// Size in bytes of a read.
const STRETCH: usize = 64 << 10;
/// Time that a process may take to exit after it closed its output, and to deliver the rest of its standard error.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Runs one process after another until asked to stop.
pub(super) async fn supervise(shared: Arc<Shared>) {
    // Fails pending requests even if the runtime drops this task before the process exits.
    let over = Over(shared.clone());
    let (mut stop, restart) = (shared.stop.subscribe(), shared.launch.restart);
    let mut failures = 0;
    loop {
        let died = match live(&shared, &mut stop).await {
            End::Stopped => break,
            End::Died(died) => died,
        };
        failures = if died.useful { 1 } else { failures + 1 };
        let given_up = !died.startable || failures >= restart.tries;
        shared.health.send_modify(|health| {
            health.phase = if given_up { Phase::Failed } else { Phase::Restarting };
            (health.pid, health.failures, health.why) = (None, failures, Some(died.why.clone()));
            health.restarts += u32::from(!given_up);
        });
        let stopped = stop.wait_for(|stop| *stop);
        if given_up {
            shared.give_up(&BridgeError::Lost { why: died.why }, false);
            tokio::select! {
                () = shared.wanted.notified() => {}
                _ = stopped => break,
            }
            failures = 0;
            shared.health.send_modify(|health| (health.restarts, health.failures) = (health.restarts + 1, 0));
        } else {
            tokio::select! {
                () = pause(failures, restart.first, restart.longest) => {}
                _ = stopped => break,
            }
        }
    }
    drop(over);
}

struct Over(Arc<Shared>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.give_up(&BridgeError::Stopped, true);
        self.0.health.send_modify(|health| (health.phase, health.pid) = (Phase::Stopped, None));
    }
}

enum End {
    /// The process exited because it was asked to.
    Stopped,
    Died(Died),
}

struct Died {
    why: String,
    /// The process had answered a request or lived long: its death starts a new series of failures.
    useful: bool,
    /// False if the program could not be started at all.
    startable: bool,
}

/// Runs one process from its start to its end.
async fn live(shared: &Arc<Shared>, stop: &mut watch::Receiver<bool>) -> End {
    let restart = shared.launch.restart;
    let mut child = match shared.launch.command().spawn() {
        Ok(child) => child,
        Err(error) => {
            let why = format!("{} cannot be started: {error}", shared.launch.program.display());
            return End::Died(Died { why, useful: false, startable: false });
        }
    };
    shared.begin(child.id());
    let began = Instant::now();
    let (Some(stdin), Some(stdout), Some(stderr)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return End::Died(Died { why: "it has no pipes".into(), useful: false, startable: false });
    };
    let (to, queue) = mpsc::unbounded_channel();
    let mut heard = pin!(hear(shared, stdout, &to));
    let (mut writes, mut tails) = (pin!(write(stdin, queue)), pin!(tail(shared, stderr)));
    let mut late = pin!(sleep(restart.ready));
    let (mut deaf, mut quiet) = (false, false);
    let (mut stopping, mut waiting, mut overdue) = (false, true, false);
    loop {
        tokio::select! {
            () = &mut heard => break,
            // The process reads no more, but its output is still handled.
            () = &mut writes, if !deaf => deaf = true,
            () = &mut tails, if !quiet => quiet = true,
            stopped = stop.wait_for(|stop| *stop), if !stopping => {
                // The sender lives in `shared`, so the wait cannot fail.
                drop(stopped);
                (stopping, waiting) = (true, true);
                let _ = to.send(RequestLine::from(Request::Stop {}).encode());
                late.set(sleep(restart.stop));
            }
            () = &mut late, if waiting => {
                waiting = false;
                overdue = stopping || shared.health.borrow().phase == Phase::Starting;
                if overdue {
                    break;
                }
            }
        }
    }
    let exit = exit(&mut child, overdue).await;
    if !quiet {
        // The rest of standard error may still arrive.
        tokio::select! {
            () = &mut tails => {}
            () = sleep(LAST_WORDS) => {}
        }
    }
    let (useful, complaint) = shared.ended();
    if stopping {
        return End::Stopped;
    }
    let useful = useful || (!overdue && began.elapsed() > restart.longest);
    let mut why = match (overdue, complaint) {
        (_, Some(complaint)) => complaint,
        (true, None) => format!("it was not ready within {} s", restart.ready.as_secs()),
        (false, None) => exit,
    };
    let said = lock(&shared.stderr).text();
    if let Some(last) = said.lines().rfind(|line| !line.trim().is_empty()) {
        why = format!("{why}; it said last: {last}");
    }
    End::Died(Died { why, useful, startable: true })
}

/// Waits for the exit and describes it. With `kill`, kills the process first.
async fn exit(child: &mut Child, kill: bool) -> String {
    if kill {
        // Fails if the process has exited in the meantime.
        let _ = child.start_kill();
    }
    let told = |status: ExitStatus| format!("it ended with {status}");
    tokio::select! {
        status = child.wait() => return status.map_or_else(|error| error.to_string(), told),
        // A live process with closed output is useless: kill it.
        () = sleep(LAST_WORDS) => {}
    }
    let _ = child.start_kill();
    child.wait().await.map_or_else(|error| error.to_string(), told)
}

/// Reads and handles lines until the end of the output.
async fn hear(shared: &Shared, from: ChildStdout, to: &mpsc::UnboundedSender<Vec<u8>>) {
    let mut from = BufReader::with_capacity(STRETCH, from);
    let mut line = vec![];
    while from.read_until(b'\n', &mut line).await.is_ok_and(|read| read > 0) {
        // A partial line was cut off by the death of the process.
        if line.ends_with(b"\n") && !line.trim_ascii().is_empty() {
            shared.hear(&line, to);
        }
        line.clear();
    }
}

/// Writes queued lines until the process stops reading.
async fn write(mut to: ChildStdin, mut queue: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(line) = queue.recv().await {
        if to.write_all(&line).await.is_err() {
            return;
        }
    }
}

/// Keeps the end of the standard error.
async fn tail(shared: &Shared, mut from: ChildStderr) {
    let mut piece = vec![0; STRETCH];
    while let Ok(read @ 1..) = from.read(&mut piece).await {
        lock(&shared.stderr).push(&piece[..read]);
    }
}
