//! Watching over the process: it is started, read and written to, and started again when it dies.
//!
//! ```text
//! starting ──init──▶ ready ──dies──▶ restarting ──pause──▶ starting
//!    │                 │                 └──too many failures in a row──▶ failed ──somebody asks──▶ starting
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

/// How much is read at a time.
const STRETCH: usize = 64 << 10;
/// How long a process that has closed its output may take to end, and its last words to arrive.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Watches over one process after another until it is to stop.
pub(super) async fn supervise(shared: Arc<Shared>) {
    // Also if the runtime ends before the process does, nobody waits for ever.
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
    /// As it was asked to.
    Stopped,
    Died(Died),
}

struct Died {
    why: String,
    /// It had answered something, or lived long: that it died is news.
    useful: bool,
    /// There was something to start.
    startable: bool,
}

/// One process, from its start to its end.
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
            // What it still says is heard.
            () = &mut writes, if !deaf => deaf = true,
            () = &mut tails, if !quiet => quiet = true,
            stopped = stop.wait_for(|stop| *stop), if !stopping => {
                // Its sender lives in what is watched over.
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
        // Its last words may still be on their way.
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

/// How it ended; `kill` if it does not by itself.
async fn exit(child: &mut Child, kill: bool) -> String {
    if kill {
        // It may have ended meanwhile.
        let _ = child.start_kill();
    }
    let told = |status: ExitStatus| format!("it ended with {status}");
    tokio::select! {
        status = child.wait() => return status.map_or_else(|error| error.to_string(), told),
        // It has closed its output and lives: of no use to anybody.
        () = sleep(LAST_WORDS) => {}
    }
    let _ = child.start_kill();
    child.wait().await.map_or_else(|error| error.to_string(), told)
}

/// Reads lines until there are no more.
async fn hear(shared: &Shared, from: ChildStdout, to: &mpsc::UnboundedSender<Vec<u8>>) {
    let mut from = BufReader::with_capacity(STRETCH, from);
    let mut line = vec![];
    while from.read_until(b'\n', &mut line).await.is_ok_and(|read| read > 0) {
        // Half a line is what its death left.
        if line.ends_with(b"\n") && !line.trim_ascii().is_empty() {
            shared.hear(&line, to);
        }
        line.clear();
    }
}

/// Writes what is to be said until nobody reads it.
async fn write(mut to: ChildStdin, mut queue: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(line) = queue.recv().await {
        if to.write_all(&line).await.is_err() {
            return;
        }
    }
}

/// Keeps the end of what it says beside.
async fn tail(shared: &Shared, mut from: ChildStderr) {
    let mut piece = vec![0; STRETCH];
    while let Ok(read @ 1..) = from.read(&mut piece).await {
        lock(&shared.stderr).push(&piece[..read]);
    }
}
