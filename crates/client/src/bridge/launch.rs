//! Launch options of the process, and the restart policy.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

/// The launch options of the daemon process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// The program: `mainspring`, or its path.
    pub program: PathBuf,
    /// The state directory, which holds the sessions.
    pub state_dir: PathBuf,
    /// Arguments after `stdio`, for example `--adapter claude`.
    pub args: Vec<OsString>,
    /// Additional environment variables; they override inherited ones.
    pub env: Vec<(OsString, OsString)>,
    /// Inherits no variables: the process gets only those of `env`.
    pub clear_env: bool,
    /// The working folder, where the process looks for its configuration; this process's if `None`.
    pub cwd: Option<PathBuf>,
    /// The owner of queries that name none; the daemon's default if `None`.
    pub owner: Option<String>,
    /// The restart policy.
    pub restart: Restart,
}

/// How often and how soon a process that died is restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restart {
    /// Number of consecutive failures after which restarts stop. A process that replied before it died resets the
    /// count.
    pub tries: u32,
    /// The delay before the first restart; it doubles with each consecutive failure.
    pub first: Duration,
    /// The maximum delay.
    pub longest: Duration,
    /// The time that a process may take to become ready.
    pub ready: Duration,
    /// The time that a process may take to stop when asked to; then it is killed.
    pub stop: Duration,
}

impl Default for Restart {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        let first = Duration::from_millis(100);
        Self { tries: 5, first, longest: seconds(10), ready: seconds(60), stop: seconds(30) }
    }
}

impl Launch {
    /// Creates options for `program stdio` with the sessions of `state_dir`.
    pub fn new(program: impl Into<PathBuf>, state_dir: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            state_dir: state_dir.into(),
            args: vec![],
            env: vec![],
            clear_env: false,
            cwd: None,
            owner: None,
            restart: Restart::default(),
        }
    }

    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        if self.clear_env {
            command.env_clear();
        }
        if let Some(cwd) = &self.cwd {
            command.current_dir(cwd);
        }
        command.arg("stdio").arg("--state-dir").arg(&self.state_dir);
        if let Some(owner) = &self.owner {
            command.arg("--owner").arg(owner);
        }
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A child that is dropped without a stop must not keep running.
        command.kill_on_drop(true);
        command
    }
}
