//! Agent processes. Each runs under a guard, with an allow-listed environment, bounded logs and a proven end.
//!
//! ```text
//! mainspring ──stdin──▶ guard ──stdin──▶ agent ──stdout, stderr──▶ mainspring
//! ```
//!
//! The agent's output does not pass through the guard. Its input does, so that the guard notices the end of mainspring
//! even after `kill -9`. A confined agent is started by a confiner, which restricts itself and then becomes the agent.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use mainspring_core::Supervision;
use mainspring_kernel::adapter::Death;
use mainspring_kernel::clock::Clock;
use mainspring_kernel::folders::{UnusableFolder, check_usable};
use mainspring_kernel::tasks::Tasks;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::endpoint::Endpoint;
use crate::sandbox::ProcessSandbox;

pub mod confine;
pub mod guard;
pub mod limit;
mod log;
mod tail;
mod temporary;
mod tree;
pub use confine::Confinement;
pub use log::Log;
pub(crate) use tail::Tail;
pub(crate) use temporary::TemporaryFolder;
pub(crate) use tree::Reading;
pub use tree::{ProcessId, processes_with_variable};
#[cfg(target_os = "linux")]
pub(crate) use tree::{guard_of, mark_of};

/// The environment variable that marks every process started under a guard; its value is `SCOPE#NAME`. The name does
/// not start with `MAINSPRING_`, because a mainspring started by an agent would read it as a setting.
pub const MARK_VARIABLE: &str = "GUARDED_BY_MAINSPRING";
/// How long a guard may take, beyond the agent's grace period, to end its process tree.
const KILL_TIMEOUT_MS: u64 = 5_000;
/// The timeout of three waits: for the output to end once the process has ended, for the process to end once its output
/// has ended, and for the output to end once the agent has closed its input. After the end of the process,
/// only a descendant that outlived the guard can keep the output open for longer.
pub(crate) const OUTPUT_DRAIN_TIMEOUT_MS: u64 = 500;
/// The interval at which a signal is repeated until the guard has ended.
const RESEND_INTERVAL_MS: u64 = 50;
/// The interval between two searches for remaining processes.
const SWEEP_INTERVAL_MS: u64 = 20;
/// The interval between two checks for processes that are being killed. They have ended once two checks in a row find
/// none.
const KILL_INTERVAL_MS: u64 = 5;
/// Variables of mainspring's own environment that every agent gets: locations and locale, no secrets.
const ALLOWED_ENV: &[&str] = &[
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
const ALLOWED_ENV_PREFIXES: &[&str] = &["LC_", "XDG_"];
/// The variable that a confined agent gets only if the adapter passes it on. It leads to the sockets of the user's session,
/// such as those of systemd and D-Bus, which start programs outside the sandbox.
const RUNTIME_DIR_VARIABLE: &str = "XDG_RUNTIME_DIR";

/// How to start an agent process.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The guard's command; `--grace-ms N -- COMMAND…` is appended to it. With `--confine JSON -- COMMAND…` appended, it is
    /// the command of the confiner.
    pub guard: Vec<OsString>,
    /// The agent's command.
    pub command: Vec<String>,
    /// Additional variables of the agent's environment.
    pub env: Vec<(String, String)>,
    /// Names of further variables to copy from mainspring's own environment.
    pub pass_env: Vec<String>,
    /// The working directory; it must exist.
    pub cwd: PathBuf,
    /// How long the agent has to exit by itself after its input was closed.
    pub grace: Duration,
    /// Identifies the mainspring instance that starts the process; the same for all of its processes.
    pub scope: String,
    /// A name that is unique among the processes of the scope.
    pub name: String,
    /// Receives the standard error.
    pub log: Log,
    /// The sandbox of the agent's processes; `None` if they are not confined. A confined agent also has a temporary folder
    /// of its own.
    pub sandbox: Option<ProcessSandbox>,
    /// The processes that the guard ends.
    pub supervision: Supervision,
    /// The endpoint for the calls of the process, which is closed when the process has ended.
    pub endpoint: Option<Arc<Endpoint>>,
}

impl Launch {
    /// The value of [`MARK_VARIABLE`] in the agent's processes.
    pub fn mark(&self) -> String {
        mark(&self.scope, &self.name)
    }

    /// Returns the agent's program if it exists neither as a file nor in the `PATH` that the agent gets.
    pub fn missing_command(&self) -> Option<&str> {
        missing_program(&self.command, &self.env, &self.pass_env, &self.cwd)
    }
}

/// Returns the program of an agent's command if it exists neither as a file nor in the `PATH` that the agent gets.
pub(crate) fn missing_program<'a>(
    command: &'a [String],
    env: &[(String, String)],
    passed: &[String],
    cwd: &Path,
) -> Option<&'a str> {
    let program = command.first()?;
    let found = match program.contains('/') {
        true => cwd.join(program).exists(),
        false => {
            let path = agent_variable("PATH", env, passed).unwrap_or_default();
            std::env::split_paths(&path).any(|folder| cwd.join(folder).join(program).is_file())
        }
    };
    (!found).then_some(program)
}

/// The value of [`MARK_VARIABLE`] in the processes of this scope and name.
pub(crate) fn mark(scope: &str, name: &str) -> String {
    format!("{scope}#{name}")
}

/// Why a process was not started. No process remains.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The working directory cannot be used.
    #[error(transparent)]
    Folder(#[from] UnusableFolder),
    /// The guard could not be started.
    #[error("the guard {guard} could not be started: {source}")]
    Guard {
        /// The guard's program.
        guard: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The temporary folder of a confined process could not be made.
    #[error("a temporary folder for the agent could not be made: {0}")]
    Temporary(std::io::Error),
}

/// A running agent under its guard. Dropping it kills the process tree.
#[derive(Debug)]
pub struct Process {
    signals: mpsc::UnboundedSender<Signal>,
    ended: watch::Receiver<Option<ExitStatus>>,
    log: Log,
    clock: Clock,
    grace: Duration,
    mark: String,
    /// The guard's number. It may belong to another process once the guard has ended.
    guard: Option<Pid>,
    supervision: Supervision,
    endpoint: Option<Arc<Endpoint>>,
}

/// The processes of a tree at one time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot(HashSet<ProcessId>);

/// The process tree of an agent.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    guard: Option<Pid>,
    mark: String,
    ended: watch::Receiver<Option<ExitStatus>>,
}

impl PartialEq for Tree {
    fn eq(&self, other: &Self) -> bool {
        self.mark == other.mark
    }
}

impl Tree {
    pub(crate) fn is_alive(&self) -> bool {
        self.ended.borrow().is_none()
    }

    /// Returns the living processes that were started after the snapshot and became children of the guard because their
    /// parents have ended.
    pub(crate) fn orphans_since(&self, before: &Snapshot) -> Vec<ProcessId> {
        let guard = self.guard.filter(|_| self.is_alive());
        Reading::of_children(guard).without(&before.0).living().collect()
    }
}

/// Mainspring's ends of an agent's standard input and output.
#[derive(Debug)]
pub struct Pipes {
    /// Writes to the agent's standard input.
    pub stdin: ChildStdin,
    /// Reads the agent's standard output.
    pub stdout: ChildStdout,
}

impl Process {
    /// Starts an agent under its guard.
    pub fn start(launch: &Launch, tasks: &Tasks, clock: &Clock) -> Result<(Self, Pipes), StartError> {
        check_usable(&launch.cwd)?;
        let failed = |source| StartError::Guard {
            guard: launch.guard.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
            source,
        };
        let confinement = launch.sandbox.as_ref().and_then(ProcessSandbox::confinement);
        let temporary = confinement.is_some().then(|| TemporaryFolder::create(&launch.scope));
        let temporary = temporary.transpose().map_err(StartError::Temporary)?;
        let confined = confinement.zip(temporary.as_ref());
        let mut guard = command(launch, confined).and_then(|mut it| it.spawn()).map_err(failed)?;
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (guard.stdin.take(), guard.stdout.take(), guard.stderr.take())
        else {
            return Err(failed(std::io::ErrorKind::BrokenPipe.into()));
        };
        let pid = guard.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let (signals, received) = mpsc::unbounded_channel();
        let (end, ended) = watch::channel(None);
        let log = launch.log.clone();
        let stderr_reader = tasks.spawn(read_chunks(stderr, move |bytes| log.push(bytes)));
        let supervised = supervise(guard, received, stderr_reader, clock.clone(), end);
        let endpoint = launch.endpoint.clone();
        tasks.spawn(async move {
            supervised.await;
            endpoint.iter().for_each(|endpoint| endpoint.close());
            if let Some(temporary) = temporary {
                temporary.remove().await;
            }
        });
        let process = Self {
            signals,
            ended,
            log: launch.log.clone(),
            clock: clock.clone(),
            grace: launch.grace,
            mark: launch.mark(),
            guard: pid,
            supervision: launch.supervision,
            endpoint: launch.endpoint.clone(),
        };
        Ok((process, Pipes { stdin, stdout }))
    }

    /// Reports whether the guard is still running.
    pub fn is_alive(&self) -> bool {
        self.ended.borrow().is_none()
    }

    /// Waits until the guard and with it the process tree has ended. Returns the agent's exit code, if known.
    pub fn ended(&self) -> impl Future<Output = Option<i32>> + Send + use<> {
        let mut ended = self.ended.clone();
        async move {
            // The sender is dropped only when the runtime shuts down.
            let status = ended.wait_for(Option::is_some).await;
            status.ok().and_then(|status| status.and_then(|status| status.code()))
        }
    }

    /// The name of the process, which is unique within its scope.
    pub fn name(&self) -> &str {
        self.mark.rsplit_once('#').map_or(&self.mark, |(_, name)| name)
    }

    /// The endpoint for the calls of the process.
    pub(crate) fn endpoint(&self) -> Option<&Endpoint> {
        self.endpoint.as_deref()
    }

    /// The log of the process's standard error.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Completes the log of an agent that has closed its output. Such an agent usually exits at once; one that does not is
    /// killed, since no turn can use it any more.
    pub(crate) async fn complete_log(&self) {
        tokio::select! {
            _ = self.ended() => {}
            () = self.clock.sleep_for(OUTPUT_DRAIN_TIMEOUT_MS) => {
                self.kill().await;
            }
        }
    }

    /// Waits for `reading`, which completes at the latest when the output of the process ends. When the process has
    /// ended, its last output may still be in the pipe, so `reading` gets [`OUTPUT_DRAIN_TIMEOUT_MS`] more. Returns
    /// `None` if `reading` is not complete by then.
    pub(crate) async fn read_to_end<T>(&self, reading: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(reading);
        tokio::select! {
            read = &mut reading => Some(read),
            _ = self.ended() => tokio::select! {
                read = reading => Some(read),
                () = self.clock.sleep_for(OUTPUT_DRAIN_TIMEOUT_MS) => None,
            },
        }
    }

    /// Closes the agent's input, waits for the grace period, then kills the process tree.
    pub async fn stop(&self) -> Death {
        let grace_ms = u64::try_from(self.grace.as_millis()).unwrap_or(u64::MAX);
        self.end(Signal::TERM, grace_ms.saturating_add(KILL_TIMEOUT_MS)).await
    }

    /// Kills the process tree.
    pub async fn kill(&self) -> Death {
        self.end(Signal::QUIT, KILL_TIMEOUT_MS).await
    }

    /// The processes of the tree, without the guard. `None` if they cannot be determined.
    pub(crate) async fn snapshot(&self) -> Option<Snapshot> {
        match (self.supervision, self.living_guard()) {
            (Supervision::Group, _) => None,
            (Supervision::Tree, None) => Some(Snapshot::default()),
            (Supervision::Tree, Some(guard)) => {
                Reading::settled(guard).await.map(|reading| Snapshot(reading.living().collect()))
            }
        }
    }

    /// The living processes of the tree that were started after the snapshot.
    pub(crate) async fn started_since(&self, before: &Snapshot) -> Vec<ProcessId> {
        let reading = match self.living_guard() {
            Some(guard) => Reading::settled(guard).await.unwrap_or_else(|| Reading::of([guard])),
            None => Reading::default(),
        };
        reading.without(&before.0).living().collect()
    }

    /// Kills every process of the tree that was started after the snapshot, in any session or process group.
    pub(crate) async fn kill_started_since(&self, before: &Snapshot) -> Death {
        end_processes(|| Reading::of(self.living_guard()).without(&before.0), &self.clock).await
    }

    /// The tree of the process and its descendants.
    pub(crate) fn tree(&self) -> Tree {
        Tree { guard: self.guard, mark: self.mark.clone(), ended: self.ended.clone() }
    }

    fn living_guard(&self) -> Option<Pid> {
        self.guard.filter(|_| self.is_alive())
    }

    async fn end(&self, signal: Signal, timeout_ms: u64) -> Death {
        // The channel is closed if the guard has ended already.
        let _ = self.signals.send(signal);
        tokio::select! {
            _ = self.ended() => {}
            () = self.clock.sleep_for(timeout_ms) => return Death::Unproven,
        }
        // Mainspring and its terminal send these signals. They end only a guard that has not installed its handlers yet,
        // and such a guard has started no process.
        let early = [Signal::QUIT, Signal::TERM, Signal::INT, Signal::HUP].map(Signal::as_raw);
        let ended_itself = self.ended.borrow().is_some_and(|status| {
            status.code().is_some() || status.signal().is_some_and(|signal| early.contains(&signal))
        });
        if ended_itself {
            return Death::Proven;
        }
        // The guard was killed from outside. Kill every process of its tree that still carries the mark.
        kill_all(&processes_with_variable(MARK_VARIABLE, |mark| mark == self.mark));
        Death::Unproven
    }
}

/// Waits until no process of an earlier mainspring with this scope is left. After a timeout, kills the remaining ones:
/// a guard that was killed itself leaves its process tree behind. The caller must own the scope.
pub async fn sweep(scope: &str, clock: &Clock) {
    let in_scope = |mark: &str| mark.strip_prefix(scope).is_some_and(|rest| rest.starts_with('#'));
    let deadline = clock.moment().plus(KILL_TIMEOUT_MS);
    loop {
        let left = processes_with_variable(MARK_VARIABLE, in_scope);
        if left.is_empty() {
            return temporary::remove_leftovers(scope).await;
        }
        if clock.moment() >= deadline {
            tracing::warn!(processes = left.len(), "killing agent processes left by an earlier mainspring");
            kill_all(&left);
        }
        clock.sleep_for(SWEEP_INTERVAL_MS).await;
    }
}

/// Waits until no process is left whose mark is `mark`, or `mark` followed by a dot and more. The caller has already
/// asked the guards of these processes to end them.
pub async fn wait_until_gone(mark: &str, clock: &Clock) -> Death {
    let deadline = clock.moment().plus(KILL_TIMEOUT_MS);
    let matches =
        |value: &str| value.strip_prefix(mark).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    while !processes_with_variable(MARK_VARIABLE, matches).is_empty() {
        if clock.moment() >= deadline {
            return Death::Unproven;
        }
        clock.sleep_for(SWEEP_INTERVAL_MS).await;
    }
    Death::Proven
}

/// Kills the living processes of `read` until two readings in a row have none.
pub(crate) async fn end_processes(read: impl Fn() -> Reading, clock: &Clock) -> Death {
    let deadline = clock.moment().plus(KILL_TIMEOUT_MS);
    let mut last = None;
    loop {
        let reading = read();
        reading.living().for_each(|process| process.signal(Signal::KILL));
        if reading.is_empty() && last.as_ref() == Some(&reading) {
            return Death::Proven;
        }
        if clock.moment() >= deadline {
            return Death::Unproven;
        }
        last = Some(reading);
        clock.sleep_for(KILL_INTERVAL_MS).await;
    }
}

fn kill_all(pids: &[Pid]) {
    for pid in pids {
        let _ = kill_process(*pid, Signal::KILL);
    }
}

fn command(launch: &Launch, confined: Option<(Confinement, &TemporaryFolder)>) -> std::io::Result<Command> {
    let (guard, arguments) =
        launch.guard.split_first().map_or((OsString::new(), &[][..]), |(guard, rest)| (guard.clone(), rest));
    let mut command = Command::new(guard);
    command.args(arguments).arg("--grace-ms").arg(launch.grace.as_millis().to_string());
    if launch.supervision == Supervision::Group {
        command.arg("--group");
    }
    command.arg("--");
    command.env_clear().envs(inherited_environment(&launch.pass_env));
    let is_confined = confined.is_some();
    if is_confined && !launch.pass_env.iter().any(|passed| passed == RUNTIME_DIR_VARIABLE) {
        command.env_remove(RUNTIME_DIR_VARIABLE);
    }
    if let Some((mut confinement, temporary)) = confined {
        confinement.writable.push(temporary.path().to_owned());
        command.args(&launch.guard).arg("--confine").arg(serde_json::to_string(&confinement)?).arg("--");
        command.env("TMPDIR", temporary.path());
    }
    let switches = launch.sandbox.as_ref().filter(|_| is_confined).map(ProcessSandbox::variables);
    command.args(&launch.command).current_dir(&launch.cwd);
    command.envs(launch.env.iter().cloned()).envs(switches.into_iter().flatten());
    command.env("PWD", &launch.cwd).env(MARK_VARIABLE, launch.mark());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // The guard itself leaves the process group: it makes a session of its own.
    Ok(command)
}

/// Looks up a variable of an agent's environment: in `env`, else in mainspring's own environment if the agent inherits
/// the variable.
pub(crate) fn agent_variable(name: &str, env: &[(String, String)], passed: &[String]) -> Option<OsString> {
    let own = env.iter().rfind(|(known, _)| known == name).map(|(_, value)| value.into());
    own.or_else(|| std::env::var_os(name).filter(|_| is_allowed(Some(name), passed)))
}

/// Returns the variables of this process that an agent inherits: those on the allow-list, and `passed` ones.
pub fn inherited_environment(passed: &[String]) -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| is_allowed(name.to_str(), passed))
}

fn is_allowed(name: Option<&str>, passed: &[String]) -> bool {
    name.is_some_and(|name| {
        ALLOWED_ENV.contains(&name)
            || ALLOWED_ENV_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            || passed.iter().any(|passed| passed == name)
    })
}

/// Forwards signals to the guard until it ends. Only this task signals and reaps the guard, so no signal can reach
/// another process that reuses its pid.
///
/// A signal is sent again until the guard has ended. A process inherits the signals that its parent ignores, and a shell
/// starts a background job with SIGQUIT ignored. If mainspring is such a job, a guard loses the signals that arrive before
/// it has installed its handlers.
async fn supervise(
    mut guard: Child,
    mut signals: mpsc::UnboundedReceiver<Signal>,
    stderr_reader: JoinHandle<()>,
    clock: Clock,
    ended: watch::Sender<Option<ExitStatus>>,
) {
    let mut dropped = false;
    let mut sent = None;
    // A guard takes real time to start, even if a test advances `clock`.
    let guard_clock = Clock::system();
    loop {
        let signal = tokio::select! {
            biased;
            status = guard.wait() => {
                // The log is complete before the end is announced.
                drain_stderr(stderr_reader, &clock).await;
                let _ = ended.send(Some(status.unwrap_or_default()));
                return;
            }
            signal = signals.recv(), if !dropped => {
                dropped = signal.is_none();
                signal.unwrap_or(Signal::QUIT)
            }
            () = guard_clock.sleep_for(RESEND_INTERVAL_MS), if sent.is_some() => sent.unwrap_or(Signal::QUIT),
        };
        // A later request to stop the tree does not replace a kill.
        let signal = if sent == Some(Signal::QUIT) { Signal::QUIT } else { signal };
        sent = Some(signal);
        if let Some(pid) = guard.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)) {
            let _ = kill_process(pid, signal);
        }
    }
}

/// Waits until the log of a guard that has ended is complete. Only a process that outlived its guard can hold the pipe open
/// for longer than the timeout.
async fn drain_stderr(reader: JoinHandle<()>, clock: &Clock) {
    tokio::select! {
        _ = reader => {}
        () = clock.sleep_for(OUTPUT_DRAIN_TIMEOUT_MS) => {}
    }
}

/// Reads `source` to its end and passes each chunk to `on_chunk`.
pub(crate) async fn read_chunks(mut source: impl AsyncRead + Unpin, on_chunk: impl Fn(&[u8])) {
    let mut buffer = vec![0; 8 << 10];
    while let Ok(count @ 1..) = source.read(&mut buffer).await {
        on_chunk(&buffer[..count]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_allowed_and_passed_variables_are_inherited() {
        let passed = ["ANTHROPIC_API_KEY".to_owned()];
        for allowed in ["PATH", "HOME", "LC_ALL", "XDG_STATE_HOME", "ANTHROPIC_API_KEY"] {
            assert!(is_allowed(Some(allowed), &passed), "{allowed}");
        }
        for secret in ["OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "MAINSPRING_KEY", "LD_PRELOAD", "PATHS"] {
            assert!(!is_allowed(Some(secret), &passed), "{secret}");
        }
        assert!(!is_allowed(None, &passed));
    }
}
