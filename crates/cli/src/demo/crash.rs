//! The crash of the demo: a child process is killed while it streams, and a new process recovers its run.

use std::path::Path;
use std::process::Stdio;

use mainspring_agent::native;
use mainspring_core::{Cursor, Role, RunChange, RunState, RunStatus};
use mainspring_kernel::kernel::{Kernel, RunQuery, SessionQuery};
use mainspring_kernel::store::SessionRef;
use tokio::io::AsyncReadExt;

use super::CONFIG_FILE;
use super::runner::DemoRunner;
use super::scenario::CRASH_SCENARIO;
use crate::error::CliError;
use crate::output::{self, DIM};

impl DemoRunner<'_> {
    /// Counts the events of all sessions.
    pub(super) async fn count_events(&self, kernel: &Kernel) -> Result<usize, CliError> {
        let mut count = 0;
        for (session, _) in kernel.session_list(&self.caller, SessionQuery::default()).await?.items {
            let mut after = Cursor::START;
            loop {
                let page = kernel
                    .session_events(&self.caller, &SessionRef::Id(session.id), after, Some(100))
                    .await?;
                let Some(last) = page.last() else { break };
                after = last.cursor;
                count += page.len();
            }
        }
        Ok(count)
    }

    /// Starts this program as a child process on the same folder, with none of the user's settings, and kills it while
    /// it streams.
    pub(super) async fn kill_child(&self, dir: &Path) -> Result<(), CliError> {
        let mut child = tokio::process::Command::new(std::env::current_exe()?);
        child.env_clear().env("HOME", dir).envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        child.arg("--state-dir").arg(dir).arg("--config").arg(dir.join(CONFIG_FILE));
        child.args([
            "--owner",
            "demo",
            "prompt",
            "--session",
            "crash",
            "--adapter",
            native::NAME,
            CRASH_SCENARIO.prompt,
        ]);
        let mut child = child
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let mut output = vec![];
        if let Some(out) = &mut child.stdout {
            let mut buffer = [0; 64];
            while output.len() < 100 {
                match out.read(&mut buffer).await? {
                    0 => break,
                    n => output.extend_from_slice(&buffer[..n]),
                }
            }
        }
        child.kill().await?;
        self.print_scenario_line(
            &CRASH_SCENARIO,
            output::excerpt(&String::from_utf8_lossy(&output), 60).as_str(),
        )?;
        self.print_scenario_line(
            &CRASH_SCENARIO,
            &format!("{DIM}kill -9 after {} bytes of its answer{DIM:#}", output.len()),
        )
    }

    /// Shows that a new process finds every acknowledged event, and the interrupted run marked as such.
    pub(super) async fn show_recovery(&self, kernel: &Kernel, before: usize) -> Result<(), CliError> {
        let by = SessionRef::Key("crash".into());
        let query =
            RunQuery { session: Some(kernel.session_get(&self.caller, &by).await?.id), ..Default::default() };
        let runs = kernel.run_list(&self.caller, query).await?.items;
        let Some(run) = runs.first() else {
            return Err(CliError::bad_request("the run of the crash is missing"));
        };
        let kept = kernel.session_path(&self.caller, &by, None, None).await?;
        let kept: usize = kept
            .iter()
            .filter(|message| message.role == Role::Assistant)
            .map(|message| message.text().len())
            .sum();
        if let RunState::Orphaned { error } = &run.state {
            self.print_scenario_line(
                &CRASH_SCENARIO,
                &format!(
                    "{DIM}a new process finds the run {}: {}; {kept} bytes of its answer were kept{DIM:#}",
                    RunStatus::Orphaned,
                    error.message
                ),
            )?;
        }
        self.print_scenario_line(
            &CRASH_SCENARIO,
            &format!("{DIM}all {before} earlier events are still there{DIM:#}"),
        )?;
        let now = self.count_events(kernel).await?;
        if now < before {
            return Err(CliError::bad_request(format!("{} events are missing", before - now)));
        }
        let snapshot = kernel.session_snapshot(&self.caller, &by).await?;
        kernel.run_retry(&self.caller, run.id, RunChange::default()).await?;
        let run = self.follow(kernel, &CRASH_SCENARIO, run, snapshot.position).await?;
        self.print_scenario_line(
            &CRASH_SCENARIO,
            &format!("retried: {} in attempt {}", output::format_status(run.state.status()), run.attempts),
        )
    }
}
