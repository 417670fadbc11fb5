//! The guard: stands between mainspring and an agent's process tree, and outlives neither.
//!
//! It is a small process of its own, this very program started again. It starts the agent, passes its own standard
//! input on to it, and leaves it output and error. Being a subreaper, it inherits every descendant that loses its
//! parent, even one in a session of its own; so once it has no child left, nothing of the tree is.
//!
//! ```text
//! running ──SIGTERM──▶ stopping: the agent's input is closed, it has the grace period
//!    │                    │ grace over
//!    ├──SIGQUIT, or its own input hangs up: mainspring is gone──▶ killing ──no child left──▶ exit
//!    └──the agent ends by itself──▶ killing
//! ```
//!
//! Invariant: it exits by itself only when no descendant is left. Its exit is the proof of the tree's death.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use mainspring_kernel::clock::Clock;
use mainspring_kernel::tasks::Tasks;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait};
use tokio::process::ChildStdin;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use super::tree;

/// What a guard that could not start its agent exits with, as a shell does.
const NOT_STARTED: u8 = 127;
/// How long the guard waits for news of the killed before it looks for more of them.
const LOOK_AGAIN: u64 = 20;

/// Runs `command` under guard until nothing of it is left, in this process; exits as it did.
///
/// `grace` is how long it has to end by itself once its input was closed.
pub fn main(grace: Duration, command: &[OsString]) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let guarded = runtime.and_then(|runtime| {
        let guarded = runtime.block_on(guard(grace, command));
        // A thread may still wait for an input that never comes; nobody waits for that thread.
        runtime.shutdown_background();
        guarded
    });
    match guarded {
        Ok(code) => std::process::exit(code.into()),
        Err(error) => {
            let name = command.first().map(|name| name.to_string_lossy()).unwrap_or_default();
            let _ = writeln!(io::stderr(), "mainspring guard: {name} could not be started: {error}");
            std::process::exit(NOT_STARTED.into())
        }
    }
}

async fn guard(grace: Duration, command: &[OsString]) -> io::Result<u8> {
    adopt_orphans()?;
    let clock = Clock::system();
    let mut child_died = signal(SignalKind::child())?;
    let mut stop = signal(SignalKind::terminate())?;
    let mut kill = signal(SignalKind::quit())?;
    // What a terminal sends to everyone is not for the agent: mainspring decides what becomes of it.
    let _ignored = (signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?);
    let hangup = hangup()?;
    tokio::pin!(hangup);

    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut child = Command::new(program).args(arguments).stdin(Stdio::piped()).spawn()?;
    let agent = Pid::from_child(&child);
    let tasks = Tasks::default();
    let input = child.stdin.take().map(ChildStdin::from_std).transpose()?;
    let feeding = tasks.spawn(async move {
        if let Some(mut input) = input {
            // An agent that no longer reads is not an error.
            let _ = tokio::io::copy(&mut tokio::io::stdin(), &mut input).await;
        }
    });
    let mut ended = None;
    let mut until = None;
    while ended.is_none() {
        let deadline = until.unwrap_or(mainspring_core::Time(i64::MAX));
        tokio::select! {
            _ = child_died.recv() => ended = reap(agent).1,
            _ = stop.recv(), if until.is_none() => {
                feeding.abort();
                until = Some(clock.now().plus(u64::try_from(grace.as_millis()).unwrap_or(u64::MAX)));
            }
            () = clock.sleep_until(deadline), if until.is_some() => break,
            _ = kill.recv() => break,
            _ = &mut hangup => break,
        }
    }
    loop {
        for pid in tree::descendants(rustix::process::getpid()) {
            let _ = kill_process(pid, Signal::KILL);
        }
        let (left, status) = reap(agent);
        ended = ended.or(status);
        if !left {
            return Ok(code_of(ended));
        }
        tokio::select! {
            _ = child_died.recv() => {}
            () = clock.sleep_until(clock.now().plus(LOOK_AGAIN)) => {}
        }
    }
}

/// Makes every descendant that loses its parent a child of this process.
#[cfg(target_os = "linux")]
fn adopt_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

#[cfg(not(target_os = "linux"))]
fn adopt_orphans() -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "process trees can only be guarded on Linux"))
}

/// Collects who has ended: whether a child is left, and how the agent ended if it has.
fn reap(agent: Pid) -> (bool, Option<WaitStatus>) {
    let mut ended = None;
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == agent => ended = Some(status),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return (true, ended),
            Err(_) => return (false, ended),
        }
    }
}

fn code_of(status: Option<WaitStatus>) -> u8 {
    let code = status.and_then(|status| {
        status.exit_status().or_else(|| status.terminating_signal().map(|signal| signal + 128))
    });
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

/// Resolves once nobody can write to this process's input any more.
///
/// Asked of the pipe itself: to read to its end would wait for an agent that does not read.
fn hangup() -> io::Result<impl Future<Output = ()>> {
    let (gone, told) = oneshot::channel::<()>();
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    std::thread::Builder::new().name("hangup".into()).spawn(move || {
        let hung_up = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        loop {
            let mut polled = [PollFd::new(&input, PollFlags::empty())];
            match poll(&mut polled, None) {
                Ok(_) if !polled[0].revents().intersects(hung_up) => {}
                Err(Errno::INTR) => {}
                _ => break,
            }
        }
        let _ = gone.send(());
    })?;
    Ok(async move {
        let _ = told.await;
    })
}
