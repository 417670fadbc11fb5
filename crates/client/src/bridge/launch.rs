//! How the process is started, and how often again.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

/// How the daemon process is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// The program: `mainspring`, or where it is.
    pub program: PathBuf,
    /// Whose sessions.
    pub state_dir: PathBuf,
    /// Arguments after `stdio`, for example `--adapter claude`.
    pub args: Vec<OsString>,
    /// Variables of its environment, beside those of this process.
    pub env: Vec<(OsString, OsString)>,
    /// Leaves it the variables of `env` alone.
    pub clear_env: bool,
    /// The folder it starts in, where it looks for its configuration; this process's if none.
    pub cwd: Option<PathBuf>,
    /// For whom queries ask that name no owner; the daemon's default if none.
    pub owner: Option<String>,
    /// How often it is started again.
    pub restart: Restart,
}

/// How often, and how soon, a process that died is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restart {
    /// How many failures in a row are too many. One that answered something before it died is no failure in a row.
    pub tries: u32,
    /// The pause before the first new start; it doubles with each failure in a row.
    pub first: Duration,
    /// The longest pause.
    pub longest: Duration,
    /// How long a process may take until it is ready.
    pub ready: Duration,
    /// How long a process may take to stop when it is asked to; then it is killed.
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
    /// `program stdio` on the sessions of `state_dir`.
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
        // Whoever drops it without a word must not leave it behind.
        command.kill_on_drop(true);
        command
    }
}
