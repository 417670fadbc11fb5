//! `mainspring doctor`

use clap::Args;
use mainspring_store::{SCHEMA_VERSION, SqliteCheck, SqliteStore, StateDir};
use serde::Serialize;

use super::Context;
use super::fail::{Exit, Fail};
use super::output::{DIM, GREEN, RED, YELLOW, moment};
use mainspring::Node;
use mainspring::config::{Config, Durability};

/// Check the state directory, the database, versions and limits
#[derive(Args)]
pub(super) struct Doctor {
    /// Compare every index with its table and every artifact with its hash: reads everything
    #[arg(long)]
    thorough: bool,
}

#[derive(Serialize)]
struct Finding {
    health: Health,
    what: &'static str,
    found: String,
}

#[derive(Serialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Health {
    Ok,
    Note,
    Bad,
}

impl Doctor {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, Fail> {
        let findings = self.examine(context).await;
        let sick = findings.iter().any(|finding| finding.health == Health::Bad);
        if context.output.json {
            findings.iter().try_for_each(|finding| context.output.object(finding))?;
        } else {
            for Finding { health, what, found } in &findings {
                let mark = match health {
                    Health::Ok => format!("{GREEN}ok  {GREEN:#}"),
                    Health::Note => format!("{YELLOW}note{YELLOW:#}"),
                    Health::Bad => format!("{RED}bad {RED:#}"),
                };
                context.output.line(format_args!("{mark} {what:<16} {found}"))?;
            }
            let verdict = if sick {
                format!("{RED}something is wrong{RED:#}")
            } else {
                format!("{DIM}nothing wrong was found{DIM:#}")
            };
            context.output.line(verdict)?;
        }
        Ok(if sick { Exit::NotNow } else { Exit::Done })
    }

    async fn examine(&self, context: &Context<'_>) -> Vec<Finding> {
        let mut findings = vec![];
        let mut add = |health, what, found: String| findings.push(Finding { health, what, found });
        let config = context.config();
        add(Health::Ok, "mainspring", env!("CARGO_PKG_VERSION").into());
        add(
            Health::Ok,
            "configuration",
            context
                .resolved
                .file
                .as_ref()
                .map_or("no file (mainspring config show)".into(), |file| file.display().to_string()),
        );
        let dir = config.state_dir.display();
        match StateDir::peek(&config.state_dir) {
            Err(error) => {
                add(Health::Bad, "state directory", error.to_string());
                return findings;
            }
            Ok(Some(owner)) => {
                let since = moment(owner.since);
                add(
                    Health::Note,
                    "state directory",
                    format!("{dir}, in use by process {} since {since}", owner.pid),
                );
                match SqliteStore::check_read_only(&config.database(), self.thorough) {
                    Err(error) => add(Health::Bad, "database", error.to_string()),
                    Ok(check) => database_shown(config, check, &mut add),
                }
                add(Health::Note, "artifacts", "not looked at while another process may add some".into());
                return findings;
            }
            Ok(None) if !config.state_dir.exists() => {
                add(
                    Health::Note,
                    "state directory",
                    format!("{dir} does not exist; the first prompt makes it"),
                );
                return findings;
            }
            Ok(None) if !config.database().exists() => {
                add(
                    Health::Note,
                    "state directory",
                    format!("{dir} holds no database; the first prompt makes it"),
                );
                return findings;
            }
            Ok(None) => add(Health::Ok, "state directory", format!("{dir}, free")),
        }
        let node = match Node::builder(config.clone()).records_only().open().await {
            Ok(node) => node,
            Err(error) => {
                add(Health::Bad, "database", Fail::from(error).message);
                return findings;
            }
        };
        match node.check(self.thorough).await {
            None => {}
            Some(Err(error)) => add(Health::Bad, "database", error.to_string()),
            Some(Ok(check)) => database_shown(config, check, &mut add),
        }
        match node.kernel().blobs_check(self.thorough).await {
            Err(error) => add(Health::Bad, "artifacts", error.to_string()),
            Ok(check) => {
                let found = format!("{} contents, {} bytes", check.blobs, check.bytes);
                add(Health::Ok, "artifacts", found);
                check
                    .problems
                    .into_iter()
                    .take(10)
                    .for_each(|problem| add(Health::Bad, "artifacts", problem));
            }
        }
        let work = *node.kernel().work().borrow();
        if work.queued + work.blocked > 0 {
            let found = format!("{} wait for a process: the next prompt works them off", work.queued);
            let blocked = format!("{found}; {} wait behind a question (mainspring run list)", work.blocked);
            add(Health::Note, "queued runs", if work.blocked > 0 { blocked } else { found });
        }
        let adapters: Vec<String> =
            node.kernel().adapters().into_iter().map(|adapter| adapter.adapter).collect();
        let known = adapters.contains(&config.adapter);
        let found = format!("{}, by default {}", adapters.join(", "), config.adapter);
        match known {
            true => add(Health::Ok, "adapters", found),
            false => add(Health::Bad, "adapters", format!("{found}, which does not exist: change `adapter`")),
        }
        let limits = &config.limits;
        add(
            Health::Ok,
            "limits",
            format!(
                "{} workers, prompts of {} bytes, {} queued per session, {} in all",
                config.max_workers, limits.prompt_bytes, limits.queue_per_session, limits.queue_total
            ),
        );
        node.close().await;
        findings
    }
}

/// Reports the results of the database check.
fn database_shown(config: &Config, check: SqliteCheck, add: &mut impl FnMut(Health, &'static str, String)) {
    let mib = check.file_bytes as f64 / f64::from(1 << 20);
    add(Health::Ok, "database", format!("{}, {mib:.1} MiB", config.database().display()));
    let (version, journal) = (check.sqlite_version, check.journal_mode);
    add(Health::Ok, "sqlite", format!("{version}, journal {journal}, durability {}", durability(config)));
    let schema = if check.schema_version == SCHEMA_VERSION { Health::Ok } else { Health::Note };
    add(schema, "schema", format!("{} of {SCHEMA_VERSION}", check.schema_version));
    if check.problems.is_empty() {
        add(Health::Ok, "integrity", "nothing wrong".into());
    }
    for problem in check.problems.into_iter().take(10) {
        add(Health::Bad, "integrity", problem);
    }
    if check.crash_check_due {
        let found =
            "after an unclean stop, not finished: it runs in the background, and again at the next start";
        add(Health::Note, "crash check", found.into());
    }
    let stored = format!("{} sessions, {} runs, {} events", check.sessions, check.runs, check.events);
    add(Health::Ok, "stored", stored);
}

fn durability(config: &Config) -> &'static str {
    match config.durability {
        Durability::Full => "full",
        Durability::Normal => "normal",
    }
}
