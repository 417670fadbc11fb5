//! `mainspring guard`: supervises an agent's process tree. Started by mainspring itself, not by people.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

/// Supervise a process tree and kill it when its parent exits
#[derive(Args)]
pub(super) struct Guard {
    /// Time that the process has to exit after its input was closed
    #[arg(long, default_value_t = 5_000)]
    grace_ms: u64,
    /// Command to start
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl Guard {
    pub(super) fn execute(&self) -> ExitCode {
        mainspring_adapters::process::guard::main(Duration::from_millis(self.grace_ms), &self.command)
    }
}
