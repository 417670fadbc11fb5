//! Processes of agents: each under a guard, with an environment that is allowed, an output that is bounded, and an end
//! that is proven.
//!
//! ```text
//! mainspring ──stdin──▶ guard ──stdin──▶ agent ──stdout, stderr──▶ mainspring
//! ```
//!
//! The agent's output does not pass through the guard; its input does, so that the guard notices when mainspring is
//! gone, however it went.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use mainspring_kernel::adapter::Death;
use mainspring_kernel::clock::Clock;
use mainspring_kernel::tasks::Tasks;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

pub mod guard;
mod log;
mod tail;
mod tree;
pub use log::Log;
pub(crate) use tail::Tail;
pub use tree::marked;

/// The variable that marks what was started under a guard: `SCOPE#NAME`. Not one of `MAINSPRING_*`, which mainspring
/// would take for a setting when an agent starts it.
pub const MARK: &str = "GUARDED_BY_MAINSPRING";
/// How long a guard may take, beyond the agent's grace period, to end its tree.
const DEATH: Duration = Duration::from_secs(5);
/// How long the end of a standard error is waited for, in milliseconds.
const LAST_WORDS: u64 = 500;
/// How often it is looked whether something is left, in milliseconds.
const SWEEP: u64 = 20;
/// What of mainspring's own environment an agent sees: where things are and how to show them, and no secrets.
const ALLOWED: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "TERM",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
];
const ALLOWED_PREFIXES: &[&str] = &["LC_", "XDG_"];

/// How to start an agent.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The guard's command; what follows it are `--grace-ms N -- COMMAND…`.
    pub guard: Vec<OsString>,
    /// The agent's command.
    pub command: Vec<String>,
    /// What it finds in its environment besides what is allowed.
    pub env: Vec<(String, String)>,
    /// Names of variables that it may see besides.
    pub pass_env: Vec<String>,
    /// Where it starts: a folder that exists.
    pub cwd: PathBuf,
    /// How long it has to end by itself once it is told to stop.
    pub grace: Duration,
    /// Whose processes these are: the same for all that one mainspring starts.
    pub scope: String,
    /// A name that no other process has.
    pub name: String,
    /// Where goes what it writes to its standard error.
    pub log: Log,
}

impl Launch {
    /// What marks its processes.
    pub fn mark(&self) -> String {
        format!("{}#{}", self.scope, self.name)
    }
}

/// Why a process was not started. Nothing of it is left.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The folder is not one.
    #[error("the folder {} {reason}; name an absolute path of a folder that exists", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The guard could not be started.
    #[error("the guard {guard} could not be started: {source}")]
    Guard {
        /// Its command.
        guard: String,
        /// Why.
        source: std::io::Error,
    },
}

/// A running agent under its guard. Dropped, it is killed.
#[derive(Debug)]
pub struct Process {
    orders: mpsc::UnboundedSender<Signal>,
    ended: watch::Receiver<Option<ExitStatus>>,
    log: Log,
    clock: Clock,
    grace: Duration,
    mark: String,
}

/// The two ends of an agent's standard input and output.
#[derive(Debug)]
pub struct Pipes {
    /// What is written here the agent reads.
    pub stdin: ChildStdin,
    /// What the agent writes.
    pub stdout: ChildStdout,
}

impl Process {
    /// Starts an agent.
    pub fn start(launch: &Launch, tasks: &Tasks, clock: &Clock) -> Result<(Self, Pipes), StartError> {
        check_folder(&launch.cwd)?;
        let failed = |source| StartError::Guard {
            guard: launch.guard.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
            source,
        };
        let mut guard = command(launch).spawn().map_err(failed)?;
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (guard.stdin.take(), guard.stdout.take(), guard.stderr.take())
        else {
            return Err(failed(std::io::ErrorKind::BrokenPipe.into()));
        };
        let (orders, received) = mpsc::unbounded_channel();
        let (end, ended) = watch::channel(None);
        let log = launch.log.clone();
        let last_words = tasks.spawn(collect(stderr, move |bytes| log.push(bytes)));
        tasks.spawn(keep(guard, received, last_words, clock.clone(), end));
        let process = Self {
            orders,
            ended,
            log: launch.log.clone(),
            clock: clock.clone(),
            grace: launch.grace,
            mark: launch.mark(),
        };
        Ok((process, Pipes { stdin, stdout }))
    }

    /// True while its guard has not ended.
    pub fn is_alive(&self) -> bool {
        self.ended.borrow().is_none()
    }

    /// Resolves once the guard has ended, and with it the tree: what the agent exited with, where that is known.
    pub fn ended(&self) -> impl Future<Output = Option<i32>> + Send + use<> {
        let mut ended = self.ended.clone();
        async move {
            // The sender is gone only with the runtime.
            let status = ended.wait_for(Option::is_some).await;
            status.ok().and_then(|status| status.and_then(|status| status.code()))
        }
    }

    /// What it has written to its standard error.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Closes its input, gives it the grace period, then kills the tree.
    pub async fn stop(&self) -> Death {
        self.end(Signal::TERM, self.grace + DEATH).await
    }

    /// Kills the tree.
    pub async fn kill(&self) -> Death {
        self.end(Signal::QUIT, DEATH).await
    }

    async fn end(&self, order: Signal, within: Duration) -> Death {
        // Nobody receives it when the guard has ended already.
        let _ = self.orders.send(order);
        let until = self.clock.now().plus(u64::try_from(within.as_millis()).unwrap_or(u64::MAX));
        tokio::select! {
            _ = self.ended() => {}
            () = self.clock.sleep_until(until) => return Death::Unproven,
        }
        // What we tell it ends a guard only while it does not listen yet, and then it has started nothing.
        let ours = [Signal::QUIT, Signal::TERM].map(Signal::as_raw);
        let by_itself = self.ended.borrow().is_some_and(|status| {
            status.code().is_some() || status.signal().is_some_and(|signal| ours.contains(&signal))
        });
        if by_itself {
            return Death::Proven;
        }
        // Somebody killed the guard. What it guarded is killed here, as far as it can be found.
        kill_all(&marked(MARK, |mark| mark == self.mark));
        Death::Unproven
    }
}

/// Waits until nothing is left of what an earlier mainspring of this scope had started, and kills what its guards do
/// not: those that were killed themselves leave their trees behind. Whoever calls this owns the scope.
pub async fn sweep(scope: &str, clock: &Clock) {
    let ours = |mark: &str| mark.strip_prefix(scope).is_some_and(|rest| rest.starts_with('#'));
    let patience = clock.now().plus(u64::try_from(DEATH.as_millis()).unwrap_or(u64::MAX));
    loop {
        let left = marked(MARK, ours);
        if left.is_empty() {
            return;
        }
        if clock.now() >= patience {
            tracing::warn!(processes = left.len(), "agents were left by an earlier process; they are killed");
            kill_all(&left);
        }
        clock.sleep_until(clock.now().plus(SWEEP)).await;
    }
}

/// Waits until nothing is left that carries `mark`, alone or with a dot and more after it; whoever started it has told
/// its guard to end it.
pub async fn ended(mark: &str, clock: &Clock) -> Death {
    let patience = clock.now().plus(u64::try_from(DEATH.as_millis()).unwrap_or(u64::MAX));
    let is = |it: &str| it.strip_prefix(mark).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    while !marked(MARK, is).is_empty() {
        if clock.now() >= patience {
            return Death::Unproven;
        }
        clock.sleep_until(clock.now().plus(SWEEP)).await;
    }
    Death::Proven
}

fn kill_all(pids: &[Pid]) {
    for pid in pids {
        let _ = kill_process(*pid, Signal::KILL);
    }
}

fn command(launch: &Launch) -> Command {
    let (guard, arguments) =
        launch.guard.split_first().map_or((OsString::new(), &[][..]), |(guard, rest)| (guard.clone(), rest));
    let mut command = Command::new(guard);
    command.args(arguments).arg("--grace-ms").arg(launch.grace.as_millis().to_string()).arg("--");
    command.args(&launch.command).current_dir(&launch.cwd);
    command
        .env_clear()
        .envs(std::env::vars_os().filter(|(name, _)| is_allowed(name.to_str(), &launch.pass_env)));
    command.envs(launch.env.iter().cloned()).env("PWD", &launch.cwd).env(MARK, launch.mark());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Signals from a terminal are for mainspring.
    command.process_group(0);
    command
}

fn is_allowed(name: Option<&str>, passed: &[String]) -> bool {
    name.is_some_and(|name| {
        ALLOWED.contains(&name)
            || ALLOWED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            || passed.iter().any(|passed| passed == name)
    })
}

/// Refuses a folder in which nothing can be started.
pub fn check_folder(path: &Path) -> Result<(), StartError> {
    let bad = |reason| Err(StartError::Folder { path: path.to_owned(), reason });
    match std::fs::metadata(path) {
        _ if !path.is_absolute() => bad("is not absolute"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => bad("does not exist"),
        Err(_) => bad("cannot be read"),
        Ok(found) if !found.is_dir() => bad("is not a folder"),
        Ok(_) => Ok(()),
    }
}

/// Owns the guard: alone sends it signals, so that none reaches a stranger that got its number.
async fn keep(
    mut guard: Child,
    mut orders: mpsc::UnboundedReceiver<Signal>,
    last_words: JoinHandle<()>,
    clock: Clock,
    ended: watch::Sender<Option<ExitStatus>>,
) {
    let mut dropped = false;
    loop {
        let order = tokio::select! {
            biased;
            status = guard.wait() => {
                // Whoever learns of the end can read the last words. Only what outlived its guard keeps them open.
                let until = clock.now().plus(LAST_WORDS);
                tokio::select! {
                    _ = last_words => {}
                    () = clock.sleep_until(until) => {}
                }
                let _ = ended.send(Some(status.unwrap_or_default()));
                return;
            }
            order = orders.recv(), if !dropped => {
                dropped = order.is_none();
                order.unwrap_or(Signal::QUIT)
            }
        };
        if let Some(pid) = guard.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)) {
            let _ = kill_process(pid, order);
        }
    }
}

/// Gives everything that can be read to `take`.
pub(crate) async fn collect(mut from: impl AsyncRead + Unpin, take: impl Fn(&[u8])) {
    let mut buffer = vec![0; 8 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        take(&buffer[..count]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_passed_on() {
        let passed = ["ANTHROPIC_API_KEY".to_owned()];
        for allowed in ["PATH", "HOME", "LC_ALL", "XDG_STATE_HOME", "ANTHROPIC_API_KEY"] {
            assert!(is_allowed(Some(allowed), &passed), "{allowed}");
        }
        for secret in ["OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "MAINSPRING_KEY", "LD_PRELOAD", "PATHS"] {
            assert!(!is_allowed(Some(secret), &passed), "{secret}");
        }
        assert!(!is_allowed(None, &passed));
    }

    #[test]
    fn a_folder_is_checked() {
        let reason = |path: &str| check_folder(Path::new(path)).map_err(|error| error.to_string());
        assert!(reason("/").is_ok());
        assert!(reason("tmp").unwrap_err().contains("is not absolute"));
        assert!(reason("/no/such/folder").unwrap_err().contains("does not exist"));
        assert!(reason("/proc/self/status").unwrap_err().contains("is not a folder"));
    }
}
