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
    /// Whether the process inherits no variables and gets only the variables of `env`.
    pub clear_env: bool,
    /// The working folder, where the process looks for its configuration; this process's if `None`.
    pub cwd: Option<PathBuf>,
    /// The owner of queries that name no owner; the daemon's default if `None`.
    pub owner: Option<String>,
    /// The restart policy.
    pub restart: Restart,
}

/// How often and how soon a process that died is restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restart {
    /// Number of consecutive failures after which restarts stop. The count begins again after a process that answered
    /// a request, or that exited by itself after more than `max_delay`.
    pub max_failures: u32,
    /// The delay before the first restart; it doubles with each consecutive failure.
    pub initial_delay: Duration,
    /// The maximum delay before a restart.
    pub max_delay: Duration,
    /// The time that a process may take to become ready.
    pub ready_timeout: Duration,
    /// The time that a process may take to stop when asked to; then it is killed.
    pub stop_timeout: Duration,
}

impl Default for Restart {
    fn default() -> Self {
        Self {
            max_failures: 5,
            initial_delay: Duration::from_millis(100),
            max_delay: Duration::from_secs(10),
            ready_timeout: Duration::from_secs(60),
            stop_timeout: Duration::from_secs(30),
        }
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
