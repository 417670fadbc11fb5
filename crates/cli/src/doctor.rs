//! `mainspring doctor`: checks an installation and changes nothing.

use clap::Args;
use mainspring_adapters::sandbox::landlock_abi;
use mainspring_client::Capabilities;
use mainspring_store::{
    OmiOffer, Owner, SCHEMA_VERSION, SqliteCheck, SqliteView, StateDir, UnfinishedRuns,
    omi_offer_without_store,
};
use serde::Serialize;

use super::Context;
use super::error::{CliError, Exit, chain};
use super::original::offer_text;
use super::output::{DIM, GREEN, RED, YELLOW, format_time};
use mainspring::Node;
use mainspring::config::{Config, Durability, OnOrphan};

mod agents;
mod database;
mod served;

/// Check the state directory, the database, the configuration, agents and keys
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
            true => report.0.iter().try_for_each(|finding| context.output.print_own_json(finding))?,
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
        for ignored in &context.resolved.ignored {
            report.add(Health::Note, "configuration", ignored.to_string());
        }
        self.state_dir(config, report).await;
        database::check_object_store(config, report).await;
        adapters(config, report);
        agents::check_agents(config, report).await;
        let is_served = matches!(StateDir::peek(&config.state_dir), Ok(Some(_)));
        agents::check_models(config, is_served, report);
        if is_served {
            served::check_sessions(context, report).await;
        }
        let limits = &config.limits;
        let limits = format!(
            "{} workers, {} runs without a process, prompts of {} bytes, {} queued per session, {} in all",
            config.max_workers,
            config.max_in_process_runs,
            limits.prompt_bytes,
            limits.queue_per_session,
            limits.queue_total
        );
        report.add(Health::Ok, "limits", limits);
    }

    /// Checks the state directory and its content, without changing anything.
    async fn state_dir(&self, config: &Config, report: &mut Report) {
        let (subject, dir) = ("state directory", config.state_dir.display());
        let unchecked = |name: &str| format!("{name}, not checked: use the tools of PostgreSQL");
        if let Some(url) = &config.store {
            return database::check_postgres(config, url, report).await;
        }
        match StateDir::peek(&config.state_dir) {
            // The process was started with another `--store` than this command.
            Ok(Some(Owner { pid, since, store: Some(store), .. })) => {
                let since = format_time(since);
                report.add(Health::Note, subject, format!("{dir}, in use by process {pid} since {since}"));
                report.add(Health::Note, "database", unchecked(&store));
            }
            Err(error) => report.add(Health::Bad, subject, error.to_string()),
            Ok(Some(owner)) => {
                let (pid, since) = (owner.pid, format_time(owner.since));
                report.add(Health::Note, subject, format!("{dir}, in use by process {pid} since {since}"));
                self.store(config, true, report).await;
            }
            Ok(None) if !config.state_dir.exists() => {
                let missing = format!("{dir} does not exist; the first prompt creates it");
                report.add(Health::Note, subject, missing);
            }
            Ok(None) if !config.database().exists() => {
                let missing = format!("{dir} has no database; the first prompt creates it");
                report.add(Health::Note, subject, missing);
                report.add_offer(config, omi_offer_without_store(&config.database()), false);
            }
            Ok(None) => {
                let mut unused = Report::default();
                unused.add(Health::Ok, subject, format!("{dir}, not in use"));
                self.store(config, false, &mut unused).await;
                match StateDir::peek(&config.state_dir) {
                    // A process took the directory meanwhile, and changed the files while they were read.
                    Ok(Some(_)) => Box::pin(self.state_dir(config, report)).await,
                    _ => report.0.append(&mut unused.0),
                }
            }
        }
    }

    /// Checks the database and the artifacts.
    async fn store(&self, config: &Config, is_served: bool, report: &mut Report) {
        let view = SqliteView::open(&config.database(), is_served);
        let checked = view.and_then(|view| view.check(self.thorough).map(|check| (view, check)));
        let (view, check) = match checked {
            Ok(checked) => checked,
            Err(error) => return report.add(Health::Bad, "database", chain(&error)),
        };
        let is_current = check.schema_version == SCHEMA_VERSION;
        report.add_database(config, check);
        report.add_offer(config, view.omi_offer(), is_served);
        if is_served {
            let skipped = "not checked, because another process may be adding some";
            return report.add(Health::Note, "artifacts", skipped.into());
        }
        match view.unfinished_runs() {
            Ok(runs) => report.add_runs(config, runs),
            Err(error) => report.add(Health::Bad, "runs", error.to_string()),
        }
        if is_current {
            self.artifacts(config, &view, report).await;
        } else {
            let skipped = "not checked, because the database has the schema of another version";
            report.add(Health::Note, "artifacts", skipped.into());
        }
    }

    /// Checks the bytes of the artifacts.
    async fn artifacts(&self, config: &Config, view: &SqliteView, report: &mut Report) {
        let blobs = match mainspring::artifact_store::blobs(config) {
            Ok(blobs) => blobs,
            Err(error) => return report.add(Health::Bad, "artifacts", error.to_string()),
        };
        let (mut count, mut bytes, mut problems, mut after) = (0_u64, 0, vec![], None);
        loop {
            let page = match view.blob_page(after.as_deref(), 500) {
                Ok(page) => page,
                Err(error) => return report.add(Health::Bad, "artifacts", error.to_string()),
            };
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            for (hash, size) in page {
                count += 1;
                bytes += size;
                problems.extend(blobs.check(&hash, size, self.thorough).await);
            }
        }
        report.add(Health::Ok, "artifacts", format!("{count} contents, {bytes} bytes"));
        report.add_problems("artifacts", problems);
    }
}

/// Checks that the default adapter exists.
fn adapters(config: &Config, report: &mut Report) {
    let adapters = match Node::adapters(config) {
        Ok(adapters) => adapters,
        Err(error) => return report.add(Health::Bad, "adapters", CliError::from(error).message),
    };
    sandbox(&adapters, report);
    let names: Vec<String> = adapters.into_iter().map(|adapter| adapter.adapter).collect();
    let list = format!("{}, by default {}", names.join(", "), config.adapter);
    match names.contains(&config.adapter) {
        true => report.add(Health::Ok, "adapters", list),
        false => {
            let missing = format!("{list}, which does not exist: change `adapter`");
            report.add(Health::Bad, "adapters", missing);
        }
    }
}

/// Reports how agents are confined.
fn sandbox(adapters: &[Capabilities], report: &mut Report) {
    let profile =
        |adapter: &Capabilities| Some(format!(", {} {}", adapter.adapter, adapter.sandbox.as_ref()?.profile));
    let profiles: String = adapters.iter().filter_map(profile).collect();
    match landlock_abi() {
        Some(abi) => report.add(Health::Ok, "sandbox", format!("Landlock {abi}{profiles}")),
        None => {
            let none = "this system has no Landlock (Linux 6.2): agents are not confined, and runs that must be are refused";
            report.add(Health::Note, "sandbox", format!("{none}{profiles}"));
        }
    }
}

/// The findings so far.
#[derive(Default)]
struct Report(Vec<Finding>);

impl Report {
    fn add(&mut self, health: Health, subject: &'static str, detail: String) {
        self.0.push(Finding { health, subject, detail });
    }

    /// Adds the offer to import a database of the original daemon.
    fn add_offer(&mut self, config: &Config, offer: Option<OmiOffer>, is_served: bool) {
        let Some(offer) = offer else { return };
        let mut text = offer_text(&config.state_dir, offer, false);
        if is_served && offer == OmiOffer::Here {
            text += " once no process serves the state directory";
        }
        self.add(Health::Note, "original daemon", text);
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
        let version = check.schema_version;
        match version == SCHEMA_VERSION {
            true => self.add(Health::Ok, "schema", version.to_string()),
            false => {
                let older =
                    format!("{version}; the next start of this version migrates it to {SCHEMA_VERSION}");
                self.add(Health::Note, "schema", older);
            }
        }
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

    /// Adds how the next process handles unfinished runs.
    fn add_runs(&mut self, config: &Config, runs: UnfinishedRuns) {
        if runs.executing > 0 {
            let next = match config.on_orphan {
                OnOrphan::Leave => "the next start records them as orphaned",
                OnOrphan::Retry => "the next start retries them",
            };
            self.add(Health::Note, "cut-off runs", format!("{}: {next}", runs.executing));
        }
        if runs.queued + runs.blocked > 0 {
            let mut waiting = format!("{} wait for a process: the next prompt executes them", runs.queued);
            if runs.blocked > 0 {
                waiting += &format!("; {} wait behind a question (mainspring run list)", runs.blocked);
            }
            self.add(Health::Note, "queued runs", waiting);
        }
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
