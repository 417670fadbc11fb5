//! `mainspring guard`: supervises an agent's process tree, or confines the agent. Mainspring starts this command
//! itself.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use mainspring_adapters::process::limit::Limit;
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
    /// File with the time until which the process may live, in milliseconds since the start of the machine
    #[arg(long, value_name = "FILE")]
    limit: Option<OsString>,
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
                let limit = self.limit.as_ref().map(Limit::new);
                guard::main(Duration::from_millis(self.grace_ms), supervision, limit.as_ref(), &self.command)
            }
        }
    }
}

/// Executes `guard` if its arguments have the form that mainspring itself uses, else returns `None`. Mainspring starts
/// one or two guards per agent, and building the parser of all commands would take most of their time.
pub(super) fn execute_at_once(arguments: &[OsString]) -> Option<ExitCode> {
    let (name, arguments) = arguments.split_first()?;
    if name != "guard" {
        return None;
    }
    let (limit, arguments) = match arguments {
        [flag, file, rest @ ..] if flag == "--limit" => (Some(Limit::new(file)), rest),
        rest => (None, rest),
    };
    let [flag, value, rest @ ..] = arguments else { return None };
    let (supervision, rest) = match rest {
        [group, rest @ ..] if group == "--group" => (Supervision::Group, rest),
        rest => (Supervision::Tree, rest),
    };
    let command = rest.strip_prefix(&[OsString::from("--")]).filter(|command| !command.is_empty())?;
    match flag.to_str()? {
        "--confine" => Some(confine::main(value, command)),
        "--grace-ms" => {
            let grace_ms = value.to_str()?.parse().ok()?;
            Some(guard::main(Duration::from_millis(grace_ms), supervision, limit.as_ref(), command))
        }
        _ => None,
    }
}
