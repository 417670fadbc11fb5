//! `mainspring guard`: supervises an agent's process tree, or confines the agent. Started by mainspring itself, not by
//! people.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use mainspring_adapters::process::{confine, guard};
use mainspring_core::Supervision;

/// Supervise a process tree and kill it when its parent exits
#[derive(Args)]
pub(super) struct Guard {
    /// Time that the process has to exit after its input was closed
    #[arg(long, default_value_t = 5_000)]
    grace_ms: u64,
    /// End the process group instead of the process tree
    #[arg(long)]
    group: bool,
    /// Confine this process as described, as JSON, and become the command instead of supervising it
    #[arg(long, value_name = "JSON")]
    confine: Option<OsString>,
    /// Command to start
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl Guard {
    pub(super) fn execute(&self) -> ExitCode {
        match &self.confine {
            Some(confinement) => confine::main(confinement, &self.command),
            None => {
                let supervision = if self.group { Supervision::Group } else { Supervision::Tree };
                guard::main(Duration::from_millis(self.grace_ms), supervision, &self.command)
            }
        }
    }
}

/// Executes the forms of the command that mainspring itself uses, once or twice for every agent. Building the whole
/// command line first would take longer than everything else. Returns `None` for every other command line.
pub(super) fn execute_at_once(arguments: &[OsString]) -> Option<ExitCode> {
    let [name, flag, value, rest @ ..] = arguments else { return None };
    if name != "guard" {
        return None;
    }
    let (supervision, rest) = match rest {
        [group, rest @ ..] if group == "--group" => (Supervision::Group, rest),
        rest => (Supervision::Tree, rest),
    };
    let command = rest.strip_prefix(&[OsString::from("--")]).filter(|command| !command.is_empty())?;
    match flag.to_str()? {
        "--confine" => Some(confine::main(value, command)),
        "--grace-ms" => {
            let grace_ms = value.to_str()?.parse().ok()?;
            Some(guard::main(Duration::from_millis(grace_ms), supervision, command))
        }
        _ => None,
    }
}
