//! The guard: a process between mainspring and an agent's process tree. It kills the tree when mainspring or the agent
//! ends.
//!
//! The guard is the same program, started again. It starts the agent, copies its own standard input to it, and lets it
//! inherit standard output and error. As a subreaper it adopts every descendant that loses its parent, even a
//! descendant in another session. So when the guard has no child left, the whole tree has ended.
//!
//! ```text
//! running ──SIGTERM──▶ stopping: the agent's input is closed, it has the grace period
//!    │                    │ grace period over
//!    ├──SIGQUIT, hangup of its own input (mainspring has ended), or its limit is over──▶ killing ──no child left──▶ exit
//!    └──the agent exits by itself──▶ killing
//! ```
//!
//! Invariant: the guard exits by itself only when no descendant is left. Its exit proves that the tree has ended.
//!
//! Where the system has no subreapers, or a setting says so, the guard guards only the agent's process group. Its exit
//! then proves only that the group has ended.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use mainspring_core::Supervision;
use mainspring_kernel::clock::{Clock, Moment};
use mainspring_kernel::tasks::Tasks;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpgrp, getpid, kill_process, kill_process_group, setsid,
    test_kill_process_group, wait,
};
use tokio::process::ChildStdin;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use super::limit::Limit;
use super::tree::{self, Member};

/// The exit code of a guard that could not start its agent, as in a shell.
pub(super) const EXIT_NOT_STARTED: u8 = 127;
/// How long the guard waits for a SIGCHLD before it looks for remaining descendants again.
const RESCAN_INTERVAL_MS: u64 = 20;

/// Makes this process the guard of `command`. Exits with the exit code of the command once the command's process tree,
/// or its process group if `supervision` says so, has ended.
///
/// `grace` is the time that the agent has to exit by itself after its input was closed. `limit` is the time until which
/// the agent may live at all.
pub fn main(
    grace: Duration,
    supervision: Supervision,
    limit: Option<&Limit>,
    command: &[OsString],
) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let guarded = runtime.and_then(|runtime| {
        let guarded = runtime.block_on(guard(grace, supervision, limit, command));
        // A thread may be blocked reading standard input. Do not wait for it.
        runtime.shutdown_background();
        guarded
    });
    match guarded {
        Ok(code) => std::process::exit(code.into()),
        Err(error) => {
            let name = command.first().map(|name| name.to_string_lossy()).unwrap_or_default();
            let _ = writeln!(io::stderr(), "mainspring guard: {name} could not be started: {error}");
            std::process::exit(EXIT_NOT_STARTED.into())
        }
    }
}

async fn guard(
    grace: Duration,
    supervision: Supervision,
    limit: Option<&Limit>,
    command: &[OsString],
) -> io::Result<u8> {
    leave_terminal()?;
    if limit.is_some_and(|limit| limit.left_ms() == 0) {
        return Err(io::Error::other("this server may have lost its database to another one"));
    }
    if supervision == Supervision::Tree {
        adopt_orphans()?;
    }
    let clock = Clock::system();
    let mut child_died = signal(SignalKind::child())?;
    let mut stop = signal(SignalKind::terminate())?;
    let mut kill = signal(SignalKind::quit())?;
    // Mainspring decides when the agent ends.
    let _ignored = (signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?);
    let hangup = stdin_hangup()?;
    tokio::pin!(hangup);

    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    // The agent gets a process group of its own, which a signal can kill without killing the guard.
    command.args(arguments).stdin(Stdio::piped()).process_group(0);
    let mut child = command.spawn()?;
    let agent = Pid::from_child(&child);
    let tasks = Tasks::default();
    let input = child.stdin.take().map(ChildStdin::from_std).transpose()?;
    let stdin_copy = tasks.spawn(async move {
        if let Some(mut input) = input {
            // It is not an error if the agent stops reading.
            let _ = tokio::io::copy(&mut tokio::io::stdin(), &mut input).await;
        }
    });
    let mut ended = None;
    let mut kill_at = None;
    while ended.is_none() {
        let deadline = kill_at.unwrap_or(Moment::NEVER);
        tokio::select! {
            _ = child_died.recv() => ended = reap(agent).1,
            _ = stop.recv(), if kill_at.is_none() => {
                stdin_copy.abort();
                kill_at = Some(clock.moment().plus(u64::try_from(grace.as_millis()).unwrap_or(u64::MAX)));
            }
            () = clock.sleep_until_moment(deadline), if kill_at.is_some() => break,
            _ = kill.recv() => break,
            _ = &mut hangup => break,
            () = expired(limit, &clock) => break,
        }
    }
    loop {
        match supervision {
            Supervision::Tree => kill_descendants(),
            // The number of a group is not used again while it has members.
            Supervision::Group => {
                let _ = kill_process_group(agent, Signal::KILL);
            }
        }
        let (has_children, status) = reap(agent);
        ended = ended.or(status);
        let is_over = !has_children && (supervision == Supervision::Tree || has_group_ended(agent));
        if is_over {
            return Ok(exit_code(ended));
        }
        tokio::select! {
            _ = child_died.recv() => {}
            () = clock.sleep_for(RESCAN_INTERVAL_MS) => {}
        }
    }
}

/// Resolves when the limit has expired. Without a limit it never resolves.
async fn expired(limit: Option<&Limit>, clock: &Clock) {
    match limit {
        Some(limit) => limit.expired(clock).await,
        None => std::future::pending().await,
    }
}

/// Makes a session without a controlling terminal. An agent could otherwise type into the terminal of mainspring's user.
fn leave_terminal() -> io::Result<()> {
    match setsid() {
        // The first process of a group cannot make a session. It needs none if it has no terminal.
        Err(Errno::PERM) if std::fs::File::open("/dev/tty").is_err() => Ok(()),
        made => Ok(made.map(drop)?),
    }
}

/// Kills every descendant, and the process groups of descendants: processes that start others and end at once may escape a
/// list of processes, but not a signal to their group.
fn kill_descendants() {
    let own_group = getpgrp();
    for Member { pid, group } in tree::descendants(getpid()) {
        // Only descendants are in these groups: a process can join only the groups of its own session.
        if let Some(group) = group.filter(|group| *group != own_group) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Reports whether no process of the group is alive. Members that have ended may wait to be reaped by their new parent.
fn has_group_ended(group: Pid) -> bool {
    test_kill_process_group(group) == Err(Errno::SRCH)
        || (cfg!(target_os = "linux") && !tree::has_group(group))
}

/// Makes this process the new parent of every descendant that loses its parent.
#[cfg(target_os = "linux")]
fn adopt_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(getpid()))?)
}

#[cfg(not(target_os = "linux"))]
fn adopt_orphans() -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "process trees can only be guarded on Linux"))
}

/// Reaps every child that has ended. Returns whether children are left, and the agent's status if it was among the
/// reaped.
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

fn exit_code(status: Option<WaitStatus>) -> u8 {
    let code = status.and_then(|status| {
        status.exit_status().or_else(|| status.terminating_signal().map(|signal| signal + 128))
    });
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

/// Resolves once every writer of this process's standard input is gone.
///
/// A thread polls the pipe. Reading the pipe to its end would block behind an agent that does not read.
fn stdin_hangup() -> io::Result<impl Future<Output = ()>> {
    let (sender, receiver) = oneshot::channel::<()>();
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
        let _ = sender.send(());
    })?;
    Ok(async move {
        let _ = receiver.await;
    })
}
