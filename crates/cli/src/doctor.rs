//! `mainspring doctor`

use clap::Args;
use mainspring_store::{SCHEMA_VERSION, SqliteCheck, SqliteStore, StateDir};
use serde::Serialize;

use super::Context;
use super::error::{CliError, Exit};
use super::output::{DIM, GREEN, RED, YELLOW, format_time};
use mainspring::Node;
use mainspring::config::{Config, Durability};

/// Check the state directory, the database and the configuration
#[derive(Args)]
pub(super) struct Doctor {
    /// Also verify every index and the hash of every artifact; reads all data
    #[arg(long)]
    thorough: bool,
}

/// The result of one check.
#[derive(Serialize)]
struct Finding {
    health: Health,
    #[serde(rename = "what")]
    subject: &'static str,
    #[serde(rename = "found")]
    detail: String,
}

#[derive(Serialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Health {
    Ok,
    Note,
    Bad,
}

/// Maximum number of problems listed per subject.
const MAX_PROBLEMS: usize = 10;

impl Doctor {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        let mut report = Report::default();
        self.examine(context, &mut report).await;
        let is_bad = report.0.iter().any(|finding| finding.health == Health::Bad);
        match context.output.json {
            true => report.0.iter().try_for_each(|finding| context.output.print_json(finding))?,
            false => report.print(context, is_bad)?,
        }
        Ok(if is_bad { Exit::Unavailable } else { Exit::Done })
    }

    async fn examine(&self, context: &Context<'_>, report: &mut Report) {
        let config = context.config();
        report.add(Health::Ok, "mainspring", env!("CARGO_PKG_VERSION").into());
        let file = context.resolved.file.as_ref().map(|file| file.display().to_string());
        report.add(
            Health::Ok,
            "configuration",
            file.unwrap_or_else(|| "no file (mainspring config show)".into()),
        );
        if !self.state_dir(config, report) {
            return;
        }
        match Node::builder(config.clone()).records_only().open().await {
            Ok(node) => {
                self.node(config, &node, report).await;
                node.close().await;
            }
            Err(error) => report.add(Health::Bad, "database", CliError::from(error).message),
        }
    }

    /// Checks the state directory. True if it can be opened; one in use by another process is only read.
    fn state_dir(&self, config: &Config, report: &mut Report) -> bool {
        let (subject, dir) = ("state directory", config.state_dir.display());
        match StateDir::peek(&config.state_dir) {
            Err(error) => report.add(Health::Bad, subject, error.to_string()),
            Ok(Some(owner)) => {
                let (pid, since) = (owner.pid, format_time(owner.since));
                report.add(Health::Note, subject, format!("{dir}, in use by process {pid} since {since}"));
                match SqliteStore::check_read_only(&config.database(), self.thorough) {
                    Err(error) => report.add(Health::Bad, "database", error.to_string()),
                    Ok(check) => report.add_database(config, check),
                }
                let skipped = "not checked, because another process may be adding some";
                report.add(Health::Note, "artifacts", skipped.into());
            }
            Ok(None) if !config.state_dir.exists() => {
                let missing = format!("{dir} does not exist; the first prompt creates it");
                report.add(Health::Note, subject, missing);
            }
            Ok(None) if !config.database().exists() => {
                let missing = format!("{dir} has no database; the first prompt creates it");
                report.add(Health::Note, subject, missing);
            }
            Ok(None) => {
                report.add(Health::Ok, subject, format!("{dir}, not in use"));
                return true;
            }
        }
        false
    }

    /// Checks the parts that need an open node.
    async fn node(&self, config: &Config, node: &Node, report: &mut Report) {
        match node.check(self.thorough).await {
            None => {}
            Some(Err(error)) => report.add(Health::Bad, "database", error.to_string()),
            Some(Ok(check)) => report.add_database(config, check),
        }
        match node.kernel().blobs_check(self.thorough).await {
            Err(error) => report.add(Health::Bad, "artifacts", error.to_string()),
            Ok(check) => {
                let stored = format!("{} contents, {} bytes", check.blobs, check.bytes);
                report.add(Health::Ok, "artifacts", stored);
                report.add_problems("artifacts", check.problems);
            }
        }
        let work = *node.kernel().work().borrow();
        if work.queued + work.blocked > 0 {
            let mut waiting = format!("{} wait for a process: the next prompt executes them", work.queued);
            if work.blocked > 0 {
                waiting += &format!("; {} wait behind a question (mainspring run list)", work.blocked);
            }
            report.add(Health::Note, "queued runs", waiting);
        }
        let adapters: Vec<String> =
            node.kernel().adapters().into_iter().map(|adapter| adapter.adapter).collect();
        let list = format!("{}, by default {}", adapters.join(", "), config.adapter);
        match adapters.contains(&config.adapter) {
            true => report.add(Health::Ok, "adapters", list),
            false => {
                report.add(
                    Health::Bad,
                    "adapters",
                    format!("{list}, which does not exist: change `adapter`"),
                );
            }
        }
        let limits = &config.limits;
        let limits = format!(
            "{} workers, prompts of {} bytes, {} queued per session, {} in all",
            config.max_workers, limits.prompt_bytes, limits.queue_per_session, limits.queue_total
        );
        report.add(Health::Ok, "limits", limits);
    }
}

/// The findings so far.
#[derive(Default)]
struct Report(Vec<Finding>);

impl Report {
    fn add(&mut self, health: Health, subject: &'static str, detail: String) {
        self.0.push(Finding { health, subject, detail });
    }

    fn add_problems(&mut self, subject: &'static str, problems: Vec<String>) {
        for problem in problems.into_iter().take(MAX_PROBLEMS) {
            self.add(Health::Bad, subject, problem);
        }
    }

    /// Adds the results of the database check.
    fn add_database(&mut self, config: &Config, check: SqliteCheck) {
        let mib = check.file_bytes as f64 / f64::from(1 << 20);
        self.add(Health::Ok, "database", format!("{}, {mib:.1} MiB", config.database().display()));
        let (version, journal, durability) = (check.sqlite_version, check.journal_mode, durability(config));
        self.add(Health::Ok, "sqlite", format!("{version}, journal {journal}, durability {durability}"));
        let schema = if check.schema_version == SCHEMA_VERSION { Health::Ok } else { Health::Note };
        self.add(schema, "schema", format!("{} of {SCHEMA_VERSION}", check.schema_version));
        if check.problems.is_empty() {
            self.add(Health::Ok, "integrity", "no problems".into());
        }
        self.add_problems("integrity", check.problems);
        if check.crash_check_due {
            let unfinished =
                "not finished after an unclean stop; it runs in the background and again at the next start";
            self.add(Health::Note, "crash check", unfinished.into());
        }
        let stored = format!("{} sessions, {} runs, {} events", check.sessions, check.runs, check.events);
        self.add(Health::Ok, "stored", stored);
    }

    fn print(&self, context: &Context<'_>, is_bad: bool) -> std::io::Result<()> {
        for Finding { health, subject, detail } in &self.0 {
            let label = match health {
                Health::Ok => format!("{GREEN}ok  {GREEN:#}"),
                Health::Note => format!("{YELLOW}note{YELLOW:#}"),
                Health::Bad => format!("{RED}bad {RED:#}"),
            };
            context.output.print_line(format_args!("{label} {subject:<16} {detail}"))?;
        }
        match is_bad {
            true => context.output.print_line(format_args!("{RED}problems found{RED:#}")),
            false => context.output.print_line(format_args!("{DIM}no problems found{DIM:#}")),
        }
    }
}

fn durability(config: &Config) -> &'static str {
    match config.durability {
        Durability::Full => "full",
        Durability::Normal => "normal",
    }
}
